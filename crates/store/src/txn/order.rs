//! The order of commits: timestamps, what was applied, and the snapshots that new transactions get.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fence::Fence;
use super::intent::{Intent, Verdict};
use super::window::{Stream, Window};
use crate::block::{BlockStore, Hold};
use crate::gate::Gate;

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
    /// Everything before has its outcome.
    applied: u64,
    /// Somebody is applying.
    applying: bool,
    /// Those who change the store as a whole: nobody begins while there are any.
    bars: u32,
    /// The newest snapshot, for those who begin.
    newest: Option<Arc<Hold>>,
    /// The snapshot before the newest.
    #[cfg(feature = "seeded-bugs")]
    pub(super) stale: Option<Arc<Hold>>,
    /// Closed once for each of the floors: nobody writes past transactions that run.
    gate: Arc<Gate>,
    /// The first timestamps of the windows that somebody may still ask for.
    floors: BTreeMap<u64, u32>,
    pub(super) fence: Fence,
}

/// What the one who applies has to do next.
pub(super) enum Step {
    /// Apply this one, whose window is beside it.
    Apply(Arc<Intent>, Window),
    /// Nothing for now.
    Rest,
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
            floors: BTreeMap::new(),
            fence: Fence::default(),
        }
    }

    /// Lets nobody begin until as many calls of [`Order::unbar`]; gives up the newest snapshot.
    pub(super) fn bar(&mut self) {
        self.bars += 1;
        self.newest = None;
    }

    /// Takes back one call of [`Order::bar`].
    pub(super) fn unbar(&mut self) {
        self.bars -= 1;
    }

    fn is_barred(&self) -> bool {
        self.bars > 0
    }

    /// Forgets the newest snapshot: the store has newer versions.
    pub(super) fn refresh(&mut self) {
        self.newest = None;
    }

    /// A snapshot for a new transaction, whose window is kept from now on, with the gate closed for it
    /// by the caller; `None` while nobody may begin, or a commit is being applied and there is none to
    /// share.
    pub(super) fn begin(&mut self, store: &dyn BlockStore) -> Option<Snapshot> {
        if self.is_barred() {
            return None;
        }
        let hold = match &self.newest {
            Some(hold) => hold.clone(),
            None if self.applying => return None,
            None => {
                let hold = Arc::new(store.hold(store.now())?);
                self.newest = Some(hold.clone());
                hold
            }
        };
        *self.floors.entry(self.applied).or_default() += 1;
        Some(Snapshot { until: Some(self.applied), hold })
    }

    /// The newest snapshot that survives a crash; `None` while nobody may begin, or when the store has
    /// not kept one.
    pub(super) fn begin_synced(&self, store: &dyn BlockStore) -> Option<Snapshot> {
        let hold = (!self.is_barred()).then(|| store.hold_synced())??;
        Some(Snapshot { until: None, hold: Arc::new(hold) })
    }

    /// Nobody asks for a window from `floor` on any more.
    pub(super) fn end(&mut self, floor: u64) {
        if let Some(count) = self.floors.get_mut(&floor) {
            *count -= 1;
            if *count == 0 {
                self.floors.remove(&floor);
            }
            self.gate.reopen();
        }
        let oldest = self.floors.keys().next().copied().unwrap_or(self.applied);
        self.stream.forget(oldest.min(self.applied));
    }

    /// Whether nobody may begin, and nobody is left who asks for a window.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_barred() && self.floors.is_empty()
    }

    /// Gives a transaction its commit timestamp; that and its window. The window is kept until there is
    /// an outcome, and ends then without [`Order::end`].
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

    /// Commits that are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.stream.len()
    }

    /// Becomes the one who applies, if nobody is.
    pub(super) fn take_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.applying, true)
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
                // Whoever decides it goes on from here.
                Verdict::Open => break,
            }
        }
        self.applying = false;
        Step::Rest
    }

    /// Drops the newest snapshot when nobody has it: the store keeps no old version for it then.
    fn let_go(&mut self) {
        if self.newest.as_ref().is_some_and(|hold| Arc::strong_count(hold) == 1) {
            self.newest = None;
        }
    }

    /// Notes that the transaction which was to be applied has its outcome.
    pub(super) fn finish(&mut self, intent: &Intent, committed: bool, newest: Option<Arc<Hold>>) {
        self.applied += 1;
        // Before the gate opens again, which ends the transaction.
        self.fence.leave(intent, committed);
        // Nothing is held on to while the store is changed as a whole.
        self.newest = newest.filter(|_| !self.is_barred());
        self.end(intent.since);
    }

    /// The transactions that have no outcome yet.
    pub(super) fn pending(&self) -> Vec<Arc<Intent>> {
        (self.applied..self.stream.next()).filter_map(|at| self.stream.get(at)).collect()
    }
}
