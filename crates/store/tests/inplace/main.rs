//! The in-place store and its journal.

#![allow(clippy::unwrap_used)]

mod cases;
mod crash;
mod faults;
mod fuzz;
mod grow;
mod journal;
mod journal_support;
mod log;
mod log_history;
mod log_keep;
mod log_mirror;
mod media;
mod model;
mod steady;
mod support;
