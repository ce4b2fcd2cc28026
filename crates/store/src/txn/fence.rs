//! The fence: protects a volume with a structure of its own from writes outside of transactions.
//!
//! A block device or an NBD client writes outside of transactions, and would overwrite the data that
//! transactions keep in the volume. So a structure, such as a catalogue of partitions, announces the bytes
//! with which block 0 begins while the structure exists. The fence is up from the commit that writes those
//! bytes until one removes them. [`TransactionManager::fenced`] is the store for such writers: it refuses
//! their writes while the fence is up.
//!
//! A writer that has the volume open excludes the structure in turn: while it holds an [`Occupation`], a
//! commit that would raise the fence fails.
//!
//! Both sides check under the lock of the commit order, so that neither misses the other: a write either
//! precedes the commit, which then conflicts with it if it read that block, or waits for its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::HashMap;

use super::TxnError;
use super::commit::{self, Past};
use super::intent::Intent;
use super::manager::{Inner, TransactionManager};
use crate::block::{
    Applied, BlockStore, BlockVersion, Epoch, Hold, Lba, Retention, StoreError, Version, WriteList,
};

/// The block that raises the fence.
const HEAD: Lba = Lba(0);

/// The fence, under the lock of the commit order.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// The first bytes of block 0 while the fence is up; empty when there is no fence.
    prefix: &'static [u8],
    /// Commits of transactions that write block 0 and have no outcome yet.
    pending: u32,
    /// Why the fence may not be raised now.
    occupants: HashMap<u64, String>,
    next_occupant: u64,
    /// Whether it is up. Writes that bypass the stream while no transaction runs read it without the lock:
    /// only a transaction raises it.
    pub(super) is_up: Arc<AtomicBool>,
}

impl Fence {
    /// Whether a transaction raises the fence (true) or lowers it (false); `None` if it leaves block 0 alone.
    fn raised_by(&self, intent: &Intent) -> Option<bool> {
        if self.prefix.is_empty() || intent.is_singleton() {
            return None;
        }
        intent.content_of(HEAD).map(|content| content.is_some_and(|it| it.starts_with(self.prefix)))
    }

    /// Records a transaction that is about to be decided.
    ///
    /// # Errors
    /// [`TxnError::Invalid`]: it would raise the fence, which an occupant excludes.
    pub(super) fn enter(&mut self, intent: &Intent) -> Result<(), TxnError> {
        let Some(raises) = self.raised_by(intent) else { return Ok(()) };
        match self.occupants.values().next() {
            Some(why) if raises && !self.is_up() => Err(TxnError::Invalid(why.clone())),
            _ => {
                self.pending += 1;
                Ok(())
            }
        }
    }

    /// Records the outcome of a transaction that entered.
    pub(super) fn leave(&mut self, intent: &Intent, committed: bool) {
        if let Some(raises) = self.raised_by(intent) {
            self.pending = self.pending.saturating_sub(1);
            if committed {
                self.is_up.store(raises, Ordering::SeqCst);
            }
        }
    }

    fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
    }

    /// Whether writes outside of transactions may enter the stream: `None` while that is being decided.
    pub(super) fn permits(&self) -> Option<bool> {
        (self.pending == 0).then(|| !self.is_up())
    }
}

/// Excludes a structure that would raise the fence, until dropped.
#[derive(Debug)]
pub struct Occupation {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Occupation {
    fn drop(&mut self) {
        self.inner.order.lock().fence.occupants.remove(&self.id);
    }
}

impl TransactionManager {
    /// Announces that a volume whose block 0 begins with `prefix` has a structure that writes outside of
    /// transactions would destroy; `is_up`: it has one now.
    pub fn fence(&self, prefix: &'static [u8], is_up: bool) {
        let mut order = self.inner.order.lock();
        order.fence.prefix = prefix;
        order.fence.is_up.store(is_up, Ordering::SeqCst);
    }

    /// Whether [`TransactionManager::fenced`] refuses writes now.
    pub fn is_fenced(&self) -> bool {
        self.inner.is_fenced()
    }

    /// The store for writers without transactions: its writes fail while the fence is up.
    pub fn fenced(&self) -> Fenced {
        Fenced { manager: self.clone() }
    }

    /// Excludes commits that would raise the fence, until the returned guard is dropped; they fail with
    /// `why`. A commit that is being decided may still raise it.
    pub fn occupy(&self, why: String) -> Occupation {
        let mut order = self.inner.order.lock();
        order.fence.next_occupant += 1;
        let id = order.fence.next_occupant;
        order.fence.occupants.insert(id, why);
        Occupation { inner: self.inner.clone(), id }
    }

    /// [`TransactionManager::is_fenced`], once the commits that are being decided have their outcome.
    pub async fn settled_fence(&self) -> bool {
        self.inner.decided().await;
        self.is_fenced()
    }
}

impl Inner {
    /// Whether the fence is up.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// Waits until no commit that may raise or lower the fence is being decided.
    pub(super) async fn decided(&self) {
        loop {
            // The task of the commit that raises the fence may have been dropped.
            commit::apply_decided(self).await;
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.order.lock().fence.permits().is_some() {
                return;
            }
            settled.await;
        }
    }
}

/// Why a write outside of transactions fails while the fence is up.
pub(super) fn refused() -> StoreError {
    StoreError::Invalid(
        "the volume holds partitions, which this write could destroy; use them as partitions, or \
         open the volume for writing as a whole explicitly"
            .to_owned(),
    )
}

/// A manager as a block store whose writes fail while the fence is up.
#[derive(Clone, Debug)]
pub struct Fenced {
    manager: TransactionManager,
}

#[async_trait]
impl BlockStore for Fenced {
    fn blocks(&self) -> u64 {
        self.manager.inner.store.blocks()
    }

    fn is_read_only(&self) -> bool {
        self.manager.is_fenced() || self.manager.inner.store.is_read_only()
    }

    fn epoch(&self) -> Epoch {
        self.manager.epoch()
    }

    fn now(&self) -> Version {
        self.manager.now()
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.manager.read(lba, count, at).await
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        self.manager.read_newest(lba, count).await
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.manager.submit_past(Past::Fence, writes, retention).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        commit::discard(&self.manager.inner, Past::Fence, lba, count).await
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        self.manager.sync(version).await
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        self.manager.hold(version)
    }

    fn hold_synced(&self) -> Option<Hold> {
        self.manager.hold_synced()
    }

    fn please_cache(&self, lba: Lba) {
        self.manager.please_cache(lba);
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.manager.versions(lba).await
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        self.manager.allocation(lba, count, at)
    }
}
