//! The blocks in memory: their pages, loads from the device, and eviction.
//!
//! **Invariants.**
//!
//! - A block's state changes by [`PageEvent`]s alone, and only as their table allows. So a block under writeback is
//!   not read from the device, and a block that is being read is not written.
//! - A block without a page has, at every version that is held, its in-place content.
//! - Clean pages are in eviction's queue, except some that keep old content.

use std::collections::VecDeque;

use bytes::Bytes;
use thalweg_env::{HashMap, Time};

use super::dirty::{DirtyBlocks, Which};
use super::format::Entry;
use super::page::{Content, Due, History, Page};
use super::page_state::{PageEvent, PageState};
use super::route::Sequence;
use crate::block::{Holds, Version};

/// Minimum blocks with old content before a released hold looks for content that no version needs.
const PURGE: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: HashMap<u64, Page>,
    /// Blocks that are being read from the device, each with the number of its readers.
    readers: HashMap<u64, u32>,
    /// The pages with content to be written back.
    dirty: DirtyBlocks,
    /// Pages that are not clean.
    unclean: usize,
    /// Versions whose content must be kept.
    pub(super) holds: Holds,
    /// Blocks that keep old content; a block may be listed more than once.
    aged: Vec<u64>,
    /// How many of them were left by the last purge.
    left: usize,
    /// Clean blocks in the order in which eviction looks at them.
    idle: VecDeque<u64>,
}

/// Where a reader finds a block.
pub(super) enum PageLookup {
    Content(Content),
    /// In place, with this entry in the map.
    InPlace(Entry),
    /// Under writeback, while the reader wants the content before that.
    Writeback,
}

impl PageLookup {
    /// Whether the block holds something. Content under writeback may: only the device knows.
    pub(super) fn is_allocated(&self) -> bool {
        match self {
            PageLookup::Content(content) => content.is_some(),
            PageLookup::InPlace(entry) => *entry != Entry::Empty,
            PageLookup::Writeback => true,
        }
    }
}

impl Pages {
    pub(super) fn get(&self, lba: u64) -> Option<&Page> {
        self.pages.get(&lba)
    }

    /// For the parts of a page that are not its state.
    pub(super) fn get_mut(&mut self, lba: u64) -> Option<&mut Page> {
        self.pages.get_mut(&lba)
    }

    pub(super) fn contains(&self, lba: u64) -> bool {
        self.pages.contains_key(&lba)
    }

    /// Adds a page without content for a block that has none.
    pub(super) fn insert(&mut self, lba: u64, in_place: Entry) {
        self.pages.insert(lba, Page::new(in_place));
    }

    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Pages that are not clean.
    pub(super) fn unclean(&self) -> usize {
        self.unclean
    }

    /// The state of a block, with or without a page.
    pub(super) fn state(&self, lba: u64) -> PageState {
        let state = self.pages.get(&lba).map_or(PageState::CLEAN, |page| page.state);
        match self.readers.contains_key(&lba) {
            true => state.and(PageState::READING),
            false => state,
        }
    }

    /// Changes the state of a block that has a page. The only place that does.
    fn step(&mut self, lba: u64, event: PageEvent) -> Option<&mut Page> {
        debug_assert!(self.state(lba).allows(event), "{event:?}: block {lba}");
        let page = self.pages.get_mut(&lba)?;
        let before = page.state;
        page.state = before.after(event);
        match (before == PageState::CLEAN, page.state == PageState::CLEAN) {
            (true, false) => self.unclean += 1,
            (false, true) => self.unclean -= 1,
            _ => {}
        }
        Some(page)
    }

    /// Changes a block's content from a version on, in the running transaction. `begun`: how the block's update
    /// sequence begins with this change, unless it goes on in the same way.
    pub(super) fn change(
        &mut self,
        lba: u64,
        content: Content,
        (version, history): (Version, History),
        begun: Option<Sequence>,
    ) {
        let Some(page) = self.step(lba, PageEvent::Change) else { return };
        // An empty block may go over from direct writes to the journal, and never back.
        page.sequence = match begun {
            Some(Sequence::Journalled) => begun,
            _ => page.sequence.or(begun),
        };
        page.referenced = true;
        let Pages { pages, holds, aged, .. } = self;
        let Some(page) = pages.get_mut(&lba) else { return };
        let is_aged = match history {
            History::Kept => page.change(version, content, holds),
            History::Dropped => page.replace(version, content, holds),
        };
        if is_aged {
            aged.push(lba);
        }
    }

    /// The running transaction, which changes the block, is closed.
    pub(super) fn close(&mut self, lba: u64) {
        self.step(lba, PageEvent::Close);
    }

    /// The commit of a block is done. `due`: its content, unless that was written in place before.
    pub(super) fn commit(&mut self, lba: u64, due: Option<Due>) {
        let event = match due {
            Some(_) => PageEvent::Commit,
            None => PageEvent::CommitInPlace,
        };
        self.step(lba, event);
        self.set_due(lba, due);
        self.settle(lba);
    }

    fn set_due(&mut self, lba: u64, due: Option<Due>) {
        if let Some(page) = self.pages.get_mut(&lba) {
            self.dirty.set(lba, page, due);
        }
    }

    /// Begins a write in place, unless the block's state excludes it.
    pub(super) fn begin_write(&mut self, lba: u64, event: PageEvent) -> Option<&mut Page> {
        match self.contains(lba) && self.state(lba).allows(event) {
            true => self.step(lba, event),
            false => None,
        }
    }

    /// Keeps the in-place content, if the block is empty there, for the versions that see it; returns whether one
    /// sees other in-place content.
    pub(super) fn keep_in_place(&mut self, lba: u64) -> bool {
        let Some(page) = self.pages.get_mut(&lba) else { return false };
        if !page.sees_home(&self.holds) {
            return false;
        }
        if page.home == Entry::Empty {
            page.keep_home(None);
            self.aged.push(lba);
        }
        page.home != Entry::Empty
    }

    /// A write in place has ended. `is_last`: the block's dirty content is in place, or older than what is.
    pub(super) fn end_write(&mut self, lba: u64, is_last: bool) {
        let is_dirty = self.state(lba).is(PageState::DIRTY);
        match is_last && is_dirty {
            true => {
                self.step(lba, PageEvent::EndLastWrite);
                self.set_due(lba, None);
            }
            false => {
                self.step(lba, PageEvent::EndWrite);
            }
        }
        self.settle(lba);
    }

    /// A block may have become clean, or have ended its update sequence.
    fn settle(&mut self, lba: u64) {
        const SEQUENCE: PageState =
            PageState::RUNNING.and(PageState::COMMITTING).and(PageState::DIRTY);
        let Some(page) = self.pages.get_mut(&lba) else { return };
        if !page.state.is_any(SEQUENCE) {
            page.sequence = None;
        }
        if page.state != PageState::CLEAN {
            return;
        }
        match page.is_idle() && page.newest().is_none_or(Option::is_none) {
            true => drop(self.pages.remove(&lba)),
            false => self.queue(lba),
        }
    }

    /// Selects dirty blocks to write back, at most `most`, ordered by number; and how many more qualify.
    pub(super) fn select_dirty(&self, which: Which, most: usize) -> (Vec<u64>, usize) {
        self.dirty.pick(which, &self.pages, most)
    }

    /// When more than `most` pages are not clean: the age limit (time of the first change) that leaves a quarter of
    /// `most` once all older blocks are written back.
    pub(super) fn age_limit(&self, most: usize) -> Option<Time> {
        let count = (self.unclean > most).then(|| self.unclean - most / 4)?;
        self.dirty.since(count, &self.pages)
    }

    /// A read of the in-place content of a block begins, which is not under writeback.
    pub(super) fn begin_read(&mut self, lba: u64) {
        debug_assert!(self.state(lba).allows(PageEvent::BeginRead), "block {lba}");
        *self.readers.entry(lba).or_default() += 1;
    }

    /// A read has ended.
    pub(super) fn end_read(&mut self, lba: u64) {
        debug_assert!(self.state(lba).allows(PageEvent::EndRead), "block {lba}");
        if let Some(readers) = self.readers.get_mut(&lba) {
            *readers -= 1;
            if *readers == 0 {
                self.readers.remove(&lba);
            }
        }
    }

    /// Looks a block up at a version; `None` for a block without a page.
    pub(super) fn find(&mut self, lba: u64, at: Version) -> Option<PageLookup> {
        let page = self.pages.get_mut(&lba)?;
        page.referenced = true;
        Some(match page.at(at) {
            Some(content) => PageLookup::Content(content.clone()),
            None if !page.state.allows(PageEvent::BeginRead) => PageLookup::Writeback,
            None => PageLookup::InPlace(page.home),
        })
    }

    /// Caches a block that was read from the device.
    pub(super) fn keep_read(&mut self, lba: u64, in_place: Entry, content: Bytes) {
        match self.pages.get_mut(&lba) {
            Some(page) => {
                page.keep_home(Some(content));
                self.aged.push(lba);
            }
            None => {
                self.pages.insert(lba, Page::read(in_place, Some(content)));
                self.queue(lba);
            }
        }
    }

    /// Drops the page of a block whose write changed nothing, if the page holds nothing.
    pub(super) fn drop_unused(&mut self, lba: u64) {
        if self.pages.get(&lba).is_some_and(|page| page.newest().is_none() && page.is_idle()) {
            self.pages.remove(&lba);
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
        self.left = aged.len();
        self.aged = aged;
    }

    /// Blocks that keep old content, approximately.
    pub(super) fn aged(&self) -> usize {
        self.aged.len()
    }

    /// Whether enough blocks keep old content for a purge to be worth its time.
    pub(super) fn wants_purge(&self) -> bool {
        self.aged.len() >= PURGE.max(2 * self.left)
    }

    /// Queues a block for eviction.
    fn queue(&mut self, lba: u64) {
        if let Some(page) = self.pages.get_mut(&lba)
            && !std::mem::replace(&mut page.queued, true)
        {
            self.idle.push_back(lba);
        }
    }

    /// Drops clean blocks that were not used lately, while there are more than `most` (CLOCK).
    pub(super) fn evict(&mut self, most: usize) {
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
