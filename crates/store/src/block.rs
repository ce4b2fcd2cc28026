//! The contract of a block store: atomicity and durability of versioned blocks.
//!
//! Isolation is kept apart: a transaction layer decides which transactions commit. A committed transaction is
//! applied here and becomes visible at once, in version order.
//!
//! **The crash rule.** After a crash a store recovers to the state of one version, no older than
//! any version that [`Blocks::sync`] acknowledged: a prefix of the commit order, and no
//! transaction in part.

mod ages;
mod backpressure;
mod contract;
mod damage;
mod difference;
mod error;
mod frozen;
mod hold;
mod holds;
mod layer;
mod lineage;
mod list;
mod located;
mod position;
mod ranges;
mod retained;
mod version;
mod version_order;
mod write;

pub use crate::device::BLOCK_SIZE;
pub use ages::Ages;
pub use backpressure::{Applied, Backpressure, Throttle};
pub(crate) use contract::numbers_itself;
pub use contract::{BlockStore, Blocks, BlocksExt, Hints, Lineage, Versions};
pub(crate) use difference::difference;
pub use error::StoreError;
pub use frozen::Frozen;
pub use hold::Hold;
pub(crate) use holds::Holds;
pub use layer::Layer;
pub use lineage::Relation;
pub use list::WriteList;
pub use located::{BlockVersion, Located, Locations, Residence};
pub use position::{NoPosition, Position};
pub use ranges::ByteRanges;
pub use retained::{Keep, Paused, Retained};
pub use version::{Epoch, EpochVersion, Version};
pub use write::{Class, Lba, Retention, Write};
