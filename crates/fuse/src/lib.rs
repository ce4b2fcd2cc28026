//! FUSE adapters for Thalweg: a filesystem for the kernel; a volume as one file, and as a kernel block
//! device.
//!
//! - [`mounted`]: mounts of a filesystem; `files` serves them, `stages` times requests;
//! - [`attach`](mod@attach): a kernel block device from a volume: the file of [`disk`] under a loop device;
//! - [`stale`]: cleans up after a server that was killed;
//! - [`probe`](mod@probe): which methods for a kernel block device this machine has;
//! - [`loopdev`]: the kernel's loop devices;
//! - [`mounts`]: the kernel's mount tables;
//! - [`state`]: the folder of a user's sockets and mountpoints;
//! - [`disk`]: a FUSE filesystem with one file, whose bytes are a volume;
//! - [`bytes`](mod@bytes): any byte range of a volume, over whole blocks.

pub mod attach;
mod attributes;
pub mod bytes;
mod coherence;
pub mod disk;
mod errno;
mod files;
mod known;
pub mod loopdev;
pub mod mounted;
pub mod mounts;
pub mod probe;
mod stages;
pub mod stale;
pub mod state;
