//! What was written of a file since the server started.

use std::collections::BTreeMap;
use std::ops::Range;

use thalweg_fs::ranges::Ranges;

/// The number for a call that no server before this one has carried out.
pub(super) const AFTER_ALL: u64 = u64::MAX;

/// Ranges that were written since the server started, with the number of the first server that the call of each was sent to.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(BTreeMap<u64, Ranges>);

impl Written {
    pub(super) fn add(&mut self, server: u64, range: Range<u64>) {
        self.0.entry(server).or_default().add(range);
    }

    /// The parts of a range that no call has written which was first sent to this server or to a later one.
    pub(super) fn gaps_since(&self, server: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = vec![range];
        for ranges in self.0.range(server..).map(|(_, ranges)| ranges) {
            gaps = gaps.into_iter().flat_map(|gap| ranges.gaps(gap)).collect();
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_call_does_not_count_for_a_later_one() {
        let mut written = Written::default();
        written.add(1, 0..8);
        written.add(3, 2..4);
        written.add(AFTER_ALL, 6..7);
        let gaps = |server| written.gaps_since(server, 0..10);
        let ends =
            |server| gaps(server).into_iter().map(|it| (it.start, it.end)).collect::<Vec<_>>();
        assert_eq!(ends(1), [(8, 10)]);
        assert_eq!((ends(2), ends(3)), (vec![(0, 2), (4, 6), (7, 10)], ends(2)));
        assert_eq!(ends(4), [(0, 6), (7, 10)]);
    }
}
