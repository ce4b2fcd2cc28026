//! A log's segments, one after the other: the entries that count, and the log's end. Without I/O.

use super::super::ChainError;
use super::super::format::{ENTRIES_PER_SECTOR, Entry, Kind, MapEntry, NO_SEGMENT, Position};
use super::super::label::Label;
use super::super::sector::Sector;
use super::super::stream::USERS;
use super::cases::{
    SectorClass, SectorConditions, SectorDecision, SegmentConditions, SegmentDecision, on_sector,
    on_segment,
};
use super::{Log, LogSegment};
use crate::block::{Lba, Version};

/// A log as far as recovery has read it.
pub(super) struct Scan<'a> {
    label: &'a Label,
    tag: u32,
    /// The lowest sequence of a segment opened after the checkpoint.
    first_new: u64,
    start: Position,
    is_open: bool,
    log: Log,
}

impl<'a> Scan<'a> {
    /// A scan of the log `number` from its position `start` in the checkpoint.
    pub(super) fn new(
        label: &'a Label,
        tag: u32,
        number: usize,
        start: Position,
        first_new: u64,
    ) -> Scan<'a> {
        let log = Log {
            number,
            segments: Vec::new(),
            entries: Vec::new(),
            end: start,
            stale: Vec::new(),
            top: start.seq(),
            durable: start,
            counts: Default::default(),
        };
        Scan { label, tag, first_new, start, is_open: true, log }
    }

    /// The first block of the next segment whose entry is needed.
    pub(super) fn next_slot(&self) -> u32 {
        match self.log.segments.is_empty() {
            true => self.start.slot(),
            false => 0,
        }
    }

    /// Whether the segment was added.
    pub(super) fn has(&self, id: u32) -> bool {
        self.log.segments.iter().any(|segment| segment.id == id)
    }

    /// Adds the segment `id`, whose map has `sectors` from the one numbered `first` on; returns the segment
    /// that it names as the next one, `None` when the log does not reach this segment.
    ///
    /// # Errors
    /// [`ChainError::Damaged`] when no crash explains the sectors.
    pub(super) fn add(
        &mut self,
        id: u32,
        first: u32,
        sectors: &[Sector],
    ) -> Result<Option<u32>, ChainError> {
        let (seq, slot) = match self.log.segments.is_empty() {
            true => (Some(self.start.seq()), self.start.slot()),
            false => (self.own_seq(sectors), 0),
        };
        let found = SegmentConditions {
            is_used: seq.is_some(),
            is_open: self.is_open,
            has_ruins: sectors.iter().any(Sector::is_ruin),
        };
        let seq = match (on_segment(&found), seq) {
            (SegmentDecision::Read, Some(seq)) => seq,
            (SegmentDecision::RefuseDamage, _) => return Err(damaged_map(id, 0)),
            _ => return Ok(None),
        };
        self.log.top = self.log.top.max(seq);
        let mut segment = LogSegment::new(id, seq, first);
        let gap_before = !self.is_open;
        for (sector, index) in sectors.iter().zip(first as u16..) {
            self.add_sector(&mut segment, sector, index, gap_before)?;
        }
        // Entries before the checkpoint's position were durable before the checkpoint.
        if segment.entries.len() < slot as usize {
            return Err(damaged_map(id, segment.entries.len() as u32 / ENTRIES_PER_SECTOR));
        }
        let next = segment.next;
        self.log.take(segment, self.start, self.label.segment_blocks)?;
        Ok(Some(next))
    }

    /// The sequence under which this log opened a segment after those that were added.
    fn own_seq(&self, sectors: &[Sector]) -> Option<u64> {
        let mut own = sectors.iter().filter_map(Sector::head).filter(|head| {
            // An interrupted recovery may have left a segment that the next one opened again.
            let cut = self.label.is_cut(head.log, head.seq);
            let new = head.seq >= self.first_new && head.seq > self.log.top;
            usize::from(head.log) == self.log.number && new && !cut
        });
        own.next().map(|head| head.seq)
    }

    /// Adds the sector `index` of a segment; `gap_before` says whether the log ended before the segment.
    fn add_sector(
        &mut self,
        segment: &mut LogSegment,
        sector: &Sector,
        index: u16,
        gap_before: bool,
    ) -> Result<(), ChainError> {
        let class = self.class(sector, index, segment.seq);
        let mut found =
            SectorConditions { class, is_open: self.is_open, is_full: false, shows_loss: false };
        let mut entries: &[Entry] = &[];
        if let (SectorClass::Own, Sector::Whole(head, own)) = (class, sector) {
            entries = own;
            found.is_full = u32::from(head.count) == ENTRIES_PER_SECTOR;
            let first = u32::from(index) * ENTRIES_PER_SECTOR;
            let committed = first.saturating_sub(u32::from(head.uncommitted));
            found.shows_loss = head.uncommitted != u16::MAX
                && (gap_before || committed > segment.entries.len() as u32);
            // Data of compaction is durable before its entries are.
            let durable = match self.log.number {
                USERS => head.durable,
                _ => Position::new(head.seq, first + u32::from(head.count)),
            };
            self.log.durable = self.log.durable.max(durable);
            segment.next = head.next;
        }
        match on_sector(&found) {
            SectorDecision::Append => segment.entries.extend_from_slice(entries),
            SectorDecision::AppendLast => {
                segment.entries.extend_from_slice(entries);
                self.is_open = false;
            }
            SectorDecision::End => self.is_open = false,
            SectorDecision::Skip => {}
            SectorDecision::Overwrite => self.log.stale.push((segment.id, index)),
            SectorDecision::RefuseDamage => return Err(damaged_map(segment.id, index.into())),
            SectorDecision::RefuseCheckpoint => return Err(missed_checkpoint(segment.id)),
        }
        Ok(())
    }

    /// The class of the sector `index` in the use of its segment under `seq`.
    fn class(&self, sector: &Sector, index: u16, seq: u64) -> SectorClass {
        let number = self.log.number as u8;
        match sector {
            Sector::Unreadable => SectorClass::Unreadable,
            Sector::Damaged(sector) if sector.resembles(self.tag, index, seq, number) => {
                SectorClass::Damaged
            }
            Sector::Damaged(_) | Sector::Other => SectorClass::Blank,
            Sector::Whole(head, _) if head.seq > seq && head.seq >= self.first_new => {
                SectorClass::Newer
            }
            Sector::Whole(head, _) if head.seq == seq && head.log == number => SectorClass::Own,
            Sector::Whole(..) => SectorClass::Other,
        }
    }

    /// The log, whose end is yet to be verified.
    pub(super) fn into_log(self) -> Log {
        self.log
    }
}

fn damaged_map(segment: u32, sector: u32) -> ChainError {
    ChainError::Damaged(format!(
        "the map of segment {segment} is damaged before or at sector {sector}, in entries that \
         were durable"
    ))
}

/// A segment was opened again after the checkpoint that is being replayed: a newer checkpoint is missing.
fn missed_checkpoint(segment: u32) -> ChainError {
    ChainError::Damaged(format!(
        "segment {segment} was written after a checkpoint that is missing or damaged"
    ))
}

impl LogSegment {
    fn new(id: u32, seq: u64, first: u32) -> LogSegment {
        let pad =
            MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: Version(0), check: 0 };
        let entries = vec![Entry::encode(&pad); (first * ENTRIES_PER_SECTOR) as usize];
        LogSegment { id, seq, next: NO_SEGMENT, entries }
    }
}
