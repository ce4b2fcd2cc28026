//! Simulated disks in virtual time, crashes, faults and reference models for Thalweg.
//!
//! - [`runtime`]: runs a future in virtual time, as a function of a seed;
//! - [`contents`]: contents of files in memory, which survive crashes;
//! - [`content`]: the content of a simulated medium, sparse and cheap to clone; [`ramdisk`]: the same
//!   as a device that takes no time;
//! - [`hdd`], [`ssd`]: a hard disk and a solid-state drive with the timing of real ones;
//! - [`rados`]: a cluster of object servers, each with two disks;
//! - [`recording`]: devices that log every write and flush in one order; [`crash`]: the images that
//!   a crash could leave of them;
//! - [`conformance`]: the suite that every device passes;
//! - [`faults`]: a wrapper that makes any device fail on command;
//! - [`model`]: a naive reference for blocks, and the check of the crash rule;
//! - [`scribble`]: disks with arbitrary damage;
//! - [`media`]: named files on such devices, so that a whole volume crashes with its manifest;
//! - [`volume`]: a naive volume in RAM;
//! - [`files`]: a naive filesystem in RAM, the reference for files;
//! - [`net`](mod@net): hosts, links and streams that break;
//! - [`campaign`]: the length and the seeds of tests that explore random histories.
//!
//! # Lock order
//!
//! 1. the names of [`media`], and the connections that arrive at a listener of [`net`](mod@net), also across waits;
//! 2. the state of a network, and then that of one pipe of it;
//! 3. all others, none of which is held across a wait. Among them the files of [`files`] come before their
//!    watchers and before how long answers are valid; each other one is held alone.

#[cfg(feature = "files")]
mod acl;
pub mod busy;
pub mod campaign;
pub mod conformance;
pub mod content;
#[cfg(feature = "files")]
pub mod contents;
pub mod crash;
pub mod faults;
#[cfg(feature = "files")]
pub mod files;
pub mod hdd;
mod log;
pub mod media;
pub mod model;
pub mod net;
pub mod passing;
#[cfg(feature = "files")]
pub mod rados;
pub mod ramdisk;
pub mod recording;
pub mod runtime;
pub mod scribble;
pub mod sessions;
pub mod ssd;
pub mod versions;
pub mod volume;

pub use runtime::{run, run_within};
