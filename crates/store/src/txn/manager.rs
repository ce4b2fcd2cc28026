//! The transactions of one block store.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use thalweg_env::{Env, Task};
use tokio::sync::Notify;

use super::client::Client;
use super::commit;
use super::counts::{Counts, TxnStatus};
use super::inner::Inner;
use super::options::Options;
use super::order::Order;
use super::running::Phase;
use super::{Contention, Preempted};
use crate::block::BlockStore;
use crate::gate::Gate;
use crate::lock::BriefMutex;
use crate::stale::Versioned;

/// Ticks until a transaction counts as idle.
const IDLE_TICKS: u64 = 4;

/// Runs transactions over a block store of any kind. Clones are the same manager.
///
/// All changes of the store have to come through one manager: as transactions, or through its implementation
/// of [`BlockStore`], whose writes are transactions of their own.
#[derive(Clone)]
pub struct TransactionManager {
    pub(super) inner: Arc<Inner>,
    pub(super) client: Client,
    _reaper: Arc<Task<()>>,
}

impl fmt::Debug for TransactionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl TransactionManager {
    /// A manager for `store`, which only this manager may change.
    pub fn new(env: &Env, store: Arc<dyn BlockStore>, options: Options) -> TransactionManager {
        TransactionManager::of(env, Versioned::new(env, store), options)
    }

    /// The same for the store of `versions`, which are read by what they cost.
    pub fn of(env: &Env, versions: Versioned, options: Options) -> TransactionManager {
        let store = versions.store().clone();
        let max_large = options.max_large.min(store.max_transaction());
        let options = Options { max_large, ..options };
        let gate = Arc::new(Gate::default());
        let order = Order::new(gate.clone());
        let inner = Arc::new(Inner {
            env: env.clone(),
            store,
            versions,
            options,
            fenced: order.fence.is_up.clone(),
            order: BriefMutex::new(order),
            gate,
            passed: AtomicBool::new(false),
            registry: BriefMutex::default(),
            settled: Notify::new(),
            counts: Counts::default(),
            contention: Contention::new(env),
            charged: AtomicU64::new(0),
            owners: Arc::default(),
            ticks: AtomicU64::new(0),
        });
        let reaper = env.spawn(run_reaper(env.clone(), Arc::downgrade(&inner)));
        let client = Client::new(&inner);
        TransactionManager { inner, client, _reaper: Arc::new(reaper) }
    }

    /// A process that runs transactions: limits count for each process, and its transactions are aborted when
    /// it is gone.
    pub fn client(&self) -> Client {
        Client::new(&self.inner)
    }

    /// Runs `change`, which changes the store as a whole, while no transaction runs: running transactions are
    /// aborted, commits under way finish first, and new transactions begin afterwards.
    pub async fn exclusively<T>(&self, change: impl AsyncFnOnce() -> T) -> T {
        let _barrier = Barrier::new(&self.inner);
        let all = self.inner.registry.lock().all();
        all.iter().for_each(|running| self.inner.preempt(running, Preempted::Replaced));
        commit::drain(&self.inner).await;
        self.inner.order.lock().refresh();
        change().await
    }

    /// The limits.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The counters.
    pub fn status(&self) -> TxnStatus {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.inner.counts;
        // One lock after the other: a beginning transaction takes the registry's lock under that of the
        // order.
        let running = self.inner.registry.lock().len() as u64;
        let window = self.inner.order.lock().remembered() as u64;
        TxnStatus {
            running,
            window,
            buffered_bytes: get(&self.inner.charged),
            commits: get(&counts.commits),
            read_only: get(&counts.read_only),
            conflicts: get(&counts.conflicts),
            aborts: get(&counts.aborts),
            preempted: get(&counts.preempted),
            singletons: get(&counts.singletons),
            merged: get(&counts.merged),
        }
    }
}

/// While it lives, no transaction begins.
struct Barrier<'a>(&'a Inner);

impl<'a> Barrier<'a> {
    fn new(inner: &'a Inner) -> Barrier<'a> {
        inner.order.lock().bar();
        Barrier(inner)
    }
}

impl Drop for Barrier<'_> {
    fn drop(&mut self) {
        self.0.order.lock().unbar();
        self.0.settled.notify_waiters();
    }
}

/// Aborts idle transactions.
async fn run_reaper(env: Env, inner: Weak<Inner>) {
    loop {
        let Some(idle) = inner.upgrade().map(|inner| inner.options.idle) else { return };
        env.sleep(idle / IDLE_TICKS as u32).await;
        let Some(inner) = inner.upgrade() else { return };
        let now = inner.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        let all = inner.registry.lock().all();
        // Use between two ticks is recorded with the number of the first.
        for running in all.iter().filter(|running| now - running.last_used() > IDLE_TICKS) {
            if matches!(running.work.lock().phase, Phase::Active(_)) {
                inner.preempt(running, Preempted::Idle);
            }
        }
    }
}
