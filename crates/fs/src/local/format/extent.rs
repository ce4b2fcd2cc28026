//! Where blocks of files lie.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::{ExtentRecord, LOST, Tag, key};

/// Blocks of a file that lie in a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent {
    /// The first block of the file.
    pub at: u64,
    /// Its place among the blocks of data, or [`LOST`].
    pub start: u64,
    /// How many, at least one.
    pub blocks: u64,
}

impl Extent {
    /// Blocks of a file of which a repair has found that they were written, and not where.
    pub fn lost(range: Range<u64>) -> Extent {
        Extent { at: range.start, start: LOST, blocks: range.end - range.start }
    }

    /// Whether its content is lost: it has no blocks of data, and reads of it fail.
    pub fn is_lost(&self) -> bool {
        self.start == LOST
    }

    /// The block of the file behind it.
    pub fn end(&self) -> u64 {
        self.at + self.blocks
    }

    /// The part of it from a block of the file on, up to another.
    pub fn part(&self, range: Range<u64>) -> Extent {
        let start = if self.is_lost() { LOST } else { self.start + (range.start - self.at) };
        Extent { at: range.start, start, blocks: range.end - range.start }
    }

    /// The key of its record.
    pub fn key(&self, ino: u64) -> Vec<u8> {
        extent_key(ino, self.at)
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.start <= LOST, "a volume has fewer blocks than {}", self.start);
        assert!(u32::try_from(self.blocks).is_ok(), "an extent has fewer blocks: {}", self.blocks);
        let record = ExtentRecord {
            start: (self.start as u32).into(),
            high: (self.start >> 32) as u8,
            blocks: (self.blocks as u32).into(),
        };
        record.as_bytes().to_vec()
    }

    /// Decodes an extent; `None` when it is invalid.
    pub fn decode(rest: &[u8], value: &[u8], data_blocks: u64) -> Option<Extent> {
        let at = u64::from(u32::from_be_bytes(rest.try_into().ok()?));
        let record = ExtentRecord::read_from_bytes(value).ok()?;
        let start = u64::from(record.start.get()) | u64::from(record.high) << 32;
        let blocks = u64::from(record.blocks.get());
        let stored = start == LOST || start + blocks <= data_blocks;
        let inside = stored && at + blocks <= 1 << 32;
        (blocks > 0 && inside).then_some(Extent { at, start, blocks })
    }
}

/// The key of the extent that begins at a block of a file.
///
/// # Panics
/// When no file has such a block.
pub fn extent_key(ino: u64, at: u64) -> Vec<u8> {
    assert!(u32::try_from(at).is_ok(), "no file has a block {at}");
    key(ino, Tag::Extent, &(at as u32).to_be_bytes())
}
