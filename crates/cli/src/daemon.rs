//! The process that has volumes open and serves them: over NBD, as block devices, as mounts, to transactions,
//! and to requests on control sockets.
//!
//! - `session`: the open volumes with their clients; `answers`: the requests on them;
//! - `exports`, `attachments`, `mounts` (with `views`), `network` (with `entrance`): the clients of each kind; `shared_files`: a filesystem
//!   that is served to other machines; `mounted_files`: what is mounted; `shared_mount`: a mount of such a filesystem;
//! - `lifetime`: when the process ends; `signals`;
//! - `running`: a session with its control sockets (`control`), metrics (`metrics`) and signals;
//! - `kept_copies`: copies of the journals of clients of other servers;
//! - `standby`: servers that wait for the volume of another one;
//! - `background`: starts this program as a daemon; `leftover`: removes the files of killed ones.

pub(crate) mod answers;
pub(crate) mod attachments;
pub(crate) mod background;
pub(crate) mod control;
pub(crate) mod entrance;
pub(crate) mod exports;
pub(crate) mod heard;
pub(crate) mod kept_copies;
pub(crate) mod leftover;
pub(crate) mod lifetime;
pub(crate) mod metrics;
pub(crate) mod mount_flags;
mod mounted_files;
pub(crate) mod mounts;
mod mounts_status;
pub(crate) mod network;
pub(crate) mod published;
pub(crate) mod replicas;
pub(crate) mod running;
pub(crate) mod session;
pub(crate) mod shared_files;
pub(crate) mod shared_mount;
pub(crate) mod signals;
pub(crate) mod standby;
pub(crate) mod views;
