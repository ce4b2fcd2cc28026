//! What can be asked of a volume, whether this process has it open or another one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thalweg_store::pool::manifest::Settings;

use crate::files::NewFilesystem;
use crate::mount_options::MountOptions;
use crate::parts::{DeviceArg, LinkArg};

/// One request. Paths in it are absolute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The volume in numbers.
    Status,
    /// The snapshots, and the space that each takes.
    ListSnapshots,
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
    /// Make the volume larger, and its filesystem as large as it has room for.
    Resize {
        /// The volume's new size in bytes; of one that is updated in place in a file, the file's.
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
    /// Check the filesystem as a snapshot shows it.
    CheckSnapshot {
        /// The snapshot's name.
        name: String,
        /// Read the files' blocks too.
        data: bool,
    },
    /// Make a kernel block device of the volume.
    Attach(AttachRequest),
    /// Take a kernel block device away.
    Detach {
        /// The snapshot that is attached; `None` for the volume itself.
        snapshot: Option<String>,
        /// Cut off who uses it.
        force: bool,
    },
    /// Make a filesystem on the volume.
    MakeFilesystem(NewFilesystem),
    /// Mount the volume's filesystem.
    Mount(MountRequest),
    /// Change how it is mounted.
    Remount {
        /// Major and minor number of the filesystem's device.
        device: (u32, u32),
        /// What was said behind `-o`.
        options: MountOptions,
    },
    /// A mount of it is about to be taken away: make everything durable. As long as the connection
    /// lasts that this was asked on, the server does not end.
    Unmounting {
        /// Major and minor number of the filesystem's device.
        device: (u32, u32),
        /// It is the last mount that the client sees.
        last: bool,
        /// Also while it is in use; it goes when its last user does.
        lazy: bool,
    },
    /// A mount of it was taken away: wait for the filesystem's end if that was the last one.
    Unmounted {
        /// Major and minor number of the filesystem's device.
        device: (u32, u32),
        /// Do not wait for what still uses it.
        lazy: bool,
    },
    /// Show the mounted filesystem as a new transaction sees it. It ends with the connection that this
    /// was asked on.
    BeginView,
    /// End such a transaction.
    EndView {
        /// The view's number.
        id: u64,
        /// Whether what was done in it is to count.
        commit: bool,
    },
}

impl Request {
    /// Whether it changes the volume itself, and is refused when that is open for reading alone.
    pub(crate) fn changes_volume(&self) -> bool {
        !matches!(
            self,
            Request::Status
                | Request::ListSnapshots
                | Request::CheckSnapshot { .. }
                | Request::Attach(_)
                | Request::Detach { .. }
                | Request::Mount(_)
                | Request::Remount { .. }
                | Request::Unmounting { .. }
                | Request::Unmounted { .. }
                | Request::BeginView
                | Request::EndView { .. }
        )
    }
}

/// How to mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountRequest {
    /// The snapshot to mount; `None` for the volume itself.
    #[serde(default)]
    pub(crate) snapshot: Option<String>,
    /// The directory to mount on.
    pub(crate) directory: PathBuf,
    /// What was said behind `-o`.
    pub(crate) options: MountOptions,
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
    /// Let the device be written although the volume has partitions.
    #[serde(default)]
    pub(crate) writable: bool,
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
    /// The filesystem was mounted.
    Mounted {
        /// Where.
        directory: PathBuf,
    },
    /// Everything is durable, and the filesystem may be unmounted.
    Unmounting,
    /// The filesystem was unmounted, and everything is durable.
    Unmounted {
        /// The process that had the volume open ends with it.
        ends: bool,
        /// What still holds the filesystem, as a person reads it. Empty when nothing does, and when
        /// it is mounted in another place.
        users: Vec<String>,
    },
    /// A transaction's view was mounted.
    View {
        /// Its number.
        id: u64,
        /// Where.
        directory: PathBuf,
    },
    /// Another transaction stands against this one: nothing of it counts.
    Conflict,
    /// The process that has the volume open is about to end: wait for that, and open it anew.
    Ending,
}
