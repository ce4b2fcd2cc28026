//! Devices and contents of files on objects.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "librados")]
mod mini_cluster;
#[cfg(feature = "librados")]
mod real;
