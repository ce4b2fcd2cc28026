//! All state under the chain's main lock.
//!
//! [`State`] holds data of `minilog` ([`Minis`], [`Slots`]) and of `clean` (its pace). Methods on the whole state that
//! concern them are in those modules.

use std::sync::Arc;

use bytes::Bytes;
use roaring::RoaringBitmap;
use thalweg_env::HashMap;

use super::clean::pace::KEEP_PER_LINK;
use super::format::{Kind, MapEntry, NO_SEGMENT, block_checksum};
use super::index::{Index, Location, Place, is_slot};
use super::label::Label;
use super::minilog::Minis;
use super::minilog::slots::Slots;
use super::room::{Need, Room};
use super::segments::{SegmentState, Segments};
use super::stream::{BODY, Pending, Stream, USERS};
use super::synced::Synced;
use super::tap::Tap;
use super::turns::Turns;
use super::wishes::Wishes;
use crate::block::{Holds, Lba, StoreError, Version, Write};
use crate::device::Purpose;

/// The next segment is reserved when one part in this many of the open one is left.
const RESERVE_PART: u32 = 4;

#[derive(Debug)]
pub(super) struct State {
    pub(super) label: Label,
    pub(super) index: Index,
    pub(super) segments: Segments,
    pub(super) holds: Holds,
    /// The durable version that is held for readers.
    pub(super) synced: Synced,
    /// Holds that ended while older ones stayed, since the last pass over the index for them.
    pub(super) ended_within: usize,
    /// The newest version.
    pub(super) version: Version,
    /// The newest version that survives a crash.
    pub(super) committed: Version,
    /// The users' log, and the log of compaction when the volume has one.
    pub(super) users: Stream,
    pub(super) body: Option<Stream>,
    pub(super) next_seq: u64,
    /// Contents of live physical blocks that no device has yet.
    pub(super) pending: HashMap<u32, Pending>,
    /// Blocks that were written in parts, with their contents.
    pub(super) slots: Slots,
    pub(super) minis: Minis,
    /// Blocks to keep in memory.
    pub(super) wishes: Wishes,
    /// Blocks, live or dead, that no device has yet.
    pub(super) unwritten: usize,
    /// Those of them that cleaning appended, by log.
    pub(super) moving: [usize; 2],
    /// The links last announced as written: see `roles`.
    pub(super) told: [u16; 6],
    /// Logical blocks that changed since the last checkpoint.
    pub(super) dirty: RoaringBitmap,
    /// Map entries appended since the last checkpoint.
    pub(super) entries_since: u64,
    /// Scheduling of reads and log writes at the tail's drive.
    pub(super) turns: Turns,
    /// How far cleaning is behind writers.
    pub(super) cleaning: super::clean::pace::Pace,
    /// A task waits for a checkpoint: it settles slots at once.
    pub(super) checkpoint_hurry: bool,
    pub(super) poison: Option<Arc<str>>,
    /// Gets every change.
    pub(super) tap: Option<Arc<dyn Tap>>,
    /// Number of tasks that keep users from writing.
    pub(super) frozen: u32,
    /// Blocks that died, collected under the lock; `Inner::bury` handles them outside it.
    pub(super) dead: Vec<Dead>,
}

/// A physical block or slot that nothing refers to any more.
#[derive(Debug)]
pub(super) struct Dead {
    pub(super) block: u32,
    /// Its content, if no device had it yet: kept so that the memory is freed outside the lock.
    _content: Option<Bytes>,
}

impl State {
    pub(super) fn poison_check(&self) -> Result<(), StoreError> {
        match &self.poison {
            Some(why) => Err(StoreError::Poisoned(why.clone())),
            None => Ok(()),
        }
    }

    /// The content of a physical block or slot that no device has yet.
    pub(super) fn unwritten_content(&self, block: u32) -> Option<&Bytes> {
        match is_slot(block) {
            true => self.slots.get(block)?.content.as_ref(),
            false => Some(&self.pending.get(&block)?.content),
        }
    }

    /// The link that the tail is on.
    pub(super) fn tail_link(&self) -> usize {
        usize::from(self.segments.get(self.users.open().id).link)
    }

    pub(super) fn stream(&mut self, log: usize) -> &mut Stream {
        match (log, &mut self.body) {
            (BODY, Some(body)) => body,
            _ => &mut self.users,
        }
    }

    /// Maximum live physical blocks before writes are refused: all but the reserve for cleaning and the logs.
    pub(super) fn capacity(&self) -> u64 {
        let links = self.segments.links.iter().filter(|link| !link.leaving).count() as u32;
        let reserve = reserved_segments(links, self.body.is_some());
        let usable = self.segments.total().saturating_sub(reserve + self.segments.damaged());
        u64::from(usable) * u64::from(self.segments.per())
    }

    /// Whether users can append this much more.
    pub(super) fn room(&self, need: Need) -> Room {
        let live = self.segments.live() + self.slots.len() as u64 + u64::from(need.live);
        if live > self.capacity() + self.overwrite_slack() {
            return Room::Full;
        }
        // The free segments that cleaning needs for its victim stay reserved even where the open segment has
        // room: users who filled that would stop cleaning half way, and for ever.
        let links = self.segments.links.iter().filter(|link| !link.leaving).count();
        let kept = (links * KEEP_PER_LINK) as u64 * u64::from(self.segments.per());
        // The entry that ends a settling is reserved with the first slot.
        let mark = u64::from(need.slots > 0);
        let taken = u64::from(need.blocks + need.slots) + mark + self.owed();
        match self.appendable() >= taken + kept {
            true => Room::Yes,
            false if self.is_cleaned_in_vain() => Room::Full,
            false => Room::Wait,
        }
    }

    /// Blocks that the users' log could take before a checkpoint frees any, down to the last free
    /// segment.
    pub(super) fn appendable(&self) -> u64 {
        let reserved = usize::from(self.users.open().next != NO_SEGMENT);
        let segments = (self.segments.free_count() + reserved) as u64;
        u64::from(self.users.room()) + segments * u64::from(self.segments.per())
    }

    /// Blocks that cleaning could append to either log before a checkpoint frees any.
    pub(super) fn cleaning_room(&self) -> u64 {
        let users = self.appendable().saturating_sub(self.owed());
        let Some(body) = &self.body else { return users };
        let usable = |segment: u32, blocks: u32| match segment {
            NO_SEGMENT => 0,
            segment if self.fits(BODY, segment) => u64::from(blocks),
            _ => 0,
        };
        let (open, next) = (body.open().id, body.open().next);
        users + usable(open, body.room()) + usable(next, self.segments.per())
    }

    /// Extra room for overwrites on a full volume without old versions: its old blocks die as the new ones
    /// come.
    fn overwrite_slack(&self) -> u64 {
        match self.holds.oldest() {
            None => u64::from(self.segments.per()),
            Some(_) => 0,
        }
    }

    /// Appends one entry to a log and returns its physical block.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] when the log needs a new segment and none is free.
    pub(super) fn append(
        &mut self,
        log: usize,
        entry: &MapEntry,
        content: Option<Bytes>,
        purpose: Purpose,
    ) -> Result<u32, StoreError> {
        if self.stream(log).room() == 0 {
            self.roll(log, purpose == Purpose::Cleaning)?;
        }
        self.entries_since += 1;
        let pending = content.clone();
        let block = self.stream(log).append(entry, content, purpose);
        if let Some(content) = pending {
            self.pending.insert(block, Pending { content, check: entry.check });
            self.unwritten += 1;
            self.moving[log] += usize::from(purpose == Purpose::Cleaning);
        }
        Ok(block)
    }

    /// Continues a log in its next segment.
    pub(super) fn roll(&mut self, log: usize, cleaning: bool) -> Result<(), StoreError> {
        let open = self.stream(log).open();
        let (old, reserved) = (open.id, open.next);
        let usable = reserved != NO_SEGMENT && self.fits(log, reserved);
        let next = match usable {
            true => reserved,
            false => {
                let next = self.choose(log, cleaning).ok_or(StoreError::NoSpace)?;
                if reserved != NO_SEGMENT {
                    self.segments.unreserve(reserved);
                }
                next
            }
        };
        self.segments.open(next);
        let seq = self.take_seq();
        self.segments.begin(next, seq);
        self.stream(log).roll(next, seq);
        self.segments.close(old);
        self.reserve(log);
        Ok(())
    }

    /// A sequence that no segment has had.
    pub(super) fn take_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// Chooses the segment that follows the open one ahead of time, so that the map names it: only when the
    /// open one is nearly full, because a reserved segment holds no garbage that could gather meanwhile.
    pub(super) fn reserve(&mut self, log: usize) {
        let per = self.segments.per();
        let stream = self.stream(log);
        if stream.open().next != NO_SEGMENT || stream.room() > per / RESERVE_PART {
            return;
        }
        if let Some(next) = self.choose(log, false) {
            self.segments.open(next);
            self.stream(log).set_next(next);
        }
    }

    /// Whether a log may continue in a segment that it reserved: compaction keeps off the tail's drive, and
    /// both logs off links that leave.
    pub(super) fn fits(&self, log: usize, segment: u32) -> bool {
        let link = usize::from(self.segments.get(segment).link);
        let leaving = self.segments.links[link].leaving;
        !leaving && (log == USERS || !self.segments.kept_for_tail(self.tail_link())[link])
    }

    /// A free segment for a log. Users stay on the tail's link while it has one, then take the next link in
    /// the chain, or take the links by turns ([`Placement`](super::Placement)); compaction takes the link with the most free segments among those not kept for the tail.
    pub(super) fn choose(&self, log: usize, cleaning: bool) -> Option<u32> {
        let keep = if cleaning { 0 } else { KEEP_PER_LINK };
        let tail = self.tail_link();
        let links = self.segments.links.len();
        if log == BODY {
            if self.appendable() < u64::from(self.segments.per()) + self.owed() {
                // The users' log will need it for the blocks that it owes.
                return None;
            }
            let kept = self.segments.kept_for_tail(tail);
            let body = (0..links).filter(|link| !kept[*link]);
            let link = body.max_by_key(|link| {
                let state = &self.segments.links[*link];
                if state.leaving { 0 } else { state.free.len() }
            })?;
            return self.segments.next_on(link, 0, 0);
        }
        self.segments.next_after(self.users.open().id, keep)
    }

    /// Fills the open segment of a log with pads, so that the log continues in another one.
    pub(super) fn close_segment(&mut self, log: usize) {
        let pad =
            MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: self.version, check: 0 };
        while self.stream(log).room() > 0 {
            self.stream(log).append(&pad, None, Purpose::Map);
            self.entries_since += 1;
        }
    }

    /// Applies one transaction as `version`, for which the caller has ensured room. `small` says which writes become
    /// fragments; the others have their checksums in `checks`.
    pub(super) fn apply(
        &mut self,
        version: Version,
        writes: &[Write],
        checks: &[u32],
        small: &[bool],
    ) -> Result<(), StoreError> {
        let fragments = small.iter().filter(|small| **small).count();
        let whole = writes.len() - fragments;
        if whole > 0 {
            // The log's order is that of versions.
            self.seal_mini(true)?;
        }
        let ascends = writes.is_sorted_by(|a, b| a.lba < b.lba);
        let of_whole = writes.iter().zip(checks).zip(small).filter(|(_, small)| !**small);
        let mut of_whole = of_whole.map(|(of_whole, _)| of_whole).peekable();
        while let Some((write, check)) = of_whole.next() {
            // Adjacent discards share one entry, unless a later write may be to one of their blocks: a copy
            // of that entry would hide it.
            let mut run = 1;
            let follows = |(next, _): &(&Write, &u32), run: u32| {
                let at = write.lba.0 + u64::from(run);
                ascends && write.content.is_none() && next.content.is_none() && next.lba.0 == at
            };
            while of_whole.next_if(|next| follows(next, run)).is_some() {
                run += 1;
            }
            let last = of_whole.peek().is_none() && fragments == 0;
            let (kind, check) = match write.content {
                Some(_) => (Kind::Data, *check),
                None => (Kind::Discard, run),
            };
            let entry = MapEntry { kind, last, lba: write.lba, version, check };
            let block = self.append(USERS, &entry, write.content.clone(), Purpose::UserData)?;
            let lba = write.lba.0 as u32;
            match write.content {
                Some(_) => self.put(lba, version, Place::At(Location { block, check })),
                None => self.put_discard(lba, run, version, block),
            }
        }
        let mut begun = whole > 0;
        for (write, _) in writes.iter().zip(small).filter(|(_, small)| **small) {
            if let Some(content) = &write.content {
                self.apply_fragment(version, write, content, begun)?;
                begun = true;
            }
        }
        self.version = version;
        Ok(())
    }

    /// Marks a run of blocks as discarded by the entry in the physical block `record`.
    pub(super) fn put_discard(&mut self, lba: u32, count: u32, version: Version, record: u32) {
        let end = (u64::from(lba) + u64::from(count)).min(self.index.blocks()) as u32;
        let mut at = lba;
        while at < end {
            match self.index.empty_until(at) {
                Some(next) => at = next,
                None => {
                    self.put(at, version, Place::Hole(record));
                    at += 1;
                }
            }
        }
    }

    /// Changes the index, and updates live and dead blocks.
    pub(super) fn put(&mut self, lba: u32, version: Version, place: Place) {
        if let Place::At(at) = place
            && !is_slot(at.block)
        {
            self.segments.add_live(at.block);
        }
        self.index.put(lba, version, place, &self.holds);
        if self.wishes.wants(lba) {
            // Unwritten content is the content just written.
            let content = place.location().and_then(|at| self.unwritten_content(at.block).cloned());
            match (place, content) {
                (Place::At(at), Some(content)) => self.wishes.keep(lba, at, &content),
                _ => self.wishes.forget(lba),
            }
        }
        self.dirty.insert(lba);
        self.reap();
    }

    /// Keeps the content of a block in memory from now on.
    pub(super) fn wish(&mut self, lba: u32) {
        self.wishes.add(lba);
        if let Some(at) = self.index.get(lba, Version(u64::MAX))
            && let Some(content) = self.unwritten_content(at.block).cloned()
        {
            self.wishes.keep(lba, at, &content);
        }
    }

    /// Takes back the versions above `from` and up to `to`.
    pub(super) fn take_back(&mut self, from: Version, to: Version) {
        for lba in self.index.take_back(from, to, &self.holds) {
            self.dirty.insert(lba);
        }
        self.wishes.forget_all();
        self.reap();
    }

    /// Updates live and dead blocks after the index dropped versions.
    pub(super) fn reap(&mut self) {
        for record in self.index.take_gained() {
            self.segments.add_live(record);
        }
        self.dirty.extend(self.index.take_settled());
        for block in self.index.take_freed() {
            let content = match is_slot(block) {
                true => self.slots.free(block),
                false => {
                    self.segments.drop_live(block);
                    self.pending.remove(&block).map(|pending| pending.content)
                }
            };
            self.dead.push(Dead { block, _content: content });
        }
    }

    /// For cleaning: moves the version of `lba` that lies in `from` to a copy, if one still does.
    pub(super) fn relocate(
        &mut self,
        log: usize,
        entry: &MapEntry,
        from: u32,
        content: Bytes,
    ) -> Result<bool, StoreError> {
        let lba = entry.lba.0 as u32;
        if !self.index.refers(lba, from) {
            return Ok(false);
        }
        self.seal_before(log)?;
        let entry = MapEntry { kind: Kind::Moved, last: true, ..*entry };
        debug_assert_eq!(block_checksum(entry.lba, &content), entry.check);
        let to = self.append(log, &entry, Some(content), Purpose::Cleaning)?;
        self.segments.add_live(to);
        let to = Location { block: to, check: entry.check };
        self.index.relocate(lba, from, Place::At(to));
        self.wishes.moved(lba, from, to);
        self.dirty.insert(lba);
        self.reap();
        Ok(true)
    }

    /// Ends the open mini-log block before cleaning appends to its log.
    fn seal_before(&mut self, log: usize) -> Result<(), StoreError> {
        match log {
            BODY if self.body.is_some() => Ok(()),
            _ => self.seal_mini(true),
        }
    }

    /// For cleaning: appends a copy of a discard's record, if any block is still a hole because of it. The
    /// copy names the whole run, which remains correct: blocks of the run that were written since have a
    /// newer version.
    pub(super) fn carry(
        &mut self,
        log: usize,
        entry: &MapEntry,
        from: u32,
    ) -> Result<bool, StoreError> {
        if self.index.record(from).is_none() {
            return Ok(false);
        }
        self.seal_before(log)?;
        let entry = MapEntry { kind: Kind::MovedDiscard, last: true, ..*entry };
        let to = self.append(log, &entry, None, Purpose::Cleaning)?;
        let end = (entry.lba.0 + u64::from(entry.check)).min(self.index.blocks()) as u32;
        let mut lba = entry.lba.0 as u32;
        while lba < end {
            if let Some(next) = self.index.empty_until(lba) {
                lba = next;
                continue;
            }
            while self.index.relocate(lba, from, Place::Hole(to)) {
                self.dirty.insert(lba);
            }
            lba += 1;
        }
        self.reap();
        Ok(true)
    }

    /// Drops the voids of which the map shows no entry any more.
    pub(super) fn forget_voids(&mut self) {
        let shown = |id: u32| {
            let segment = self.segments.get(id);
            let mapped = self.users.holds_map_of(id)
                || self.body.as_ref().is_some_and(|body| body.holds_map_of(id));
            match (segment.state == SegmentState::Open || mapped) && segment.before > 0 {
                true => segment.before,
                false => segment.seq,
            }
        };
        let ids = 0..self.segments.len();
        let existing = ids.filter(|id| self.segments.exists(*id)).map(shown);
        let oldest = existing.filter(|seq| *seq > 0).min();
        self.label.voids.retain(|void| oldest.is_some_and(|oldest| oldest < void.seq));
    }

    /// The newest durable version, if that is held for readers or the newest of all.
    pub(super) fn synced(&mut self) -> Option<Version> {
        let is_held = self.holds.contains(self.committed);
        self.synced.newest(self.committed, is_held || self.committed == self.version)
    }

    /// Takes a hold of [`State::synced`].
    pub(super) fn hold_synced(&mut self) -> Option<Version> {
        self.synced().inspect(|version| self.holds.take(*version))
    }

    /// Takes a hold of the version that a round makes durable, while readers ask for it.
    pub(super) fn hold_round(&mut self) -> Option<Version> {
        self.synced.follow = self.synced.follow.checked_sub(1)?;
        self.holds.take(self.version);
        Some(self.version)
    }

    /// Replaces the durable version held for readers by the one that a round has made durable.
    pub(super) fn keep_synced(&mut self, held: Option<Version>) {
        if let Some(before) = std::mem::replace(&mut self.synced.version, held) {
            self.release(before);
        }
    }

    /// Ends the hold on the durable version until a reader asks again.
    pub(super) fn forget_synced(&mut self) {
        self.synced.follow = 0;
        self.keep_synced(None);
    }

    /// Runs of stored and absent blocks.
    pub(super) fn allocation(&self, lba: Lba, count: u64, at: Version) -> Vec<(u64, bool)> {
        let mut runs: Vec<(u64, bool)> = Vec::new();
        let mut add = |len: u64, stored: bool| match runs.last_mut() {
            Some(last) if last.1 == stored => last.0 += len,
            _ => runs.push((len, stored)),
        };
        let mut block = lba.0;
        let end = lba.0 + count;
        while block < end {
            match self.index.empty_until(block as u32) {
                Some(next) => {
                    let next = u64::from(next).min(end);
                    add(next - block, false);
                    block = next;
                }
                None => {
                    add(1, self.index.get(block as u32, at).is_some());
                    block += 1;
                }
            }
        }
        runs
    }

    /// Whether a segment may be cleaned: closed, durable, whole, and not on the tail's drive.
    pub(super) fn can_clean(&self, id: u32) -> bool {
        let link = usize::from(self.segments.get(id).link);
        self.is_closed_for_good(id) && !self.segments.kept_for_tail(self.tail_link())[link]
    }

    /// Whether a segment is closed, with durable map entries, and can be read.
    pub(super) fn is_closed_for_good(&self, id: u32) -> bool {
        let segment = self.segments.get(id);
        let mapped = self.users.holds_map_of(id)
            || self.body.as_ref().is_some_and(|body| body.holds_map_of(id));
        segment.state == SegmentState::Used && !segment.damaged && !mapped
    }
}

/// Segments reserved from users, so that cleaning can always work: one on each link, an open and a reserved
/// one for each log, and some to gain from.
pub(super) fn reserved_segments(links: u32, compaction: bool) -> u32 {
    links * KEEP_PER_LINK as u32 + if compaction { 6 } else { 4 }
}

#[cfg(test)]
mod tests;
