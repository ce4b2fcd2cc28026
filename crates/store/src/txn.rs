//! Isolation: who may commit (Isotope, chapter 4).
//!
//! A transaction reads a snapshot, keeps its writes to itself, and commits if nothing that was
//! committed since its snapshot stands against it. That is decided from the stream of recent
//! transactions alone, in units of 16 bytes, and never by a look at an index or a device; what
//! commits goes to a [`BlockStore`](crate::block::BlockStore), whichever that is.
//!
//! Stores built on transactions see the two traits here, [`Transact`] and [`Transaction`]: they work
//! the same in one process with the volume and behind a socket.

mod access;
mod aside;
mod commit;
mod contention;
mod error;
mod face;
mod fence;
mod fragments;
mod intent;
mod manager;
pub mod nest;
mod options;
mod order;
mod running;
mod window;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::block::{Class, Lba, Write};
use crate::env::HashSet;
pub use contention::{Contention, Turn};
pub use error::{Preempted, TxnError};
pub use fence::{Fenced, Occupation};
pub use fragments::FRAGMENT;
pub use manager::{Client, TransactionManager, TxnStatus};
#[cfg(feature = "seeded-bugs")]
pub use options::Bug;
pub use options::Options;

/// What concurrent transactions may see of each other (B.1).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Reads see one moment; of two that write the same bytes one commits. Permits write skew.
    Snapshot,
    /// As if transactions ran one after the other, in an order that agrees with real time.
    #[default]
    StrictSerializable,
}

/// When a commit is acknowledged.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When it survives a crash, and whatever it has seen does.
    #[default]
    Synced,
    /// When others see it. A crash may take back the latest of such commits, and what came after.
    Visible,
}

/// How a transaction begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Begin {
    /// Its isolation.
    pub isolation: Isolation,
    /// It will not write: it sees the newest state that survives a crash, and always commits, at
    /// once.
    pub read_only: bool,
}

impl Begin {
    /// With snapshot isolation.
    pub const SNAPSHOT: Begin = Begin { isolation: Isolation::Snapshot, read_only: false };
    /// With strict serializability.
    pub const STRICT: Begin = Begin { isolation: Isolation::StrictSerializable, read_only: false };
    /// For reading.
    pub const READ_ONLY: Begin = Begin { isolation: Isolation::Snapshot, read_only: true };

    /// Whether the decision does not depend on what was read.
    fn is_untracked(self) -> bool {
        self.read_only || self.isolation == Isolation::Snapshot
    }
}

/// Names a released transaction until somebody takes it over; worthless to guess.
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

    /// Begins a transaction on a snapshot of everything that was acknowledged before.
    ///
    /// # Errors
    /// [`TxnError::TooMany`]: this process has as many running as it may.
    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError>;

    /// Goes on with a transaction that its former owner has released, perhaps in another process.
    ///
    /// # Errors
    /// [`TxnError::UnknownHandle`]: nothing was released under it, or it was taken already.
    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError>;

    /// What those wait for who try again after a conflict, as [`run`] does.
    fn contention(&self) -> &Contention;

    /// Discards `count` blocks from `lba` on, which nobody else uses: they read as zeros, and their
    /// space may be reclaimed. In a crash some of them may be and others not.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] outside of the volume, and the store's.
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

/// Blocks that one transaction of [`Transact::discard_run`] discards.
const DISCARDED_AT_ONCE: u64 = 128;

/// A running transaction. When the last reference is dropped, it is aborted.
///
/// Reads and writes concern whole blocks, and count as accesses of the whole block until
/// [`Transaction::mark_accessed`] says which bytes the last one was about.
#[async_trait]
pub trait Transaction: Send + Sync + fmt::Debug {
    /// The number of logical blocks.
    fn blocks(&self) -> u64;

    /// `count` blocks from `lba` on as the snapshot and this transaction's own writes have them,
    /// each of [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes; zeros where nothing is stored.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] outside of the volume, and the store's.
    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError>;

    /// One block; see [`Transaction::read_run`].
    async fn read(&self, lba: Lba) -> Result<Bytes, TxnError> {
        let mut run = self.read_run(lba, 1).await?;
        run.pop().ok_or_else(|| TxnError::Invalid("a read without a block".to_owned()))
    }

    /// Gives a block new content, [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes, for this
    /// transaction alone until it commits.
    ///
    /// # Errors
    /// [`TxnError::TooLarge`] when the transaction has as many writes as it may; across a socket
    /// perhaps only at the commit.
    fn write(&self, lba: Lba, content: Bytes) -> Result<(), TxnError> {
        self.write_as(lba, content, Class::Data)
    }

    /// [`Transaction::write`], of data or metadata: what that makes of it is the store's business. Of
    /// several writes of a block the last one says which.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError>;

    /// Discards a block: it reads as zeros, and its space may be reclaimed.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    fn discard(&self, lba: Lba) -> Result<(), TxnError>;

    /// Says that the last read or write of `lba` was about `range` only. Several marks add up.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] for a block not yet accessed, and bytes outside of it.
    fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError>;

    /// Has the commit fail when another one has changed `range` of `lba` since the snapshot, under
    /// either isolation: for what a write is only right under. A transaction for reading ignores it.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] for bytes outside of the block.
    fn depend(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError>;

    /// Reads and writes beside the transaction; `None` where the volume is reached through a socket.
    fn aside(&self) -> Option<&dyn Aside> {
        None
    }

    /// Asks for a block to be kept in memory: a hint.
    fn please_cache(&self, lba: Lba);

    /// Ends the transaction: either all of it counts from now on, or nothing does.
    ///
    /// # Errors
    /// [`TxnError::Conflict`] when another commit stands against it; nothing was written then. With
    /// [`TxnError::Store`] it is unknown whether it counts. [`TxnError::Ended`] after a commit, an abort
    /// or a release.
    async fn commit(&self, durability: Durability) -> Result<(), TxnError>;

    /// Ends the transaction without a trace.
    async fn abort(&self);

    /// Lets go of the transaction, for somebody to take it over.
    ///
    /// # Errors
    /// When it has been aborted meanwhile.
    async fn release(&self) -> Result<Handle, TxnError>;
}

/// Blocks that a running transaction has to itself: no other transaction reads or writes them, since
/// nothing that is committed refers to them.
///
/// They need no isolation, so writes to them happen at once and take no memory until the commit. What
/// an abort or a crash leaves in them is the caller's business. Every call fails once the transaction has
/// ended, as the transaction's own calls do.
#[async_trait]
pub trait Aside: Send + Sync {
    /// Writes blocks now. They are durable before everything that commits later.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] outside of the volume, and the store's; some of them may be written then.
    async fn write(&self, writes: Vec<Write>) -> Result<(), TxnError>;

    /// Blocks as they are now, each of [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes.
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

    /// Names of transactions that have blocks to themselves, shared by all users of the volume. The
    /// caller enters and removes them.
    fn owners(&self) -> Arc<parking_lot::Mutex<HashSet<u128>>>;
}

/// Errors of work inside of a transaction that may tell the loop around it to try again.
pub trait Retry: From<TxnError> {
    /// Whether a new attempt, on a new snapshot, may succeed.
    fn is_retryable(&self) -> bool;
}

impl Retry for TxnError {
    fn is_retryable(&self) -> bool {
        TxnError::is_retryable(self)
    }
}

/// Begin, work, commit, retry: runs `work` in transactions until one commits or fails for good.
///
/// # Errors
/// What `work` or the commit fails with, if another attempt would not help.
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
    let mut turn = Turn::default();
    loop {
        let txn = volume.begin(begin).await?;
        match work(txn.clone()).await {
            Ok(done) => match turn.commit(&*txn, durability).await {
                Ok(()) => return Ok(done),
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
