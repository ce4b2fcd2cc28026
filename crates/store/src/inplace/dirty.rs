//! Dirty blocks: committed and not in place, and which of them to write back.

use std::collections::BTreeSet;

use thalweg_env::{HashMap, Time};

use super::page::{Due, Page};
use super::page_state::PageState;
use crate::block::Version;

/// Which dirty blocks to write back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// Blocks that have been dirty since then or longer, and discarded blocks.
    Old(Time),
    /// Blocks that a transaction before this one changed.
    Before(u64),
    /// Blocks up to a version that bypass the journal.
    Direct(Version),
    /// All dirty blocks.
    All,
}

impl Which {
    fn takes(self, page: &Page) -> bool {
        // Skips pages under writeback unless the caller needs them finished.
        let may_leave = matches!(self, Which::Old(_));
        !(may_leave && page.state.is(PageState::WRITEBACK))
            && page.due.as_ref().is_some_and(|due| match self {
                Which::Old(old) => due.content.is_none() || due.since <= old,
                Which::Before(sequence) => {
                    page.claim.oldest().is_some_and(|oldest| oldest < sequence)
                }
                Which::Direct(version) => due.direct && due.version <= version,
                Which::All => true,
            })
    }
}

/// The blocks that have a [`Due`].
#[derive(Debug, Default)]
pub(super) struct DirtyBlocks {
    all: BTreeSet<u64>,
    /// Those that bypass the journal: every commit looks for them.
    direct: BTreeSet<u64>,
}

impl DirtyBlocks {
    /// Sets or clears the content that a block has to write back, after its state has changed. The only
    /// place that changes `page.due`.
    pub(super) fn set(&mut self, lba: u64, page: &mut Page, due: Option<Due>) {
        let member = |set: &mut BTreeSet<u64>, is_in: bool| match is_in {
            true => set.insert(lba),
            false => set.remove(&lba),
        };
        member(&mut self.all, due.is_some());
        member(&mut self.direct, due.as_ref().is_some_and(|due| due.direct));
        debug_assert_eq!(due.is_some(), page.state.is(PageState::DIRTY), "block {lba}");
        page.due = due;
    }

    /// Selects at most `most` blocks to write back, ordered by number; and how many more qualify.
    pub(super) fn pick(
        &self,
        which: Which,
        pages: &HashMap<u64, Page>,
        most: usize,
    ) -> (Vec<u64>, usize) {
        let candidates = match which {
            Which::Direct(_) => &self.direct,
            _ => &self.all,
        };
        let takes = |lba: &&u64| pages.get(lba).is_some_and(|page| which.takes(page));
        let mut due = candidates.iter().filter(takes).copied();
        let picked = due.by_ref().take(most).collect();
        (picked, due.count())
    }

    /// The time since which the youngest of the `count` blocks that have been dirty longest is
    /// dirty.
    pub(super) fn since(&self, count: usize, pages: &HashMap<u64, Page>) -> Option<Time> {
        let due = self.all.iter().filter_map(|lba| pages.get(lba)?.due.as_ref());
        let mut since: Vec<Time> = due.map(|due| due.since).collect();
        let last = count.min(since.len()).checked_sub(1)?;
        Some(*since.select_nth_unstable(last).1)
    }
}
