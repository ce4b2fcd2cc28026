//! A block store that forwards every request to another, with hooks for tests.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_store::block::{BlockStore, Hold, Lba, StoreError, Version, Write};

/// A requested change.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Apply these writes.
    Apply(&'a [Write]),
    /// Discard this many blocks from there on.
    Discard(Lba, u64),
}

/// Hooks around the requests of a [`Passing`]. The defaults do nothing. When a hook fails, its error
/// is returned to the caller, and the request is not forwarded.
#[async_trait]
pub trait Around: std::fmt::Debug + Send + Sync + 'static {
    /// Runs before blocks are read.
    async fn before_read(&self, _lba: Lba, _count: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// Runs after blocks were read, before the caller gets them.
    async fn after_read(&self) {}

    /// Runs before a change.
    async fn before_change(&self, _change: Change<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Runs after a change was applied, before it is acknowledged.
    async fn after_change(&self) {}

    /// Runs before backpressure is applied to a writer.
    async fn before_holding_back(&self) {}

    /// Runs before changes are made durable.
    async fn before_sync(&self) {}
}

/// A block store with hooks around it.
#[derive(Debug)]
pub struct Passing<A> {
    store: Arc<dyn BlockStore>,
    /// The hooks.
    pub around: A,
}

impl<A: Around> Passing<A> {
    /// Wraps `store`.
    pub fn new(store: Arc<dyn BlockStore>, around: A) -> Passing<A> {
        Passing { store, around }
    }
}

#[async_trait]
impl<A: Around> BlockStore for Passing<A> {
    fn blocks(&self) -> u64 {
        self.store.blocks()
    }

    fn now(&self) -> Version {
        self.store.now()
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.around.before_read(lba, count).await?;
        let blocks = self.store.read(lba, count, at).await;
        self.around.after_read().await;
        blocks
    }

    async fn apply(&self, writes: Vec<Write>) -> Result<Version, StoreError> {
        self.around.before_change(Change::Apply(&writes)).await?;
        let version = self.store.apply(writes).await;
        self.around.after_change().await;
        version
    }

    async fn hold_back(&self, blocks: usize) {
        self.around.before_holding_back().await;
        self.store.hold_back(blocks).await;
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        self.around.before_change(Change::Discard(lba, count)).await?;
        let version = self.store.discard(lba, count).await;
        self.around.after_change().await;
        version
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        self.around.before_sync().await;
        self.store.sync(version).await
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        self.store.hold(version)
    }

    fn hold_synced(&self) -> Option<Hold> {
        self.store.hold_synced()
    }

    fn allocation(&self, lba: Lba, count: u64, at: Version) -> Vec<(u64, bool)> {
        self.store.allocation(lba, count, at)
    }
}
