//! The filesystem on a volume: its calls, its state after crashes and damage, its check and repair.

#![allow(clippy::unwrap_used)]

mod calls;
mod changes;
mod check;
mod concurrent;
mod cost;
mod crash;
mod elsewhere;
mod fuzz;
mod grow;
#[path = "../../../store/tests/inplace/support/mod.rs"]
mod in_place;
mod locks;
mod lost;
mod maker;
mod model;
mod mutations;
mod numbers;
mod quota;
mod rescue;
mod room;
mod salvage;
mod sizes;
#[path = "../steps/mod.rs"]
mod steps;
mod support;
#[path = "../../../store/tests/support/mod.rs"]
mod volumes;
mod within;
