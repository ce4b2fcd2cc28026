//! What can go wrong in a transaction; each kind is named after what the caller must do.

use crate::block::StoreError;
use crate::device::{DeviceError, Operation};

/// Why a transaction was aborted although nobody asked for it (Isotope 4.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum Preempted {
    /// It did nothing for too long.
    Idle,
    /// It ran for too long, and what it holds on to was needed.
    Stuck,
    /// Memory was short, and it had the most.
    Memory,
    /// Its process died.
    OwnerDied,
    /// The volume was rolled back, or got a new size.
    Replaced,
}

/// What can go wrong in a transaction.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TxnError {
    /// Retry: another transaction committed what stands against this one.
    #[error("another transaction changed what this one is about; try it again")]
    Conflict,
    /// Retry: the transaction was aborted from outside.
    #[error("the transaction was aborted: {}", match .0 {
        Preempted::Idle => "it did nothing for too long",
        Preempted::Stuck => "it ran for too long, and the space that it held on to was needed",
        Preempted::Memory => "memory was short, and it had the most",
        Preempted::OwnerDied => "its process died",
        Preempted::Replaced => "the volume was changed as a whole",
    })]
    Preempted(Preempted),
    /// Give up: a nested transaction was aborted, and so is everything around it.
    #[error("a transaction nested in this one was aborted")]
    Doomed,
    /// Give up: the transaction has ended already, or none has begun.
    #[error("no transaction is running here")]
    Ended,
    /// Give up: the request makes no sense.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Give up, or do it in parts: the transaction has as many writes as one may have.
    #[error("a transaction may write {0} blocks; do the work in several")]
    TooLarge(usize),
    /// Give up, or wait: the process has as many transactions as it may.
    #[error("a process may run {0} transactions at a time; end some first")]
    TooMany(usize),
    /// Give up: nothing was released under this handle, or it was taken over already.
    #[error("no released transaction has this handle")]
    UnknownHandle,
    /// Stop: the server cannot be reached any more. An unanswered commit may count or not.
    #[error("the connection to the volume's server is lost: {0}")]
    Disconnected(String),
    /// As the store says.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TxnError {
    /// Whether a new attempt, on a new snapshot, may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, TxnError::Conflict | TxnError::Preempted(_))
    }

    /// Whether a block could not be read: no copy of it matches its checksum, or the device does
    /// not give it. Whoever writes all of it mends it.
    pub fn is_damage(&self) -> bool {
        match self {
            TxnError::Store(StoreError::Corrupt { .. }) => true,
            TxnError::Store(StoreError::Device(DeviceError::Io { operation, .. })) => {
                *operation == Operation::Read
            }
            _ => false,
        }
    }
}
