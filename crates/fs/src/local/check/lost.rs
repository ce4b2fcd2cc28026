//! Finds the blocks of files that were lost with records of the tree.
//!
//! An inode's record says how many blocks the file has. Where its extents have fewer, some extents are
//! gone, and a read of their content must not return zeros. They were where the file has holes now; when a
//! salvage knows the missing keys, only in the holes in which an extent with such a key may have been.
//! Holes that may have been blocks are recorded as lost too.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use thalweg_store::tree::{KeyRange, Salvage};

use crate::filesystem::MAX_FILE;
use crate::local::content::BLOCK;
use crate::local::format::{Extent, Tag, extent_key, key, key_behind};

/// Blocks of the longest extent.
const LONGEST: u64 = u32::MAX as u64;

/// Keys of which this check knows that their records are gone.
#[derive(Debug, Default)]
pub(super) struct Missing {
    ranges: Vec<KeyRange>,
    records: BTreeSet<Bytes>,
}

impl Missing {
    /// Adds the keys that a salvage has lost.
    pub(super) fn add(&mut self, salvage: &Salvage) {
        self.ranges.extend(salvage.missing.iter().cloned());
        self.records.extend(salvage.values.iter().cloned());
    }

    /// Adds a record that was removed.
    pub(super) fn add_record(&mut self, key: &Bytes) {
        self.records.insert(key.clone());
    }

    /// Whether it is known that the record under a key is gone.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        let contains = |range: &KeyRange| {
            range.low[..] <= *key && range.high.as_ref().is_none_or(|high| *key < high[..])
        };
        self.records.contains(key) || self.ranges.iter().any(contains)
    }

    /// Blocks of a file at which extents may have begun that are gone.
    pub(super) fn beginnings(&self, ino: u64) -> Vec<Range<u64>> {
        let (first, behind) = (extent_key(ino, 0), key_behind(ino, Tag::Extent));
        let block = |key: &[u8]| {
            let mut number = [0; 4];
            let rest = key.get(9..).unwrap_or_default();
            let len = rest.len().min(4);
            number[..len].copy_from_slice(&rest[..len]);
            u64::from(u32::from_be_bytes(number))
        };
        let mut found = Vec::new();
        for KeyRange { low, high } in &self.ranges {
            let start = if low[..] <= first[..] { 0 } else { block(low) };
            let end = match high {
                Some(high) if high[..] <= first[..] => continue,
                // A key that is longer than that of an extent comes behind it.
                Some(high) if high[..] < behind[..] => block(high) + u64::from(high.len() > 13),
                _ => MAX_FILE / BLOCK,
            };
            if low[..] < behind[..] && start < end {
                found.push(start..end);
            }
        }
        let prefix = key(ino, Tag::Extent, &[]);
        let records = self.records.range(Bytes::from(prefix)..Bytes::from(behind));
        found.extend(records.map(|key| block(key)..block(key) + 1));
        found
    }
}

/// The holes of a file with these extents, which are in order, before its block `end`.
pub(super) fn holes(extents: &[Extent], end: u64) -> Vec<Range<u64>> {
    let (mut holes, mut at) = (Vec::new(), 0);
    for extent in extents {
        holes.push(at..extent.at.min(end));
        at = at.max(extent.end());
    }
    holes.push(at..end);
    holes.retain(|hole| hole.start < hole.end);
    holes
}

/// The parts of holes that extents may have had which began at these blocks.
pub(super) fn suspects(holes: &[Range<u64>], beginnings: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for hole in holes {
        let inside = beginnings.iter().filter(|it| it.start < hole.end && it.end > hole.start);
        // An extent ends at the next one at the latest.
        if let Some(first) = inside.map(|it| it.start.max(hole.start)).min() {
            found.push(first..hole.end);
        }
    }
    found
}

/// Which parts of a file's holes are to be taken for lost, when so many blocks are missing.
pub(super) fn lost(
    holes: Vec<Range<u64>>,
    beginnings: &[Range<u64>],
    missing: u64,
) -> Vec<Range<u64>> {
    let some = suspects(&holes, beginnings);
    let all = if blocks_of(&some) >= missing { some } else { holes };
    all.into_iter().flat_map(split).collect()
}

/// Blocks in ranges.
pub(super) fn blocks_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// A range as extents can have it.
fn split(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = (range.start..range.end).step_by(LONGEST as usize);
    starts.map(move |start| start..(start + LONGEST).min(range.end))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges are meant.
mod tests {
    use super::*;

    fn extent(at: u64, blocks: u64) -> Extent {
        Extent { at, start: 1000 + at, blocks }
    }

    fn range(low: Vec<u8>, high: Option<Vec<u8>>) -> KeyRange {
        KeyRange { low: low.into(), high: high.map(Bytes::from) }
    }

    #[test]
    fn holes_are_lost_where_an_extent_may_have_been() {
        let extents = [extent(4, 2), extent(10, 5)];
        let all = holes(&extents, 20);
        assert_eq!(all, [0..4, 6..10, 15..20]);
        assert_eq!(holes(&extents, 12), [0..4, 6..10]);
        let is = |beginnings: &[Range<u64>], missing| lost(all.clone(), beginnings, missing);
        // The known missing keys account for all blocks.
        assert_eq!(is(&[7..9], 3), [7..10]);
        assert_eq!(is(&[2..7], 5), [2..4, 6..10]);
        // It does not, or nothing is known.
        assert_eq!(is(&[7..9], 4), all);
        assert_eq!(is(&[], 1), all);
    }

    #[test]
    fn missing_keys_are_blocks_of_a_file() {
        let mut missing = Missing::default();
        let before = [&extent_key(7, 30)[..], &[0]].concat();
        missing.ranges = vec![
            range(vec![], Some(extent_key(7, 3))),
            range(before, Some(extent_key(7, 40))),
            range(extent_key(7, 90), Some(key(9, Tag::Inode, &[]))),
        ];
        missing.add_record(&Bytes::from(extent_key(7, 50)));
        let end = MAX_FILE / BLOCK;
        assert_eq!(missing.beginnings(7), [0..3, 30..40, 90..end, 50..51]);
        assert_eq!(missing.beginnings(6), [0..end]);
        assert_eq!(missing.beginnings(8), [0..end]);
        assert_eq!(missing.beginnings(9), []);
        assert!(missing.has(&key(7, Tag::Inode, &[])) && !missing.has(&key(9, Tag::Inode, &[])));
    }

    #[test]
    fn a_range_of_all_blocks_takes_more_than_one_extent() {
        let all: Vec<_> = split(0..MAX_FILE / BLOCK).collect();
        assert_eq!(all, [0..LONGEST, LONGEST..LONGEST + 1]);
    }
}
