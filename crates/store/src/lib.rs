//! Blocks that are durable, atomic and steady under load.
//!
//! A write passes through these modules in one direction, top to bottom, and a module imports
//! only what stands below it:
//!
//! - [`open`](mod@open): volumes of either kind, by a path;
//! - [`pool`]: volumes put together from files and raw devices;
//! - [`volume`]: a byte-addressed volume, the one trait that protocol adapters see;
//! - [`tree`]: key-value stores in named partitions (Isotope);
//! - [`txn`]: isolation: which transactions commit (Isotope);
//! - [`stale`]: old versions by what they cost, for readers that say what they need (Yogurt);
//! - [`chain`]: a log chained over drives with a multi-version index (Gecko);
//! - [`inplace`]: blocks updated in place behind a journal, in one of five modes (Okeanos);
//! - [`journal`]: a redo log of byte ranges (Okeanos), on a [log](journal::log) of opaque records;
//! - [`block`]: the contract of a block store: versions, atomic application, durability;
//! - [`latency`]: how long the stages of a request take;
//! - [`device`]: files and raw devices, memory, mirrors, stripes.
//!
//! # Lock order
//!
//! A lock is taken before those of the modules below. Within a module, from left to right:
//!
//! - `pool`: the manifest, the mirrors, the members, the settings. A mirror's labels are held alone.
//! - `tree`: each lock is held alone, but a group's `state` is taken under the `queue` of groups.
//! - `txn`: `order`, `registry`. Under `order`, the store's `state` is taken for a hold.
//! - `chain`: `label_lock`, `cleaning_lock`, `checkpoints`, `state`. `rounds` and a cache's state are held alone.
//! - `inplace`: `writing_back`, then `state` with `superblock` or `committing_from` under it. The commit task's future,
//!   which callers poll, takes `writing_back` to make room; so no caller of `sync` holds one of these.
//! - `journal`: `in_flight`, `writing`, then `ring` or `poison`. `ring` is also taken under the `state` of `inplace`.
//!   `line` of the callers is held alone: nothing is polled or woken under it.
//! - `stale`: a view's `range`, under which the store's locks are taken; `devices`, the writes of a snapshot, and
//!   what is known upstream are held alone.
//! - `block`: a window of versions, under which the store's locks are taken; a hold that it drops is dropped after.
//! - `device`: a mirror's record of failures, then its sides; every other lock is held alone.
//!
//! The manifest, `label_lock`, `cleaning_lock`, `checkpoints`, `writing_back`, `in_flight`, `writing` and a mirror's
//! record of failures are held across requests to devices, the others never.

pub mod block;
pub mod chain;
pub mod checksum;
mod copies;
mod damage;
pub mod device;
mod gate;
pub mod inplace;
pub mod journal;
pub mod latency;
mod lock;
pub mod open;
pub mod pool;
mod rate;
mod refcounts;
pub mod stale;
pub mod tree;
pub mod txn;
pub mod volume;

/// The guide's code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/stores.md")]
mod guide {}
