//! `arion-varmail` and `arion-createfiles`: a mail server, and threads that make files (figure 8.1; virtual time).
//!
//! The loads are those of Filebench with its usual parameters, on 50,000 files at scale 1 as in 8.2.1, with 16 threads:
//!
//! - *varmail*, for 100 s: each thread removes a mail; makes one, writes 16 KiB on average and syncs it; reads one, appends 16 KiB on average to it
//!   and syncs it; reads one. With opens and closes a round has 13 operations;
//! - *createfiles*: the threads make all files, and write 16 KiB on average to each; three operations for a file.
//!
//! Sizes have a gamma distribution (shape 1.5), a directory has about 100 files, the files scale alone, and an operation takes 25 µs of one of two
//! processors. Opens and closes take nothing else. The machines are those of `arion_site`; `ceph` is the model in `ceph_model` with 5 s and 30 s,
//! `ceph_sync` the same, mounted synchronously. Ours has a journal, and writes back after 60 s.
//!
//! | figure | meaning |
//! |---|---|
//! | `ceph_sync_received_per_op_over_ours`, `ceph_sync_sent_…` | bytes that an object server receives and sends for an operation of Ceph mounted synchronously, over ours |
//! | `ops_over_ceph`, `ops_over_ceph_sync` | operations in a second over those of the other |
//! | `latency_over_ceph` | time of a round |
//! | `received_per_op_over_ceph`, `sent_per_op_over_ceph` | bytes that the object servers receive and send for an operation until the end of the run; `drained_...` until everything is durable |
//! | `ops`, `ceph_ops`, `latency_ms`, `ceph_latency_ms`, `received_kb_per_op`, `ceph_received_kb_per_op`, ... | absolute; the received bytes are those of all object servers |
//! | `below_aim` | the figures that miss their aims |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::{Env, Rng};
use thalweg_sim::rados::ServerTally;

use crate::arion_files::{File, FileSet, size};
use crate::arion_machines::{ARION, Machines, Plan, System, since};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, Aim, all, count_missed, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// The mail server in the list.
pub const VARMAIL: BenchEntry = BenchEntry {
    name: "arion-varmail",
    about: "a mail server on a client with a journal, and without",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run: run_varmail,
};

/// The threads that make files in the list.
pub const CREATEFILES: BenchEntry = BenchEntry {
    name: "arion-createfiles",
    about: "threads make files on a client with a journal, and without",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run: run_createfiles,
};

const FILES: f64 = 50_000.0;
const THREADS: usize = 16;
/// Of the mail server.
const SECONDS: u64 = 100;
/// Files in a directory.
const WIDTH: usize = 100;
/// Mean bytes of a file, and of an append.
const MEAN: f64 = 16_384.0;
/// Operations of a round of the mail server, and for a file that is made.
const ROUND: u64 = 13;
const MADE: u64 = 3;

const VARMAIL_AIMS: &[Aim] = &[
    ("ops_over_ceph", 1.55, true),
    ("latency_over_ceph", 0.62, false),
    ("received_per_op_over_ceph", 0.70, false),
    ("sent_per_op_over_ceph", 0.69, false),
];
const CREATEFILES_AIMS: &[Aim] = &[("ops_over_ceph", 1.0, true), ("ops_over_ceph_sync", 1.0, true)];
/// Operations in a second of figure 8.1a: Ceph, Arion-60.
const PAPER: [f64; 2] = [544.6, 842.8];
/// Received and sent for an operation of figure 8.1b: Arion-60 over Ceph. Of figure 8.1d: Ceph-sync over Arion-60, both.
const PAPER_NETWORK: [f64; 2] = [0.70, 0.69];
const PAPER_SYNC: f64 = 1.062;

fn run_varmail(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.02)?;
    let mut report = Report::new(VARMAIL.name, options.seed);
    report.figure("scale", scale);
    let seen = measure_all(options.seed, &[System::Ceph, ARION], Load::Mail, scale)?;
    let [ceph, ours] = &seen[..] else {
        return Err(BenchError::Failed("systems are missing".into()));
    };
    tell(&mut report, "ceph_", ceph);
    tell(&mut report, "", ours);
    compare(&mut report, ours, ceph);
    report.figure("latency_over_ceph", rounded(ours.latency / ceph.latency));
    count_missed(&mut report, VARMAIL_AIMS);
    let paper = PAPER.iter().enumerate().map(|(x, ops)| (x as f64, *ops)).collect();
    report.charts = vec![chart(
        "Figure 8.1a: varmail",
        "Ceph, Arion-60",
        &seen,
        Some(Series::paper("thesis", paper)),
    )];
    let network = [
        ("received", "received_per_op_over_ceph", Some(PAPER_NETWORK[0])),
        ("sent", "sent_per_op_over_ceph", Some(PAPER_NETWORK[1])),
    ];
    let title = "Figure 8.1b: varmail, network load of an object server for an operation, Arion-60 over Ceph";
    report.charts.push(network_chart(&report, title, &network));
    Ok(report)
}

fn run_createfiles(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.2)?;
    let mut report = Report::new(CREATEFILES.name, options.seed);
    report.figure("scale", scale);
    let systems = [System::Ceph, System::CephSync, ARION];
    let seen = measure_all(options.seed, &systems, Load::Creates, scale)?;
    let [ceph, sync, ours] = &seen[..] else {
        return Err(BenchError::Failed("systems are missing".into()));
    };
    tell(&mut report, "ceph_", ceph);
    tell(&mut report, "ceph_sync_", sync);
    tell(&mut report, "", ours);
    compare(&mut report, ours, ceph);
    report.figure("ops_over_ceph_sync", rounded(ours.ops / sync.ops));
    count_missed(&mut report, CREATEFILES_AIMS);
    let over = |of: fn(&Seen) -> u64| rounded(sync.per_op(of(sync)) / ours.per_op(of(ours)));
    report
        .figure("ceph_sync_received_per_op_over_ours", over(|seen| seen.servers.received))
        .figure("ceph_sync_sent_per_op_over_ours", over(|seen| seen.servers.sent));
    report.charts =
        vec![chart("Figure 8.1c: createfiles", "Ceph, Ceph-sync, Arion-60", &seen, None)];
    let network = [
        (
            "received, Ceph-sync over Arion-60",
            "ceph_sync_received_per_op_over_ours",
            Some(PAPER_SYNC),
        ),
        ("sent, Ceph-sync over Arion-60", "ceph_sync_sent_per_op_over_ours", Some(PAPER_SYNC)),
        ("received, Arion-60 over Ceph", "received_per_op_over_ceph", None),
        ("sent, Arion-60 over Ceph", "sent_per_op_over_ceph", None),
    ];
    let title = "Figure 8.1d: createfiles, network load of an object server for an operation";
    report.charts.push(network_chart(&report, title, &network));
    Ok(report)
}

/// Bars of ratios: each with its name, its figure, and what the text says of it.
fn network_chart(report: &Report, title: &str, bars: &[(&str, &str, Option<f64>)]) -> Chart {
    let points = |of: &dyn Fn(usize) -> Option<f64>| {
        (0..bars.len()).filter_map(|nth| Some((nth as f64, of(nth)?))).collect()
    };
    Chart {
        title: title.to_owned(),
        x: bars.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join("; "),
        y: "ratio".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("thesis", points(&|nth| bars[nth].2)),
            Series::measured("measured", points(&|nth| report.number(bars[nth].1))),
        ],
    }
}

fn measure_all(
    seed: u64,
    systems: &[System],
    load: Load,
    scale: f64,
) -> Result<Vec<Seen>, BenchError> {
    rig::on_all_processors(systems, |system| {
        let system = *system;
        thalweg_sim::run(seed, move |env| measure(env, system, load, scale))
    })
}

/// The absolute figures of a system.
fn tell(report: &mut Report, prefix: &str, seen: &Seen) {
    report
        .figure(&format!("{prefix}ops"), rounded(seen.ops))
        .figure(&format!("{prefix}latency_ms"), rounded(seen.latency * 1e3))
        .figure(&format!("{prefix}received_kb_per_op"), rounded(seen.per_op(seen.servers.received)))
        .figure(&format!("{prefix}sent_kb_per_op"), rounded(seen.per_op(seen.servers.sent)))
        .figure(
            &format!("{prefix}drained_received_kb_per_op"),
            rounded(seen.per_op(seen.drained.received)),
        )
        .figure(&format!("{prefix}journal_disks_busy"), rounded(seen.journal_busy))
        .figure(&format!("{prefix}data_disks_busy"), rounded(seen.data_busy));
}

fn compare(report: &mut Report, ours: &Seen, ceph: &Seen) {
    let over = |of: fn(&Seen) -> u64| ours.per_op(of(ours)) / ceph.per_op(of(ceph));
    report
        .figure("ops_over_ceph", rounded(ours.ops / ceph.ops))
        .figure("received_per_op_over_ceph", rounded(over(|seen| seen.servers.received)))
        .figure("sent_per_op_over_ceph", rounded(over(|seen| seen.servers.sent)))
        .figure("drained_received_per_op_over_ceph", rounded(over(|seen| seen.drained.received)))
        .figure("drained_sent_per_op_over_ceph", rounded(over(|seen| seen.drained.sent)));
}

fn chart(title: &str, x: &str, seen: &[Seen], paper: Option<Series>) -> Chart {
    let points = seen.iter().enumerate().map(|(x, seen)| (x as f64, seen.ops)).collect();
    let series = paper.into_iter().chain([Series::measured("measured", points)]).collect();
    Chart {
        title: title.to_owned(),
        x: x.to_owned(),
        y: "operations/s".to_owned(),
        shape: Shape::Bars,
        series,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Mail,
    Creates,
}

struct Seen {
    /// In a second.
    ops: f64,
    /// Operations of the run.
    count: u64,
    /// Seconds of a round, or for a file.
    latency: f64,
    /// What the object servers have done until the end of the run, and until everything was durable.
    servers: ServerTally,
    drained: ServerTally,
    /// The part of the time in which their disks were busy.
    journal_busy: f64,
    data_busy: f64,
}

impl Seen {
    /// Kilobytes for an operation.
    fn per_op(&self, bytes: u64) -> f64 {
        bytes as f64 / 1e3 / self.count as f64
    }
}

struct Server {
    machines: Machines,
    files: FileSet,
    rounds: AtomicU64,
}

impl Server {
    async fn operations(&self, count: usize) {
        for _ in 0..count {
            self.machines.operation().await;
        }
    }

    async fn append(&self, file: &mut File, rng: &mut Rng) -> Result<(), BenchError> {
        let len = size(MEAN, rng);
        self.machines.subject.write(file.ino, file.size, len).await.map_err(failed)?;
        file.size += len as u64;
        Ok(())
    }

    async fn sync(&self, file: &File) -> Result<(), BenchError> {
        self.machines.subject.sync(file.ino).await.map_err(failed)
    }

    async fn read(&self, file: &File) -> Result<(), BenchError> {
        self.machines.subject.read(file.ino, 0, file.size as usize).await.map_err(failed)
    }

    async fn make(&self, rng: &mut Rng) -> Result<File, BenchError> {
        let mut file = self.files.make(&*self.machines.subject).await?;
        self.append(&mut file, rng).await?;
        Ok(file)
    }

    /// A round of the mail server.
    async fn mail(&self, rng: &mut Rng) -> Result<(), BenchError> {
        self.operations(1).await;
        if let Some(file) = self.files.take(rng) {
            let subject = &self.machines.subject;
            subject.unlink(file.directory, &file.name, file.ino).await.map_err(failed)?;
        }
        self.operations(4).await;
        let made = self.make(rng).await?;
        self.sync(&made).await?;
        self.files.put(made);
        self.operations(5).await;
        if let Some(mut file) = self.files.take(rng) {
            self.read(&file).await?;
            self.append(&mut file, rng).await?;
            self.sync(&file).await?;
            self.files.put(file);
        }
        self.operations(3).await;
        if let Some(file) = self.files.take(rng) {
            self.read(&file).await?;
            self.files.put(file);
        }
        self.rounds.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

async fn measure(env: Env, system: System, load: Load, scale: f64) -> Result<Seen, BenchError> {
    let machines = Machines::start(&env, system, &Plan::local(1.0)).await?;
    let count = ((FILES * scale) as u64).max(4 * THREADS as u64);
    let files = FileSet::new(&*machines.subject, (count as usize).div_ceil(WIDTH)).await?;
    let server = Arc::new(Server { machines, files, rounds: AtomicU64::new(0) });
    if load == Load::Mail {
        let mut rng = env.rng();
        for _ in 0..count {
            let made = server.make(&mut rng).await?;
            server.files.put(made);
        }
    }
    let subject = &server.machines.subject;
    subject.drain().await.map_err(failed)?;
    subject.forget_pages();
    // Until the object servers have written their journals back.
    env.sleep(Duration::from_secs(15)).await;
    let (begun, before) = (env.now(), server.machines.servers());
    let end = begun + Duration::from_secs(SECONDS);
    let threads = (0..THREADS).map(|_| {
        let (server, mut rng, now) = (server.clone(), env.rng(), env.clone());
        env.spawn(async move {
            match load {
                Load::Mail => {
                    while now.now() < end {
                        server.mail(&mut rng).await?;
                    }
                }
                Load::Creates => {
                    while server.files.made() < count {
                        server.operations(MADE as usize).await;
                        server.make(&mut rng).await?;
                        server.rounds.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Ok(())
        })
    });
    all(threads.collect()).await?;
    let seconds = env.now().since(begun).as_secs_f64();
    let servers = since(server.machines.servers(), before);
    subject.drain().await.map_err(failed)?;
    let drained = since(server.machines.servers(), before);
    let rounds = server.rounds.load(Ordering::Relaxed);
    let each = if load == Load::Mail { ROUND } else { MADE };
    let busy = |span: Duration| span.as_secs_f64() / seconds / 3.0;
    Ok(Seen {
        ops: (rounds * each) as f64 / seconds,
        count: rounds * each,
        latency: seconds * THREADS as f64 / rounds as f64,
        journal_busy: busy(servers.journal.busy),
        data_busy: busy(servers.filesystem.busy),
        servers,
        drained,
    })
}
