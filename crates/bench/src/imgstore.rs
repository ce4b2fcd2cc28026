//! `imgstore`: the example ImgStore under YCSB A, with its two stores as libraries, in threads and in
//! processes (Isotope, figure 4.8; real time).
//!
//! Half of the operations get a photo, half replace one by another with another date: one transaction
//! over a hash table and a B-tree, durable when it returns. A photo and its date have 16 KiB; photos
//! are drawn by Zipf's law with exponent 0.99. The volume is a file, open in the process of the
//! clients. Each client is a thread, as in the paper, and waits for its calls. The stores are:
//!
//! - *libraries*: called by the clients;
//! - *threads*: each in a thread, which takes over a transaction and releases it again;
//! - *processes*: each in a process, which does the same over a socket.
//!
//! The three take turns in short slices on the same photos; a ratio is the median over the rounds of the
//! ratio of two rates in the same round. `conflict_share` is the share of attempts to change a photo
//! that conflicted with another change and were repeated. The paper has curves and no numbers, so the
//! chart shows measured values alone. Its text says that threads and libraries are equal, processes are
//! below them, and the peak is at 32 threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ::imgstore::process::{self, StoreProcess};
use ::imgstore::{DATES, IMAGES, ImgStore, Photo};
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use thalweg_env::{Env, Rng, Time, server_threads};
use thalweg_ipc::{Config, Server};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::txn::{TransactionManager, TxnStatus};

use crate::engine;
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, failed, median, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "imgstore",
    about: "a transaction over two stores: libraries, threads, processes (real time)",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

const THREADS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const ROUNDS: usize = 15;
/// Seconds of a slice at scale 1.
const SECONDS: f64 = 0.2;
/// Number of photos at scale 1.
const PHOTOS: f64 = 8_192.0;
/// Bytes of an image: four blocks with its date.
const IMAGE: usize = 4 * BLOCK_SIZE - size_of::<u64>();
const DAYS: u64 = 20_000;
const ZIPF: f64 = 0.99;
/// Clients that fill the stores.
const LOADERS: u64 = 8;
/// Bytes of the volume, and of its file.
const SIZES: (u64, u64) = (512 << 20, 1 << 30);

const LIBRARIES: &str = "libraries";
const COMPOSITIONS: [&str; 3] = [LIBRARIES, "threads", "processes"];

fn run(options: &Options) -> Result<Report, BenchError> {
    measure(options, rig::scale(options, 1.0)?, &THREADS)
}

/// Runs as the process of a store: serves the store for as long as its volume is served.
///
/// # Errors
/// Why it stopped.
pub fn serve_store(folder: &Path, partition: &str) -> Result<(), BenchError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(server_threads()).enable_all().build().map_err(failed)?;
    let serving = async { process::serve(&Env::real(), folder, partition).await };
    runtime.block_on(serving).map_err(failed)
}

/// The result of a composition in one turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Operations per second.
    per_s: f64,
    /// The share of attempts to change a photo that conflicted with another change.
    conflict_share: f64,
}

/// For each number of clients and composition a turn in each round.
type Turns = BTreeMap<(u64, &'static str), Vec<Turn>>;

fn measure(options: &Options, scale: f64, threads: &[u64]) -> Result<Report, BenchError> {
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder =
        tempfile::tempdir_in(&parent).map_err(|source| BenchError::Io { path: parent, source })?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().map_err(failed)?;
    let turns = runtime.block_on(turns(folder.path(), options, scale, threads))?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    for ((threads, name), turns) in &turns {
        report.figure(&format!("ops_s_{name}_{threads}"), rounded(per_s(turns)));
        let shares = turns.iter().map(|turn| turn.conflict_share).collect();
        report.figure(&format!("conflict_share_{name}_{threads}"), rounded(median(shares)));
    }
    for name in &COMPOSITIONS[1..] {
        let mut all = Vec::new();
        for &threads in threads {
            let (over, under) = (&turns[&(threads, *name)], &turns[&(threads, LIBRARIES)]);
            let ratios: Vec<f64> =
                over.iter().zip(under).map(|(over, under)| over.per_s / under.per_s).collect();
            all.extend_from_slice(&ratios);
            report.figure(&format!("{name}_over_{LIBRARIES}_{threads}"), rounded(median(ratios)));
        }
        report.figure(&format!("{name}_over_{LIBRARIES}"), rounded(median(all)));
    }
    report.charts.push(chart(&turns));
    Ok(report)
}

/// Operations per second in the median turn.
fn per_s(turns: &[Turn]) -> f64 {
    median(turns.iter().map(|turn| turn.per_s).collect())
}

/// Figure 4.8.
fn chart(turns: &Turns) -> Chart {
    let line = |name: &str| {
        let mine = turns.iter().filter(|((_, of), _)| *of == name);
        let points = mine.map(|((threads, _), turns)| (*threads as f64, per_s(turns)));
        Series::measured(name, points.collect())
    };
    Chart {
        title: "Figure 4.8: YCSB A on ImgStore (measured; the paper has no numbers)".to_owned(),
        x: "threads".to_owned(),
        y: "operations per second".to_owned(),
        shape: Shape::Lines,
        series: COMPOSITIONS.map(line).to_vec(),
    }
}

async fn turns(
    folder: &Path,
    options: &Options,
    scale: f64,
    threads: &[u64],
) -> Result<Turns, BenchError> {
    let env = Env::real();
    let photos = ((PHOTOS * scale) as u64).max(256);
    let pool = engine::create_volume(&env, folder, &folder.join("link.img"), SIZES).await?;
    let manager = pool.transactions();
    let server = Server::start(&env, manager, folder, Config::default()).map_err(failed)?;
    ::imgstore::create(&env, manager).await.map_err(failed)?;
    let mut processes = Vec::new();
    for partition in [IMAGES, DATES] {
        processes.push(start(&env, options, folder, partition).await?);
    }
    let stores = compositions(&env, manager, folder).await?;
    load(&env, &stores[0], photos).await?;
    let span = Duration::from_secs_f64(SECONDS * scale);
    let mut turns = Turns::new();
    for &threads in threads {
        for round in 0..ROUNDS {
            // Each round begins with another one.
            for turn in 0..COMPOSITIONS.len() {
                let at = (round + turn) % COMPOSITIONS.len();
                let slice = Slice { photos, span, seed: options.seed * 1000 + round as u64 };
                let before = manager.status();
                let per_s = slice.run(&env, &stores[at], threads).await?;
                let conflict_share = conflict_share(&before, &manager.status());
                let done = Turn { per_s, conflict_share };
                turns.entry((threads, COMPOSITIONS[at])).or_default().push(done);
            }
        }
        eprintln!("{threads} threads done");
    }
    drop((stores, processes, server));
    pool.close().await.map_err(failed)?;
    Ok(turns)
}

/// The share of attempts to change a photo that conflicted with another change.
fn conflict_share(before: &TxnStatus, after: &TxnStatus) -> f64 {
    let conflicts = (after.conflicts - before.conflicts) as f64;
    let commits = (after.commits - before.commits) as f64;
    conflicts / (conflicts + commits).max(1.0)
}

/// Starts the process of a store.
async fn start(
    env: &Env,
    options: &Options,
    folder: &Path,
    partition: &str,
) -> Result<StoreProcess, BenchError> {
    let Some((program, args)) = options.store_process.split_first() else {
        return Err(BenchError::Invalid("the command for store processes is missing".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(args).arg(folder).arg(partition);
    StoreProcess::start(env, command, folder, partition).await.map_err(failed)
}

/// The same photos in each composition, in the order of [`COMPOSITIONS`].
async fn compositions(
    env: &Env,
    manager: &TransactionManager,
    folder: &Path,
) -> Result<[ImgStore; 3], BenchError> {
    let volume = Arc::new(manager.clone());
    Ok([
        ImgStore::libraries(env, volume.clone()).await.map_err(failed)?,
        ImgStore::threads(env, volume.clone()).await.map_err(failed)?,
        ImgStore::processes(volume, folder),
    ])
}

/// Adds every photo.
async fn load(env: &Env, store: &ImgStore, photos: u64) -> Result<(), BenchError> {
    let loader = |number: u64| {
        let store = store.clone();
        async move {
            for id in (number..photos).step_by(LOADERS as usize) {
                store.add(id, &photo(&mut Rng::seed_from_u64(id))).await.map_err(failed)?;
            }
            Ok(())
        }
    };
    rig::all((0..LOADERS).map(|number| env.spawn(loader(number))).collect()).await.map(drop)
}

fn photo(rng: &mut Rng) -> Photo {
    let mut image = vec![0; IMAGE];
    rand::Rng::fill_bytes(rng, &mut image);
    Photo { date: rng.random_range(0..DAYS), image: image.into() }
}

/// One turn of a composition.
#[derive(Clone, Copy, Debug)]
struct Slice {
    photos: u64,
    span: Duration,
    seed: u64,
}

impl Slice {
    /// Operations per second.
    async fn run(self, env: &Env, store: &ImgStore, threads: u64) -> Result<f64, BenchError> {
        let zipf = Zipf::new(self.photos as f64, ZIPF).map_err(failed)?;
        let start = env.now();
        let client = |number: u64| {
            let rng = Rng::seed_from_u64(self.seed.wrapping_mul(1 << 20) + number);
            let client = Client { store: store.clone(), rng, zipf };
            rig::in_thread(env, client.run(env.clone(), start, self.span))
        };
        let done: u64 = rig::all((0..threads).map(client).collect()).await?.iter().sum();
        Ok(done as f64 / env.now().since(start).as_secs_f64())
    }
}

struct Client {
    store: ImgStore,
    rng: Rng,
    zipf: Zipf<f64>,
}

impl Client {
    /// Works until the end of the turn; returns the number of operations.
    async fn run(mut self, env: Env, start: Time, span: Duration) -> Result<u64, BenchError> {
        let mut done = 0;
        while env.now().since(start) < span {
            let id = self.zipf.sample(&mut self.rng) as u64 - 1;
            match self.rng.random::<bool>() {
                true => self.get(id).await?,
                false => {
                    let photo = photo(&mut self.rng);
                    self.store.add(id, &photo).await.map_err(failed)?;
                }
            }
            done += 1;
        }
        Ok(done)
    }

    /// Gets a photo, which must exist and be whole.
    async fn get(&self, id: u64) -> Result<(), BenchError> {
        let found = self.store.get(id).await.map_err(failed)?;
        match found.map(|photo| photo.image.len()) {
            Some(IMAGE) => Ok(()),
            found => Err(BenchError::Failed(format!("an image has {found:?} bytes").into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test: the process of a store, whose arguments libtest takes for names of tests.
    #[test]
    #[ignore = "a process of other tests"]
    fn a_store_process() {
        let args: Vec<String> = std::env::args().collect();
        if let Some([flag, folder, partition]) = args.last_chunk()
            && flag == "--nocapture"
        {
            // It ends with the volume's server.
            serve_store(folder.as_ref(), partition).unwrap_err();
        }
    }

    #[test]
    fn every_composition_runs() {
        let mut store_process = vec![std::env::current_exe().unwrap().into()];
        let me = ["--ignored", "--exact", "imgstore::tests::a_store_process", "--nocapture"];
        store_process.extend(me.map(Into::into));
        let options = Options { store_process, ..Options::default() };
        let report = measure(&options, 0.02, &[1, 8]).unwrap();
        for name in COMPOSITIONS {
            for threads in [1, 8] {
                assert!(report.number(&format!("ops_s_{name}_{threads}")).unwrap() > 0.0, "{name}");
                let share = report.number(&format!("conflict_share_{name}_{threads}")).unwrap();
                // A lone client meets no conflict.
                assert!(share < 1.0 && (threads > 1 || share == 0.0), "{name}: {share}");
            }
        }
        for name in &COMPOSITIONS[1..] {
            assert!(report.number(&format!("{name}_over_libraries")).unwrap() > 0.0);
        }
        let chart = &report.charts[0];
        assert!(chart.series.iter().all(|series| series.points.len() == 2));
        assert_eq!(chart.series.len(), COMPOSITIONS.len());
    }

    /// Without a program for store processes, only the compositions in this process run.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_stores_of_processes_are_elsewhere() {
        let (env, folder) = (Env::real(), tempfile::tempdir().unwrap());
        let link = folder.path().join("link.img");
        let pool = engine::create_volume(&env, folder.path(), &link, (32 << 20, 96 << 20)).await;
        let pool = pool.unwrap();
        ::imgstore::create(&env, pool.transactions()).await.unwrap();
        let stores = compositions(&env, pool.transactions(), folder.path()).await.unwrap();
        let photo = photo(&mut env.rng());
        for (store, name) in stores.iter().zip(COMPOSITIONS) {
            let is_here = store.add(1, &photo).await.is_ok();
            assert_eq!(is_here, name != "processes", "{name}");
        }
        drop(stores);
        pool.close().await.unwrap();
    }

    #[test]
    fn without_a_command_for_stores_nothing_is_measured() {
        let refused = run(&Options { scale: Some(0.02), ..Options::default() });
        assert!(matches!(refused, Err(BenchError::Invalid(_))));
    }
}
