//! `arion-scale`: many clients on many object servers (figures 8.4 to 8.7 and 8.9 to 8.12, table 8.1; virtual time).
//!
//! - *fio*: the writes of `arion-zipf`, here 2 GB by each of 1 to 64 clients into a file of its own, on 12, 24 or 48 object servers;
//! - *oltp*: a database on each of 1 to 48 clients, on 12 object servers (`oltp`).
//!
//! A client has 7.5 GiB of memory (3.75 with solid-state drives) and a journal of 5 GB, striped over two disks; an object server has a journal of 5 GB on one disk
//! and its filesystem on another one. Disks are SATA disks of 7,200 rpm with their caches on, as the cloud's are, or SATA solid-state drives. Links carry 1 Gbit/s.
//! `ceph` is the model in `ceph_model` with 5 s and 30 s; ours writes back after 120 s.
//!
//! The scale is a part of all bytes and of all timers: of files, memory, journals, requests, and of the times until pages are written back, changes are in the
//! journal and object servers write their journals back. So a run is one of the whole size, with its beginning, its middle and its end, but shorter; only what each
//! request takes (disks, links, processors) stays. The default is a fiftieth: 40 MB for each client, and 2,000 requests for each database. One thing does not scale, and
//! favours ours at a small scale: a client may have 12 MiB unsent on any link, which is less than a hundredth of a file of 2 GB and a third of one of 40 MB. It counts
//! where the server's link limits ours, from 16 clients on. At twice the scale, 64 clients on 48 object servers are
//! no faster than Ceph's, and at a larger one they are to be expected to be slower. A run at the default takes 2 GB of memory, and one at twice the scale 6 GB.
//!
//! | figure | meaning |
//! |---|---|
//! | `fio_throughput_over_ceph_12_16`, ... | bytes written by all clients over the mean time of a client, over that of Ceph; with 12 object servers and 16 clients. Above 1 ours is the faster one |
//! | `fio_latency_over_ceph_...`, `fio_duration_over_ceph_...` | mean time of a write, and of a client's run. Below 1 ours is the faster one |
//! | `oltp_over_ceph_hdd_8`, ... | requests of all databases over the mean time of one, over that of Ceph; with disks and 8 clients. Above 1 ours is the faster one |
//! | `oltp_p99_over_ceph_hdd_8`, ... | 99th percentile of the time of a request. Below 1 ours is the faster one |
//! | `slower_than_ceph` | the cells, of fio and oltp, in which the throughput of ours is below Ceph's |
//! | `fio_mb_per_s_...`, `fio_latency_ms_...`, `fio_seconds_...`, `oltp_per_s_...`, `oltp_p99_ms_...`, and with `ceph_` | the same, absolute |
//! | `..._journal_busy_...`, `..._data_busy_...` | the part of the time in which the disks of an object server are busy |
//! | `below_aim` | the figures that miss their aims |

mod client_run;
mod fio;
mod oltp;

use std::time::Duration;

use thalweg_env::Env;
use thalweg_sim::hdd::HardDiskSpec;
use thalweg_sim::rados::{DiskSpec, RadosSpec, ServerTally};
use thalweg_sim::ssd::SolidStateSpec;

use crate::arion_machines::{Machines, Plan, System, since};
use crate::arion_site;
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, Aim, count_missed, p99, rounded};
use crate::{BenchEntry, BenchError, Options, Report};
use client_run::ClientRun;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-scale",
    about: "many clients with journals, and without, on many object servers",
    clock: crate::Clock::Virtual,
    loads: || LOADS.map(|(name, ..)| name.to_owned()).into(),
    traces: false,
    run,
};

const AIMS: &[Aim] = &[
    ("fio_throughput_over_ceph_12_16", 1.80, true),
    ("fio_throughput_over_ceph_24_32", 1.57, true),
    ("fio_throughput_over_ceph_48_32", 1.21, true),
    ("fio_latency_over_ceph_12_16", 0.50, false),
    ("fio_latency_over_ceph_24_32", 0.68, false),
    ("fio_latency_over_ceph_48_32", 0.78, false),
    ("fio_duration_over_ceph_12_16", 0.556, false),
    ("oltp_over_ceph_hdd_8", 1.40, true),
    ("oltp_over_ceph_hdd_16", 1.92, true),
    ("oltp_over_ceph_ssd_8", 1.59, true),
    ("oltp_p99_over_ceph_hdd_8", 0.58, false),
    ("oltp_p99_over_ceph_ssd_48", 0.38, false),
    ("slower_than_ceph", 0.0, false),
];

/// The sweeps, of fio by its object servers and of the database by its disks: name, chart, unit of the throughput.
const LOADS: [(&str, &str, &str); 5] = [
    ("fio_12", "Figure 8.4a: fio, 12 object servers", "bytes/s"),
    ("fio_24", "Figure 8.4b: fio, 24 object servers", "bytes/s"),
    ("fio_48", "Figure 8.4c: fio, 48 object servers", "bytes/s"),
    ("oltp_hdd", "Figure 8.9a: a database, disks", "requests/s"),
    ("oltp_ssd", "Figure 8.9b: a database, solid-state drives", "requests/s"),
];
/// Object servers, and the clients on them, of fio; clients of the database.
const FIO: [(usize, &[usize]); 3] = [(12, &[1, 4, 16]), (24, &[1, 8, 32]), (48, &[1, 16, 32, 64])];
const OLTP: [usize; 4] = [1, 8, 16, 48];
const OLTP_SERVERS: usize = 12;

/// Bytes of a journal, of a client as of an object server.
const JOURNAL: f64 = 5e9;
const LEAST_JOURNAL: u64 = 32 << 20;
const HDD_MEMORY: f64 = 7.5 * (1u64 << 30) as f64;
const SSD_MEMORY: f64 = 3.75 * (1u64 << 30) as f64;
/// Of the filesystem of an object server. A solid-state drive of the cloud has four times as many, which the load does not fill.
const HDD_FILESYSTEM: u64 = 420_000_000_000;
const SSD_FILESYSTEM: u64 = 4 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Rotational,
    SolidState,
}

impl Disk {
    fn of(self, size: u64) -> DiskSpec {
        match self {
            Disk::Rotational => DiskSpec::Rotational(HardDiskSpec::sata_7200(size)),
            Disk::SolidState => DiskSpec::SolidState(SolidStateSpec::sata(size)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Disk::Rotational => "hdd",
            Disk::SolidState => "ssd",
        }
    }
}

/// A load with its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Fio { servers: usize, clients: usize },
    Oltp { disk: Disk, clients: usize },
}

impl Cell {
    fn name(self) -> String {
        match self {
            Cell::Fio { servers, clients } => format!("{servers}_{clients}"),
            Cell::Oltp { disk, clients } => format!("{}_{clients}", disk.name()),
        }
    }

    /// The sweep that it is in.
    fn load(self) -> String {
        match self {
            Cell::Fio { servers, .. } => format!("fio_{servers}"),
            Cell::Oltp { disk, .. } => format!("oltp_{}", disk.name()),
        }
    }

    /// What the names of its figures begin with.
    fn prefix(self) -> &'static str {
        match self {
            Cell::Fio { .. } => "fio",
            Cell::Oltp { .. } => "oltp",
        }
    }

    fn plan(self, scale: f64) -> Plan {
        let (servers, clients, disk) = match self {
            Cell::Fio { servers, clients } => (servers, clients, Disk::Rotational),
            Cell::Oltp { disk, clients } => (OLTP_SERVERS, clients, disk),
        };
        let (memory, filesystem) = match disk {
            Disk::Rotational => (HDD_MEMORY, HDD_FILESYSTEM),
            Disk::SolidState => (SSD_MEMORY, SSD_FILESYSTEM),
        };
        let journal = ((JOURNAL * scale) as u64).max(LEAST_JOURNAL).next_multiple_of(1 << 20);
        let usual = arion_site::rados();
        let rados = RadosSpec {
            servers,
            // As many on each server.
            groups: 16 * servers as u32,
            sync_interval: usual.sync_interval.mul_f64(scale),
            journal: disk.of(journal),
            filesystem: disk.of(filesystem),
            ..usual
        };
        Plan {
            clients,
            memory: (memory * scale) as u64,
            journal,
            journal_disks: 2,
            journal_disk: disk.of(0),
            rados,
            time: scale,
        }
    }
}

fn cells(options: &Options) -> Vec<Cell> {
    let fio = FIO.iter().flat_map(|(servers, clients)| {
        clients.iter().map(|clients| Cell::Fio { servers: *servers, clients: *clients })
    });
    let oltp = [Disk::Rotational, Disk::SolidState]
        .iter()
        .flat_map(|disk| OLTP.map(|clients| Cell::Oltp { disk: *disk, clients }));
    fio.chain(oltp).filter(|cell| options.runs(&cell.load())).collect()
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.02)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let cells = cells(options);
    // The longest runs come first, so that no processor waits for one at the end.
    let mut cases: Vec<(usize, System)> =
        (0..cells.len()).flat_map(|nth| [OURS, System::Ceph].map(|system| (nth, system))).collect();
    cases.sort_by_key(|(nth, _)| std::cmp::Reverse(cells[*nth].plan(scale).clients));
    let seen = rig::on_all_processors(&cases, |(nth, system)| {
        let (cell, system) = (cells[*nth], *system);
        thalweg_sim::run(options.seed, move |env| measure(env, cell, system, scale))
    })?;
    let of = |nth: usize, system: System| {
        let case = cases.iter().position(|case| *case == (nth, system));
        case.map(|case| &seen[case])
            .ok_or_else(|| BenchError::Failed("a cell was not measured".into()))
    };
    let (mut slower, mut ratios) = (0_u32, Vec::new());
    for (nth, cell) in cells.iter().enumerate() {
        let (ours, ceph) = (of(nth, OURS)?, of(nth, System::Ceph)?);
        tell(&mut report, *cell, "", ours);
        tell(&mut report, *cell, "ceph_", ceph);
        compare(&mut report, *cell, ours, ceph);
        slower += u32::from(ours.rate < ceph.rate);
        ratios.push((*cell, ours.rate, ceph.rate));
    }
    report.figure("slower_than_ceph", f64::from(slower));
    // Of sweeps that were not asked for, nothing is missed.
    let is_asked = |name: &str| options.loads.is_empty() || report.number(name).is_some();
    let aims: Vec<Aim> = AIMS.iter().copied().filter(|(name, ..)| is_asked(name)).collect();
    count_missed(&mut report, &aims);
    report.charts = charts(&report, &ratios);
    Ok(report)
}

/// Ours writes back after 120 s.
const OURS: System = System::Arion(Duration::from_secs(120));

fn tell(report: &mut Report, cell: Cell, prefix: &str, seen: &Seen) {
    let (load, name) = (cell.prefix(), cell.name());
    let figures = match cell {
        Cell::Fio { .. } => vec![
            ("mb_per_s", seen.rate / 1e6),
            ("latency_ms", seen.latency * 1e3),
            ("seconds", seen.seconds),
        ],
        Cell::Oltp { .. } => vec![
            ("per_s", seen.rate),
            ("p99_ms", seen.p99 * 1e3),
            ("latency_ms", seen.latency * 1e3),
        ],
    };
    let busy = [("journal_busy", seen.journal_busy), ("data_busy", seen.data_busy)];
    for (figure, value) in figures.into_iter().chain(busy) {
        report.figure(&format!("{prefix}{load}_{figure}_{name}"), rounded(value));
    }
}

fn compare(report: &mut Report, cell: Cell, ours: &Seen, ceph: &Seen) {
    let name = cell.name();
    let figures = match cell {
        Cell::Fio { .. } => vec![
            ("fio_throughput_over_ceph", ours.rate / ceph.rate),
            ("fio_latency_over_ceph", ours.latency / ceph.latency),
            ("fio_duration_over_ceph", ours.seconds / ceph.seconds),
        ],
        Cell::Oltp { .. } => vec![
            ("oltp_over_ceph", ours.rate / ceph.rate),
            ("oltp_p99_over_ceph", ours.p99 / ceph.p99),
        ],
    };
    for (figure, value) in figures {
        report.figure(&format!("{figure}_{name}"), rounded(value));
    }
}

fn charts(report: &Report, seen: &[(Cell, f64, f64)]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (load, title, y) in LOADS {
        let cells: Vec<_> = seen.iter().filter(|(cell, ..)| cell.load() == load).collect();
        let line = |of: fn(&(Cell, f64, f64)) -> f64| {
            cells.iter().map(|cell| (clients(cell.0), of(cell))).collect()
        };
        if !cells.is_empty() {
            charts.push(Chart {
                title: title.to_owned(),
                x: "clients".to_owned(),
                y: y.to_owned(),
                shape: Shape::Lines,
                series: vec![
                    Series::measured("model of Ceph", line(|(_, _, ceph)| *ceph)),
                    Series::measured("with journals", line(|(_, ours, _)| *ours)),
                ],
            });
        }
    }
    let named: Vec<_> =
        AIMS.iter().filter(|(name, aim, _)| *aim > 0.0 && report.number(name).is_some()).collect();
    let bars = |of: &dyn Fn(&Aim) -> f64| {
        named.iter().enumerate().map(|(x, aim)| (x as f64, of(aim))).collect()
    };
    charts.push(Chart {
        title: "Figures 8.4 to 8.6, 8.9, 8.10: over Ceph, as the text has them".to_owned(),
        x: named
            .iter()
            .map(|(name, ..)| name.replace("_over_ceph", ""))
            .collect::<Vec<_>>()
            .join(", "),
        y: "ratio".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("thesis", bars(&|(_, aim, _)| *aim)),
            Series::measured("measured", bars(&|(name, ..)| report.number(name).unwrap_or(0.0))),
        ],
    });
    charts.push(busy_chart(report));
    charts
}

fn clients(cell: Cell) -> f64 {
    match cell {
        Cell::Fio { clients, .. } | Cell::Oltp { clients, .. } => clients as f64,
    }
}

fn busy_chart(report: &Report) -> Chart {
    let cells =
        ["fio_{}_12_16", "oltp_{}_hdd_16", "oltp_{}_hdd_48", "oltp_{}_ssd_16", "oltp_{}_ssd_48"];
    let bars = |prefix: &str, disk: &str| {
        let of = |cell: &str| report.number(&format!("{prefix}{}", cell.replace("{}", disk)));
        cells
            .iter()
            .enumerate()
            .filter_map(|(x, cell)| Some((x as f64, of(cell)? * 100.0)))
            .collect()
    };
    Chart {
        title: "Figures 8.7, 8.11, 8.12: disks of an object server".to_owned(),
        x: cells.map(|cell| cell.replace("_{}", "")).join(", "),
        y: "percent busy".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::measured("journal, model of Ceph", bars("ceph_", "journal_busy")),
            Series::measured("journal, with journals", bars("", "journal_busy")),
            Series::measured("filesystem, model of Ceph", bars("ceph_", "data_busy")),
            Series::measured("filesystem, with journals", bars("", "data_busy")),
        ],
    }
}

/// What a cell has come to.
struct Seen {
    /// Bytes or requests of all clients, over the mean seconds of a client.
    rate: f64,
    /// Seconds of a client, on average.
    seconds: f64,
    /// Of a write or a request, in seconds.
    latency: f64,
    p99: f64,
    journal_busy: f64,
    data_busy: f64,
}

async fn measure(env: Env, cell: Cell, system: System, scale: f64) -> Result<Seen, BenchError> {
    let plan = cell.plan(scale);
    let machines = Machines::start(&env, system, &plan).await?;
    let loads = match cell {
        Cell::Fio { .. } => fio::prepare(&env, &machines, scale).await?,
        Cell::Oltp { .. } => oltp::prepare(&env, &machines, scale).await?,
    };
    // Until the object servers have written their journals back.
    env.sleep(Duration::from_secs_f64(2.0 + 30.0 * scale)).await;
    let (begun, before) = (env.now(), machines.servers());
    let runs = loads.into_iter().map(|load| env.spawn(load)).collect();
    let runs: Vec<ClientRun> = rig::all(runs).await?;
    let whole = env.now().since(begun).as_secs_f64() * plan.rados.servers as f64;
    Ok(sum_up(runs, since(machines.servers(), before), whole))
}

fn sum_up(runs: Vec<ClientRun>, servers: ServerTally, whole: f64) -> Seen {
    let clients = runs.len() as f64;
    let seconds = runs.iter().map(|run| run.seconds).sum::<f64>() / clients;
    let done: f64 = runs.iter().map(|run| run.done).sum();
    let latencies: Vec<f64> = runs.into_iter().flat_map(|run| run.latencies).collect();
    Seen {
        rate: done / seconds,
        seconds,
        latency: latencies.iter().sum::<f64>() / latencies.len() as f64,
        p99: p99(latencies).unwrap_or(f64::NAN),
        journal_busy: servers.journal.busy.as_secs_f64() / whole,
        data_busy: servers.filesystem.busy.as_secs_f64() / whole,
    }
}
