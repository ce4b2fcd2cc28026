//! Replicas on simulated machines: what they hold, and when.

#![allow(clippy::unwrap_used)]

mod acknowledged;
mod cluster;
mod damage;
mod devices;
mod faults;
mod full;
mod nodes;
mod primary_lies;
mod records;
mod sizes;
mod split;
mod staleness;
