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
    /// So many, those that have waited longest.
    Oldest(usize),
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
        let may_leave = matches!(self, Which::Old(_) | Which::Oldest(_));
        !(may_leave && page.homing)
            && page.due.as_ref().is_some_and(|due| match self {
                Which::Old(old) => due.content.is_none() || due.since <= old,
                Which::Before(sequence) => page.first_live.is_some_and(|first| first < sequence),
                Which::Direct(version) => due.direct && due.version <= version,
                Which::Oldest(_) | Which::All => true,
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

    /// Blocks that have to go home, at most `most`, in the order of their numbers.
    pub(super) fn pick(&self, which: Which, pages: &HashMap<u64, Page>, most: usize) -> Vec<u64> {
        let candidates = match which {
            Which::Direct(_) => &self.direct,
            _ => &self.all,
        };
        let takes = |lba: &&u64| pages.get(lba).is_some_and(|page| which.takes(page));
        let chosen = candidates.iter().filter(takes).copied();
        let Which::Oldest(count) = which else { return chosen.take(most).collect() };
        let since = |lba: &u64| pages.get(lba).and_then(|page| Some(page.due.as_ref()?.since));
        let mut aged: Vec<_> = chosen.map(|lba| (since(&lba), lba)).collect();
        let count = count.min(most);
        if count < aged.len() {
            aged.select_nth_unstable(count);
            aged.truncate(count);
        }
        let mut chosen: Vec<u64> = aged.into_iter().map(|(_, lba)| lba).collect();
        chosen.sort_unstable();
        chosen
    }
}
