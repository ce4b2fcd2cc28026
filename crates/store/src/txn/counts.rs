//! Counts of what transactions did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) read_only: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) aborts: AtomicU64,
    pub(super) preempted: AtomicU64,
    pub(super) singletons: AtomicU64,
    pub(super) merged: AtomicU64,
}

impl Counts {
    pub(super) fn add(count: &AtomicU64, n: u64) {
        count.fetch_add(n, Ordering::Relaxed);
    }
}

/// A manager's counters since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TxnStatus {
    /// Transactions running now.
    pub running: u64,
    /// Commits remembered for the running transactions.
    pub window: u64,
    /// Bytes of writes that are buffered until their commit.
    pub buffered_bytes: u64,
    /// Transactions with writes that committed.
    pub commits: u64,
    /// Transactions without writes that committed.
    pub read_only: u64,
    /// Transactions that failed with a conflict.
    pub conflicts: u64,
    /// Transactions aborted by their owners.
    pub aborts: u64,
    /// Transactions aborted from outside.
    pub preempted: u64,
    /// Writes outside of transactions.
    pub singletons: u64,
    /// Commits that were merged with concurrent changes in the same blocks.
    pub merged: u64,
}
