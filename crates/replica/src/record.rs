//! The changes of one version on the wire, and in the primary's memory: only the bytes that changed.
//!
//! ```text
//! head    in postcard, after its length: the version as a step from the one before; a discard, or the blocks of a
//!         transaction with the ranges of bytes that changed
//! bytes   what changed, one range after the other
//! ```

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thalweg_store::block::{BLOCK_SIZE, ByteRanges, Lba, Version, WriteList};
use thalweg_store::chain::Change;

/// Bytes that are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of changes does not decode")]
pub struct Malformed;

/// A change of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The block is discarded.
    Discard,
    /// Its new content.
    Whole(Bytes),
    /// Bytes that replace some of it: where they begin, and what they are.
    Bytes(Vec<(usize, Bytes)>),
}

/// What one version changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// The blocks of a transaction.
    Blocks(Vec<(Lba, Part)>),
    /// A discard of `count` blocks from `lba` on.
    Discard {
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        count: u32,
    },
}

/// The changes of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The version.
    pub version: Version,
    /// What it changes.
    pub changes: Changes,
}

impl Record {
    /// Bytes of content that it changes.
    pub fn changed_bytes(&self) -> u64 {
        let bytes = |part: &Part| match part {
            Part::Discard => 0,
            Part::Whole(content) => content.len(),
            Part::Bytes(parts) => parts.iter().map(|(_, bytes)| bytes.len()).sum(),
        };
        match &self.changes {
            Changes::Discard { .. } => 0,
            Changes::Blocks(blocks) => blocks.iter().map(|(_, part)| bytes(part) as u64).sum(),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Head {
    Blocks { step: u64, blocks: Vec<BlockHead> },
    Discard { step: u64, lba: u64, count: u32 },
}

#[derive(Serialize, Deserialize)]
struct BlockHead {
    lba: u64,
    part: PartHead,
}

#[derive(Serialize, Deserialize)]
enum PartHead {
    Discard,
    Whole,
    /// The bytes between a range's start and the end of the one before, and its length.
    Ranges(Vec<(u16, u16)>),
}

/// Appends the record of a change as `version`, which comes after `before`.
pub fn encode(before: Version, version: Version, change: Change<'_>, to: &mut BytesMut) {
    let step = version.0.saturating_sub(before.0);
    match change {
        Change::Discard { lba, count } => put_head(&Head::Discard { step, lba: lba.0, count }, to),
        Change::Writes(writes) => encode_writes(step, writes, to),
    }
}

fn encode_writes(step: u64, writes: &WriteList, to: &mut BytesMut) {
    let part = |content: &Option<Bytes>, changed: &ByteRanges| match content {
        None => PartHead::Discard,
        Some(_) if changed.is_whole() => PartHead::Whole,
        Some(_) => {
            let mut end = 0;
            let ranges = changed.iter().map(|range| {
                let gap = range.start - end;
                end = range.end;
                (gap as u16, range.len() as u16)
            });
            PartHead::Ranges(ranges.collect())
        }
    };
    let blocks = writes
        .iter()
        .map(|write| BlockHead { lba: write.lba.0, part: part(&write.content, &write.changed) });
    put_head(&Head::Blocks { step, blocks: blocks.collect() }, to);
    for write in writes.iter() {
        let Some(content) = &write.content else { continue };
        match write.changed.is_whole() {
            true => to.extend_from_slice(content),
            false => write.changed.iter().for_each(|range| to.extend_from_slice(&content[range])),
        }
    }
}

fn put_head(head: &Head, to: &mut BytesMut) {
    // Writing to memory does not fail, and postcard can encode every head.
    let bytes = postcard::to_allocvec(head).unwrap_or_default();
    to.put_u32_le(bytes.len() as u32);
    to.extend_from_slice(&bytes);
}

/// Takes the first record from `from`, which comes after version `before`. Its bytes are slices of `from`.
///
/// # Errors
/// [`Malformed`].
pub fn decode(before: Version, from: &mut Bytes) -> Result<Record, Malformed> {
    if from.len() < 4 {
        return Err(Malformed);
    }
    let len = from.get_u32_le() as usize;
    if len > from.len() {
        return Err(Malformed);
    }
    let head: Head = match postcard::take_from_bytes(&from.split_to(len)) {
        Ok((head, [])) => head,
        _ => return Err(Malformed),
    };
    let after = |step: u64| match before.0.checked_add(step) {
        Some(version) if step > 0 => Ok(Version(version)),
        _ => Err(Malformed),
    };
    match head {
        Head::Discard { step, lba, count } => {
            Ok(Record { version: after(step)?, changes: Changes::Discard { lba: Lba(lba), count } })
        }
        Head::Blocks { step, blocks } => {
            let parts = blocks.into_iter();
            let parts = parts.map(|block| Ok((Lba(block.lba), take_part(block.part, from)?)));
            let parts = parts.collect::<Result<Vec<_>, Malformed>>()?;
            Ok(Record { version: after(step)?, changes: Changes::Blocks(parts) })
        }
    }
}

fn take_part(head: PartHead, from: &mut Bytes) -> Result<Part, Malformed> {
    let mut take = |len: usize| match len <= from.len() {
        true => Ok(from.split_to(len)),
        false => Err(Malformed),
    };
    match head {
        PartHead::Discard => Ok(Part::Discard),
        PartHead::Whole => Ok(Part::Whole(take(BLOCK_SIZE)?)),
        PartHead::Ranges(ranges) => {
            let mut at = 0;
            let mut parts = Vec::new();
            for (gap, len) in ranges {
                let range = range_after(at, gap, len).ok_or(Malformed)?;
                at = range.end;
                parts.push((range.start, take(range.len())?));
            }
            Ok(Part::Bytes(parts))
        }
    }
}

fn range_after(end: usize, gap: u16, len: u16) -> Option<Range<usize>> {
    let start = end + usize::from(gap);
    let range = start..start + usize::from(len);
    (range.end <= BLOCK_SIZE).then_some(range)
}
