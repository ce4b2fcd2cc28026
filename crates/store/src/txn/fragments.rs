//! The fragments of a block: the unit in which conflicts are found.

use std::ops::Range;

use crate::block::{BLOCK_SIZE, ByteRanges};

/// Bytes in a fragment (4.2).
pub const FRAGMENT: usize = 16;
const COUNT: usize = BLOCK_SIZE / FRAGMENT;
const WORDS: usize = COUNT / 64;

/// A set of fragments of one block: a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Fragments([u64; WORDS]);

impl Fragments {
    /// No fragment.
    pub(super) const NONE: Fragments = Fragments([0; WORDS]);
    /// Every fragment.
    pub(super) const ALL: Fragments = Fragments([u64::MAX; WORDS]);

    /// Adds every fragment that contains a byte of `range`, clipped to the block.
    pub(super) fn add(&mut self, range: Range<usize>) {
        let end = range.end.min(BLOCK_SIZE);
        if range.start >= end {
            return;
        }
        let (first, last) = (range.start / FRAGMENT, (end - 1) / FRAGMENT);
        for word in first / 64..=last / 64 {
            let low = first.max(word * 64) - word * 64;
            let high = last.min(word * 64 + 63) - word * 64;
            self.0[word] |= (u64::MAX >> (63 - high)) & (u64::MAX << low);
        }
    }

    /// Whether the two sets have a fragment in common.
    pub(super) fn overlaps(&self, other: &Fragments) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        *self == Fragments::NONE
    }
}

impl From<&ByteRanges> for Fragments {
    fn from(ranges: &ByteRanges) -> Fragments {
        let mut fragments = Fragments::NONE;
        ranges.iter().for_each(|range| fragments.add(range));
        fragments
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_fragment_is_there_when_one_of_its_bytes_is(
            start in 0..BLOCK_SIZE + 9, len in 0..BLOCK_SIZE, probe in 0..COUNT,
        ) {
            let mut fragments = Fragments::NONE;
            fragments.add(start..start + len);
            let mut one = Fragments::NONE;
            one.add(probe * FRAGMENT..probe * FRAGMENT + 1);
            let (first, end) = (probe * FRAGMENT, (probe + 1) * FRAGMENT);
            let shares = start < end && first < (start + len).min(BLOCK_SIZE) && len > 0;
            prop_assert_eq!(fragments.overlaps(&one), shares);
        }
    }

    #[test]
    fn a_whole_block_is_every_fragment() {
        assert_eq!(Fragments::from(&ByteRanges::whole()), Fragments::ALL);
        assert!(Fragments::from(&ByteRanges::none()).is_empty());
    }
}
