//! The choice among versions: equation 5.1 of Yogurt (5.3.1), and the cheapest of what it asks for.

use smallvec::SmallVec;

use super::{Cost, Costs};
use crate::block::{BLOCK_SIZE, Located, Locations, Residence, Version};

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

/// The version in which blocks that are read at once cost least together, of at most `budget` versions; the oldest of several
/// that cost the same. `blocks` has the contents of each of them. `None` when no version has all.
///
/// A choice block by block would leave the last ones what the first ones' versions allow, which is often one content alone.
pub(super) fn cheapest_together(
    blocks: &[Locations],
    low: Version,
    budget: usize,
    costs: &dyn Costs,
) -> Option<Version> {
    // A content changes in these versions alone.
    let changes = blocks.iter().flatten().map(|content| content.oldest.max(low));
    let mut changes: SmallVec<[Version; 16]> = changes.collect();
    changes.sort_unstable();
    changes.dedup();
    changes.retain(|version| blocks.iter().all(|block| at(block, *version).is_some()));
    let last = Version((changes.len() as u64).checked_sub(1)?);
    let asked = queries(Version(0), last, budget.max(1));
    let asked = asked.filter_map(|nth| changes.get(nth.0 as usize).copied());
    asked.min_by_key(|version| together(blocks, *version, costs))
}

/// The content of a block in a version.
pub(super) fn at(contents: &[Located], version: Version) -> Option<&Located> {
    let nth = contents.partition_point(|content| content.oldest <= version).checked_sub(1)?;
    contents.get(nth).filter(|content| version <= content.newest)
}

/// What blocks cost in a version that are read at once: each request waits for those before it on its device. Together, and
/// the most of one.
fn together(blocks: &[Locations], version: Version, costs: &dyn Costs) -> (i64, i64) {
    let (mut planned, mut sum, mut most) = (Planned::default(), 0_i64, i64::MIN);
    let mut before = None;
    for content in blocks.iter().filter_map(|block| at(block, version)) {
        if !before.replace(content).is_some_and(|before| one_request(before, content)) {
            let mut residence = content.residence;
            planned.queue(&mut residence);
            planned.add(&residence);
            let Cost(cost) = costs.cost(&residence);
            (sum, most) = (sum.saturating_add(cost), most.max(cost));
        }
    }
    (sum, most)
}

/// Whether one request reads two blocks, the second of which follows the first.
pub(super) fn one_request(before: &Located, after: &Located) -> bool {
    match (before.residence, after.residence) {
        (Residence::Memory, Residence::Memory) => true,
        (
            Residence::Device { device, offset, .. },
            Residence::Device { device: next, offset: next_offset, .. },
        ) => device == next && next_offset == offset + BLOCK_SIZE as u64,
        _ => false,
    }
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
    /// A block whose contents change in these versions, each at a device and an offset that is its cost.
    fn changing(now: u64, changes: &[(u64, u16, u64)]) -> Locations {
        let ends = changes.iter().skip(1).map(|(since, ..)| since - 1).chain([now]);
        let located = changes.iter().zip(ends).map(|((since, device, offset), end)| Located {
            oldest: Version(*since),
            newest: Version(end),
            residence: Residence::Device {
                device: *device,
                offset: *offset,
                size: 1,
                is_rotational: false,
                queue: QueueDepth::default(),
            },
        });
        located.collect()
    }

    /// An offset's cost for each read that waits before, and for the read.
    #[derive(Debug)]
    struct Queued;

    impl Costs for Queued {
        fn cost(&self, residence: &Residence) -> Cost {
            match residence {
                Residence::Memory => Cost::MEMORY,
                Residence::Device { offset, queue, .. } => {
                    Cost(*offset as i64 * (1 + queue.reads as i64))
                }
            }
        }
    }

    #[test]
    fn blocks_that_are_read_at_once_are_chosen_together() {
        // The first block alone is cheapest in version 1, in which the second is dear.
        let blocks = [
            changing(9, &[(1, 0, 4), (3, 0, 5)]),
            changing(9, &[(1, 1, 90), (3, 1, 6), (6, 1, 7)]),
        ];
        let chosen = |blocks: &[Locations]| {
            cheapest_together(blocks, Version(0), BUDGET, &Queued).map(|version| version.0)
        };
        assert_eq!(chosen(&blocks[..1]), Some(1));
        assert_eq!(chosen(&blocks), Some(3));
        // Both of one device wait for each other: the first version is not better by what it saves.
        let one = changing(9, &[(1, 0, 5), (5, 0, 6)]);
        let other = changing(9, &[(1, 0, 5), (5, 1, 6)]);
        assert_eq!(chosen(&[one, other]), Some(5));
        // One request reads blocks that follow each other.
        let follows = changing(9, &[(1, 0, 5 + BLOCK_SIZE as u64), (5, 1, 6)]);
        assert_eq!(chosen(&[changing(9, &[(1, 0, 5), (5, 0, 6)]), follows]), Some(1));
        // No version has both.
        assert_eq!(chosen(&[changing(3, &[(1, 0, 1)]), changing(9, &[(4, 0, 1)])]), None);
    }

    proptest! {
        #[test]
        fn no_version_costs_less_together(
            blocks in proptest::collection::vec(
                proptest::collection::btree_map(0..30_u64, (0..3_u16, 1..9_u64), 1..6),
                1..6,
            ),
            low in 0..20_u64,
        ) {
            let blocks: Vec<Locations> = blocks
                .iter()
                .map(|changes| {
                    let changes: Vec<_> = changes.iter().map(|(since, (device, cost))| (*since, *device, *cost)).collect();
                    changing(30, &changes)
                })
                .collect();
            let all = |version: u64| blocks.iter().all(|block| at(block, Version(version)).is_some());
            let cost = |version: u64| together(&blocks, Version(version), &Queued);
            let least = (low..=30).filter(|version| all(*version)).min_by_key(|version| cost(*version));
            let chosen = cheapest_together(&blocks, Version(low), usize::MAX, &Queued);
            prop_assert_eq!(chosen.map(|version| cost(version.0)), least.map(cost));
            prop_assert_eq!(chosen.map(|version| version.0), least);
        }
    }
}
