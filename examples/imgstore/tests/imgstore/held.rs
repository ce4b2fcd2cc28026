//! A block store whose reads can be held up, so that a call is in the middle for as long as a test wants.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BlockStore, Hold, Lba, StoreError, Version, Write};
use tokio::sync::watch;

/// A store in memory whose reads of some blocks wait.
pub(crate) struct HeldStore {
    store: VersionedMemory,
    held: watch::Sender<Range<u64>>,
    waiting: AtomicU64,
}

impl fmt::Debug for HeldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldStore").finish_non_exhaustive()
    }
}

impl HeldStore {
    pub(crate) fn new(blocks: u64) -> HeldStore {
        let store = VersionedMemory::new(blocks);
        HeldStore { store, held: watch::Sender::new(0..0), waiting: AtomicU64::new(0) }
    }

    /// From now on reads of these blocks wait, and no others.
    pub(crate) fn hold_up(&self, blocks: Range<u64>) {
        self.held.send_replace(blocks);
    }

    /// Reads that have been held up since the store was made.
    pub(crate) fn held_up(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl BlockStore for HeldStore {
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
        let is_free = |held: &Range<u64>| lba.0 + count <= held.start || held.end <= lba.0;
        let mut held = self.held.subscribe();
        if !is_free(&held.borrow()) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        held.wait_for(is_free).await.unwrap();
        // As a device would, it lets others go on meanwhile.
        tokio::task::yield_now().await;
        self.store.read(lba, count, at).await
    }

    async fn apply(&self, writes: Vec<Write>) -> Result<Version, StoreError> {
        self.store.apply(writes).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        self.store.discard(lba, count).await
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
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
