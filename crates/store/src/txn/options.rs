//! What transactions may use up (Isotope 4.2.3, "Rogue transactions").

use std::time::Duration;

/// Limits. Beyond one of the first two a call fails; beyond the others transactions are aborted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks that a transaction may write.
    pub max_writes: usize,
    /// Transactions that a process may run at a time.
    pub max_running: usize,
    /// Bytes of writes that may wait for their commit, altogether. Beyond, the transaction with the
    /// most is aborted.
    pub memory: usize,
    /// Blocks that a transaction may have read before it counts as greedy with memory like a write.
    pub reads_per_write: usize,
    /// Commits that are remembered for the sake of the transactions that run. Beyond, the one with the
    /// oldest snapshot is aborted.
    pub max_window: usize,
    /// A transaction that does nothing for so long is aborted.
    pub idle: Duration,
    /// A commit that found no room for so long has the oldest snapshot aborted that may hold on to
    /// space, and then the next oldest.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_writes: 256,
            max_running: 256,
            memory: 1 << 30,
            reads_per_write: 64,
            max_window: 1 << 16,
            idle: Duration::from_secs(60),
            patience: Duration::from_millis(500),
        }
    }
}
