//! The units of a page: how many its slots and records take, and which are free.

use std::ops::Range;

use super::format::{BODY, UNIT, UNITS};

/// Units of the header and the slots of `count` records.
pub(super) fn head_units(count: usize) -> usize {
    (BODY + 2 * count).div_ceil(UNIT)
}

/// Whether a page has room for `count` records of `units` units in all.
pub(super) fn fits(count: usize, units: usize) -> bool {
    head_units(count) + units <= UNITS
}

/// The units of a page in use: a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used([u128; 2]);

const _: () = assert!(UNITS == 256);

impl Used {
    /// The bits of some units.
    fn mask(units: &Range<usize>) -> [u128; 2] {
        let below = |end: usize| match end {
            0 => 0,
            1..128 => (1 << end) - 1,
            _ => u128::MAX,
        };
        let part = |base: usize| {
            let at = |unit: usize| below(unit.saturating_sub(base));
            at(units.end) & !at(units.start)
        };
        [part(0), part(128)]
    }

    /// Marks units as used; false when one of them was used already.
    pub(super) fn take(&mut self, units: Range<usize>) -> bool {
        let [low, high] = Used::mask(&units);
        let free = self.0[0] & low == 0 && self.0[1] & high == 0;
        self.0[0] |= low;
        self.0[1] |= high;
        free
    }

    /// The highest run of `len` free units.
    pub(super) fn find(&self, len: usize) -> Option<usize> {
        let mut end = UNITS;
        loop {
            // The free units right below `end`, and below those the used ones.
            let free = self.above(end, false);
            if end - free >= len {
                return Some(end - len);
            }
            end = self.above(free, true);
            if end == 0 {
                return None;
            }
        }
    }

    /// The lowest unit from which on all units below `end` are used, or free.
    fn above(&self, end: usize, used: bool) -> usize {
        let mut at = end;
        while at > 0 {
            let word = (at - 1) / 128;
            let bits = if used { !self.0[word] } else { self.0[word] };
            let other = bits & Used::mask(&(0..at))[word];
            if other != 0 {
                return word * 128 + 128 - other.leading_zeros() as usize;
            }
            at = word * 128;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_highest_free_run_is_found(
            taken in proptest::collection::vec((0..UNITS, 0..40usize), 0..20), len in 1..60usize,
        ) {
            let (mut used, mut model) = (Used::default(), [false; UNITS]);
            for (start, len) in taken {
                let end = (start + len).min(UNITS);
                let is_free = model[start..end].iter().all(|used| !used);
                prop_assert_eq!(used.take(start..end), is_free);
                model[start..end].fill(true);
            }
            let is_free = |start: &usize| model[*start..*start + len].iter().all(|used| !used);
            prop_assert_eq!(used.find(len), (0..=UNITS - len).rev().find(is_free));
        }
    }
}
