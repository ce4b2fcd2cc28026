//! Simulated disks: timing, faults and crashes.

#![allow(clippy::unwrap_used)]

mod conformance;
mod crash;
mod determinism;
mod faults;
mod hdd;
mod rados;
mod ssd;
