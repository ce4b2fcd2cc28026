//! Everything that is in memory, under one lock.
//!
//! **What must hold.**
//!
//! - Nothing goes home that is not committed, except what goes directly.
//! - A block that is on its way home is read by nobody, and one that is being read at home does not
//!   go there.
//! - The journal keeps a transaction until all that it says is home and durable: blocks, and the map's
//!   entries about them ([`Live`]).
//! - A block about which nothing is in memory is, at every version that is held, what is at home.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

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
use crate::env::{HashMap, Time};

#[derive(Debug)]
pub(super) struct State {
    /// The newest version.
    pub(super) now: Version,
    pub(super) options: Options,
    pub(super) pages: HashMap<u64, Page>,
    pub(super) map: Map,
    pub(super) live: Live,
    /// Transactions of which something is home and not yet durable there, each as often as it counts
    /// in `live`.
    pub(super) unflushed: Vec<u64>,
    /// Something went home directly, whoever wrote it, that no flush was begun for since.
    pub(super) unflushed_direct: bool,
    pub(super) running: Running,
    /// Bytes at most that the transaction takes which is being committed.
    pub(super) closing: usize,
    /// How fast writers go.
    pub(super) pace: Pace,
    pub(super) holds: Holds,
    /// Blocks that are being read at home, and how often.
    pub(super) reading: HashMap<u64, u32>,
    /// Data blocks and the last journal transaction that has bytes of them, as far as recovery may meet
    /// it: nothing goes home directly under bytes that might be replayed over it.
    pub(super) logged: HashMap<u64, u64>,
    /// Nothing goes home directly before recovery begins with this transaction: before, it was not noted
    /// which data blocks have bytes in the journal.
    pub(super) noted_from: u64,
    /// The first transaction that recovery may begin with.
    pub(super) first_replayed: u64,
    /// Blocks that may go home.
    waiting: Waiting,
    /// Blocks that are not home.
    pub(super) dirty: usize,
    /// Blocks that keep old content, each perhaps more than once.
    aged: Vec<u64>,
    /// Blocks that may be forgotten, in the order in which eviction looks at them.
    idle: VecDeque<u64>,
    pub(super) counts: Counts,
    /// Why writes are refused.
    pub(super) poison: Option<Arc<str>>,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Bytes that writes of data changed, a block that became empty counting as nothing.
    pub data_bytes: u64,
    /// The same of blocks of structure.
    pub metadata_bytes: u64,
    /// Transactions of the journal.
    pub commits: u64,
    /// Bytes that they take there.
    pub journal_bytes: u64,
    /// Blocks that were written home after they were in the journal.
    pub checkpointed: u64,
    /// Blocks that were written home directly.
    pub direct: u64,
    /// Blocks that were written once more where they were, to close gaps between others.
    pub filled: u64,
    /// Times that transactions were released from the journal.
    pub releases: u64,
    /// Reads of blocks at home.
    pub reads: u64,
}

/// A block on its way home.
#[derive(Clone, Debug)]
pub(super) struct Homing {
    pub(super) lba: u64,
    pub(super) content: Content,
    pub(super) class: Class,
    /// What the map says of it then.
    pub(super) entry: Entry,
    /// The journal transaction that has it.
    pub(super) sequence: Option<u64>,
    pub(super) version: Version,
    pub(super) direct: bool,
    /// Somebody sees what is at home now.
    pub(super) keep: bool,
    /// It is there already, and only closes a gap.
    pub(super) fills: bool,
}

/// Blocks that were taken for the way home.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) homing: Vec<Homing>,
    /// How many more would have been, were they not being read or written there.
    pub(super) busy: usize,
    /// How many more have to go home after these.
    pub(super) more: usize,
}

/// What a reader finds in memory of a block.
pub(super) enum Found {
    Content(Content),
    /// It is at home, and this is what is known of it.
    Home(Entry),
    /// What is known of it has to be read first.
    Unmapped,
    /// It is on its way home, and what was there before is wanted.
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

    /// Whether it is known what is at home of a block.
    pub(super) fn is_mapped(&self, lba: u64) -> bool {
        self.pages.contains_key(&lba) || self.map.has(Map::page_of(lba))
    }

    /// Applies the writes of one transaction, each about another block, whose blocks are all mapped.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: then nothing was changed.
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

    /// Changes one block for the running transaction. `written`: bytes of the whole write.
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

    /// Has a block that was looked at for nothing be found by eviction.
    fn settle_idle(&mut self, lba: u64) {
        match self.pages.get(&lba) {
            Some(page) if page.newest().is_none() && page.is_idle() => {
                drop(self.pages.remove(&lba))
            }
            _ => {}
        }
    }

    /// Ends the running transaction.
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

    /// Takes the direct changes of a transaction for the way home, those of them that are not being
    /// read there; the others' numbers.
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

    /// Takes a block for the way home, unless it is being read or written there.
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

    /// Takes committed blocks for the way home, of `most` at most those that are not being read or written
    /// there.
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

    /// Takes blocks along that lie between those on the way home, where they are at most `most` in a row
    /// and it is known from memory what each holds: those that wait for the way home, whatever for, and
    /// those that hold at home what is in memory. A crash changes nothing in these; and as they are on
    /// their way, nobody writes anything else there meanwhile.
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

    /// Whether a block can be written between others of a class.
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

    /// What is at home of a block, if it is in memory and nothing is about to change it.
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

    /// When there are more than `most` blocks that are not home: since when those have waited that have
    /// to go there so that a quarter of that many are left.
    pub(super) fn since_when_too_many(&self, most: usize) -> Option<Time> {
        let count = (self.dirty > most).then(|| self.dirty - most / 4)?;
        self.waiting.since(count, &self.pages)
    }

    /// A block is home, or did not get there.
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
                // What came into the journal after this still waits.
                if let Some(next) = page.next_live.take() {
                    live.keep(&mut page.first_live, next);
                }
            }
        }
        self.settle(homing.lba);
    }

    /// A transaction is in the journal, or had nothing to say there. `home` says whether direct changes
    /// went home before.
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
                    // Older transactions say nothing of it any more, once this one is kept.
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

    /// A block may have become clean.
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

    /// Recovery begins with a later transaction now.
    pub(super) fn forget_logged(&mut self, first_replayed: u64) {
        self.first_replayed = first_replayed;
        self.logged.retain(|_, sequence| *sequence >= first_replayed);
    }

    /// Runs in another way from now on; `next`: the next journal transaction.
    pub(super) fn set_options(&mut self, options: Options, next: u64) {
        let notes = |mode: Mode| !mode.journals_all_data();
        if notes(options.mode) && !notes(self.options.mode) {
            // A commit that is under way may come before it or after.
            self.noted_from = next + 1;
        }
        self.options = options;
    }

    /// Has eviction look at a block.
    fn queue(&mut self, lba: u64) {
        if let Some(page) = self.pages.get_mut(&lba)
            && !std::mem::replace(&mut page.queued, true)
        {
            self.idle.push_back(lba);
        }
    }

    /// What is in memory of a block at a version.
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

    /// Takes a block as it was read from home, for the next reader.
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

    /// Nobody holds a version any more.
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

    /// How many blocks keep old content, about.
    pub(super) fn aged(&self) -> usize {
        self.aged.len()
    }

    /// Forgets blocks that were not used lately while there are too many.
    pub(super) fn evict(&mut self) {
        let most = (self.options.cache / BLOCK_SIZE).max(16);
        let mut looks = self.idle.len();
        while self.pages.len() > most && looks > 0 {
            looks -= 1;
            let Some(lba) = self.idle.pop_front() else { return };
            let Some(page) = self.pages.get_mut(&lba) else { continue };
            page.queued = false;
            // One that is dirty again comes back when it is clean.
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
    /// A later change in the same transaction.
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

/// For each write the bytes of the whole write that it is a part of: those of neighbouring data blocks.
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
