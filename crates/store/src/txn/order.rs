//! The order of commits: timestamps, which of them are applied, and the snapshots for new transactions.

use std::sync::Arc;

use super::fence::Fence;
use super::intent::{Intent, Verdict};
use super::window::{Forgotten, Stream, Window};
use crate::block::{Hold, Versions};
use crate::gate::Gate;
use crate::refcounts::RefCounts;
use crate::stale::Unserved;

/// The state of the store with all commits before a timestamp, and none after.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// The first timestamp that is not in it; `None` for one that is known to be durable, which has no
    /// window and cannot be written on.
    pub(super) until: Option<u64>,
    pub(super) hold: Arc<Hold>,
}

/// Everything under the one lock of the commit order.
#[derive(Debug)]
pub(super) struct Order {
    stream: Stream,
    /// Everything before this timestamp has its outcome.
    applied: u64,
    /// A task is applying.
    applying: bool,
    /// Callers that change the store as a whole: no transaction begins while there are any.
    bars: u32,
    /// The newest snapshot, shared by transactions that begin.
    newest: Option<Arc<Hold>>,
    /// The snapshot before the newest.
    #[cfg(feature = "seeded-bugs")]
    pub(super) stale: Option<Arc<Hold>>,
    /// Closed once for each of the floors: no write passes it while a transaction runs.
    gate: Arc<Gate>,
    /// The first timestamps of the windows that a transaction may still need.
    floors: RefCounts<u64>,
    pub(super) fence: Fence,
}

/// The next step of the task that applies.
pub(super) enum Step {
    /// Apply this one, whose window is beside it.
    Apply(Arc<Intent>, Window),
    /// Nothing for now.
    Rest,
}

/// Holds the newest version of a store. A follower may have a newer one before that is held.
fn hold_newest(store: &dyn Versions) -> Result<Hold, Unserved> {
    let mut newest = store.now();
    loop {
        if let Some(hold) = store.hold(newest) {
            return Ok(hold);
        }
        let newer = store.now();
        if newer == newest {
            return Err(Unserved::NoState);
        }
        newest = newer;
    }
}

impl Order {
    pub(super) fn new(gate: Arc<Gate>) -> Order {
        Order {
            gate,
            stream: Stream::new(),
            applied: 0,
            applying: false,
            bars: 0,
            newest: None,
            #[cfg(feature = "seeded-bugs")]
            stale: None,
            floors: RefCounts::default(),
            fence: Fence::default(),
        }
    }

    /// Keeps transactions from beginning until as many calls of [`Order::unbar`]; releases the newest
    /// snapshot.
    pub(super) fn bar(&mut self) {
        self.bars += 1;
        self.newest = None;
    }

    /// Takes back one call of [`Order::bar`].
    pub(super) fn unbar(&mut self) {
        self.bars -= 1;
    }

    /// Whether a barrier is up.
    pub(super) fn is_barred(&self) -> bool {
        self.bars > 0
    }

    /// Forgets the newest snapshot: the store has newer versions.
    pub(super) fn refresh(&mut self) {
        self.newest = None;
    }

    /// A snapshot for a new transaction, whose window is kept from now on; the caller has closed the gate for
    /// it. `None` while a barrier is up, or while a commit is being applied and there is no snapshot to
    /// share.
    ///
    /// # Errors
    /// [`Unserved::NoState`].
    pub(super) fn begin(&mut self, store: &dyn Versions) -> Result<Option<Snapshot>, Unserved> {
        if self.is_barred() {
            return Ok(None);
        }
        let hold = match &self.newest {
            Some(hold) => hold.clone(),
            None if self.applying => return Ok(None),
            None => {
                let hold = Arc::new(hold_newest(store)?);
                // Versions of a read-only store come without a notice.
                self.newest = (!store.is_read_only()).then(|| hold.clone());
                hold
            }
        };
        self.floors.take(self.applied);
        Ok(Some(Snapshot { until: Some(self.applied), hold }))
    }

    /// The newest snapshot that survives a crash; `None` while a barrier is up, or when the store has not
    /// kept one.
    pub(super) fn begin_synced(&self, store: &dyn Versions) -> Option<Snapshot> {
        let hold = (!self.is_barred()).then(|| store.hold_synced())??;
        Some(Snapshot { until: None, hold: Arc::new(hold) })
    }

    /// The window from `floor` on is no longer needed.
    pub(super) fn end(&mut self, floor: u64) {
        if self.floors.release(floor).is_some() {
            self.gate.reopen();
        }
        let oldest = self.floors.first().unwrap_or(self.applied);
        self.stream.forget(oldest.min(self.applied));
    }

    /// Whether a barrier is up and no transaction needs a window.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_barred() && self.floors.is_empty()
    }

    /// Gives a transaction its commit timestamp. Returns that and its window, which is kept until there is an
    /// outcome and released then without [`Order::end`].
    pub(super) fn push(&mut self, intent: Arc<Intent>) -> (u64, Window) {
        self.stream.push(intent)
    }

    /// The last transaction before a timestamp that commits and has no outcome yet.
    pub(super) fn committing(&self, before: u64) -> Option<Arc<Intent>> {
        let earlier = (self.applied..before).rev().filter_map(|at| self.stream.get(at));
        earlier.into_iter().find(|intent| intent.verdict() == Verdict::Commit)
    }

    /// A part of the stream.
    pub(super) fn window(&self, start: u64, end: u64) -> Window {
        self.stream.window(start, end)
    }

    /// The number of commits remembered.
    pub(super) fn remembered(&self) -> usize {
        self.stream.len()
    }

    /// Takes the turn to apply, if it is free, and returns the first step.
    pub(super) fn take_turn(&mut self) -> Option<Step> {
        (!std::mem::replace(&mut self.applying, true)).then(|| self.next_step())
    }

    /// Gives up the turn.
    pub(super) fn end_turn(&mut self) {
        self.applying = false;
    }

    /// What comes next in the order of timestamps. With [`Step::Rest`] the turn has ended.
    pub(super) fn next_step(&mut self) -> Step {
        while let Some(intent) = self.stream.get(self.applied) {
            match intent.verdict() {
                Verdict::Abort => {
                    self.applied += 1;
                    self.fence.leave(&intent, false);
                    self.end(intent.since);
                }
                Verdict::Commit => {
                    let window = self.stream.window(intent.since, self.applied);
                    self.let_go();
                    return Step::Apply(intent, window);
                }
                // The task that decides it continues from here.
                Verdict::Open => break,
            }
        }
        self.applying = false;
        Step::Rest
    }

    /// Releases the newest snapshot when no transaction uses it: the store keeps no old version for it then.
    fn let_go(&mut self) {
        if self.newest.as_ref().is_some_and(|hold| Arc::strong_count(hold) == 1) {
            self.newest = None;
        }
    }

    /// Records the outcome of the transaction that was applied.
    pub(super) fn finish(&mut self, intent: &Intent, committed: bool, newest: Option<Arc<Hold>>) {
        self.applied += 1;
        // Before the gate opens again, which ends the transaction.
        self.fence.leave(intent, committed);
        // No snapshot is kept while the store is changed as a whole.
        self.newest = newest.filter(|_| !self.is_barred());
        self.end(intent.since);
    }

    /// Takes what no window needs any more: the caller drops it without the lock.
    pub(super) fn take_forgotten(&mut self) -> Forgotten {
        self.stream.take_forgotten()
    }

    /// The transactions that have no outcome yet.
    pub(super) fn pending(&self) -> Vec<Arc<Intent>> {
        (self.applied..self.stream.next()).filter_map(|at| self.stream.get(at)).collect()
    }
}
