//! One log: the segment that it writes, the map entries that are not yet durable, and the blocks that no
//! device has yet.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::format::{
    ENTRIES_PER_SECTOR, Entry, MapEntry, MapSector, NO_SEGMENT, PAGE, Position, SECTOR, SectorHead,
};
use super::segments::Segments;
use crate::block::BLOCK_SIZE;
use crate::device::{AlignedBuf, Purpose};

/// The users' log, at the tail of the chain.
pub(super) const USERS: usize = 0;
/// The log of compaction in the body.
pub(super) const BODY: usize = 1;

/// Entries of a segment that is open, or whose entries are not all durable.
#[derive(Debug)]
pub(super) struct SegmentMap {
    pub(super) id: u32,
    pub(super) seq: u64,
    pub(super) next: u32,
    pub(super) entries: Vec<Entry>,
    /// Entries that are durable on the map device.
    pub(super) committed: u32,
    /// Entries in sectors of rounds, durable or not.
    pub(super) sealed: u32,
    /// The last sector must be written again: it names the next segment.
    pub(super) renamed: bool,
    /// The round whose sectors name the next segment, while that name is not durable.
    pub(super) naming: Option<u64>,
}

impl SegmentMap {
    /// The map of a segment that is about to be written.
    pub(super) fn fresh(id: u32, seq: u64) -> SegmentMap {
        SegmentMap {
            id,
            seq,
            next: NO_SEGMENT,
            entries: Vec::new(),
            committed: 0,
            sealed: 0,
            renamed: false,
            naming: None,
        }
    }

    /// Whether its newest name is durable.
    fn is_named(&self) -> bool {
        !self.renamed && self.naming.is_none()
    }

    fn is_sealed(&self) -> bool {
        self.sealed as usize == self.entries.len() && !self.renamed
    }

    fn is_committed(&self) -> bool {
        self.committed as usize == self.entries.len() && self.is_named()
    }
}

/// A block in the queue of its log.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) position: Position,
    pub(super) block: u32,
    pub(super) content: Bytes,
    pub(super) purpose: Purpose,
}

/// A live physical block that no device has yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) content: Bytes,
    pub(super) check: u32,
}

/// A run of blocks for one request to a device.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) log: usize,
    pub(super) start: Position,
    pub(super) first: u32,
    pub(super) contents: Vec<Bytes>,
    pub(super) purpose: Purpose,
}

/// Sectors to be written to the map of one segment.
#[derive(Debug)]
pub(super) struct MapWrite {
    pub(super) segment: u32,
    /// First byte within the segment's map.
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
}

/// The map entries of a round, for the map device.
#[derive(Debug)]
pub(super) struct Sealed {
    /// Rounds are numbered in the order in which they take their entries.
    pub(super) number: u64,
    /// Every entry below is in these sectors, or in those of earlier rounds.
    pub(super) until: Position,
    pub(super) writes: Vec<MapWrite>,
}

/// A log.
#[derive(Debug)]
pub(super) struct Stream {
    log: usize,
    tag: u32,
    per: u32,
    /// Oldest first; the last one is open.
    maps: VecDeque<SegmentMap>,
    queue: VecDeque<Queued>,
    /// Requests that are under way, ascending: where each begins, and its blocks.
    in_flight: SmallVec<[(Position, usize); 4]>,
    /// Below this, data survives a crash.
    pub(super) durable: Position,
    /// Below this, map entries survive a crash too.
    pub(super) committed: Position,
    /// Links with completed writes that no flush has covered.
    pub(super) unflushed: BTreeSet<usize>,
    /// Queued blocks below this are to be written soon, however few they are.
    wanted: Position,
    /// Number of calls of [`Stream::seal`].
    seals: u64,
}

impl Stream {
    /// A log that continues in `map`, whose present entries are durable.
    pub(super) fn new(log: usize, tag: u32, per: u32, map: SegmentMap) -> Stream {
        let at = Position::new(map.seq, map.entries.len() as u32);
        Stream {
            log,
            tag,
            per,
            maps: VecDeque::from([map]),
            queue: VecDeque::new(),
            in_flight: SmallVec::new(),
            durable: at,
            committed: at,
            unflushed: BTreeSet::new(),
            wanted: at,
            seals: 0,
        }
    }

    /// The open segment's map.
    pub(super) fn open(&self) -> &SegmentMap {
        self.maps.back().expect("a log always has an open segment")
    }

    /// The segment of the oldest entry that is not yet durable.
    pub(super) fn oldest_segment(&self) -> u32 {
        self.maps.front().map_or(self.open().id, |map| map.id)
    }

    pub(super) fn open_mut(&mut self) -> &mut SegmentMap {
        self.maps.back_mut().expect("a log always has an open segment")
    }

    /// The next position.
    pub(super) fn tail(&self) -> Position {
        let open = self.open();
        Position::new(open.seq, open.entries.len() as u32)
    }

    /// Blocks left in the open segment.
    pub(super) fn room(&self) -> u32 {
        self.per - self.open().entries.len() as u32
    }

    /// Blocks in the queue.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Requests that are under way, and their blocks.
    pub(super) fn in_flight(&self) -> (usize, usize) {
        (self.in_flight.len(), self.in_flight.iter().map(|(_, blocks)| blocks).sum())
    }

    /// Whether blocks wait for a request or are under way.
    pub(super) fn is_writing(&self) -> bool {
        !self.queue.is_empty() || !self.in_flight.is_empty()
    }

    /// Requests that everything queued now is written soon.
    pub(super) fn hurry(&mut self) {
        self.wanted = self.tail();
    }

    /// Whether the queue has `enough` blocks to be written, or is to be written soon.
    pub(super) fn wants_writing(&self, enough: usize) -> bool {
        self.queued() >= enough || self.is_queued(self.wanted)
    }

    /// Whether blocks below `until` wait for a request.
    pub(super) fn is_queued(&self, until: Position) -> bool {
        self.queue.front().is_some_and(|queued| queued.position < until)
    }

    /// Adds an entry, and its content if it has any; returns its physical block.
    pub(super) fn append(
        &mut self,
        entry: &MapEntry,
        content: Option<Bytes>,
        purpose: Purpose,
    ) -> u32 {
        debug_assert!(self.room() > 0);
        let position = self.tail();
        let open = self.open_mut();
        let block = open.id * self.per + position.slot();
        let open = self.open_mut();
        open.entries.push(Entry::encode(entry));
        if let Some(content) = content {
            self.queue.push_back(Queued { position, block, content, purpose });
        }
        block
    }

    /// Continues in the segment `id` with sequence `seq`.
    pub(super) fn roll(&mut self, id: u32, seq: u64) {
        self.set_next(id);
        let reached = self.committed == self.tail() && self.open().is_named();
        let entries = Vec::with_capacity(self.per as usize);
        self.maps.push_back(SegmentMap { entries, ..SegmentMap::fresh(id, seq) });
        if reached {
            self.committed = self.tail();
        }
    }

    /// Names the segment in which the log continues after the open one.
    pub(super) fn set_next(&mut self, id: u32) {
        let open = self.open_mut();
        if open.next != id {
            open.next = id;
            open.renamed = !open.entries.is_empty();
        }
    }

    /// Drops the name of the segment after the open one; returns it.
    pub(super) fn forget_next(&mut self) -> Option<u32> {
        let open = self.open_mut();
        let next = std::mem::replace(&mut open.next, NO_SEGMENT);
        open.renamed |= next != NO_SEGMENT && !open.entries.is_empty();
        (next != NO_SEGMENT).then_some(next)
    }

    /// Everything below this position has reached its device, though perhaps only its cache.
    pub(super) fn written(&self) -> Position {
        let queued = self.queue.front().map(|queued| queued.position);
        let in_flight = self.in_flight.first().map(|(start, _)| *start);
        queued.into_iter().chain(in_flight).min().unwrap_or_else(|| self.tail())
    }

    /// Blocks whose content recovery would have to check after a crash at this point.
    pub(super) fn window(&self) -> u32 {
        let tail = self.tail();
        match tail.seq() == self.durable.seq() {
            true => tail.slot() - self.durable.slot(),
            false => u32::MAX,
        }
    }

    /// Takes the longest run of at most `most` queued blocks below `until` that one request can
    /// write.
    pub(super) fn take_batch(&mut self, until: Position, most: usize) -> Option<Batch> {
        let first = self.queue.front().filter(|queued| queued.position < until)?;
        let (start, block, purpose) = (first.position, first.block, first.purpose);
        let segment = block / self.per;
        let mut contents = Vec::new();
        while let Some(queued) = self.queue.front() {
            let next = block + contents.len() as u32;
            let fits = queued.block == next
                && queued.block / self.per == segment
                && queued.purpose == purpose
                && queued.position < until
                && contents.len() < most;
            if !fits {
                break;
            }
            contents.extend(self.queue.pop_front().map(|queued| queued.content));
            // The unused rest of a mini-log block is not written.
            if contents.last().is_some_and(|content: &Bytes| content.len() < BLOCK_SIZE) {
                break;
            }
        }
        // The queue is in the order of positions.
        self.in_flight.push((start, contents.len()));
        Some(Batch { log: self.log, start, first: block, contents, purpose })
    }

    /// Records that a batch has reached `link`.
    pub(super) fn finish_batch(&mut self, start: Position, link: usize) {
        if let Ok(at) = self.in_flight.binary_search_by_key(&start, |(start, _)| *start) {
            self.in_flight.remove(at);
        }
        self.unflushed.insert(link);
    }

    /// The map sectors with every entry below `until` that no earlier round has, in units of `unit` bytes.
    /// `users` is the position of the users' log for the sectors of compaction.
    ///
    /// Includes the last sector of the previous round again. So they may be written only after its sectors;
    /// its flush need not have ended.
    pub(super) fn seal(&mut self, until: Position, unit: usize, users: Position) -> Sealed {
        self.seals += 1;
        let number = self.seals;
        let marks = Marks {
            tag: self.tag,
            log: self.log as u8,
            durable: if self.log == USERS { self.durable } else { users },
            committed: self.committed,
        };
        let mut writes = Vec::new();
        for map in self.maps.iter_mut().filter(|map| map.seq <= until.seq()) {
            let filled = match map.seq == until.seq() {
                true => until.slot() as usize,
                false => map.entries.len(),
            };
            if filled > map.sealed as usize || (map.renamed && filled > 0) {
                if std::mem::take(&mut map.renamed) {
                    map.naming = Some(number);
                    map.sealed = map.sealed.min(filled.saturating_sub(1) as u32);
                }
                writes.push(sectors(map, filled, &marks, unit));
                map.sealed = filled as u32;
            }
        }
        Sealed { number, until, writes }
    }

    /// Whether rounds have taken every entry and every change of name.
    pub(super) fn is_sealed(&self) -> bool {
        self.maps.iter().all(SegmentMap::is_sealed)
    }

    /// Whether every entry, and every change of name, is durable on the map device.
    pub(super) fn is_committed(&self) -> bool {
        self.maps.iter().all(SegmentMap::is_committed)
    }

    /// Records that the sectors of a round and of all rounds before it are durable.
    pub(super) fn commit(&mut self, round: &Sealed) {
        let target = round.until;
        self.committed = self.committed.max(target);
        for map in &mut self.maps {
            map.naming = map.naming.filter(|number| *number > round.number);
        }
        // The end of a segment is the start of the next one, whose sectors may name it as durable once the
        // name of that segment is durable: before, they would claim that for a log that does not lead there.
        let full = self.maps.iter().position(|map| map.seq == target.seq());
        if let Some(at) = full
            && let Some(next) = self.maps.get(at + 1)
            && target.slot() == self.per
            && self.maps[at].is_named()
        {
            self.committed = self.committed.max(Position::new(next.seq, 0));
        }
        for map in &mut self.maps {
            match map.seq.cmp(&target.seq()) {
                std::cmp::Ordering::Less => map.committed = map.entries.len() as u32,
                std::cmp::Ordering::Equal => map.committed = map.committed.max(target.slot()),
                std::cmp::Ordering::Greater => {}
            }
        }
        while self.maps.len() > 1 && self.maps.front().is_some_and(SegmentMap::is_committed) {
            self.maps.pop_front();
        }
    }

    /// The links that hold the data of entries which are not yet durable, and of the open segment.
    pub(super) fn links_of_uncommitted(&self, segments: &Segments) -> BTreeSet<usize> {
        self.maps.iter().map(|map| usize::from(segments.get(map.id).link)).collect()
    }

    /// Whether the map of a segment is still in memory.
    pub(super) fn holds_map_of(&self, segment: u32) -> bool {
        self.maps.iter().any(|map| map.id == segment)
    }
}

/// The common fields of all sectors of a round.
struct Marks {
    tag: u32,
    log: u8,
    durable: Position,
    committed: Position,
}

impl Marks {
    /// Blocks between the committed position and the block `slot` of a segment.
    fn uncommitted(&self, seq: u64, slot: usize) -> u16 {
        match self.committed.seq() == seq {
            true => u16::try_from(slot.saturating_sub(self.committed.slot() as usize))
                .unwrap_or(u16::MAX),
            false => u16::MAX,
        }
    }
}

/// The sectors of `map` with those of its first `filled` entries that are not yet sealed.
fn sectors(map: &SegmentMap, filled: usize, marks: &Marks, unit: usize) -> MapWrite {
    let per = ENTRIES_PER_SECTOR as usize;
    let in_unit = unit / SECTOR;
    let first = map.sealed as usize / per / in_unit * in_unit;
    let end = filled.div_ceil(per).next_multiple_of(in_unit);
    let mut bytes = AlignedBuf::zeroed((end - first) * SECTOR);
    for (index, room) in (first..end).zip(bytes.chunks_exact_mut(SECTOR)) {
        let entries = &map.entries[(index * per).min(filled)..((index + 1) * per).min(filled)];
        if entries.is_empty() {
            continue;
        }
        let head = SectorHead {
            seq: map.seq,
            durable: marks.durable,
            uncommitted: marks.uncommitted(map.seq, index * per),
            next: map.next,
            index: index as u16,
            count: entries.len() as u8,
            log: marks.log,
        };
        room.copy_from_slice(MapSector::seal(marks.tag, head, entries).as_bytes());
    }
    debug_assert!(unit.is_multiple_of(SECTOR) && PAGE.is_multiple_of(unit));
    MapWrite { segment: map.id, offset: (first * SECTOR) as u64, bytes: bytes.freeze() }
}

#[cfg(test)]
mod tests;
