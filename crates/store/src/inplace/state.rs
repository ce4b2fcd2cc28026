//! The state in memory, under one lock.
//!
//! **Invariants.**
//!
//! - A block is written in place only after its commit, except by a direct write.
//! - A block under writeback is not read from the device, and a block that is being read is not
//!   written.
//! - The journal keeps a transaction until all its changes are in place and durable: blocks, and
//!   the map's entries about them ([`Live`]).
//! - A block without a page has, at every version that is held, its in-place content.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::{HashMap, Time};

use super::format::Entry;
use super::live::Live;
use super::map::Map;
use super::options::{Mode, Options};
use super::pace::Pace;
use super::page::{Content, Due, History, Page};
use super::route::{Request, Route, Sequence, route};
use super::running::{Change, Closed, Running, difference};
use super::waiting::{Waiting, Which};
use crate::block::{BLOCK_SIZE, Class, Holds, Lba, StoreError, Version, Write};

#[derive(Debug)]
pub(super) struct State {
    /// The newest version.
    pub(super) now: Version,
    pub(super) options: Options,
    pub(super) pages: HashMap<u64, Page>,
    pub(super) map: Map,
    pub(super) live: Live,
    /// Transactions of which something is in place and not yet durable, each as often as it counts
    /// in `live`.
    pub(super) unflushed: Vec<u64>,
    /// An in-place write bypassed the journal, and no flush has started since.
    pub(super) unflushed_direct: bool,
    pub(super) running: Running,
    /// Maximum of bytes that the transaction under commit takes in the journal.
    pub(super) closing: usize,
    /// Backpressure on writers.
    pub(super) pace: Pace,
    pub(super) holds: Holds,
    /// Blocks that are being read from the device, each with the number of its readers.
    pub(super) reading: HashMap<u64, u32>,
    /// Data blocks, each with the last journal transaction that holds bytes of it, as far as
    /// recovery may replay it: a direct write must not go under bytes that recovery would replay
    /// over it.
    pub(super) logged: HashMap<u64, u64>,
    /// No direct write before recovery begins with this transaction: transactions before it did not
    /// note their data blocks in `logged`.
    pub(super) noted_from: u64,
    /// The first transaction that recovery may replay.
    pub(super) first_replayed: u64,
    /// Blocks to be written back.
    waiting: Waiting,
    /// Blocks that are not in place.
    pub(super) dirty: usize,
    /// Blocks that keep old content; a block may be listed more than once.
    aged: Vec<u64>,
    /// Clean blocks in the order in which eviction looks at them.
    idle: VecDeque<u64>,
    pub(super) counts: Counts,
    /// Why the store refuses writes.
    pub(super) poison: Option<Arc<str>>,
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Bytes that writes of data changed; a discarded block counts as zero bytes.
    pub data_bytes: u64,
    /// The same for metadata.
    pub metadata_bytes: u64,
    /// Journal transactions.
    pub commits: u64,
    /// Bytes of these in the journal.
    pub journal_bytes: u64,
    /// Blocks that were written back from the journal.
    pub checkpointed: u64,
    /// Blocks that were written in place directly.
    pub direct: u64,
    /// Unchanged blocks that were written again to close gaps between others.
    pub filled: u64,
    /// Number of releases of journal transactions.
    pub releases: u64,
    /// Blocks that were read from the device.
    pub reads: u64,
}

/// A block under writeback.
#[derive(Clone, Debug)]
pub(super) struct Homing {
    pub(super) lba: u64,
    pub(super) content: Content,
    pub(super) class: Class,
    /// Its entry in the map once it is in place.
    pub(super) entry: Entry,
    /// The journal transaction that holds it.
    pub(super) sequence: Option<u64>,
    pub(super) version: Version,
    pub(super) direct: bool,
    /// A held version sees the in-place content, which must be read before it is overwritten.
    pub(super) keep: bool,
    /// It is unchanged, and only closes a gap.
    pub(super) fills: bool,
}

/// A writeback batch.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) homing: Vec<Homing>,
    /// Further blocks that qualify, but are being read or written.
    pub(super) busy: usize,
    /// Further blocks that qualify, beyond the maximum.
    pub(super) more: usize,
}

/// Where a reader finds a block.
pub(super) enum Found {
    Content(Content),
    /// In place, with this entry in the map.
    Home(Entry),
    /// In place, and the map's page about it has to be read first.
    Unmapped,
    /// Under writeback, while the reader wants the content before that.
    Homing,
}

impl State {
    pub(super) fn new(map: Map, version: Version, options: Options) -> State {
        State {
            now: version,
            options,
            pages: HashMap::default(),
            map,
            live: Live::default(),
            unflushed: Vec::new(),
            unflushed_direct: false,
            running: Running::default(),
            closing: 0,
            pace: Pace::default(),
            holds: Holds::default(),
            reading: HashMap::default(),
            logged: HashMap::default(),
            noted_from: 0,
            first_replayed: 0,
            waiting: Waiting::default(),
            dirty: 0,
            aged: Vec::new(),
            idle: VecDeque::new(),
            counts: Counts::default(),
            poison: None,
        }
    }

    /// Whether a block's in-place entry is in memory.
    pub(super) fn is_mapped(&self, lba: u64) -> bool {
        self.pages.contains_key(&lba) || self.map.has(Map::page_of(lba))
    }

    /// Applies the writes of one transaction, at most one for each block; all blocks are mapped.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]; nothing was changed.
    pub(super) fn apply(
        &mut self,
        writes: Vec<Write>,
        history: History,
        now: Time,
    ) -> Result<Version, StoreError> {
        for write in &writes {
            if !self.pages.contains_key(&write.lba.0) {
                let home = self.map.entry(write.lba.0)?.unwrap_or(Entry::Empty);
                self.pages.insert(write.lba.0, Page::new(home));
            }
        }
        let version = self.now.next();
        let written = written(&writes);
        for (write, written) in writes.into_iter().zip(written) {
            self.change(write, written, (version, history), now);
        }
        self.now = version;
        self.evict();
        Ok(version)
    }

    /// Changes one block in the running transaction. `written`: bytes of the whole write.
    fn change(
        &mut self,
        write: Write,
        written: usize,
        (version, history): (Version, History),
        now: Time,
    ) {
        let lba = write.lba.0;
        let State { pages, running, holds, options, logged, noted_from, .. } = self;
        let State { first_replayed, counts, .. } = self;
        let Some(page) = pages.get_mut(&lba) else { return };
        let is_idle = !page.is_dirty();
        let empty = None;
        let old = page.newest().or((page.home == Entry::Empty).then_some(&empty));
        let ranges = match (&write.content, old) {
            (None, Some(None)) => return self.settle_idle(lba),
            (None, _) => write.changed,
            (Some(new), Some(old)) => difference(&write.changed, old.as_ref(), new),
            (Some(_), None) => write.changed,
        };
        if ranges.is_empty() && write.content.is_some() {
            return self.settle_idle(lba);
        }
        let bytes = if write.content.is_some() { ranges.bytes() as u64 } else { 0 };
        match write.class {
            Class::Data => counts.data_bytes += bytes,
            Class::Metadata => counts.metadata_bytes += bytes,
        }
        let was_empty = old.is_some_and(Option::is_none);
        let unsettled = was_empty && (page.running || page.committing);
        let request = Request {
            class: write.class,
            changed: ranges.bytes(),
            written,
            sequence: page.sequence,
            may_overwrite: match page.home {
                Entry::Empty => true,
                Entry::Unsummed => !unsettled,
                Entry::Summed(_) => false,
            } && !logged.contains_key(&lba)
                && *noted_from <= *first_replayed,
        };
        let way = route(options.mode, options.threshold, &request);
        if write.content.is_some() && page.sequence.is_none() {
            page.sequence = Some(match way {
                Route::Direct => Sequence::Direct,
                _ => Sequence::Journalled,
            });
        }
        let new = Change {
            content: write.content.clone(),
            class: write.class,
            route: way,
            ranges,
            fresh: was_empty,
        };
        running.begun.get_or_insert(now);
        match running.changes.get_mut(&lba) {
            Some(change) => {
                running.bytes -= change.room();
                change.go_on(new);
                running.bytes += change.room();
            }
            None => {
                running.bytes += new.room();
                running.changes.insert(lba, new);
            }
        }
        page.running = true;
        page.referenced = true;
        let is_aged = match history {
            History::Kept => page.change(version, write.content, holds),
            History::Dropped => page.replace(version, write.content, holds),
        };
        if is_aged {
            self.aged.push(lba);
        }
        self.dirty += usize::from(is_idle);
    }

    /// Drops the page of a block whose write changed nothing, if the page holds nothing.
    fn settle_idle(&mut self, lba: u64) {
        match self.pages.get(&lba) {
            Some(page) if page.newest().is_none() && page.is_idle() => {
                drop(self.pages.remove(&lba))
            }
            _ => {}
        }
    }

    /// Closes the running transaction.
    pub(super) fn close(&mut self) -> Closed {
        let running = std::mem::take(&mut self.running);
        self.closing = running.bytes;
        let mut changes: Vec<(u64, Change)> = running.changes.into_iter().collect();
        changes.sort_unstable_by_key(|(lba, _)| *lba);
        for (lba, _) in &changes {
            if let Some(page) = self.pages.get_mut(lba) {
                (page.running, page.committing) = (false, true);
            }
        }
        Closed { version: self.now, changes }
    }

    /// Takes the direct changes of a transaction for writing, except blocks that are being read or
    /// written; returns these too.
    pub(super) fn begin_direct(
        &mut self,
        closed: &Closed,
        lbas: impl Iterator<Item = u64>,
    ) -> (Vec<Homing>, Vec<u64>) {
        let (mut homing, mut busy) = (Vec::new(), Vec::new());
        for lba in lbas {
            let found = closed.changes.binary_search_by_key(&lba, |(lba, _)| *lba);
            let Some((_, change)) = found.ok().and_then(|at| closed.changes.get(at)) else {
                continue;
            };
            let due = Due {
                content: change.content.clone(),
                class: change.class,
                sequence: None,
                version: closed.version,
                direct: true,
                since: Time::ZERO,
            };
            match self.begin_homing(lba, &due) {
                Some(begun) => homing.push(begun),
                None => busy.push(lba),
            }
        }
        (homing, busy)
    }

    /// Takes a block for writing, unless it is being read or written.
    fn begin_homing(&mut self, lba: u64, due: &Due) -> Option<Homing> {
        if self.reading.contains_key(&lba) {
            return None;
        }
        let sums = self.options.mode.journals_all_data();
        let page = self.pages.get_mut(&lba).filter(|page| !page.homing)?;
        (page.homing, page.next_live) = (true, None);
        if page.home == Entry::Empty && page.sees_home(&self.holds) {
            page.keep_home(None);
            self.aged.push(lba);
        }
        let entry = match &due.content {
            None => Entry::Empty,
            Some(_) if due.direct => Entry::Unsummed,
            // Data that may be written directly next time must have no checksum then.
            Some(_) if due.class == Class::Data && !sums => Entry::Unsummed,
            Some(content) => Entry::of(content),
        };
        Some(Homing {
            lba,
            content: due.content.clone(),
            class: due.class,
            entry,
            sequence: due.sequence,
            version: due.version,
            direct: due.direct,
            keep: page.home != Entry::Empty && page.sees_home(&self.holds),
            fills: false,
        })
    }

    /// Takes committed blocks for a writeback batch, at most `most`; skips blocks that are being
    /// read or written.
    pub(super) fn begin_due(&mut self, which: Which, most: usize) -> Begun {
        let (due, more) = self.waiting.pick(which, &self.pages, most);
        let wanted = due.len();
        let mut homing = Vec::with_capacity(wanted);
        for lba in due {
            let waiting = self.pages.get(&lba).and_then(|page| page.due.clone());
            homing.extend(waiting.and_then(|due| self.begin_homing(lba, &due)));
        }
        let busy = wanted - homing.len();
        Begun { homing, busy, more }
    }

    /// Extends a writeback batch over gaps of at most `most` cached blocks, so that writes merge:
    /// blocks that are dirty anyway, and blocks whose in-place content is in memory. A crash
    /// changes nothing in the latter; and as they are under writeback, they are not written
    /// otherwise meanwhile.
    pub(super) fn close_gaps(&mut self, homing: Vec<Homing>, most: u64) -> Vec<Homing> {
        if most == 0 {
            return homing;
        }
        let mut closed: Vec<Homing> = Vec::with_capacity(homing.len());
        for next in homing {
            if let Some(last) = closed.last()
                && last.class == next.class
                && next.lba - last.lba - 1 <= most
                && last.content.is_some()
                && next.content.is_some()
            {
                let (between, class) = (last.lba + 1..next.lba, last.class);
                if between.clone().all(|lba| self.may_join(lba, class)) {
                    closed.extend(between.filter_map(|lba| self.begin_joining(lba, class)));
                }
            }
            closed.push(next);
        }
        closed
    }

    /// Whether a block of a gap can be written along with its neighbours of a class.
    fn may_join(&self, lba: u64, class: Class) -> bool {
        let Some(page) = self.pages.get(&lba) else { return false };
        match &page.due {
            Some(due) => {
                let is_free = !page.homing && !self.reading.contains_key(&lba);
                is_free && due.class == class && due.content.is_some()
            }
            None => self.fills(lba).is_some(),
        }
    }

    fn begin_joining(&mut self, lba: u64, class: Class) -> Option<Homing> {
        match self.pages.get(&lba)?.due.clone() {
            Some(due) => self.begin_homing(lba, &due),
            None => self.begin_filling(lba, class),
        }
    }

    /// A block's in-place content, if it is in memory and nothing is about to change it.
    fn fills(&self, lba: u64) -> Option<&Bytes> {
        let page = self.pages.get(&lba)?;
        let is_still = !page.is_dirty() && !self.reading.contains_key(&lba);
        page.newest().filter(|_| is_still && page.home != Entry::Empty)?.as_ref()
    }

    fn begin_filling(&mut self, lba: u64, class: Class) -> Option<Homing> {
        let content = Some(self.fills(lba)?.clone());
        let page = self.pages.get_mut(&lba)?;
        page.homing = true;
        self.dirty += 1;
        let (entry, version) = (page.home, self.now);
        let (sequence, direct, keep) = (None, false, false);
        Some(Homing { lba, content, class, entry, sequence, version, direct, keep, fills: true })
    }

    /// When more than `most` blocks are not in place: the age limit (time of the first change) that
    /// leaves a quarter of `most` once all older blocks are written back.
    pub(super) fn since_when_too_many(&self, most: usize) -> Option<Time> {
        let count = (self.dirty > most).then(|| self.dirty - most / 4)?;
        self.waiting.since(count, &self.pages)
    }

    /// Ends the writeback of a block, which is in place or was not written.
    pub(super) fn end_homing(&mut self, homing: &Homing, is_home: bool) {
        let State { pages, map, live, waiting, .. } = self;
        let Some(page) = pages.get_mut(&homing.lba) else { return };
        page.homing = false;
        if is_home && !homing.fills {
            page.home = homing.entry;
            if homing.direct {
                self.unflushed_direct = true;
                self.counts.direct += 1;
            } else {
                self.counts.checkpointed += 1;
            }
            if !page.committing || !homing.direct {
                map.set(homing.lba, homing.entry, homing.sequence, live);
            }
            let is_last = page.due.as_ref().is_none_or(|due| due.version <= homing.version);
            if is_last {
                waiting.set(homing.lba, page, None);
            }
            if homing.sequence.is_some() && (!homing.direct || is_last) {
                self.unflushed.extend(page.first_live.take());
                // Transactions that came into the journal since this writeback began still hold
                // newer changes.
                if let Some(next) = page.next_live.take() {
                    live.keep(&mut page.first_live, next);
                }
            }
        }
        self.settle(homing.lba);
    }

    /// A transaction is in the journal, or had nothing to journal. `home`: its direct changes were
    /// written in place before.
    pub(super) fn settle_commit(
        &mut self,
        closed: Closed,
        sequence: Option<u64>,
        home: bool,
        now: Time,
    ) {
        self.closing = 0;
        let notes = !self.options.mode.journals_all_data();
        for (lba, change) in closed.changes {
            let State { pages, map, live, logged, waiting, .. } = self;
            let Some(page) = pages.get_mut(&lba) else { continue };
            page.committing = false;
            let direct = change.is_direct();
            if let Some(sequence) = sequence.filter(|_| !direct && notes) {
                logged.insert(lba, sequence);
            }
            if direct {
                map.set(lba, Entry::Unsummed, sequence, live);
                if let Some(first) = page.first_live.take() {
                    // This transaction revokes older ones, once it is kept.
                    live.let_go(first);
                }
                page.next_live = None;
                waiting.set(lba, page, None);
            }
            if !(direct && home) {
                if let Some(sequence) = sequence.filter(|_| !direct) {
                    live.keep(&mut page.first_live, sequence);
                    if page.homing {
                        page.next_live.get_or_insert(sequence);
                    }
                }
                let since = page.due.as_ref().map_or(now, |due| due.since);
                let due = Due {
                    content: change.content,
                    class: change.class,
                    sequence,
                    version: closed.version,
                    direct,
                    since,
                };
                waiting.set(lba, page, Some(due));
            }
            self.settle(lba);
        }
    }

    /// Updates the counts and queues after a change that may have made a block clean.
    fn settle(&mut self, lba: u64) {
        let Some(page) = self.pages.get_mut(&lba) else { return };
        if page.due.is_none() && !page.running && !page.committing {
            page.sequence = None;
        }
        if page.is_dirty() {
            return;
        }
        self.dirty -= 1;
        match page.is_idle() && page.newest().is_none_or(Option::is_none) {
            true => drop(self.pages.remove(&lba)),
            false => self.queue(lba),
        }
    }

    /// Recovery begins with `first_replayed` from now on.
    pub(super) fn forget_logged(&mut self, first_replayed: u64) {
        self.first_replayed = first_replayed;
        self.logged.retain(|_, sequence| *sequence >= first_replayed);
    }

    /// Changes the options; `next`: the next journal transaction.
    pub(super) fn set_options(&mut self, options: Options, next: u64) {
        let notes = |mode: Mode| !mode.journals_all_data();
        if notes(options.mode) && !notes(self.options.mode) {
            // A commit in flight may take this number or come after it.
            self.noted_from = next + 1;
        }
        self.options = options;
    }

    /// Queues a block for eviction.
    fn queue(&mut self, lba: u64) {
        if let Some(page) = self.pages.get_mut(&lba)
            && !std::mem::replace(&mut page.queued, true)
        {
            self.idle.push_back(lba);
        }
    }

    /// Looks a block up at a version.
    pub(super) fn find(&mut self, lba: u64, at: Version) -> Result<Found, StoreError> {
        if let Some(page) = self.pages.get_mut(&lba) {
            page.referenced = true;
            if let Some(content) = page.at(at) {
                return Ok(Found::Content(content.clone()));
            }
            return Ok(match page.homing {
                true => Found::Homing,
                false => Found::Home(page.home),
            });
        }
        Ok(self.map.entry(lba)?.map_or(Found::Unmapped, Found::Home))
    }

    /// Caches a block that was read from the device.
    pub(super) fn keep_read(&mut self, lba: u64, home: Entry, content: Bytes) {
        match self.pages.get_mut(&lba) {
            Some(page) => {
                page.keep_home(Some(content));
                self.aged.push(lba);
            }
            None => {
                self.pages.insert(lba, Page::read(home, Some(content)));
                self.queue(lba);
            }
        }
    }

    /// Drops old content that no held version sees.
    pub(super) fn purge(&mut self) {
        let mut aged = std::mem::take(&mut self.aged);
        aged.sort_unstable();
        aged.dedup();
        aged.retain(|lba| {
            let Some(page) = self.pages.get_mut(lba) else { return false };
            let is_old = page.purge(&self.holds);
            if !is_old && page.is_idle() {
                self.queue(*lba);
            }
            is_old
        });
        self.aged = aged;
    }

    /// Blocks that keep old content, approximately.
    pub(super) fn aged(&self) -> usize {
        self.aged.len()
    }

    /// Drops clean blocks that were not used lately, while there are too many (CLOCK).
    pub(super) fn evict(&mut self) {
        let most = (self.options.cache / BLOCK_SIZE).max(16);
        let mut looks = self.idle.len();
        while self.pages.len() > most && looks > 0 {
            looks -= 1;
            let Some(lba) = self.idle.pop_front() else { return };
            let Some(page) = self.pages.get_mut(&lba) else { continue };
            page.queued = false;
            // A dirty block is queued again when it becomes clean.
            if !page.is_idle() {
                continue;
            }
            match std::mem::take(&mut page.referenced) {
                true => self.queue(lba),
                false => drop(self.pages.remove(&lba)),
            }
        }
    }
}

impl Change {
    /// Merges a later change in the same transaction.
    fn go_on(&mut self, new: Change) {
        let was_cleared = self.content.is_none();
        (self.content, self.class) = (new.content, new.class);
        match (&self.content, was_cleared) {
            (None, _) => {}
            (Some(_), true) => {
                (self.route, self.ranges, self.fresh) = (new.route, new.ranges, true)
            }
            (Some(_), false) => {
                self.ranges.add_all(&new.ranges);
                if self.route == Route::Bytes {
                    self.route = new.route;
                }
            }
        }
    }
}

/// For each write the bytes of the whole request that it is a part of: the run of neighbouring data
/// blocks.
fn written(writes: &[Write]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_unstable_by_key(|at| writes[*at].lba);
    let mut written = vec![0; writes.len()];
    let joins = |a: &usize, b: &usize| {
        let (a, b) = (&writes[*a], &writes[*b]);
        a.class == Class::Data && b.class == Class::Data && Lba(a.lba.0 + 1) == b.lba
    };
    for run in order.chunk_by(joins) {
        let bytes = run.iter().map(|at| writes[*at].changed.bytes()).sum();
        run.iter().for_each(|at| written[*at] = bytes);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::super::format::FORMAT_VERSION;
    use super::*;

    #[test]
    fn what_is_taken_for_the_way_home_leaves_the_rest_for_later() {
        let map = Map::new(uuid::Uuid::nil(), FORMAT_VERSION);
        let mut state = State::new(map, Version(0), Options::default());
        for lba in 0..8 {
            state.pages.insert(lba, Page::new(Entry::Empty));
        }
        state.reading.insert(2, 1);
        let write = |lba| Write::block(Lba(lba), vec![1; BLOCK_SIZE].into());
        for (lbas, sequence) in [(0..6, 1), (6..8, 2)] {
            state.apply(lbas.map(write).collect(), History::Kept, Time::ZERO).unwrap();
            let closed = state.close();
            state.settle_commit(closed, Some(sequence), true, Time::ZERO);
        }
        let begun = state.begin_due(Which::Before(2), 4);
        let lbas: Vec<u64> = begun.homing.iter().map(|homing| homing.lba).collect();
        assert_eq!((lbas, begun.busy, begun.more), (vec![0, 1, 3], 1, 2));
        let begun = state.begin_due(Which::All, 100);
        assert_eq!((begun.homing.len(), begun.more), (4, 0));
    }
}
