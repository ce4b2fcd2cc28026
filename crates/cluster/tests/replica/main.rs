//! Replicas on simulated machines: what they hold, and when.

#![allow(clippy::unwrap_used)]

mod acknowledged;
mod cluster;
mod faults;
mod full;
mod nodes;
mod primary_lies;
mod records;
mod split;
mod staleness;
