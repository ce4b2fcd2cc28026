//! The contract of a block store: atomicity and durability of versioned blocks.
//!
//! Isolation is kept apart: a transaction layer decides which transactions commit. A committed transaction is
//! applied here and becomes visible at once, in version order.
//!
//! **The crash rule.** After a crash a store recovers to the state of one version, no older than
//! any version that [`BlockStore::sync`] acknowledged: a prefix of the commit order, and no
//! transaction in part.

mod ages;
mod backpressure;
mod damage;
mod difference;
mod frozen;
mod holds;
mod lineage;
mod list;
mod located;
mod position;
mod ranges;
mod retained;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use crate::device::BLOCK_SIZE;
use crate::device::DeviceError;
pub use ages::Ages;
pub use backpressure::{Applied, Backpressure, Throttle};
pub(crate) use difference::difference;
pub use frozen::Frozen;
pub(crate) use holds::Holds;
pub use lineage::{Lineage, Relation};
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

/// A commit timestamp. Versions are contiguous, except for those of [`BlockStore::submit_at`]; version 0 is the
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

/// Blocks with versions, applied atomically and made durable on request.
#[async_trait]
pub trait BlockStore: Send + Sync + fmt::Debug + 'static {
    /// The number of logical blocks.
    fn blocks(&self) -> u64;

    /// The epoch of every version while the store is open.
    fn epoch(&self) -> Epoch;

    /// The newest version that a new reader sees. A commit that has been acknowledged is in it.
    fn now(&self) -> Version;

    /// The name of a version for ever.
    fn name(&self, version: Version) -> EpochVersion {
        EpochVersion { epoch: self.epoch(), version }
    }

    /// Whether every change is refused with [`StoreError::ReadOnly`].
    fn is_read_only(&self) -> bool {
        false
    }

    /// `count` blocks from `lba` on as of version `at`: one buffer for each block, `None` where nothing is
    /// stored and the block reads as zeros. `at` is the newest version or one that is held (also by another
    /// reader).
    ///
    /// # Errors
    /// [`StoreError::Gone`] when `at` is not kept, also when a newer version comes during the read;
    /// [`StoreError::Corrupt`] when no copy of a block matches its checksum.
    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError>;

    /// [`BlockStore::read`] of the newest version, and which one that is. It never fails with
    /// [`StoreError::Gone`]: all blocks are of one version, also during commits.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when no copy of a block matches its checksum.
    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError>;

    /// One block as of version `at`, as [`BlockStore::read`] would return it, if the store finds it in memory at
    /// once. `None` also when `at` is not kept: a read says why.
    fn peek(&self, _lba: Lba, _at: Version) -> Option<Option<Bytes>> {
        None
    }

    /// Applies one transaction's writes as the next version, atomically. The version is visible when this
    /// returns, and durable after a [`BlockStore::sync`]. The caller waits for the [`Backpressure`] that is
    /// returned before it writes more.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was applied.
    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError>;

    /// [`BlockStore::submit`] as a given version, for a store that follows another one: versions may be left out.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] unless `version` is newer than the newest, and from a store that numbers its
    /// versions itself.
    async fn submit_at(
        &self,
        version: Version,
        _writes: WriteList,
        _retention: Retention,
    ) -> Result<Applied, StoreError> {
        Err(StoreError::Invalid(format!("this store numbers its versions; {version} was given")))
    }

    /// [`BlockStore::submit`] and its backpressure, for a caller that nothing else waits for. A block may be
    /// written several times: see [`WriteList`].
    ///
    /// # Errors
    /// As [`BlockStore::submit`], and [`WriteList::new`].
    async fn apply(&self, writes: Vec<Write>) -> Result<Version, StoreError> {
        let applied = self.submit(WriteList::new(writes)?, Retention::Newest).await?;
        Ok(applied.settle().await)
    }

    /// Whether a write may lack room because older versions are held. False while a write only waits for work that
    /// the store ends by itself, with these versions.
    fn holds_take_room(&self) -> bool {
        true
    }

    /// How many more blocks can be written where nothing is stored: fewer than hold nothing while snapshots keep contents that
    /// newer ones have replaced. `None` when each block of the store can be written. Versions that are given up before a
    /// write fails for lack of room do not count.
    fn room(&self) -> Option<u64> {
        None
    }

    /// The most blocks that [`BlockStore::apply`] takes at once.
    fn max_transaction(&self) -> usize {
        usize::MAX
    }

    /// Discards `count` blocks from `lba` on as the next version: they read as zeros, and their
    /// space may be reclaimed.
    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError>;

    /// Makes everything up to `version` survive a crash. Concurrent callers share a flush.
    async fn sync(&self, version: Version) -> Result<(), StoreError>;

    /// Keeps `version` readable until the guard is dropped. `None` when it is gone already.
    fn hold(&self, version: Version) -> Option<Hold>;

    /// Keeps `version` and all that are newer readable until the guard is dropped. `None` when one of them is gone
    /// already, and from a store that cannot.
    fn hold_since(&self, _version: Version) -> Option<Hold> {
        None
    }

    /// The version from which on all can be read.
    fn oldest(&self) -> Version {
        self.now()
    }

    /// Keeps the newest version that survives a crash readable. It contains everything that
    /// [`BlockStore::sync`] acknowledged. `None` when the store has not kept that version; the call asks it
    /// to from now on.
    fn hold_synced(&self) -> Option<Hold> {
        None
    }

    /// The version that [`BlockStore::hold_synced`] would keep now, without keeping it.
    fn synced(&self) -> Option<Version> {
        None
    }

    /// The history that the store shares with its replicas; `None` for a store of a kind that has none.
    fn lineage(&self) -> Option<&dyn Lineage> {
        None
    }

    /// The name of the newest version on every machine; `None` for a store that no other one follows.
    fn position(&self) -> Option<Position> {
        self.lineage()?.position_of(self.now())
    }

    /// The contents of a block that can be read, oldest first; the last one is the newest. Versions that are not
    /// held themselves are left out, except for the newest.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] outside of the store.
    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError>;

    /// The contents that a block has in the versions from `oldest` to `newest` that can be read, and where each of them
    /// would be read from. Neither version need be one that can be read. Never waits.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] outside of the store.
    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError>;

    /// The version from which on [`BlockStore::hold_since`] keeps at most `most` contents of blocks that have newer
    /// ones; `None` when it keeps no more now.
    fn lapse_point(&self, _most: usize) -> Option<Version> {
        None
    }

    /// Asks for a block to be kept in memory. A hint, and bounded: beyond the bound the most recently read
    /// blocks stay.
    fn please_cache(&self, _lba: Lba) {}

    /// Which of `count` blocks from `lba` on hold data at a version that is kept, or else the newest one, as runs of
    /// (length, stored).
    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)>;
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
