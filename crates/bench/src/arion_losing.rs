//! `arion-losing`: the loads to which a journal at the client gives nothing, or which pay for it (virtual time).
//!
//! The machines are those of `arion_site`; `ceph` is the model in `ceph_model` with 5 s and 30 s, `unjournaled` is our client without a journal,
//! which reaches the object servers itself: with a journal the bytes of files go through the server. All figures are times of ours with a journal
//! over those of the other one: below 1 the journal gains, above 1 it loses. No value is aimed at. Both of ours write back after 60 s.
//!
//! | load | time |
//! |---|---|
//! | `reads` | of a read of 4 KiB that is not in memory, at random places of a file, by 16 threads |
//! | `asynchronous` | until 1 GB is written into a file that is there, in 64 KiB one after the other, without a sync; `asynchronous_drained`: until all of it is durable at the servers. Memory, journals and timers scale |
//! | `shared_in_turns` | of a turn of one of two clients: 256 KiB to a file of its own without a sync, then 4 KiB to a file that both write, and an `fsync` of that |
//! | `shared_names` | until one of two clients has made a file in a directory in which both make files, written 16 KiB into it and removed an older one of its own |
//! | `osds_48` | of a write of 16 KiB with an `fsync`, by 64 threads of one client with a file each, on 48 object servers |
//! | `slow_journal` | of a write of 4 KiB with an `fsync`, by one thread that pauses for 10 ms on average before it, where the journal is on one disk of 7,200 rpm whose cache is off |
//! | `umount_full` | of an unmount behind that many writes as in `asynchronous`: until everything is durable at the servers |
//!
//! | figure | meaning |
//! |---|---|
//! | `LOAD_over_ceph`, `LOAD_over_unjournaled` | time of ours with a journal over that of the other one |
//! | `LOAD_ms`, `ceph_LOAD_ms`, `unjournaled_LOAD_ms` | the times |
//! | `umount_full_mb`, `ceph_...`, `unjournaled_...` | megabytes that the client had in its memory or its journal alone when the unmount began |

use std::time::Duration;

use rand::RngExt;
use rand_distr::{Distribution, Exp};
use thalweg_env::{Env, Task};
use thalweg_fs::Ino;
use thalweg_sim::hdd::HardDiskSpec;
use thalweg_sim::rados::{DiskSpec, RadosSpec};

use crate::arion_machines::{ARION, Machine, Machines, Plan, System};
use crate::arion_site;
use crate::arion_subject::own_directory;
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-losing",
    about: "the loads that suit a client's journal least",
    clock: crate::Clock::Virtual,
    loads: || LOADS.map(|(name, _)| name.to_owned()).into(),
    traces: false,
    run,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Reads,
    Asynchronous,
    SharedInTurns,
    SharedNames,
    ManyServers,
    SlowJournal,
    Unmount,
}

const LOADS: [(&str, Load); 7] = [
    ("reads", Load::Reads),
    ("asynchronous", Load::Asynchronous),
    ("shared_in_turns", Load::SharedInTurns),
    ("shared_names", Load::SharedNames),
    ("osds_48", Load::ManyServers),
    ("slow_journal", Load::SlowJournal),
    ("umount_full", Load::Unmount),
];
/// Ours is the first one.
const SYSTEMS: [(&str, System); 3] = [
    ("", ARION),
    ("ceph_", System::Ceph),
    ("unjournaled_", System::Unjournaled(Duration::from_secs(60))),
];

/// Bytes that are read at random, and that are written one after the other, at scale 1.
const BYTES: f64 = 1e9;
const CHUNK: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Bytes of the writes that make a file.
const FILL: u64 = 1 << 20;
/// Operations at scale 1.
const READS: f64 = 20_000.0;
const TURNS: f64 = 400.0;
const NAMES: f64 = 2_000.0;
const SYNCS: f64 = 20_000.0;
const SLOW_SYNCS: f64 = 2_000.0;
const READERS: usize = 16;
const SYNCERS: usize = 64;
/// Before a write to the slow journal, on average: the disk has turned meanwhile.
const PAUSE: f64 = 0.01;
/// Bytes that a client writes to its own file in a turn, and to a file that it makes.
const OWN: u64 = 256 << 10;
const NAMED: u64 = 16 << 10;
/// Files that a client leaves in the directory.
const KEPT: usize = 8;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.2)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let loads: Vec<_> = LOADS.into_iter().filter(|(name, _)| options.runs(name)).collect();
    let cases: Vec<(Load, System)> =
        loads.iter().flat_map(|(_, load)| SYSTEMS.map(|(_, system)| (*load, system))).collect();
    let seen = rig::on_all_processors(&cases, |(load, system)| {
        let (load, system) = (*load, *system);
        thalweg_sim::run(options.seed, move |env| measure(env, load, system, scale))
    })?;
    let mut ratios = Vec::new();
    for ((name, load), seen) in loads.iter().zip(seen.chunks(SYSTEMS.len())) {
        ratios.push(tell(&mut report, name, seen, |seen| seen.seconds));
        match load {
            Load::Asynchronous => {
                tell(&mut report, "asynchronous_drained", seen, |seen| seen.drained);
            }
            Load::Unmount => {
                for ((prefix, _), seen) in SYSTEMS.iter().zip(seen) {
                    report.figure(&format!("{prefix}umount_full_mb"), rounded(seen.unsent / 1e6));
                }
            }
            _ => {}
        }
    }
    let bars = |nth: usize| ratios.iter().enumerate().map(|(x, it)| (x as f64, it[nth])).collect();
    report.charts = vec![Chart {
        title: "Times with a journal over those of others: above 1 the journal loses".to_owned(),
        x: loads.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        y: "ratio".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::measured("over the model of Ceph", bars(0)),
            Series::measured("over our client without a journal", bars(1)),
        ],
    }];
    Ok(report)
}

/// Tells the times of a load, and those of ours over those of the others.
fn tell(report: &mut Report, name: &str, seen: &[Seen], of: fn(&Seen) -> f64) -> [f64; 2] {
    for ((prefix, _), seen) in SYSTEMS.iter().zip(seen) {
        report.figure(&format!("{prefix}{name}_ms"), rounded(of(seen) * 1e3));
    }
    let over = [1, 2].map(|other| of(&seen[0]) / of(&seen[other]));
    report
        .figure(&format!("{name}_over_ceph"), rounded(over[0]))
        .figure(&format!("{name}_over_unjournaled"), rounded(over[1]));
    over
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Of an operation, or of the whole.
    seconds: f64,
    /// Until everything was durable at the servers.
    drained: f64,
    /// Bytes that the servers did not have before that.
    unsent: f64,
}

fn plan(load: Load, scale: f64) -> Plan {
    match load {
        Load::Asynchronous | Load::Unmount => Plan { time: scale, ..Plan::local(scale) },
        Load::SharedInTurns | Load::SharedNames => Plan { clients: 2, ..Plan::local(1.0) },
        Load::ManyServers => {
            let rados = RadosSpec { servers: 48, groups: 16 * 48, ..arion_site::rados() };
            Plan { rados, ..Plan::local(1.0) }
        }
        Load::SlowJournal => {
            let slow = HardDiskSpec { write_cache: 0, ..HardDiskSpec::sata_7200(0) };
            let journal_disk = DiskSpec::Rotational(slow);
            Plan { journal_disks: 1, journal_disk, ..Plan::local(1.0) }
        }
        Load::Reads => Plan::local(1.0),
    }
}

async fn measure(env: Env, load: Load, system: System, scale: f64) -> Result<Seen, BenchError> {
    let machines = Machines::start(&env, system, &plan(load, scale)).await?;
    let count = |count: f64| ((count * scale) as u64).max(16);
    let bytes = ((BYTES * scale) as u64).next_multiple_of(FILL);
    match load {
        Load::Reads => reads(&env, &machines, bytes, count(READS)).await,
        Load::Asynchronous | Load::Unmount => {
            let written = asynchronous(&env, &machines, bytes).await?;
            let unmount = written.drained - written.seconds;
            Ok(if load == Load::Unmount { Seen { seconds: unmount, ..written } } else { written })
        }
        Load::SharedInTurns => in_turns(&env, &machines, count(TURNS)).await,
        Load::SharedNames => names(&env, &machines, count(NAMES)).await,
        Load::ManyServers => {
            let load = Syncs { threads: SYNCERS, len: NAMED, count: count(SYNCS), pause: None };
            load.run(&env, &machines).await
        }
        Load::SlowJournal => {
            let (count, pause) = (count(SLOW_SYNCS), Some(PAUSE));
            Syncs { threads: 1, len: PAGE, count, pause }.run(&env, &machines).await
        }
    }
}

/// A file of so many bytes.
async fn fill(
    machine: &Machine,
    directory: Ino,
    name: &str,
    bytes: u64,
) -> Result<Ino, BenchError> {
    let file = machine.subject.create(directory, name).await.map_err(failed)?;
    write(machine, file, 0, bytes, FILL).await?;
    Ok(file)
}

/// Writes bytes one after the other, so many at a time.
async fn write(
    machine: &Machine,
    file: Ino,
    start: u64,
    bytes: u64,
    most: u64,
) -> Result<(), BenchError> {
    for offset in (0..bytes).step_by(most as usize) {
        let len = (bytes - offset).min(most) as usize;
        machine.operation().await;
        machine.subject.write(file, start + offset, len).await.map_err(failed)?;
    }
    Ok(())
}

/// The servers have everything, and the object servers have written their journals back.
async fn settle(env: &Env, machines: &Machines) -> Result<(), BenchError> {
    for machine in &machines.clients {
        machine.subject.drain().await.map_err(failed)?;
        machine.subject.forget_pages();
    }
    env.sleep(Duration::from_secs(30)).await;
    Ok(())
}

/// Threads that do so many operations together; the time of one.
async fn in_threads<F>(
    env: &Env,
    threads: usize,
    count: u64,
    thread: impl Fn(usize, u64) -> F,
) -> Result<Seen, BenchError>
where
    F: Future<Output = Result<(), BenchError>> + Send + 'static,
{
    let each = count.div_ceil(threads as u64);
    let begun = env.now();
    let running: Vec<Task<_>> =
        (0..threads).map(|number| env.spawn(thread(number, each))).collect();
    all(running).await?;
    let seconds = env.now().since(begun).as_secs_f64();
    Ok(Seen { seconds: seconds / each as f64, ..Seen::default() })
}

async fn reads(env: &Env, machines: &Machines, bytes: u64, count: u64) -> Result<Seen, BenchError> {
    let machine = &machines.clients[0];
    let directory = own_directory(&*machine.subject, "d").await.map_err(failed)?;
    let file = fill(machine, directory, "f", bytes).await?;
    settle(env, machines).await?;
    in_threads(env, READERS, count, |_, count| {
        let (machine, mut rng) = (machine.clone(), env.rng());
        async move {
            for _ in 0..count {
                let page = rng.random_range(0..bytes / PAGE);
                machine.operation().await;
                machine.subject.read(file, page * PAGE, PAGE as usize).await.map_err(failed)?;
            }
            Ok(())
        }
    })
    .await
}

async fn asynchronous(env: &Env, machines: &Machines, bytes: u64) -> Result<Seen, BenchError> {
    let machine = &machines.clients[0];
    let directory = own_directory(&*machine.subject, "d").await.map_err(failed)?;
    let file = fill(machine, directory, "f", bytes).await?;
    settle(env, machines).await?;
    let begun = env.now();
    write(machine, file, 0, bytes, CHUNK).await?;
    let seconds = env.now().since(begun).as_secs_f64();
    let unsent = machine.subject.unsent() as f64;
    machine.subject.drain().await.map_err(failed)?;
    Ok(Seen { seconds, drained: env.now().since(begun).as_secs_f64(), unsent })
}

/// Two clients write one file, one after the other.
async fn in_turns(env: &Env, machines: &Machines, turns: u64) -> Result<Seen, BenchError> {
    let shared = fill(&machines.clients[0], Ino::ROOT, "shared", FILL).await?;
    let mut own = Vec::new();
    for (number, machine) in machines.clients.iter().enumerate() {
        let directory = own_directory(&*machine.subject, &format!("d{number}")).await;
        let directory = directory.map_err(failed)?;
        own.push(fill(machine, directory, "f", FILL).await?);
    }
    settle(env, machines).await?;
    for machine in &machines.clients[1..] {
        machine.subject.find(Ino::ROOT, "shared", shared).await.map_err(failed)?;
    }
    let begun = env.now();
    for turn in 0..turns {
        let nth = turn as usize % machines.clients.len();
        let machine = &machines.clients[nth];
        write(machine, own[nth], 0, OWN, NAMED).await?;
        write(machine, shared, turn * PAGE % FILL, PAGE, PAGE).await?;
        machine.subject.sync(shared).await.map_err(failed)?;
    }
    let seconds = env.now().since(begun).as_secs_f64() / turns as f64;
    Ok(Seen { seconds, ..Seen::default() })
}

/// Two clients make files in one directory, at the same time.
async fn names(env: &Env, machines: &Machines, count: u64) -> Result<Seen, BenchError> {
    let directory = own_directory(&*machines.subject, "d").await.map_err(failed)?;
    settle(env, machines).await?;
    for machine in &machines.clients[1..] {
        machine.subject.find(Ino::ROOT, "d", directory).await.map_err(failed)?;
    }
    let threads = machines.clients.len();
    in_threads(env, threads, threads as u64 * count, |number, count| {
        let machine = machines.clients[number].clone();
        async move {
            let mut made = Vec::new();
            for nth in 0..count {
                let name = format!("c{number}-{nth}");
                machine.operation().await;
                let file = machine.subject.create(directory, &name).await.map_err(failed)?;
                write(&machine, file, 0, NAMED, NAMED).await?;
                made.push((name, file));
                if made.len() > KEPT {
                    let (name, file) = made.remove(0);
                    machine.operation().await;
                    machine.subject.unlink(directory, &name, file).await.map_err(failed)?;
                }
            }
            Ok(())
        }
    })
    .await
}

/// Threads overwrite parts of files of their own, and sync them.
struct Syncs {
    threads: usize,
    /// Bytes of a write.
    len: u64,
    count: u64,
    /// Seconds before each, on average.
    pause: Option<f64>,
}

impl Syncs {
    async fn run(self, env: &Env, machines: &Machines) -> Result<Seen, BenchError> {
        let Syncs { threads, len, count, pause } = self;
        let machine = &machines.clients[0];
        let directory = own_directory(&*machine.subject, "d").await.map_err(failed)?;
        let mut files = Vec::new();
        for number in 0..threads {
            files.push(fill(machine, directory, &format!("f{number}"), FILL).await?);
        }
        settle(env, machines).await?;
        let pauses = pause.map(|mean| Exp::new(1.0 / mean)).transpose().map_err(failed)?;
        let each = count.div_ceil(threads as u64);
        let running = files.into_iter().map(|file| {
            let (machine, own, mut rng) = (machine.clone(), env.clone(), env.rng());
            env.spawn(async move {
                let mut took = Duration::ZERO;
                for _ in 0..each {
                    if let Some(pauses) = &pauses {
                        own.sleep(Duration::from_secs_f64(pauses.sample(&mut rng))).await;
                    }
                    let begun = own.now();
                    let offset = rng.random_range(0..=(FILL - len) / PAGE) * PAGE;
                    write(&machine, file, offset, len, len).await?;
                    machine.subject.sync(file).await.map_err(failed)?;
                    took += own.now().since(begun);
                }
                Ok(took)
            })
        });
        let took: Duration = all(running.collect()).await?.into_iter().sum();
        let seconds = took.as_secs_f64() / (each * threads as u64) as f64;
        Ok(Seen { seconds, ..Seen::default() })
    }
}
