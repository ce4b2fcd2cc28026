//! Volumes for threads: behind a socket, in this process, on several nodes. Files: of a volume, and shared.

#![allow(clippy::unwrap_used)]

mod differential;
mod files;
mod forks;
mod nodes;
mod open;
mod raw;
// The tests of the server use all of it.
#[allow(dead_code)]
#[path = "../../../ipc/tests/ipc/served.rs"]
mod rig;
mod sessions;
mod sharing;
mod threads;
