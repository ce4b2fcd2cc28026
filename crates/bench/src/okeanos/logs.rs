//! `okeanos-logs`: logs of mail servers and databases, many on one disk (Okeanos 5.2.3, figures 5.4 b and
//! c).
//!
//! - *exchange*: appends of 512 bytes to some tens of KiB, each synchronous, at the times at which a mail
//!   server with 50 mailboxes makes them;
//! - *innodb*: a database that commits and flushes its log (*disk*), or writes it at each commit and
//!   flushes it every second (*cache*), or does both every second (*period*).
//!
//! The traces are generated: sizes and gaps are random, the same for each instance of a seed.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand_distr::{Distribution, Exp, LogNormal};
use thalweg_env::{Env, Rng};
use thalweg_fs::{Allocation, Filesystem, Ino, WriteAt};
use thalweg_store::inplace::Mode;

use super::rig::{Caches, Plan, Rig, bytes, millis};
use crate::plot::{Chart, LogAxes, Series, Shape};
use crate::rig::{self, all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "okeanos-logs",
    about: "latency of the logs of mail servers and databases, many on one disk, in every mode",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const DEFAULT_SCALE: f64 = 0.03;
/// Seconds of the paper's extract.
const SECONDS: f64 = 900.0;
/// Bytes reserved for a log, as both of these servers do; on a disk, logs are this far apart.
const RESERVED: u64 = 5 << 20;
const INSTANCES: [usize; 4] = [1, 16, 64, 128];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    Exchange,
    /// Commit and flush.
    Disk,
    /// Commit to memory, flush every second.
    Cache,
    /// Commit and flush every second.
    Period,
}

const LOGS: [(Log, &str); 4] = [
    (Log::Exchange, "exchange"),
    (Log::Disk, "innodb_disk"),
    (Log::Cache, "innodb_cache"),
    (Log::Period, "innodb_period"),
];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    for (log, name) in LOGS {
        let mut series = Vec::new();
        for mode in Mode::ALL {
            let mut points = Vec::new();
            for instances in INSTANCES {
                let mean = thalweg_sim::run(options.seed, |env| async move {
                    replay(&env, log, mode, instances, SECONDS * scale).await
                })?;
                let figure = format!("{name}_{mode}_{instances}_latency_ms");
                report.figure(&figure, rounded(millis(mean)));
                points.push((instances as f64, millis(mean)));
            }
            series.push(Series::measured(mode.name(), points));
        }
        for mode in [Mode::Wasteless, Mode::Selective] {
            let of = |mode: Mode| report.number(&format!("{name}_{mode}_128_latency_ms"));
            let ratio = of(Mode::Ordered).unwrap_or(0.0) / of(mode).unwrap_or(1.0).max(1e-3);
            report.figure(&format!("{name}_ordered_over_{mode}_128"), rounded(ratio));
        }
        report.charts.push(Chart {
            title: format!("5.4 b, c: latency of {name}"),
            x: "instances".to_owned(),
            y: "latency (ms)".to_owned(),
            shape: Shape::LogLines(LogAxes::Both),
            series,
        });
    }
    Ok(report)
}

/// The gaps and sizes of a log's writes.
struct Trace {
    rng: Rng,
    gap: f64,
    size: (f64, f64),
}

impl Trace {
    fn new(log: Log, rng: Rng) -> Trace {
        match log {
            // 512 bytes to tens of KiB, in sectors, with a median of 2 KiB.
            Log::Exchange => Trace { rng, gap: 0.15, size: (7.6, 1.2) },
            // A commit of the database: a median of 700 bytes, most below a block.
            _ => Trace { rng, gap: 0.05, size: (6.55, 0.9) },
        }
    }

    fn next(&mut self, log: Log) -> (Duration, usize) {
        let gap = Exp::new(1.0 / self.gap).map_or(self.gap, |gap| gap.sample(&mut self.rng));
        let (mean, spread) = self.size;
        let size = LogNormal::new(mean, spread).map_or(1024.0, |size| size.sample(&mut self.rng));
        let size = size.clamp(64.0, 65_536.0) as usize;
        let size = if log == Log::Exchange { size.next_multiple_of(512) } else { size };
        (Duration::from_secs_f64(gap), size)
    }
}

/// The log of a mail server: the gap behind a write, and its bytes.
pub(crate) fn exchange(rng: Rng) -> impl FnMut() -> (Duration, usize) {
    let mut trace = Trace::new(Log::Exchange, rng);
    move || trace.next(Log::Exchange)
}

/// The mean latency of the calls that make the log durable, or of its writes where no call does.
async fn replay(
    env: &Env,
    log: Log,
    mode: Mode,
    instances: usize,
    seconds: f64,
) -> Result<Duration, BenchError> {
    let rig = Rig::build(env, Plan::new(mode, Caches::Loose)).await?;
    let mut rng = env.rng();
    let mut files = Vec::new();
    for instance in 0..instances {
        let home = rig.mkdir(Ino::ROOT, &format!("server{instance}")).await?;
        let file = rig.create(home, "log", 0, &mut rng).await?;
        let how = Allocation::Reserve { keep_size: true };
        rig.fs.allocate(file, 0, RESERVED, how).await.map_err(failed)?;
        files.push(file);
    }
    rig.settle().await?;
    let end = env.now() + Duration::from_secs_f64(seconds);
    let rig = Arc::new(rig);
    let writers = files.into_iter().map(|file| {
        let (rig, rng) = (rig.clone(), env.rng());
        env.spawn(async move {
            let mut trace = Trace::new(log, rng);
            let (mut waited, mut count) = (Duration::ZERO, 0_u32);
            let mut next =
                rig.env.now() + Duration::from_secs_f64(trace.rng.random_range(0.0..1.0));
            let (mut kept, mut flushed) = (Vec::new(), next);
            while next < end {
                rig.env.sleep_until(next).await;
                let (gap, size) = trace.next(log);
                let data = bytes(&mut trace.rng, size);
                let is_due = next.since(flushed) >= Duration::from_secs(1);
                let begun = rig.env.now();
                match log {
                    Log::Exchange | Log::Disk => rig.write(file, WriteAt::End, data, true).await?,
                    Log::Cache => rig.write(file, WriteAt::End, data, false).await?,
                    Log::Period => kept.extend_from_slice(&data),
                }
                if matches!(log, Log::Cache | Log::Period) && is_due {
                    let kept = std::mem::take(&mut kept);
                    if !kept.is_empty() {
                        rig.write(file, WriteAt::End, kept.into(), false).await?;
                    }
                    rig.fs.sync(file, true).await.map_err(failed)?;
                    flushed = rig.env.now();
                }
                if is_due || matches!(log, Log::Exchange | Log::Disk) {
                    waited += rig.env.now().since(begun);
                    count += 1;
                }
                next = (next + gap).max(rig.env.now());
            }
            Ok((waited, count))
        })
    });
    let done = all(writers.collect()).await?;
    let count: u32 = done.iter().map(|(_, count)| count).sum();
    Ok(done.iter().map(|(waited, _)| *waited).sum::<Duration>() / count.max(1))
}
