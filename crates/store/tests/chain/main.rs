//! The chain and the layers below it: devices, mirrors, and pools of them.

#![allow(clippy::unwrap_used)]

mod admin;
mod admin_crash;
mod common;
mod crash;
mod damaged;
mod determinism;
mod devices;
mod dump;
mod faults;
mod fence;
mod follow;
mod format;
mod full;
mod fuzz;
mod locate;
mod minilog;
mod minilog_crash;
mod mirror;
mod mirror_crash;
mod model;
mod patience;
mod pool;
mod pool_crash;
mod reads;
mod rebuild;
mod rebuild_again;
mod roles;
mod rounds;
mod steady;
#[path = "../support/mod.rs"]
mod support;
mod wishes;
