//! Names of files and folders: in a volume's folder, and in this user's folder of sockets and mountpoints.

/// The program's own name.
pub(crate) const NAME: &str = "thalweg";

/// The control socket, in the folder with a volume's sockets.
pub(crate) const CONTROL: &str = "control.sock";
/// The log of the background process of `thalweg attach`.
pub(crate) const ATTACH_LOG: &str = "attach.log";
/// The log of the background process of `thalweg mount`.
pub(crate) const MOUNT_LOG: &str = "mount.log";
/// All files that a server makes in a folder for sockets.
pub(crate) const SERVER_FILES: [&str; 4] = [CONTROL, thalweg_ipc::SOCKET, MOUNT_LOG, ATTACH_LOG];

/// The prefix of this user's folders with second sockets of volumes that have folders of their own.
pub(crate) const SERVED: &str = "volume-";
/// The prefix of this user's files of servers that stand by.
pub(crate) const STANDBY: &str = "standby-";
/// The prefix of this user's directories on which transactions' views are mounted.
pub(crate) const VIEW: &str = "tx-";
/// The type of our mounts in the mount table.
pub(crate) const MOUNT_KIND: &str = "fuse.thalweg";
