//! Names of states of a store.

use std::fmt;

/// A commit timestamp. Versions are contiguous, except for those of [`Lineage::submit_at`](super::Lineage::submit_at); version 0 is the
/// empty store.
///
/// A version names one state as long as the store is open. A crash loses versions that were visible and not yet
/// durable, and the recovered store numbers its commits from there on again: an [`EpochVersion`] names a state
/// for ever.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Version(pub u64);

impl Version {
    /// The version after this one.
    pub const fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that each opening of a store for writing raises, after a crash and after an orderly end alike. A store
/// that is opened read-only has the number that the next such opening will use: it shows the same state.
///
/// A power cut may repeat an epoch where barriers are switched off.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A version with the epoch in which it was made or read: no other state of the store ever has this name.
///
/// It is written `EPOCH.VERSION`.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct EpochVersion {
    /// The epoch.
    pub epoch: Epoch,
    /// The version.
    pub version: Version,
}

impl fmt::Display for EpochVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.version)
    }
}
