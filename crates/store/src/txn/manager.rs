//! The transactions of one block store.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::MutexGuard;
use thalweg_env::{Env, HashSet, Task};
use tokio::sync::Notify;

use super::access::{Accesses, Own};
use super::commit::{self, Past};
use super::options::Options;
use super::order::{Order, Snapshot};
use super::running::{OwnerId, Phase, Registry, Running, Work};
use super::{Begin, Contention, Durability, Handle, Preempted, Transact, Transaction, TxnError};
use crate::block::{BLOCK_SIZE, Backpressure, BlockStore, Class, EpochVersion, Lba, Version};
use crate::device::AlignedBuf;
use crate::gate::Gate;
use crate::lock::BriefMutex;

/// Reads are charged too: recording this many takes as much memory as one written block.
const READS_PER_WRITE: usize = 64;
/// Ticks until a transaction counts as idle.
const IDLE_TICKS: u64 = 4;

/// The content of blocks that hold nothing.
pub(super) static ZEROS: LazyLock<Bytes> =
    LazyLock::new(|| AlignedBuf::zeroed(BLOCK_SIZE).freeze());

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

pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) store: Arc<dyn BlockStore>,
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
    contention: Contention,
    /// Bytes charged to running transactions.
    charged: AtomicU64,
    /// See [`Aside::owners`](super::Aside::owners).
    pub(super) owners: Arc<parking_lot::Mutex<HashSet<u128>>>,
    /// Ticks of the reaper: a clock that costs nothing to read.
    ticks: AtomicU64,
}

/// Counts of events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) read_only: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) aborts: AtomicU64,
    pub(super) preempted: AtomicU64,
    pub(super) singletons: AtomicU64,
    pub(super) merged: AtomicU64,
}

impl Counts {
    pub(super) fn add(count: &AtomicU64, n: u64) {
        count.fetch_add(n, Ordering::Relaxed);
    }
}

/// A manager's counters since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TxnStatus {
    /// Transactions running now.
    pub running: u64,
    /// Commits remembered for the running transactions.
    pub window: u64,
    /// Bytes of writes that are buffered until their commit.
    pub buffered_bytes: u64,
    /// Transactions with writes that committed.
    pub commits: u64,
    /// Transactions without writes that committed.
    pub read_only: u64,
    /// Transactions that failed with a conflict.
    pub conflicts: u64,
    /// Transactions aborted by their owners.
    pub aborts: u64,
    /// Transactions aborted from outside.
    pub preempted: u64,
    /// Writes outside of transactions.
    pub singletons: u64,
    /// Commits that were merged with concurrent changes in the same blocks.
    pub merged: u64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionManager").field("store", &self.store).finish_non_exhaustive()
    }
}

impl fmt::Debug for TransactionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl TransactionManager {
    /// A manager for `store`, which only this manager may change.
    pub fn new(env: &Env, store: Arc<dyn BlockStore>, options: Options) -> TransactionManager {
        let max_large = options.max_large.min(store.max_transaction());
        let options = Options { max_large, ..options };
        let gate = Arc::new(Gate::default());
        let order = Order::new(gate.clone());
        let inner = Arc::new(Inner {
            env: env.clone(),
            store,
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

/// A process, or a connection of one, that runs transactions. When the last clone is dropped, its
/// transactions are aborted except for those that it released.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Process>,
}

#[derive(Debug)]
struct Process {
    inner: Arc<Inner>,
    owner: OwnerId,
}

impl Drop for Process {
    fn drop(&mut self) {
        let owned = self.inner.registry.lock().of(self.owner);
        for running in owned {
            self.inner.preempt(&running, Preempted::OwnerDied);
        }
    }
}

impl Client {
    fn new(inner: &Arc<Inner>) -> Client {
        let owner = inner.registry.lock().owner();
        Client { shared: Arc::new(Process { inner: inner.clone(), owner }) }
    }

    fn transaction(&self, running: Arc<Running>) -> Arc<dyn Transaction> {
        let inner = self.shared.inner.clone();
        Arc::new(LocalTransaction { inner, running, released: AtomicBool::new(false) })
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

/// A reserved place for a transaction; released on drop unless the transaction begins.
struct Admission<'a> {
    inner: &'a Inner,
    owner: OwnerId,
    used: bool,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.inner.registry.lock().expel(self.owner);
        }
    }
}

#[async_trait]
impl Transact for Client {
    fn blocks(&self) -> u64 {
        self.shared.inner.store.blocks()
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        let (inner, owner) = (&self.shared.inner, self.shared.owner);
        inner.registry.lock().admit(owner, inner.options.max_running)?;
        let mut admission = Admission { inner, owner, used: false };
        let enter = |snapshot| {
            admission.used = true;
            inner.registry.lock().add(owner, begin, snapshot, inner.tick())
        };
        let running = match (begin.at, begin.read_only) {
            (Some(at), true) => commit::begin_at(inner, at, enter).await?,
            (Some(_), false) => {
                let why = "a transaction on a given version is read-only";
                return Err(TxnError::Invalid(why.to_owned()));
            }
            (None, true) => commit::begin_synced(inner, enter).await,
            (None, false) => commit::begin(inner, enter).await,
        };
        Ok(self.transaction(running))
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        let inner = &self.shared.inner;
        let most = inner.options.max_running;
        let running = inner.registry.lock().takeover(handle, self.shared.owner, most)?;
        running.touch(inner.tick());
        Ok(self.transaction(running))
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        let store = &self.shared.inner.store;
        let version = store.now();
        store.sync(version).await?;
        Ok(store.name(version))
    }

    fn contention(&self) -> &Contention {
        &self.shared.inner.contention
    }

    async fn discard_run(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        commit::discard(&self.shared.inner, Past::Anything, lba, count).await?;
        Ok(())
    }
}

impl Inner {
    /// The time in ticks of the reaper.
    fn tick(&self) -> u64 {
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
        let quiet = {
            let mut order = self.order.lock();
            order.end(until);
            order.is_quiet()
        };
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
    fn charge(&self, running: &Running, _work: &mut Work, blocks: usize) -> bool {
        if blocks == 0 {
            return false;
        }
        let bytes = (blocks * BLOCK_SIZE) as u64;
        running.charged.fetch_add(bytes, Ordering::Relaxed);
        let before = self.charged.fetch_add(bytes, Ordering::Relaxed);
        before + bytes > self.options.memory as u64
    }

    /// Removes the charge of a transaction that has ended.
    fn discharge(&self, running: &Running) {
        self.charged.fetch_sub(running.charged.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Aborts the transaction with the highest charge.
    fn preempt_the_greediest(&self) {
        let all = self.registry.lock().all();
        let greedy = all.iter().max_by_key(|running| running.charged.load(Ordering::Relaxed));
        if let Some(greedy) = greedy {
            self.preempt(greedy, Preempted::Memory);
        }
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

/// A transaction of this process.
pub(super) struct LocalTransaction {
    pub(super) inner: Arc<Inner>,
    pub(super) running: Arc<Running>,
    /// After a release another owner may have it.
    released: AtomicBool,
}

impl fmt::Debug for LocalTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.running.id).finish_non_exhaustive()
    }
}

impl Drop for LocalTransaction {
    fn drop(&mut self) {
        if !self.released.load(Ordering::Acquire) {
            self.finish();
        }
    }
}

impl LocalTransaction {
    /// Ends the transaction without a commit.
    fn finish(&self) {
        if let Phase::Active(snapshot) = self.inner.end(&self.running, Phase::Ended) {
            self.inner.let_go(snapshot);
            Counts::add(&self.inner.counts.aborts, 1);
        }
        self.inner.registry.lock().remove(self.running.id);
    }

    /// The transaction's work, unless it was released.
    ///
    /// # Errors
    /// [`TxnError::Ended`] after a release.
    fn usable(&self) -> Result<MutexGuard<'_, Work>, TxnError> {
        match self.released.load(Ordering::Acquire) {
            true => Err(TxnError::Ended),
            false => Ok(self.running.work.lock()),
        }
    }

    /// Ends the transaction for a commit: it no longer counts as running, and cannot be aborted any more.
    fn end(&self) -> Result<(Snapshot, Accesses), TxnError> {
        let mut work = self.usable()?;
        work.snapshot()?;
        let phase = std::mem::replace(&mut work.phase, Phase::Ended);
        let accesses = std::mem::take(&mut work.accesses);
        drop(work);
        self.inner.discharge(&self.running);
        self.inner.registry.lock().remove(self.running.id);
        match phase {
            Phase::Active(snapshot) => Ok((snapshot, accesses)),
            _ => Err(TxnError::Ended),
        }
    }

    /// Records that the transaction is in use.
    ///
    /// # Errors
    /// Why it does not run any more.
    pub(super) fn check_active(&self) -> Result<(), TxnError> {
        self.usable()?.snapshot()?;
        self.running.touch(self.inner.tick());
        Ok(())
    }

    pub(super) fn check(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        let blocks = self.inner.store.blocks();
        match lba.0.checked_add(count) {
            Some(end) if end <= blocks => Ok(()),
            _ => Err(TxnError::Invalid(format!(
                "{count} blocks from {} on leave a volume of {blocks} blocks",
                lba.0
            ))),
        }
    }

    fn put(&self, lba: Lba, content: Option<Bytes>, class: Class) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        if content.as_ref().is_some_and(|content| content.len() != BLOCK_SIZE) {
            return Err(TxnError::Invalid(format!("a block has {BLOCK_SIZE} bytes")));
        }
        let is_too_much = {
            let mut work = self.usable()?;
            work.snapshot()?;
            if self.running.begin.read_only {
                return Err(TxnError::Invalid("the transaction is for reading".to_owned()));
            }
            let before = work.accesses.writes();
            let most = match self.running.is_large.load(Ordering::Relaxed) {
                true => self.inner.options.max_large,
                false => self.inner.options.max_writes,
            };
            work.accesses.write(lba, content, class, most)?;
            let written = work.accesses.writes() - before;
            self.inner.charge(&self.running, &mut work, written)
        };
        self.running.touch(self.inner.tick());
        if is_too_much {
            self.inner.preempt_the_greediest();
        }
        Ok(())
    }

    /// Records reads, and separates the blocks that the transaction itself wrote.
    fn plan(&self, lba: Lba, count: u64) -> Result<Plan, TxnError> {
        let mut work = self.usable()?;
        let at = work.snapshot()?.hold.version();
        let begin = self.running.begin;
        let mut own = Vec::with_capacity(count as usize);
        let before = work.accesses.blocks();
        for lba in (lba.0..lba.0 + count).map(Lba) {
            own.push(work.accesses.own(lba));
            work.accesses.read(lba, begin.is_untracked());
        }
        let noted = work.accesses.blocks() - before;
        let charged = noted.div_ceil(READS_PER_WRITE);
        let is_too_much = self.inner.charge(&self.running, &mut work, charged);
        Ok(Plan { at, own, is_too_much })
    }
}

/// What a read needs from the store.
struct Plan {
    at: Version,
    own: Vec<Own>,
    /// The read set exceeds the memory limit.
    is_too_much: bool,
}

#[async_trait]
impl Transaction for LocalTransaction {
    fn blocks(&self) -> u64 {
        self.inner.store.blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.check(lba, count)?;
        let plan = self.plan(lba, count)?;
        self.running.touch(self.inner.tick());
        if plan.is_too_much {
            self.inner.preempt_the_greediest();
        }
        let stored = match plan.own.iter().all(|own| !matches!(own, Own::Nothing)) {
            true => Ok(vec![None; plan.own.len()]),
            false => self.inner.store.read(lba, count, plan.at).await,
        };
        // While the transaction was not aborted its snapshot was held, so all blocks belong to one snapshot.
        // Otherwise the reason counts, and not that the snapshot is gone.
        self.usable()?.snapshot()?;
        let blocks = plan.own.into_iter().zip(stored?).map(|(own, stored)| match own {
            Own::Content(content) => content,
            Own::Discarded => ZEROS.clone(),
            Own::Nothing => stored.unwrap_or_else(|| ZEROS.clone()),
        });
        Ok(blocks.collect())
    }

    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError> {
        self.put(lba, Some(content), class)
    }

    fn discard(&self, lba: Lba) -> Result<(), TxnError> {
        self.put(lba, None, Class::Metadata)
    }

    fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        let mut work = self.usable()?;
        work.snapshot()?;
        work.accesses.mark(lba, range, self.running.begin.is_untracked())
    }

    fn depend(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        let mut work = self.usable()?;
        work.snapshot()?;
        work.accesses.depend(lba, range)
    }

    fn aside(&self) -> Option<&dyn super::Aside> {
        Some(self)
    }

    fn please_cache(&self, lba: Lba) {
        self.inner.store.please_cache(lba);
    }

    fn version(&self) -> EpochVersion {
        self.inner.store.name(self.running.version)
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        let (snapshot, accesses) = self.end()?;
        let isolation = self.running.begin.isolation;
        let until = snapshot.until.unwrap_or(u64::MAX);
        let intent = accesses.into_intent(isolation, until);
        let (version, backpressure) = match intent.writes.is_empty() {
            true => {
                let (version, is_durable) = (snapshot.hold.version(), snapshot.until.is_none());
                self.inner.let_go(snapshot);
                Counts::add(&self.inner.counts.read_only, 1);
                if is_durable {
                    return Ok(self.inner.store.name(version));
                }
                (version, Backpressure::NONE)
            }
            false => {
                // No more reads: the store need not keep the snapshot any longer.
                drop(snapshot);
                commit::commit(&self.inner, intent).await?
            }
        };
        if durability == Durability::Synced {
            self.inner.store.sync(version).await?;
        }
        backpressure.wait().await;
        Ok(self.inner.store.name(version))
    }

    async fn abort(&self) {
        if !self.released.load(Ordering::Acquire) {
            self.finish();
        }
    }

    async fn release(&self) -> Result<Handle, TxnError> {
        self.usable()?.snapshot()?;
        let secret = self.inner.env.secret();
        let secret =
            secret.map_err(|error| TxnError::Invalid(format!("no random handle: {error}")))?;
        if self.released.swap(true, Ordering::AcqRel) {
            return Err(TxnError::Ended);
        }
        let handle = Handle(u128::from_le_bytes(secret));
        self.running.touch(self.inner.tick());
        self.inner.registry.lock().release(self.running.id, handle);
        Ok(handle)
    }
}
