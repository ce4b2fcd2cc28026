//! The effects of calls on state outside of transactions.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::redirects::RedirectChange;
use super::rooms::{Cover, Taken, Ticket};
use crate::attributes::Timestamp;

/// The effects of a call, for state that is kept outside of transactions.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Inodes whose attributes changed, and whether their bytes changed.
    pub(super) inodes: BTreeMap<u64, bool>,
    /// Names that were added, removed or redirected.
    pub(super) names: Vec<(u64, Bytes)>,
    /// Change of the free blocks under each bitmap page.
    pub(super) pages: BTreeMap<u64, i64>,
    /// Inodes created, less inodes removed.
    pub(super) count: i64,
    /// Blocks of metadata allocated, less those freed.
    pub(super) tree_blocks: i64,
    /// What the calls take until they have ended.
    pub(super) ticket: Option<Ticket>,
    /// What is left of a session's promise for the calls.
    pub(super) cover: Cover,
    /// Blocks and inodes that quotas were charged with.
    pub(super) charged: BTreeMap<u64, (i64, i64)>,
    /// Inodes with pending work.
    pub(super) orphans: Vec<u64>,
    /// Whether blocks are recorded as to be freed.
    pub(super) freed: bool,
    /// Whether contents elsewhere are recorded as to be removed.
    pub(super) removed: bool,
    /// Files that became shorter and have contents elsewhere.
    pub(super) cuts: Vec<u64>,
    /// Bytes of contents elsewhere that are redirected, or are no more.
    pub(super) redirects: Vec<RedirectChange>,
    /// The call was recorded: its time and its outcome.
    pub(super) recorded: Option<(Timestamp, u64)>,
}

/// What earlier calls of a transaction have charged a quota with. The transaction alone sees it in the usage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Earlier {
    /// Blocks and inodes.
    pub(super) charged: (i64, i64),
    /// What they take until the transaction has ended.
    pub(super) taken: Taken,
}

impl Effects {
    /// What a later call of the same transaction has to know.
    pub(super) fn earlier(&self) -> BTreeMap<u64, Earlier> {
        let earlier = |(quota, charged): (&u64, &(i64, i64))| {
            let taken = self.ticket.as_ref().map_or(Taken::default(), |own| own.taken(*quota));
            (*quota, Earlier { charged: *charged, taken })
        };
        self.charged.iter().map(earlier).collect()
    }

    /// Adds the effects of a later call.
    pub(super) fn add(&mut self, later: Effects) {
        // A bulk of calls changes many.
        let inodes = if self.inodes.is_empty() {
            std::mem::replace(&mut self.inodes, later.inodes)
        } else {
            later.inodes
        };
        for (ino, content) in inodes {
            *self.inodes.entry(ino).or_default() |= content;
        }
        self.names.extend(later.names);
        for (page, by) in later.pages {
            *self.pages.entry(page).or_default() += by;
        }
        for (quota, (blocks, inodes)) in later.charged {
            let sum = self.charged.entry(quota).or_default();
            *sum = (sum.0 + blocks, sum.1 + inodes);
        }
        self.tree_blocks += later.tree_blocks;
        match (&mut self.ticket, later.ticket) {
            (Some(own), Some(later)) => own.absorb(later),
            (own, later) => *own = own.take().or(later),
        }
        self.cover = later.cover;
        self.count += later.count;
        self.orphans.extend(later.orphans);
        self.freed |= later.freed;
        self.removed |= later.removed;
        self.cuts.extend(later.cuts);
        self.redirects.extend(later.redirects);
        self.recorded = later.recorded.or(self.recorded);
    }
}
