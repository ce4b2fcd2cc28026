//! A block in memory: what it holds in which version, and what of that is where.

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use super::format::Entry;
use super::route::Sequence;
use crate::block::{Class, Holds, Version};
use crate::env::Time;

/// A block's content; `None` when it holds nothing and reads as zeros.
pub(super) type Content = Option<Bytes>;

/// Whether a change keeps the content before for those who hold older versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum History {
    Kept,
    Dropped,
}

/// A block in memory.
///
/// What a reader sees is the newest of `chain` that is not too new for him, and what is at home when
/// all of them are.
#[derive(Debug)]
pub(super) struct Page {
    /// Contents, each with its first version, oldest first; there is at least one once the block was
    /// changed or read.
    chain: SmallVec<[(Version, Content); 1]>,
    /// What is at home.
    pub(super) home: Entry,
    /// How its update sequence began, until everything of it is home.
    pub(super) sequence: Option<Sequence>,
    /// The running transaction changes it.
    pub(super) running: bool,
    /// The transaction that is being committed does.
    pub(super) committing: bool,
    /// What was committed and is not home.
    pub(super) due: Option<Due>,
    /// The oldest journal transaction that says something of it that is not home.
    pub(super) first_live: Option<u64>,
    /// The first journal transaction that says something of it since it is on its way home.
    pub(super) next_live: Option<u64>,
    /// It is on its way home.
    pub(super) homing: bool,
    /// It was used since eviction looked last.
    pub(super) referenced: bool,
    /// Eviction will look at it.
    pub(super) queued: bool,
    /// No holder of an older version reads it.
    unversioned: bool,
}

/// Content that may go home.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) content: Content,
    pub(super) class: Class,
    /// The journal transaction that has it, or that stands for its metadata.
    pub(super) sequence: Option<u64>,
    /// The version of the commit.
    pub(super) version: Version,
    /// It did not go through the journal.
    pub(super) direct: bool,
    /// When it began to wait.
    pub(super) since: Time,
}

impl Page {
    /// A block of which nothing is known but what is at home.
    pub(super) fn new(home: Entry) -> Page {
        Page {
            chain: SmallVec::new(),
            home,
            sequence: None,
            running: false,
            committing: false,
            due: None,
            first_live: None,
            next_live: None,
            homing: false,
            referenced: true,
            queued: false,
            unversioned: false,
        }
    }

    /// A block as it was read from home.
    pub(super) fn read(home: Entry, content: Content) -> Page {
        Page { chain: smallvec![(Version(0), content)], ..Page::new(home) }
    }

    /// The newest content, if it is in memory.
    pub(super) fn newest(&self) -> Option<&Content> {
        self.chain.last().map(|(_, content)| content)
    }

    /// The content at a version; `None` when that is at home.
    pub(super) fn at(&self, version: Version) -> Option<&Content> {
        self.chain.iter().rev().find(|(from, _)| *from <= version).map(|(_, content)| content)
    }

    /// Gives it new content from a version on. Whether it keeps old content now.
    pub(super) fn change(&mut self, version: Version, content: Content, holds: &Holds) -> bool {
        self.unversioned = false;
        match self.chain.last_mut() {
            Some(last) if last.0 == version => last.1 = content,
            _ => self.chain.push((version, content)),
        }
        self.purge(holds)
    }

    /// Gives it new content for all versions, as long as no holder sees anything else that it held: it was
    /// empty, or all that it held was written so. Whether it keeps old content now.
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

    /// Forgets content that no holder sees. Whether old content is left.
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

    /// Whether a holder sees what is at home and nowhere else.
    pub(super) fn sees_home(&self, holds: &Holds) -> bool {
        let first = self.chain.first().map_or(Version(0), |(from, _)| *from);
        holds.need(Version(0), first)
    }

    /// Keeps what was at home for those who still see it.
    pub(super) fn keep_home(&mut self, content: Content) {
        if self.chain.first().is_some_and(|(from, _)| *from > Version(0)) {
            self.chain.insert(0, (Version(0), content));
        }
    }

    /// Whether something of it is not home yet, or on its way.
    pub(super) fn is_dirty(&self) -> bool {
        self.running || self.committing || self.due.is_some() || self.homing
    }

    /// Whether it may be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_dirty() && self.chain.len() <= 1
    }
}
