//! Isolation: which transactions commit (Isotope, chapter 4).
//!
//! A transaction reads a snapshot, keeps its writes to itself, and commits if no commit since its snapshot
//! conflicts with it. The decision looks at the stream of recent transactions alone, in units of 16 bytes,
//! and never at an index or a device. The writes of a committed transaction go to a
//! [`BlockStore`](crate::block::BlockStore) of any kind.
//!
//! Stores built on transactions use the two traits here, [`Transact`] and [`Transaction`]: they work the same
//! in the volume's process and over a socket.
//!
//! - `manager`: the transactions of a store; `client`: a process that runs them; `transaction`: one of them;
//! - `access`, `fragments`: what a transaction read and wrote; `intent`: what remains of it at its commit;
//! - `begin`: snapshots; `window`, `commit`: decisions, and commits in their order; `past`, `aside`: writes
//!   that bypass these;
//! - `order`, `running`, `fence`: the state behind it, which `inner` keeps together;
//! - `face`, `fenced`: the manager as a block store;
//! - `contention`, [`nest`]: retries, and transactions of a thread; `sessions`: reads and writes for sessions;
//! - `view`, `reading`: transactions on old versions.
//!
//! # Locks
//!
//! A task takes them in this order only, and holds none of them across an await:
//!
//! 1. the commit order (`Inner::order`);
//! 2. either of these, neither under the other: the running transactions (`Inner::registry`), or what a
//!    committed one left for its owner (`Intent::applied`);
//! 3. the locks of the block store. A hold that ends takes one, also when a snapshot is dropped.
//!
//! The work of a transaction (`Running::work`) is locked under none of these, and no lock is taken under it; nor
//! under the names of owners ([`Aside::owners`]).

mod access;
mod aside;
mod begin;
mod client;
mod commit;
mod contention;
mod counts;
mod error;
mod face;
mod fence;
mod fenced;
mod fragments;
mod inner;
mod intent;
mod isolation;
mod manager;
pub mod nest;
mod options;
mod order;
mod past;
mod reading;
mod running;
mod sessions;
mod transaction;
mod view;
mod window;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::HashSet;

use crate::block::{BlockVersion, Class, Epoch, EpochVersion, Lba, Position, Version, Write};
use crate::stale::{Cost, Needs, Standing, VersionRange};
pub use client::Client;
pub use contention::{Contention, Turn};
pub use counts::TxnStatus;
pub use error::{Preempted, TxnError};
pub use fenced::{Fenced, Occupation};
pub use fragments::FRAGMENT;
pub use isolation::{Begin, Isolation};
pub use manager::TransactionManager;
#[cfg(feature = "seeded-bugs")]
pub use options::Bug;
pub use options::Options;
pub use reading::{Reader, Reading, Seen};
pub use sessions::{newest, read_block_for, read_for, write_block_for, write_for};

/// When a commit is acknowledged.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When it survives a crash, together with everything that the transaction has seen.
    #[default]
    Synced,
    /// When other transactions see it. A crash may lose the latest of such commits, and those that followed.
    Visible,
}

/// Names a released transaction until it is taken over; cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Handle(pub u128);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:032x})", self.0)
    }
}

/// A volume that runs transactions.
#[async_trait]
pub trait Transact: Send + Sync + fmt::Debug + 'static {
    /// The number of logical blocks.
    fn blocks(&self) -> u64;

    /// Begins a transaction on a snapshot that contains everything acknowledged before, or on [`Begin::at`].
    ///
    /// # Errors
    /// [`TxnError::TooMany`]: this process runs as many as it may. [`TxnError::Gone`]: the version is not kept.
    /// [`TxnError::Invalid`]: a transaction on a given version that is not read-only. [`TxnError::Unserved`]: the volume is
    /// not on the way of [`Begin::after`], or not the primary that [`Begin::at_primary`] asks for.
    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError>;

    /// Continues a transaction that its former owner released, perhaps in another process.
    ///
    /// # Errors
    /// [`TxnError::UnknownHandle`]: no transaction was released under it, or it was taken over already.
    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError>;

    /// Makes everything that was acknowledged before survive a crash. Returns the newest version that does.
    ///
    /// # Errors
    /// Those of the store.
    async fn sync(&self) -> Result<EpochVersion, TxnError>;

    /// The version that a read-only transaction would begin on now: a transaction that reads it sees everything
    /// acknowledged before this call. `None` where it costs as much to ask as to begin.
    fn synced(&self) -> Option<EpochVersion> {
        None
    }

    /// How many more blocks can be written where nothing is stored; see
    /// [`Blocks::room`](crate::block::Blocks::room). `None` when each block can be, and where that is not known.
    fn room(&self) -> Option<u64> {
        None
    }

    /// The contents of a block that can be read, oldest first, and the epoch of their versions; see
    /// [`Versions::versions`](crate::block::Versions::versions). A transaction can begin on the oldest and on
    /// the newest version of each.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] or [`TxnError::Store`] outside of the volume.
    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError>;

    /// Begins a read-only transaction on the cheapest state that meets the needs of a read: each block that it reads
    /// narrows the versions that the next one may have ([`Transaction::seen`]). None of them is older than `first`.
    ///
    /// # Errors
    /// [`TxnError::Unserved`]; [`TxnError::Gone`] for an exact version that is not kept.
    async fn view(
        &self,
        _needs: &Needs,
        _first: Version,
    ) -> Result<Arc<dyn Transaction>, TxnError> {
        Err(no_views())
    }

    /// The contents of a block in a range of versions, as far as they can be read: the versions that have each of them,
    /// oldest first, and what it costs to read.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] or [`TxnError::Store`] outside of the volume.
    async fn contents(
        &self,
        _lba: Lba,
        _range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        Err(no_views())
    }

    /// The name of the newest version on every machine that has a replica of the volume; `None` if it has none.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`].
    async fn position(&self) -> Result<Option<Position>, TxnError> {
        Ok(None)
    }

    /// What the node says of itself to clients that choose among nodes.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`].
    async fn standing(&self) -> Result<Standing, TxnError> {
        Err(no_views())
    }

    /// Waits until the volume has the state that `position` names, or a later one, durably; for at most `within`. Says
    /// whether it has.
    ///
    /// # Errors
    /// [`StoreError::Invalid`](crate::block::StoreError::Invalid) when it never will.
    async fn reached(
        &self,
        position: Position,
        _within: Option<Duration>,
    ) -> Result<bool, TxnError> {
        Err(no_replicas(position))
    }

    /// Waits until enough replicas have made `version`, which survives a crash here, durable: as many as a sync waits for, or
    /// else one; for at most `within`. Says whether they have; `None` when no replica is connected.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`].
    async fn replicated(
        &self,
        _version: Version,
        _within: Duration,
    ) -> Result<Option<bool>, TxnError> {
        Ok(None)
    }

    /// The queue in which retries after a conflict wait, as [`run`] does.
    fn contention(&self) -> &Contention;

    /// Discards `count` blocks from `lba` on, which no other transaction uses: they read as zeros, and their
    /// space may be reclaimed. A crash may leave only some of them discarded.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] outside of the volume, and those of the store.
    async fn discard_run(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        let end = lba.0.saturating_add(count);
        let mut at = lba.0;
        while at < end {
            let some = DISCARDED_AT_ONCE.min(end - at);
            let txn = self.begin(Begin::SNAPSHOT).await?;
            let blocks = txn.read_run(Lba(at), some).await?;
            let used = (at..).zip(blocks).filter(|(_, it)| it.iter().any(|byte| *byte != 0));
            used.map(|(lba, _)| lba).try_for_each(|lba| txn.discard(Lba(lba)))?;
            match txn.commit(Durability::Visible).await {
                Err(error) if error.is_retryable() => {}
                done => {
                    done?;
                    at += some;
                }
            }
        }
        Ok(())
    }
}

fn no_replicas(position: Position) -> TxnError {
    TxnError::Invalid(format!("this volume has no replicas, and never reaches {position}"))
}

fn no_views() -> TxnError {
    TxnError::Invalid("the costs of this volume's versions are not known here".to_owned())
}

/// Blocks that one transaction of [`Transact::discard_run`] discards.
const DISCARDED_AT_ONCE: u64 = 128;

/// A running transaction. When the last reference is dropped, it is aborted.
///
/// Reads and writes are of whole blocks, and count as accesses of the whole block until
/// [`Transaction::mark_accessed`] narrows the last one.
#[async_trait]
pub trait Transaction: Send + Sync + fmt::Debug {
    /// The number of logical blocks.
    fn blocks(&self) -> u64;

    /// Reads `count` blocks from `lba` on, of the snapshot and this transaction's own writes:
    /// [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes for each block, zeros where nothing is stored.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] outside of the volume, and those of the store.
    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError>;

    /// One block; see [`Transaction::read_run`].
    async fn read(&self, lba: Lba) -> Result<Bytes, TxnError> {
        let mut run = self.read_run(lba, 1).await?;
        run.pop().ok_or_else(|| TxnError::Invalid("a read without a block".to_owned()))
    }

    /// Writes a block, [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes. Only this transaction sees it until
    /// the commit.
    ///
    /// # Errors
    /// [`TxnError::TooLarge`] when the transaction has as many writes as it may; over a socket perhaps only
    /// at the commit.
    fn write(&self, lba: Lba, content: Bytes) -> Result<(), TxnError> {
        self.write_as(lba, content, Class::Data)
    }

    /// [`Transaction::write`], of data or metadata; the store decides what that means. Of several writes of a
    /// block the last one's class counts.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError>;

    /// Discards a block: it reads as zeros, and its space may be reclaimed.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    fn discard(&self, lba: Lba) -> Result<(), TxnError>;

    /// Narrows the last read or write of `lba` to the bytes of `range`. Several marks add up.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] for a block that was not accessed, and bytes outside of it.
    fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError>;

    /// Makes the commit fail if another commit changed `range` of `lba` since the snapshot, under either
    /// isolation: for a condition that a write relies on. Ignored in a read-only transaction.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] for bytes outside of the block.
    fn depend(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError>;

    /// Reads and writes past the transaction's buffer; `None` where the volume is reached over a socket.
    fn aside(&self) -> Option<&dyn Aside> {
        None
    }

    /// Asks for a block to be kept in memory: a hint.
    fn please_cache(&self, lba: Lba);

    /// The version that the transaction reads.
    fn version(&self) -> EpochVersion;

    /// The node that serves it, of a volume on several; `None` of any other volume.
    fn node(&self) -> Option<Arc<str>> {
        None
    }

    /// The versions whose state all reads so far are of: more than one only in a view ([`Transact::view`]).
    ///
    /// # Errors
    /// Those of a server.
    async fn seen(&self) -> Result<Seen, TxnError> {
        let version = self.version().version;
        let range = VersionRange { low: version, up: version };
        Ok(Seen { range, age: None, position: None, timeline: None })
    }

    /// Ends the transaction: all of its writes become visible, or none. Returns the version that it became; the
    /// one that it read if it wrote nothing.
    ///
    /// # Errors
    /// [`TxnError::Conflict`] when another commit conflicts with it; nothing was written then. After
    /// [`TxnError::Store`] it is unknown whether it is committed. [`TxnError::Ended`] after a commit, an
    /// abort or a release.
    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError>;

    /// Ends the transaction without writing anything.
    async fn abort(&self);

    /// Releases the transaction, so that another owner can take it over.
    ///
    /// # Errors
    /// When it has been aborted meanwhile.
    async fn release(&self) -> Result<Handle, TxnError>;
}

/// Access to blocks that only one running transaction uses: no other transaction reads or writes them, since
/// no committed data refers to them.
///
/// They need no isolation, so writes to them happen at once and take no memory until the commit. The caller
/// cleans up after an abort or a crash. Every call fails once the transaction has ended, as the transaction's
/// own calls do.
#[async_trait]
pub trait Aside: Send + Sync {
    /// Writes blocks now. They are durable before any later commit is.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] outside of the volume, and those of the store; some blocks may have been written
    /// then.
    async fn write(&self, writes: Vec<Write>) -> Result<(), TxnError>;

    /// Reads blocks as they are now, [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes each.
    ///
    /// # Errors
    /// As [`Transaction::read_run`].
    async fn read(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError>;

    /// Discards blocks now.
    ///
    /// # Errors
    /// As [`Aside::write`].
    async fn discard(&self, lba: Lba, count: u64) -> Result<(), TxnError>;

    /// Lets the transaction write as many blocks as [`Options::max_large`] says.
    fn make_large(&self);

    /// The names of transactions that use blocks of their own, shared by all users of the volume. The caller
    /// adds and removes them.
    fn owners(&self) -> Arc<parking_lot::Mutex<HashSet<u128>>>;
}

/// Errors of the work within a transaction; they tell the retry loop whether to try again.
pub trait Retry: From<TxnError> {
    /// Whether a new attempt, on a new snapshot, may succeed.
    fn is_retryable(&self) -> bool;

    /// Whether the connection to the volume's server is lost: another server may answer.
    fn is_disconnected(&self) -> bool {
        false
    }
}

impl Retry for TxnError {
    fn is_retryable(&self) -> bool {
        TxnError::is_retryable(self)
    }

    fn is_disconnected(&self) -> bool {
        matches!(self, TxnError::Disconnected(_))
    }
}

/// Begin, work, commit, retry: runs `work` in transactions until one commits or fails permanently.
///
/// # Errors
/// Those of `work` or the commit that another attempt would not avoid.
pub async fn run<T, E, Work>(
    volume: &dyn Transact,
    begin: Begin,
    durability: Durability,
    work: impl Fn(Arc<dyn Transaction>) -> Work,
) -> Result<T, E>
where
    E: Retry,
    Work: Future<Output = Result<T, E>>,
{
    let (done, _) = run_versioned(volume, begin, durability, work).await?;
    Ok(done)
}

/// [`run`], which returns the version that the transaction became too.
///
/// # Errors
/// Those of [`run`].
pub async fn run_versioned<T, E, Work>(
    volume: &dyn Transact,
    begin: Begin,
    durability: Durability,
    work: impl Fn(Arc<dyn Transaction>) -> Work,
) -> Result<(T, EpochVersion), E>
where
    E: Retry,
    Work: Future<Output = Result<T, E>>,
{
    let mut turn = Turn::default();
    loop {
        let txn = volume.begin(begin).await?;
        match work(txn.clone()).await {
            Ok(done) => match turn.commit(&*txn, durability).await {
                Ok(version) => return Ok((done, version)),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => {
                txn.abort().await;
                drop(turn);
                if !error.is_retryable() {
                    return Err(error);
                }
            }
        }
        turn = volume.contention().turn().await;
    }
}
