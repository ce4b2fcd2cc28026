//! The manager as a block store, for writers without transactions: their writes take part in the order of
//! commits. As a volume it is one client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::fragments::Fragments;
use super::intent::{Intent, IntentWrite};
use super::manager::TransactionManager;
use super::past::{self, Past};
use super::{Begin, Contention, Handle, Transact, Transaction, TxnError};
use crate::block::{
    Applied, BlockStore, BlockVersion, Epoch, EpochVersion, Layer, Lba, Position, Retention,
    StoreError, Version, Write, WriteList, numbers_itself,
};
use crate::stale::{Cost, Needs, Standing, VersionRange};

/// Each write is a transaction of its own that always commits (4.1).
#[async_trait]
impl Layer for TransactionManager {
    fn below(&self) -> &dyn BlockStore {
        &*self.inner.store
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.submit_past(Past::Anything, writes, retention).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        past::discard(&self.inner, Past::Anything, lba, count).await
    }

    /// Commits are numbered in their order, which a version that is given would bypass.
    async fn submit_at(
        &self,
        version: Version,
        _: WriteList,
        _: Retention,
    ) -> Result<Applied, StoreError> {
        Err(numbers_itself(version))
    }
}

#[async_trait]
impl Transact for TransactionManager {
    fn blocks(&self) -> u64 {
        self.inner.store.blocks()
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        self.client.start(begin).await
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.client.takeover(handle).await
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        Transact::sync(&self.client).await
    }

    fn synced(&self) -> Option<EpochVersion> {
        Transact::synced(&self.client)
    }

    fn room(&self) -> Option<u64> {
        Transact::room(&self.client)
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        Transact::versions(&self.client, lba).await
    }

    async fn view(&self, needs: &Needs, first: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        Transact::view(&self.client, needs, first).await
    }

    async fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        Transact::contents(&self.client, lba, range).await
    }

    async fn standing(&self) -> Result<Standing, TxnError> {
        Transact::standing(&self.client).await
    }

    async fn position(&self) -> Result<Option<Position>, TxnError> {
        Transact::position(&self.client).await
    }

    async fn reached(
        &self,
        position: Position,
        within: Option<Duration>,
    ) -> Result<bool, TxnError> {
        Transact::reached(&self.client, position, within).await
    }

    async fn replicated(
        &self,
        version: Version,
        within: Duration,
    ) -> Result<Option<bool>, TxnError> {
        Transact::replicated(&self.client, version, within).await
    }

    fn contention(&self) -> &Contention {
        self.client.contention()
    }

    async fn discard_run(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        self.client.discard_run(lba, count).await
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
            if let Some(applied) = past::pass(inner, way, submit).await {
                return applied;
            }
        }
        let singleton = |write: Write| {
            let fragments = Fragments::from(&write.changed);
            IntentWrite::new(write.lba, write.content, write.changed, write.class, fragments)
        };
        let mut blocks: Vec<IntentWrite> = writes.into_vec().into_iter().map(singleton).collect();
        blocks.sort_unstable_by_key(|write| write.lba);
        past::note(inner, way, Intent::singleton(blocks, retention)).await
    }
}
