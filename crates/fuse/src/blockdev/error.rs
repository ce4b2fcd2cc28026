//! Errors of attaching and detaching, and the work that meets them.

use std::io;
use std::path::PathBuf;

use thalweg_store::block::StoreError;

use super::loopdev::LoopError;

/// Why a volume is not attached, or not detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The machine has no way to a kernel block device.
    #[error("no kernel block device can be made here: {0}")]
    Unavailable(String),
    /// The options do not fit the volume.
    #[error("{0}")]
    Invalid(String),
    /// Something is mounted where the volume's file should be.
    #[error(
        "{} has a {kind} mounted on it; detach it or name another directory, \
         or recover it if its server has died", mountpoint.display()
    )]
    Occupied {
        /// The directory.
        mountpoint: PathBuf,
        /// The filesystem's type.
        kind: String,
    },
    /// The directory is missing, or other users may write to it.
    #[error("{} cannot hold a mount: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// FUSE refused.
    #[error("the volume's file cannot be mounted on {}: {source}", mountpoint.display())]
    Mount {
        /// The directory.
        mountpoint: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The loop driver refused.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A program uses the device. It stays attached.
    #[error("{} is in use{}; unmount it or close it first, or force the detach", device.display(), places(mounts))]
    Busy {
        /// The device.
        device: PathBuf,
        /// Where it is mounted, as far as this process can see.
        mounts: Vec<PathBuf>,
    },
    /// Data in the kernel's cache could not be made durable. The device stays attached.
    #[error("the last writes to {} failed: {source}; look at the volume before you force the detach", device.display())]
    Flush {
        /// The device.
        device: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The volume's own flush failed after the device was gone.
    #[error("the volume could not be flushed: {0}")]
    Volume(#[from] StoreError),
    /// The mount could not be removed.
    #[error("the volume's file cannot be unmounted: {0}")]
    Unmount(#[source] io::Error),
    /// The system refused something that should always work.
    #[error("{0}")]
    System(#[source] io::Error),
}

fn places(mounts: &[PathBuf]) -> String {
    let places: Vec<_> = mounts.iter().map(|path| path.display().to_string()).collect();
    if places.is_empty() { String::new() } else { format!(", mounted on {}", places.join(", ")) }
}

/// Runs `work` on a thread that may block: tasks of this runtime often serve the I/O that it waits for.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, AttachError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, AttachError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(AttachError::System(io::Error::other(error))),
    }
}
