//! Simulated disks: how they take their time, fail and crash.

#![allow(clippy::unwrap_used)]

mod crash;
mod determinism;
mod faults;
mod hdd;
mod ssd;
