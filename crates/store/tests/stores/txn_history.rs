//! Histories of concurrent transactions, judged by a checker that is independent of the implementation: it
//! infers from the reads which transactions must precede which, and looks for cycles.
//!
//! Clients append to lists and read them. A list lies in a part of a block: a count in a fragment of its own,
//! then its elements, so that several lists share a block and an append marks few bytes of it.

use std::sync::Arc;
use std::time::Duration;

use adya::{History, Opts, Report, Valid, Workload};
use parking_lot::Mutex;
use rand::RngExt;
use rand::seq::IteratorRandom;
use serde_json::json;
use thalweg_env::Env;
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BlockStore, Lba};
use thalweg_store::chain::Cleaning;
use thalweg_store::device::{Device, DeviceRef, MemoryDevice};
use thalweg_store::txn::{
    Begin, Bug, Durability, Isolation, Options, Transact, Transaction, TransactionManager, TxnError,
};

use crate::support::Shape;

/// Bytes of a list.
const LIST: usize = 1024;
const LISTS_PER_BLOCK: u64 = 4;
const ELEMENT: usize = 16;
const MOST: usize = LIST / ELEMENT - 1;

/// One step of a client in a transaction.
#[derive(Clone, Copy, Debug)]
enum Micro {
    Read(u64),
    Append(u64, i64),
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    begin: Begin,
    lists: u64,
    clients: u64,
    transactions: u64,
    marks: bool,
    bug: Option<Bug>,
    /// Clients yield rather than sleep: for threads that run at the same time.
    hurried: bool,
}

impl Plan {
    fn new(isolation: Isolation) -> Plan {
        let begin = Begin { isolation, ..Begin::default() };
        Plan {
            begin,
            lists: 6,
            clients: 12,
            transactions: 25,
            marks: true,
            bug: None,
            hurried: false,
        }
    }

    fn options(&self) -> Options {
        Options { bug: self.bug, ..Options::default() }
    }

    fn model(&self) -> &'static str {
        match self.begin.isolation {
            Isolation::Snapshot => "strong-snapshot-isolation",
            Isolation::StrictSerializable => "strict-serializable",
        }
    }
}

/// The operations and results of all clients, in one order.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    next_process: u64,
    /// Where acknowledgements are marked, by lines.
    recorder: Option<Recorder>,
}

impl Log {
    fn note(&mut self, kind: &str, process: u64, ops: &[(Micro, Option<Vec<i64>>)]) {
        let value: Vec<_> = ops
            .iter()
            .map(|(micro, read)| match micro {
                Micro::Read(list) => json!(["r", list, read]),
                Micro::Append(list, element) => json!(["append", list, element]),
            })
            .collect();
        self.lines.push(json!({"type": kind, "process": process, "value": value}).to_string());
        if let Some(recorder) = self.recorder.as_ref().filter(|_| kind == "ok") {
            recorder.mark(self.lines.len() as u64);
        }
    }

    fn process(&mut self) -> u64 {
        self.next_process += 1;
        self.next_process
    }

    /// The log when it had `lines` lines.
    fn until(&self, lines: usize) -> Log {
        let lines = self.lines[..lines].to_vec();
        Log { lines, next_process: self.next_process, recorder: None }
    }

    fn check(&self, model: &str) -> Report {
        let history = History::from_json(&self.lines.join("\n")).unwrap();
        let options = Opts { models: vec![model.into()], ..Opts::default() };
        adya::check(&history, Workload::ListAppend, &options)
    }
}

fn place(list: u64) -> (Lba, usize) {
    (Lba(list / LISTS_PER_BLOCK), (list % LISTS_PER_BLOCK) as usize * LIST)
}

/// The elements of a list. Marks the bytes read.
async fn read_list(txn: &dyn Transaction, list: u64, marks: bool) -> Result<Vec<i64>, TxnError> {
    let (lba, at) = place(list);
    let block = txn.read(lba).await?;
    let count = usize::from(block[at]).min(MOST);
    if marks {
        txn.mark_accessed(lba, at..at + ELEMENT * (count + 1))?;
    }
    let elements = block[at + ELEMENT..].chunks(ELEMENT).take(count);
    Ok(elements.map(|bytes| i64::from_le_bytes(bytes[..8].try_into().unwrap())).collect())
}

async fn append(
    txn: &dyn Transaction,
    list: u64,
    element: i64,
    marks: bool,
) -> Result<(), TxnError> {
    let count = read_list(txn, list, marks).await?.len();
    assert!(count < MOST, "lists are too short for the plan");
    let (lba, at) = place(list);
    let mut block = txn.read(lba).await?.to_vec();
    if marks {
        txn.mark_accessed(lba, at..at + 1)?;
    }
    block[at] = count as u8 + 1;
    let new = at + ELEMENT * (count + 1);
    block[new..new + 8].copy_from_slice(&element.to_le_bytes());
    txn.write(lba, block.into())?;
    if marks {
        txn.mark_accessed(lba, at..at + 1)?;
        txn.mark_accessed(lba, new..new + 8)?;
    }
    Ok(())
}

/// Runs one transaction; `None` when it conflicted.
async fn attempt(
    manager: &TransactionManager,
    plan: &Plan,
    env: &Env,
    ops: &mut [(Micro, Option<Vec<i64>>)],
) -> Result<(), TxnError> {
    let pause = |most: u64| Duration::from_nanos(env.rng().random_range(0..most * 1000));
    let txn = manager.begin(plan.begin).await?;
    for (micro, read) in ops.iter_mut() {
        match *micro {
            Micro::Read(list) => *read = Some(read_list(&*txn, list, plan.marks).await?),
            Micro::Append(list, element) => append(&*txn, list, element, plan.marks).await?,
        }
        match plan.hurried {
            true => tokio::task::yield_now().await,
            false => env.sleep(pause(20)).await,
        }
    }
    txn.commit(Durability::Synced).await.map(drop)
}

fn random_ops(plan: &Plan, env: &Env, next: &mut i64) -> Vec<(Micro, Option<Vec<i64>>)> {
    let mut rng = env.rng();
    let count = rng.random_range(1..=4);
    (0..count)
        .map(|_| {
            let list = rng.random_range(0..plan.lists);
            let micro = match rng.random_bool(0.5) {
                true => Micro::Read(list),
                false => {
                    *next += 1;
                    Micro::Append(list, *next)
                }
            };
            (micro, None)
        })
        .collect()
}

/// One client: transactions one after the other.
async fn client(
    env: Env,
    manager: TransactionManager,
    plan: Plan,
    log: Arc<Mutex<Log>>,
    number: u64,
) {
    let mut next = number as i64 * 1_000_000;
    let mut me = log.lock().process();
    for _ in 0..plan.transactions {
        let mut ops = random_ops(&plan, &env, &mut next);
        log.lock().note("invoke", me, &ops);
        match attempt(&manager, &plan, &env, &mut ops).await {
            Ok(()) => log.lock().note("ok", me, &ops),
            Err(error) if error.is_retryable() => log.lock().note("fail", me, &ops),
            Err(_) => {
                let mut log = log.lock();
                log.note("info", me, &ops);
                me = log.process();
            }
        }
    }
}

async fn play(env: &Env, store: Arc<dyn BlockStore>, plan: Plan, log: &Arc<Mutex<Log>>) {
    let manager = TransactionManager::new(env, store, plan.options());
    let clients: Vec<_> = (0..plan.clients)
        .map(|number| env.spawn(client(env.clone(), manager.clone(), plan, log.clone(), number)))
        .collect();
    for client in clients {
        client.await;
    }
}

/// The verdict on a history in memory.
fn judged(seed: u64, plan: Plan) -> Report {
    judged_as(seed, plan, plan.model())
}

fn judged_as(seed: u64, plan: Plan, model: &'static str) -> Report {
    run(seed, move |env| async move {
        let log = Arc::new(Mutex::new(Log::default()));
        let store = Arc::new(VersionedMemory::trusting(64));
        play(&env, store, plan, &log).await;
        let log = log.lock();
        let done = log.lines.iter().filter(|line| line.contains("\"ok\"")).count();
        assert!(done > 20, "only {done} commits");
        log.check(model)
    })
}

#[track_caller]
fn assert_valid(report: &Report) {
    assert_eq!(report.valid, Valid::True, "{:?}", report.anomaly_types);
}

#[test]
fn strict_serializability_holds() {
    for seed in campaign::seeds(25) {
        for marks in [true, false] {
            assert_valid(&judged(seed, Plan { marks, ..Plan::new(Isolation::StrictSerializable) }));
        }
    }
}

#[test]
fn snapshot_isolation_holds() {
    for seed in campaign::seeds(25) {
        for marks in [true, false] {
            assert_valid(&judged(1000 + seed, Plan { marks, ..Plan::new(Isolation::Snapshot) }));
        }
    }
}

#[test]
fn snapshot_isolation_permits_write_skew() {
    let skewed = (0..20).any(|seed| {
        let report = judged_as(seed, Plan::new(Isolation::Snapshot), "serializable");
        report.valid == Valid::False && report.anomaly_types.iter().any(|a| a.starts_with("G2"))
    });
    assert!(skewed);
}

/// Whether the checker finds an anomaly in some history of such a plan.
fn is_caught(plan: Plan) -> bool {
    (0..20).any(|seed| judged(seed, plan).valid == Valid::False)
}

#[test]
fn the_checker_sees_a_window_that_is_skipped() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        assert!(is_caught(Plan { bug: Some(Bug::SkippedWindow), ..Plan::new(isolation) }));
    }
}

#[test]
fn the_checker_sees_a_window_that_begins_too_late() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        assert!(is_caught(Plan { bug: Some(Bug::LateWatermark), ..Plan::new(isolation) }));
    }
}

#[test]
fn the_checker_sees_a_stale_snapshot() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        assert!(is_caught(Plan { bug: Some(Bug::StaleSnapshot), ..Plan::new(isolation) }));
    }
}

#[test]
fn the_checker_sees_a_merge_that_is_missing() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        assert!(is_caught(Plan { bug: Some(Bug::MissingMerge), ..Plan::new(isolation) }));
    }
}

/// Clients on several threads.
fn judged_on_threads(plan: Plan, store: impl AsyncFnOnce(&Env) -> Arc<dyn BlockStore>) -> Report {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(4).enable_all().build().unwrap().block_on(async {
        let env = Env::real();
        let log = Arc::new(Mutex::new(Log::default()));
        let store = store(&env).await;
        play(&env, store, plan, &log).await;
        log.lock().check(plan.model())
    })
}

fn hurried(isolation: Isolation) -> Plan {
    Plan { hurried: true, lists: 40, transactions: 40, ..Plan::new(isolation) }
}

#[test]
fn histories_hold_on_threads() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        for _ in 0..10 * campaign::length() {
            let memory = async |_: &Env| Arc::new(VersionedMemory::new(64)) as Arc<dyn BlockStore>;
            assert_valid(&judged_on_threads(hurried(isolation), memory));
            let chain = async |env: &Env| {
                let shape = Shape::small(Cleaning::CompactInBody);
                let devices = shape
                    .devices(|_, geometry| Arc::new(MemoryDevice::new(geometry.size)) as DeviceRef);
                shape.format(env, &devices).await;
                Arc::new(shape.open(env, &devices).await.unwrap().0) as Arc<dyn BlockStore>
            };
            assert_valid(&judged_on_threads(hurried(isolation), chain));
        }
    }
}

/// Reads every list of a crash image, and has the whole history judged.
async fn judge_image(env: &Env, image: &CrashImage, shape: &Shape, plan: &Plan, log: &Log) {
    let lines = image.acknowledged().max().unwrap_or(0);
    let mut log = log.until(lines as usize);
    let devices: Vec<DeviceRef> =
        image.disks().iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
    let (chain, _) = shape.open(env, &devices).await.unwrap();
    let manager = TransactionManager::new(env, Arc::new(chain), plan.options());
    let mut ops: Vec<_> = (0..plan.lists).map(|list| (Micro::Read(list), None)).collect();
    let me = log.process();
    log.note("invoke", me, &ops);
    attempt(&manager, plan, env, &mut ops).await.unwrap();
    log.note("ok", me, &ops);
    let report = log.check(plan.model());
    // Without any commit the checker has nothing to judge.
    let empty = report.anomaly_types == ["empty-transaction-graph"];
    let wrong = &report.anomaly_types;
    assert!(report.valid == Valid::True || empty, "{wrong:?} after {}", image.describe());
}

/// Histories over a chain that is cut off at many points. Returns the number of images.
fn crashed(seed: u64, isolation: Isolation) -> u64 {
    run(seed, move |env| async move {
        let shape = Shape::small(Cleaning::MoveToTail);
        let plan = Plan { transactions: 12, ..Plan::new(isolation) };
        let recorder = Recorder::with_latency(&env, Duration::from_micros(50));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let chain = shape.open(&env, &devices).await.unwrap().0;
        let opened = recorder.position();
        let log = Log { recorder: Some(recorder.clone()), ..Log::default() };
        let log = Arc::new(Mutex::new(log));
        play(&env, Arc::new(chain), plan, &log).await;
        let log = std::mem::take(&mut *log.lock());
        let mut images = 0;
        let points = (opened..recorder.position()).sample(&mut env.rng(), 25);
        let policy = Policy::sampled(0).at(Points::At(points));
        for image in recorder.images(&mut env.rng(), &policy) {
            judge_image(&env, &image, &shape, &plan, &log).await;
            images += 1;
        }
        images
    })
}

#[test]
fn histories_hold_across_a_crash() {
    let mut images = 0;
    for seed in campaign::seeds(6) {
        for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
            images += crashed(seed, isolation);
        }
    }
    assert!(images > 300, "{images}");
}
