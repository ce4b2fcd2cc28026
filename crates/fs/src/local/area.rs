//! Where the parts of the data partition lie, and its pages of bits.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use thalweg_store::block::{BLOCK_SIZE, ByteRanges, Lba};
use thalweg_store::checksum::crc32c;
use thalweg_store::tree::Partition;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::extents::Run;
use super::format::{
    BITMAP_HEADER, BITMAP_MAGIC, BITMAP_VERSION, BITS_PER_PAGE, BitmapHeader, Extent,
    MAX_DATA_BLOCKS,
};
use crate::error::FsError;

/// A run of the partition: its pages of bits, then the blocks that these are about.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The volume's block behind its first page.
    first: u64,
    /// The number of its first page.
    page: u64,
    pages: u64,
    /// The number of its first block.
    start: u64,
    /// The number behind its last block.
    end: u64,
}

impl Segment {
    /// The segment behind another one; the first one behind none.
    ///
    /// Its blocks have the numbers of its pages of bits, and at least one number between two segments
    /// is no block's, so that no extent lies in both.
    fn behind(before: Option<&Segment>, run: &Range<u64>) -> Option<Segment> {
        let page = before.map_or(0, |before| before.page + before.pages);
        let start = match before {
            Some(before) => (before.end / BITS_PER_PAGE + 1) * BITS_PER_PAGE,
            None => 0,
        };
        // A segment that fills its last page is followed by a page that is about no block.
        let void = (start / BITS_PER_PAGE).checked_sub(page)?;
        let len = (run.end - run.start).checked_sub(void)?;
        let pages = len.div_ceil(BITS_PER_PAGE + 1);
        let end = start.checked_add(len - pages).filter(|end| *end <= MAX_DATA_BLOCKS)?;
        let segment = Segment { first: run.start, page, pages: pages + void, start, end };
        (start < end).then_some(segment)
    }

    fn lba(&self, block: u64) -> Lba {
        Lba(self.first + self.pages + (block - self.start))
    }
}

/// The partition with the data. Blocks of data are numbered through all of its runs, and not every number
/// is a block's.
#[derive(Debug)]
pub(crate) struct DataArea {
    first: Segment,
    /// Of the runs that the partition got later.
    further: RwLock<Arc<[Segment]>>,
    tag: u32,
}

impl DataArea {
    /// The parts of a partition.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it is too small or too large.
    pub(crate) fn new(partition: &Partition, filesystem: &Uuid) -> Result<DataArea, FsError> {
        let first = partition.first..partition.first.saturating_add(partition.blocks);
        let first = Segment::behind(None, &first).ok_or(WRONG_SIZE)?;
        let tag = crc32c(filesystem.as_bytes());
        let area = DataArea { first, further: RwLock::default(), tag };
        area.grow_into(partition)?;
        Ok(area)
    }

    /// Takes in the runs that the partition has got.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it is too large now.
    pub(crate) fn grow_into(&self, partition: &Partition) -> Result<(), FsError> {
        let mut further = self.further.write();
        let mut segments = further.to_vec();
        for run in partition.ranges().skip(1 + segments.len()) {
            let last = segments.last().unwrap_or(&self.first);
            let segment = Segment::behind(Some(last), &run).ok_or(WRONG_SIZE)?;
            segments.push(segment);
        }
        *further = segments.into();
        Ok(())
    }

    fn segments(&self) -> Vec<Segment> {
        std::iter::once(self.first).chain(self.further.read().iter().copied()).collect()
    }

    /// The segment of a block; of one that is none an earlier one.
    fn segment(&self, block: u64) -> Segment {
        if block < self.first.end {
            return self.first;
        }
        let further = self.further.read();
        *further.iter().rfind(|segment| segment.start <= block).unwrap_or(&self.first)
    }

    /// The segment of a page of bits.
    fn segment_of_page(&self, page: u64) -> Segment {
        if page < self.first.pages {
            return self.first;
        }
        let further = self.further.read();
        *further.iter().rfind(|segment| segment.page <= page).unwrap_or(&self.first)
    }

    /// The tag that its blocks carry: it says which filesystem they belong to.
    pub(crate) fn tag(&self) -> u32 {
        self.tag
    }

    /// Blocks of data.
    pub(crate) fn blocks(&self) -> u64 {
        self.segments().iter().map(|segment| segment.end - segment.start).sum()
    }

    /// The number behind the last block's.
    pub(crate) fn end(&self) -> u64 {
        self.further.read().last().map_or(self.first.end, |last| last.end)
    }

    /// Whether these are blocks that lie together.
    pub(crate) fn has(&self, start: u64, blocks: u64) -> bool {
        let segment = self.segment(start);
        start >= segment.start && start.checked_add(blocks).is_some_and(|end| end <= segment.end)
    }

    /// A stored extent, or `None` when it does not lie within one segment.
    pub(crate) fn extent(&self, rest: &[u8], value: &[u8]) -> Option<Extent> {
        let extent = Extent::decode(rest, value, self.end())?;
        (extent.is_lost() || self.has(extent.start, extent.blocks)).then_some(extent)
    }

    /// A run of blocks, or `None` when it is empty or does not lie within one segment.
    pub(crate) fn run(&self, start: u64, blocks: u64) -> Option<Run> {
        (blocks > 0 && self.has(start, blocks)).then_some(Run { start, blocks })
    }

    /// Pages of bits.
    pub(crate) fn pages(&self) -> u64 {
        let last = self.further.read().last().copied().unwrap_or(self.first);
        last.page + last.pages
    }

    /// The volume's block behind a page of bits.
    pub(crate) fn page_lba(&self, page: u64) -> Lba {
        let segment = self.segment_of_page(page);
        Lba(segment.first + (page - segment.page))
    }

    /// How many pages of bits from one on lie together.
    pub(crate) fn pages_together(&self, page: u64) -> u64 {
        let segment = self.segment_of_page(page);
        (segment.page + segment.pages).saturating_sub(page)
    }

    /// The volume's block behind a block of data.
    pub(crate) fn lba(&self, block: u64) -> Lba {
        self.segment(block).lba(block)
    }

    /// A page in which these bits are set.
    pub(crate) fn page_of(&self, page: u64, used: impl Iterator<Item = Range<u64>>) -> Bytes {
        let mut bytes = vec![0; BLOCK_SIZE];
        bytes[..BITMAP_HEADER].copy_from_slice(self.header(page).as_bytes());
        for bit in used.flatten() {
            bytes[BITMAP_HEADER + (bit / 8) as usize] |= 1 << (bit % 8);
        }
        bytes.into()
    }

    fn header(&self, page: u64) -> BitmapHeader {
        assert!(u32::try_from(page).is_ok(), "no area has a page {page} of bits");
        BitmapHeader {
            magic: BITMAP_MAGIC,
            version: BITMAP_VERSION.into(),
            spare: [0; 2],
            index: (page as u32).into(),
            tag: self.tag.into(),
            end: [0; 16],
        }
    }

    /// The blocks that a page of bits is about.
    pub(crate) fn covered(&self, page: u64) -> Range<u64> {
        let start = page * BITS_PER_PAGE;
        let segment = self.segment_of_page(page);
        if start < segment.start {
            start..start
        } else {
            start..(start + BITS_PER_PAGE).min(segment.end)
        }
    }
}

const WRONG_SIZE: FsError = FsError::Invalid("too few or too many blocks for data");

/// A bitmap page and its changes.
#[derive(Debug)]
pub(crate) struct BitmapPage {
    bytes: Vec<u8>,
    changed: ByteRanges,
    /// Bits in use before any change.
    used_before: u64,
    /// Bits in use now.
    used: u64,
    covered: u64,
}

impl BitmapPage {
    /// A page as it was read.
    ///
    /// # Errors
    /// [`FsError::Damaged`] when it is another one, or none.
    pub(crate) fn read(area: &DataArea, page: u64, content: &Bytes) -> Result<BitmapPage, FsError> {
        let covered = area.covered(page);
        let covered = covered.end - covered.start;
        let mut bytes = content.to_vec();
        let header = area.header(page);
        let mut changed = ByteRanges::none();
        match bytes.get(..BITMAP_HEADER) {
            Some(there) if bytes.len() == BLOCK_SIZE && there == header.as_bytes() => {}
            Some(_) if bytes.len() == BLOCK_SIZE && bytes.iter().all(|byte| *byte == 0) => {
                bytes[..BITMAP_HEADER].copy_from_slice(header.as_bytes());
                changed.add(0..16);
            }
            _ => return Err(refuse(page, &bytes)),
        }
        let used = words(&bytes, 0).map(|(_, word)| u64::from(word.count_ones())).sum();
        if used > covered {
            return Err(FsError::Damaged(format!("bitmap page {page} has blocks beyond the end")));
        }
        Ok(BitmapPage { bytes, changed, used_before: used, used, covered })
    }

    /// Whether a bit is set.
    pub(crate) fn is_used(&self, bit: u64) -> bool {
        self.bytes[BITMAP_HEADER + (bit / 8) as usize] & (1 << (bit % 8)) != 0
    }

    /// Bits that are not set.
    pub(crate) fn free(&self) -> u64 {
        self.covered.saturating_sub(self.used)
    }

    /// Bits that were not set when it was read.
    pub(crate) fn free_before(&self) -> u64 {
        self.covered - self.used_before
    }

    /// The first run of bits that are not set, within a range: at most `most` of them.
    pub(crate) fn find_free(&self, within: Range<u64>, most: u64) -> Option<Range<u64>> {
        assert!(most > 0, "no blocks are wanted");
        let end = within.end.min(self.covered);
        let start = self.next(within.start, end, false)?;
        let stop = self.next(start, end.min(start.saturating_add(most)), true);
        Some(start..stop.unwrap_or(end.min(start.saturating_add(most))))
    }

    /// The first bit from `at` on, before `end`, that is set or is not.
    fn next(&self, at: u64, end: u64, used: bool) -> Option<u64> {
        let first = at / 64;
        let found = words(&self.bytes, first).find_map(|(nth, word)| {
            let wanted = if used { word } else { !word };
            let before = if nth == first { at % 64 } else { 0 };
            let wanted = wanted >> before << before;
            (wanted != 0 || nth * 64 >= end).then(|| nth * 64 + u64::from(wanted.trailing_zeros()))
        });
        found.filter(|bit| *bit < end)
    }

    /// Sets bits, or clears them; false when one of them was so already.
    pub(crate) fn flip(&mut self, bits: Range<u64>, used: bool) -> bool {
        assert!(
            bits.start <= bits.end && bits.end <= BITS_PER_PAGE,
            "{bits:?} are no bits of a page"
        );
        let mut all = true;
        for bit in bits.clone() {
            if self.is_used(bit) == used {
                all = false;
                continue;
            }
            self.bytes[BITMAP_HEADER + (bit / 8) as usize] ^= 1 << (bit % 8);
            if used {
                self.used += 1
            } else {
                assert!(self.used > 0, "more blocks are freed than are used");
                self.used -= 1;
            }
        }
        if bits.start < bits.end {
            let last = BITMAP_HEADER + ((bits.end - 1) / 8) as usize;
            self.changed.add(BITMAP_HEADER + (bits.start / 8) as usize..last + 1);
        }
        all
    }

    /// The changed ranges and the content; `None` when no bit changed.
    pub(crate) fn into_changed(self) -> Option<(ByteRanges, Bytes)> {
        let bits = self.changed.iter().any(|range| range.end > BITMAP_HEADER);
        bits.then(|| (self.changed, Bytes::from(self.bytes)))
    }
}

/// A page's bits, 64 at a time, from the `first`th 64 on.
fn words(bytes: &[u8], first: u64) -> impl Iterator<Item = (u64, u64)> {
    let words = bytes[BITMAP_HEADER..].as_chunks().0;
    let words = words.get(first as usize..).unwrap_or_default();
    (first..).zip(words.iter().map(|word| u64::from_le_bytes(*word)))
}

fn refuse(page: u64, bytes: &[u8]) -> FsError {
    match BitmapHeader::read_from_prefix(bytes) {
        Ok((header, _)) if header.magic == BITMAP_MAGIC && header.version > BITMAP_VERSION => {
            FsError::Newer(header.version.get())
        }
        _ => FsError::Damaged(format!("bitmap page {page} is none, or another")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use thalweg_store::tree::{Kind, Run as StoreRun, State};

    /// The data of a partition of so many blocks, and of further runs of it.
    fn area(blocks: u64, further: &[(u64, u64)]) -> DataArea {
        let state = State::Ready;
        let run = |(first, blocks): &(u64, u64)| StoreRun { first: *first, blocks: *blocks, state };
        let further = further.iter().map(run).collect();
        let (name, uuid) = ("fs.data".to_owned(), Uuid::from_u128(7));
        let partition =
            Partition { name, kind: Kind::Raw, first: 16, blocks, further, uuid, state };
        DataArea::new(&partition, &uuid).unwrap()
    }

    #[test]
    fn runs_lie_behind_their_own_pages_and_do_not_touch() {
        let page = BITS_PER_PAGE;
        let area = area(1001, &[(5000, 11), (100_000, page + 3), (900, 8)]);
        assert_eq!((area.blocks(), area.pages()), (1000 + 10 + page + 1 + 7, 5));
        assert_eq!(area.end(), 4 * page + 7);
        assert!(area.has(999, 1) && !area.has(999, 2) && !area.has(1000, 1));
        assert!(area.has(page, 10) && !area.has(page, 11) && !area.has(page - 1, 1));
        assert!(area.has(2 * page, page + 1) && !area.has(3 * page + 1, 1));
        assert!(area.has(4 * page, 7) && !area.has(4 * page, 8) && !area.has(u64::MAX, 2));
        assert_eq!(area.run(990, 10), Some(Run { start: 990, blocks: 10 }));
        assert!(
            [(990, 11), (1000, 1), (page, 0), (u64::MAX, 1)]
                .iter()
                .all(|(start, blocks)| area.run(*start, *blocks).is_none())
        );
        assert_eq!([0, 999, page, page + 9].map(|it| area.lba(it).0), [17, 1016, 5001, 5010]);
        assert_eq!([2 * page, 3 * page].map(|it| area.lba(it).0), [100_002, 100_002 + page]);
        assert_eq!(area.lba(4 * page), Lba(901));
        let pages: Vec<u64> = (0..5).map(|page| area.page_lba(page).0).collect();
        assert_eq!(pages, [16, 5000, 100_000, 100_001, 900]);
        assert_eq!(area.covered(1), page..page + 10);
        assert_eq!(area.covered(3), 3 * page..3 * page + 1);
        assert_eq!([0, 2, 3].map(|page| area.pages_together(page)), [1, 2, 1]);
    }

    #[test]
    fn a_full_page_is_followed_by_one_that_is_about_nothing() {
        let page = BITS_PER_PAGE;
        let area = area(2 * (page + 1), &[(500_000, 10)]);
        assert_eq!((area.blocks(), area.pages()), (2 * page + 8, 4));
        assert_eq!(area.covered(2), 2 * page..2 * page);
        assert_eq!(area.covered(3), 3 * page..3 * page + 8);
        assert_eq!((area.page_lba(2), area.lba(3 * page)), (Lba(500_000), Lba(500_002)));
        assert!(!area.has(2 * page - 1, 2) && !area.has(2 * page, 1));
        let nothing = BitmapPage::read(&area, 2, &vec![0; BLOCK_SIZE].into()).unwrap();
        assert_eq!((nothing.free(), nothing.find_free(0..page, 8)), (0, None));
    }

    proptest! {
        #[test]
        fn a_page_is_a_set_of_bits(
            steps in proptest::collection::vec((0..900u64, 1..90u64, any::<bool>()), 0..30),
            from in 0..950u64, most in 1..200u64,
        ) {
            let area = area(961, &[]);
            let zeros = Bytes::from(vec![0; BLOCK_SIZE]);
            let mut page = BitmapPage::read(&area, 0, &zeros).unwrap();
            let mut model = vec![false; 960];
            for (start, len, used) in steps {
                let range = start..(start + len).min(960);
                let there = &mut model[range.start as usize..range.end as usize];
                let all = there.iter().all(|bit| *bit != used);
                there.fill(used);
                prop_assert_eq!(page.flip(range, used), all);
            }
            prop_assert_eq!(page.free(), model.iter().filter(|bit| !**bit).count() as u64);
            let first = (from..960).find(|bit| !model[*bit as usize]);
            let found = page.find_free(from..960, most);
            prop_assert_eq!(found.as_ref().map(|run| run.start), first);
            if let Some(run) = found {
                let end = (run.start..960).find(|bit| model[*bit as usize]).unwrap_or(960);
                prop_assert_eq!(run.end, end.min(run.start + most));
            }
            let Some((changed, content)) = page.into_changed() else { return Ok(()) };
            let mut stored = vec![0; BLOCK_SIZE];
            changed.copy(&content, &mut stored);
            let again = BitmapPage::read(&area, 0, &stored.into()).unwrap();
            prop_assert!((0..960).all(|bit| again.is_used(bit) == model[bit as usize]));
        }
    }
}
