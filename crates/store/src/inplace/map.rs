//! The map: an entry about the in-place content of each block, cached page by page.

use std::ops::Range;

use thalweg_env::HashMap;
use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::format::{ENTRIES, Entry, MAP_SECTOR, MapSector};
use crate::block::{BLOCK_SIZE, Lba, StoreError};
use crate::device::AlignedBuf;
use crate::journal::{Claim, Retention};

/// Sectors in a page.
pub(super) const SECTORS: u64 = BLOCK_SIZE as u64 / MAP_SECTOR;
/// Entries in a page.
pub(super) const PER_PAGE: u64 = SECTORS * ENTRIES;
/// Maximum of bytes in one write.
const MOST: u64 = 1 << 20;

/// The map's pages in memory.
#[derive(Debug)]
pub(super) struct Map {
    volume: Uuid,
    /// The format of its sectors.
    format: u32,
    pages: HashMap<u64, MapPage>,
}

#[derive(Debug)]
struct MapPage {
    entries: Box<[u32]>,
    /// Sectors that differ from what is on the device, one bit each.
    dirty: u8,
    /// Sectors that were damaged when they were read, one bit each.
    damaged: u8,
    /// What the journal must keep for it.
    claim: Claim,
}

/// A run of sectors to be written.
#[derive(Debug)]
pub(super) struct MapWrite {
    /// The number of the first sector.
    pub(super) first: u64,
    pub(super) bytes: AlignedBuf,
}

/// The page of a block's entry, and the entry's index in it.
fn place(lba: u64) -> (u64, usize) {
    (lba / PER_PAGE, (lba % PER_PAGE) as usize)
}

impl Map {
    /// The map of a volume; `format` is the format of its sectors.
    pub(super) fn new(volume: Uuid, format: u32) -> Map {
        Map { volume, format, pages: HashMap::default() }
    }

    /// The page of a block's entry.
    pub(super) fn page_of(lba: u64) -> u64 {
        place(lba).0
    }

    /// The blocks of a page.
    pub(super) fn blocks_of(page: u64) -> std::ops::Range<u64> {
        page * PER_PAGE..(page + 1) * PER_PAGE
    }

    /// The entry of a block; `None` when its page is not in memory.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the sector that holds it is damaged.
    pub(super) fn entry(&self, lba: u64) -> Result<Option<Entry>, StoreError> {
        let (page, at) = place(lba);
        let Some(page) = self.pages.get(&page) else { return Ok(None) };
        if page.damaged & 1 << (at as u64 / ENTRIES) != 0 {
            let detail = "the map's sector about it is damaged; fsck -y gives it up".to_owned();
            return Err(StoreError::Corrupt { lba: Lba(lba), detail });
        }
        Ok(Some(Entry::decode(page.entries[at])))
    }

    /// Changes an entry in a page that is in memory. `sequence`: the journal transaction that must be kept
    /// until the entry is on the device.
    pub(super) fn set(
        &mut self,
        lba: u64,
        entry: Entry,
        sequence: Option<u64>,
        retention: &mut Retention,
    ) {
        let (page, at) = place(lba);
        let Some(page) = self.pages.get_mut(&page) else { return };
        if page.entries[at] == entry.encode() {
            return;
        }
        page.entries[at] = entry.encode();
        page.dirty |= 1 << (at as u64 / ENTRIES);
        if let Some(sequence) = sequence {
            retention.extend(&mut page.claim, sequence);
        }
    }

    /// Whether a page is in memory.
    pub(super) fn has(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Inserts a page that was read, unless it is in memory already.
    pub(super) fn insert(&mut self, page: u64, bytes: &[u8]) {
        if self.pages.contains_key(&page) {
            return;
        }
        let mut entries = Vec::with_capacity(PER_PAGE as usize);
        let mut damaged = 0;
        for (nth, sector) in bytes.chunks(MAP_SECTOR as usize).enumerate() {
            let number = page * SECTORS + nth as u64;
            let sector = MapSector::read_from_bytes(sector);
            let sector = sector.unwrap_or_else(|_| MapSector::new_zeroed());
            if !sector.is_whole(number, &self.volume, self.format) {
                damaged |= 1 << nth;
            }
            entries.extend(sector.entries.iter().map(|entry| entry.get()));
        }
        entries.resize(PER_PAGE as usize, 0);
        let entries = entries.into_boxed_slice();
        self.pages.insert(page, MapPage { entries, dirty: 0, damaged, claim: Claim::default() });
    }

    /// The blocks of the damaged sectors of a page, one range for each sector.
    pub(super) fn damaged(&self, page: u64) -> Vec<Range<u64>> {
        let damaged = self.pages.get(&page).map_or(0, |page| page.damaged);
        let first = |nth: u64| page * PER_PAGE + nth * ENTRIES;
        let damaged = (0..SECTORS).filter(|nth| damaged & 1 << nth != 0);
        damaged.map(|nth| first(nth)..first(nth + 1)).collect()
    }

    /// Replaces a damaged sector in a page that is in memory. `entries`: from the sector's first
    /// block on; the other blocks are empty.
    pub(super) fn replace(&mut self, first: u64, entries: &[Entry]) {
        let (page, at) = place(first);
        let Some(page) = self.pages.get_mut(&page) else { return };
        let nth = at as u64 / ENTRIES;
        page.damaged &= !(1 << nth);
        page.dirty |= 1 << nth;
        let sector = &mut page.entries[at..at + ENTRIES as usize];
        sector.fill(Entry::Empty.encode());
        sector.iter_mut().zip(entries).for_each(|(to, from)| *to = from.encode());
    }

    /// Takes all dirty sectors, as writes of whole device sectors, and the oldest journal
    /// transactions of their pages. Writes are merged over at most `gap` bytes of pages that are in
    /// memory. No write crosses the end of the first `first_part` pages: the second part is
    /// elsewhere.
    pub(super) fn take_dirty(
        &mut self,
        sector: u32,
        gap: u64,
        first_part: u64,
    ) -> (Vec<MapWrite>, Vec<u64>) {
        let boundary = first_part * SECTORS;
        let is_apart =
            |last: &Range<u64>, run: &Range<u64>| last.start < boundary && run.start >= boundary;
        let unit = (u64::from(sector) / MAP_SECTOR).max(1);
        let mut pages: Vec<u64> =
            self.pages.iter().filter(|(_, page)| page.dirty != 0).map(|(at, _)| *at).collect();
        pages.sort_unstable();
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut done = Vec::with_capacity(pages.len());
        for at in pages {
            let Some(page) = self.pages.get_mut(&at) else { continue };
            let mask = std::mem::take(&mut page.dirty);
            done.extend(page.claim.take());
            let first = u64::from(mask.trailing_zeros()) / unit * unit;
            let end = (8 - u64::from(mask.leading_zeros())).next_multiple_of(unit);
            let run = at * SECTORS + first..at * SECTORS + end;
            match runs.last_mut() {
                Some(last) if !is_apart(last, &run) && self.joins(last, &run, gap) => {
                    last.end = run.end
                }
                _ => runs.push(run),
            }
        }
        let write = |run: Range<u64>| MapWrite { first: run.start, bytes: self.encode(run) };
        (runs.into_iter().map(write).collect(), done)
    }

    /// Whether two runs of sectors may be merged into one write.
    fn joins(&self, run: &Range<u64>, next: &Range<u64>, gap: u64) -> bool {
        (next.start - run.end) * MAP_SECTOR <= gap
            && (next.end - run.start) * MAP_SECTOR <= MOST
            && (run.end / SECTORS..next.start / SECTORS).all(|page| self.has(page))
    }

    /// Encodes sectors of pages that are in memory.
    fn encode(&self, sectors: Range<u64>) -> AlignedBuf {
        let mut bytes = AlignedBuf::zeroed(((sectors.end - sectors.start) * MAP_SECTOR) as usize);
        for (number, into) in sectors.zip(bytes.chunks_mut(MAP_SECTOR as usize)) {
            let Some(page) = self.pages.get(&(number / SECTORS)) else { continue };
            let nth = number % SECTORS;
            let from = (nth * ENTRIES) as usize;
            let mut sector = MapSector::new_zeroed();
            let entries = &page.entries[from..from + ENTRIES as usize];
            sector.entries.iter_mut().zip(entries).for_each(|(to, from)| to.set(*from));
            let sum = sector.sum(number, &self.volume);
            // A damaged sector must stay damaged: it gets an invalid checksum.
            let is_damaged = page.damaged & 1 << nth != 0;
            sector.checksum = if is_damaged { !sum } else { sum }.into();
            into.copy_from_slice(sector.as_bytes());
        }
        bytes
    }
}
