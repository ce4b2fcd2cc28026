//! Byte ranges within a block.

use std::ops::Range;

use smallvec::SmallVec;

use super::BLOCK_SIZE;

/// Byte ranges within one block: ascending, neither touching nor empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteRanges(SmallVec<[Range<u16>; 4]>);

impl ByteRanges {
    /// No bytes.
    pub fn none() -> ByteRanges {
        ByteRanges(SmallVec::new())
    }

    /// Every byte of the block.
    pub fn whole() -> ByteRanges {
        ByteRanges::from(0..BLOCK_SIZE)
    }

    /// Adds the bytes of `range`, clipped to the block.
    pub fn add(&mut self, range: Range<usize>) {
        let end = range.end.min(BLOCK_SIZE);
        if range.start >= end {
            return;
        }
        let (mut start, mut end) = (range.start as u16, end as u16);
        let first = self.0.partition_point(|there| there.end < start);
        let mut last = first;
        while let Some(there) = self.0.get(last).filter(|there| there.start <= end) {
            (start, end) = (start.min(there.start), end.max(there.end));
            last += 1;
        }
        self.0.drain(first..last);
        self.0.insert(first, start..end);
    }

    /// Adds the bytes of `others`.
    pub fn add_all(&mut self, others: &ByteRanges) {
        others.iter().for_each(|range| self.add(range));
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|range| usize::from(range.start)..usize::from(range.end))
    }

    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.iter().map(|range| range.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every byte of the block is included.
    pub fn is_whole(&self) -> bool {
        self.bytes() == BLOCK_SIZE
    }

    /// Copies these bytes from one block to another.
    ///
    /// # Panics
    /// When `from` or `to` is shorter than a block.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        self.iter().for_each(|range| to[range.clone()].copy_from_slice(&from[range]));
    }
}

impl From<Range<usize>> for ByteRanges {
    fn from(range: Range<usize>) -> ByteRanges {
        let mut ranges = ByteRanges::none();
        ranges.add(range);
        ranges
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_hold_the_bytes_that_were_added(
            added in proptest::collection::vec((0..BLOCK_SIZE + 9, 0..300usize), 0..30),
        ) {
            let mut ranges = ByteRanges::none();
            let mut model = vec![false; BLOCK_SIZE];
            for (start, len) in added {
                ranges.add(start..start + len);
                model.iter_mut().skip(start).take(len).for_each(|byte| *byte = true);
            }
            let mut found = vec![false; BLOCK_SIZE];
            ranges.iter().for_each(|range| found[range].fill(true));
            prop_assert_eq!(&found, &model);
            prop_assert_eq!(ranges.bytes(), model.iter().filter(|byte| **byte).count());
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn a_whole_block_is_known_as_such() {
        let mut ranges = ByteRanges::from(0..2048);
        assert!(!ranges.is_whole());
        ranges.add(2048..4096);
        assert!(ranges.is_whole());
        assert_eq!(ranges, ByteRanges::whole());
    }
}
