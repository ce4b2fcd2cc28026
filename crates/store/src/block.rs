//! The contract of a block store: atomicity and durability of versioned blocks.
//!
//! Isolation is kept apart: a transaction layer decides which transactions commit. A committed transaction is
//! applied here and becomes visible at once, in version order.
//!
//! **The crash rule.** After a crash a store recovers to the state of one version, no older than
//! any version that [`Blocks::sync`] acknowledged: a prefix of the commit order, and no
//! transaction in part.

mod ages;
mod backpressure;
mod contract;
mod damage;
mod difference;
mod frozen;
mod holds;
mod layer;
mod lineage;
mod list;
mod located;
mod position;
mod ranges;
mod retained;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use crate::device::BLOCK_SIZE;
use crate::device::DeviceError;
pub use ages::Ages;
pub use backpressure::{Applied, Backpressure, Throttle};
pub(crate) use contract::numbers_itself;
pub use contract::{BlockStore, Blocks, BlocksExt, Hints, Lineage, Versions};
pub(crate) use difference::difference;
pub use frozen::Frozen;
pub(crate) use holds::Holds;
pub use layer::Layer;
pub use lineage::Relation;
pub use list::WriteList;
pub use located::{BlockVersion, Located, Locations, Residence};
pub use position::{NoPosition, Position};
pub use ranges::ByteRanges;
pub use retained::{Keep, Paused, Retained};

/// A logical block address.
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
pub struct Lba(pub u64);

/// A commit timestamp. Versions are contiguous, except for those of [`Lineage::submit_at`]; version 0 is the
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

    /// The version that follows this one: `given`, or else the next.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] unless it is newer, and below 2⁴⁸, as the formats store it.
    pub(crate) fn or_next(self, given: Option<Version>) -> Result<Version, StoreError> {
        match given.unwrap_or(self.next()) {
            version if version > self && version.0 < 1 << 48 => Ok(version),
            version => Err(StoreError::Invalid(format!(
                "version {version} cannot follow version {self} of this store"
            ))),
        }
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

impl std::str::FromStr for EpochVersion {
    type Err = StoreError;

    /// Reads `EPOCH.VERSION`.
    fn from_str(text: &str) -> Result<EpochVersion, StoreError> {
        // The form that is written, and no other: a sign or a leading zero would give a name twice.
        let parsed = text.split_once('.').and_then(|(epoch, version)| {
            let (epoch, version) = (epoch.parse().ok()?, version.parse().ok()?);
            Some(EpochVersion { epoch: Epoch(epoch), version: Version(version) })
        });
        parsed.filter(|parsed| parsed.to_string() == text).ok_or_else(|| {
            let why = format!("`{text}` is no version: expected EPOCH.VERSION, as in 7.1234");
            StoreError::Invalid(why)
        })
    }
}

/// The kind of a block that is written. Stores with weaker data modes treat the two kinds differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum Class {
    /// A user's bytes.
    #[default]
    Data,
    /// Structure that other blocks depend on.
    Metadata,
}

/// One block of a transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// The block.
    pub lba: Lba,
    /// Its whole new content, [`BLOCK_SIZE`] bytes; `None` discards the block, which then reads
    /// as zeros.
    pub content: Option<Bytes>,
    /// The bytes that may differ from the content before. A store may leave the other bytes unwritten, so
    /// `content` must repeat what is stored there.
    pub changed: ByteRanges,
    /// Data or metadata.
    pub class: Class,
}

impl Write {
    /// A write of a whole data block.
    pub fn block(lba: Lba, content: Bytes) -> Write {
        Write { lba, content: Some(content), changed: ByteRanges::whole(), class: Class::Data }
    }
}

/// What a store keeps of the versions before and after a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retention {
    /// The new version is readable until the next one; older versions as long as they are held.
    #[default]
    Newest,
    /// The new version is held from the start.
    Hold,
    /// No reader of an older version needs the former content of the blocks, since they held nothing. Such
    /// a reader may find the new content instead, so the store need not remember when they were written.
    Unversioned,
}

/// Keeps a version readable; released when dropped.
pub struct Hold {
    version: Version,
    release: Option<Box<dyn FnOnce(Version) + Send + Sync>>,
}

impl Hold {
    /// A guard that calls `release` when dropped.
    pub fn new(version: Version, release: impl FnOnce(Version) + Send + Sync + 'static) -> Hold {
        Hold { version, release: Some(Box::new(release)) }
    }

    /// The version held.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release(self.version);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.version).finish()
    }
}

/// What can go wrong in a block store; each kind is named after what the caller must do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Give up: the request is invalid; the text says why.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Give up: the store is open read-only, or shows a snapshot.
    #[error("the volume is open read-only")]
    ReadOnly,
    /// Give up, or free something: there is no room for the write.
    #[error("no space left on the volume; trim or delete data, delete snapshots, or extend it")]
    NoSpace,
    /// Give up, or split the work: the transaction takes more than the store's journal holds.
    #[error(
        "the transaction changes {needed} bytes of metadata and small writes, and the volume's journal \
         takes {most} at once; do the work in several, or make the volume with a larger journal"
    )]
    TooLarge {
        /// Upper bound of the bytes that the transaction takes.
        needed: u64,
        /// The maximum for one transaction, in bytes.
        most: u64,
    },
    /// Give up on this block: no copy of it matches its checksum.
    #[error("block {} is damaged: no copy matches its checksum ({detail})", lba.0)]
    Corrupt {
        /// The logical block.
        lba: Lba,
        /// Where it lies, and which copies were tried.
        detail: String,
    },
    /// Stop: a flush or a write failed earlier. The store serves reads until it is reopened.
    #[error("the store refuses writes since an earlier failure: {0}")]
    Poisoned(Arc<str>),
    /// Stop: a replica of the volume has become its primary. The store serves reads.
    #[error(
        "a replica of this volume was promoted (term {0}): nothing is written here any more; use the new primary"
    )]
    Fenced(u32),
    /// Wait, or stop: the change survives a crash of this machine, and too few replicas have made it durable, too.
    #[error("the change is durable here, and not at as many replicas as it should be: {0}")]
    Unreplicated(Arc<str>),
    /// The version asked for has been reclaimed.
    #[error("version {0} is no longer kept")]
    Gone(Version),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_is_written() {
        let last = EpochVersion { epoch: Epoch(u64::MAX), version: Version(u64::MAX) };
        let version = EpochVersion { epoch: Epoch(7), version: Version(1234) };
        assert_eq!(version.to_string(), "7.1234");
        for version in [EpochVersion::default(), version, last] {
            assert_eq!(version.to_string().parse::<EpochVersion>().unwrap(), version);
        }
        for wrong in ["", "7", ".", "7.", ".7", "7.1.2", "+7.1", "7.01", " 7.1", "7.-1", "a.b"] {
            let refused = wrong.parse::<EpochVersion>();
            assert!(matches!(refused, Err(StoreError::Invalid(_))), "{wrong}: {refused:?}");
        }
        assert!("7.18446744073709551616".parse::<EpochVersion>().is_err());
    }
}
