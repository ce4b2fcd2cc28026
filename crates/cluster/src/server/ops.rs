//! The operations: one file for each group. They take the context of a call and the stages that they need, and touch no lock of
//! a stage.

pub(super) mod attributes;
pub(super) mod batch;
pub(super) mod content;
pub(super) mod delegations;
pub(super) mod direct;
pub(super) mod durability;
mod growth;
pub(super) mod locks;
pub(super) mod names;
pub(super) mod opens;
pub(super) mod reclaim;
