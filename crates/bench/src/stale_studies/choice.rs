//! The choice among the versions that a reader accepts.

/// The fastest place that has a version. Places are ordered by the time of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Memory,
    SolidState,
    Disk,
}

impl Place {
    pub(super) const ALL: [Place; 3] = [Place::Memory, Place::SolidState, Place::Disk];
}

/// The oldest version that a reader accepts if it allows a staleness of so many updates of the item.
pub(super) fn oldest_allowed(newest: u32, staleness: u32) -> u32 {
    newest.saturating_sub(staleness)
}

/// The version in `low..=up` that is cheapest to read, and its place. `place` returns `None` for a version that is
/// nowhere. Among equal places the newest version wins: each read has its range from the bound alone, so that
/// an older answer does not widen the range of later reads.
pub(super) fn cheapest(
    low: u32,
    up: u32,
    place: impl Fn(u32) -> Option<Place>,
) -> Option<(u32, Place)> {
    let places = (low..=up).rev().filter_map(|version| Some((version, place(version)?)));
    places.min_by_key(|(_, place)| *place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_place_wins_and_then_the_newest_version() {
        let places = [None, Some(Place::Memory), Some(Place::Disk), Some(Place::Memory), None];
        let chosen = |low, up| cheapest(low, up, |version| places[version as usize]);
        assert_eq!(chosen(0, 4), Some((3, Place::Memory)));
        assert_eq!(chosen(1, 2), Some((1, Place::Memory)));
        assert_eq!(chosen(2, 2), Some((2, Place::Disk)));
        assert_eq!(chosen(4, 4), None);
        assert_eq!((oldest_allowed(3, 5), oldest_allowed(5, 3)), (0, 2));
    }
}
