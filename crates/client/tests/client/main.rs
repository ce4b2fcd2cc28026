//! Volumes for threads: behind a socket, in this process, on several nodes.

#![allow(clippy::unwrap_used)]

mod nodes;
mod open;
mod raw;
// The tests of the server use all of it.
#[allow(dead_code)]
#[path = "../../../ipc/tests/ipc/served.rs"]
mod rig;
mod sessions;
mod threads;
