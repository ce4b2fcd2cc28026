//! Which versions of which pairs are in which blocks of the log, and which blocks are in memory.

use std::collections::BTreeSet;

use super::super::choice::{Place, cheapest};
use crate::recency::Queue;

/// Number of a block in the log, from 0 without end.
pub(super) type BlockNumber = u32;

/// The answer to a reader: which version to read, and from which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) version: u32,
    pub(super) block: BlockNumber,
    pub(super) place: Place,
}

/// Sizes of the log and its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) pairs: u32,
    pub(super) pairs_in_block: u32,
    /// Blocks of the log.
    pub(super) log_blocks: u32,
    pub(super) cache_blocks: usize,
    /// Number of versions whose block is known for each pair.
    pub(super) known: u32,
}

/// The versions of all pairs.
#[derive(Debug)]
pub(super) struct Pairs {
    layout: Layout,
    /// The block of each known version of a pair; version `v` is at `v % known`.
    blocks: Vec<BlockNumber>,
    newest: Vec<u32>,
    /// Pairs with their versions, by place in the log.
    log: Vec<(u32, u32)>,
    /// The oldest block, and the open one, with the number of pairs in it.
    head: BlockNumber,
    tail: BlockNumber,
    filled: u32,
    /// Full blocks whose write has not ended.
    unwritten: BTreeSet<BlockNumber>,
    cache: Queue,
}

/// Blocks of the log that cleaning keeps free.
pub(super) const RESERVE: u32 = 32;

impl Pairs {
    /// The log with version 0 of each pair, in order. Returns it with all of its full blocks written.
    pub(super) fn new(layout: Layout) -> Pairs {
        let log = vec![(0, 0); (layout.log_blocks * layout.pairs_in_block) as usize];
        let mut pairs = Pairs {
            layout,
            blocks: vec![0; layout.pairs as usize * layout.known as usize],
            newest: vec![0; layout.pairs as usize],
            log,
            head: 0,
            tail: 0,
            filled: 0,
            unwritten: BTreeSet::new(),
            cache: Queue::default(),
        };
        for pair in 0..layout.pairs {
            pairs.append(pair, 0).into_iter().for_each(|block| pairs.written(block));
        }
        pairs
    }

    pub(super) fn count(&self) -> u32 {
        self.layout.pairs
    }

    pub(super) fn newest(&self, pair: u32) -> u32 {
        self.newest[pair as usize]
    }

    /// The place of a block on the drive, in blocks.
    pub(super) fn place(&self, block: BlockNumber) -> u32 {
        block % self.layout.log_blocks
    }

    /// All full blocks of the log.
    pub(super) fn full_blocks(&self) -> std::ops::Range<BlockNumber> {
        self.head..self.tail
    }

    fn block_of(&self, pair: u32, version: u32) -> BlockNumber {
        self.blocks[(pair * self.layout.known + version % self.layout.known) as usize]
    }

    /// Appends a version of a pair to the open block; returns the block when that fills it. It has to be
    /// written, and its end told with [`Pairs::written`].
    fn append(&mut self, pair: u32, version: u32) -> Option<BlockNumber> {
        let at = self.place(self.tail) * self.layout.pairs_in_block + self.filled;
        self.log[at as usize] = (pair, version);
        self.blocks[(pair * self.layout.known + version % self.layout.known) as usize] = self.tail;
        self.filled += 1;
        if self.filled < self.layout.pairs_in_block {
            return None;
        }
        let full = self.tail;
        self.unwritten.insert(full);
        self.touch(full);
        self.tail += 1;
        self.filled = 0;
        Some(full)
    }

    /// Updates a pair. Returns a block to write, as [`Pairs::append`] does; an error when the log is full.
    pub(super) fn put(&mut self, pair: u32) -> Result<Option<BlockNumber>, LogFull> {
        if self.tail - self.head >= self.layout.log_blocks - 1 {
            return Err(LogFull);
        }
        self.newest[pair as usize] += 1;
        Ok(self.append(pair, self.newest(pair)))
    }

    pub(super) fn written(&mut self, block: BlockNumber) {
        self.unwritten.remove(&block);
    }

    /// Whether a block is in memory: cached, open, or under writeback.
    pub(super) fn in_memory(&self, block: BlockNumber) -> bool {
        block == self.tail
            || self.cache.contains(u64::from(block))
            || self.unwritten.contains(&block)
    }

    /// The oldest block, if the log needs its space.
    pub(super) fn victim(&self) -> Option<BlockNumber> {
        let used = self.tail - self.head;
        (used > self.layout.log_blocks.saturating_sub(RESERVE)).then_some(self.head)
    }

    /// Moves the newest versions in the oldest block to the tail and frees the block, with all old versions in it.
    /// Returns a block to write, as [`Pairs::append`] does.
    pub(super) fn clean(&mut self) -> Option<BlockNumber> {
        let first = (self.place(self.head) * self.layout.pairs_in_block) as usize;
        let mut full = None;
        for at in first..first + self.layout.pairs_in_block as usize {
            let (pair, version) = self.log[at];
            if version == self.newest(pair) {
                full = full.or(self.append(pair, version));
            }
        }
        self.cache.remove(u64::from(self.head));
        self.head += 1;
        full
    }

    pub(super) fn is_retained(&self, block: BlockNumber) -> bool {
        block >= self.head
    }

    /// The cheapest version of a pair that is at least `low`; `None` if there is none.
    pub(super) fn choose(&self, pair: u32, low: u32) -> Option<Choice> {
        let newest = self.newest(pair);
        let low = low.max((newest + 1).saturating_sub(self.layout.known));
        let place = |version: u32| {
            let block = self.block_of(pair, version);
            let place = if self.in_memory(block) { Place::Memory } else { Place::SolidState };
            self.is_retained(block).then_some(place)
        };
        let (version, place) = cheapest(low, newest, place)?;
        Some(Choice { version, block: self.block_of(pair, version), place })
    }

    /// Caches a block that was read or written, or notes its use. The open block is in memory anyway.
    pub(super) fn touch(&mut self, block: BlockNumber) {
        if block == self.tail && !self.unwritten.contains(&block) {
            return;
        }
        self.cache.push(u64::from(block));
        if self.cache.len() > self.layout.cache_blocks {
            self.cache.pop();
        }
    }
}

/// The log has no space for another block: cleaning did not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log is full")]
pub(super) struct LogFull;

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    use super::super::super::choice::oldest_allowed;
    use super::*;

    const LAYOUT: Layout =
        Layout { pairs: 200, pairs_in_block: 4, log_blocks: 130, cache_blocks: 9, known: 4 };

    /// Full blocks as lists of pairs, the open block at the end, and the cached ones, the one used last at the end.
    struct Naive {
        blocks: Vec<Vec<(u32, u32)>>,
        cleaned: usize,
        cache: Vec<usize>,
    }

    impl Naive {
        fn append(&mut self, pair: (u32, u32)) {
            self.blocks.last_mut().unwrap().push(pair);
            if self.blocks.last().unwrap().len() == LAYOUT.pairs_in_block as usize {
                self.touch(self.blocks.len() - 1);
                self.blocks.push(Vec::new());
            }
        }

        fn touch(&mut self, block: usize) {
            self.cache.retain(|other| *other != block);
            self.cache.push(block);
            if self.cache.len() > LAYOUT.cache_blocks {
                self.cache.remove(0);
            }
        }

        fn newest(&self, pair: u32) -> u32 {
            let all = self.blocks[self.cleaned..].iter().flatten();
            all.filter(|it| it.0 == pair).map(|it| it.1).max().unwrap()
        }

        /// The newest allowed version in memory, or else the newest; and whether it is in memory.
        fn choose(&self, pair: u32, staleness: u32) -> (u32, bool) {
            let newest = self.newest(pair);
            let open = self.blocks.len() - 1;
            let in_memory = |block: &usize| *block == open || self.cache.contains(block);
            let oldest = |is_there: &dyn Fn(&usize) -> bool| {
                let blocks = (self.cleaned..self.blocks.len()).filter(is_there);
                let versions = blocks.flat_map(|block| &self.blocks[block]);
                let allowed = versions.filter(|it| it.0 == pair && it.1 + staleness >= newest);
                allowed.map(|it| it.1).min()
            };
            match oldest(&in_memory) {
                Some(version) => (version, true),
                None => (oldest(&|_| true).unwrap(), false),
            }
        }

        fn clean(&mut self) {
            for (pair, version) in self.blocks[self.cleaned].clone() {
                if version == self.newest(pair) {
                    self.append((pair, version));
                }
            }
            self.cache.retain(|block| *block != self.cleaned);
            self.cleaned += 1;
        }
    }

    #[test]
    fn choices_and_hits_are_those_of_a_naive_cache_of_blocks() {
        for staleness in [0, 1, 3] {
            let mut rng = Rng::seed_from_u64(u64::from(staleness));
            let mut pairs = Pairs::new(LAYOUT);
            let mut naive = Naive { blocks: vec![Vec::new()], cleaned: 0, cache: Vec::new() };
            (0..LAYOUT.pairs).for_each(|pair| naive.append((pair, 0)));
            let (mut hits, mut old) = (0, 0);
            for _ in 0..6_000 {
                let pair = rng.random_range(0..LAYOUT.pairs);
                if rng.random_range(0..4) == 0 {
                    let version = naive.newest(pair) + 1;
                    pairs.put(pair).unwrap().into_iter().for_each(|it| pairs.written(it));
                    naive.append((pair, version));
                    while let Some(victim) = pairs.victim() {
                        assert_eq!(victim as usize, naive.cleaned);
                        pairs.clean().into_iter().for_each(|it| pairs.written(it));
                        naive.clean();
                    }
                    continue;
                }
                let newest = pairs.newest(pair);
                let choice = pairs.choose(pair, oldest_allowed(newest, staleness)).unwrap();
                let (version, hit) = naive.choose(pair, staleness);
                assert_eq!((choice.version, choice.place == Place::Memory), (version, hit));
                assert!(naive.blocks[choice.block as usize].contains(&(pair, version)));
                assert!(choice.version + staleness >= newest && choice.version <= newest);
                hits += u32::from(hit);
                old += u32::from(version < newest);
                pairs.touch(choice.block);
                if choice.block as usize != naive.blocks.len() - 1 {
                    naive.touch(choice.block as usize);
                }
            }
            assert!(naive.cleaned > 100 && hits > 500, "{} {hits}", naive.cleaned);
            assert_eq!(old > 100, staleness > 0, "{old}");
        }
    }

    #[test]
    fn a_log_without_cleaning_fills_up() {
        let mut pairs = Pairs::new(LAYOUT);
        let full = (0..LAYOUT.log_blocks * 4).find_map(|pair| pairs.put(pair % 200).err());
        assert_eq!(full, Some(LogFull));
    }
}
