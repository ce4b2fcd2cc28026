//! `okeanos-postmark`: small files that are created, appended to and deleted, every write synchronous
//! (Okeanos 5.2.2 and 5.2.6, figures 5.4 a and 5.8).

use std::sync::Arc;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::{Filesystem, Ino, WriteAt};
use thalweg_store::inplace::Mode;

use super::rig::{Caches, Plan, Rig, bytes};
use crate::plot::{Chart, LogAxes, Series, Shape};
use crate::rig::{self, all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "okeanos-postmark",
    about: "transactions per second on small files with synchronous writes, in every mode",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Number of files at the start.
const FILES: usize = 500;
const THREADS: usize = 100;
/// Number of transactions in the paper.
const TRANSACTIONS: f64 = 10_000.0;
/// Bytes of a file.
const SIZES: std::ops::Range<usize> = 500..100_000;
/// Of ten transactions, this many read and the others append; this many create and the others delete.
const READS: u32 = 5;
const CREATES: u32 = 9;
/// Bytes of a request.
const REQUESTS: [usize; 5] = [128, 1024, 4096, 16_384, 131_072];
const DEFAULT_SCALE: f64 = 0.1;
const CACHES: [(Caches, &str, &str); 3] = [
    (Caches::Off, "off_", "5.8 a: write caches off"),
    (Caches::Flushed, "barrier_", "5.8 b: write caches on, flushed"),
    (Caches::Loose, "", "5.4 a, 5.8 c: write caches on, not flushed"),
];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let transactions = (TRANSACTIONS * scale) as usize;
    let mut report = Report::new(ENTRY.name, options.seed);
    for (caches, prefix, title) in CACHES {
        let mut series = Vec::new();
        for mode in Mode::ALL {
            let mut points = Vec::new();
            for request in REQUESTS {
                let tps = thalweg_sim::run(options.seed, |env| async move {
                    transact(&env, Plan::new(mode, caches), request, transactions).await
                })?;
                report.figure(&format!("{prefix}{mode}_{request}_tps"), rounded(tps));
                points.push((request as f64, tps));
            }
            series.push(Series::measured(mode.name(), points));
        }
        let best = |report: &Report, mode: Mode| {
            let tps = REQUESTS
                .map(|request| report.number(&format!("{prefix}{mode}_{request}_tps")))
                .map(Option::unwrap_or_default);
            tps.into_iter().fold(0.0, f64::max)
        };
        let over = best(&report, Mode::Wasteless) / best(&report, Mode::Ordered).max(1e-9);
        report.figure(&format!("{prefix}wasteless_best_over_ordered"), rounded(over));
        if caches == Caches::Loose {
            let maxima =
                [("wasteless", 738.0), ("data", 663.0), ("selective", 473.0), ("ordered", 399.0)];
            series.extend(maxima.map(|(mode, tps)| {
                Series::paper(&format!("{mode}, paper's best"), vec![(REQUESTS[4] as f64, tps)])
            }));
        }
        report.charts.push(Chart {
            title: title.to_owned(),
            x: "bytes of a write".to_owned(),
            y: "transactions/s".to_owned(),
            shape: Shape::LogLines(LogAxes::X),
            series,
        });
    }
    Ok(report)
}

/// The existing files, except those that a transaction is working on.
struct Pool {
    rig: Rig,
    folders: Vec<Ino>,
    files: Mutex<Vec<(usize, String, Ino)>>,
    next: Mutex<usize>,
    left: Mutex<usize>,
    request: usize,
}

impl Pool {
    /// Creates a file, request by request.
    async fn create(&self, rng: &mut Rng, sync: bool) -> Result<(), BenchError> {
        let number = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let (folder, name) = (number % self.folders.len(), format!("{number}"));
        let ino = self.rig.create(self.folders[folder], &name, 0, rng).await?;
        self.append(ino, rng.random_range(SIZES), rng, sync).await?;
        self.files.lock().push((folder, name, ino));
        Ok(())
    }

    async fn append(
        &self,
        ino: Ino,
        size: usize,
        rng: &mut Rng,
        sync: bool,
    ) -> Result<(), BenchError> {
        let mut left = size;
        while left > 0 {
            let take = left.min(self.request);
            self.rig.write(ino, WriteAt::End, bytes(rng, take), sync).await?;
            left -= take;
        }
        Ok(())
    }

    fn take(&self, rng: &mut Rng) -> Option<(usize, String, Ino)> {
        let mut files = self.files.lock();
        let count = files.len();
        (count > 0).then(|| files.swap_remove(rng.random_range(0..count)))
    }

    /// One transaction: reads a file or appends to it, and creates one or deletes one.
    async fn transaction(&self, rng: &mut Rng) -> Result<(), BenchError> {
        if let Some(file) = self.take(rng) {
            let ino = file.2;
            let fs = &self.rig.fs;
            if rng.random_range(0..10) < READS {
                let size = fs.attributes(ino).await.map_err(failed)?.size;
                for at in (0..size).step_by(self.request) {
                    fs.read(ino, at, self.request).await.map_err(failed)?;
                }
            } else {
                let size = rng.random_range(SIZES) / 10;
                self.append(ino, size, rng, true).await?;
            }
            self.files.lock().push(file);
        }
        if rng.random_range(0..10) < CREATES {
            return self.create(rng, true).await;
        }
        match self.take(rng) {
            Some((folder, name, _)) => {
                let parent = self.folders[folder];
                self.rig.fs.unlink(parent, name.as_bytes()).await.map_err(failed)
            }
            None => Ok(()),
        }
    }
}

async fn transact(
    env: &Env,
    plan: Plan,
    request: usize,
    transactions: usize,
) -> Result<f64, BenchError> {
    let rig = Rig::build(env, plan).await?;
    let mut folders = Vec::new();
    for number in 0..10 {
        folders.push(rig.mkdir(Ino::ROOT, &format!("s{number}")).await?);
    }
    let pool = Arc::new(Pool {
        rig,
        folders,
        files: Mutex::default(),
        next: Mutex::default(),
        left: Mutex::new(transactions),
        request,
    });
    let mut rng = env.rng();
    for _ in 0..FILES {
        pool.create(&mut rng, false).await?;
    }
    pool.rig.settle().await?;
    let begun = env.now();
    let threads = (0..THREADS).map(|_| {
        let (pool, mut rng) = (pool.clone(), env.rng());
        env.spawn(async move {
            loop {
                {
                    let mut left = pool.left.lock();
                    if *left == 0 {
                        return Ok(());
                    }
                    *left -= 1;
                }
                pool.transaction(&mut rng).await?;
            }
        })
    });
    all(threads.collect()).await?;
    Ok(transactions as f64 / env.now().since(begun).as_secs_f64().max(1e-9))
}
