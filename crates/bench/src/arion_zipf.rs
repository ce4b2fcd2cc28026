//! `arion-zipf`: random writes of which many overwrite others (figures 8.2 and 8.3; virtual time).
//!
//! As in 8.2.2 one thread writes 2 GB into a file of 2 GB that is there, in blocks of 2 to 16 KiB, without a sync. Their places have a Zipf distribution with
//! α = 1.0001 over units of 2 KiB, which are scattered over the file. File, bytes, memory and journal scale. A write takes 25 µs of a processor.
//! The machines are those of `arion_site`; `ceph` is the model in `ceph_model` with 5 s and 30 s, `ceph_1` with 1 s and 1 s. Ours has a journal, and
//! writes back after 60 s, or after the time that a figure names.
//!
//! A run ends with its last write, as in the thesis. The figures that begin with `drained_` count the write-back after that, too.
//!
//! | figure | meaning |
//! |---|---|
//! | `latency_over_ceph`, `_ceph_1` | mean latency of a write over that of the other |
//! | `duration_over_ceph` | time of the run |
//! | `received_over_ceph` | bytes that the object servers receive until then; `drained_received_over_ceph` until everything is durable |
//! | `data_disk_busy_over_ceph_1` | share of the time in which the disks with filesystems are busy |
//! | `latency_ms_5`, `_30`, `_60`, `_120`, `_inf`, `inf_over_60` | mean latency, when the client writes back after so many seconds, or never |
//! | `ceph_latency_ms`, `ceph_1_latency_ms`, `seconds`, `ceph_seconds`, `received_mb`, `ceph_received_mb` | absolute; received bytes are those of one object server |
//! | `overwrites_over_write_through` | bytes that the object servers receive for 10⁵ overwrites of 1,000 blocks of 4 KiB and a drain, over those of a client that is mounted synchronously |
//! | `overwritten_percent` | writes to places that were written before |
//! | `below_aim` | the figures that miss their aims |

use std::time::Duration;

use rand::RngExt;
use rand_distr::{Distribution, Zipf};
use thalweg_env::{Env, HashSet, Rng};
use thalweg_fs::Ino;
use thalweg_sim::rados::ServerTally;

use crate::arion_machines::{ARION, Machines, NEVER, Plan, System, since};
use crate::arion_subject::{Subject, own_directory};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-zipf",
    about: "random writes of which many overwrite others, with a journal and without",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const BYTES: f64 = 2e9;
/// Bytes of the units of places and lengths, and the most units of a write.
const UNIT: u64 = 2048;
const MOST: u64 = 8;
const ALPHA: f64 = 1.0001;
/// Overwrites at scale 1, and the blocks that they go to.
const OVERWRITES: f64 = 100_000.0;
const BLOCKS: u64 = 1_000;
const BLOCK: u64 = 4096;
/// Bytes of the writes that make a file.
const FILL: u64 = 1 << 20;
const SERVERS: f64 = 3.0;

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] = &[
    ("latency_over_ceph", 0.60),
    ("latency_over_ceph_1", 0.47),
    ("duration_over_ceph", 0.64),
    ("received_over_ceph", 0.59),
    ("data_disk_busy_over_ceph_1", 0.235),
    ("inf_over_60", 1.0),
    ("overwrites_over_write_through", 0.02),
];
/// Milliseconds of figure 8.2a, as its text has them: Ceph, Ceph-1, Arion-60.
const PAPER: [f64; 3] = [1.0, 1.5, 0.6];
/// Percent of the time in which the disks with the journal and with the filesystem of figures 8.2c and 8.2d are busy: Ceph-1, Arion-60.
const PAPER_BUSY: [[f64; 2]; 2] = [[21.4, 22.3], [88.2, 20.7]];

const fn after(seconds: u64) -> System {
    System::Arion(Duration::from_secs(seconds))
}

/// The systems, with their names in figures.
const SYSTEMS: [(&str, System); 7] = [
    ("ceph", System::Ceph),
    ("ceph_1", System::Ceph1),
    ("60", ARION),
    ("5", after(5)),
    ("30", after(30)),
    ("120", after(120)),
    ("inf", System::Arion(NEVER)),
];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.3)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let cases: Vec<(System, Load)> = SYSTEMS
        .iter()
        .map(|(_, system)| (*system, Load::Zipf))
        .chain([(ARION, Load::Overwrites), (System::CephSync, Load::Overwrites)])
        .collect();
    let seen = rig::on_all_processors(&cases, |(system, load)| {
        let (system, load) = (*system, *load);
        thalweg_sim::run(options.seed, move |env| measure(env, system, load, scale))
    })?;
    let [ceph, ceph_1, ours, five, thirty, two_minutes, never, own, through] = &seen[..] else {
        return Err(BenchError::Failed("cases are missing".into()));
    };
    let busy = |seen: &Seen| seen.servers.filesystem.busy.as_secs_f64() / seen.seconds;
    let received = |seen: &Seen| seen.servers.received as f64;
    let drained = |seen: &Seen| seen.drained.received as f64;
    report
        .figure("latency_over_ceph", rounded(ours.latency / ceph.latency))
        .figure("latency_over_ceph_1", rounded(ours.latency / ceph_1.latency))
        .figure("duration_over_ceph", rounded(ours.seconds / ceph.seconds))
        .figure("received_over_ceph", rounded(received(ours) / received(ceph)))
        .figure("drained_received_over_ceph", rounded(drained(ours) / drained(ceph)))
        .figure("data_disk_busy_over_ceph_1", rounded(busy(ours) / busy(ceph_1)))
        .figure("inf_over_60", rounded(never.latency / ours.latency))
        .figure("overwrites_over_write_through", rounded(drained(own) / drained(through)));
    for (name, seen) in [
        ("latency_ms_5", five),
        ("latency_ms_30", thirty),
        ("latency_ms_60", ours),
        ("latency_ms_120", two_minutes),
        ("latency_ms_inf", never),
        ("ceph_latency_ms", ceph),
        ("ceph_1_latency_ms", ceph_1),
    ] {
        report.figure(name, rounded(seen.latency * 1e3));
    }
    report
        .figure("seconds", rounded(ours.seconds))
        .figure("ceph_seconds", rounded(ceph.seconds))
        .figure("received_mb", rounded(received(ours) / SERVERS / 1e6))
        .figure("ceph_received_mb", rounded(received(ceph) / SERVERS / 1e6))
        .figure("overwritten_percent", rounded(ours.overwritten * 100.0));
    let missed = AIMS
        .iter()
        .filter(|(name, aim)| report.number(name).is_none_or(|figure| figure > aim + 5e-4))
        .count();
    report.figure("below_aim", missed as f64);
    report.charts = charts(&seen);
    Ok(report)
}

fn charts(seen: &[Seen]) -> Vec<Chart> {
    let bars = |which: &[usize], of: fn(&Seen) -> f64| {
        which.iter().enumerate().map(|(x, nth)| (x as f64, of(&seen[*nth]))).collect()
    };
    let paper = PAPER.iter().enumerate().map(|(x, ms)| (x as f64, *ms)).collect();
    let latency = |seen: &Seen| seen.latency * 1e3;
    vec![
        Chart {
            title: "Figure 8.2a: latency of a write".to_owned(),
            x: "Ceph, Ceph-1, Arion-60".to_owned(),
            y: "ms".to_owned(),
            shape: Shape::Bars,
            series: vec![
                Series::paper("thesis", paper),
                Series::measured("measured", bars(&[0, 1, 2], latency)),
            ],
        },
        Chart {
            title: "Figure 8.2b: received by an object server until the last write".to_owned(),
            x: "Ceph, Ceph-1, Arion-60".to_owned(),
            y: "MB".to_owned(),
            shape: Shape::Bars,
            series: vec![Series::measured(
                "measured",
                bars(&[0, 1, 2], |seen| seen.servers.received as f64 / SERVERS / 1e6),
            )],
        },
        busy_chart(
            seen,
            "Figure 8.2c: journal of an object server, until the last write",
            PAPER_BUSY[0],
            |seen| seen.servers.journal.busy,
        ),
        busy_chart(
            seen,
            "Figure 8.2d: filesystem of an object server, until the last write",
            PAPER_BUSY[1],
            |seen| seen.servers.filesystem.busy,
        ),
        Chart {
            title: "Figure 8.3a: latency of a write".to_owned(),
            x: "written back after 5, 30, 60, 120 s, never".to_owned(),
            y: "ms".to_owned(),
            shape: Shape::Bars,
            series: vec![Series::measured("measured", bars(&[3, 4, 2, 5, 6], latency))],
        },
    ]
}

/// How busy a disk of an object server is, with Ceph-1 and with Arion-60.
fn busy_chart(seen: &[Seen], title: &str, paper: [f64; 2], of: fn(&Seen) -> Duration) -> Chart {
    let bars = |values: [f64; 2]| values.into_iter().enumerate().map(|(x, it)| (x as f64, it));
    let percent = |seen: &Seen| of(seen).as_secs_f64() / SERVERS / seen.seconds * 100.0;
    Chart {
        title: title.to_owned(),
        x: "Ceph-1, Arion-60".to_owned(),
        y: "percent busy".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("thesis", bars(paper).collect()),
            Series::measured("measured", bars([percent(&seen[1]), percent(&seen[2])]).collect()),
        ],
    }
}

#[derive(Clone, Copy, Debug)]
enum Load {
    Zipf,
    Overwrites,
}

struct Seen {
    /// Of a write, in seconds.
    latency: f64,
    seconds: f64,
    /// What the object servers have done until the last write, and until everything was durable.
    servers: ServerTally,
    drained: ServerTally,
    /// The part of the writes that went to places which were written before.
    overwritten: f64,
}

async fn measure(env: Env, system: System, load: Load, scale: f64) -> Result<Seen, BenchError> {
    let machines = Machines::start(&env, system, &Plan::local(scale)).await?;
    let subject = &machines.subject;
    let size = match load {
        Load::Zipf => self::size(scale),
        Load::Overwrites => BLOCKS * BLOCK,
    };
    let file = fill(&**subject, "d", size).await?;
    subject.drain().await.map_err(failed)?;
    subject.forget_pages();
    // Until the object servers have written their journals back.
    env.sleep(Duration::from_secs(30)).await;
    let (before, begun) = (machines.servers(), env.now());
    let (writes, overwritten) = match load {
        Load::Zipf => zipf(&env, &machines, file, size).await?,
        Load::Overwrites => {
            let writes = ((OVERWRITES * scale) as u64).max(BLOCKS);
            overwrite(&machines, file, writes, &mut env.rng()).await?;
            (writes, 1.0)
        }
    };
    let seconds = env.now().since(begun).as_secs_f64();
    let servers = since(machines.servers(), before);
    subject.drain().await.map_err(failed)?;
    let drained = since(machines.servers(), before);
    Ok(Seen { latency: seconds / writes as f64, seconds, servers, drained, overwritten })
}

/// Bytes of the file.
pub(crate) fn size(scale: f64) -> u64 {
    ((BYTES * scale) as u64).next_multiple_of(FILL)
}

/// A file of so many bytes in a directory that is the client's alone.
pub(crate) async fn fill(subject: &dyn Subject, name: &str, size: u64) -> Result<Ino, BenchError> {
    let directory = own_directory(subject, name).await.map_err(failed)?;
    let file = subject.create(directory, "f").await.map_err(failed)?;
    for offset in (0..size).step_by(FILL as usize) {
        let len = (size - offset).min(FILL);
        subject.write(file, offset, len as usize).await.map_err(failed)?;
    }
    Ok(file)
}

/// Writes at random places of a file, of which many overwrite others.
pub(crate) struct ZipfWrites {
    units: u64,
    ranks: Zipf<f64>,
}

impl ZipfWrites {
    /// Into a file of so many bytes.
    pub(crate) fn new(size: u64) -> Result<ZipfWrites, BenchError> {
        let units = size / UNIT;
        Ok(ZipfWrites { units, ranks: Zipf::new(units as f64, ALPHA).map_err(failed)? })
    }

    /// The offset and the bytes of the next one.
    pub(crate) fn next(&self, rng: &mut Rng) -> (u64, u64) {
        // A prime, so that no two ranks have one place.
        let place = self.ranks.sample(rng) as u64 % self.units * 1_000_003 % self.units;
        let len = (rng.random_range(1..=MOST) * UNIT).min((self.units - place) * UNIT);
        (place * UNIT, len)
    }
}

/// How many writes, and which part of them went to places that were written before.
async fn zipf(
    env: &Env,
    machines: &Machines,
    file: Ino,
    size: u64,
) -> Result<(u64, f64), BenchError> {
    let mut rng = env.rng();
    let places = ZipfWrites::new(size)?;
    let (mut written, mut writes, mut again) = (0, 0_u64, 0_u64);
    let mut seen = HashSet::default();
    while written < size {
        let (place, len) = places.next(&mut rng);
        machines.operation().await;
        machines.subject.write(file, place, len as usize).await.map_err(failed)?;
        again += u64::from(!seen.insert(place));
        (written, writes) = (written + len, writes + 1);
    }
    Ok((writes, again as f64 / writes as f64))
}

async fn overwrite(
    machines: &Machines,
    file: Ino,
    writes: u64,
    rng: &mut Rng,
) -> Result<(), BenchError> {
    for _ in 0..writes {
        let block = rng.random_range(0..BLOCKS);
        machines.operation().await;
        machines.subject.write(file, block * BLOCK, BLOCK as usize).await.map_err(failed)?;
    }
    Ok(())
}
