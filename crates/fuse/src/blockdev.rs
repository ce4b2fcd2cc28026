//! A volume as one file, and as a kernel block device.
//!
//! - [`attach`](mod@attach): a kernel block device from a volume: the file of [`disk`] under a loop device;
//! - [`stale`]: cleans up after a server that was killed;
//! - [`probe`](mod@probe): which methods for a kernel block device this machine has;
//! - [`loopdev`]: the kernel's loop devices;
//! - [`disk`]: a FUSE filesystem with one file, whose bytes are a volume;
//! - [`bytes`](mod@bytes): any byte range of a volume, over whole blocks.

pub mod attach;
pub mod bytes;
pub mod disk;
mod error;
pub mod loopdev;
pub mod probe;
pub mod stale;
