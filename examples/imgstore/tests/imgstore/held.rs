//! A block store whose reads can be blocked, so that a test can keep a call in its middle.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use thalweg_env::watch;
use thalweg_sim::passing::{Around, Passing};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{Lba, StoreError};

/// Blocks the reads of chosen blocks.
#[derive(Debug)]
pub(crate) struct Held {
    held: watch::Sender<Range<u64>>,
    waiting: AtomicU64,
}

/// A store in memory whose reads of some blocks wait.
pub(crate) type HeldStore = Passing<Held>;

/// A new one.
pub(crate) fn store(blocks: u64) -> HeldStore {
    let held = Held { held: watch::Sender::new(0..0), waiting: AtomicU64::new(0) };
    Passing::new(Arc::new(VersionedMemory::new(blocks)), held)
}

impl Held {
    /// Blocks the reads of these blocks, and of no others, from now on.
    pub(crate) fn hold_up(&self, blocks: Range<u64>) {
        self.held.send_replace(blocks);
    }

    /// Number of reads that have been blocked since the store was made.
    pub(crate) fn held_up(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Around for Held {
    async fn before_read(&self, lba: Lba, count: u64) -> Result<(), StoreError> {
        let is_free = |held: &Range<u64>| lba.0 + count <= held.start || held.end <= lba.0;
        let mut held = self.held.subscribe();
        if !is_free(&held.borrow()) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        held.wait_for(is_free).await.unwrap();
        // As on a device, other calls go on meanwhile.
        tokio::task::yield_now().await;
        Ok(())
    }
}
