//! The requests on a volume and their answers, for the process that has the volume open.

pub(crate) mod away_options;
pub(crate) mod devices;
pub(crate) mod journal_options;
pub(crate) mod journal_place;
pub(crate) mod keepers;
pub(crate) mod mount_options;
mod option_values;
pub(crate) mod sizes;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thalweg_store::pool::manifest::Settings;

use self::devices::{DeviceArg, LinkArg};
use self::mount_options::MountOptions;
use crate::failure::Failure;

/// One request. Paths in it are absolute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The volume's status.
    Status,
    /// What follows the volume, and what it follows.
    Replicas,
    /// Of a mount of a shared filesystem: what of its changes is not durable at the server.
    Pending,
    /// Of such a mount: send everything, and have the server make it durable.
    Drain,
    /// Of such a mount: move it to another machine.
    Move {
        /// `HOST` or `HOST:PORT`.
        target: String,
        /// Also while programs have files open for writing.
        force: bool,
    },
    /// The clients of the shared filesystem.
    Clients,
    /// The holders of an inode of the shared filesystem.
    Capabilities {
        /// A path from the filesystem's root.
        path: String,
    },
    /// End the sessions of a client of the shared filesystem.
    Evict {
        /// Its name.
        client: String,
    },
    /// Gives up the journals of a client that have lapsed.
    ForgetJournals {
        /// The client's name.
        client: String,
    },
    /// Of a keeper: ends its copies of the journals of a client, for a take-over.
    SealCopies {
        /// The client's name.
        client: String,
    },
    /// The snapshots, and the space of each.
    ListSnapshots,
    /// Change the volume alone.
    Change(Change),
    /// Make the volume larger, and grow its filesystem into it.
    Resize {
        /// The volume's new size in bytes; of an in-place volume in a file, the file's.
        size: Option<u64>,
    },
    /// Read and verify everything that is stored, and repair bad copies.
    Scrub,
    /// Check the filesystem of a snapshot.
    CheckSnapshot {
        /// The snapshot's name.
        name: String,
        /// Read the files' blocks too.
        data: bool,
    },
    /// Make a kernel block device of the volume.
    Attach(AttachRequest),
    /// Detach a kernel block device.
    Detach {
        /// The snapshot that is attached; `None` for the volume itself.
        snapshot: Option<String>,
        /// Detach it although it is in use.
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
        /// The options behind `-o`.
        options: MountOptions,
    },
    /// A client is about to unmount it: make everything durable. The server does not end while the connection
    /// of this request lasts.
    Unmounting {
        /// Major and minor number of the filesystem's device.
        device: (u32, u32),
        /// The client sees no other mount of it.
        last: bool,
        /// Unmount although it is in use; it ends when its last user does.
        lazy: bool,
        /// Of a shared filesystem: what the server does not have stays in the journal, for the next mount.
        #[serde(default)]
        leave: bool,
    },
    /// A client has unmounted it: if that was the last mount, wait for the filesystem's end.
    Unmounted {
        /// Major and minor number of the filesystem's device.
        device: (u32, u32),
        /// Do not wait for its users.
        lazy: bool,
    },
    /// Mount a view of the filesystem in a new transaction. The transaction ends with the connection of this
    /// request.
    BeginView,
    /// End a view's transaction.
    EndView {
        /// The view's number.
        id: u64,
        /// Commit the transaction's changes.
        commit: bool,
    },
}

/// A change of a volume that needs none of its clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Change {
    /// Keep the present state under a name.
    CreateSnapshot {
        /// The name.
        name: String,
    },
    /// Delete a snapshot.
    DeleteSnapshot {
        /// Its name.
        name: String,
    },
    /// Roll the volume back to a snapshot.
    Rollback {
        /// Its name.
        name: String,
    },
    /// Add a link, change the volume's size, or both.
    Extend {
        /// The new link.
        link: Option<LinkArg>,
        /// The new size in bytes.
        size: Option<u64>,
        /// Overwrite devices that hold something else.
        force: bool,
    },
    /// Make the volume smaller, remove a link, or both.
    Shrink {
        /// The path of one of the link's devices.
        link: Option<PathBuf>,
        /// The new size in bytes.
        size: Option<u64>,
    },
    /// Replace a device.
    Replace {
        /// The path of the old one.
        old: PathBuf,
        /// The new one.
        new: DeviceArg,
        /// Overwrite a device that holds something else.
        force: bool,
    },
    /// Rebuild the sides of mirrors that missed writes.
    Rebuild {
        /// One side; `None` for all.
        device: Option<PathBuf>,
    },
    /// Change the volume's settings, from the next opening on.
    Set {
        /// The settings to change; `None` leaves a setting as it is.
        settings: Settings,
    },
}

impl Request {
    /// Whether it changes the volume itself, and so is refused on a read-only volume.
    pub(crate) fn changes_volume(&self) -> bool {
        !matches!(
            self,
            Request::Status
                | Request::Replicas
                | Request::Pending
                | Request::Drain
                | Request::Move { .. }
                | Request::Clients
                | Request::Capabilities { .. }
                | Request::Evict { .. }
                | Request::ForgetJournals { .. }
                | Request::SealCopies { .. }
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

impl Request {
    /// Whether it changes devices and nothing that is stored on them, so that a replica takes it, too.
    pub(crate) fn changes_devices(&self) -> bool {
        let Request::Change(change) = self else { return matches!(self, Request::Scrub) };
        match change {
            // The replica says that its size is that of its primary.
            Change::Extend { .. } | Change::Shrink { .. } => true,
            Change::Replace { .. } | Change::Rebuild { .. } => true,
            Change::CreateSnapshot { .. }
            | Change::DeleteSnapshot { .. }
            | Change::Rollback { .. }
            | Change::Set { .. } => false,
        }
    }
}

/// A filesystem to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NewFilesystem {
    /// The root directory's owner.
    pub(crate) uid: u32,
    /// The root directory's group.
    pub(crate) gid: u32,
    /// The root directory's mode.
    pub(crate) mode: u16,
    /// Replace an existing one.
    pub(crate) force: bool,
    /// Where the contents of files are kept.
    pub(crate) contents: ContentsPlace,
}

/// Where the contents of files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum ContentsPlace {
    /// On the volume, with the names of the files
    Volume,
    /// In objects of their own, beside the image rados:POOL/IMAGE that has the names
    Objects,
}

/// How to mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountRequest {
    /// The snapshot to mount; `None` for the volume itself.
    #[serde(default)]
    pub(crate) snapshot: Option<String>,
    /// The directory to mount on.
    pub(crate) directory: PathBuf,
    /// The options behind `-o`.
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
    /// Allow writes although the volume has partitions.
    #[serde(default)]
    pub(crate) writable: bool,
}

/// A block device that was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MadeDevice {
    /// Its path.
    pub(crate) device: PathBuf,
    /// Why it is read-only although the user did not ask for that.
    #[serde(default)]
    pub(crate) read_only: Option<String>,
}

/// The result of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// A status or a report, as JSON.
    Json(serde_json::Value),
    /// It is done.
    Done,
    /// A block device was made.
    Attached(MadeDevice),
    /// A block device was detached.
    Detached {
        /// Its path.
        device: PathBuf,
        /// The process that had the volume open ends now.
        ends: bool,
    },
    /// The filesystem was mounted.
    Mounted {
        /// Where.
        directory: PathBuf,
    },
    /// Everything is durable, or a lazy unmount goes on nevertheless, and the filesystem may be unmounted.
    Unmounting {
        /// Why the latest writes are lost, if they are.
        lost: Option<String>,
        /// Changes that stay in the journal of a client, for the next mount of it.
        #[serde(default)]
        left: u64,
    },
    /// The filesystem was unmounted, and everything is durable.
    Unmounted {
        /// The process that had the volume open ends now.
        ends: bool,
        /// The users that still hold the filesystem, as text. Empty if there are none, or if it is mounted in
        /// another place.
        users: Vec<String>,
    },
    /// A transaction's view is mounted.
    View {
        /// Its number.
        id: u64,
        /// Where.
        directory: PathBuf,
    },
    /// The transaction conflicts with another one: nothing of it was applied.
    Conflict,
    /// The process that has the volume open is about to end: wait for that, then open it.
    Ending,
}

/// The error for an answer that does not belong to the request.
pub(crate) fn unexpected_answer() -> Failure {
    Failure::new("the volume's server gave an answer that does not belong to the request")
        .help("it may be of another version; restart it")
}
