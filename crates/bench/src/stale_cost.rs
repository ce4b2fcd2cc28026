//! `stale-cost`: what it costs to ask for the costs of versions (Yogurt 5.4.2, figure 5.4; real time).
//!
//! A chain in memory has blocks with many versions each. In the process, and by a client over a socket, the costs of some of
//! them are asked for again and again.
//!
//! | figure | meaning |
//! |---|---|
//! | `ns_per_query` | nanoseconds for the cost of one version, in the process |
//! | `ns_N_versions` | nanoseconds for the costs of N versions in one call |
//! | `ns_per_version_64` | `ns_64_versions` over 64 |
//! | `socket_us_64_versions` | microseconds for those of 64 versions over a socket, one call after the other |
//! | `socket_us_null` | the same for a call that asks for nothing: the round trip alone |
//! | `socket_us_64_versions_busy`, `socket_us_null_busy` | the same of a connection with 64 calls at a time, per call |
//!
//! Calls are measured in rounds of a hundredth of all. Each figure is the mean call of the median round, so that other work
//! on the machine counts little. The paper's calls into the kernel took 1.4 us for 64 versions.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use thalweg_env::Env;
use thalweg_ipc::{Config, Connection, Server};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Keep, Lba, Retained, Version};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options as ChainOptions, Parts};
use thalweg_store::device::MemoryDevice;
use thalweg_store::stale::{VersionRange, Versioned};
use thalweg_store::txn::{Options as TxnOptions, Transact, TransactionManager};
use uuid::Uuid;

use crate::plot::{Chart, LogAxes, Series, Shape};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "stale-cost",
    about: "time to ask for the costs of versions, in a process and over a socket",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

const SEGMENT: u32 = 480;
const SEGMENTS: u32 = 64;
/// Blocks with versions.
const BLOCKS: u64 = 128;
/// Versions of each.
const VERSIONS: u64 = 64;
const SIZES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Calls at scale 1.
const CALLS: f64 = 640_000.0;
const AT_ONCE: usize = 64;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    runtime.block_on(measure(options, scale))
}

async fn measure(options: &Options, scale: f64) -> Result<Report, BenchError> {
    let env = Env::real();
    let retained = Arc::new(filled(&env).await?);
    let versions = Versioned::of(&env, retained.clone());
    let calls = (CALLS * scale).max(1.0) as u64;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let newest = retained.now();
    let one = rounds(&env, calls, |nth| {
        let cost = versions.cost(Lba(nth % BLOCKS), newest);
        cost.map(drop).map_err(failed)
    })?;
    report.figure("ns_per_query", rounded(one));
    let mut curve = Vec::new();
    for size in SIZES {
        // The last writes of a block are BLOCKS versions apart.
        let range = VersionRange { low: Version(newest.0 - size * BLOCKS + 1), up: newest };
        let took = rounds(&env, calls / size, |nth| {
            let contents = versions.contents(Lba(nth % BLOCKS), range).map_err(failed)?;
            if (contents.len() as u64) < size {
                return Err(BenchError::Failed("versions are missing".into()));
            }
            Ok(())
        })?;
        report.figure(&format!("ns_{size}_versions"), rounded(took));
        curve.push((size as f64, took / 1e3));
        if size == VERSIONS {
            report.figure("ns_per_version_64", rounded(took / size as f64));
        }
    }
    let manager = TransactionManager::of(&env, versions, TxnOptions::default());
    let range = VersionRange { low: Version(newest.0 - VERSIONS * BLOCKS + 1), up: newest };
    over_socket(&env, &manager, range, calls / 64, &mut report).await?;
    report.charts.push(Chart {
        title: "Asking for costs".to_owned(),
        x: "versions in a call".to_owned(),
        y: "us".to_owned(),
        shape: Shape::LogLines(LogAxes::X),
        series: vec![
            Series::measured("in the process", curve),
            Series::paper("ioctl, 64 versions", vec![(64.0, 1.4)]),
        ],
    });
    Ok(report)
}

/// Rounds of each measurement.
const ROUNDS: u64 = 100;

/// The median.
fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or_default()
}

/// Nanoseconds per call.
fn rounds(
    env: &Env,
    calls: u64,
    mut call: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let calls = (calls / ROUNDS).max(1);
    (0..calls).try_for_each(&mut call)?;
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let since = env.now();
        (round * calls..(round + 1) * calls).try_for_each(&mut call)?;
        took.push(env.now().since(since).as_nanos() as f64 / calls as f64);
    }
    Ok(median(took))
}

/// Microseconds per call over a socket: one after the other, and many at a time.
async fn over_socket(
    env: &Env,
    manager: &TransactionManager,
    range: VersionRange,
    calls: u64,
    report: &mut Report,
) -> Result<(), BenchError> {
    let folder = tempfile::tempdir().map_err(failed)?;
    let _server = Server::start(env, manager, folder.path(), Config::default()).map_err(failed)?;
    let connection = Connection::open(env, folder.path()).await.map_err(failed)?;
    let connection = &connection.ok_or_else(|| BenchError::Failed("no server".into()))?;
    let ask = |nth: u64| async move {
        connection.contents(Lba(nth % BLOCKS), range).await.map(drop).map_err(failed)
    };
    let null = |_| async move { connection.position().await.map(drop).map_err(failed) };
    for (name, at_once) in [("", 1), ("_busy", AT_ONCE)] {
        let us = calls_of(env, calls, at_once, ask).await?;
        report.figure(&format!("socket_us_64_versions{name}"), rounded(us));
        let us = calls_of(env, calls, at_once, null).await?;
        report.figure(&format!("socket_us_null{name}"), rounded(us));
    }
    Ok(())
}

/// Microseconds per call, with so many at a time.
async fn calls_of<F: Future<Output = Result<(), BenchError>>>(
    env: &Env,
    calls: u64,
    at_once: usize,
    call: impl Fn(u64) -> F,
) -> Result<f64, BenchError> {
    let calls = (calls / ROUNDS).max(1);
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let since = env.now();
        let all = (round * calls..(round + 1) * calls).map(&call);
        let mut answers = stream::iter(all).buffer_unordered(at_once);
        while let Some(answer) = answers.next().await {
            answer?;
        }
        took.push(env.now().since(since).as_nanos() as f64 / 1e3 / calls as f64);
    }
    Ok(median(took))
}

/// A chain whose blocks have been written in turn; nothing of it is in a cache.
async fn filled(env: &Env) -> Result<Retained, BenchError> {
    let bytes = u64::from(SEGMENTS * SEGMENT) * BLOCK_SIZE as u64;
    let id = Uuid::from_u128(100);
    let parts = Parts {
        links: vec![Link { id, device: Arc::new(MemoryDevice::new(bytes)) }],
        map: Arc::new(MemoryDevice::new(Chain::map_bytes(SEGMENT, SEGMENTS))),
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
    let options = ChainOptions { tail_cache_blocks: 0, mini_bytes: 0, ..ChainOptions::default() };
    Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
    let (chain, _) = Chain::open(env, parts, options).await.map_err(failed)?;
    let retained = Retained::new(env, Arc::new(chain), Keep::latest(u64::MAX));
    for stamp in 0..=VERSIONS {
        for lba in 0..BLOCKS {
            retained.apply(vec![rig::block(lba, stamp)]).await.map_err(failed)?;
        }
    }
    retained.sync(retained.now()).await.map_err(failed)?;
    Ok(retained)
}
