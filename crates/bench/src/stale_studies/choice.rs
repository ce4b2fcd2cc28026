//! The choice among the versions that a reader accepts.

use thalweg_store::block::{Located, Locations, Residence, Version};
use thalweg_store::device::QueueDepth;
use thalweg_store::stale::{CostModel, choose};

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

impl Place {
    /// As the chooser sees it: an idle device.
    fn residence(self) -> Residence {
        let on = |device, is_rotational| Residence::Device {
            device,
            offset: 0,
            size: 1,
            is_rotational,
            queue: QueueDepth::default(),
        };
        match self {
            Place::Memory => Residence::Memory,
            Place::SolidState => on(0, false),
            Place::Disk => on(1, true),
        }
    }
}

/// The version in `low..=up` that is cheapest to read, and its place. `place` returns `None` for a version that is
/// nowhere. The store's chooser and costs decide: among equal places the oldest version wins.
pub(super) fn cheapest(
    low: u32,
    up: u32,
    place: impl Fn(u32) -> Option<Place>,
) -> Option<(u32, Place)> {
    let places = (low..=up).filter_map(|version| Some((version, place(version)?)));
    let places: Vec<(u32, Place)> = places.collect();
    let located = places.iter().map(|(version, place)| {
        let version = Version(u64::from(*version));
        Located { oldest: version, newest: version, residence: place.residence() }
    });
    let located: Locations = located.collect();
    let costs = CostModel::fixed();
    let (chosen, _) = choose::cheapest(&located, located.len(), &costs)?;
    places.iter().find(|(version, _)| u64::from(*version) == chosen.oldest.0).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_place_wins_and_then_the_oldest_version() {
        let places = [None, Some(Place::Memory), Some(Place::Disk), Some(Place::Memory), None];
        let chosen = |low, up| cheapest(low, up, |version| places[version as usize]);
        assert_eq!(chosen(0, 4), Some((1, Place::Memory)));
        assert_eq!(chosen(2, 4), Some((3, Place::Memory)));
        assert_eq!(chosen(1, 2), Some((1, Place::Memory)));
        assert_eq!(chosen(2, 2), Some((2, Place::Disk)));
        assert_eq!(chosen(4, 4), None);
        assert_eq!((oldest_allowed(3, 5), oldest_allowed(5, 3)), (0, 2));
    }
}
