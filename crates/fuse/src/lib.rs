//! FUSE adapters for Thalweg: a filesystem for the kernel; a volume as one file, and as a kernel block
//! device.
//!
//! - [`files`]: serves a filesystem;
//! - [`blockdev`]: serves a volume, as a file and as a block device;
//! - [`mounts`]: the kernel's mount tables;
//! - [`state`]: the folder of a user's sockets and mountpoints;
//! - `connection`: how a filesystem is mounted;
//! - `errno`: the kernel's numbers for errors, for both.
//!
//! # Lock order
//!
//! `ByteVolume::writes` is held across calls of its volume, so it comes before every lock of the volume, and none
//! of the others is held then. The others (the lists of known inodes and names, the count of stored bytes) are held
//! for a moment, one at a time, and no call of a filesystem or a volume is made under them.
//!
//! The kernel has locks too. While it answers a notification it may hold pages, inodes or directories that a
//! request under way needs. So only the thread of `files::coherence` notifies it, and no request waits for
//! that thread, except for one whose pages the kernel does not hold.

pub mod blockdev;
mod connection;
mod errno;
pub mod files;
pub mod mounts;
pub mod state;

pub use blockdev::{attach, bytes, disk, loopdev, probe, stale};
pub use files::mounted;
