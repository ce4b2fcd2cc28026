//! Sets of bytes of a file.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes: ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The end of each range, by its start.
    ends: BTreeMap<u64, u64>,
    len: u64,
}

impl Ranges {
    /// How many bytes are in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The ranges in their order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range; how many of its bytes were not there.
    pub fn add(&mut self, new: Range<u64>) -> u64 {
        if new.is_empty() {
            return 0;
        }
        let (mut all, before) = (new, self.len);
        while let Some((start, end)) = self.ends.range(..=all.end).next_back()
            && *end >= all.start
        {
            let (start, end) = (*start, *end);
            all = all.start.min(start)..all.end.max(end);
            self.ends.remove(&start);
            self.len -= end - start;
        }
        self.len += all.end - all.start;
        self.ends.insert(all.start, all.end);
        assert!(self.len >= before, "a set lost bytes to which a range was added");
        self.len - before
    }

    /// The parts of a range that are not in it.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut from) = (Vec::new(), range.start);
        let before = self.ends.range(..range.start).next_back();
        for (start, end) in
            before.into_iter().chain(self.ends.range(range.start..range.end.max(range.start)))
        {
            if *end > range.start {
                gaps.push(from..*start);
                from = *end;
            }
        }
        gaps.push(from..range.end);
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use thalweg_env::Env;

    #[test]
    fn what_was_added_leaves_gaps() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.gaps(3..9), [3..9]);
        for (range, new) in [(5..5, 0), (20..30, 10), (10..12, 2), (12..14, 2), (28..40, 10)] {
            assert_eq!(ranges.add(range), new);
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [10..14, 20..40]);
        assert_eq!(ranges.gaps(0..50), [0..10, 14..20, 40..50]);
        assert_eq!(ranges.gaps(11..20), [14..20]);
        assert_eq!(ranges.gaps(20..40), []);
        assert_eq!(ranges.gaps(12..13), []);
        ranges.add(14..u64::MAX);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [10..u64::MAX]);
    }

    #[test]
    fn ranges_are_as_sets_of_bytes() {
        let mut rng = Env::simulated(1).rng();
        for _ in 0..300 {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 64]);
            for _ in 0..12 {
                let start = rng.random_range(0..60);
                let range = start..(start + rng.random_range(0..10)).min(64);
                let gaps = ranges.gaps(range.start as u64..range.end as u64);
                let missing: Vec<u64> = gaps.into_iter().flatten().collect();
                let expected = range.clone().filter(|at| !bytes[*at]).map(|at| at as u64);
                assert_eq!(missing, expected.collect::<Vec<_>>());
                let new = ranges.add(range.start as u64..range.end as u64);
                assert_eq!(new, missing.len() as u64);
                bytes[range].fill(true);
                assert_eq!(ranges.len(), bytes.iter().filter(|is| **is).count() as u64);
            }
        }
    }
}
