//! The logs as recovery reads them from the map: each from its position in the checkpoint to its end.

//!
//! - `scan`: the entries that count, segment by segment;
//! - `cases`: the decision about each sector.

mod cases;
mod scan;

use bytes::Bytes;
use zerocopy::{FromBytes, IntoBytes};

use super::format::{
    ENTRIES_PER_PAGE, ENTRIES_PER_SECTOR, Entry, Kind, LogRecord, MapEntry, MapSector, NO_SEGMENT,
    PAGE, Position, SECTOR, SectorHead, block_checksum,
};
use super::read::{Verified, read_verified};
use super::sector::Sector;
use super::state::State;
use super::stream::USERS;
use super::{ChainError, minilog};
use crate::block::{BLOCK_SIZE, Version};
use crate::device::{AlignedBuf, DeviceRef, Purpose};
use scan::Scan;

/// A log's entries after the checkpoint.
pub(super) struct Log {
    pub(super) number: usize,
    /// Segments in the log's order, from the checkpoint's position on.
    pub(super) segments: Vec<LogSegment>,
    /// Entries from the checkpoint up to the end of the log.
    pub(super) entries: Vec<(Position, u32, MapEntry)>,
    /// Where they end.
    pub(super) end: Position,
    /// Sectors beyond the end that look like this log's: no later recovery may read them as entries.
    pub(super) stale: Vec<(u32, u16)>,
    /// The highest sequence seen.
    pub(super) top: u64,
    /// The highest position below which a sector declares data durable. It may lie beyond the end.
    pub(super) durable: Position,
    pub(super) counts: LogCounts,
}

/// What reading a log took, and gave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogCounts {
    /// Bytes of map read.
    pub(super) map_bytes: u64,
    /// Bytes of blocks read to verify by checksum that they were written.
    pub(super) checked_bytes: u64,
    /// Entries up to the end.
    pub(super) replayed: u64,
    /// Entries beyond the end.
    pub(super) dropped: u64,
}

/// A segment of a log.
pub(super) struct LogSegment {
    pub(super) id: u32,
    pub(super) seq: u64,
    pub(super) next: u32,
    /// Entries from block 0 on; those before the first page that was read are placeholders.
    pub(super) entries: Vec<Entry>,
}

/// Reads logs, and ends them.
pub(super) struct Replay {
    pub(super) map: DeviceRef,
    pub(super) tag: u32,
}

impl Replay {
    /// Reads a log from its position in the checkpoint.
    pub(super) async fn read_log(
        &self,
        state: &State,
        number: usize,
        from: LogRecord,
    ) -> Result<Log, ChainError> {
        let start = Position::new(from.seq.get(), from.slot.get());
        let mut scan = Scan::new(&state.label, self.tag, number, start, state.next_seq);
        let mut counts = LogCounts::default();
        let mut id = from.segment.get();
        while id != NO_SEGMENT && state.segments.exists(id) && !scan.has(id) {
            // The last page of a full segment names the next one.
            let page = scan.next_slot().min(state.label.segment_blocks - 1) / ENTRIES_PER_PAGE;
            let first = page * (ENTRIES_PER_PAGE / ENTRIES_PER_SECTOR);
            let sectors = self.read_sectors(state, id, first, &mut counts).await?;
            match scan.add(id, first, &sectors)? {
                Some(next) => id = next,
                None => break,
            }
        }
        let mut log = scan.into_log();
        log.counts = counts;
        settle(state, &mut log, start).await?;
        Ok(log)
    }

    /// The sectors of a segment's map from the one numbered `first` on.
    async fn read_sectors(
        &self,
        state: &State,
        id: u32,
        first: u32,
        counts: &mut LogCounts,
    ) -> Result<Vec<Sector>, ChainError> {
        let layout = state.label.layout();
        let len = layout.segment_map() - first as usize * SECTOR;
        let at = layout.map_of(id) + u64::from(first) * SECTOR as u64;
        let mut sectors = Vec::new();
        counts.map_bytes += len as u64;
        let whole = match self.map.copies() {
            1 => self.map.read(at, len, Purpose::Map).await.ok(),
            _ => None,
        };
        for page in (0..len).step_by(PAGE) {
            let index = (first as usize + page / SECTOR) as u16;
            let bytes = match &whole {
                Some(bytes) => Some(bytes.slice(page..page + PAGE)),
                None => self.agree(at + page as u64, index).await?,
            };
            for number in 0..PAGE / SECTOR {
                let index = first as usize + page / SECTOR + number;
                let bytes = bytes.as_ref().map(|bytes| &bytes[number * SECTOR..][..SECTOR]);
                sectors.push(Sector::decode(bytes, self.tag, index as u16));
            }
        }
        Ok(sectors)
    }

    /// Reads a page of the map, and makes every copy agree with the result; `None` when no copy can be read.
    ///
    /// A crash may leave copies that differ in writes that no flush had covered, each of them valid. The next
    /// recovery must find what this one uses, whichever copy it reads.
    async fn agree(&self, at: u64, first: u16) -> Result<Option<bytes::Bytes>, ChainError> {
        let mut copies = Vec::new();
        for copy in 0..self.map.copies() {
            copies.extend(self.map.read_copy(copy, at, PAGE, Purpose::Map).await);
        }
        let Some(one) = copies.first() else { return Ok(None) };
        let mut agreed = AlignedBuf::copy_of(one);
        for (number, sector) in agreed.chunks_exact_mut(SECTOR).enumerate() {
            let of_copy = |copy: &bytes::Bytes| {
                let bytes = copy.slice(number * SECTOR..(number + 1) * SECTOR);
                let found = MapSector::ref_from_bytes(&bytes).ok()?;
                let head = found.verify(self.tag, first + number as u16)?;
                Some(((head.seq, head.count), bytes.clone()))
            };
            if let Some((_, best)) = copies.iter().filter_map(of_copy).max_by_key(|(rank, _)| *rank)
            {
                sector.copy_from_slice(&best);
            }
        }
        let agreed = agreed.freeze();
        if copies.iter().any(|copy| *copy != agreed) {
            self.map.write(at, vec![agreed.clone()], Purpose::Repair).await?;
        }
        Ok(Some(agreed))
    }

    /// Overwrites sectors beyond a log's end, so that a later recovery does not join them to new entries.
    pub(super) async fn seal(&self, state: &State, log: &Log) -> Result<(), ChainError> {
        for (id, index) in &log.stale {
            self.put_sector(state, *id, *index, &[0; SECTOR]).await?;
        }
        if !log.stale.is_empty() {
            self.map.flush(Purpose::Map).await?;
        }
        // Nor may entries beyond the end in the last sector be joined to later ones.
        if let Some((index, sector)) = log.last_sector(self.tag) {
            let id = log.segments.last().map_or(0, |segment| segment.id);
            self.put_sector(state, id, index, sector.as_bytes()).await?;
            self.map.flush(Purpose::Map).await?;
        }
        Ok(())
    }

    /// Overwrites one sector of a segment's map; the other sectors in the device's unit keep their content.
    async fn put_sector(
        &self,
        state: &State,
        id: u32,
        index: u16,
        sector: &[u8],
    ) -> Result<(), ChainError> {
        let unit = (self.map.geometry().sector as usize).clamp(SECTOR, PAGE);
        let at = usize::from(index) * SECTOR;
        let start = at / unit * unit;
        let offset = state.label.layout().map_of(id) + start as u64;
        let mut buffer = AlignedBuf::copy_of(&self.map.read(offset, unit, Purpose::Map).await?);
        buffer[at - start..at - start + SECTOR].copy_from_slice(sector);
        self.map.write(offset, vec![buffer.freeze()], Purpose::Map).await?;
        Ok(())
    }
}

/// Ends a log at the first block that was never written, and then at the last whole transaction.
async fn settle(state: &State, log: &mut Log, start: Position) -> Result<(), ChainError> {
    let all = log.entries.len();
    let doubtful = log.entries.partition_point(|(at, _, _)| *at < log.durable);
    let checked = &mut log.counts.checked_bytes;
    let written = written_entries(state, &log.entries, doubtful, checked).await?;
    let whole = whole_entries(&log.entries, 0, written);
    log.entries.truncate(whole);
    log.check_versions(state.version)?;
    log.counts.dropped += (all - whole) as u64;
    log.counts.replayed += whole as u64;
    log.cut(log.entries.last().map_or(start, |(at, _, _)| Position(at.0 + 1)));
    Ok(())
}

/// How many of a log's entries come before the first one, from `doubtful` on, whose block was never written.
/// Adds the bytes that it had to read to `checked`.
pub(super) async fn written_entries(
    state: &State,
    entries: &[(Position, u32, MapEntry)],
    doubtful: usize,
    checked: &mut u64,
) -> Result<usize, ChainError> {
    for (number, (_, block, entry)) in entries.iter().enumerate().skip(doubtful) {
        if matches!(entry.kind, Kind::Data | Kind::Moved | Kind::Mini) {
            *checked += BLOCK_SIZE as u64;
            if !holds(state, *block, entry).await? {
                return Ok(number);
            }
        }
    }
    Ok(entries.len())
}

/// How many of the first `written` entries of a log belong to whole transactions; at least `committed`.
pub(super) fn whole_entries(
    entries: &[(Position, u32, MapEntry)],
    committed: usize,
    written: usize,
) -> usize {
    let ends = |number: &usize| entries.get(number - 1).is_some_and(|(_, _, entry)| entry.last);
    (committed + 1..=written).rev().find(ends).unwrap_or(committed)
}

/// Whether a block holds the content that its entry names. True for a block that cannot be read: no crash
/// explains that, and its readers get the error.
async fn holds(state: &State, block: u32, entry: &MapEntry) -> Result<bool, ChainError> {
    let Some((link, offset)) = state.segments.place(block) else { return Ok(false) };
    let device = &state.segments.links[link].device;
    let right = |content: &[u8]| match entry.kind {
        Kind::Mini => minilog::format::open(entry, &Bytes::copy_from_slice(content)).is_some(),
        _ => block_checksum(entry.lba, content) == entry.check,
    };
    match read_verified(device, offset, BLOCK_SIZE, Purpose::UserData, right).await {
        Ok(Verified::Whole { .. }) | Err(_) => Ok(true),
        Ok(Verified::Damaged) => Ok(false),
    }
}

impl Log {
    /// Adds a segment's entries from `start` on.
    fn take(&mut self, segment: LogSegment, start: Position, per: u32) -> Result<(), ChainError> {
        for (slot, entry) in segment.entries.iter().enumerate() {
            let at = Position::new(segment.seq, slot as u32);
            if at < start {
                continue;
            }
            let entry = entry.decode().ok_or_else(|| {
                ChainError::Damaged(format!("unknown map entry in segment {}", segment.id))
            })?;
            self.entries.push((at, segment.id * per + slot as u32, entry));
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Checks that versions follow each other without a gap that a [leap](MapEntry::leap) notes: otherwise part of the log
    /// is missing.
    fn check_versions(&self, mut version: Version) -> Result<(), ChainError> {
        for (_, block, entry) in &self.entries {
            let first = match entry.kind {
                Kind::Data | Kind::Discard => entry.version,
                Kind::Mini => Version(entry.version.0.saturating_sub(entry.lba.0)),
                Kind::Pad if entry.is_leap() => Version(entry.lba.0),
                _ => continue,
            };
            if first < version || first > version.next() {
                return Err(ChainError::Damaged(format!(
                    "the log goes from version {version} to {} at block {block}: a part of it, or \
                     a newer checkpoint, is missing",
                    entry.version
                )));
            }
            version = entry.version;
        }
        Ok(())
    }

    /// The sector in which the log ends, without entries beyond the end; `None` at a sector's start.
    fn last_sector(&self, tag: u32) -> Option<(u16, MapSector)> {
        let last = self.segments.last()?;
        let filled = last.entries.len();
        let first = filled / ENTRIES_PER_SECTOR as usize * ENTRIES_PER_SECTOR as usize;
        let index = (first / ENTRIES_PER_SECTOR as usize) as u16;
        let head = SectorHead {
            seq: last.seq,
            durable: if self.number == USERS { self.end } else { Position::default() },
            uncommitted: u16::MAX,
            next: NO_SEGMENT,
            index,
            count: (filled - first) as u8,
            log: self.number as u8,
        };
        (filled > first).then(|| (index, MapSector::seal(tag, head, &last.entries[first..])))
    }

    /// Ends the log at `end`; sectors after it are stale.
    fn cut(&mut self, end: Position) {
        self.end = end;
        let keep = self.segments.iter().position(|segment| segment.seq == end.seq()).unwrap_or(0);
        for segment in &mut self.segments[keep..] {
            let kept = if segment.seq == end.seq() { end.slot() } else { 0 };
            let first = kept.div_ceil(ENTRIES_PER_SECTOR);
            let last = (segment.entries.len() as u32).div_ceil(ENTRIES_PER_SECTOR);
            self.stale.extend((first..last).map(|index| (segment.id, index as u16)));
            segment.entries.truncate(kept as usize);
        }
        self.segments.truncate(keep + 1);
    }
}
