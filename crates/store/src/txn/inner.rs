//! What all transactions of a store share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thalweg_env::{Env, HashSet};
use tokio::sync::Notify;

use super::counts::Counts;
use super::options::Options;
use super::order::{Order, Snapshot};
use super::running::{Phase, Registry, Running, Work};
use super::{Contention, Preempted};
use crate::block::{BLOCK_SIZE, BlockStore};
use crate::gate::Gate;
use crate::lock::BriefMutex;
use crate::stale::Versioned;

pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) store: Arc<dyn BlockStore>,
    /// The store's versions, with what they cost.
    pub(super) versions: Versioned,
    pub(super) options: Options,
    pub(super) order: BriefMutex<Order>,
    /// Locked alone, or after `order`.
    pub(super) registry: BriefMutex<Registry>,
    /// Writes outside of transactions pass it while no transaction runs.
    pub(super) gate: Arc<Gate>,
    /// Whether the fence is up, as in `order`.
    pub(super) fenced: Arc<AtomicBool>,
    /// A write has passed the gate since the last snapshot was taken.
    pub(super) passed: AtomicBool,
    /// Notified when a commit was applied: transactions that wait for a snapshot look again.
    pub(super) settled: Notify,
    pub(super) counts: Counts,
    pub(super) contention: Contention,
    /// Bytes charged to running transactions.
    pub(super) charged: AtomicU64,
    /// See [`Aside::owners`](super::Aside::owners).
    pub(super) owners: Arc<parking_lot::Mutex<HashSet<u128>>>,
    /// Ticks of the reaper: a clock that costs nothing to read.
    pub(super) ticks: AtomicU64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionManager").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Inner {
    /// Whether the fence is up.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// The time in ticks of the reaper.
    pub(super) fn tick(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Ends a transaction's phase. Returns the former phase.
    pub(super) fn end(&self, running: &Running, phase: Phase) -> Phase {
        let before = {
            let mut work = running.work.lock();
            if !matches!(work.phase, Phase::Active(_)) {
                return Phase::Ended;
            }
            std::mem::replace(&mut work.phase, phase)
        };
        self.discharge(running);
        before
    }

    /// Releases a transaction's snapshot.
    pub(super) fn let_go(&self, snapshot: Snapshot) {
        let Snapshot { until, hold } = snapshot;
        // Released before the order learns of it: once no transaction runs, nothing is held either.
        drop(hold);
        let Some(until) = until else { return };
        let (quiet, forgotten) = {
            let mut order = self.order.lock();
            order.end(until);
            (order.is_quiet(), order.take_forgotten())
        };
        drop(forgotten);
        if quiet {
            self.settled.notify_waiters();
        }
    }

    /// Aborts a transaction from outside. Its owner learns of it at the next call.
    pub(super) fn preempt(&self, running: &Running, why: Preempted) {
        if let Phase::Active(snapshot) = self.end(running, Phase::Preempted(why)) {
            running.work.lock().accesses = Default::default();
            self.let_go(snapshot);
            Counts::add(&self.counts.preempted, 1);
        }
        let mut registry = self.registry.lock();
        if registry.forget_released(running.id) || why == Preempted::OwnerDied {
            registry.remove(running.id);
        }
    }

    /// Aborts the transaction with the oldest snapshot; false when none runs.
    pub(super) fn preempt_oldest(&self, why: Preempted) -> bool {
        let all = self.registry.lock().all();
        let snapshot = |running: &Arc<Running>| match &running.work.lock().phase {
            Phase::Active(snapshot) => Some(snapshot.hold.version()),
            _ => None,
        };
        let oldest = all.iter().filter_map(|running| Some((snapshot(running)?, running)));
        match oldest.min_by_key(|(version, running)| (*version, running.id)) {
            Some((_, running)) => {
                self.preempt(running, why);
                true
            }
            None => false,
        }
    }

    /// Charges a transaction with memory for `blocks` more blocks. Returns whether the limit of all
    /// transactions is exceeded. Its work is locked and active, so that ending it discharges all of it.
    pub(super) fn charge(&self, running: &Running, _work: &mut Work, blocks: usize) -> bool {
        if blocks == 0 {
            return false;
        }
        let bytes = (blocks * BLOCK_SIZE) as u64;
        running.charged.fetch_add(bytes, Ordering::Relaxed);
        let before = self.charged.fetch_add(bytes, Ordering::Relaxed);
        before + bytes > self.options.memory as u64
    }

    /// Removes the charge of a transaction that has ended.
    pub(super) fn discharge(&self, running: &Running) {
        self.charged.fetch_sub(running.charged.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Aborts the transaction with the highest charge.
    pub(super) fn preempt_the_greediest(&self) {
        let all = self.registry.lock().all();
        let greedy = all.iter().max_by_key(|running| running.charged.load(Ordering::Relaxed));
        if let Some(greedy) = greedy {
            self.preempt(greedy, Preempted::Memory);
        }
    }
}
