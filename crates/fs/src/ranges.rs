//! Sets of numbers as ranges: bytes of a file, positions in a journal.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Numbers, as ranges that do not touch each other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds these numbers; how many of them were not there.
    pub fn add(&mut self, Range { mut start, mut end }: Range<u64>) -> u64 {
        if start >= end {
            return 0;
        }
        let mut there = 0;
        while let Some((at, until)) = self.0.range(..=end).next_back().map(|(at, to)| (*at, *to))
            && until >= start
        {
            (start, end) = (start.min(at), end.max(until));
            self.0.remove(&at);
            there += until - at;
        }
        self.0.insert(start, end);
        assert!(end - start >= there, "a set lost numbers to which a range was added");
        end - start - there
    }

    /// The parts of a range that are not in it.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut from) = (Vec::new(), range.start);
        let before = self.0.range(..range.start).next_back();
        let within = self.0.range(range.start..range.end.max(range.start));
        for (start, end) in before.into_iter().chain(within) {
            if *end > range.start {
                gaps.push(from..*start);
                from = *end;
            }
        }
        gaps.push(from..range.end);
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }

    /// Removes the numbers from this one on.
    pub fn cut(&mut self, at: u64) {
        self.0.retain(|start, _| *start < at);
        self.0.values_mut().for_each(|end| *end = (*end).min(at));
    }

    /// Whether it has one of these numbers.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..range.end).next_back();
        range.start < range.end && before.is_some_and(|(_, end)| *end > range.start)
    }

    /// Whether it has this number.
    pub fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, end)| *end > number)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// In their order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// How many numbers are `from` this one on.
    pub fn count_from(&self, from: u64) -> u64 {
        self.iter().map(|it| it.end.saturating_sub(it.start.max(from))).sum()
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(all: I) -> Ranges {
        let mut ranges = Ranges::default();
        for range in all {
            ranges.add(range);
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn some() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0..40u64, 0..8u64), 0..12)
    }

    proptest! {
        #[test]
        fn ranges_are_a_set_of_numbers(added in some(), cut in 0..60u64, asked in some()) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (start, len) in added {
                let before = set.len();
                let new = ranges.add(start..start + len);
                set.extend(start..start + len);
                prop_assert_eq!(new, (set.len() - before) as u64);
            }
            ranges.cut(cut);
            set.retain(|it| *it < cut);
            let all: Vec<u64> = ranges.iter().flatten().collect();
            prop_assert_eq!(&all, &set.iter().copied().collect::<Vec<_>>());
            let ends: Vec<_> = ranges.iter().collect();
            prop_assert!(ends.windows(2).all(|two| two[0].end < two[1].start));
            for (start, len) in asked {
                let range = start..start + len;
                prop_assert_eq!(ranges.overlaps(&range), range.clone().any(|it| set.contains(&it)));
                prop_assert_eq!(ranges.contains(start), set.contains(&start));
                let missing: Vec<u64> = ranges.gaps(range.clone()).into_iter().flatten().collect();
                let expected = range.clone().filter(|it| !set.contains(it));
                prop_assert_eq!(missing, expected.collect::<Vec<_>>());
                prop_assert_eq!(ranges.count_from(start), set.range(start..).count() as u64);
            }
        }
    }
}
