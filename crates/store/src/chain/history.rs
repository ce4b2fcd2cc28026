//! The history of a volume that others follow: which state a version names, on any machine.
//!
//! A crash loses versions that were not durable, and their numbers are used again; a follower that is promoted goes
//! on from an older version than the volume that it followed. So a version alone does not name a state. As in
//! PostgreSQL each opening for writing begins a *timeline* with a random identity. Only one process at a time adds
//! versions to a timeline, in order: timeline and version together name one state for ever. A follower takes over
//! the timelines of the volume that it follows.

use uuid::Uuid;

use super::format::{LabelHeader, TimelineRecord};
use crate::block::{Relation, Version};

/// Maximum timelines in a history; the oldest are forgotten.
pub(super) const MAX_TIMELINES: usize = 64;

/// The versions above `from`, up to the next timeline's `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Timeline {
    /// Its identity.
    pub id: Uuid,
    /// The version from which it went on.
    pub from: Version,
}

/// Timelines, oldest first; empty for a volume that nothing has followed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "Vec<Timeline>", into = "Vec<Timeline>")]
pub struct History(Vec<Timeline>);

impl TryFrom<Vec<Timeline>> for History {
    type Error = &'static str;

    fn try_from(timelines: Vec<Timeline>) -> Result<History, &'static str> {
        History::new(timelines).ok_or("timelines that are no history")
    }
}

impl From<History> for Vec<Timeline> {
    fn from(history: History) -> Vec<Timeline> {
        history.0
    }
}

/// The primary that has taken the place of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fence {
    /// Its term, at least 1.
    pub term: u32,
    /// The version of the other one from which it went on.
    pub from: Version,
}

impl Fence {
    /// The fence in a label.
    pub(super) fn decode(header: &LabelHeader) -> Option<Fence> {
        let (term, from) = (header.fence_term.get(), Version(header.fence_from.get()));
        (term > 0).then_some(Fence { term, from })
    }
}

impl History {
    /// A history of these timelines, oldest first; `None` unless they go on from ascending versions.
    pub fn new(timelines: Vec<Timeline>) -> Option<History> {
        let ascends = timelines.is_sorted_by_key(|timeline| timeline.from);
        (ascends && timelines.len() <= MAX_TIMELINES).then_some(History(timelines))
    }

    /// The history in a label.
    pub(super) fn decode(records: &[TimelineRecord]) -> Option<History> {
        let timeline = |record: &TimelineRecord| Timeline {
            id: Uuid::from_bytes(record.id),
            from: Version(record.from.get()),
        };
        History::new(records.iter().map(timeline).collect())
    }

    /// The timelines, oldest first.
    pub fn timelines(&self) -> &[Timeline] {
        &self.0
    }

    /// Whether nothing has followed the volume yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins a timeline with the identity `id` after version `from`. Timelines without a version are forgotten, except
    /// for the first, and so are the oldest beyond [`MAX_TIMELINES`].
    pub(super) fn begin(&mut self, id: Uuid, from: Version) {
        let used = self.0.iter().skip(1).take_while(|timeline| timeline.from < from).count();
        self.0.truncate(1 + used);
        self.0.push(Timeline { id, from });
        let surplus = self.0.len().saturating_sub(MAX_TIMELINES);
        self.0.drain(..surplus);
    }

    /// The timeline that `version` belongs to; `None` for one from before the oldest timeline.
    pub fn timeline(&self, version: Version) -> Option<Uuid> {
        let of = self.0.iter().rev().find(|timeline| timeline.from < version);
        // The state from which the oldest timeline went on has no other name.
        let first = self.0.first().filter(|first| first.from == version);
        of.or(first).map(|timeline| timeline.id)
    }

    /// The version from which the timeline after the one at `place` goes on, which no later version of that one survives.
    fn next_from(&self, place: usize) -> Option<Version> {
        self.0.get(place + 1).map(|next| next.from)
    }

    /// How a version of a timeline relates to a volume with this history whose newest version is `newest`. A follower
    /// hears of its primary's timelines before it reaches their versions: up to the version from which the next timeline
    /// goes on, the versions above `newest` are the volume's future.
    pub fn relation(&self, timeline: Uuid, version: Version, newest: Version) -> Relation {
        let Some(place) = self.0.iter().position(|own| own.id == timeline) else {
            return Relation::Strange;
        };
        match self.next_from(place) {
            _ if version < self.0[place].from => Relation::Strange,
            Some(end) if version > end => Relation::Apart(end),
            _ if version <= newest => Relation::Past,
            _ => Relation::Future,
        }
    }

    /// The places of the last common timeline: in `other`, and here.
    fn common(&self, other: &History) -> Option<(usize, usize)> {
        let place = |id| self.0.iter().position(|own| own.id == id);
        let mut theirs = other.0.iter().enumerate().rev();
        theirs.find_map(|(at, timeline)| Some((at, place(timeline.id)?)))
    }

    /// The version from which a volume with the history `other` and the newest version `version` goes on from a state of
    /// this one, whose newest version is `newest`; `None` if they have no timeline in common.
    pub fn branch(&self, other: &History, version: Version, newest: Version) -> Option<Version> {
        let (theirs, ours) = self.common(other)?;
        // The next timeline counts even if the other volume has not reached it.
        let others_end = other.next_from(theirs).unwrap_or(version);
        let end = self.next_from(ours).map_or(newest, |next| next.min(newest));
        Some(end.min(others_end))
    }

    /// How a volume with the history `other` whose newest version is `version` relates to this one, whose newest version
    /// is `newest`. Either may have been told of timelines that it has not reached.
    pub fn relation_of(&self, other: &History, version: Version, newest: Version) -> Relation {
        let Some((theirs, ours)) = self.common(other) else { return Relation::Strange };
        let (next, others_next) = (self.next_from(ours), other.next_from(theirs));
        // Up to this version the two have one history, however far each of them has come.
        let shared = next.into_iter().chain(others_next).min().unwrap_or(Version(u64::MAX));
        match version {
            _ if version < self.0[0].from => Relation::Strange,
            _ if version <= newest.min(shared) => Relation::Past,
            // This volume has not come to where the two part, and may come to the state of the other.
            _ if newest <= shared && (next.is_none() || version <= shared) => Relation::Future,
            _ => Relation::Apart(shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn history(timelines: &[(u128, u64)]) -> History {
        let timelines = timelines.iter();
        let timelines =
            timelines.map(|(number, from)| Timeline { id: id(*number), from: Version(*from) });
        History::new(timelines.collect()).unwrap()
    }

    #[test]
    fn a_timeline_without_a_version_is_forgotten_except_for_the_first() {
        let mut all = History::default();
        for (number, from) in [(1, 5), (2, 5), (3, 5), (4, 9), (5, 9), (6, 12)] {
            all.begin(id(number), Version(from));
        }
        assert_eq!(all, history(&[(1, 5), (3, 5), (5, 9), (6, 12)]));
        let timelines = [4, 5, 6, 9, 10, 12, 13].map(|version| all.timeline(Version(version)));
        let expected = [None, Some(1), Some(3), Some(3), Some(5), Some(5), Some(6)];
        assert_eq!(timelines, expected.map(|number| number.map(id)));
    }

    #[test]
    fn only_the_newest_timelines_are_kept() {
        let mut all = History::default();
        (0..100).for_each(|number| all.begin(id(number), Version(number as u64)));
        assert_eq!(all.timelines().len(), MAX_TIMELINES);
        assert_eq!(all.timelines()[0].id, id(36));
    }

    #[test]
    fn a_position_is_past_future_apart_or_strange() {
        let all = history(&[(1, 0), (2, 10), (3, 20)]);
        let relation = |number, version| all.relation(id(number), Version(version), Version(25));
        for (number, version, expected) in [
            (1, 0, Relation::Past),
            (1, 10, Relation::Past),
            (1, 11, Relation::Apart(Version(10))),
            (2, 9, Relation::Strange),
            (2, 20, Relation::Past),
            (3, 25, Relation::Past),
            (3, 26, Relation::Future),
            (4, 5, Relation::Strange),
        ] {
            assert_eq!(relation(number, version), expected, "{version} of {number}");
        }
    }

    #[test]
    fn versions_that_a_follower_has_not_reached_are_its_future_up_to_the_next_timeline() {
        let all = history(&[(1, 0), (2, 10), (3, 20)]);
        for newest in [0, 5, 10, 15] {
            for (number, from, end) in [(1, 0, 10), (2, 10, 20)] {
                for version in from..=end {
                    let relation = all.relation(id(number), Version(version), Version(newest));
                    let expected = match version <= newest {
                        true => Relation::Past,
                        false => Relation::Future,
                    };
                    assert_eq!(relation, expected, "{version} of {number} at {newest}");
                }
                let lost = all.relation(id(number), Version(end + 1), Version(newest));
                assert_eq!(lost, Relation::Apart(Version(end)), "{number} at {newest}");
            }
            let last = all.relation(id(3), Version(21), Version(newest));
            assert_eq!(last, Relation::Future, "at {newest}");
        }
    }

    #[test]
    fn histories_are_compared_at_their_last_common_timeline() {
        let ours = history(&[(1, 0), (2, 10)]);
        let relation = |other: &[(u128, u64)], version| {
            ours.relation_of(&history(other), Version(version), Version(15))
        };
        for (other, version, expected) in [
            (&[(1, 0)][..], 0, Relation::Past),
            (&[(1, 0)], 10, Relation::Past),
            // It had versions that the crash before our second timeline lost.
            (&[(1, 0)], 12, Relation::Apart(Version(10))),
            (&[(1, 0), (2, 10)], 15, Relation::Past),
            (&[(1, 0), (2, 10)], 16, Relation::Future),
            // It has been told of our second timeline, and has not reached it.
            (&[(1, 0), (2, 10)], 7, Relation::Past),
            // It was promoted at 12, and we went on to 15.
            (&[(1, 0), (2, 10), (9, 12)], 14, Relation::Apart(Version(12))),
            // It was promoted at 15, which is all that we have.
            (&[(1, 0), (2, 10), (9, 15)], 17, Relation::Future),
            (&[(7, 0)], 3, Relation::Strange),
            (&[], 3, Relation::Strange),
        ] {
            assert_eq!(relation(other, version), expected, "{other:?} at {version}");
        }
    }

    #[test]
    fn a_volume_that_is_behind_its_own_history_is_compared_by_that() {
        let ours = history(&[(1, 0), (2, 10)]);
        let relation = |other: &[(u128, u64)], version| {
            ours.relation_of(&history(other), Version(version), Version(5))
        };
        for (other, version, expected) in [
            (&[(1, 0)][..], 5, Relation::Past),
            (&[(1, 0)], 8, Relation::Future),
            (&[(1, 0)], 12, Relation::Apart(Version(10))),
            (&[(1, 0), (2, 10)], 8, Relation::Future),
            (&[(1, 0), (2, 10)], 12, Relation::Future),
            (&[(1, 0), (9, 7)], 6, Relation::Future),
            (&[(1, 0), (9, 7)], 8, Relation::Apart(Version(7))),
            (&[(1, 0), (9, 3)], 4, Relation::Apart(Version(3))),
        ] {
            assert_eq!(relation(other, version), expected, "{other:?} at {version}");
        }
    }

    #[test]
    fn a_branch_is_where_the_next_timeline_of_the_other_begins() {
        let ours = history(&[(1, 0), (2, 10)]);
        let branch = |other: &[(u128, u64)], version| {
            ours.branch(&history(other), Version(version), Version(15))
        };
        for (other, version, expected) in [
            (&[(1, 0), (2, 10), (9, 12)][..], 14, Some(12)),
            // It has been told of the new primary's timeline, and has not reached it.
            (&[(1, 0), (2, 10), (9, 12)], 3, Some(12)),
            (&[(1, 0), (9, 12)], 14, Some(10)),
            (&[(1, 0), (2, 10), (9, 20)], 25, Some(15)),
            (&[(1, 0), (2, 10)], 11, Some(11)),
            (&[(7, 0)], 3, None),
        ] {
            assert_eq!(branch(other, version), expected.map(Version), "{other:?} at {version}");
        }
    }
}
