//! Where the parts of a store lie in its partition.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;
use uuid::Uuid;

use super::error::TreeError;
use super::format::{
    BITMAP_UNITS, BITS_PER_PAGE, BITS_PER_UNIT, BLOCKS_PER_DIRECTORY, DIRECTORY_ENTRIES, Kind,
    MAX_BLOCKS, MIN_BLOCKS, State, tag,
};
use super::partition::{Partition, Run};
use super::window::Window;
use crate::block::Lba;

/// A run of a partition, and its parts as numbers of blocks in the partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Its first block.
    start: u32,
    /// The volume's block behind that.
    first: u64,
    /// The first page of its bitmap, and the page after the last one.
    bitmaps: (u32, u32),
    /// The first block that its bitmap covers.
    pub(super) data: u32,
    /// The block after the last one.
    pub(super) end: u32,
    /// Units of bits in the segments before.
    units_before: u32,
}

impl Segment {
    fn new(run: &Run, start: u64, bitmaps: u32, others: u32, units_before: u32) -> Segment {
        let data = (start as u32).saturating_add(bitmaps).saturating_add(others);
        // The last of 2^32 blocks has no number that could follow it.
        let end = (start + run.blocks).min(u64::from(u32::MAX)) as u32;
        let first_bitmap = start as u32 + if start == 0 { BITMAP } else { 0 };
        Segment {
            start: start as u32,
            first: run.first,
            bitmaps: (first_bitmap, first_bitmap + bitmaps),
            data,
            end: end.max(data),
            units_before,
        }
    }

    /// The pages of its bitmap.
    pub(super) fn bitmaps(&self) -> Range<u32> {
        self.bitmaps.0..self.bitmaps.1
    }

    /// The units of bits of its bitmap.
    fn units(&self) -> u32 {
        (self.end - self.data).div_ceil(BITS_PER_UNIT)
    }
}

/// A store's partition and its parts, as numbers of blocks in it.
///
/// Each run of the partition has a bitmap of its own, so that no stored item spans two runs: a run begins
/// with its bitmap, which is never a part of a value.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) uuid: Uuid,
    pub(super) tag: u32,
    /// Blocks of the first run.
    pub(super) blocks: u64,
    directories: u32,
    first: Segment,
    /// The runs added by growth.
    further: RwLock<Arc<[Segment]>>,
    /// The units of the bitmap that are searched first for free blocks.
    pub(super) window: Window,
}

/// Where the bitmap begins.
const BITMAP: u32 = 1;

/// The number of bitmap pages of a further run.
fn further_bitmaps(blocks: u64) -> u32 {
    blocks.div_ceil(u64::from(BITS_PER_PAGE) + 1) as u32
}

impl Area {
    /// The layout of a store in a partition.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] when it is too small or too large for one.
    pub(super) fn new(partition: &Partition) -> Result<Area, TreeError> {
        let blocks = partition.blocks;
        if !(MIN_BLOCKS..=MAX_BLOCKS).contains(&blocks) {
            return Err(TreeError::Invalid(format!(
                "a store has from {MIN_BLOCKS} to {MAX_BLOCKS} blocks, not {blocks}"
            )));
        }
        let rest = (blocks - 1) as u32;
        let (directories, root) = match partition.kind {
            Kind::Hash => (rest.div_ceil(BLOCKS_PER_DIRECTORY), 0),
            Kind::Btree | Kind::Raw => (0, 1),
        };
        let bitmaps = rest.div_ceil(BITS_PER_PAGE);
        let run = Run { first: partition.first, blocks, state: State::Ready };
        let area = Area {
            name: partition.name.clone(),
            kind: partition.kind,
            uuid: partition.uuid,
            tag: tag(&partition.uuid),
            blocks,
            directories,
            first: Segment::new(&run, 0, bitmaps, BITMAP + directories + root, 0),
            further: RwLock::default(),
            window: Window::default(),
        };
        area.grow_into(partition)?;
        Ok(area)
    }

    /// Adds the partition's new runs to the layout.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] when one is too small, or they are too large.
    pub(super) fn grow_into(&self, partition: &Partition) -> Result<(), TreeError> {
        let mut further = self.further.write();
        let mut segments = further.to_vec();
        for run in partition.further_runs().skip(segments.len()) {
            let segment = self.next(segments.last().unwrap_or(&self.first), run)?;
            segments.push(segment);
        }
        *further = segments.into();
        Ok(())
    }

    /// The segment of a run that follows the last one.
    fn next(&self, last: &Segment, run: &Run) -> Result<Segment, TreeError> {
        let start = u64::from(last.end);
        if run.blocks < MIN_BLOCKS || start + run.blocks > MAX_BLOCKS - 1 {
            return Err(TreeError::Invalid(format!(
                "{} blocks more; a store has at most {MAX_BLOCKS}",
                run.blocks
            )));
        }
        let units_before = last.units_before + last.units();
        Ok(Segment::new(run, start, further_bitmaps(run.blocks), 0, units_before))
    }

    /// All runs.
    fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let further = self.further.read().clone();
        let count = further.len();
        std::iter::once(self.first).chain((0..count).map(move |nth| further[nth]))
    }

    /// The run that a block lies in; the last run for a block behind the end.
    pub(super) fn segment(&self, block: u32) -> Segment {
        match block < self.first.end {
            true => self.first,
            false => self.segment_where(|segment| segment.start <= block),
        }
    }

    /// The last run for which `holds` is true.
    fn segment_where(&self, holds: impl Fn(&Segment) -> bool) -> Segment {
        let further = self.further.read();
        further.iter().rfind(|segment| holds(segment)).copied().unwrap_or(self.first)
    }

    /// The volume's block behind a block of the partition.
    pub(super) fn lba(&self, block: u32) -> Lba {
        let segment = self.segment(block);
        Lba(segment.first + u64::from(block - segment.start))
    }

    /// The pages that must be zeros when the store is created.
    pub(super) fn prepared(&self) -> Range<u32> {
        0..self.first.data
    }

    /// The pages of the bitmap.
    pub(super) fn bitmaps(&self) -> impl Iterator<Item = u32> + use<> {
        self.segments().flat_map(|segment| segment.bitmaps())
    }

    /// The pages of a hash table's directory.
    pub(super) fn directories(&self) -> Range<u32> {
        let start = self.first.bitmaps.1;
        start..start + self.directories
    }

    /// The number of a hash table's directory entries.
    pub(super) fn directory_entries(&self) -> u64 {
        u64::from(self.directories) * u64::from(DIRECTORY_ENTRIES)
    }

    /// The root of a B-tree: it never moves.
    pub(super) fn root(&self) -> u32 {
        self.first.bitmaps.1
    }

    /// Whether the bitmap covers all of `count` blocks from `block` on, and they lie in one run.
    pub(super) fn has(&self, block: u32, count: u32) -> bool {
        let segment = self.segment(block);
        let end = u64::from(block) + u64::from(count);
        block >= segment.data && end <= u64::from(segment.end)
    }

    /// The number of blocks that the bitmap covers.
    pub(super) fn capacity(&self) -> u64 {
        self.segments().map(|segment| u64::from(segment.end - segment.data)).sum()
    }

    /// The units of bits of the whole bitmap.
    pub(super) fn units(&self) -> u32 {
        self.segments().last().map_or(0, |last| last.units_before + last.units())
    }

    /// The bitmap page of a unit by its number among all of them, and its number there.
    pub(super) fn unit(&self, number: u32) -> (u32, u32) {
        let segment = match number < self.first.units() {
            true => self.first,
            false => self.segment_where(|segment| segment.units_before <= number),
        };
        let number = number - segment.units_before;
        (segment.bitmaps.0 + number / BITMAP_UNITS, number % BITMAP_UNITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, blocks: u64) -> Run {
        Run { first, blocks, state: State::Ready }
    }

    fn partition(kind: Kind, blocks: u64, further: Vec<Run>) -> Partition {
        let uuid = Uuid::from_u128(7);
        Partition { name: "a".into(), kind, first: 16, blocks, further, uuid, state: State::Ready }
    }

    #[test]
    fn each_run_has_a_bitmap_of_its_own() {
        let page = u64::from(BITS_PER_PAGE);
        for kind in [Kind::Btree, Kind::Hash] {
            let further = vec![run(5000, 8), run(9000, page + 1), run(90_000, page + 2)];
            let area = Area::new(&partition(kind, 1000, further)).unwrap();
            let starts: Vec<u32> = area.bitmaps().collect();
            let third = 1008 + BITS_PER_PAGE + 1;
            assert_eq!(starts, [1, 1000, 1008, third, third + 1]);
            assert_eq!(area.lba(999), Lba(1015));
            assert_eq!(area.lba(1000), Lba(5000));
            assert_eq!(area.lba(1007), Lba(5007));
            assert_eq!(area.lba(1009), Lba(9001));
            let before = u64::from(1000 - area.prepared().end);
            assert_eq!(area.capacity(), before + 7 + page + page);
            assert!(area.has(1001, 7) && !area.has(1001, 8) && !area.has(1000, 1));
            assert!(!area.has(999, 2) && area.has(999, 1) && !area.has(u32::MAX, 1));
            let units = (before as u32).div_ceil(BITS_PER_UNIT);
            assert_eq!(area.unit(units), (1000, 0));
            assert_eq!(area.unit(units + 1), (1008, 0));
            assert_eq!(area.unit(units + 1 + BITMAP_UNITS), (third, 0));
            assert_eq!(area.units(), units + 1 + 2 * BITMAP_UNITS);
            assert_eq!(area.segment(third + 1).bitmaps(), third..third + 2);
        }
    }

    #[test]
    fn runs_are_neither_too_small_nor_too_many() {
        let area = Area::new(&partition(Kind::Btree, 1000, vec![])).unwrap();
        let grow = |further| area.grow_into(&partition(Kind::Btree, 1000, further));
        let largest = run(5000, MAX_BLOCKS - 1001);
        assert!(matches!(grow(vec![run(5000, 7)]), Err(TreeError::Invalid(_))));
        assert!(matches!(grow(vec![run(5000, MAX_BLOCKS - 1000)]), Err(TreeError::Invalid(_))));
        assert!(matches!(grow(vec![largest.clone(), run(0, 8)]), Err(TreeError::Invalid(_))));
        assert_eq!(area.capacity(), 1000 - u64::from(area.prepared().end));
        grow(vec![largest.clone()]).unwrap();
        let kept = Run { state: State::Unfinished, ..run(0, 8) };
        grow(vec![largest, kept]).unwrap();
        assert!(area.has(u32::MAX - 1, 1) && !area.has(u32::MAX - 1, 2));
    }
}
