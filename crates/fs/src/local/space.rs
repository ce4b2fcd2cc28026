//! Which data blocks to allocate next: hints in memory, all of which may be wrong.
//!
//! The bits that a transaction reads say which blocks are free. The hints make that search short: the
//! number of free blocks under each bitmap page, where each directory's files lie, and the windows into
//! which single files grow, so that files that grow at the same time stay contiguous.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;
use thalweg_env::HashMap;

/// Places where directories may begin.
const LANES: usize = 16;
/// Windows at a time; the oldest goes.
const MAX_WINDOWS: usize = 512;

/// The hints.
#[derive(Debug)]
pub(super) struct Space {
    hints: Mutex<Hints>,
}

/// Blocks under a page of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Covered {
    /// The free ones among them.
    pub(super) free: u64,
    /// All of them.
    pub(super) blocks: u64,
}

#[derive(Debug)]
struct Hints {
    /// The number behind the last block's.
    end: u64,
    pages: Vec<Covered>,
    /// Blocks that are free.
    total: u64,
    /// Where each lane continues.
    next: [u64; LANES],
    windows: Windows,
}

#[derive(Debug, Default)]
struct Windows {
    /// The first block behind a window, and its file.
    by_start: BTreeMap<u64, (u64, u64)>,
    /// Where a file's window is, and its number.
    by_file: HashMap<u64, (u64, u64)>,
    /// The file of each window, the oldest first.
    by_number: BTreeMap<u64, u64>,
    made: u64,
}

impl Windows {
    fn remove(&mut self, ino: u64) {
        if let Some((start, number)) = self.by_file.remove(&ino) {
            self.by_start.remove(&start);
            self.by_number.remove(&number);
        }
    }

    fn add(&mut self, ino: u64, range: Range<u64>) {
        self.remove(ino);
        if let Some((_, whose)) = self.by_start.get(&range.start) {
            self.remove(*whose);
        }
        if self.by_file.len() >= MAX_WINDOWS {
            let oldest = self.by_number.values().next().copied();
            oldest.into_iter().for_each(|oldest| self.remove(oldest));
        }
        self.made += 1;
        self.by_start.insert(range.start, (range.end, ino));
        self.by_file.insert(ino, (range.start, self.made));
        self.by_number.insert(self.made, ino);
        let files = self.by_file.len();
        let are_whole = files == self.by_start.len() && files == self.by_number.len();
        assert!(are_whole, "a window is not found by its file, its start and its number");
    }

    /// The first part of a range that lies in no other file's window.
    fn outside(&self, ino: u64, mut range: Range<u64>) -> Range<u64> {
        let others = |it: &(&u64, &(u64, u64))| it.1.1 != ino;
        let before = self.by_start.range(..=range.start).next_back().filter(others);
        range.start = before.map_or(range.start, |(_, it)| it.0.max(range.start));
        for (start, (end, _)) in self.by_start.range(range.start..).filter(others) {
            if *start > range.start {
                range.end = range.end.min(*start);
                break;
            }
            range.start = *end;
        }
        range.start.min(range.end)..range.end
    }
}

impl Space {
    /// Hints for blocks with numbers below `end`, with the free blocks under each bitmap page.
    pub(super) fn new(end: u64, pages: Vec<Covered>) -> Space {
        assert!(
            pages.iter().all(|page| page.free <= page.blocks),
            "more blocks are free than are there"
        );
        let total = pages.iter().map(|page| page.free).sum();
        let next = std::array::from_fn(|lane| end / LANES as u64 * lane as u64);
        Space { hints: Mutex::new(Hints { end, pages, total, next, windows: Windows::default() }) }
    }

    /// There are more blocks now, under further pages.
    pub(super) fn grow(&self, end: u64, further: Vec<Covered>) {
        let mut hints = self.hints.lock();
        hints.total += further.iter().map(|page| page.free).sum::<u64>();
        hints.pages.extend(further);
        hints.end = end;
    }

    /// Pages of bits that are known.
    pub(super) fn pages(&self) -> u64 {
        self.hints.lock().pages.len() as u64
    }

    /// Blocks that are free.
    pub(super) fn free(&self) -> u64 {
        self.hints.lock().total
    }

    /// Whether a page may have free blocks.
    pub(super) fn has_free(&self, page: u64) -> bool {
        self.hints.lock().pages.get(page as usize).is_none_or(|page| page.free > 0)
    }

    /// So many are free under a page.
    pub(super) fn set(&self, page: u64, free: u64) {
        let mut hints = self.hints.lock();
        if let Some(there) = hints.pages.get_mut(page as usize) {
            let before = std::mem::replace(&mut there.free, free);
            assert!(before <= hints.total, "a page has more free blocks than all together");
            hints.total = hints.total - before + free;
        }
    }

    /// So many became free under a page, or were taken.
    pub(super) fn adjust(&self, page: u64, by: i64) {
        let mut hints = self.hints.lock();
        let Some(there) = hints.pages.get_mut(page as usize) else { return };
        let free = there.free.saturating_add_signed(by).min(there.blocks);
        let before = std::mem::replace(&mut there.free, free);
        assert!(before <= hints.total, "a page has more free blocks than all together");
        hints.total = hints.total - before + free;
    }

    fn lane(parent: u64) -> usize {
        (parent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % LANES
    }

    /// Where the first blocks of a file in a directory may be looked for.
    pub(super) fn beginning(&self, parent: u64) -> u64 {
        self.hints.lock().next[Space::lane(parent)]
    }

    /// Blocks were allocated for a file in a directory: its next files go behind them.
    pub(super) fn took(&self, parent: u64, end: u64) {
        let mut hints = self.hints.lock();
        hints.next[Space::lane(parent)] = if end < hints.end { end } else { 0 };
    }

    /// Keeps the blocks behind a growing file for it.
    pub(super) fn reserve(&self, ino: u64, range: Range<u64>) {
        let windows = &mut self.hints.lock().windows;
        if range.is_empty() { windows.remove(ino) } else { windows.add(ino, range) }
    }

    /// A file grows no longer.
    pub(super) fn release(&self, ino: u64) {
        self.hints.lock().windows.remove(ino);
    }

    /// The first part of a range that no other file has kept.
    pub(super) fn unreserved(&self, ino: u64, range: Range<u64>) -> Range<u64> {
        self.hints.lock().windows.outside(ino, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(blocks: u64) -> Space {
        Space::new(blocks, vec![Covered { free: blocks, blocks }])
    }

    #[test]
    fn more_pages_have_more_blocks() {
        let space = empty(100);
        space.adjust(0, -70);
        space.grow(1010, vec![Covered { free: 10, blocks: 10 }]);
        assert_eq!((space.free(), space.pages()), (40, 2));
        space.adjust(1, 5);
        space.took(1, 1005);
        assert_eq!((space.free(), space.beginning(1)), (40, 1005));
        space.adjust(1, -10);
        assert!(space.has_free(0) && !space.has_free(1) && space.has_free(2));
        space.took(1, 1010);
        assert_eq!((space.free(), space.beginning(1)), (30, 0));
    }

    #[test]
    fn a_window_is_for_one_file() {
        let space = empty(10_000);
        space.reserve(7, 100..116);
        space.reserve(8, 116..166);
        assert_eq!(space.unreserved(7, 100..500), 100..116);
        assert_eq!(space.unreserved(8, 100..500), 116..500);
        assert_eq!(space.unreserved(9, 100..500), 166..500);
        assert_eq!(space.unreserved(9, 50..500), 50..100);
        assert!(space.unreserved(9, 100..150).is_empty());
        space.release(7);
        assert_eq!(space.unreserved(9, 100..500), 100..116);
        space.reserve(8, 300..316);
        assert_eq!(space.unreserved(9, 100..500), 100..300);
    }

    #[test]
    fn the_oldest_window_goes() {
        let space = empty(1 << 20);
        (0..=MAX_WINDOWS as u64).for_each(|ino| space.reserve(ino, ino * 100..ino * 100 + 16));
        assert_eq!(space.unreserved(u64::MAX, 0..10), 0..10);
        assert!(space.unreserved(u64::MAX, 100..110).is_empty());
    }
}
