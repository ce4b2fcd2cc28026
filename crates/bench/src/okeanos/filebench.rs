//! `okeanos-filebench`: servers of files, mail and databases (Okeanos 5.2.2, table 5.1).
//!
//! - *fileserver*: each of 50 threads creates a file and writes it, appends to one, reads one, deletes
//!   one, and gets the attributes of one; no operation is synchronous;
//! - *varmail*: each of 16 threads deletes a mail, writes one and syncs it, reads one, appends to it
//!   and syncs it, and reads one;
//! - *oltp*: 200 readers of a database's file, 10 writers of single blocks in it, and one writer of the
//!   log, whose writes of 128 KiB and more are synchronous.
//!
//! Virtual time does not include processor time: each operation takes 400 microseconds of one of four
//! simulated processors.
//!
//! A load runs twice as long as it is measured: writeback reaches the rate of the writers only after
//! some minutes. The figures of operations are their rate, their mean latency, the 99.9th percentile, and
//! the longest.
//!
//! An operation is one call that the original tool counts: a file created, written, appended to, read,
//! deleted, or its attributes read.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use rand_distr::{Distribution, Gamma};
use thalweg_env::{Env, Rng, Time};
use thalweg_fs::{Filesystem, Ino, WriteAt};
use thalweg_store::inplace::Mode;
use tokio::sync::Semaphore;

use super::rig::{Caches, Plan, Rig, bytes, millis};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "okeanos-filebench",
    about: "operations per second of file, mail and database servers, in every mode",
    clock: crate::Clock::Virtual,
    loads: || LOADS.map(|(_, name, _)| name.to_owned()).into(),
    traces: false,
    run,
};

const DEFAULT_SCALE: f64 = 0.3;
/// Seconds of a run at full scale.
const SECONDS: f64 = 300.0;
/// Files of the file server at full scale, for a machine of 3 GB of memory.
const FILES: f64 = 250_000.0;
/// Mean bytes of a file, of a mail, and of a write.
const FILE: f64 = 16_384.0;
const MAIL: f64 = 16_384.0;
const IO: usize = 1 << 20;
/// Bytes of the database.
const DATABASE: f64 = 600e6;
/// Bytes of memory at full scale.
const MEMORY: f64 = 3e9;
/// Processors, and the processor time of an operation.
const PROCESSORS: usize = 4;
const PROCESSING: Duration = Duration::from_micros(400);
/// Minimum seconds of a run: several times the age at which blocks are written back.
const LEAST: f64 = 120.0;
/// Pause of a database thread between two requests.
const THINK: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug)]
enum Load {
    /// With this mean size of appends.
    FileServer(f64),
    Mail,
    Database,
}

/// The loads, and the paper's values for them.
const LOADS: [(Load, &str, Option<[f64; 4]>); 4] = [
    (Load::FileServer(16_384.0), "fileserver16k", Some([579.2, 493.8, 652.2, 680.4])),
    (Load::FileServer(4_096.0), "fileserver4k", Some([576.8, 559.2, 700.0, 711.0])),
    (Load::Mail, "varmail", None),
    (Load::Database, "oltp", Some([779.8, 810.2, 826.8, 825.2])),
];
/// The modes of the paper's columns above.
const COLUMNS: [Mode; 4] = [Mode::Ordered, Mode::Selective, Mode::Data, Mode::Wasteless];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    for (load, name, paper) in LOADS.into_iter().filter(|(_, name, _)| options.runs(name)) {
        let mut ours = Vec::new();
        for mode in Mode::ALL {
            let outcome = thalweg_sim::run(options.seed, |env| async move {
                measure(&env, load, mode, scale).await
            })?;
            report.figure(&format!("{name}_{mode}_ops"), rounded(outcome.ops));
            report.figure(&format!("{name}_{mode}_latency_ms"), rounded(outcome.latency));
            report.figure(&format!("{name}_{mode}_p999_ms"), rounded(outcome.p999));
            report.figure(&format!("{name}_{mode}_longest_ms"), rounded(outcome.longest));
            report.figure(&format!("{name}_{mode}_journal_bytes"), rounded(outcome.journal));
            report.figure(&format!("{name}_{mode}_home_bytes"), rounded(outcome.home));
            if let Some(at) = COLUMNS.iter().position(|column| *column == mode) {
                ours.push((at as f64, outcome.ops));
            }
        }
        ours.sort_by(|a, b| a.0.total_cmp(&b.0));
        let theirs = paper.map(|paper| {
            let points = paper.iter().enumerate().map(|(at, ops)| (at as f64, *ops)).collect();
            Series::paper("paper", points)
        });
        report.charts.push(Chart {
            title: format!("table 5.1: {name}"),
            x: "ordered, selective, data, wasteless".to_owned(),
            y: "operations/s".to_owned(),
            shape: Shape::Bars,
            series: [Series::measured("measured", ours)].into_iter().chain(theirs).collect(),
        });
    }
    Ok(report)
}

struct Outcome {
    /// Operations per second.
    ops: f64,
    /// Milliseconds: the mean, the 99.9th percentile, and the longest.
    latency: f64,
    p999: f64,
    longest: f64,
    /// Bytes per operation written to the journal, and in place.
    journal: f64,
    home: f64,
}

/// Files in directories of a hundred.
struct Tree {
    rig: Rig,
    folders: Vec<Ino>,
    files: Mutex<Vec<(usize, String, Ino)>>,
    next: Mutex<usize>,
    /// Latency of each operation that has ended.
    took: Mutex<Vec<Duration>>,
    processors: Semaphore,
    /// Start of the measurement, and end of the threads.
    begun: Time,
    end: Time,
}

impl Tree {
    async fn make(&self, size: usize, rng: &mut Rng) -> Result<Ino, BenchError> {
        let number = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let (folder, name) = (number % self.folders.len(), format!("f{number}"));
        let ino = self.rig.create(self.folders[folder], &name, 0, rng).await?;
        let mut left = size;
        while left > 0 {
            let take = left.min(IO);
            self.rig.write(ino, WriteAt::End, bytes(rng, take), false).await?;
            left -= take;
        }
        self.files.lock().push((folder, name, ino));
        Ok(ino)
    }

    fn pick(&self, rng: &mut Rng) -> Option<Ino> {
        let files = self.files.lock();
        let count = files.len();
        (count > 0).then(|| files[rng.random_range(0..count)].2)
    }

    async fn read(&self, ino: Ino) -> Result<(), BenchError> {
        let mut at = 0;
        loop {
            // A file that was deleted meanwhile is read as if it ended here.
            let Ok(read) = self.rig.fs.read(ino, at, IO).await else { return Ok(()) };
            let len: usize = read.iter().map(bytes::Bytes::len).sum();
            if len < IO {
                return Ok(());
            }
            at += len as u64;
        }
    }

    async fn append(
        &self,
        ino: Ino,
        size: usize,
        rng: &mut Rng,
        sync: bool,
    ) -> Result<(), BenchError> {
        let data = bytes(rng, size.max(1));
        if self.rig.write(ino, WriteAt::End, data, false).await.is_ok() && sync {
            self.rig.fs.sync(ino, false).await.ok();
        }
        Ok(())
    }

    async fn remove(&self, rng: &mut Rng) -> Result<(), BenchError> {
        let file = {
            let mut files = self.files.lock();
            let count = files.len();
            (count > 0).then(|| files.swap_remove(rng.random_range(0..count)))
        };
        match file {
            Some((folder, name, _)) => {
                let fs = &self.rig.fs;
                fs.unlink(self.folders[folder], name.as_bytes()).await.map_err(failed)
            }
            None => Ok(()),
        }
    }

    /// Runs one operation, and counts it.
    async fn op<T>(
        &self,
        work: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        let begun = self.rig.env.now();
        let turn = self.processors.acquire().await.map_err(failed)?;
        self.rig.env.sleep(PROCESSING).await;
        drop(turn);
        let done = work.await?;
        if begun >= self.begun {
            self.took.lock().push(self.rig.env.now().since(begun));
        }
        Ok(done)
    }

    fn is_over(&self) -> bool {
        self.rig.env.now() >= self.end
    }

    async fn serve_files(&self, rng: &mut Rng, append: f64) -> Result<(), BenchError> {
        while !self.is_over() {
            self.op(self.make(gamma(FILE, rng), rng)).await?;
            if let Some(ino) = self.pick(rng) {
                let size = gamma(append, rng);
                self.op(self.append(ino, size, rng, false)).await?;
            }
            if let Some(ino) = self.pick(rng) {
                self.op(self.read(ino)).await?;
            }
            self.op(self.remove(rng)).await?;
            if let Some(ino) = self.pick(rng) {
                self.op(async { Ok(self.rig.fs.attributes(ino).await.ok()) }).await?;
            }
        }
        Ok(())
    }

    async fn serve_mail(&self, rng: &mut Rng) -> Result<(), BenchError> {
        while !self.is_over() {
            self.op(self.remove(rng)).await?;
            let ino = self.op(self.make(gamma(MAIL, rng), rng)).await?;
            self.op(async { Ok(self.rig.fs.sync(ino, false).await.ok()) }).await?;
            if let Some(ino) = self.pick(rng) {
                self.op(self.read(ino)).await?;
                let size = gamma(MAIL, rng);
                self.op(self.append(ino, size, rng, true)).await?;
            }
            if let Some(ino) = self.pick(rng) {
                self.op(self.read(ino)).await?;
            }
        }
        Ok(())
    }
}

/// A random size with this mean, from the tool's distribution.
fn gamma(mean: f64, rng: &mut Rng) -> usize {
    const SHAPE: f64 = 1.5;
    let size = Gamma::new(SHAPE, mean / SHAPE).map_or(mean, |gamma| gamma.sample(rng));
    (size as usize).max(1)
}

async fn measure(env: &Env, load: Load, mode: Mode, scale: f64) -> Result<Outcome, BenchError> {
    let cache = (MEMORY * scale * 0.5) as usize;
    let rig = Rig::build(env, Plan { cache, ..Plan::new(mode, Caches::Loose) }).await?;
    let mut folders = Vec::new();
    for number in 0..(FILES * scale / 100.0) as usize + 1 {
        folders.push(rig.mkdir(Ino::ROOT, &format!("d{number}")).await?);
    }
    let mut tree = Tree {
        rig,
        folders,
        files: Mutex::default(),
        next: Mutex::default(),
        took: Mutex::default(),
        processors: Semaphore::new(PROCESSORS),
        begun: Time::ZERO,
        end: Time::ZERO,
    };
    let mut rng = env.rng();
    let files = match load {
        Load::FileServer(_) => (FILES * scale) as usize,
        Load::Mail => 1000,
        Load::Database => 0,
    };
    for _ in 0..files {
        tree.make(gamma(FILE, &mut rng), &mut rng).await?;
    }
    if let Load::Database = load {
        for size in [DATABASE * scale, 10e6 * scale] {
            tree.make(size as usize, &mut rng).await?;
        }
    }
    tree.rig.settle().await?;
    let span = Duration::from_secs_f64((SECONDS * scale).max(LEAST));
    // At first no dirty block is old enough for writeback.
    let begun = env.now() + span;
    tree.begun = begun;
    tree.end = begun + span;
    let tree = Arc::new(tree);
    let threads = match load {
        Load::FileServer(_) => 50,
        Load::Mail => 16,
        Load::Database => 211,
    };
    let threads: Vec<_> = (0..threads)
        .map(|number| {
            let (tree, mut rng) = (tree.clone(), env.rng());
            env.spawn(async move {
                match load {
                    Load::FileServer(append) => tree.serve_files(&mut rng, append).await,
                    Load::Mail => tree.serve_mail(&mut rng).await,
                    Load::Database => database(&tree, number, &mut rng, scale).await,
                }
            })
        })
        .collect();
    env.sleep_until(begun).await;
    let before = tree.rig.traffic();
    all(threads).await?;
    let mut took = tree.took.lock();
    took.sort_unstable();
    let (ops, spent) = (took.len().max(1) as f64, tree.rig.traffic().since(before));
    Ok(Outcome {
        ops: ops / env.now().since(begun).as_secs_f64(),
        latency: millis(took.iter().sum()) / ops,
        p999: took.get(took.len() * 999 / 1000).map_or(0.0, |took| millis(*took)),
        longest: took.last().map_or(0.0, |took| millis(*took)),
        journal: spent.journal as f64 / ops,
        home: spent.home() as f64 / ops,
    })
}

/// One process of the database: the log's writer, a writer of blocks, or a reader.
async fn database(tree: &Tree, number: usize, rng: &mut Rng, scale: f64) -> Result<(), BenchError> {
    const PAGE: u64 = 2048;
    let (data, log) = {
        let files = tree.files.lock();
        (files[0].2, files[1].2)
    };
    let pages = (DATABASE * scale) as u64 / PAGE;
    let mut at = 0;
    while !tree.is_over() {
        let page = rng.random_range(0..pages) * PAGE;
        match number {
            0 => {
                let size = (128 << 10) + rng.random_range(0..128_usize << 10);
                let end = (10e6 * scale) as u64;
                at = if at + size as u64 > end { 0 } else { at };
                let data = bytes(rng, size);
                tree.op(tree.rig.write(log, WriteAt::Offset(at), data, true)).await?;
                at += size as u64;
            }
            1..=10 => {
                let content = bytes(rng, PAGE as usize);
                tree.op(tree.rig.write(data, WriteAt::Offset(page), content, false)).await?;
                tree.rig.env.sleep(THINK * 5).await;
            }
            _ => {
                let read = async {
                    tree.rig.fs.read(data, page, PAGE as usize).await.map(drop).map_err(failed)
                };
                tree.op(read).await?;
                tree.rig.env.sleep(THINK * 100).await;
            }
        }
    }
    Ok(())
}
