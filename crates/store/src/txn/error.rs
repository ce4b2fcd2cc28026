//! What can go wrong in a transaction; each kind is named after what the caller must do.

use thalweg_env::process::Forked;

use crate::block::{EpochVersion, StoreError};
use crate::stale::Unserved;

/// Why a transaction was aborted without its owner asking for it (Isotope 4.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum Preempted {
    /// It was idle for too long.
    Idle,
    /// It ran for too long, and the space that its snapshot holds was needed.
    Stuck,
    /// Memory was short, and it used the most.
    Memory,
    /// Its process died.
    OwnerDied,
    /// The volume was rolled back or resized.
    Replaced,
}

/// What can go wrong in a transaction.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TxnError {
    /// Retry: another commit conflicts with this transaction.
    #[error("another transaction changed data that this one depends on; try it again")]
    Conflict,
    /// Retry: the transaction was aborted from outside.
    #[error("the transaction was aborted: {}", match .0 {
        Preempted::Idle => "it was idle for too long",
        Preempted::Stuck => "it ran for too long, and the space that its snapshot holds was needed",
        Preempted::Memory => "memory was short, and it used the most",
        Preempted::OwnerDied => "its process died",
        Preempted::Replaced => "the volume was rolled back or resized",
    })]
    Preempted(Preempted),
    /// Give up: a nested transaction was aborted, and with it the enclosing ones.
    #[error("a transaction nested in this one was aborted")]
    Doomed,
    /// Give up: the transaction has ended already, or none has begun.
    #[error("no transaction is running here")]
    Ended,
    /// Give up: the request is invalid; the text says why.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Give up, or split the work: the transaction has the maximum number of writes.
    #[error("a transaction may write {0} blocks; do the work in several")]
    TooLarge(usize),
    /// Give up, or wait: the process runs the maximum number of transactions.
    #[error("a process may run {0} transactions at a time; end some first")]
    TooMany(usize),
    /// Give up: no transaction was released under this handle, or it was taken over already.
    #[error("no released transaction has this handle")]
    UnknownHandle,
    /// Give up, or begin on a newer version: this one is not kept, or it was lost in a crash.
    #[error("version {0} is not kept")]
    Gone(EpochVersion),
    /// Stop: the server cannot be reached. A commit without an answer may or may not have happened.
    #[error("the connection to the volume's server is lost: {0}")]
    Disconnected(String),
    /// Ask another node, or wait: this one cannot give the guarantee.
    #[error(transparent)]
    Unserved(#[from] Unserved),
    /// Give up: a parent of this process has opened the volume; open it here.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TxnError {
    /// Whether a new attempt, on a new snapshot, may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, TxnError::Conflict | TxnError::Preempted(_))
    }

    /// Whether a block could not be read: no copy matches its checksum, or the device fails to read it.
    /// Writing the whole block repairs it.
    pub fn is_damage(&self) -> bool {
        matches!(self, TxnError::Store(error) if error.is_damage())
    }
}
