//! Tests of the layers on blocks: volumes, transactions, and stores of keys and values.

#![allow(clippy::unwrap_used)]

mod contract;
mod counting;
mod fence;
mod layers;
mod retained;
mod stale;
#[path = "../support/mod.rs"]
mod support;
mod tree;
mod tree_crash;
mod tree_isolation;
mod tree_model;
mod tree_salvage;
mod tree_splits;
mod tree_views;
mod txn;
mod txn_history;
mod volume;
mod working_sets;
mod writes;
