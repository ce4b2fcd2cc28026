//! Which blocks are free: a bit for each.
//!
//! A transaction starts its search at a random place (4.3.3), and depends only on the units of the bitmap in
//! which it allocates or frees: its outcome does not rest on blocks elsewhere being free. There is no counter
//! and no list head that every transaction would have to write.
//!
//! The place is random within a [`Window`](super::window::Window) at the partition's beginning: large enough that
//! transactions seldom meet, and not larger than the store needs, so that its blocks lie together.

use std::ops::Range;

use bytes::Bytes;
use rand::RngExt;
use zerocopy::IntoBytes;

use super::area::Area;
use super::error::TreeError;
use super::format::{BITMAP_UNITS, BITS_PER_PAGE, BITS_PER_UNIT, BODY, PageHeader, PageKind, UNIT};
use super::page::{Page, damaged};
use super::work::Work;
use crate::block::BLOCK_SIZE;

/// Random units that are tried before the search goes through all.
const PROBES: u32 = 8;

/// A unit of the bitmap.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The page of the bitmap.
    bitmap: u32,
    unit: u32,
}

impl Place {
    /// The unit with this number among all units.
    fn of(area: &Area, number: u32) -> Place {
        let (bitmap, unit) = area.unit(number);
        Place { bitmap, unit }
    }

    /// The unit that has the bit of a block, and the bit.
    fn of_block(area: &Area, block: u32) -> (Place, u32) {
        let segment = area.segment(block);
        let index = block - segment.data;
        let (page, bit) = (index / BITS_PER_PAGE, index % BITS_PER_PAGE);
        let bitmap = segment.bitmaps().start + page;
        (Place { bitmap, unit: bit / BITS_PER_UNIT }, bit % BITS_PER_UNIT)
    }

    /// The block of its first bit, and the end of the run in which that lies.
    fn first_block(self, area: &Area) -> (u64, u64) {
        let segment = area.segment(self.bitmap);
        let first = u64::from(segment.data)
            + u64::from(self.bitmap - segment.bitmaps().start) * u64::from(BITS_PER_PAGE)
            + u64::from(self.unit) * u64::from(BITS_PER_UNIT);
        (first, segment.end.into())
    }

    fn bytes(self) -> Range<usize> {
        let at = BODY + self.unit as usize * UNIT;
        at..at + UNIT
    }
}

/// The bits of one unit in a page.
fn bits(page: &Page, place: Place) -> u128 {
    let mut unit = [0; UNIT];
    unit.copy_from_slice(&page.bytes()[place.bytes()]);
    u128::from_le_bytes(unit)
}

/// The blocks that a page of the bitmap covers.
pub(super) fn covered(area: &Area, bitmap: u32) -> Range<u32> {
    let at = |bitmap| Place { bitmap, unit: 0 }.first_block(area);
    let (start, end) = at(bitmap);
    let next = start + u64::from(BITS_PER_PAGE);
    start.min(end) as u32..next.min(end) as u32
}

/// A page of the bitmap with exactly these blocks in use.
pub(super) fn page_of(area: &Area, bitmap: u32, used: impl Iterator<Item = u32>) -> Bytes {
    let header = PageHeader::new(PageKind::Bitmap, 0, area.tag, bitmap);
    let mut page = vec![0; BLOCK_SIZE];
    page[..BODY].copy_from_slice(header.as_bytes());
    for block in used {
        let (place, bit) = Place::of_block(area, block);
        page[place.bytes().start + bit as usize / 8] |= 1 << (bit % 8);
    }
    page.into()
}

/// `len` ones from bit `first` on.
fn run(first: u32, len: u32) -> u128 {
    let ones = if len >= BITS_PER_UNIT { u128::MAX } else { (1 << len) - 1 };
    ones << first
}

/// The first run of `len` free bits, or else the longest shorter one.
fn find(used: u128, len: u32) -> Option<(u32, u32)> {
    let (mut best, mut at) = (None, 0);
    while at < BITS_PER_UNIT {
        let rest = used >> at;
        let here = rest.trailing_zeros().min(BITS_PER_UNIT - at);
        if here >= len {
            return Some((at, len));
        }
        if here > best.map_or(0, |(_, longest)| longest) {
            best = Some((at, here));
        }
        at += here;
        at += (used.checked_shr(at).unwrap_or(0)).trailing_ones().max(1);
    }
    best
}

impl Work<'_> {
    /// Allocates `count` blocks, in as few runs as a short search finds.
    ///
    /// # Errors
    /// [`TreeError::Full`]: too few are free.
    pub(super) async fn allocate(&mut self, count: u32) -> Result<Vec<(u32, u32)>, TreeError> {
        let units = self.area.units();
        if units == 0 {
            return Err(self.full());
        }
        loop {
            let window = self.area.window.units();
            for _ in 0..PROBES {
                let place = Place::of(self.area, self.rng.random_range(0..window.min(units)));
                if let Some(run) = self.take_run(place, count, count).await? {
                    return Ok(vec![run]);
                }
            }
            if window >= units {
                break;
            }
            self.area.window.widen(window);
        }
        let start = self.rng.random_range(0..units);
        for number in (start..units).take(BITMAP_UNITS as usize) {
            if let Some(run) = self.take_run(Place::of(self.area, number), count, count).await? {
                return Ok(vec![run]);
            }
        }
        self.gather(count, (start..units).chain(0..start)).await
    }

    /// Allocates one block.
    pub(super) async fn allocate_one(&mut self) -> Result<u32, TreeError> {
        let runs = self.allocate(1).await?;
        runs.first().map(|(block, _)| *block).ok_or_else(|| self.full())
    }

    /// Allocates from any free runs.
    async fn gather(
        &mut self,
        count: u32,
        places: impl Iterator<Item = u32>,
    ) -> Result<Vec<(u32, u32)>, TreeError> {
        let (mut runs, mut missing) = (Vec::new(), count);
        for number in places {
            while let Some((block, len)) =
                self.take_run(Place::of(self.area, number), missing, 1).await?
            {
                runs.push((block, len));
                missing -= len;
                if missing == 0 {
                    return Ok(runs);
                }
            }
        }
        Err(self.full())
    }

    fn full(&self) -> TreeError {
        TreeError::Full(self.area.name.clone())
    }

    /// Allocates `most` adjacent blocks of one unit, or its longest run of at least `least`.
    async fn take_run(
        &mut self,
        place: Place,
        most: u32,
        least: u32,
    ) -> Result<Option<(u32, u32)>, TreeError> {
        let used = self.used(place).await?;
        let Some((bit, len)) = find(used, most).filter(|(_, len)| *len >= least) else {
            return Ok(None);
        };
        self.flip(place, run(bit, len))?;
        self.allocated += i64::from(len);
        Ok(Some(((place.first_block(self.area).0 + u64::from(bit)) as u32, len)))
    }

    /// The bits of a unit, with those also set that must not be allocated: beyond the last block, and blocks
    /// that this very call has freed.
    async fn used(&mut self, place: Place) -> Result<u128, TreeError> {
        let mut used = bits(self.load(place.bitmap, PageKind::Bitmap).await?, place);
        let (first, end) = place.first_block(self.area);
        let there = end.saturating_sub(first).min(u64::from(BITS_PER_UNIT)) as u32;
        used |= !run(0, there);
        for bit in 0..there {
            if used & (1 << bit) == 0 && self.has_freed((first + u64::from(bit)) as u32) {
                used |= 1 << bit;
            }
        }
        Ok(used)
    }

    /// Flips bits of a unit, and touches only the bytes that differ.
    fn flip(&mut self, place: Place, mask: u128) -> Result<(), TreeError> {
        self.begin(place.bitmap, PageKind::Bitmap)?;
        let page = self.page(place.bitmap)?;
        let new = (bits(page, place) ^ mask).to_le_bytes();
        for (byte, _) in mask.to_le_bytes().iter().enumerate().filter(|(_, mask)| **mask != 0) {
            page.put(place.bytes().start + byte, &new[byte..=byte]);
        }
        Ok(())
    }

    /// Frees `count` blocks from `first` on.
    pub(super) async fn free(&mut self, first: u32, count: u32) -> Result<(), TreeError> {
        for block in first..first + count {
            let (place, bit) = Place::of_block(self.area, block);
            let used = bits(self.load(place.bitmap, PageKind::Bitmap).await?, place);
            if used & (1 << bit) == 0 {
                return Err(damaged(block, "it is in use, but free in the bitmap"));
            }
            self.flip(place, 1 << bit)?;
            self.allocated -= 1;
            self.forget(block)?;
        }
        Ok(())
    }

    /// How many blocks are free, and how many there are.
    pub(super) async fn count_free(&mut self) -> Result<(u64, u64), TreeError> {
        let (mut free, mut all) = (0, 0);
        for number in 0..self.area.units() {
            let place = Place::of(self.area, number);
            let (first, end) = place.first_block(self.area);
            all += end.saturating_sub(first).min(u64::from(BITS_PER_UNIT));
            free += u64::from(self.used(place).await?.count_zeros());
        }
        Ok((free, all))
    }

    /// The blocks in use among those of one bitmap page.
    pub(super) async fn blocks_in_use(&mut self, bitmap: u32) -> Result<Vec<u32>, TreeError> {
        self.load(bitmap, PageKind::Bitmap).await?;
        self.depend(bitmap, 0..BLOCK_SIZE)?;
        let mut blocks = Vec::new();
        for unit in 0..BITMAP_UNITS {
            let place = Place { bitmap, unit };
            let used = bits(self.page(bitmap)?, place);
            let (first, end) = place.first_block(self.area);
            let set = (0..BITS_PER_UNIT).filter(|bit| used & (1 << bit) != 0);
            for block in set.map(|bit| first + u64::from(bit)) {
                if block >= end {
                    return Err(damaged(bitmap, "it has a block in use that does not exist"));
                }
                blocks.push(block as u32);
            }
        }
        Ok(blocks)
    }

    /// Checks that a pointer refers to a block that may be in use.
    pub(super) fn check_pointer(&self, from: u32, block: u32) -> Result<(), TreeError> {
        match self.area.has(block, 1) {
            true => Ok(()),
            false => Err(damaged(from, &format!("it refers to block {block}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_or_else_the_longest() {
        assert_eq!(find(0, 128), Some((0, 128)));
        assert_eq!(find(u128::MAX, 1), None);
        assert_eq!(find(!run(5, 3), 3), Some((5, 3)));
        assert_eq!(find(!(run(5, 3) | run(100, 7)), 8), Some((100, 7)));
        assert_eq!(find(!(run(5, 3) | run(100, 28)), 28), Some((100, 28)));
        assert_eq!(find(!run(127, 1), 4), Some((127, 1)));
        assert_eq!(find(run(0, 1), 127), Some((1, 127)));
    }
}
