//! A block store that forwards every request to another, with hooks for tests.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_store::block::{
    Applied, Backpressure, BlockStore, Layer, Lba, Retention, StoreError, Throttle, Version, Write,
    WriteList,
};

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

    /// Runs when writes were applied as a version, before [`Around::after_change`].
    fn applied(&self, _version: Version, _writes: &[Write]) {}

    /// Runs before a writer waits for its backpressure.
    async fn before_backpressure(&self) {}

    /// Runs before changes are made durable.
    async fn before_sync(&self) {}
}

/// A block store with hooks around it.
#[derive(Debug)]
pub struct Passing<A> {
    store: Arc<dyn BlockStore>,
    /// The hooks.
    pub around: Arc<A>,
}

impl<A: Around> Passing<A> {
    /// Wraps `store`.
    pub fn new(store: Arc<dyn BlockStore>, around: A) -> Passing<A> {
        Passing { store, around: Arc::new(around) }
    }

    /// Runs the hooks around `submit`, which applies `writes` below.
    async fn apply_around(
        &self,
        writes: &[Write],
        submit: impl Future<Output = Result<Applied, StoreError>>,
    ) -> Result<Applied, StoreError> {
        self.around.before_change(Change::Apply(writes)).await?;
        let applied = submit.await.map(Applied::into_parts);
        if let Ok((version, ..)) = &applied {
            self.around.applied(*version, writes);
        }
        self.around.after_change().await;
        let (version, hold, backpressure) = applied?;
        let throttle = Delayed { around: self.around.clone(), own: Mutex::new(Some(backpressure)) };
        Ok(Applied::new(version, hold, Backpressure::new(Arc::new(throttle), 0)))
    }
}

/// The store's backpressure, with something before it.
struct Delayed<A> {
    around: Arc<A>,
    own: Mutex<Option<Backpressure>>,
}

#[async_trait]
impl<A: Around> Throttle for Delayed<A> {
    async fn throttle(&self, _blocks: usize) {
        self.around.before_backpressure().await;
        let own = self.own.lock().take();
        if let Some(own) = own {
            own.wait().await;
        }
    }
}

#[async_trait]
impl<A: Around> Layer for Passing<A> {
    fn below(&self) -> &dyn BlockStore {
        &*self.store
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

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        self.around.before_read(lba, count).await?;
        let read = self.store.read_newest(lba, count).await;
        self.around.after_read().await;
        read
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.apply_around(&writes, self.store.submit(writes.clone(), retention)).await
    }

    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        self.apply_around(&writes, self.store.submit_at(version, writes.clone(), retention)).await
    }

    /// Nothing is found at once: the hooks see every read.
    fn peek(&self, _lba: Lba, _at: Version) -> Option<Option<Bytes>> {
        None
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
}
