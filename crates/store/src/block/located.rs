//! Where the contents of a block are read from.

use smallvec::SmallVec;

use super::Version;
use crate::device::QueueDepth;

/// Content that a block has in some of the versions that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockVersion {
    /// The oldest version that has it and can be read.
    pub oldest: Version,
    /// The newest one. The versions in between have it too.
    pub newest: Version,
    /// Whether something is stored; otherwise the block reads as zeros.
    pub stored: bool,
}

/// The contents that a block has in a range of versions, oldest first.
pub type Locations = SmallVec<[Located; 4]>;

/// A content of a block, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// The oldest version that has it and can be read.
    pub oldest: Version,
    /// The newest one. The versions in between have it too.
    pub newest: Version,
    /// Where it would be read from.
    pub residence: Residence,
}

/// Where a content would be read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residence {
    /// Memory; also of a block that holds nothing.
    Memory,
    /// A device.
    Device {
        /// Its number in the store, which is its own until the store is closed.
        device: u16,
        /// Its first byte there, as far as that is known.
        offset: u64,
        /// The bytes of the device.
        size: u64,
        /// Whether it is a rotational disk.
        is_rotational: bool,
        /// The requests that it has not finished.
        queue: QueueDepth,
    },
}
