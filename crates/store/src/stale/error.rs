//! What can go wrong in reads and writes at versions.

use super::{GuaranteeError, Unserved};
use crate::block::{StoreError, Version};

/// What can go wrong; each kind is named after what the caller must do.
#[derive(Debug, thiserror::Error)]
pub enum StaleError {
    /// Ask another node.
    #[error(transparent)]
    Unserved(#[from] Unserved),
    /// Give up: the guarantee cannot be given by any node.
    #[error(transparent)]
    Guarantee(#[from] GuaranteeError),
    /// Give up: a snapshot of the past takes no writes.
    #[error("the snapshot is of version {0}, which exists already: it takes no writes")]
    OldSnapshot(Version),
    /// Give up: the snapshot is closed.
    #[error("the snapshot is closed")]
    Closed,
    /// An error of the volume.
    #[error(transparent)]
    Store(#[from] StoreError),
}
