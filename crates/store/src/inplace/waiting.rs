//! Blocks that are committed and not home, and which of them go there when.

use std::collections::BTreeSet;

use super::page::{Due, Page};
use crate::block::Version;
use crate::env::{HashMap, Time};

/// Which blocks have to go home.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// Those that have waited since then or longer, and those that hold nothing any more.
    Old(Time),
    /// Those about which a transaction before this one says something.
    Before(u64),
    /// Those up to a version that did not go through the journal.
    Direct(Version),
    /// All.
    All,
}

impl Which {
    fn takes(self, page: &Page) -> bool {
        // What is on its way is somebody's business already; but who needs it there has to wait.
        let may_leave = matches!(self, Which::Old(_));
        !(may_leave && page.homing)
            && page.due.as_ref().is_some_and(|due| match self {
                Which::Old(old) => due.content.is_none() || due.since <= old,
                Which::Before(sequence) => page.first_live.is_some_and(|first| first < sequence),
                Which::Direct(version) => due.direct && due.version <= version,
                Which::All => true,
            })
    }
}

/// The blocks that have a [`Due`].
#[derive(Debug, Default)]
pub(super) struct Waiting {
    all: BTreeSet<u64>,
    /// Those of them that do not go through the journal: every commit asks for them.
    direct: BTreeSet<u64>,
}

impl Waiting {
    /// Has a block wait for something else, or for nothing. Nobody else changes what it waits for.
    pub(super) fn set(&mut self, lba: u64, page: &mut Page, due: Option<Due>) {
        let member = |set: &mut BTreeSet<u64>, is_in: bool| match is_in {
            true => set.insert(lba),
            false => set.remove(&lba),
        };
        member(&mut self.all, due.is_some());
        member(&mut self.direct, due.as_ref().is_some_and(|due| due.direct));
        page.due = due;
    }

    /// Blocks that have to go home, at most `most`, in the order of their numbers; and how many more there
    /// are.
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

    /// Since when the youngest of the `count` blocks has waited that have waited longest.
    pub(super) fn since(&self, count: usize, pages: &HashMap<u64, Page>) -> Option<Time> {
        let due = self.all.iter().filter_map(|lba| pages.get(lba)?.due.as_ref());
        let mut since: Vec<Time> = due.map(|due| due.since).collect();
        let last = count.min(since.len()).checked_sub(1)?;
        Some(*since.select_nth_unstable(last).1)
    }
}
