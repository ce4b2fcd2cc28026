//! A mini-log block, byte for byte.
//!
//! ```text
//! header | fragment | fragment | …          fragment:  head | ranges | bytes of the ranges
//! ```
//!
//! Only the sectors in use are written; the rest of the block keeps its former bytes. The block's map entry
//! has the checksum of the bytes in use, which covers the newest version too: so a block of an earlier use of
//! its segment does not pass.

use bytes::Bytes;
use smallvec::SmallVec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::format::MapEntry;
use crate::block::{BLOCK_SIZE, ByteRanges, Lba, Version};
use crate::checksum::crc32c_of_both;
use crate::device::AlignedBuf;

/// First bytes of a mini-log block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MiniHeader {
    /// Bytes in use, these included.
    pub used: U16,
    /// Fragments.
    pub count: U16,
    /// The version of the first fragment.
    pub first: U64,
}

/// Head of a fragment: what one transaction changed in one block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FragmentHead {
    /// The logical block.
    pub lba: U32,
    /// Its version, less that of the block's first fragment.
    pub later: U16,
    /// Ranges that follow.
    pub ranges: U16,
}

/// A range of bytes of a fragment.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RangeHead {
    /// The first byte in the logical block.
    pub offset: U16,
    /// How many.
    pub len: U16,
}

const _: () = {
    assert!(size_of::<MiniHeader>() == 12);
    assert!(size_of::<FragmentHead>() == 8);
    assert!(size_of::<RangeHead>() == 4);
};

/// Bytes that a fragment with these ranges takes.
pub fn cost(changed: &ByteRanges) -> usize {
    size_of::<FragmentHead>() + changed.count() * size_of::<RangeHead>() + changed.bytes()
}

/// Maximum bytes of a fragment.
pub const MAX_COST: usize = BLOCK_SIZE - size_of::<MiniHeader>();

/// The checksum of a mini-log block whose newest fragment is of `newest`.
fn checksum(newest: Version, used: &[u8]) -> u32 {
    crc32c_of_both(&newest.0.to_le_bytes(), used)
}

/// The bytes that one transaction changed in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The logical block.
    pub lba: u32,
    /// The transaction's version.
    pub version: Version,
    /// The new bytes, each run with its first byte in the logical block.
    pub pieces: SmallVec<[(u16, Bytes); 3]>,
}

impl Fragment {
    /// The bytes of `content` in the ranges `changed`.
    pub fn of(lba: u32, version: Version, changed: &ByteRanges, content: &Bytes) -> Fragment {
        let piece = |range: std::ops::Range<usize>| (range.start as u16, content.slice(range));
        Fragment { lba, version, pieces: changed.iter().map(piece).collect() }
    }
}

/// A mini-log block that gathers fragments, in the order of their versions.
#[derive(Debug, Default)]
pub struct Builder {
    bytes: Vec<u8>,
    first: Version,
    newest: Version,
    count: u16,
}

/// A mini-log block that is ready to be written.
#[derive(Debug)]
pub struct Sealed {
    /// Whole sectors.
    pub content: Bytes,
    /// The newest version in it.
    pub newest: Version,
    /// How much older the first one is.
    pub span: u64,
    /// The checksum for the map entry.
    pub check: u32,
}

impl Builder {
    /// Whether it holds no fragment.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a fragment of `version` that takes `cost` bytes fits.
    pub fn fits(&self, version: Version, cost: usize) -> bool {
        let near = version.0.saturating_sub(self.first.0) <= u64::from(u16::MAX);
        self.is_empty() || (near && self.bytes.len() + cost <= BLOCK_SIZE)
    }

    /// Adds a fragment that fits.
    pub fn add(&mut self, fragment: &Fragment) {
        if self.is_empty() {
            self.first = fragment.version;
            self.bytes.resize(size_of::<MiniHeader>(), 0);
        }
        let head = FragmentHead {
            lba: fragment.lba.into(),
            later: ((fragment.version.0 - self.first.0) as u16).into(),
            ranges: (fragment.pieces.len() as u16).into(),
        };
        self.bytes.extend_from_slice(head.as_bytes());
        for (offset, bytes) in &fragment.pieces {
            let head = RangeHead { offset: (*offset).into(), len: (bytes.len() as u16).into() };
            self.bytes.extend_from_slice(head.as_bytes());
        }
        for (_, bytes) in &fragment.pieces {
            self.bytes.extend_from_slice(bytes);
        }
        self.count += 1;
        self.newest = fragment.version;
        debug_assert!(self.bytes.len() <= BLOCK_SIZE);
    }

    /// The block in whole sectors of `sector` bytes; the builder is empty afterwards.
    pub fn seal(&mut self, sector: usize) -> Sealed {
        let used = self.bytes.len();
        let header = MiniHeader {
            used: (used as u16).into(),
            count: self.count.into(),
            first: self.first.0.into(),
        };
        self.bytes[..size_of::<MiniHeader>()].copy_from_slice(header.as_bytes());
        let mut content = AlignedBuf::zeroed(used.next_multiple_of(sector));
        content[..used].copy_from_slice(&self.bytes);
        let sealed = Sealed {
            content: content.freeze(),
            newest: self.newest,
            span: self.newest.0 - self.first.0,
            check: checksum(self.newest, &self.bytes),
        };
        self.bytes.clear();
        self.count = 0;
        sealed
    }
}

/// The fragments in the block of `entry`, in order; `None` when the block is another one, or damaged.
pub fn open(entry: &MapEntry, block: &Bytes) -> Option<Vec<Fragment>> {
    let (header, _) = MiniHeader::read_from_prefix(block).ok()?;
    let used = block.get(..usize::from(header.used.get()))?;
    let first = entry.version.0.checked_sub(entry.lba.0)?;
    if checksum(entry.version, used) != entry.check || header.first.get() != first {
        return None;
    }
    let fragments = decode(block)?;
    (fragments.last()?.version == entry.version).then_some(fragments)
}

/// The fragments in a block, without verifying its checksum; `None` when its heads are invalid.
pub fn decode(block: &Bytes) -> Option<Vec<Fragment>> {
    let (header, _) = MiniHeader::read_from_prefix(block).ok()?;
    let used = usize::from(header.used.get());
    let first = Version(header.first.get());
    let mut at = size_of::<MiniHeader>();
    let mut fragments: Vec<Fragment> = Vec::new();
    for _ in 0..header.count.get() {
        let fragment = decode_fragment(block.get(..used)?, block, first, &mut at)?;
        if fragments.last().is_some_and(|before| before.version > fragment.version) {
            return None;
        }
        fragments.push(fragment);
    }
    let starts = fragments.first().is_some_and(|fragment| fragment.version == first);
    (at == used && starts).then_some(fragments)
}

fn decode_fragment(used: &[u8], block: &Bytes, first: Version, at: &mut usize) -> Option<Fragment> {
    let (head, _) = FragmentHead::read_from_prefix(used.get(*at..)?).ok()?;
    *at += size_of::<FragmentHead>();
    let mut data = *at + usize::from(head.ranges.get()) * size_of::<RangeHead>();
    let mut pieces = SmallVec::new();
    let mut free = 0;
    for _ in 0..head.ranges.get() {
        let (range, _) = RangeHead::read_from_prefix(used.get(*at..)?).ok()?;
        let (offset, len) = (usize::from(range.offset.get()), usize::from(range.len.get()));
        // Ranges ascend and do not overlap.
        if len == 0 || offset < free || offset + len > BLOCK_SIZE || data + len > used.len() {
            return None;
        }
        free = offset + len + 1;
        pieces.push((range.offset.get(), block.slice(data..data + len)));
        *at += size_of::<RangeHead>();
        data += len;
    }
    *at = data;
    let version = Version(first.0.checked_add(u64::from(head.later.get()))?);
    Some(Fragment { lba: head.lba.get(), version, pieces })
}

/// The map entry of a sealed block.
pub fn entry_of(sealed: &Sealed, last: bool) -> MapEntry {
    MapEntry {
        kind: super::super::format::Kind::Mini,
        last,
        lba: Lba(sealed.span),
        version: sealed.newest,
        check: sealed.check,
    }
}
