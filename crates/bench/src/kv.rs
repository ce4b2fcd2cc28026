//! `kv`: our stores beside LevelDB and RocksDB under the loads of figure 4.7 (real time).
//!
//! Values have 8 KiB, keys 16 bytes, and every change is durable when it returns. Engines take turns in
//! short slices on files in one folder; a ratio is the median over the rounds of our rate over the
//! other's in the same round. The loads, each with 4 to 128 threads:
//!
//! - *fill*: puts to keys drawn uniformly, most of which exist;
//! - *read*: gets of such keys;
//! - *delete*: deletes of existing keys, no key twice. They are put back, which is not measured;
//! - *read_cores*: the same gets by as many threads as given in the figure's name, up to the number of processors;
//!   our clients run in a runtime with as many. In the other loads our clients and the engine share the threads of
//!   a server, half of the processors, while every client of the others has a thread;
//! - YCSB A: half gets, half puts, keys by Zipf's law with exponent 0.99;
//! - YCSB F: half gets, half a get and then a put of the same key, which is not atomic, as in YCSB.
//!
//! Our stores run with strict serializability, their default, and not with the snapshot isolation of
//! 4.4.2. The paper has curves and no numbers, so charts show measured values alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use thalweg_env::{Env, Rng, Time, server_threads};
use tokio::runtime::Runtime;

use crate::engine::{self, Contender, Engine, Pair, clients};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, failed, median, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "kv",
    about: "fill, read, delete and YCSB on our stores, beside LevelDB and RocksDB (real time)",
    clock: crate::Clock::Real,
    loads: || Work::ALL.map(|work| work.name().to_owned()).into(),
    traces: false,
    run,
};

const THREADS: [u64; 6] = [4, 8, 16, 32, 64, 128];
const ROUNDS: usize = 3;
const VALUE: usize = 8 << 10;
/// Seconds of a slice at scale 1.
const SECONDS: f64 = 0.4;
/// Number of keys at scale 1.
const KEYS: f64 = 16_384.0;
/// A slice deletes at most one in this many of the keys, so that putting them back stays short.
const DELETED: u64 = 8;
const ZIPF: f64 = 0.99;
/// Bytes of our volumes, and of their files.
const SIZES: (u64, u64) = (512 << 20, 1 << 30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Fill,
    Read,
    ReadCores,
    Delete,
    YcsbA,
    YcsbF,
}

impl Work {
    const ALL: [Work; 6] =
        [Work::Fill, Work::Read, Work::ReadCores, Work::YcsbA, Work::YcsbF, Work::Delete];

    fn name(self) -> &'static str {
        match self {
            Work::Fill => "fill",
            Work::Read => "read",
            Work::ReadCores => "read_cores",
            Work::Delete => "delete",
            Work::YcsbA => "ycsb_a",
            Work::YcsbF => "ycsb_f",
        }
    }
}

fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn key(number: u64) -> Bytes {
    // Consecutive numbers, and popular keys, are not adjacent in the order of keys.
    Bytes::from([spread(number).to_be_bytes(), number.to_be_bytes()].concat())
}

fn value(stamp: u64) -> Bytes {
    let mut rng = Rng::seed_from_u64(stamp);
    let mut value = vec![0; VALUE];
    rand::Rng::fill_bytes(&mut rng, &mut value);
    Bytes::from(value)
}

fn pair(number: u64) -> Pair {
    (key(number), value(number))
}

fn run(options: &Options) -> Result<Report, BenchError> {
    measure(options, rig::scale(options, 1.0)?, &THREADS)
}

fn contenders() -> Vec<Contender> {
    #[cfg_attr(not(feature = "rivals"), allow(unused_mut))]
    let mut all = vec![Contender::Btree, Contender::Hash];
    #[cfg(feature = "rivals")]
    all.extend([engine::RivalKind::LevelDb, engine::RivalKind::RocksDb].map(Contender::Rival));
    all
}

/// Rates of each load, number of threads and engine, one for each round.
type Rates = BTreeMap<(&'static str, u64, &'static str), Vec<f64>>;

fn measure(options: &Options, scale: f64, threads: &[u64]) -> Result<Report, BenchError> {
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder =
        tempfile::tempdir_in(&parent).map_err(|source| BenchError::Io { path: parent, source })?;
    let works: Vec<Work> = Work::ALL.into_iter().filter(|it| options.runs(it.name())).collect();
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let loads = Loads {
        seed: options.seed,
        scale,
        works,
        threads: threads.to_vec(),
        cores: (1..=processors).map(runtime).collect::<Result<_, _>>()?,
    };
    let rates = runtime(server_threads())?.block_on(loads.rates(folder.path()))?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    for ((work, threads, name), ours) in &rates {
        report.figure(&format!("{name}_{work}_{threads}_per_s"), rounded(median(ours.clone())));
        for rival in ["leveldb", "rocksdb"] {
            let theirs = rates.get(&(*work, *threads, rival));
            if let Some(theirs) = theirs.filter(|_| ["btree", "hash"].contains(name)) {
                let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
                report.figure(&format!("{name}_vs_{rival}_{work}_{threads}"), median(ratios));
            }
        }
    }
    // The figure has no curve for the others.
    let drawn = loads.works.iter().filter(|work| **work != Work::ReadCores);
    report.charts = drawn.map(|work| chart(work.name(), &rates)).collect();
    Ok(report)
}

/// One part of figure 4.7.
fn chart(work: &str, rates: &Rates) -> Chart {
    let line = |contender: Contender| {
        let mine =
            rates.iter().filter(|((of, _, name), _)| *of == work && *name == contender.name());
        let points = mine.map(|((_, threads, _), rates)| {
            (*threads as f64, median(rates.clone()) * VALUE as f64 / 1e6)
        });
        Series::measured(contender.name(), points.collect())
    };
    Chart {
        title: format!("Figure 4.7: {work}"),
        x: "threads".to_owned(),
        y: "goodput (MB/s)".to_owned(),
        shape: Shape::Lines,
        series: contenders().into_iter().map(line).collect(),
    }
}

fn runtime(threads: usize) -> Result<Runtime, BenchError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().map_err(failed)
}

/// What a run measures.
#[derive(Debug)]
struct Loads {
    seed: u64,
    scale: f64,
    works: Vec<Work>,
    /// Numbers of clients.
    threads: Vec<u64>,
    /// For clients of [`Work::ReadCores`]: the runtime at index n has n + 1 threads.
    cores: Vec<Runtime>,
}

impl Loads {
    async fn rates(&self, folder: &Path) -> Result<Rates, BenchError> {
        let env = Env::real();
        let keys = ((KEYS * self.scale.min(1.0)) as u64).max(256);
        let contenders = contenders();
        let mut engines = Vec::new();
        for contender in &contenders {
            let folder = folder.join(contender.name());
            std::fs::create_dir(&folder)
                .map_err(|source| BenchError::Io { path: folder.clone(), source })?;
            let engine = contender.create(&env, &folder, SIZES).await?;
            engine.load(&env, keys, pair).await?;
            engines.push(engine);
        }
        let mut rates = Rates::new();
        for &work in &self.works {
            for threads in self.threads_of(work) {
                for round in 0..ROUNDS {
                    // Each round begins with another engine.
                    for turn in 0..engines.len() {
                        let at = (round + turn) % engines.len();
                        let slice = self.slice(work, keys, round);
                        let rate = self.turn(slice, &env, &engines[at], threads).await?;
                        let of = (work.name(), threads, contenders[at].name());
                        rates.entry(of).or_default().push(rate);
                    }
                }
            }
            eprintln!("{} done", work.name());
        }
        for engine in engines {
            engine::close(engine).await?;
        }
        Ok(rates)
    }

    fn slice(&self, work: Work, keys: u64, round: usize) -> Slice {
        let span = Duration::from_secs_f64(SECONDS * self.scale);
        Slice { work, keys, span, seed: self.seed * 1000 + round as u64 }
    }

    fn threads_of(&self, work: Work) -> Vec<u64> {
        match work {
            Work::ReadCores => (1..=self.cores.len() as u64).collect(),
            _ => self.threads.clone(),
        }
    }

    /// Operations per second of a turn.
    async fn turn(
        &self,
        slice: Slice,
        env: &Env,
        engine: &Arc<Engine>,
        threads: u64,
    ) -> Result<f64, BenchError> {
        match (slice.work, self.cores.get(threads as usize - 1)) {
            (Work::ReadCores, Some(cores)) => {
                tokio::task::block_in_place(|| cores.block_on(slice.run(env, engine, threads)))
            }
            _ => slice.run(env, engine, threads).await,
        }
    }
}

/// One turn of an engine.
#[derive(Clone, Copy, Debug)]
struct Slice {
    work: Work,
    keys: u64,
    span: Duration,
    seed: u64,
}

impl Slice {
    /// Operations per second.
    async fn run(self, env: &Env, engine: &Arc<Engine>, threads: u64) -> Result<f64, BenchError> {
        let zipf = Zipf::new(self.keys as f64, ZIPF).map_err(failed)?;
        let (done, deleted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let start = env.now();
        clients(env, engine, threads, |engine, number| {
            let client = Client {
                slice: self,
                engine,
                rng: Rng::seed_from_u64(self.seed.wrapping_mul(1 << 20) + number),
                zipf,
                deleted: deleted.clone(),
            };
            let (env, done) = (env.clone(), done.clone());
            async move {
                done.fetch_add(client.run(&env, start).await?, Ordering::Relaxed);
                Ok(())
            }
        })
        .await?;
        let seconds = env.now().since(start).as_secs_f64();
        if self.work == Work::Delete {
            engine
                .load(env, deleted.load(Ordering::Relaxed).min(self.keys / DELETED), pair)
                .await?;
        }
        Ok(done.load(Ordering::Relaxed) as f64 / seconds)
    }
}

struct Client {
    slice: Slice,
    engine: Arc<Engine>,
    rng: Rng,
    zipf: Zipf<f64>,
    /// The number of the next key to delete. Numbers are not in the order of keys, so keys are random.
    deleted: Arc<AtomicU64>,
}

impl Client {
    /// Works until the end of the turn; returns the number of operations.
    async fn run(mut self, env: &Env, start: Time) -> Result<u64, BenchError> {
        let mut done = 0;
        while env.now().since(start) < self.slice.span && self.operate().await? {
            done += 1;
        }
        Ok(done)
    }

    async fn operate(&mut self) -> Result<bool, BenchError> {
        let even = key(self.rng.random_range(0..self.slice.keys));
        match self.slice.work {
            Work::Fill => self.put(&even).await?,
            Work::Read | Work::ReadCores => self.get(&even).await?,
            Work::Delete => {
                let number = self.deleted.fetch_add(1, Ordering::Relaxed);
                if number >= self.slice.keys / DELETED {
                    return Ok(false);
                }
                self.engine.delete(&key(number)).await?;
            }
            Work::YcsbA | Work::YcsbF => {
                let popular = key(self.zipf.sample(&mut self.rng) as u64 - 1);
                let is_get = self.rng.random::<bool>();
                if is_get || self.slice.work == Work::YcsbF {
                    self.get(&popular).await?;
                }
                if !is_get {
                    self.put(&popular).await?;
                }
            }
        }
        Ok(true)
    }

    async fn put(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.engine.put(key, &value(self.rng.random())).await
    }

    /// Gets a key, which must exist and have a whole value.
    async fn get(&self, key: &[u8]) -> Result<(), BenchError> {
        match self.engine.get(key).await?.map(|value| value.len()) {
            Some(VALUE) => Ok(()),
            found => Err(BenchError::Failed(format!("a value has {found:?} bytes").into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_runs_on_every_engine() {
        let report = measure(&Options::default(), 0.02, &[4]).unwrap();
        for work in Work::ALL {
            for contender in contenders() {
                let threads = if work == Work::ReadCores { 1 } else { 4 };
                let name = format!("{}_{}_{threads}_per_s", contender.name(), work.name());
                assert!(report.number(&name).unwrap() > 0.0, "{name}");
            }
        }
        assert_eq!(report.charts.len(), Work::ALL.len() - 1);
    }
}
