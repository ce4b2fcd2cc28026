//! What can go wrong.

use std::sync::Arc;

use super::version::Version;
use super::write::Lba;
use crate::device::DeviceError;

/// What can go wrong in a block store; each kind is named after what the caller must do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Give up: the request is invalid; the text says why.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Give up: the store is open read-only, or shows a snapshot.
    #[error("the volume is open read-only")]
    ReadOnly,
    /// Give up, or free something: there is no room for the write.
    #[error("no space left on the volume; trim or delete data, delete snapshots, or extend it")]
    NoSpace,
    /// Give up, or split the work: the transaction takes more than the store's journal holds.
    #[error(
        "the transaction changes {needed} bytes of metadata and small writes, and the volume's journal \
         takes {most} at once; do the work in several, or make the volume with a larger journal"
    )]
    TooLarge {
        /// Upper bound of the bytes that the transaction takes.
        needed: u64,
        /// The maximum for one transaction, in bytes.
        most: u64,
    },
    /// Give up on this block: no copy of it matches its checksum.
    #[error("block {} is damaged: no copy matches its checksum ({detail})", lba.0)]
    Corrupt {
        /// The logical block.
        lba: Lba,
        /// Where it lies, and which copies were tried.
        detail: String,
    },
    /// Stop: a flush or a write failed earlier. The store serves reads until it is reopened.
    #[error("the store refuses writes since an earlier failure: {0}")]
    Poisoned(Arc<str>),
    /// Stop: a replica of the volume has become its primary. The store serves reads.
    #[error(
        "a replica of this volume was promoted (term {0}): nothing is written here any more; use the new primary"
    )]
    Fenced(u32),
    /// Wait, or stop: the change survives a crash of this machine, and too few replicas have made it durable, too.
    #[error("the change is durable here, and not at as many replicas as it should be: {0}")]
    Unreplicated(Arc<str>),
    /// The version asked for has been reclaimed.
    #[error("version {0} is no longer kept")]
    Gone(Version),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
