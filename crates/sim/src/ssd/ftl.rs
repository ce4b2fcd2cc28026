//! A flash translation layer: maps logical pages to physical ones, and counts the wear of writes.
//!
//! Every unit (a die on a channel) has an open block that takes pages in order. When its free blocks
//! run short, the block with the fewest valid pages is copied into the open one and erased.

use super::SolidStateSpec;

/// A unit with fewer free blocks than this collects garbage.
const RESERVE: usize = 2;

/// The address of an unmapped page.
const NONE: u32 = 0;

/// Flash operations that one unit has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) unit: usize,
    pub(super) reads: u64,
    pub(super) programs: u64,
    pub(super) erases: u64,
}

/// The wear of a drive's flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Wear {
    /// Pages written by the host.
    pub host_pages: u64,
    /// Pages programmed, for the host and for garbage collection.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Number of erases of the most worn block.
    pub worst_block: u32,
}

impl Wear {
    /// Pages programmed for each page that the host wrote; 1 before the first write.
    pub fn write_amplification(&self) -> f64 {
        match self.host_pages {
            0 => 1.0,
            pages => self.programs as f64 / pages as f64,
        }
    }
}

#[derive(Clone, Debug)]
struct Unit {
    free: Vec<u32>,
    open: u32,
    /// Number of pages used in the open block.
    filled: u32,
}

#[derive(Debug)]
pub(super) struct Ftl {
    block_pages: u32,
    /// Logical page to physical page plus one. Zeroed memory stays unbacked until it is used.
    forward: Vec<u32>,
    /// Physical page to logical page plus one.
    backward: Vec<u32>,
    /// Number of valid pages by block.
    valid: Vec<u32>,
    erases: Vec<u32>,
    units: Vec<Unit>,
    blocks_per_unit: u32,
    next_unit: usize,
    wear: Wear,
}

impl Ftl {
    pub(super) fn new(spec: &SolidStateSpec) -> Ftl {
        let pages = spec.size.div_ceil(u64::from(spec.page));
        let units = spec.units.max(1);
        let raw = (pages as f64 * (1.0 + spec.over_provisioning.max(0.0))) as u64;
        let per_unit = raw.div_ceil(u64::from(spec.block_pages) * units as u64);
        // The open block and the reserve are extra, or a full drive could not collect garbage.
        let blocks_per_unit = per_unit as u32 + RESERVE as u32 + 2;
        let blocks = blocks_per_unit as usize * units;
        let unit = |i: usize| {
            let first = i as u32 * blocks_per_unit;
            // Blocks are taken from the end, so the lowest comes first.
            let free = (first + 1..first + blocks_per_unit).rev().collect();
            Unit { free, open: first, filled: 0 }
        };
        Ftl {
            block_pages: spec.block_pages,
            forward: vec![NONE; pages as usize],
            backward: vec![NONE; blocks * spec.block_pages as usize],
            valid: vec![0; blocks],
            erases: vec![0; blocks],
            units: (0..units).map(unit).collect(),
            blocks_per_unit,
            next_unit: 0,
            wear: Wear::default(),
        }
    }

    pub(super) fn wear(&self) -> Wear {
        self.wear
    }

    /// The unit of a page; `None` when the page was never written.
    pub(super) fn unit_of(&self, page: u64) -> Option<usize> {
        let physical = self.forward[page as usize].checked_sub(1)?;
        Some((physical / self.block_pages / self.blocks_per_unit) as usize)
    }

    /// Writes a logical page to the next unit in turn. Returns the operations that it takes there.
    pub(super) fn write(&mut self, page: u64) -> Work {
        // Freeing the old place first keeps a unit from holding more than its share for long.
        self.discard(page);
        let unit = self.roomiest_from_next();
        self.next_unit = (unit + 1) % self.units.len();
        self.wear.host_pages += 1;
        let mut work = Work { unit, ..Work::default() };
        self.append(page as u32, &mut work);
        self.collect(&mut work);
        self.wear.programs += work.programs;
        self.wear.erases += work.erases;
        work
    }

    /// Unmaps a logical page.
    pub(super) fn discard(&mut self, page: u64) {
        let old = std::mem::replace(&mut self.forward[page as usize], NONE);
        if let Some(physical) = old.checked_sub(1) {
            self.backward[physical as usize] = NONE;
            self.valid[(physical / self.block_pages) as usize] -= 1;
        }
    }

    /// The next unit in turn, or the unit with the most free blocks when the next has fewer.
    fn roomiest_from_next(&self) -> usize {
        let count = self.units.len();
        let turn = (0..count).map(|i| (self.next_unit + i) % count);
        let room = |unit: &usize| {
            let unit = &self.units[*unit];
            unit.free.len().min(RESERVE + 1)
        };
        // `max_by_key` returns the last maximum, and the iterator is reversed: the first one wins.
        turn.rev().max_by_key(room).unwrap_or(0)
    }

    fn append(&mut self, page: u32, work: &mut Work) {
        let unit = &mut self.units[work.unit];
        if unit.filled == self.block_pages {
            // There is a free block because of the reserve: units are chosen by their free blocks.
            if let Some(block) = unit.free.pop() {
                unit.open = block;
                unit.filled = 0;
            }
        }
        let physical = unit.open * self.block_pages + unit.filled;
        unit.filled += 1;
        self.forward[page as usize] = physical + 1;
        self.backward[physical as usize] = page + 1;
        self.valid[unit.open as usize] += 1;
        work.programs += 1;
    }

    /// Collects garbage until the unit has its reserve of free blocks.
    fn collect(&mut self, work: &mut Work) {
        while self.units[work.unit].free.len() < RESERVE {
            let Some(victim) = self.victim(work.unit) else { return };
            let first = victim * self.block_pages;
            for physical in first..first + self.block_pages {
                let Some(page) = self.backward[physical as usize].checked_sub(1) else { continue };
                work.reads += 1;
                self.discard(u64::from(page));
                self.append(page, work);
            }
            self.erases[victim as usize] += 1;
            self.wear.worst_block = self.wear.worst_block.max(self.erases[victim as usize]);
            work.erases += 1;
            self.units[work.unit].free.insert(0, victim);
        }
    }

    /// The closed block with the fewest valid pages, if collecting it frees any page.
    fn victim(&self, unit: usize) -> Option<u32> {
        let Unit { free, open, .. } = &self.units[unit];
        let first = unit as u32 * self.blocks_per_unit;
        let blocks = first..first + self.blocks_per_unit;
        let closed = blocks.filter(|block| block != open && !free.contains(block));
        let least = closed.min_by_key(|block| self.valid[*block as usize])?;
        (self.valid[least as usize] < self.block_pages).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    fn spec(over_provisioning: f64) -> SolidStateSpec {
        SolidStateSpec {
            over_provisioning,
            block_pages: 64,
            units: 4,
            ..SolidStateSpec::sata(64 << 20)
        }
    }

    fn overwrite(ftl: &mut Ftl, pages: u64, count: u64, random: bool) -> f64 {
        let mut rng = Rng::seed_from_u64(1);
        for i in 0..count {
            let page = if random { rng.random_range(0..pages) } else { i % pages };
            let work = ftl.write(page);
            assert_eq!(ftl.unit_of(page), Some(work.unit));
        }
        ftl.wear().write_amplification()
    }

    #[test]
    fn sequential_overwrites_wear_once_and_random_ones_more() {
        let pages = (64 << 20) / 4096;
        let mut ftl = Ftl::new(&spec(0.1));
        let sequential = overwrite(&mut ftl, pages, pages * 6, false);
        assert!(sequential < 1.1, "{sequential}");
        let random = overwrite(&mut Ftl::new(&spec(0.1)), pages, pages * 6, true);
        let roomy = overwrite(&mut Ftl::new(&spec(0.5)), pages, pages * 6, true);
        assert!(random > 2.0 && roomy < random && roomy > 1.1, "{random} {roomy}");
        assert_eq!(ftl.valid.iter().map(|valid| u64::from(*valid)).sum::<u64>(), pages);
    }

    #[test]
    fn discarded_pages_are_not_moved() {
        let pages = (64 << 20) / 4096;
        let mut ftl = Ftl::new(&spec(0.1));
        overwrite(&mut ftl, pages, pages, false);
        (0..pages / 2).for_each(|page| ftl.discard(page * 2));
        let kept = overwrite(&mut ftl, pages / 2, pages * 6, true);
        assert!(kept < 1.7, "{kept}");
        assert_eq!(ftl.unit_of(pages - 2), None);
        assert!(ftl.unit_of(pages - 1).is_some());
    }

    #[test]
    fn every_page_keeps_a_place_of_its_own() {
        let mut ftl = Ftl::new(&spec(0.05));
        let pages = (64u64 << 20) / 4096;
        overwrite(&mut ftl, pages, pages * 3, true);
        for (page, place) in ftl.forward.iter().enumerate().filter(|(_, place)| **place != NONE) {
            assert_eq!(ftl.backward[*place as usize - 1] as usize, page + 1);
        }
        assert!(ftl.wear().worst_block > 0 && ftl.wear().erases > 100);
    }
}
