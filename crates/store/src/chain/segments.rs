//! Physical space: links, their segments, and how many live blocks each holds.
//!
//! A segment's life: *free* → *open* (a log writes it) → *used* → *emptied* (no live block) → *free*.
//! The last step waits for a checkpoint: until then a crash would replay entries that refer to it,
//! or restore a version whose content lies in it.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::format::{LinkRecord, Placement};
use crate::block::BLOCK_SIZE;
use crate::device::DeviceRef;

/// A segment's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentState {
    /// Belongs to no link.
    Absent,
    /// May be written.
    Free,
    /// A log writes it, or has reserved it as its next one.
    Open,
    /// Closed; may hold live blocks.
    Used,
    /// Closed, without live blocks, and not yet past a checkpoint.
    Emptied,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) state: SegmentState,
    pub(super) link: u16,
    /// Blocks that the index refers to.
    pub(super) live: u32,
    /// Sequence of its last opening; 0 for never.
    pub(super) seq: u64,
    /// The sequence of the opening before, whose entries the map shows until newer ones are durable.
    pub(super) before: u64,
    /// Holds a block of which no copy is whole; it is not cleaned.
    pub(super) damaged: bool,
    /// Tasks that read or repair it, and need it not to be written anew meanwhile.
    pub(super) pins: u32,
}

const NOWHERE: Segment = Segment {
    state: SegmentState::Absent,
    link: 0,
    live: 0,
    seq: 0,
    before: 0,
    damaged: false,
    pins: 0,
};

/// A link of the chain.
#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) id: Uuid,
    pub(super) device: DeviceRef,
    pub(super) base: u32,
    pub(super) count: u32,
    /// It is being removed, and takes no more writes.
    pub(super) leaving: bool,
    pub(super) free: BTreeSet<u32>,
    /// The segment that was opened last.
    last: u32,
    /// Whether its device is a rotational disk.
    is_rotational: bool,
    /// The drives that it lies on.
    drives: Vec<String>,
}

impl LinkState {
    fn shares_drive(&self, other: &LinkState) -> bool {
        self.drives.iter().any(|drive| other.drives.contains(drive))
    }
}

/// Every segment of every link.
#[derive(Debug)]
pub(super) struct Segments {
    per: u32,
    placement: Placement,
    table: Vec<Segment>,
    pub(super) links: Vec<LinkState>,
    live: u64,
    /// Segments in the state [`SegmentState::Emptied`].
    emptied: usize,
    /// Segments that are kept because some of their blocks cannot be read.
    damaged: u32,
    /// See [`Segments::gains`].
    gains: u64,
}

impl Segments {
    /// No links; segments of `per` blocks.
    pub(super) fn new(per: u32, placement: Placement) -> Segments {
        Segments {
            per,
            placement,
            table: Vec::new(),
            links: Vec::new(),
            live: 0,
            emptied: 0,
            damaged: 0,
            gains: 0,
        }
    }

    /// Adds a link whose segments are all free.
    pub(super) fn add_link(&mut self, record: &LinkRecord, device: DeviceRef) {
        let (base, count) = (record.base.get(), record.segments.get());
        let link = self.links.len() as u16;
        let end = (base + count) as usize;
        if self.table.len() < end {
            self.table.resize(end, NOWHERE);
        }
        for id in base..base + count {
            // Readers of a link that had these numbers before may not have ended.
            let pins = self.table[id as usize].pins;
            self.table[id as usize] = Segment { state: SegmentState::Free, link, pins, ..NOWHERE };
        }
        self.links.push(LinkState {
            id: Uuid::from_bytes(record.id),
            is_rotational: device.is_rotational(),
            drives: device.drives(),
            device,
            base,
            count,
            leaving: record.leaving != 0,
            free: (base..base + count).collect(),
            last: base,
        });
        self.gains += 1;
    }

    /// Removes a link without live blocks.
    pub(super) fn remove_link(&mut self, link: usize) {
        let gone = self.links.remove(link);
        for id in gone.base..gone.base + gone.count {
            self.set_state(id, SegmentState::Absent);
            let pins = self.table[id as usize].pins;
            self.table[id as usize] = Segment { pins, ..NOWHERE };
        }
        for segment in &mut self.table {
            if usize::from(segment.link) > link {
                segment.link -= 1;
            }
        }
    }

    /// Blocks in a segment.
    pub(super) fn per(&self) -> u32 {
        self.per
    }

    /// One more than the highest segment.
    pub(super) fn len(&self) -> u32 {
        self.table.len() as u32
    }

    pub(super) fn get(&self, id: u32) -> &Segment {
        &self.table[id as usize]
    }

    /// Changes a segment's state.
    fn set_state(&mut self, id: u32, state: SegmentState) {
        let before = std::mem::replace(&mut self.table[id as usize].state, state);
        self.emptied -= usize::from(before == SegmentState::Emptied);
        self.emptied += usize::from(state == SegmentState::Emptied);
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Segment {
        &mut self.table[id as usize]
    }

    /// Whether `id` names a segment of some link.
    pub(super) fn exists(&self, id: u32) -> bool {
        self.table.get(id as usize).is_some_and(|segment| segment.state != SegmentState::Absent)
    }

    /// The segment of a physical block.
    pub(super) fn of(&self, block: u32) -> u32 {
        block / self.per
    }

    /// The link that holds a physical block, and the block's first byte there; `None` when the
    /// link has left the chain.
    pub(super) fn place(&self, block: u32) -> Option<(usize, u64)> {
        let segment = self.of(block);
        if !self.exists(segment) {
            return None;
        }
        let link = usize::from(self.get(segment).link);
        let first = u64::from(self.links[link].base) * u64::from(self.per);
        Some((link, (u64::from(block) - first) * BLOCK_SIZE as u64))
    }

    /// Counts a new reference to a physical block.
    pub(super) fn add_live(&mut self, block: u32) {
        let id = self.of(block);
        self.table[id as usize].live += 1;
        self.live += 1;
    }

    /// Counts a lost reference to a physical block.
    pub(super) fn drop_live(&mut self, block: u32) {
        let id = self.of(block);
        let segment = &mut self.table[id as usize];
        segment.live -= 1;
        self.live -= 1;
        self.gains += 1;
        if segment.live == 0 && segment.state == SegmentState::Used {
            self.damaged -= u32::from(std::mem::take(&mut segment.damaged));
            self.set_state(id, SegmentState::Emptied);
        }
    }

    /// Excludes a segment from cleaning until none of its blocks is live.
    pub(super) fn set_damaged(&mut self, id: u32) {
        let segment = &mut self.table[id as usize];
        self.damaged += u32::from(!std::mem::replace(&mut segment.damaged, true));
    }

    /// Cleaning may choose a segment again: its damage may be repaired.
    pub(super) fn set_repaired(&mut self, id: u32) {
        if let Some(segment) = self.table.get_mut(id as usize) {
            let was_damaged = std::mem::take(&mut segment.damaged);
            self.damaged -= u32::from(was_damaged);
            self.gains += u64::from(was_damaged);
        }
    }

    /// Grows with everything that may let cleaning gain more than before: blocks that die, segments that become free, repairs.
    pub(super) fn gains(&self) -> u64 {
        self.gains
    }

    /// Segments that are kept because some of their blocks cannot be read.
    pub(super) fn damaged(&self) -> u32 {
        self.damaged
    }

    /// Segments that would be free if all live blocks were packed.
    pub(super) fn spare(&self) -> u32 {
        let live = self.live.div_ceil(u64::from(self.per)) as u32;
        self.total().saturating_sub(live).saturating_sub(self.damaged)
    }

    /// Live blocks altogether.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Takes a given segment for writing.
    pub(super) fn open(&mut self, id: u32) {
        self.set_state(id, SegmentState::Open);
        let link = usize::from(self.table[id as usize].link);
        self.links[link].free.remove(&id);
        self.links[link].last = id;
    }

    /// Notes that a log begins to write an open segment under the sequence `seq`.
    pub(super) fn begin(&mut self, id: u32, seq: u64) {
        let segment = &mut self.table[id as usize];
        segment.before = std::mem::replace(&mut segment.seq, seq);
    }

    /// Releases an open segment that was reserved and never written.
    pub(super) fn unreserve(&mut self, id: u32) {
        self.set_state(id, SegmentState::Free);
        let link = usize::from(self.table[id as usize].link);
        self.links[link].free.insert(id);
    }

    /// Ends the writing of a segment.
    pub(super) fn close(&mut self, id: u32) {
        let is_empty = self.table[id as usize].live == 0;
        self.set_state(id, if is_empty { SegmentState::Emptied } else { SegmentState::Used });
    }

    /// How many segments are emptied.
    pub(super) fn emptied_count(&self) -> usize {
        self.emptied
    }

    /// Whether the tail goes from link to link.
    pub(super) fn goes_round(&self) -> bool {
        self.placement == Placement::RoundRobin
    }

    /// Whether a link that takes writes has no drive in common with the tail's link, which stays the tail's for long.
    pub(super) fn has_body(&self, tail: usize) -> bool {
        if self.goes_round() {
            return false;
        }
        let Some(tail) = self.links.get(tail) else { return false };
        self.links.iter().any(|link| !link.leaving && !link.shares_drive(tail))
    }

    /// For each link, whether its drive is reserved for the tail: it shares one with the tail's link, and
    /// another link that takes writes does not (Gecko 3.1: cleaning never disturbs the tail's drive).
    pub(super) fn kept_for_tail(&self, tail: usize) -> Vec<bool> {
        match self.links.get(tail).filter(|_| self.has_body(tail)) {
            Some(tail) => self.links.iter().map(|link| link.shares_drive(tail)).collect(),
            None => vec![false; self.links.len()],
        }
    }

    /// The emptied segments.
    pub(super) fn emptied(&self) -> Vec<u32> {
        self.ids(|segment| segment.state == SegmentState::Emptied)
    }

    /// The segments that `wanted` accepts.
    pub(super) fn ids(&self, wanted: impl Fn(&Segment) -> bool) -> Vec<u32> {
        let chosen = self.table.iter().enumerate().filter(|(_, segment)| wanted(segment));
        chosen.map(|(id, _)| id as u32).collect()
    }

    /// Makes emptied segments writable, now that a checkpoint no longer refers to them.
    pub(super) fn free(&mut self, emptied: &[u32]) {
        for &id in emptied {
            let segment = self.table[id as usize];
            if segment.state == SegmentState::Emptied && segment.pins == 0 {
                self.set_state(id, SegmentState::Free);
                self.links[usize::from(segment.link)].free.insert(id);
                self.gains += 1;
            }
        }
    }

    /// Whether a checkpoint now would make segments writable.
    pub(super) fn can_free(&self) -> bool {
        self.table.iter().any(|segment| segment.state == SegmentState::Emptied && segment.pins == 0)
    }

    /// Free segments on all links that take writes.
    pub(super) fn free_count(&self) -> usize {
        self.links.iter().filter(|link| !link.leaving).map(|link| link.free.len()).sum()
    }

    /// Whether a link's device is a rotational disk.
    pub(super) fn has_arm(&self) -> bool {
        self.links.iter().any(|link| link.is_rotational)
    }

    /// Segments on all links that take writes.
    pub(super) fn total(&self) -> u32 {
        self.links.iter().filter(|link| !link.leaving).map(|link| link.count).sum()
    }

    /// The next free segment after `open` for the users' log, unless at most `keep` are free on each link.
    pub(super) fn next_after(&self, open: u32, keep: usize) -> Option<u32> {
        let links = self.links.len();
        let tail = usize::from(self.get(open).link);
        let by_turns = |step: usize| (tail + step) % links;
        if self.goes_round() {
            let mut turns = (1..=links).map(by_turns);
            return turns.find_map(|link| self.next_on(link, self.links[link].last + 1, keep));
        }
        let mut others = (1..links).map(by_turns);
        self.next_on(tail, open + 1, keep)
            .or_else(|| others.find_map(|link| self.next_on(link, 0, keep)))
    }

    /// The next free segment on `link`, in ascending order after `after` and then from the start; `None` when
    /// at most `keep` are free.
    pub(super) fn next_on(&self, link: usize, after: u32, keep: usize) -> Option<u32> {
        let state = self.links.get(link)?;
        if state.leaving || state.free.len() <= keep {
            return None;
        }
        state.free.range(after..).next().or_else(|| state.free.first()).copied()
    }
}
