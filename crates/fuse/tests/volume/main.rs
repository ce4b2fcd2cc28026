//! A volume as one file and as a block device of the kernel.

#![allow(clippy::unwrap_used)]

mod attach;
#[path = "../common/busy.rs"]
mod busy;
mod bytes;
mod common;
