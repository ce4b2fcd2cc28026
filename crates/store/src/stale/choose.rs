//! The choice among versions: equation 5.1 of Yogurt (5.3.1), and the cheapest of what it asks for.

use smallvec::SmallVec;

use super::{Cost, Costs};
use crate::block::{Located, Residence, Version};

/// How many versions of a block a reader asks for at most, if it does not say.
pub const BUDGET: usize = 64;

/// The versions whose cost a reader asks for, with a budget of `budget` queries: evenly spread between `low` and `up`,
/// ascending, each once, with both ends (equation 5.1). With a budget of one it is `up`.
pub fn queries(low: Version, up: Version, budget: usize) -> impl Iterator<Item = Version> {
    let span = up.0.saturating_sub(low.0);
    let count = (budget as u64).min(span.saturating_add(1));
    (0..count).map(move |nth| match count {
        1 => up,
        _ => Version(low.0 + (u128::from(span) * u128::from(nth) / u128::from(count - 1)) as u64),
    })
}

/// The cheapest of some contents, ascending by version, of which at most `budget` are looked at; the oldest of several
/// that cost the same, which keeps the range of versions large.
pub fn cheapest<'a>(
    contents: &'a [Located],
    budget: usize,
    costs: &dyn Costs,
) -> Option<(&'a Located, Cost)> {
    let last = Version((contents.len() as u64).checked_sub(1)?);
    let asked = queries(Version(0), last, budget.max(1));
    let asked: SmallVec<[&Located; 8]> =
        asked.filter_map(|nth| contents.get(nth.0 as usize)).collect();
    let costs = costs.costs(&asked);
    asked.into_iter().zip(costs).min_by_key(|(_, cost)| *cost)
}

/// Reads that were chosen and have not begun, by device.
#[derive(Clone, Debug, Default)]
pub(super) struct Planned(SmallVec<[(u16, usize); 4]>);

impl Planned {
    /// Adds a read.
    pub(super) fn add(&mut self, residence: &Residence) {
        let Residence::Device { device, .. } = residence else { return };
        match self.0.iter_mut().find(|(known, _)| known == device) {
            Some((_, reads)) => *reads += 1,
            None => self.0.push((*device, 1)),
        }
    }

    /// Counts the planned reads as queued.
    pub(super) fn queue(&self, residence: &mut Residence) {
        let Residence::Device { device, queue, .. } = residence else { return };
        let planned = self.0.iter().find(|(known, _)| known == device);
        queue.reads += planned.map_or(0, |(_, reads)| *reads);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::QueueDepth;

    /// The costs of contents by their offsets.
    #[derive(Debug)]
    struct Listed(Vec<i64>);

    impl Costs for Listed {
        fn cost(&self, residence: &Residence) -> Cost {
            match residence {
                Residence::Memory => Cost::MEMORY,
                Residence::Device { offset, .. } => Cost(self.0[*offset as usize]),
            }
        }
    }

    fn asked(low: u64, up: u64, budget: usize) -> Vec<u64> {
        queries(Version(low), Version(up), budget).map(|version| version.0).collect()
    }

    #[test]
    fn queries_are_spread_evenly() {
        // The paper's example.
        assert_eq!(asked(5, 9, 3), [5, 7, 9]);
        assert_eq!(asked(5, 9, 64), [5, 6, 7, 8, 9]);
        assert_eq!(asked(5, 9, 1), [9]);
        assert_eq!(asked(5, 5, 4), [5]);
        assert_eq!(asked(0, 10, 4), [0, 3, 6, 10]);
        assert!(asked(0, 10, 0).is_empty());
        assert_eq!(asked(0, u64::MAX, 3), [0, u64::MAX / 2, u64::MAX]);
    }

    proptest! {
        #[test]
        fn queries_are_within_and_ascend(low in 0..1000_u64, span in 0..1000_u64, budget in 1..99_usize) {
            let asked = asked(low, low + span, budget);
            prop_assert!(asked.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(asked.len() as u64, (budget as u64).min(span + 1));
            prop_assert_eq!(asked.last(), Some(&(low + span)));
            prop_assert!(budget == 1 || asked[0] == low);
        }

        #[test]
        fn the_cheapest_is_the_oldest_of_the_least_cost(
            costs in proptest::collection::vec(0..4_i64, 0..12),
            budget in 1..20_usize,
        ) {
            let contents: Vec<Located> = (0..costs.len() as u64)
                .map(|nth| Located {
                    oldest: Version(nth),
                    newest: Version(nth),
                    residence: Residence::Device {
                        device: 0,
                        offset: nth,
                        size: 1,
                        is_rotational: false,
                        queue: QueueDepth::default(),
                    },
                })
                .collect();
            let found = cheapest(&contents, budget, &Listed(costs.clone()));
            let found = found.map(|(content, _)| content.oldest.0 as usize);
            let last = costs.len().saturating_sub(1) as u64;
            let looked: Vec<usize> = match costs.is_empty() {
                true => Vec::new(),
                false => asked(0, last, budget).into_iter().map(|nth| nth as usize).collect(),
            };
            let least = looked.iter().map(|nth| costs[*nth]).min();
            prop_assert_eq!(found, looked.into_iter().find(|nth| Some(costs[*nth]) == least));
        }
    }
}
