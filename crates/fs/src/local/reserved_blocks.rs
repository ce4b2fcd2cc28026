//! The blocks that a caller's transaction has to itself: which are reserved, which of these are unused, and which
//! it releases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet};
use thalweg_store::txn::Aside;

use super::extents::Run;
use super::format::{LIST_ENTRIES, NO_OWNER};

/// Blocks of existing files that a transaction changes in place: they stay at their addresses, and wait in
/// memory. Beyond this, changed blocks get new addresses.
const CHANGED_IN_PLACE: u64 = 64;

/// The reserved blocks of one transaction.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    pub(super) state: Mutex<ReservedBlocks>,
}

/// Keeps the reserved blocks of a transaction from being freed.
#[derive(Debug)]
pub(super) struct Owner {
    owners: Arc<Mutex<HashSet<u128>>>,
    pub(super) token: u128,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.owners.lock().remove(&self.token);
    }
}

/// Which blocks a transaction has to itself.
#[derive(Debug, Default)]
pub(super) struct ReservedBlocks {
    pub(super) listed: Option<Listed>,
    /// All its runs: start and blocks.
    pub(super) reserved: BTreeMap<u64, u64>,
    /// Unused parts of these. They hold zeros.
    free: BTreeMap<u64, u64>,
    /// Parts of `free` that do not hold zeros: a call that wrote to them failed.
    pub(super) dirtied: Vec<Run>,
    /// Blocks that will be free when the transaction commits.
    pub(super) released: Released,
    /// Blocks that it changes in place.
    in_place: u64,
}

/// Where the lists are.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) owner: Owner,
    /// Blocks of the list of reserved runs, and its entries.
    pub(super) blocks: Vec<u64>,
    pub(super) entries: Vec<Run>,
}

/// The list of released runs.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// The blocks that it lies in.
    pub(super) blocks: Vec<u64>,
    /// Its entries; those without blocks are vacant.
    pub(super) entries: Vec<Run>,
    vacant: Vec<usize>,
    by_start: HashMap<u64, usize>,
    /// Blocks of it that have to be written.
    pub(super) dirty: BTreeSet<usize>,
}

impl Released {
    fn add(&mut self, run: Run) {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Run { start: 0, blocks: 0 });
            self.entries.len() - 1
        });
        self.entries[at] = run;
        self.by_start.insert(run.start, at);
        self.dirty.insert(at / LIST_ENTRIES);
    }

    fn remove(&mut self, start: u64) {
        let Some(at) = self.by_start.remove(&start) else { return };
        self.entries[at] = Run { start: 0, blocks: 0 };
        self.vacant.push(at);
        self.dirty.insert(at / LIST_ENTRIES);
    }

    /// Blocks that its entries need.
    pub(super) fn needed(&self) -> usize {
        self.entries.len().div_ceil(LIST_ENTRIES).max(1)
    }
}

/// The allocations of one call, undone when it fails.
#[derive(Debug, Default)]
pub(super) struct Claim<'a> {
    of: Option<&'a Reservation>,
    /// Runs taken out of `free` (`true`) and put there, in order.
    pub(super) steps: Vec<(bool, Run)>,
    /// It has written to some of them.
    pub(super) dirties: bool,
}

impl Claim<'_> {
    /// The call has succeeded.
    pub(super) fn keep(&mut self) {
        self.steps.clear();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let Some(reservation) = self.of.filter(|_| !self.steps.is_empty()) else { return };
        let mut state = reservation.state.lock();
        for (taken, run) in std::mem::take(&mut self.steps).into_iter().rev() {
            if taken {
                state.put(run);
                if self.dirties {
                    state.dirtied.push(run);
                }
            } else {
                state.take(run.start)
            }
        }
    }
}

impl ReservedBlocks {
    pub(super) fn put(&mut self, run: Run) {
        self.free.insert(run.start, run.blocks);
        self.released.add(run);
    }

    pub(super) fn take(&mut self, start: u64) {
        self.free.remove(&start);
        self.released.remove(start);
    }

    /// Takes at most `most` free blocks in a row, from `goal` on if they are free.
    pub(super) fn pick(
        &mut self,
        goal: u64,
        most: u64,
        steps: &mut Vec<(bool, Run)>,
    ) -> Option<Run> {
        assert!(most > 0, "no blocks are wanted");
        let around = self.free.range(..=goal).next_back().map(|(start, blocks)| (*start, *blocks));
        let around = around.filter(|(start, blocks)| goal < start + blocks);
        let (start, blocks, from) = match around {
            Some((start, blocks)) => (start, blocks, goal),
            None => {
                let enough = self.free.iter().find(|(_, blocks)| **blocks >= most);
                let (start, blocks) = enough.or_else(|| self.free.iter().next())?;
                (*start, *blocks, *start)
            }
        };
        let end = (start + blocks).min(from + most);
        assert!(start <= from && from < end, "nothing is taken of a run of free blocks");
        self.take(start);
        steps.push((true, Run { start, blocks }));
        for rest in [start..from, end..start + blocks].into_iter().filter(|rest| !rest.is_empty()) {
            let rest = Run { start: rest.start, blocks: rest.end - rest.start };
            self.put(rest);
            steps.push((false, rest));
        }
        Some(Run { start: from, blocks: end - from })
    }

    pub(super) fn token(&self) -> u128 {
        self.listed.as_ref().map_or(NO_OWNER, |listed| listed.owner.token)
    }
}

impl Reservation {
    /// Whether a block is the transaction's own.
    pub(super) fn has(&self, block: u64) -> bool {
        let state = self.state.lock();
        let before = state.reserved.range(..=block).next_back();
        before.is_some_and(|(start, blocks)| block < start + blocks)
    }

    /// The parts of a run, and which of them are the transaction's own.
    pub(super) fn parts(&self, run: Run) -> Vec<(Run, bool)> {
        let state = self.state.lock();
        let (mut parts, mut at, end) = (Vec::new(), run.start, run.start + run.blocks);
        let first = state.reserved.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, blocks) in state.reserved.range(first..end) {
            let (from, to) = ((*start).max(at), (start + blocks).min(end));
            if from >= to {
                continue;
            }
            if at < from {
                parts.push((Run { start: at, blocks: from - at }, false));
            }
            parts.push((Run { start: from, blocks: to - from }, true));
            at = to;
        }
        if at < end {
            parts.push((Run { start: at, blocks: end - at }, false));
        }
        let all: u64 = parts.iter().map(|(part, _)| part.blocks).sum();
        assert_eq!(all, run.blocks, "the parts of {run:?} are not all of it");
        parts
    }

    /// Whether so many more blocks of existing files may be changed in place; counts them if so.
    pub(super) fn changes_in_place(&self, blocks: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.in_place + blocks <= CHANGED_IN_PLACE;
        if fits {
            state.in_place += blocks;
        }
        fits
    }

    /// Nothing refers to a run of blocks any more that is not the transaction's own.
    pub(super) fn release(&self, run: Run) {
        self.state.lock().released.add(run);
    }

    /// Takes back a run of its own that is no longer used and holds zeros.
    pub(super) fn give(&self, run: Run) {
        self.state.lock().put(run);
    }

    /// A claim on this reservation, for one call.
    pub(super) fn claim(&self) -> Claim<'_> {
        Claim { of: Some(self), steps: Vec::new(), dirties: false }
    }

    /// Allows the reserved blocks to be freed, unless the transaction has committed.
    pub(super) fn end(&self) -> Option<Owner> {
        self.state.lock().listed.take().map(|listed| listed.owner)
    }
}

impl Owner {
    /// Names the transaction as one that uses blocks of its own.
    pub(super) fn enter(aside: &dyn Aside, token: u128) -> Owner {
        let owners = aside.owners();
        owners.lock().insert(token);
        Owner { owners, token }
    }
}
