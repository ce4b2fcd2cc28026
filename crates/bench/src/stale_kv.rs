//! `stale-kv`: reads of old values on a node that follows a primary (Yogurt 5.4.3, figure 5.5; virtual time).
//!
//! A hash table on three disks with a log that goes from disk to disk, and a cache in memory. 16 clients put and get, half and
//! half (YCSB A), keys by Zipf's law, values of 4 to 20 KB; a stream of 2,000 puts in a second comes from the primary. Each client has a session
//! of its own.
//!
//! | figure | meaning |
//! |---|---|
//! | `newest_local_Nk` | mean latency of gets of the newest durable value of N KiB, in ms |
//! | `mr_Nk`, `rmw_Nk` | of the cheapest value that monotonic reads, or reads of the client's own writes, allow |
//! | `bounded_Nk` | of the cheapest value that is at most 5 s old |
//! | `newest_local_over_ours_Nk` | `newest_local_Nk` over `mr_Nk` |
//! | `old_share_Nk` | share of the gets with monotonic reads that got an older value than the newest |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Task};
use thalweg_store::stale::{Guarantee, Session, Versioned};
use thalweg_store::tree::{Batch, Kind, NewPartition, Store, catalogue};
use thalweg_store::txn::{Durability, Options as TxnOptions, Transact, TransactionManager};

use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, failed, rounded};
use crate::stale_block::node::{Drives, Layout, Node};
use crate::steady_sim::addresses::{Addresses, Load};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "stale-kv",
    about: "latency of gets that may be old, of values of several blocks",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes of all values, and blocks of memory for the cache, at scale 1: 1 GiB and 256 MiB.
const BYTES: f64 = (1_u64 << 30) as f64;
const CACHE: f64 = 65_536.0;
const DEFAULT_SCALE: f64 = 1.0 / 64.0;
const SIZES: [usize; 5] = [4, 8, 12, 16, 20];
const CLIENTS: u64 = 16;
/// Times that all keys are put before the clients begin.
const PASSES: u64 = 3;
const SPAN: Duration = Duration::from_secs(4);
const BATCH: u64 = 16;
/// Between two batches of the stream.
const PAUSE: Duration = Duration::from_millis(8);

/// How clients get.
#[derive(Clone, Copy, Debug)]
enum Reader {
    Newest,
    Cheapest(Guarantee),
}

#[derive(Clone, Copy, Debug)]
struct Case {
    keys: u32,
    /// Bytes of a value.
    value: usize,
    cache: usize,
    reader: Reader,
    seed: u64,
}

/// Gets: their number, how many were old, and nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Gets {
    count: u64,
    old: u64,
    nanos: u64,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let mut curves = [const { Vec::new() }; 4];
    for size in SIZES {
        let value = size * 1024;
        let keys = (BYTES * scale / value as f64) as u32;
        let cache = (CACHE * scale) as usize;
        let get = |reader| measure(Case { keys, value, cache, reader, seed: options.seed });
        let ms = |gets: Gets| gets.nanos as f64 / gets.count.max(1) as f64 / 1e6;
        let newest = ms(get(Reader::Newest)?);
        let monotonic = get(Reader::Cheapest(Guarantee::MONOTONIC_READS))?;
        let own = ms(get(Reader::Cheapest(Guarantee::READ_MY_WRITES))?);
        let bounded = ms(get(Reader::Cheapest(Guarantee::bounded(Duration::from_secs(5))))?);
        let mut row = |name: &str, value: f64| {
            report.figure(&format!("{name}_{size}k"), rounded(value));
        };
        row("newest_local", newest);
        row("mr", ms(monotonic));
        row("rmw", own);
        row("bounded", bounded);
        row("newest_local_over_ours", newest / ms(monotonic));
        row("old_share", monotonic.old as f64 / monotonic.count.max(1) as f64);
        for (curve, value) in curves.iter_mut().zip([newest, ms(monotonic), own, bounded]) {
            curve.push((size as f64, value));
        }
    }
    let names = ["newest local", "monotonic reads", "read my writes", "at most 5 s old"];
    report.charts.push(Chart {
        title: "Latency of gets".to_owned(),
        x: "KiB of a value".to_owned(),
        y: "ms".to_owned(),
        shape: Shape::Lines,
        series: names
            .iter()
            .zip(curves)
            .map(|(name, curve)| Series::measured(name, curve))
            .collect(),
    });
    Ok(report)
}

fn key(number: u32) -> Bytes {
    Bytes::copy_from_slice(&u64::from(number).to_be_bytes())
}

/// A value that repeats its stamp: a simulated medium keeps such blocks in few bytes.
fn value(stamp: u64, len: usize) -> Bytes {
    Bytes::from((stamp + 1).to_le_bytes().repeat(len / 8))
}

struct Server {
    node: Node,
    store: Store,
}

async fn server(env: &Env, case: &Case) -> Result<Server, BenchError> {
    let per_value = case.value.div_ceil(4096) as u32 + 1;
    let blocks = case.keys * per_value * 3 / 2 + 4096;
    let layout = Layout { drives: Drives::Disks, blocks, cache: case.cache };
    let node = Node::new(env, &layout).await?;
    let versions = Versioned::of(env, node.retained.clone());
    let volume: Arc<dyn Transact> =
        Arc::new(TransactionManager::of(env, versions, TxnOptions::default()));
    let partition = NewPartition {
        name: "keys".to_owned(),
        kind: Kind::Hash,
        first: None,
        blocks: Some(u64::from(blocks) - 1024),
    };
    catalogue::create(env, &*volume, &partition).await.map_err(failed)?;
    let store = Store::open(env, volume, "keys").await.map_err(failed)?;
    let server = Server { node, store: store.with_durability(Durability::Visible) };
    for pass in 0..PASSES {
        for first in (0..case.keys).step_by(BATCH as usize) {
            let mut batch = Batch::new();
            for number in first..(first + BATCH as u32).min(case.keys) {
                batch.put(key(number), value(pass, case.value));
            }
            server.store.write(&batch).await.map_err(failed)?;
        }
    }
    server.node.chain.checkpoint().await.map_err(failed)?;
    Ok(server)
}

/// Puts from the primary, 2,000 in a second.
fn stream(env: &Env, server: &Server, case: Case) -> Result<Task<()>, BenchError> {
    let store = server.store.clone();
    let mut addresses = Addresses::new(Load::Uniform, case.keys, case.seed ^ 0x5a5a)?;
    let pause = env.clone();
    Ok(env.spawn(async move {
        for stamp in 1_000_000.. {
            let mut batch = Batch::new();
            for _ in 0..BATCH {
                batch.put(key(addresses.draw()), value(stamp, case.value));
            }
            if store.write(&batch).await.is_err() {
                return;
            }
            pause.sleep(PAUSE).await;
        }
    }))
}

async fn client(env: Env, store: Store, case: Case, number: u64) -> Result<Gets, BenchError> {
    let mut addresses = Addresses::new(Load::Zipf, case.keys, case.seed ^ (number + 1))?;
    // All clients like the same keys.
    let ranks = Addresses::new(Load::Zipf, case.keys, case.seed)?;
    addresses.rank_like(&ranks);
    let mut rng = env.rng();
    let guarantee = match case.reader {
        Reader::Newest => Guarantee::EVENTUAL,
        Reader::Cheapest(guarantee) => guarantee,
    };
    let mut session = Session::new(guarantee);
    let newest = store.clone().with_durability(Durability::Synced);
    let (begun, mut gets) = (env.now(), Gets::default());
    while env.now().since(begun) < SPAN {
        let key = key(addresses.draw());
        if rng.random_bool(0.5) {
            let stamp = u64::from(rng.random::<u32>());
            store.put_for(&mut session, &key, value(stamp, case.value)).await.map_err(failed)?;
            continue;
        }
        let since = env.now();
        match case.reader {
            Reader::Newest => drop(newest.get(&key).await.map_err(failed)?),
            Reader::Cheapest(_) => {
                let got = store.get_for(&mut session, &key).await.map_err(failed)?;
                gets.old += u64::from(got.age != Some(Duration::ZERO));
            }
        }
        gets.count += 1;
        gets.nanos += env.now().since(since).as_nanos() as u64;
    }
    Ok(gets)
}

fn measure(case: Case) -> Result<Gets, BenchError> {
    thalweg_sim::run(case.seed, |env| async move {
        let server = server(&env, &case).await?;
        let _stream = stream(&env, &server, case)?;
        env.sleep(SPAN / 10).await;
        let clients = (0..CLIENTS)
            .map(|number| env.spawn(client(env.clone(), server.store.clone(), case, number)));
        let all = rig::all(clients.collect()).await?;
        let mut sum = Gets::default();
        for gets in all {
            sum.count += gets.count;
            sum.old += gets.old;
            sum.nanos += gets.nanos;
        }
        Ok(sum)
    })
}
