//! The manager as a block store, for writers without transactions: their writes take part in the order of
//! commits.

use async_trait::async_trait;
use bytes::Bytes;

use super::commit::{self, Past};
use super::fragments::Fragments;
use super::intent::{Intent, IntentWrite};
use super::manager::TransactionManager;
use crate::block::{
    Applied, BlockStore, Hold, Lba, Retention, StoreError, Version, Write, WriteList,
};

/// Each write is a transaction of its own that always commits (4.1).
#[async_trait]
impl BlockStore for TransactionManager {
    fn blocks(&self) -> u64 {
        self.inner.store.blocks()
    }

    fn now(&self) -> Version {
        self.inner.store.now()
    }

    fn is_read_only(&self) -> bool {
        self.inner.store.is_read_only()
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.inner.store.read(lba, count, at).await
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.submit_past(Past::Anything, writes, retention).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        commit::discard(&self.inner, Past::Anything, lba, count).await
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        self.inner.store.sync(version).await
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        self.inner.store.hold(version)
    }

    fn hold_synced(&self) -> Option<Hold> {
        self.inner.store.hold_synced()
    }

    fn please_cache(&self, lba: Lba) {
        self.inner.store.please_cache(lba);
    }

    fn allocation(&self, lba: Lba, count: u64, at: Version) -> Vec<(u64, bool)> {
        self.inner.store.allocation(lba, count, at)
    }
}

impl TransactionManager {
    /// Applies writes that belong to no transaction.
    pub(super) async fn submit_past(
        &self,
        way: Past,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        let inner = &self.inner;
        // A write that changes part of a block carries a copy of the rest, which may be outdated: it is
        // merged with the block's content when its turn comes.
        if writes.iter().all(|write| write.changed.is_whole()) {
            let submit = async || inner.store.submit(writes.clone(), retention).await;
            if let Some(applied) = commit::pass(inner, way, submit).await {
                return applied;
            }
        }
        let singleton = |write: Write| {
            let fragments = Fragments::from(&write.changed);
            IntentWrite::new(write.lba, write.content, write.changed, write.class, fragments)
        };
        let mut blocks: Vec<IntentWrite> = writes.into_vec().into_iter().map(singleton).collect();
        blocks.sort_unstable_by_key(|write| write.lba);
        let (version, backpressure) = commit::note(inner, way, Intent::singleton(blocks)).await?;
        let hold = (retention == Retention::Hold).then(|| inner.store.hold(version)).flatten();
        Ok(Applied::new(version, hold, backpressure))
    }
}
