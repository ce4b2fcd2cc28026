//! Which versions of which blocks are in the log on the disk and on the solid-state drive.

use super::super::choice::{Place, cheapest};

/// Number of a block in the log, from 0 without end. A place of the disk is used again when its half is released.
pub(super) type Position = u32;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) block: u32,
    pub(super) version: u32,
    /// One more than the position of the block's version before, if it was in the log.
    before: u32,
}

/// The answer to a reader: which version to read, and its position if it is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) version: u32,
    pub(super) position: Option<Position>,
}

/// The versions of all blocks. Each block has version 0 on the solid-state drive at first.
#[derive(Debug)]
pub(super) struct Copies {
    /// Blocks in one of the log's two halves.
    half: u32,
    slots: Vec<Slot>,
    /// The oldest position that is not released; a multiple of `half`.
    start: Position,
    /// Positions below are durable, and their versions visible.
    visible: Position,
    /// Positions below are in use.
    tail: Position,
    /// One more than the position of each block's newest version in the log.
    last: Vec<u32>,
    /// The version of each block on the solid-state drive.
    backing: Vec<u32>,
}

impl Copies {
    pub(super) fn new(blocks: u32, half: u32) -> Copies {
        let slots = vec![Slot::default(); 2 * half as usize];
        let (last, backing) = (vec![0; blocks as usize], vec![0; blocks as usize]);
        Copies { half, slots, start: 0, visible: 0, tail: 0, last, backing }
    }

    pub(super) fn blocks(&self) -> u32 {
        self.last.len() as u32
    }

    /// The place of a position on the disk, in blocks.
    pub(super) fn place(&self, position: Position) -> u32 {
        position % (2 * self.half)
    }

    pub(super) fn slot(&self, position: Position) -> Slot {
        self.slots[self.place(position) as usize]
    }

    /// Number of blocks that fit the log after the tail at adjacent places.
    pub(super) fn room(&self) -> u32 {
        let free = self.start + 2 * self.half - self.tail;
        free.min(2 * self.half - self.place(self.tail))
    }

    /// Adds a new version of a block at the tail. It is not visible yet.
    pub(super) fn append(&mut self, block: u32) -> Position {
        let before = self.last[block as usize];
        let version = match before.checked_sub(1).filter(|position| *position >= self.start) {
            Some(position) => self.slot(position).version + 1,
            None => self.backing[block as usize] + 1,
        };
        let position = self.tail;
        let place = self.place(position) as usize;
        self.slots[place] = Slot { block, version, before };
        self.last[block as usize] = position + 1;
        self.tail += 1;
        position
    }

    /// Makes the versions at positions below the tail visible: they are on the disk.
    pub(super) fn publish(&mut self) {
        self.visible = self.tail;
    }

    /// The visible versions of a block in the log with their positions, newest first.
    fn logged(&self, block: u32) -> impl Iterator<Item = (u32, Position)> + '_ {
        let retained = |before: u32| before.checked_sub(1).filter(|at| *at >= self.start);
        let first = retained(self.last[block as usize]);
        let all = std::iter::successors(first, move |at| retained(self.slot(*at).before));
        all.filter(|at| *at < self.visible).map(|at| (self.slot(at).version, at))
    }

    /// The newest visible version of a block.
    pub(super) fn newest(&self, block: u32) -> u32 {
        let logged = self.logged(block).next().map_or(0, |(version, _)| version);
        logged.max(self.backing[block as usize])
    }

    /// The cheapest version of a block that is at least `low`; `None` if there is none.
    pub(super) fn choose(&self, block: u32, low: u32) -> Option<Choice> {
        let newest = self.newest(block);
        let backing = self.backing[block as usize];
        let find = |version| self.logged(block).find(|(other, _)| *other == version);
        let place = |version: u32| match version == backing {
            true => Some(Place::SolidState),
            false => find(version).map(|_| Place::Disk),
        };
        let (version, place) = cheapest(low, newest, place)?;
        let position = find(version).filter(|_| place == Place::Disk).map(|(_, at)| at);
        Some(Choice { version, position })
    }

    pub(super) fn is_retained(&self, position: Position) -> bool {
        position >= self.start
    }

    /// The positions of the older half, once it is full and durable.
    pub(super) fn full_half(&self) -> Option<std::ops::Range<Position>> {
        let end = self.start + self.half;
        (self.visible >= end).then_some(self.start..end)
    }

    /// Whether a position in the older half has the newest version of its block in that half: migration
    /// writes these alone.
    pub(super) fn is_last_of_half(&self, position: Position) -> bool {
        let slot = self.slot(position);
        let end = self.start + self.half;
        let mut newer = self.last[slot.block as usize];
        while newer > end {
            newer = self.slot(newer - 1).before;
        }
        newer == position + 1
    }

    /// The solid-state drive has this version of the block.
    pub(super) fn migrated(&mut self, block: u32, version: u32) {
        self.backing[block as usize] = version;
    }

    /// Releases the older half: all of it was migrated.
    pub(super) fn release(&mut self) {
        self.start += self.half;
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    use super::super::super::choice::oldest_allowed;
    use super::*;

    /// Every copy of a block that exists, without any structure.
    #[derive(Default)]
    struct Naive {
        /// Appended blocks with their versions, in order; released ones are taken out of `retained`.
        log: Vec<(u32, u32)>,
        released: usize,
        visible: usize,
        backing: Vec<u32>,
    }

    impl Naive {
        fn disk(&self, block: u32) -> Vec<u32> {
            let retained = &self.log[self.released..self.visible];
            retained.iter().filter(|it| it.0 == block).map(|it| it.1).collect()
        }

        fn newest(&self, block: u32) -> u32 {
            self.log[..self.visible].iter().filter(|it| it.0 == block).count() as u32
        }

        /// The version and whether it is on the disk.
        fn choose(&self, block: u32, staleness: u32) -> (u32, bool) {
            let newest = self.newest(block);
            let backing = self.backing[block as usize];
            match newest - backing <= staleness {
                true => (backing, false),
                false => {
                    let disk = self.disk(block).into_iter();
                    (disk.filter(|version| version + staleness >= newest).min().unwrap(), true)
                }
            }
        }
    }

    fn check(copies: &Copies, naive: &Naive) {
        for block in 0..copies.blocks() {
            assert_eq!(copies.newest(block), naive.newest(block));
            for staleness in 0..4 {
                let low = oldest_allowed(copies.newest(block), staleness);
                let choice = copies.choose(block, low).unwrap();
                let wanted = naive.choose(block, staleness);
                assert_eq!((choice.version, choice.position.is_some()), wanted);
                assert!(choice.version + staleness >= naive.newest(block));
                if let Some(position) = choice.position {
                    assert!(copies.is_retained(position));
                    assert_eq!(naive.log[position as usize], (block, choice.version));
                }
            }
        }
    }

    #[test]
    fn choices_are_those_of_a_model_that_looks_at_every_copy() {
        const BLOCKS: u32 = 12;
        const HALF: u32 = 10;
        let mut rng = Rng::seed_from_u64(5);
        let mut copies = Copies::new(BLOCKS, HALF);
        let mut naive = Naive { backing: vec![0; BLOCKS as usize], ..Naive::default() };
        let mut migrations = 0;
        for _ in 0..2_000 {
            for _ in 0..rng.random_range(0..=copies.room().min(4)) {
                let block = rng.random_range(0..BLOCKS);
                let earlier = naive.log.iter().filter(|it| it.0 == block).count() as u32;
                let position = copies.append(block);
                assert_eq!(copies.slot(position).version, earlier + 1);
                naive.log.push((block, earlier + 1));
                check(&copies, &naive);
            }
            copies.publish();
            naive.visible = naive.log.len();
            check(&copies, &naive);
            let Some(half) = copies.full_half().filter(|_| rng.random_range(0..3) == 0) else {
                continue;
            };
            for position in half.clone() {
                let (block, version) = naive.log[position as usize];
                let later = &naive.log[position as usize + 1..half.end as usize];
                let last = later.iter().all(|it| it.0 != block);
                assert_eq!(copies.is_last_of_half(position), last);
                if last {
                    copies.migrated(block, version);
                    naive.backing[block as usize] = version;
                    check(&copies, &naive);
                }
            }
            copies.release();
            naive.released = half.end as usize;
            migrations += 1;
            check(&copies, &naive);
        }
        assert!(migrations > 100, "{migrations}");
    }
}
