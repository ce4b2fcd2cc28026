//! Resource limits of transactions (Isotope 4.2.3, "Rogue transactions").

use std::time::Duration;

/// A deliberate bug that a test has to find.
#[cfg(feature = "seeded-bugs")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// No conflict is found.
    SkippedWindow,
    /// The window begins one commit too late.
    LateWatermark,
    /// A transaction gets the snapshot before the newest.
    StaleSnapshot,
    /// What concurrent commits changed in a block is overwritten.
    MissingMerge,
}

/// Limits. Beyond one of the first two a call fails; beyond the others transactions are aborted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks that a transaction may write.
    pub max_writes: usize,
    /// Blocks that a transaction may write after [`Aside::make_large`](super::Aside); fewer where the store
    /// takes fewer at once.
    pub max_large: usize,
    /// Transactions that a process may run at a time.
    pub max_running: usize,
    /// Bytes of writes that may be buffered, over all transactions. Beyond, the transaction with the most is
    /// aborted.
    pub memory: usize,
    /// Commits remembered for the running transactions. Beyond, the transaction with the oldest snapshot is
    /// aborted.
    pub max_window: usize,
    /// A transaction that is idle for so long is aborted.
    pub idle: Duration,
    /// When a commit has found no room for so long, and the store says that held versions may be why, the
    /// transaction with the oldest snapshot is aborted, and then the next oldest. However long the store's own
    /// work takes to make room, it costs no transaction.
    pub patience: Duration,
    /// The deliberate bug, if any.
    #[cfg(feature = "seeded-bugs")]
    pub bug: Option<Bug>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_writes: 256,
            max_large: 1 << 16,
            max_running: 256,
            memory: 1 << 30,
            max_window: 1 << 16,
            idle: Duration::from_secs(60),
            patience: Duration::from_secs(2),
            #[cfg(feature = "seeded-bugs")]
            bug: None,
        }
    }
}

#[cfg(feature = "seeded-bugs")]
impl Options {
    /// Whether `bug` is switched on.
    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}
