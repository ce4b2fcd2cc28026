//! A filesystem behind a server, on simulated machines: what its clients see of each other, and when.

#![allow(clippy::unwrap_used)]

mod absence;
mod absence_lives;
mod access;
mod alone;
mod answers;
mod basics;
mod closed;
mod crossing;
mod direct;
mod footprints;
mod full;
mod histories;
mod holes;
mod hostile;
mod hostile_users;
mod journal;
mod journal_crashes;
mod journal_use;
mod keeper_crashes;
mod keeper_hostile;
mod keeper_node;
mod keepers;
mod lapse;
mod levels;
mod limits;
mod linear;
mod lock_waits;
mod losses;
mod model;
mod move_node;
mod moves;
mod moving;
mod moving_crashes;
mod objects;
mod own_files;
mod own_locks;
mod own_names;
mod pages;
mod peer;
mod positions;
mod pressure;
mod quotas;
mod recover;
mod releases;
mod replay;
mod reports;
mod requests;
mod restarts;
mod scene;
mod size_records;
#[path = "../../../fs/tests/steps/mod.rs"]
mod steps;
mod syncs;
mod volume;
