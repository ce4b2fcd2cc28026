//! Replicas on simulated machines: what they hold, and when.

#![allow(clippy::unwrap_used)]

mod cluster;
mod faults;
mod primary_lies;
mod records;
mod staleness;
