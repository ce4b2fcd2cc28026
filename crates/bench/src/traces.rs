//! Block traces of servers: generated ones, and recorded ones read from files.
//!
//! Both are sequences of [`Access`]es to 4 KiB blocks of an address space of their own.

mod kinds;
mod mix;
mod recorded;

pub use kinds::{Generator, KINDS, Kind};
pub use mix::{Mix, mixes};
pub use recorded::{Recorded, read};

/// One request, in 4 KiB blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether it is a write.
    pub write: bool,
    /// The first block.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
}
