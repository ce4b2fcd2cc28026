//! Errors of ImgStore.

use thalweg_store::tree::TreeError;
use thalweg_store::txn::{Retry, TxnError};

/// An error of ImgStore.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ImgError {
    /// An error of a store or of its transaction.
    #[error(transparent)]
    Store(#[from] TreeError),
    /// An error of a store in another process.
    #[error("{why}")]
    Refused {
        /// The text of the error.
        why: String,
        /// Whether a new attempt may succeed.
        is_retryable: bool,
    },
    /// The thread or process of the store does not answer. Its changes in the transaction have no effect.
    #[error("a store cannot be reached: {0}")]
    Gone(String),
    /// The partition was not filled by ImgStore.
    #[error("partition {0} holds something else than photos")]
    Foreign(&'static str),
}

impl From<TxnError> for ImgError {
    fn from(error: TxnError) -> ImgError {
        ImgError::Store(error.into())
    }
}

impl Retry for ImgError {
    fn is_retryable(&self) -> bool {
        match self {
            ImgError::Store(error) => error.is_retryable(),
            ImgError::Refused { is_retryable, .. } => *is_retryable,
            ImgError::Gone(_) | ImgError::Foreign(_) => false,
        }
    }
}
