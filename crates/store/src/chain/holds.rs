//! Which versions somebody still needs.

use std::collections::BTreeMap;

use crate::block::Version;

/// Rounds for which the durable version is kept although nobody asks for it.
const FOLLOWED_ROUNDS: u32 = 64;

/// The newest durable version, kept for those who read what survives a crash. A round that is under
/// way overwrites nothing that its readers need, and that costs, so it is done while somebody asks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Synced {
    /// The version that is kept.
    pub(super) version: Option<Version>,
    /// Rounds until nobody is taken to ask any more.
    pub(super) follow: u32,
}

impl Synced {
    /// Notes that somebody asks.
    pub(super) fn ask(&mut self) {
        self.follow = FOLLOWED_ROUNDS;
    }
}

/// The versions that are held, each with the number of its holders.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(BTreeMap<Version, u32>);

impl Holds {
    /// Adds a holder of `version`.
    pub(super) fn take(&mut self, version: Version) {
        *self.0.entry(version).or_default() += 1;
    }

    /// Removes a holder of `version`; true when it was the last one.
    pub(super) fn release(&mut self, version: Version) -> bool {
        match self.0.get_mut(&version) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            Some(_) => {
                self.0.remove(&version);
                true
            }
            None => false,
        }
    }

    /// The oldest version held.
    pub(super) fn oldest(&self) -> Option<Version> {
        self.0.keys().next().copied()
    }

    /// Whether a holder sees content of version `from` that `until` replaced.
    pub(super) fn need(&self, from: Version, until: Version) -> bool {
        self.0.range(from..until).next().is_some()
    }

    /// The newest version held.
    pub(super) fn newest(&self) -> Option<Version> {
        self.0.keys().next_back().copied()
    }

    /// Whether `version` itself is held.
    pub(super) fn contains(&self, version: Version) -> bool {
        self.0.contains_key(&version)
    }
}
