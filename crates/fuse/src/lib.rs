//! FUSE adapters for Thalweg: a filesystem for the kernel; a volume as one file, and as a kernel block
//! device.
//!
//! - [`files`]: serves a filesystem;
//! - [`blockdev`]: serves a volume, as a file and as a block device;
//! - [`mounts`]: the kernel's mount tables;
//! - [`state`]: the folder of a user's sockets and mountpoints;
//! - `errno`: the kernel's numbers for errors, for both.

pub mod blockdev;
mod errno;
pub mod files;
pub mod mounts;
pub mod state;

pub use blockdev::{attach, bytes, disk, loopdev, probe, stale};
pub use files::mounted;
