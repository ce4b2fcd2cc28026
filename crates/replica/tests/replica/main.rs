//! Replicas on simulated machines: what they hold, and when.

#![allow(clippy::unwrap_used)]

mod acknowledged;
mod clients;
mod cluster;
mod connection;
mod damage;
mod devices;
mod faults;
mod full;
mod levels;
mod nodes;
mod pace;
mod primary_lies;
mod records;
mod releases;
mod services;
mod sizes;
mod split;
mod staleness;
mod traffic;
mod truth;
