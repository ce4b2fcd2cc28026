//! What can be asked of a volume, whether this process has it open or another one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thalweg_store::pool::manifest::Settings;

use crate::parts::{DeviceArg, LinkArg};

/// One request. Paths in it are absolute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The volume in numbers.
    Status,
    /// Keep the present state under a name.
    CreateSnapshot {
        /// The name.
        name: String,
    },
    /// Forget a snapshot.
    DeleteSnapshot {
        /// Its name.
        name: String,
    },
    /// Take the volume back to a snapshot.
    Rollback {
        /// Its name.
        name: String,
    },
    /// Add a link, give the volume another size, or both.
    Extend {
        /// The new link.
        link: Option<LinkArg>,
        /// The new size in bytes.
        size: Option<u64>,
        /// Use devices that hold something else.
        force: bool,
    },
    /// Give the volume a smaller size, take a link away, or both.
    Shrink {
        /// The path of one of the link's devices.
        link: Option<PathBuf>,
        /// The new size in bytes.
        size: Option<u64>,
    },
    /// Put another device in the place of one.
    Replace {
        /// The path of the old one.
        old: PathBuf,
        /// The new one.
        new: DeviceArg,
        /// Use a device that holds something else.
        force: bool,
    },
    /// Make the sides of mirrors whole again that missed writes.
    Rebuild {
        /// The one that is meant; `None` for all.
        device: Option<PathBuf>,
    },
    /// Change how the volume is opened, from the next time on.
    Set {
        /// What is changed is set.
        settings: Settings,
    },
    /// Read and verify everything that is stored, and repair what can be.
    Scrub,
    /// Make a kernel block device of the volume.
    Attach(AttachRequest),
    /// Take a kernel block device away.
    Detach {
        /// The snapshot that is attached; `None` for the volume itself.
        snapshot: Option<String>,
        /// Cut off who uses it.
        force: bool,
    },
}

/// How to attach.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AttachRequest {
    /// The snapshot to attach; `None` for the volume itself.
    pub(crate) snapshot: Option<String>,
    /// The device's logical block in bytes.
    pub(crate) block_size: Option<u32>,
    /// Make devices of the partitions found.
    pub(crate) partition_scan: bool,
}

/// What a request came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// A status, or a report, as JSON.
    Json(serde_json::Value),
    /// It is done.
    Done,
    /// A block device was made.
    Attached {
        /// Its path.
        device: PathBuf,
    },
    /// A block device was taken away.
    Detached {
        /// Its path.
        device: PathBuf,
        /// The process that had the volume open ends with it.
        ends: bool,
    },
}
