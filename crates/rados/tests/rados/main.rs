//! Devices and contents of files on objects, simulated and real.

#![allow(clippy::unwrap_used)]

mod contents;
mod device;
mod fence;
mod files;
#[cfg(feature = "librados")]
mod frozen;
mod kind;
#[cfg(feature = "librados")]
mod mini_cluster;
#[cfg(feature = "librados")]
mod real;
mod standby;
mod volume;
