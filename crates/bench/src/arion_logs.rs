//! `arion-logs`: the log of a mail server, and programs of a desktop (table 8.2, figure 8.18; virtual time).
//!
//! - *exchange*: appends of 512 bytes to 64 KiB at the times at which a mail server with 50 mailboxes makes them, for 15 minutes at scale 1; one
//!   client, or two at the same time. The trace is the generated one of `okeanos-logs`;
//! - *desktop*: traces with the numbers of reads, writes and `fsync` of table 8.3, which `desktop` generates: what is not in that table is a guess there.
//!
//! The machines are those of `arion_site`. `ceph` is the model in `ceph_model` with 5 s and 30 s, and an `fsync` behind each append; `osync` the same,
//! where the log is opened with `O_SYNC`. Ours has a journal, writes back after 60 s, and syncs each append, or none (`nosync`). An append takes 25 µs of a
//! processor. The same with a journal drive that acknowledges from a cache which survives power cuts, as a RAID controller's, is `cached_`: in the thesis, one
//! connection of Redis makes 1,669 synchronous writes in a second (8.2.4), and a disk of its journal 250 revolutions.
//!
//! | figure | meaning |
//! |---|---|
//! | `exchange_p99_over_ceph_1`, `_2` | 99th percentile of the time of an append and its `fsync`, over that of Ceph; of all appends of 1 client and of 2. Below 1 ours is the faster one |
//! | `exchange_p99_over_osync_1` | the same over that of Ceph with `O_SYNC` |
//! | `nosync_p99_ms` | 99th percentile of an append without an `fsync`, one client |
//! | `exchange_p99_ms_1`, `ceph_exchange_p99_ms_1`, `osync_...`, `..._2`; `exchange_mean_ms_1`, ... | the times |
//! | `itunes_m_over_ceph`, `itunes_s_over_ceph`, `imovie_over_ceph` | time of a trace over that of Ceph: below 1 ours is the faster one |
//! | `itunes_m_seconds`, `ceph_itunes_m_seconds`, ... | the times |
//! | `cached_...` | the same with that cache |
//! | `below_aim` | the figures that miss their aims |

mod desktop;

use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_fs::Ino;
use thalweg_sim::rados::DiskSpec;
use thalweg_sim::ssd::{SolidStateSpec, WriteCache};

use crate::arion_machines::{ARION, Machines, Plan, System};
use crate::arion_subject::own_directory;
use crate::okeanos::logs::exchange;
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, Aim, all, count_missed, failed, p99, rounded};
use crate::{BenchEntry, BenchError, Options, Report};
use desktop::TRACES;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-logs",
    about: "a mail server's log, and programs of a desktop, on a client with a journal and without",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Seconds of the thesis's extract.
const SECONDS: f64 = 900.0;
/// Times that a desktop's trace is made and replayed, at scale 1.
const REPLAYS: f64 = 100.0;

const AIMS: &[Aim] = &[
    ("exchange_p99_over_ceph_1", 0.48, false),
    ("exchange_p99_over_ceph_2", 0.46, false),
    ("exchange_p99_over_osync_1", 0.48, false),
    ("nosync_p99_ms", 0.04, false),
    ("itunes_m_over_ceph", 0.59, false),
    ("itunes_s_over_ceph", 0.21, false),
    ("imovie_over_ceph", 0.81, false),
];

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Logging {
    system: System,
    /// Each append is synced.
    syncs: bool,
    is_cached: bool,
}

const LOGGINGS: [(&str, Logging); 5] = [
    ("osync_", Logging { system: System::CephSync, syncs: false, is_cached: false }),
    ("ceph_", Logging { system: System::Ceph, syncs: true, is_cached: false }),
    ("", Logging { system: ARION, syncs: true, is_cached: false }),
    ("nosync_", Logging { system: ARION, syncs: false, is_cached: false }),
    ("cached_", Logging { system: ARION, syncs: true, is_cached: true }),
];
/// Milliseconds of table 8.2, in that order, with one client and with two.
const PAPER: [[f64; 2]; 4] = [[4.11, 4.37], [4.07, 4.59], [1.98, 2.11], [0.03, 0.04]];
/// Those that replay the desktop's traces.
const DESKTOPS: [(&str, System, bool); 3] =
    [("ceph_", System::Ceph, false), ("", ARION, false), ("cached_", ARION, true)];
/// Of figure 8.18: over Ceph, as its text has it.
const PAPER_DESKTOP: [f64; 3] = [0.59, 0.21, 0.81];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let replays = ((REPLAYS * scale) as u32).max(4);
    report.charts = vec![
        logs(&mut report, options.seed, SECONDS * scale)?,
        desktops(&mut report, options.seed, replays)?,
    ];
    count_missed(&mut report, AIMS);
    Ok(report)
}

fn logs(report: &mut Report, seed: u64, seconds: f64) -> Result<Chart, BenchError> {
    let cases: Vec<(Logging, usize)> = LOGGINGS
        .iter()
        .flat_map(|(_, logging)| [1, 2].map(|clients| (*logging, clients)))
        .collect();
    let seen = rig::on_all_processors(&cases, |(logging, clients)| {
        let (logging, clients) = (*logging, *clients);
        thalweg_sim::run(seed, move |env| append(env, logging, clients, seconds))
    })?;
    let pairs: Vec<&[Appends]> = seen.chunks(2).collect();
    for ((prefix, _), pair) in LOGGINGS.iter().zip(&pairs) {
        for (clients, seen) in ["1", "2"].iter().zip(*pair) {
            let name = format!("{prefix}exchange");
            report
                .figure(&format!("{name}_p99_ms_{clients}"), rounded(seen.p99 * 1e3))
                .figure(&format!("{name}_mean_ms_{clients}"), rounded(seen.mean * 1e3));
        }
    }
    let over = |nth: usize, other: usize, clients: usize| {
        rounded(pairs[nth][clients].p99 / pairs[other][clients].p99)
    };
    report
        .figure("exchange_p99_over_ceph_1", over(2, 1, 0))
        .figure("exchange_p99_over_ceph_2", over(2, 1, 1))
        .figure("exchange_p99_over_osync_1", over(2, 0, 0))
        .figure("nosync_p99_ms", rounded(pairs[3][0].p99 * 1e3))
        .figure("cached_exchange_p99_over_ceph_1", over(4, 1, 0))
        .figure("cached_exchange_p99_over_ceph_2", over(4, 1, 1))
        .figure("cached_exchange_p99_over_osync_1", over(4, 0, 0));
    let measured = |clients: usize| {
        let pairs = pairs.iter().enumerate();
        pairs.map(|(x, pair)| (x as f64, pair[clients].p99 * 1e3)).collect()
    };
    let paper =
        |clients: usize| PAPER.iter().enumerate().map(|(x, ms)| (x as f64, ms[clients])).collect();
    Ok(Chart {
        title: "Table 8.2: 99th percentile of appends to a mail server's log".to_owned(),
        x: "Ceph/osync, Ceph/fsync, Arion/fsync, Arion/nosync, Arion/fsync with a cached journal"
            .to_owned(),
        y: "ms".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("thesis, one client", paper(0)),
            Series::measured("measured, one client", measured(0)),
            Series::paper("thesis, two clients", paper(1)),
            Series::measured("measured, two clients", measured(1)),
        ],
    })
}

fn desktops(report: &mut Report, seed: u64, replays: u32) -> Result<Chart, BenchError> {
    let cases: Vec<_> = TRACES
        .iter()
        .flat_map(|trace| DESKTOPS.map(|(_, system, is_cached)| (*trace, system, is_cached)))
        .collect();
    let seen = rig::on_all_processors(&cases, |(trace, system, is_cached)| {
        let (trace, system, plan) = (*trace, *system, plan(1, *is_cached));
        thalweg_sim::run(seed, move |env| async move {
            let machines = Machines::start(&env, system, &plan).await?;
            trace.replay(&env, &machines.clients[0], replays).await
        })
    })?;
    let mut points = Vec::new();
    for (x, (trace, seconds)) in TRACES.iter().zip(seen.chunks(DESKTOPS.len())).enumerate() {
        let name = trace.name;
        for ((prefix, ..), seconds) in DESKTOPS.iter().zip(seconds) {
            report.figure(&format!("{prefix}{name}_seconds"), rounded(*seconds));
        }
        let (over, cached) = (seconds[1] / seconds[0], seconds[2] / seconds[0]);
        report
            .figure(&format!("{name}_over_ceph"), rounded(over))
            .figure(&format!("cached_{name}_over_ceph"), rounded(cached));
        points.push((x as f64, over));
    }
    let paper = PAPER_DESKTOP.iter().enumerate().map(|(x, over)| (x as f64, *over)).collect();
    Ok(Chart {
        title: "Figure 8.18: programs of a desktop".to_owned(),
        x: TRACES.map(|trace| trace.name).join(", "),
        y: "time over Ceph's".to_owned(),
        shape: Shape::Bars,
        series: vec![Series::paper("thesis", paper), Series::measured("measured", points)],
    })
}

/// The machines; with `is_cached`, the client's journal is on a drive that acknowledges from a cache which survives power cuts.
fn plan(clients: usize, is_cached: bool) -> Plan {
    let plan = Plan { clients, ..Plan::local(1.0) };
    let cached = SolidStateSpec { write_cache: WriteCache::Protected, ..SolidStateSpec::sata(0) };
    match is_cached {
        true => Plan { journal_disks: 1, journal_disk: DiskSpec::SolidState(cached), ..plan },
        false => plan,
    }
}

/// Times of appends, in seconds.
struct Appends {
    mean: f64,
    p99: f64,
}

/// Each client appends to a log of its own.
async fn append(
    env: Env,
    logging: Logging,
    clients: usize,
    seconds: f64,
) -> Result<Appends, BenchError> {
    let machines = Machines::start(&env, logging.system, &plan(clients, logging.is_cached)).await?;
    let mut logs: Vec<Ino> = Vec::new();
    for (number, machine) in machines.clients.iter().enumerate() {
        let directory = own_directory(&*machine.subject, &format!("server{number}")).await;
        let directory = directory.map_err(failed)?;
        logs.push(machine.subject.create(directory, "log").await.map_err(failed)?);
        machine.subject.drain().await.map_err(failed)?;
    }
    env.sleep(Duration::from_secs(15)).await;
    let end = env.now() + Duration::from_secs_f64(seconds);
    let writers = machines.clients.iter().zip(logs).map(|(machine, log)| {
        let (machine, env, mut rng) = (machine.clone(), env.clone(), env.rng());
        let own = env.clone();
        env.spawn(async move {
            let first = Duration::from_secs_f64(rng.random_range(0.0..1.0));
            let (mut next, mut size, mut times) = (own.now() + first, 0, Vec::new());
            let mut trace = exchange(rng);
            while next < end {
                own.sleep_until(next).await;
                let (gap, len) = trace();
                let begun = own.now();
                machine.operation().await;
                machine.subject.write(log, size, len).await.map_err(failed)?;
                if logging.syncs {
                    machine.subject.sync(log).await.map_err(failed)?;
                }
                times.push(own.now().since(begun).as_secs_f64());
                size += len as u64;
                next = (next + gap).max(own.now());
            }
            Ok(times)
        })
    });
    let times = all(writers.collect()).await?.concat();
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let none = || BenchError::Failed("no append was made".into());
    Ok(Appends { mean, p99: p99(times).ok_or_else(none)? })
}
