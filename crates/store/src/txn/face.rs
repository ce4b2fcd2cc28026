//! The manager as a block store, for writers without transactions: their writes take part in the order of
//! commits.

use async_trait::async_trait;
use bytes::Bytes;

use super::commit::{self, Past};
use super::fragments::Fragments;
use super::intent::{Intent, IntentWrite};
use super::manager::TransactionManager;
use crate::block::{BlockStore, Hold, Lba, StoreError, Version, Write};

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

    async fn apply(&self, writes: Vec<Write>) -> Result<Version, StoreError> {
        self.apply_past(Past::Anything, writes).await
    }

    async fn hold_back(&self, blocks: usize) {
        self.inner.store.hold_back(blocks).await;
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
    pub(super) async fn apply_past(
        &self,
        way: Past,
        writes: Vec<Write>,
    ) -> Result<Version, StoreError> {
        let inner = &self.inner;
        // A write that changes part of a block carries a copy of the rest, which may be outdated: it is
        // merged with the block's content when its turn comes.
        if writes.iter().all(|write| write.changed.is_whole()) {
            let passed =
                commit::pass(inner, way, async || inner.store.apply(writes.clone()).await).await;
            if let Some(written) = passed {
                let version = written?;
                self.hold_back(writes.len()).await;
                return Ok(version);
            }
        }
        let mut blocks: Vec<IntentWrite> = Vec::with_capacity(writes.len());
        for write in writes {
            let fragments = Fragments::from(&write.changed);
            // Of two writes of one block the later one wins.
            blocks.retain(|before| before.lba != write.lba);
            blocks.push(IntentWrite::new(
                write.lba,
                write.content,
                write.changed,
                write.class,
                fragments,
            ));
        }
        blocks.sort_unstable_by_key(|write| write.lba);
        let count = blocks.len();
        let version = commit::note(inner, way, Intent::singleton(blocks)).await?;
        self.hold_back(count).await;
        Ok(version)
    }
}
