//! A block in memory: its content at each version, and where that content is.

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use thalweg_env::Time;

use super::format::Entry;
use super::page_state::PageState;
use super::route::Sequence;
use crate::block::{Class, Holds, Version};
use crate::journal::Claim;

/// A block's content; `None` for a hole, which reads as zeros.
pub(super) type Content = Option<Bytes>;

/// Whether a change keeps the previous content for holders of older versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum History {
    Kept,
    Dropped,
}

/// A block in memory.
///
/// A reader sees the newest content of `chain` that is not newer than its version, and the in-place
/// content when all are newer.
#[derive(Debug)]
pub(super) struct Page {
    /// Contents, each with its first version, oldest first; not empty once the block was changed or
    /// read.
    chain: SmallVec<[(Version, Content); 1]>,
    /// The map's entry about the in-place content.
    pub(super) home: Entry,
    /// How its update sequence began, until all of the sequence is in place.
    pub(super) sequence: Option<Sequence>,
    /// Where its content is between memory, journal and device; without [`PageState::READING`].
    pub(super) state: PageState,
    /// Committed content that is not in place: present while the page is [`PageState::DIRTY`].
    pub(super) due: Option<Due>,
    /// What the journal must keep for it.
    pub(super) claim: Claim,
    /// It was used since eviction last looked.
    pub(super) referenced: bool,
    /// It is in eviction's queue.
    pub(super) queued: bool,
    /// No holder of an older version reads it.
    unversioned: bool,
}

/// Content to be written back.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) content: Content,
    pub(super) class: Class,
    /// The journal transaction that holds it, or that holds its metadata.
    pub(super) sequence: Option<u64>,
    /// The version of the commit.
    pub(super) version: Version,
    /// It bypassed the journal.
    pub(super) direct: bool,
    /// When the block became dirty.
    pub(super) since: Time,
}

impl Page {
    /// A page without content: only the in-place entry is known.
    pub(super) fn new(home: Entry) -> Page {
        Page {
            chain: SmallVec::new(),
            home,
            sequence: None,
            state: PageState::CLEAN,
            due: None,
            claim: Claim::default(),
            referenced: true,
            queued: false,
            unversioned: false,
        }
    }

    /// A page with content that was read from the device.
    pub(super) fn read(home: Entry, content: Content) -> Page {
        Page { chain: smallvec![(Version(0), content)], ..Page::new(home) }
    }

    /// The newest content, if it is in memory.
    pub(super) fn newest(&self) -> Option<&Content> {
        self.chain.last().map(|(_, content)| content)
    }

    /// The content at a version; `None` when that is the in-place content.
    pub(super) fn at(&self, version: Version) -> Option<&Content> {
        self.chain.iter().rev().find(|(from, _)| *from <= version).map(|(_, content)| content)
    }

    /// The contents that it has, each with the version from which on, and whether something is stored.
    pub(super) fn contents(&self) -> Vec<(Version, bool)> {
        let home = (Version(0), self.home != Entry::Empty);
        let at_home = self.chain.first().is_none_or(|(from, _)| *from > Version(0));
        let chain = self.chain.iter().map(|(from, content)| (*from, content.is_some()));
        at_home.then_some(home).into_iter().chain(chain).collect()
    }

    /// The contents that it has, each with the version from which on, and whether memory has it.
    pub(super) fn places(&self) -> SmallVec<[(Version, bool); 4]> {
        let at_home = self.chain.first().is_none_or(|(from, _)| *from > Version(0));
        let home = (Version(0), self.home == Entry::Empty);
        let chain = self.chain.iter().map(|(from, _)| (*from, true));
        at_home.then_some(home).into_iter().chain(chain).collect()
    }

    /// Changes the content from a version on. Returns whether the page keeps old content now.
    pub(super) fn change(&mut self, version: Version, content: Content, holds: &Holds) -> bool {
        self.unversioned = false;
        match self.chain.last_mut() {
            Some(last) if last.0 == version => last.1 = content,
            _ => self.chain.push((version, content)),
        }
        self.purge(holds)
    }

    /// Changes the content for all versions, if no holder can see that it held anything else: it
    /// was empty, or all its content was written in this way. Returns whether the page keeps old
    /// content now.
    pub(super) fn replace(&mut self, version: Version, content: Content, holds: &Holds) -> bool {
        let is_empty =
            self.home == Entry::Empty && self.chain.iter().all(|(_, content)| content.is_none());
        if !is_empty && !self.unversioned {
            return self.change(version, content, holds);
        }
        self.unversioned = true;
        self.chain = smallvec![(Version(0), content)];
        false
    }

    /// Drops content that no holder sees. Returns whether old content is left.
    pub(super) fn purge(&mut self, holds: &Holds) -> bool {
        let mut at = 0;
        while at + 1 < self.chain.len() {
            match holds.need(self.chain[at].0, self.chain[at + 1].0) {
                true => at += 1,
                false => drop(self.chain.remove(at)),
            }
        }
        self.chain.len() > 1
    }

    /// Whether a holder sees the in-place content, which is not in memory.
    pub(super) fn sees_home(&self, holds: &Holds) -> bool {
        let first = self.chain.first().map_or(Version(0), |(from, _)| *from);
        holds.need(Version(0), first)
    }

    /// Keeps the in-place content for the versions that still see it.
    pub(super) fn keep_home(&mut self, content: Content) {
        if self.chain.first().is_some_and(|(from, _)| *from > Version(0)) {
            self.chain.insert(0, (Version(0), content));
        }
    }

    /// Whether it may be evicted.
    pub(super) fn is_idle(&self) -> bool {
        self.state == PageState::CLEAN && self.chain.len() <= 1
    }
}
