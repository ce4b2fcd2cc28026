//! The bytes in which two contents of a block differ.

use std::ops::Range;

use super::ByteRanges;

/// Bytes that are compared at once before words are looked at: most blocks change in a few places.
const CHUNK: usize = 64;
const WORD: usize = size_of::<u64>();

/// The ranges of `within` in which `old` and `new` differ, merged where at most `gap` equal bytes lie between them.
/// No old content is zeros.
///
/// # Panics
/// When a content is shorter than the ranges reach.
pub(crate) fn difference(
    within: &ByteRanges,
    old: Option<&[u8]>,
    new: &[u8],
    gap: usize,
) -> ByteRanges {
    let mut merging = Merging { gap, open: 0..0, ranges: ByteRanges::none() };
    for range in within.iter() {
        let (start, new) = (range.start, &new[range.clone()]);
        match old {
            Some(old) => compare(start, new, &old[range], &mut merging),
            None => compare_with_zeros(start, new, &mut merging),
        }
    }
    merging.finish()
}

fn compare(start: usize, new: &[u8], old: &[u8], to: &mut Merging) {
    for (nth, (new, old)) in new.chunks(CHUNK).zip(old.chunks(CHUNK)).enumerate() {
        if new != old {
            let words = new.chunks(WORD).zip(old.chunks(WORD));
            to.add_words(start + nth * CHUNK, words.map(|(new, old)| word(new) ^ word(old)));
        }
    }
}

fn compare_with_zeros(start: usize, new: &[u8], to: &mut Merging) {
    for (nth, new) in new.chunks(CHUNK).enumerate() {
        if new != &[0; CHUNK][..new.len()] {
            to.add_words(start + nth * CHUNK, new.chunks(WORD).map(word));
        }
    }
}

/// Up to eight bytes, the first one lowest; missing ones are zero.
fn word(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(bytes) => u64::from_le_bytes(bytes),
        Err(_) => bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)),
    }
}

/// Sets the highest bit of each byte that is not zero, and clears all other bits.
fn nonzero_bytes(word: u64) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([0x7f; WORD]);
    (((word & LOW) + LOW) | word) & !LOW
}

/// Collects ascending ranges and merges those with short gaps between them.
struct Merging {
    gap: usize,
    /// The last range, which the next one may extend; empty at first.
    open: Range<usize>,
    ranges: ByteRanges,
}

impl Merging {
    /// Adds the bytes that are not zero in these words, the first of which lies at `start`.
    fn add_words(&mut self, start: usize, words: impl Iterator<Item = u64>) {
        for (nth, word) in words.enumerate() {
            let at = start + nth * WORD;
            match nonzero_bytes(word) {
                0 => {}
                mask if mask.count_ones() as usize == WORD => self.add(at..at + WORD),
                mut mask => {
                    while mask != 0 {
                        let byte = at + mask.trailing_zeros() as usize / 8;
                        self.add(byte..byte + 1);
                        mask &= mask - 1;
                    }
                }
            }
        }
    }

    fn add(&mut self, range: Range<usize>) {
        if !self.open.is_empty() && range.start <= self.open.end + self.gap {
            self.open.end = range.end;
        } else {
            self.ranges.add(std::mem::replace(&mut self.open, range));
        }
    }

    fn finish(mut self) -> ByteRanges {
        self.ranges.add(self.open);
        self.ranges
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BLOCK_SIZE;
    use super::*;

    /// The same, byte by byte.
    fn by_bytes(within: &ByteRanges, old: Option<&[u8]>, new: &[u8], gap: usize) -> ByteRanges {
        let differs = |at: &usize| old.map_or(0, |old| old[*at]) != new[*at];
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for at in within.iter().flatten().filter(differs) {
            match ranges.last_mut() {
                Some(last) if at <= last.end + gap => last.end = at + 1,
                _ => ranges.push(at..at + 1),
            }
        }
        let mut all = ByteRanges::none();
        ranges.into_iter().for_each(|range| all.add(range));
        all
    }

    fn ranges(len: usize, count: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
        proptest::collection::vec((0..BLOCK_SIZE, 1..len), 0..count)
    }

    proptest! {
        #[test]
        fn words_give_what_bytes_give(
            changes in ranges(200, 12),
            scattered in ranges(3, 60),
            parts in ranges(3000, 6),
            seed in any::<u8>(),
            is_new in any::<bool>(),
            gap in 0..9usize,
        ) {
            let old = vec![if is_new { 0 } else { seed }; BLOCK_SIZE];
            let mut new = old.clone();
            for (start, len) in changes.into_iter().chain(scattered) {
                let end = (start + len).min(BLOCK_SIZE);
                // Some bytes of a change stay as they are.
                for (nth, byte) in new[start..end].iter_mut().enumerate() {
                    *byte ^= (nth as u8).wrapping_mul(seed | 1) % 11;
                }
            }
            let mut within = ByteRanges::none();
            parts.iter().for_each(|(start, len)| within.add(*start..start + len));
            let old = (!is_new).then_some(&old[..]);
            prop_assert_eq!(difference(&within, old, &new, gap), by_bytes(&within, old, &new, gap));
            let whole = ByteRanges::whole();
            prop_assert_eq!(difference(&whole, old, &new, gap), by_bytes(&whole, old, &new, gap));
        }
    }

    #[test]
    fn each_byte_of_a_word_counts() {
        for at in 0..WORD {
            for value in [1u64, 0x7f, 0x80, 0xff] {
                assert_eq!(nonzero_bytes(value << (8 * at)), 0x80 << (8 * at));
            }
        }
    }
}
