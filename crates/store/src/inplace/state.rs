//! The state in memory, under one lock, and what changes several parts of it at once.
//!
//! Each part has its invariants: [`Pages`] which block may be read or written when, [`Retention`] which transactions
//! the journal must keep, [`Replayable`] where a direct write is possible, [`Running`] what the next commit takes in the
//! journal. In addition, a block is written in place only after its commit, except by a direct write.

use std::sync::Arc;

use thalweg_env::Time;

use super::batch::{Batcher, PageWrite};
use super::format::Entry;
use super::map::Map;
use super::options::Options;
use super::page::{Due, History, Page};
use super::page_state::PageState;
use super::pages::{PageLookup, Pages};
use super::replayable::Replayable;
use super::route::{Request, Route, Sequence, route, written};
use super::running::{Change, Closed, Running, changed_bytes};
use crate::block::{BLOCK_SIZE, BlockVersion, ByteRanges, Class, StoreError, Version, Write};
use crate::journal::Retention;
use crate::journal::log::Pace;

#[derive(Debug)]
pub(super) struct StoreState {
    /// The newest version.
    pub(super) now: Version,
    pub(super) options: Options,
    pub(super) pages: Pages,
    pub(super) map: Map,
    pub(super) retention: Retention,
    pub(super) replayable: Replayable,
    pub(super) running: Running,
    /// Backpressure on writers.
    pub(super) pace: Pace,
    /// An in-place write bypassed the journal, and no flush has started since.
    pub(super) unflushed_direct: bool,
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
    /// Reads that found blocks of which no copy is right.
    pub damaged: u64,
}

/// Where a block is found.
pub(super) enum BlockLookup {
    Page(PageLookup),
    /// In place, and the map's page about it has to be read first.
    Unmapped,
}

impl StoreState {
    pub(super) fn new(map: Map, version: Version, options: Options) -> StoreState {
        StoreState {
            now: version,
            options,
            pages: Pages::default(),
            map,
            retention: Retention::default(),
            replayable: Replayable::default(),
            running: Running::default(),
            pace: Pace::default(),
            unflushed_direct: false,
            counts: Counts::default(),
            poison: None,
        }
    }

    /// Whether a block's in-place entry is in memory.
    pub(super) fn is_mapped(&self, lba: u64) -> bool {
        self.pages.contains(lba) || self.map.has(Map::page_of(lba))
    }

    /// Applies the writes of one transaction as `version`, at most one for each block; all blocks are mapped.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]; nothing was changed.
    pub(super) fn apply(
        &mut self,
        version: Version,
        writes: Vec<Write>,
        history: History,
        now: Time,
    ) -> Result<(), StoreError> {
        for write in &writes {
            if !self.pages.contains(write.lba.0) {
                let in_place = self.map.entry(write.lba.0)?.unwrap_or(Entry::Empty);
                self.pages.insert(write.lba.0, in_place);
            }
        }
        let written = written(&writes);
        for (write, written) in writes.into_iter().zip(written) {
            self.change(write, written, (version, history), now);
        }
        self.now = version;
        self.evict();
        Ok(())
    }

    /// The contents of a block that can be read; the block is mapped.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub(super) fn versions(&self, lba: u64) -> Result<Vec<BlockVersion>, StoreError> {
        let contents: Vec<(Version, bool)> = match self.pages.get(lba) {
            Some(page) => page.contents(),
            None => {
                let in_place = self.map.entry(lba)?.unwrap_or(Entry::Empty);
                vec![(Version(0), in_place != Entry::Empty)]
            }
        };
        Ok(self.pages.holds.versions(&contents, self.now))
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
        let Some(page) = self.pages.get(lba) else { return };
        let Some((ranges, was_empty)) = changed(page, &write) else {
            return self.pages.drop_unused(lba);
        };
        self.counts.changed(&write, &ranges);
        let route = self.route(lba, page, &write, (ranges.bytes(), written), was_empty);
        let Write { content, class, .. } = write;
        let begun = content.is_some().then_some(match route {
            Route::Direct => Sequence::Direct,
            _ => Sequence::Journalled,
        });
        self.pages.change(lba, content.clone(), (version, history), begun);
        let change = Change { content, class, route, ranges, fresh: was_empty };
        self.running.add(lba, change, now);
    }

    /// The route of a change. `changed` and `written`: bytes that change in the block, and bytes of the whole write.
    fn route(
        &self,
        lba: u64,
        page: &Page,
        write: &Write,
        (changed, written): (usize, usize),
        was_empty: bool,
    ) -> Route {
        const UNSETTLED: PageState = PageState::RUNNING.and(PageState::COMMITTING);
        let may_overwrite = match page.home {
            // The transaction under commit may have content for it.
            Entry::Empty => !(was_empty && page.state.is(PageState::COMMITTING)),
            Entry::Unsummed => !(was_empty && page.state.is_any(UNSETTLED)),
            Entry::Summed(_) => false,
        };
        let request = Request {
            class: write.class,
            changed,
            written,
            sequence: page.sequence,
            is_empty: was_empty,
            may_overwrite: may_overwrite && !self.replayable.contains(lba),
        };
        route(self.options.mode, self.options.threshold, &request)
    }

    /// Closes the running transaction.
    pub(super) fn close(&mut self) -> Closed {
        let closed = self.running.close(self.now);
        closed.changes.iter().for_each(|(lba, _)| self.pages.close(*lba));
        closed
    }

    /// Begins writes in place.
    pub(super) fn batcher(&mut self) -> Batcher<'_> {
        let sums_data = self.options.mode.journals_all_data();
        Batcher { pages: &mut self.pages, sums_data, now: self.now }
    }

    /// Ends the writing of a block, which is in place or was not written.
    pub(super) fn end_write(&mut self, write: &PageWrite, is_in_place: bool) {
        let is_last = is_in_place && !write.fills && self.take_in_place(write);
        self.pages.end_write(write.lba, is_last);
    }

    /// Notes that a block's content is in place; returns whether nothing newer is dirty.
    fn take_in_place(&mut self, write: &PageWrite) -> bool {
        let StoreState { pages, map, retention, counts, .. } = self;
        let Some(page) = pages.get_mut(write.lba) else { return false };
        page.home = write.entry;
        match write.direct {
            true => {
                self.unflushed_direct = true;
                counts.direct += 1;
            }
            false => counts.checkpointed += 1,
        }
        if !(write.direct && page.state.is(PageState::COMMITTING)) {
            map.set(write.lba, write.entry, write.sequence, retention);
        }
        let is_last = page.due.as_ref().is_none_or(|due| due.version <= write.version);
        if write.sequence.is_some() && (!write.direct || is_last) {
            retention.written(&mut page.claim);
        }
        is_last
    }

    /// A transaction is in the journal. `in_place`: its direct changes were written before.
    pub(super) fn committed(&mut self, closed: Closed, sequence: u64, in_place: bool, now: Time) {
        self.running.committed();
        let StoreState { pages, map, retention, replayable, .. } = self;
        for (lba, change) in closed.changes {
            let Some(page) = pages.get_mut(lba) else { continue };
            let direct = change.is_direct();
            let mut since = now;
            if direct {
                map.set(lba, Entry::Unsummed, Some(sequence), retention);
                // This transaction revokes older ones, once it is kept.
                retention.revoke(&mut page.claim);
            } else {
                replayable.note(self.options.mode, lba, sequence);
                retention.extend(&mut page.claim, sequence);
                since = page.due.as_ref().map_or(now, |due| due.since);
            }
            let due = Due {
                content: change.content,
                class: change.class,
                sequence: Some(sequence),
                version: closed.version,
                direct,
                since,
            };
            pages.commit(lba, (!(direct && in_place)).then_some(due));
        }
    }

    /// Changes the options; `next`: the next journal transaction.
    pub(super) fn set_options(&mut self, options: Options, next: u64) {
        self.replayable.change_mode(self.options.mode, options.mode, next);
        self.options = options;
    }

    /// When too many blocks are not in place: the age limit that leaves few enough of them.
    pub(super) fn age_limit(&self) -> Option<Time> {
        self.pages.age_limit(self.options.cache / BLOCK_SIZE / 4)
    }

    /// Looks a block up at a version.
    pub(super) fn find(&mut self, lba: u64, at: Version) -> Result<BlockLookup, StoreError> {
        if let Some(found) = self.pages.find(lba, at) {
            return Ok(BlockLookup::Page(found));
        }
        let in_place = self.map.entry(lba)?.map(PageLookup::InPlace);
        Ok(in_place.map_or(BlockLookup::Unmapped, BlockLookup::Page))
    }

    /// A block's entry, if the block is in place and not about to be written there.
    pub(super) fn settled_entry(&self, lba: u64) -> Option<Entry> {
        match self.pages.get(lba) {
            Some(page) => (page.state == PageState::CLEAN).then_some(page.home),
            None => self.map.entry(lba).ok().flatten(),
        }
    }

    /// Drops clean blocks that were not used lately, while there are too many.
    pub(super) fn evict(&mut self) {
        self.pages.evict((self.options.cache / BLOCK_SIZE).max(16));
    }
}

impl Counts {
    /// A write changes these bytes of a block.
    fn changed(&mut self, write: &Write, ranges: &ByteRanges) {
        let bytes = if write.content.is_some() { ranges.bytes() as u64 } else { 0 };
        match write.class {
            Class::Data => self.data_bytes += bytes,
            Class::Metadata => self.metadata_bytes += bytes,
        }
    }
}

/// The bytes that a write changes in a block, and whether the block was empty before; `None` when it changes
/// nothing.
fn changed(page: &Page, write: &Write) -> Option<(ByteRanges, bool)> {
    let empty = None;
    let old = page.newest().or((page.home == Entry::Empty).then_some(&empty));
    let ranges = match (&write.content, old) {
        (None, Some(None)) => return None,
        (Some(new), Some(old)) => changed_bytes(&write.changed, old.as_ref(), new),
        (_, _) => write.changed.clone(),
    };
    if ranges.is_empty() && write.content.is_some() {
        return None;
    }
    Some((ranges, old.is_some_and(Option::is_none)))
}
#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::dirty::Which;
    use super::super::format::FORMAT_VERSION;
    use super::super::options::Mode;
    use super::super::page_state::{PageEvent, reachable};
    use super::*;
    use crate::block::Lba;

    fn state(mode: Mode) -> StoreState {
        let mut map = Map::new(uuid::Uuid::nil(), FORMAT_VERSION);
        map.insert(0, &[]);
        StoreState::new(map, Version(0), Options { mode, ..Options::default() })
    }

    fn write(lba: u64, byte: u8) -> Write {
        Write::block(Lba(lba), vec![byte; BLOCK_SIZE].into())
    }

    #[test]
    fn a_batch_leaves_the_rest_for_later() {
        let mut state = state(Mode::default());
        state.pages.begin_read(2);
        for (lbas, sequence) in [(0..6, 1), (6..8, 2)] {
            let writes = lbas.map(|lba| write(lba, 1)).collect();
            state.apply(state.now.next(), writes, History::Kept, Time::ZERO).unwrap();
            let closed = state.close();
            state.committed(closed, sequence, true, Time::ZERO);
        }
        let batch = state.batcher().dirty(Which::Before(2), 4);
        let lbas: Vec<u64> = batch.writes.iter().map(|write| write.lba).collect();
        assert_eq!((lbas, batch.busy, batch.more), (vec![0, 1, 3], 1, 2));
        let batch = state.batcher().dirty(Which::All, 100);
        assert_eq!((batch.writes.len(), batch.more), (4, 0));
    }

    /// A store of one block, which makes a block's events happen as users, commits and writeback do.
    struct Walker {
        state: StoreState,
        closed: Option<Closed>,
        write: Option<PageWrite>,
        commits: u64,
    }

    const LBA: u64 = 5;

    impl Walker {
        /// The block is clean and in memory.
        fn new() -> Walker {
            let mut state = state(Mode::Writeback);
            state.map.set(LBA, Entry::Unsummed, None, &mut state.retention);
            state.pages.keep_read(LBA, Entry::Unsummed, vec![9; BLOCK_SIZE].into());
            Walker { state, closed: None, write: None, commits: 0 }
        }

        /// Tries an event; `None` when the store never tries it in this state, else whether it happened.
        fn try_event(&mut self, event: PageEvent) -> Option<bool> {
            let state = &mut self.state;
            match event {
                PageEvent::Change => {
                    let byte = state.now.0 as u8;
                    state
                        .apply(state.now.next(), vec![write(LBA, byte)], History::Kept, Time::ZERO)
                        .unwrap();
                }
                PageEvent::Close => {
                    if self.closed.is_some() || state.running.blocks() == 0 {
                        return None;
                    }
                    self.closed = Some(state.close());
                }
                PageEvent::Commit | PageEvent::CommitInPlace => {
                    let in_place = event == PageEvent::CommitInPlace;
                    if in_place && self.write.is_some() {
                        return None;
                    }
                    self.commits += 1;
                    state.committed(self.closed.take()?, self.commits, in_place, Time::ZERO);
                }
                PageEvent::BeginWriteback => {
                    let write = state.batcher().dirty(Which::All, 1).writes.pop();
                    return Some(self.begin(write));
                }
                PageEvent::BeginDirect => {
                    let closed = self.closed.as_ref()?;
                    let write = state.batcher().direct(closed, [LBA].into_iter()).0.pop();
                    return Some(self.begin(write));
                }
                PageEvent::BeginFill => {
                    if state.pages.get(LBA)?.due.is_some() {
                        // It is written along, and not as a fill.
                        return None;
                    }
                    let neighbours = [LBA - 1, LBA + 1].map(neighbour);
                    let writes = state.batcher().close_gaps(neighbours.into(), 1);
                    let fill = writes.into_iter().find(|write| write.lba == LBA && write.fills);
                    return Some(self.begin(fill));
                }
                PageEvent::EndWrite => state.end_write(&self.write.take()?, false),
                PageEvent::EndLastWrite => {
                    let due = state.pages.get(LBA)?.due.as_ref()?.version;
                    let write = self.write.take_if(|write| !write.fills && due <= write.version)?;
                    state.end_write(&write, true);
                }
                PageEvent::BeginRead => {
                    let found = state.find(LBA, Version(0)).unwrap();
                    match found {
                        BlockLookup::Page(PageLookup::Writeback) => return Some(false),
                        // It need not be read.
                        BlockLookup::Page(PageLookup::Content(_)) if self.write.is_some() => {
                            return None;
                        }
                        _ => {}
                    }
                    state.pages.begin_read(LBA);
                }
                PageEvent::EndRead => {
                    if !state.pages.state(LBA).is(PageState::READING) {
                        return None;
                    }
                    state.pages.end_read(LBA);
                }
            }
            Some(true)
        }

        fn begin(&mut self, write: Option<PageWrite>) -> bool {
            let begun = write.is_some();
            self.write = write.or(self.write.take());
            begun
        }
    }

    /// A block beside the one in question, which is being written.
    fn neighbour(lba: u64) -> PageWrite {
        PageWrite {
            lba,
            content: Some(Bytes::new()),
            class: Class::Data,
            entry: Entry::Unsummed,
            sequence: None,
            version: Version(0),
            direct: false,
            keep: false,
            fills: false,
        }
    }

    #[test]
    fn the_store_follows_the_table_of_page_states() {
        let mut happened = thalweg_env::HashSet::default();
        for (state, way) in reachable() {
            for event in PageEvent::ALL {
                let mut walker = Walker::new();
                for event in &way {
                    assert_eq!(walker.try_event(*event), Some(true), "{way:?}");
                }
                assert_eq!(walker.state.pages.state(LBA), state, "{way:?}");
                let Some(did) = walker.try_event(event) else { continue };
                assert_eq!(did, state.allows(event), "{event:?} of {state:?}, after {way:?}");
                let next = if did { state.after(event) } else { state };
                assert_eq!(walker.state.pages.state(LBA), next, "{event:?} of {state:?}");
                let unclean =
                    walker.state.pages.get(LBA).is_some_and(|page| page.state != PageState::CLEAN);
                assert_eq!(
                    walker.state.pages.unclean(),
                    usize::from(unclean),
                    "{event:?} of {state:?}"
                );
                if did {
                    happened.insert(event);
                }
            }
        }
        assert_eq!(happened.len(), PageEvent::ALL.len(), "{happened:?}");
    }
}
