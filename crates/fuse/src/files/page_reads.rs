//! Counts the requests for pages of each inode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The requests for pages of an inode.
#[derive(Debug, Default)]
pub(super) struct PageReads {
    begun: AtomicU64,
    answered: AtomicU64,
}

impl PageReads {
    /// How many there were, and how many of them have been answered.
    pub(super) fn counts(&self) -> (u64, u64) {
        // In this order: an answer that is counted has its request counted.
        let answered = self.answered.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst), answered)
    }
}

/// A request for pages, until it is answered.
#[derive(Debug)]
pub(super) struct PageRead(Arc<PageReads>);

impl PageRead {
    pub(super) fn begin(reads: Arc<PageReads>) -> PageRead {
        reads.begun.fetch_add(1, Ordering::SeqCst);
        PageRead(reads)
    }

    /// All of the inode.
    pub(super) fn reads(&self) -> Arc<PageReads> {
        self.0.clone()
    }
}

impl Drop for PageRead {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::SeqCst);
    }
}
