//! Which blocks are written in place together.

use bytes::Bytes;
use thalweg_env::Time;

use super::dirty::Which;
use super::format::Entry;
use super::page::{Content, Due};
use super::page_state::PageEvent;
use super::pages::Pages;
use super::running::Closed;
use crate::block::{Class, Version};

/// A block that is being written in place.
#[derive(Clone, Debug)]
pub(super) struct PageWrite {
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

/// Dirty blocks whose writeback has begun.
#[derive(Debug)]
pub(super) struct WritebackBatch {
    pub(super) writes: Vec<PageWrite>,
    /// Further blocks that qualify, but are being read or written.
    pub(super) busy: usize,
    /// Further blocks that qualify, beyond the maximum.
    pub(super) more: usize,
}

/// Begins writes in place.
pub(super) struct Batcher<'a> {
    pub(super) pages: &'a mut Pages,
    /// Whether data gets checksums.
    pub(super) sums_data: bool,
    /// The newest version.
    pub(super) now: Version,
}

impl Batcher<'_> {
    /// Begins to write the direct changes of a transaction, except blocks that are being read or written; returns
    /// these too.
    pub(super) fn direct(
        &mut self,
        closed: &Closed,
        lbas: impl Iterator<Item = u64>,
    ) -> (Vec<PageWrite>, Vec<u64>) {
        let (mut writes, mut busy) = (Vec::new(), Vec::new());
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
            match self.begin(lba, PageEvent::BeginDirect, &due) {
                Some(write) => writes.push(write),
                None => busy.push(lba),
            }
        }
        (writes, busy)
    }

    /// Begins the writeback of dirty blocks, at most `most`; skips blocks that are being read or written.
    pub(super) fn dirty(&mut self, which: Which, most: usize) -> WritebackBatch {
        let (selected, more) = self.pages.select_dirty(which, most);
        let wanted = selected.len();
        let writes: Vec<PageWrite> =
            selected.into_iter().filter_map(|lba| self.begin_dirty(lba)).collect();
        WritebackBatch { busy: wanted - writes.len(), writes, more }
    }

    fn begin_dirty(&mut self, lba: u64) -> Option<PageWrite> {
        let due = self.pages.get(lba)?.due.clone()?;
        self.begin(lba, PageEvent::BeginWriteback, &due)
    }

    /// Begins to write a block, unless it is being read or written.
    fn begin(&mut self, lba: u64, event: PageEvent, due: &Due) -> Option<PageWrite> {
        self.pages.begin_write(lba, event)?.claim.begin_write();
        let entry = match &due.content {
            None => Entry::Empty,
            Some(_) if due.direct => Entry::Unsummed,
            // Data that may be written directly next time must have no checksum then.
            Some(_) if due.class == Class::Data && !self.sums_data => Entry::Unsummed,
            Some(content) => Entry::of(content),
        };
        Some(PageWrite {
            lba,
            content: due.content.clone(),
            class: due.class,
            entry,
            sequence: due.sequence,
            version: due.version,
            direct: due.direct,
            keep: self.pages.keep_in_place(lba),
            fills: false,
        })
    }

    /// Extends a batch over gaps of at most `most` cached blocks, so that writes merge: blocks that
    /// are dirty anyway, and blocks whose in-place content is in memory. A crash changes nothing in the
    /// latter; and as they are under writeback, they are not written otherwise meanwhile.
    pub(super) fn close_gaps(&mut self, writes: Vec<PageWrite>, most: u64) -> Vec<PageWrite> {
        if most == 0 {
            return writes;
        }
        let mut closed: Vec<PageWrite> = Vec::with_capacity(writes.len());
        for next in writes {
            if let Some(last) = closed.last()
                && last.class == next.class
                && next.lba - last.lba - 1 <= most
                && last.content.is_some()
                && next.content.is_some()
            {
                let (gap, class) = (last.lba + 1..next.lba, last.class);
                if gap.clone().all(|lba| self.may_join(lba, class)) {
                    closed.extend(gap.filter_map(|lba| self.join(lba, class)));
                }
            }
            closed.push(next);
        }
        closed
    }

    /// Whether a block of a gap can be written along with its neighbours of a class.
    fn may_join(&self, lba: u64, class: Class) -> bool {
        let Some(page) = self.pages.get(lba) else { return false };
        match &page.due {
            Some(due) => {
                let may_begin = self.pages.state(lba).allows(PageEvent::BeginWriteback);
                may_begin && due.class == class && due.content.is_some()
            }
            None => self.unchanged(lba).is_some(),
        }
    }

    fn join(&mut self, lba: u64, class: Class) -> Option<PageWrite> {
        match self.pages.get(lba)?.due {
            Some(_) => self.begin_dirty(lba),
            None => self.begin_fill(lba, class),
        }
    }

    /// A block's in-place content, if it is in memory and nothing is about to change it.
    fn unchanged(&self, lba: u64) -> Option<&Bytes> {
        let page = self.pages.get(lba)?;
        let may_begin = self.pages.state(lba).allows(PageEvent::BeginFill);
        page.newest().filter(|_| may_begin && page.home != Entry::Empty)?.as_ref()
    }

    fn begin_fill(&mut self, lba: u64, class: Class) -> Option<PageWrite> {
        let content = Some(self.unchanged(lba)?.clone());
        let entry = self.pages.begin_write(lba, PageEvent::BeginFill)?.home;
        let (sequence, version, direct, keep) = (None, self.now, false, false);
        Some(PageWrite { lba, content, class, entry, sequence, version, direct, keep, fills: true })
    }
}
