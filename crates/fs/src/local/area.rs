//! Where the parts of the data partition lie, and its pages of bits.

use std::ops::Range;

use bytes::Bytes;
use thalweg_store::block::{BLOCK_SIZE, ByteRanges, Lba};
use thalweg_store::checksum::crc32c;
use thalweg_store::tree::Partition;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::format::{
    BITMAP_HEADER, BITMAP_MAGIC, BITMAP_VERSION, BITS_PER_PAGE, BitmapHeader, MAX_DATA_BLOCKS,
};
use crate::error::FsError;

/// The partition with the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataArea {
    first: u64,
    pages: u64,
    blocks: u64,
    tag: u32,
}

impl DataArea {
    /// The parts of a partition.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it is too small or too large.
    pub(crate) fn new(partition: &Partition, filesystem: &Uuid) -> Result<DataArea, FsError> {
        let pages = partition.blocks.div_ceil(BITS_PER_PAGE + 1);
        let blocks = partition.blocks - pages;
        if blocks == 0 || blocks > MAX_DATA_BLOCKS {
            return Err(FsError::Invalid("too few or too many blocks for data"));
        }
        let tag = crc32c(filesystem.as_bytes());
        Ok(DataArea { first: partition.first, pages, blocks, tag })
    }

    /// What says in its blocks that they belong to the filesystem.
    pub(crate) fn tag(&self) -> u32 {
        self.tag
    }

    /// Blocks of data.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Pages of bits.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The volume's block behind a page of bits.
    pub(crate) fn page_lba(&self, page: u64) -> Lba {
        Lba(self.first + page)
    }

    /// The volume's block behind a block of data.
    pub(crate) fn lba(&self, block: u64) -> Lba {
        Lba(self.first + self.pages + block)
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
        page * BITS_PER_PAGE..((page + 1) * BITS_PER_PAGE).min(self.blocks)
    }
}

/// A page of bits, and what was changed in it.
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
        let mut all = true;
        for bit in bits.clone() {
            if self.is_used(bit) == used {
                all = false;
                continue;
            }
            self.bytes[BITMAP_HEADER + (bit / 8) as usize] ^= 1 << (bit % 8);
            match used {
                true => self.used += 1,
                false => self.used -= 1,
            }
        }
        if bits.start < bits.end {
            let last = BITMAP_HEADER + ((bits.end - 1) / 8) as usize;
            self.changed.add(BITMAP_HEADER + (bits.start / 8) as usize..last + 1);
        }
        all
    }

    /// What was changed, and the content; `None` when no bit was.
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

    proptest! {
        #[test]
        fn a_page_is_a_set_of_bits(
            steps in proptest::collection::vec((0..900u64, 1..90u64, any::<bool>()), 0..30),
            from in 0..950u64, most in 1..200u64,
        ) {
            let area = DataArea { first: 16, pages: 1, blocks: 960, tag: 7 };
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
