//! `txn-cpu`: processor time of transactions (Isotope, 4.4.1: conflict detection takes a few percent).
//!
//! Real time on devices of memory. Each client runs transactions that read three random blocks, change
//! 16 bytes of each, and commit durably: on two threads, and (`_one_thread`) on one, like a server with
//! two processors. The store is a chain, and then (`in_place_`) one that updates in place. Then a decision alone: a transaction that begins before this many commits and
//! conflicts with the last of them, so that no change is applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_store::block::{BLOCK_SIZE, BlockStore, Blocks, BlocksExt, Lba};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options as ChainOptions, Parts};
use thalweg_store::device::{AlignedBuf, Device, DeviceRef, MemoryDevice, Purpose};
use thalweg_store::inplace::{
    InPlace, NewInPlace, Options as InPlaceOptions, Parts as InPlaceParts,
};
use thalweg_store::txn::{
    Begin, Durability, FRAGMENT, Options as TxnOptions, Transact, Transaction, TransactionManager,
    TxnError,
};
use uuid::Uuid;

use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, SEGMENT, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "txn-cpu",
    about: "transactions per second on devices of memory, and time of a commit decision (real time)",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

/// Blocks that transactions choose from.
const BLOCKS: u64 = 8 * 1024;
const SEGMENTS: u32 = 24;
const CLIENTS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const WINDOWS: [u64; 6] = [0, 16, 64, 256, 1024, 4096];
/// Seconds for each number of clients at scale 1.
const SECONDS: f64 = 2.0;
const THREADS: usize = 2;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let span = Duration::from_secs_f64(SECONDS * scale);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let mut lines = Vec::new();
    for (kind, prefix, name) in
        [(Kind::Chain, "", "chain"), (Kind::InPlace, "in_place_", "in place")]
    {
        let mut best_of_all: f64 = 0.0;
        for (threads, suffix) in [(1, "_one_thread"), (THREADS, "")] {
            let rates = on_threads(threads, store(kind), |store| rates(store, span))?;
            let mut best: f64 = 0.0;
            for Rate { clients, per_s, cpu_us } in &rates {
                report.figure(&format!("{prefix}per_s_{clients}{suffix}"), rounded(*per_s));
                report.figure(&format!("{prefix}cpu_us_{clients}{suffix}"), rounded(*cpu_us));
                best = best.max(*per_s);
            }
            best_of_all = best_of_all.max(best);
            if kind == Kind::InPlace {
                report.figure(&format!("{prefix}per_s_best{suffix}"), rounded(best));
            }
            let points = rates.iter().map(|rate| (rate.clients as f64, rate.per_s)).collect();
            let line = format!("{name}, {threads} thread{}", if threads > 1 { "s" } else { "" });
            lines.push(Series::measured(&line, points));
        }
        if kind == Kind::Chain {
            report.figure("per_s_best", rounded(best_of_all));
        }
    }
    let decisions = on_threads(THREADS, async { Ok(()) }, |()| decisions(scale))?;
    for (window, nanos) in &decisions {
        report.figure(&format!("ns_per_decision_{window}"), rounded(*nanos));
    }
    let decisions = decisions.iter().map(|(x, y)| (*x as f64, *y)).collect();
    report.charts.push(Chart {
        title: "Transactions of three blocks on devices of memory".to_owned(),
        x: "clients".to_owned(),
        y: "transactions per second".to_owned(),
        shape: Shape::Lines,
        series: lines,
    });
    report.charts.push(Chart {
        title: "Time of a commit decision".to_owned(),
        x: "commits in the window".to_owned(),
        y: "nanoseconds".to_owned(),
        shape: Shape::Lines,
        series: vec![Series::measured("conflict with the last commit", decisions)],
    });
    Ok(report)
}

/// Runs `work` on what `prepare` made, as a task, so that the workers run it and not the thread that waits for it.
fn on_threads<Prepared, T: Send + 'static, Work>(
    threads: usize,
    prepare: impl Future<Output = Result<Prepared, BenchError>>,
    work: impl FnOnce(Prepared) -> Work,
) -> Result<T, BenchError>
where
    Work: Future<Output = Result<T, BenchError>> + Send + 'static,
{
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(threads).enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let work = work(prepare.await?);
        Env::real().spawn(work).await.ok_or_else(died)?
    })
}

fn died() -> BenchError {
    failed(std::io::Error::other("a task died"))
}

/// A device of memory whose memory is in place: the kernel clears a page at its first use, which is no work of
/// transactions.
async fn device(size: u64) -> Result<DeviceRef, BenchError> {
    const PIECE: u64 = 1 << 20;
    let device = MemoryDevice::new(size);
    let zeros = AlignedBuf::zeroed(PIECE as usize).freeze();
    for at in (0..size).step_by(PIECE as usize) {
        let len = PIECE.min(size - at) as usize;
        device.write(at, vec![zeros.slice(..len)], Purpose::UserData).await.map_err(failed)?;
    }
    Ok(Arc::new(device))
}

/// A chain of one link on devices of memory, full once.
async fn chain(env: &Env) -> Result<Arc<Chain>, BenchError> {
    let size = u64::from(SEGMENTS) * u64::from(SEGMENT) * BLOCK_SIZE as u64;
    let parts = Parts {
        links: vec![Link { id: Uuid::from_u128(100), device: device(size).await? }],
        map: device(Chain::map_bytes(SEGMENT, SEGMENTS)).await?,
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: Uuid::from_u128(7),
        blocks: BLOCKS,
        segment_blocks: SEGMENT,
        max_segments: SEGMENTS,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows: false,
    };
    let options = ChainOptions { tail_cache_blocks: BLOCKS as usize, ..ChainOptions::default() };
    Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
    let chain = Chain::open(env, parts, options).await.map_err(failed)?.0;
    fill(&chain).await?;
    Ok(Arc::new(chain))
}

/// A volume that is updated in place, on a device of memory, full once.
async fn in_place(env: &Env) -> Result<Arc<InPlace>, BenchError> {
    let device = Arc::new(MemoryDevice::new(2 * BLOCKS * BLOCK_SIZE as u64));
    let parts = InPlaceParts { data: device, journal: None };
    InPlace::create(env, &parts, &NewInPlace::default()).await.map_err(failed)?;
    let options = InPlaceOptions::default();
    let store = InPlace::open(env, parts, options).await.map_err(failed)?.0;
    fill(&store).await?;
    Ok(Arc::new(store))
}

/// Writes every block once.
async fn fill(store: &dyn Blocks) -> Result<(), BenchError> {
    for first in (0..BLOCKS).step_by(128) {
        let writes = (first..first + 128).map(|lba| rig::block(lba, 0)).collect();
        store.apply(writes).await.map_err(failed)?;
    }
    store.sync(store.now()).await.map_err(failed)
}

/// The kind of store under the transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chain,
    InPlace,
}

async fn store(kind: Kind) -> Result<Arc<dyn BlockStore>, BenchError> {
    let env = Env::real();
    Ok(match kind {
        Kind::Chain => chain(&env).await?,
        Kind::InPlace => in_place(&env).await?,
    })
}

/// The result for a number of clients.
#[derive(Clone, Copy, Debug)]
struct Rate {
    clients: u64,
    per_s: f64,
    /// Processor time per transaction, of all threads, in microseconds: other load on the machine changes
    /// it little.
    cpu_us: f64,
}

/// The results for each number of clients.
async fn rates(store: Arc<dyn BlockStore>, span: Duration) -> Result<Vec<Rate>, BenchError> {
    let env = Env::real();
    let manager = TransactionManager::new(&env, store, TxnOptions::default());
    let mut rates = Vec::new();
    for clients in CLIENTS {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..clients)
            .map(|_| env.spawn(client(env.clone(), manager.clone(), stop.clone(), done.clone())))
            .collect();
        // Time until every client runs.
        env.sleep(span / 10).await;
        let (start, used, before) = (env.now(), rig::processor(), done.load(Ordering::Relaxed));
        env.sleep(span).await;
        let (seconds, after) = (env.now().since(start).as_secs_f64(), done.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.ok_or_else(died)?.map_err(failed)?;
        }
        let done = (after - before) as f64;
        rates.push(Rate {
            clients,
            per_s: done / seconds,
            cpu_us: (rig::processor() - used) * 1e6 / done,
        });
    }
    Ok(rates)
}

async fn client(
    env: Env,
    manager: TransactionManager,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Result<(), TxnError> {
    let mut rng = env.rng();
    while !stop.load(Ordering::Relaxed) {
        // On devices of memory a lone client never waits, and would keep the task that stops it from running.
        tokio::task::yield_now().await;
        let segment = |rng: &mut thalweg_env::Rng| {
            let lba = Lba(rng.random_range(0..BLOCKS));
            (lba, rng.random_range(0..BLOCK_SIZE / FRAGMENT) * FRAGMENT)
        };
        let segments = [segment(&mut rng), segment(&mut rng), segment(&mut rng)];
        let txn = manager.begin(Begin::STRICT).await?;
        match change(&*txn, &segments, rng.random()).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => continue,
            Err(error) => return Err(error),
        }
        match txn.commit(Durability::Synced).await {
            Ok(_) => done.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.is_retryable() => continue,
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

/// Reads the blocks, changes a fragment of each, and writes them back.
async fn change(
    txn: &dyn Transaction,
    segments: &[(Lba, usize)],
    stamp: u64,
) -> Result<(), TxnError> {
    for (lba, at) in segments {
        let block = txn.read(*lba).await?;
        txn.mark_accessed(*lba, *at..*at + FRAGMENT)?;
        let mut block = AlignedBuf::copy_of(&block);
        block[*at..*at + 8].copy_from_slice(&stamp.to_le_bytes());
        txn.write(*lba, block.freeze())?;
        txn.mark_accessed(*lba, *at..*at + FRAGMENT)?;
    }
    Ok(())
}

/// Nanoseconds of a refused commit, for each length of its window.
async fn decisions(scale: f64) -> Result<Vec<(u64, f64)>, BenchError> {
    let env = Env::real();
    let chain = chain(&env).await?;
    let manager = TransactionManager::new(&env, chain, TxnOptions::default());
    let tries = (200.0 * scale).max(3.0) as u64;
    let mut decisions = Vec::new();
    for window in WINDOWS {
        let mut taken = Duration::ZERO;
        for _ in 0..tries {
            // Keeps the recent commits, so that dropping them is not part of the measurement.
            let keeper = manager.begin(Begin::STRICT).await.map_err(failed)?;
            let txn = manager.begin(Begin::STRICT).await.map_err(failed)?;
            change(&*txn, &[(Lba(0), 0), (Lba(1), 0), (Lba(2), 0)], 1).await.map_err(failed)?;
            for number in 0..=window {
                let other = manager.begin(Begin::STRICT).await.map_err(failed)?;
                let last = number == window;
                let first = if last { 0 } else { 3 + number * 3 % (BLOCKS - 8) };
                let segments = [0, 1, 2].map(|at| (Lba(first + at), 0));
                change(&*other, &segments, number).await.map_err(failed)?;
                other.commit(Durability::Visible).await.map_err(failed)?;
            }
            let start = env.now();
            let refused = txn.commit(Durability::Visible).await;
            taken += env.now().since(start);
            keeper.abort().await;
            if !matches!(refused, Err(TxnError::Conflict)) {
                return Err(failed(std::io::Error::other("a conflict was not found")));
            }
        }
        decisions.push((window + 1, taken.as_nanos() as f64 / tries as f64));
    }
    Ok(decisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_commit_and_decisions_are_timed() {
        let report = run(&Options { scale: Some(0.02), ..Options::default() }).unwrap();
        assert!(report.number("per_s_1").unwrap() > 0.0);
        assert!(report.number("per_s_64").unwrap() > 0.0);
        assert!(report.number("per_s_64_one_thread").unwrap() > 0.0);
        assert!(report.number("in_place_per_s_best").unwrap() > 0.0);
        assert!(report.number("in_place_per_s_best_one_thread").unwrap() > 0.0);
        assert!(report.number("ns_per_decision_4097").unwrap() > 0.0);
    }
}
