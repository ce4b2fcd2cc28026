//! What a block store offers, in four parts.
//!
//! [`Blocks`] reads and writes the newest state, [`Versions`] keeps and reads older ones, [`Lineage`] relates the store to
//! its replicas, and [`Hints`] make it faster. The first two leave nothing to a default: a store over another one answers
//! each of their methods. [`Layer`](super::Layer) does so by forwarding.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::{
    Applied, BlockVersion, Epoch, EpochVersion, Hold, Lba, Locations, Position, Relation,
    Retention, StoreError, Version, Write, WriteList,
};

/// Blocks, applied atomically and made durable on request.
#[async_trait]
pub trait Blocks: Send + Sync + fmt::Debug + 'static {
    /// The number of logical blocks.
    fn blocks(&self) -> u64;

    /// The epoch of every version while the store is open.
    fn epoch(&self) -> Epoch;

    /// The newest version that a new reader sees. A commit that has been acknowledged is in it.
    fn now(&self) -> Version;

    /// Whether every change is refused with [`StoreError::ReadOnly`].
    fn is_read_only(&self) -> bool;

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

    /// [`Blocks::read`] of the newest version, and which one that is. It never fails with
    /// [`StoreError::Gone`]: all blocks are of one version, also during commits.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when no copy of a block matches its checksum.
    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError>;

    /// Which of `count` blocks from `lba` on hold data at a version that is kept, or else the newest one, as runs of
    /// (length, stored).
    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)>;

    /// Applies one transaction's writes as the next version, atomically. The version is visible when this
    /// returns, and durable after a [`Blocks::sync`]. The caller waits for the
    /// [`Backpressure`](super::Backpressure) that is returned before it writes more.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was applied.
    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError>;

    /// Discards `count` blocks from `lba` on as the next version: they read as zeros, and their
    /// space may be reclaimed.
    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError>;

    /// Makes everything up to `version` survive a crash. Concurrent callers share a flush.
    async fn sync(&self, version: Version) -> Result<(), StoreError>;

    /// How many more blocks can be written where nothing is stored: fewer than hold nothing while snapshots keep contents that
    /// newer ones have replaced. `None` when each block of the store can be written. Versions that are given up before a
    /// write fails for lack of room do not count.
    fn room(&self) -> Option<u64>;

    /// The most blocks that [`Blocks::submit`] takes at once.
    fn max_transaction(&self) -> usize;
}

/// The versions of a store besides its newest: what they hold, and how long they are kept.
#[async_trait]
pub trait Versions: Blocks {
    /// Keeps `version` readable until the guard is dropped. `None` when it is gone already.
    fn hold(&self, version: Version) -> Option<Hold>;

    /// Keeps `version` and all that are newer readable until the guard is dropped. `None` when one of them is gone
    /// already, and from a store that cannot.
    fn hold_since(&self, version: Version) -> Option<Hold>;

    /// Keeps the newest version that survives a crash readable. It contains everything that
    /// [`Blocks::sync`] acknowledged. `None` when the store has not kept that version; the call asks it
    /// to from now on.
    fn hold_synced(&self) -> Option<Hold>;

    /// The version that [`Versions::hold_synced`] would keep now, without keeping it.
    fn synced(&self) -> Option<Version>;

    /// The version from which on all can be read.
    fn oldest(&self) -> Version;

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

    /// The version from which on [`Versions::hold_since`] keeps at most `most` contents of blocks that have newer
    /// ones; `None` when it keeps no more now.
    fn lapse_point(&self, most: usize) -> Option<Version>;

    /// Whether a write may lack room because older versions are held. False while a write only waits for work that
    /// the store ends by itself, with these versions.
    fn holds_take_room(&self) -> bool;
}

/// The history that a store shares with its replicas, and its rank among them. The defaults are for a store that no
/// other one follows, and that follows none.
#[async_trait]
pub trait Lineage: Send + Sync {
    /// The name of the newest version on every machine; `None` for a store that no other one follows.
    fn position(&self) -> Option<Position> {
        None
    }

    /// The name of a version on any machine; `None` for one older than the history, and for a volume that nothing has
    /// followed yet.
    fn position_of(&self, _version: Version) -> Option<Position> {
        None
    }

    /// The timeline to which the next version will belong, if the store takes writes.
    fn timeline(&self) -> Option<Uuid> {
        None
    }

    /// How a position relates to the store; `None` for a store without a history.
    fn relation(&self, _position: Position) -> Option<Relation> {
        None
    }

    /// Waits until the store has the state that `position` names, or a later one, and it survives a crash.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when it never will: the position is of another volume, or of one that has gone another
    /// way.
    async fn reached(&self, position: Position) -> Result<(), StoreError> {
        let why = format!("this volume has no replicas, and never reaches {position}");
        Err(StoreError::Invalid(why))
    }

    /// Waits until `version` survives a crash of this machine at enough replicas, too: as many as syncs wait for, or else
    /// one. Says `false` when no replica is connected that has a state of the store, and syncs wait for none.
    async fn replicated(&self, _version: Version) -> bool {
        false
    }

    /// Number of promotions up to the primary that the store belongs to.
    fn term(&self) -> u32 {
        0
    }

    /// Whether another primary has taken the place of this one.
    fn is_fenced(&self) -> bool {
        false
    }

    /// [`Blocks::submit`] as a given version, for a store that follows another one: versions may be left out.
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
        Err(numbers_itself(version))
    }
}

/// Refuses a version that was given to a store which does not follow another one.
pub(crate) fn numbers_itself(version: Version) -> StoreError {
    StoreError::Invalid(format!("this store numbers its versions; {version} was given"))
}

/// What makes a store faster, and may be ignored without harm.
pub trait Hints: Send + Sync {
    /// One block as of version `at`, as [`Blocks::read`] would return it, if the store finds it in memory at
    /// once. `None` also when `at` is not kept: a read says why.
    fn peek(&self, _lba: Lba, _at: Version) -> Option<Option<Bytes>> {
        None
    }

    /// Asks for a block to be kept in memory. Bounded: beyond the bound the most recently read
    /// blocks stay.
    fn please_cache(&self, _lba: Lba) {}
}

/// A block store with all four parts.
pub trait BlockStore: Blocks + Versions + Lineage + Hints {}

impl<S: Blocks + Versions + Lineage + Hints> BlockStore for S {}

/// What follows from the methods of [`Blocks`], the same for every store.
pub trait BlocksExt: Blocks {
    /// The name of a version for ever.
    fn name(&self, version: Version) -> EpochVersion {
        EpochVersion { epoch: self.epoch(), version }
    }

    /// [`Blocks::submit`] and its backpressure, for a caller that nothing else waits for. A block may be
    /// written several times: see [`WriteList`].
    ///
    /// # Errors
    /// As [`Blocks::submit`], and [`WriteList::new`].
    fn apply(
        &self,
        writes: Vec<Write>,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        async {
            let applied = self.submit(WriteList::new(writes)?, Retention::Newest).await?;
            Ok(applied.settle().await)
        }
    }
}

impl<S: Blocks + ?Sized> BlocksExt for S {}
