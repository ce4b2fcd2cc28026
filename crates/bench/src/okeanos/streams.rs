//! `okeanos-streams`: many writers of small writes (Okeanos 3.1 and 5.2.1, figures 3.1, 5.1 to 5.3).
//!
//! - *in place*: each writer overwrites 128 bytes at a random offset of a block of its file,
//!   synchronously, without pauses; drives are flushed.
//! - *appends*: each writer appends once a second, at a given rate; the drives' caches take writes and
//!   are not flushed, as in the paper. Each writer has reserved space for its file, so that files are
//!   apart as on a disk in use.
//! - *sizes*: a hundred writers that append once a second, by the size of the appends (figure 3.1).
//! - *asynchronous*: a thousand writers that append once a second and wait only for memory, of which
//!   there is hardly enough for a block each, or plenty (figure 5.3).

use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_fs::{Allocation, Filesystem, Ino, WriteAt};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::inplace::Mode;

use super::rig::{Caches, Plan, Rig, Traffic, bytes, millis};
use crate::plot::{Chart, LogAxes, Series, Shape};
use crate::rig::{self, all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "okeanos-streams",
    about: "journal bytes and latency of many small synchronous writers, in every mode",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes of an overwrite.
const OVERWRITE: usize = 128;
/// Overwrites of each writer.
const OVERWRITES: usize = 100;
/// Bytes reserved for each appending writer.
const RESERVED: u64 = 2 << 20;
/// Rates of appending writers in bytes per second, and their names.
const RATES: [(usize, &str); 2] = [(125, "1kbps"), (125_000, "1mbps")];
/// Writers at each rate.
const STREAMS: [&[usize]; 2] = [&[100, 1000, 5000], &[20, 60, 100]];
/// Writers of figure 3.1, and the sizes of their writes.
const SIZED: usize = 100;
const SIZES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];
/// Writers of figure 5.3, their writes, and bytes of memory for blocks: half of it may be dirty.
const HASTY: usize = 1000;
const HASTY_WRITES: f64 = 200.0;
const HASTY_CACHES: [(usize, &str); 2] = [(8 << 20, "tight"), (64 << 20, "roomy")];
/// Seconds of the paper's runs.
const SECONDS: f64 = 300.0;
const DEFAULT_SCALE: f64 = 0.1;

/// The result of one run.
#[derive(Clone, Debug)]
struct Outcome {
    writes: u64,
    bytes: u64,
    traffic: Traffic,
    /// Including all writeback at the end.
    settled: Traffic,
    mean: Duration,
    /// The mean over writers of the latency of their first writes, of their second ones, and so on.
    by_write: Vec<Duration>,
    seconds: f64,
}

/// Writers that append once a second.
#[derive(Clone, Copy, Debug)]
struct Streams {
    writers: usize,
    /// Bytes of a write.
    rate: usize,
    seconds: f64,
    /// Whether they wait for durability.
    sync: bool,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    for mode in Mode::ALL {
        for writers in [1, 64] {
            let outcome = thalweg_sim::run(options.seed, |env| async move {
                overwrite(&env, mode, writers).await
            })?;
            let name = |figure: &str| format!("{mode}_{writers}x{OVERWRITE}_{figure}");
            let per_byte = |bytes: u64| rounded(bytes as f64 / outcome.bytes as f64);
            report.figure(&name("journal_bytes_per_user_byte"), per_byte(outcome.traffic.journal));
            report.figure(&name("home_bytes_per_user_byte"), per_byte(outcome.settled.home()));
            let flushes = outcome.traffic.flushes as f64 / outcome.writes as f64;
            report.figure(&name("flushes_per_fsync"), rounded(flushes));
            report.figure(&name("latency_ms"), rounded(millis(outcome.mean)));
        }
    }
    let seconds = SECONDS * scale;
    for ((rate, name), streams) in RATES.into_iter().zip(STREAMS) {
        let mut table = Vec::new();
        for mode in Mode::ALL {
            let mut row = Vec::new();
            for writers in streams {
                let streams = Streams { writers: *writers, rate, seconds, sync: true };
                let outcome = thalweg_sim::run(options.seed, |env| async move {
                    append(&env, Plan::new(mode, Caches::Loose), streams).await
                })?;
                let figure = |what: &str| format!("{mode}_{name}_{writers}_{what}");
                let mb = |bytes: u64| rounded(bytes as f64 / 1e6 / outcome.seconds);
                report.figure(&figure("journal_mb_s"), mb(outcome.traffic.journal));
                report.figure(&figure("home_mb_s"), mb(outcome.traffic.home()));
                report.figure(&figure("latency_ms"), rounded(millis(outcome.mean)));
                row.push((*writers, outcome));
            }
            table.push((mode, row));
        }
        report.charts.extend(charts(rate, name, &table));
    }
    sizes(&mut report, options.seed, seconds)?;
    hasty(&mut report, options.seed, HASTY_WRITES * scale)?;
    Ok(report)
}

/// Bytes written to the journal, by the size of the writes (figure 3.1).
fn sizes(report: &mut Report, seed: u64, seconds: f64) -> Result<(), BenchError> {
    let mut series = Vec::new();
    for mode in Mode::ALL {
        let mut points = Vec::new();
        for size in SIZES {
            let outcome = thalweg_sim::run(seed, |env| async move {
                let plan = Plan::new(mode, Caches::Loose);
                append(&env, plan, Streams { writers: SIZED, rate: size, seconds, sync: true })
                    .await
            })?;
            let megabytes = outcome.traffic.journal as f64 / 1e6 / seconds * SECONDS;
            report.figure(&format!("{mode}_{SIZED}x{size}_journal_mb"), rounded(megabytes));
            points.push((size as f64, megabytes));
        }
        series.push(Series::measured(mode.name(), points));
    }
    series.push(Series::paper("data, paper", vec![(128.0, 138.0), (4096.0, 267.0)]));
    report.charts.push(Chart {
        title: format!("3.1 journal traffic of {SIZED} writers in five minutes"),
        x: "bytes of a write".to_owned(),
        y: "MB".to_owned(),
        shape: Shape::Lines,
        series,
    });
    Ok(())
}

/// Latency of writers that wait only for memory (figure 5.3).
fn hasty(report: &mut Report, seed: u64, seconds: f64) -> Result<(), BenchError> {
    for (cache, memory) in HASTY_CACHES {
        let mut series = Vec::new();
        for mode in [Mode::Ordered, Mode::Selective, Mode::Wasteless] {
            let outcome = thalweg_sim::run(seed, |env| async move {
                let plan = Plan { cache, ..Plan::new(mode, Caches::Loose) };
                let rate = RATES[0].0;
                append(&env, plan, Streams { writers: HASTY, rate, seconds, sync: false }).await
            })?;
            let worst = outcome.by_write.iter().max().map_or(0.0, |worst| millis(*worst));
            let name = |figure: &str| format!("{mode}_async_{HASTY}_{memory}_{figure}");
            report.figure(&name("latency_ms"), rounded(millis(outcome.mean)));
            report.figure(&name("worst_ms"), rounded(worst));
            let points =
                (1..).zip(&outcome.by_write).map(|(nth, mean)| (f64::from(nth), millis(*mean)));
            series.push(Series::measured(mode.name(), points.collect()));
        }
        report.charts.push(Chart {
            title: format!("5.3 latency of {HASTY} asynchronous streams, {} MiB", cache >> 20),
            x: "write".to_owned(),
            y: "ms".to_owned(),
            shape: Shape::Lines,
            series,
        });
    }
    Ok(())
}

/// Writers that overwrite parts of a block without pauses.
async fn overwrite(env: &Env, mode: Mode, writers: usize) -> Result<Outcome, BenchError> {
    let rig = Rig::build(env, Plan::new(mode, Caches::Flushed)).await?;
    let files = files(&rig, writers, BLOCK_SIZE).await?;
    rig.settle().await?;
    let (before, begun) = (rig.traffic(), env.now());
    let rig = std::sync::Arc::new(rig);
    let clients = files.into_iter().map(|file| {
        let (rig, mut rng) = (rig.clone(), env.rng());
        env.spawn(async move {
            let mut waited = Duration::ZERO;
            for _ in 0..OVERWRITES {
                let at = rng.random_range(0..=(BLOCK_SIZE - OVERWRITE) as u64);
                let begun = rig.env.now();
                rig.write(file, WriteAt::Offset(at), bytes(&mut rng, OVERWRITE), true).await?;
                waited += rig.env.now().since(begun);
            }
            Ok(waited)
        })
    });
    let waited = all(clients.collect()).await?;
    let writes = (writers * OVERWRITES) as u64;
    let traffic = rig.traffic().since(before);
    let seconds = env.now().since(begun).as_secs_f64();
    rig.settle().await?;
    Ok(Outcome {
        writes,
        bytes: writes * OVERWRITE as u64,
        traffic,
        settled: rig.traffic().since(before),
        mean: waited.iter().sum::<Duration>() / writes as u32,
        by_write: Vec::new(),
        seconds,
    })
}

/// Runs the streams.
async fn append(env: &Env, plan: Plan, streams: Streams) -> Result<Outcome, BenchError> {
    let Streams { writers, rate, seconds, sync } = streams;
    let rig = Rig::build(env, plan).await?;
    let files = files(&rig, writers, 0).await?;
    for file in &files {
        let how = Allocation::Reserve { keep_size: true };
        rig.fs.allocate(*file, 0, RESERVED, how).await.map_err(failed)?;
    }
    rig.settle().await?;
    let (before, begun) = (rig.traffic(), env.now());
    let end = begun + Duration::from_secs_f64(seconds);
    let rig = std::sync::Arc::new(rig);
    let clients = files.into_iter().map(|file| {
        let (rig, mut rng) = (rig.clone(), env.rng());
        env.spawn(async move {
            let mut waits = Vec::new();
            let mut next = begun + Duration::from_secs_f64(rng.random_range(0.0..1.0));
            while next < end {
                rig.env.sleep_until(next).await;
                // The latency counts from the planned time: a stream does not wait for the disk.
                rig.write(file, WriteAt::End, bytes(&mut rng, rate), sync).await?;
                waits.push(rig.env.now().since(next));
                next = (next + Duration::from_secs(1)).max(rig.env.now());
            }
            Ok(waits)
        })
    });
    let done = all(clients.collect()).await?;
    let writes: u64 = done.iter().map(|waits| waits.len() as u64).sum();
    let waited: Duration = done.iter().flatten().sum();
    let most = done.iter().map(Vec::len).max().unwrap_or(0);
    let by_write = (0..most).map(|nth| {
        let waits: Vec<Duration> =
            done.iter().filter_map(|waits| waits.get(nth)).copied().collect();
        waits.iter().sum::<Duration>() / waits.len() as u32
    });
    let traffic = rig.traffic().since(before);
    Ok(Outcome {
        writes,
        bytes: writes * rate as u64,
        traffic,
        settled: traffic,
        mean: waited / (writes as u32).max(1),
        by_write: by_write.collect(),
        seconds: env.now().since(begun).as_secs_f64(),
    })
}

/// A file for each writer.
async fn files(rig: &Rig, writers: usize, size: usize) -> Result<Vec<Ino>, BenchError> {
    let mut rng = rig.env.rng();
    let mut files = Vec::with_capacity(writers);
    for writer in 0..writers {
        let home = rig.mkdir(Ino::ROOT, &format!("home{writer}")).await?;
        files.push(rig.create(home, "stream", size, &mut rng).await?);
    }
    Ok(files)
}

type Row = (Mode, Vec<(usize, Outcome)>);

fn charts(rate: usize, name: &str, table: &[Row]) -> Vec<Chart> {
    let chart = |title: String, y: &str, shape: Shape, value: &dyn Fn(&Outcome) -> f64| {
        let series = table.iter().map(|(mode, row)| {
            let points = row.iter().map(|(writers, outcome)| (*writers as f64, value(outcome)));
            Series::measured(mode.name(), points.collect())
        });
        Chart { title, x: "streams".to_owned(), y: y.to_owned(), shape, series: series.collect() }
    };
    let per_second = |bytes: u64, outcome: &Outcome| bytes as f64 / 1e6 / outcome.seconds;
    let mut journal =
        chart(format!("5.1 journal traffic at {name}"), "MB/s", Shape::Lines, &|outcome| {
            per_second(outcome.traffic.journal, outcome)
        });
    if rate == RATES[0].0 {
        // At several thousand streams (5.2.1).
        let last = STREAMS[0].last().map_or(0.0, |last| *last as f64);
        for (mode, mb) in [("data", 27.0), ("selective", 2.9), ("wasteless", 4.2)] {
            journal.series.push(Series::paper(&format!("{mode}, paper"), vec![(last, mb)]));
        }
    }
    vec![
        journal,
        chart(format!("5.1 c filesystem traffic at {name}"), "MB/s", Shape::Lines, &|outcome| {
            per_second(outcome.traffic.home(), outcome)
        }),
        chart(
            format!("5.2 latency of writes at {name}"),
            "ms",
            Shape::LogLines(LogAxes::Y),
            &|outcome| millis(outcome.mean),
        ),
    ]
}
