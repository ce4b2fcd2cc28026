//! The uses of each segment according to its map, and the extent of each log.

use super::super::format::{ENTRIES_PER_SECTOR, NO_SEGMENT, PAGE, Position, SECTOR, SectorHead};
use super::super::label::{Label, Layout};
pub(super) use super::super::sector::Sector;
use crate::device::{DeviceRef, Purpose};

/// Reads the map of one segment after the other.
pub(super) struct Maps<'a> {
    pub(super) map: &'a DeviceRef,
    pub(super) layout: Layout,
    pub(super) tag: u32,
}

impl Maps<'_> {
    /// The sectors of a segment's map. Writes nothing: a copy that differs stays as it is.
    pub(super) async fn read(&self, segment: u32) -> Vec<Sector> {
        let (at, len) = (self.layout.map_of(segment), self.layout.segment_map());
        let mut best: Vec<Sector> = Vec::new();
        for copy in 0..self.map.copies() {
            let whole = self.map.read_copy(copy, at, len, Purpose::Map).await.ok();
            for page in (0..len).step_by(PAGE) {
                let bytes = match &whole {
                    Some(bytes) => Some(bytes.slice(page..page + PAGE)),
                    None => {
                        let at = at + page as u64;
                        self.map.read_copy(copy, at, PAGE, Purpose::Map).await.ok()
                    }
                };
                for number in 0..PAGE / SECTOR {
                    let index = page / SECTOR + number;
                    let bytes = bytes.as_ref().map(|bytes| &bytes[number * SECTOR..][..SECTOR]);
                    let found = Sector::decode(bytes, self.tag, index as u16);
                    match best.get_mut(index) {
                        None => best.push(found),
                        Some(known) if found.rank() > known.rank() => *known = found,
                        Some(_) => {}
                    }
                }
            }
        }
        best
    }
}

/// The newest use of a segment. Remnants of earlier uses count no more: a segment is opened again only after
/// a checkpoint to which none of its blocks mattered.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) id: u32,
    pub(super) seq: u64,
    pub(super) log: u8,
    /// One more than the last slot with an entry.
    pub(super) top: u32,
    /// Slots below it without an entry: the first, and one more than the last.
    pub(super) gaps: Vec<(u32, u32)>,
    /// Sectors that look like damaged ones of this use.
    pub(super) damaged: Vec<u16>,
    /// Whether the first sector is damaged: it may be that of a newer use.
    pub(super) headless: bool,
    /// The segment in which the log continues.
    pub(super) next: u32,
    /// Entries of its log below it are known to have been durable.
    pub(super) committed: Position,
    /// Data below it is known to have been durable; in the log of compaction, entries of users.
    pub(super) durable: Position,
}

/// The content of a segment's map.
pub(super) enum Shown {
    /// No sector of this volume.
    Nothing,
    /// None that is whole, but some that were.
    Ruins,
    /// Its newest use.
    Life(Life),
}

/// Interprets the sectors of a segment.
pub(super) fn shown(id: u32, sectors: &[Sector], tag: u32) -> Shown {
    let heads = sectors.iter().filter_map(Sector::head);
    let Some(newest) = heads.max_by_key(|head| head.seq) else {
        let ruins = sectors.iter().any(Sector::is_ruin);
        return if ruins { Shown::Ruins } else { Shown::Nothing };
    };
    let mut life = Life {
        id,
        seq: newest.seq,
        log: newest.log,
        top: 0,
        gaps: Vec::new(),
        damaged: Vec::new(),
        headless: sectors.first().is_some_and(Sector::is_ruin),
        next: NO_SEGMENT,
        committed: Position::default(),
        durable: Position::default(),
    };
    for (index, sector) in sectors.iter().enumerate() {
        let first = index as u32 * ENTRIES_PER_SECTOR;
        match sector {
            Sector::Whole(head, _) if head.seq == life.seq => life.add(head, first),
            Sector::Damaged(sector) if sector.resembles(tag, index as u16, life.seq, life.log) => {
                life.damaged.push(index as u16);
            }
            Sector::Unreadable => life.damaged.push(index as u16),
            _ => {}
        }
    }
    Shown::Life(life)
}

impl Life {
    fn add(&mut self, head: &SectorHead, first: u32) {
        if first > self.top {
            self.gaps.push((self.top, first));
        }
        self.top = first + u32::from(head.count);
        self.next = head.next;
        self.durable = self.durable.max(head.durable);
        if head.uncommitted != u16::MAX {
            let slot = first.saturating_sub(u32::from(head.uncommitted));
            self.committed = self.committed.max(Position::new(self.seq, slot));
        }
    }

    fn at(&self, slot: u32) -> Position {
        Position::new(self.seq, slot)
    }

    /// Whether a slot lies in a sector that looks damaged.
    fn looks_damaged(&self, slot: u32) -> bool {
        self.damaged.iter().any(|index| u32::from(*index) == slot / ENTRIES_PER_SECTOR)
    }

    /// Every slot without an entry.
    pub(super) fn missing(&self, per: u32) -> impl Iterator<Item = Gap> + '_ {
        let rest = (self.top < per).then_some((self.top, per));
        let gaps = self.gaps.iter().copied().chain(rest);
        gaps.map(|(first, end)| Gap { segment: self.id, seq: self.seq, first, end })
    }

    /// Records a part of the map as lost.
    fn lose(&self, (first, end): (u32, u32), lost: &mut Vec<Gap>) {
        if first < end {
            lost.push(Gap { segment: self.id, seq: self.seq, first, end });
        }
    }
}

/// Missing entries of a segment that were durable, or may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) segment: u32,
    /// 0 when the segment's sequence is unknown.
    pub(super) seq: u64,
    pub(super) first: u32,
    pub(super) end: u32,
}

impl Gap {
    /// The parts of it that are not among `others`, which ascend within a segment.
    pub(super) fn without(self, others: &[Gap]) -> Vec<Gap> {
        let (mut parts, mut first) = (Vec::new(), self.first);
        for other in others.iter().filter(|other| other.seq == self.seq) {
            let end = other.first.min(self.end);
            parts.push(Gap { first, end, ..self });
            first = first.max(other.end);
        }
        parts.push(Gap { first, ..self });
        parts.retain(|part| part.first < part.end);
        parts
    }
}

/// The extent of a log.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// Entries below it were durable.
    pub(super) committed: Position,
    /// Data below it was durable.
    pub(super) durable: Position,
    /// Its entries end here according to the map; their contents are not verified yet.
    pub(super) end: Position,
    /// The reserved next segment: free, though its map may show an earlier use.
    pub(super) reserved: u32,
}

/// Follows a log through its lives, which ascend by sequence, to its end: its entries below `known` were
/// durable. Skips gaps that are damage, and ends at the first that a crash explains. `ruined` says whether a
/// segment may have been opened after a sequence and has no whole sector of that use.
pub(super) fn follow(
    log: u8,
    lives: &[&Life],
    label: &Label,
    known: Position,
    ruined: impl Fn(u32, u64) -> bool,
    lost: &mut Vec<Gap>,
) -> Reach {
    let per = label.segment_blocks;
    let cut = label.cuts.last().map_or(0, |cut| cut.ends[usize::from(log)]);
    let own = lives.iter().map(|life| life.committed).max().unwrap_or_default();
    let committed = own.max(known).max(Position::new(cut, 0));
    let durable = lives.iter().map(|life| life.durable).max().unwrap_or_default();
    let mut reach = Reach { committed, durable, end: committed, reserved: NO_SEGMENT };
    // Below that position, only damage explains a gap.
    for life in lives.iter().filter(|life| life.seq < committed.seq()) {
        life.gaps.iter().for_each(|gap| life.lose(*gap, lost));
        life.lose((life.top, per), lost);
    }
    let mut rest = lives.iter().filter(|life| life.seq >= committed.seq()).peekable();
    while let Some(life) = rest.next() {
        let mut end = life.top;
        for gap in &life.gaps {
            // A sector of which a part was durable is there whole, as it was then or later: its absence is
            // damage, over its whole length.
            if life.at(gap.0) >= committed && !life.looks_damaged(gap.0) {
                end = gap.0;
                break;
            }
            life.lose(*gap, lost);
        }
        // Another sector may have followed a full one.
        let mut after = end;
        while end == life.top
            && after < per
            && after % ENTRIES_PER_SECTOR == 0
            && life.looks_damaged(after)
        {
            after += ENTRIES_PER_SECTOR;
        }
        life.lose((end, after), lost);
        reach.end = life.at(after);
        reach.reserved = life.next;
        if after < per || life.next == NO_SEGMENT {
            break;
        }
        match rest.peek() {
            Some(next) if next.id == life.next => {}
            _ if ruined(life.next, life.seq) => {
                lost.push(Gap { segment: life.next, seq: 0, first: 0, end: per });
            }
            _ => break,
        }
    }
    reach
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(seq: u64, first: u32, end: u32) -> Gap {
        Gap { segment: 3, seq, first, end }
    }

    #[test]
    fn the_parts_of_a_gap_beside_others() {
        let parts = |others: &[Gap]| -> Vec<(u32, u32)> {
            gap(7, 60, 240).without(others).iter().map(|part| (part.first, part.end)).collect()
        };
        assert_eq!(parts(&[]), [(60, 240)]);
        assert_eq!(parts(&[gap(7, 60, 240)]), []);
        assert_eq!(parts(&[gap(7, 60, 90)]), [(90, 240)]);
        assert_eq!(
            parts(&[gap(7, 0, 30), gap(7, 90, 120), gap(7, 210, 240)]),
            [(60, 90), (120, 210)]
        );
        assert_eq!(parts(&[gap(8, 60, 240)]), [(60, 240)], "of another use");
    }
}
