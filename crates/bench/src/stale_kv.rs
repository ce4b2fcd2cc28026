//! `stale-kv`: reads of old values on a node that follows a primary (Yogurt 5.4.3, figure 5.5; virtual time).
//!
//! A hash table on three disks with a log that goes from disk to disk, and a cache in memory for a quarter of the values.
//! 16 clients get and update, half and half (YCSB A), keys by Zipf's law, values of 4 to 20 KB, of which an update changes
//! one block; a stream of 4,000 updates in a second comes from the primary. All values are there, and as many updates as there
//! are blocks have been made twice, when the clients begin, each with a session of its own.
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
use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng, Task};
use thalweg_store::stale::{Guarantee, Session, Versioned};
use thalweg_store::tree::{Batch, Kind, NewPartition, Store, catalogue};
use thalweg_store::txn::{
    self, Begin, Durability, Options as TxnOptions, Transact, TransactionManager,
};

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

/// Bytes of all values, and blocks of memory for the cache, at scale 1: 1 GiB and 256 MiB. A segment of the log has room for
/// all values.
const BYTES: f64 = (1_u64 << 30) as f64;
const CACHE: f64 = 65_536.0;
const DEFAULT_SCALE: f64 = 1.0 / 16.0;
const SIZES: [usize; 5] = [4, 8, 12, 16, 20];
const CLIENTS: u64 = 16;
const BLOCK: usize = 4096;
/// Updates before the clients begin, for each block.
const PASSES: u64 = 2;
/// In which the log comes to each disk: the newest contents are then on all of them, and the slow ones on each for a while.
const SPAN: Duration = Duration::from_secs(16);
const BATCH: u64 = 32;
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

/// A content that repeats its stamp: a simulated medium keeps such blocks in few bytes.
fn content(stamp: u64, len: usize) -> Bytes {
    Bytes::from((stamp + 1).to_le_bytes().repeat(len / 8))
}

/// Updates: a block of a value each.
struct Updates {
    keys: Addresses,
    rng: Rng,
    blocks: usize,
}

impl Updates {
    fn new(case: Case, keys: Addresses, seed: u64) -> Updates {
        Updates { keys, rng: Rng::seed_from_u64(seed), blocks: case.value.div_ceil(BLOCK) }
    }

    /// A key, and where in its value.
    fn draw(&mut self) -> (Bytes, usize) {
        (key(self.keys.draw()), self.rng.random_range(0..self.blocks) * BLOCK)
    }

    /// A batch in a transaction of its own.
    async fn make(&mut self, store: &Store, stamp: u64) -> Result<(), BenchError> {
        let updates: Arc<[(Bytes, usize)]> = (0..BATCH).map(|_| self.draw()).collect();
        let made = txn::run(&**store.volume(), Begin::default(), Durability::Visible, |txn| {
            let (store, updates) = (store.clone(), updates.clone());
            async move {
                let mut set = store.working_set(&*txn);
                for (key, offset) in &*updates {
                    set.overwrite(key, *offset, content(stamp, BLOCK)).await?;
                }
                set.finish()
            }
        });
        made.await.map_err(failed)
    }
}

struct Server {
    node: Node,
    store: Store,
}

async fn server(env: &Env, case: &Case) -> Result<Server, BenchError> {
    let data = case.keys * case.value.div_ceil(BLOCK) as u32;
    // The buckets and the directory take the rest.
    let blocks = data * 5 / 4 + 2048;
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
    for first in (0..case.keys).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        for number in first..(first + BATCH as u32).min(case.keys) {
            batch.put(key(number), content(0, case.value));
        }
        server.store.write(&batch).await.map_err(failed)?;
    }
    // Before, there were fewer keys.
    server.node.retained.give_up();
    let keys = Addresses::new(Load::Uniform, case.keys, case.seed ^ 0xa5a5)?;
    let mut updates = Updates::new(*case, keys, case.seed ^ 0xa5a5);
    let all = u64::from(case.keys) * case.value.div_ceil(BLOCK) as u64 * PASSES;
    for stamp in 0..all / BATCH {
        updates.make(&server.store, stamp).await?;
    }
    server.node.chain.checkpoint().await.map_err(failed)?;
    Ok(server)
}

/// Updates from the primary, 4,000 in a second.
fn stream(env: &Env, server: &Server, case: Case) -> Result<Task<()>, BenchError> {
    let store = server.store.clone();
    let keys = Addresses::new(Load::Uniform, case.keys, case.seed ^ 0x5a5a)?;
    let mut updates = Updates::new(case, keys, case.seed ^ 0x5a5a);
    let pause = env.clone();
    Ok(env.spawn(async move {
        for stamp in 1_000_000.. {
            if updates.make(&store, stamp).await.is_err() {
                return;
            }
            pause.sleep(PAUSE).await;
        }
    }))
}

async fn client(env: Env, store: Store, case: Case, number: u64) -> Result<Gets, BenchError> {
    let mut keys = Addresses::new(Load::Zipf, case.keys, case.seed ^ (number + 1))?;
    // All clients like the same keys.
    let ranks = Addresses::new(Load::Zipf, case.keys, case.seed)?;
    keys.rank_like(&ranks);
    let mut updates = Updates::new(case, keys, case.seed ^ (number + 1));
    let mut rng = env.rng();
    let guarantee = match case.reader {
        Reader::Newest => Guarantee::EVENTUAL,
        Reader::Cheapest(guarantee) => guarantee,
    };
    let mut session = Session::new(guarantee);
    let newest = store.clone().with_durability(Durability::Synced);
    let (begun, mut gets) = (env.now(), Gets::default());
    while env.now().since(begun) < SPAN {
        let (key, offset) = updates.draw();
        if rng.random_bool(0.5) {
            let part = content(u64::from(rng.random::<u32>()), BLOCK);
            store.overwrite_for(&mut session, &key, offset, part).await.map_err(failed)?;
            continue;
        }
        let since = env.now();
        let value = match case.reader {
            Reader::Newest => newest.get(&key).await.map_err(failed)?,
            Reader::Cheapest(_) => {
                let got = store.get_for(&mut session, &key).await.map_err(failed)?;
                gets.old += u64::from(got.age != Some(Duration::ZERO));
                got.value
            }
        };
        gets.count += 1;
        gets.nanos += env.now().since(since).as_nanos() as u64;
        if value.is_none_or(|value| value.len() != case.value) {
            return Err(BenchError::Failed("a value is missing".into()));
        }
    }
    Ok(gets)
}

fn measure(case: Case) -> Result<Gets, BenchError> {
    thalweg_sim::run(case.seed, |env| async move {
        let server = server(&env, &case).await?;
        let _stream = stream(&env, &server, case)?;
        env.sleep(SPAN / 40).await;
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
