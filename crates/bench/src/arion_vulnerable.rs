//! `arion-vulnerable`: what a power cut of a client would lose (figure 6.1; virtual time).
//!
//! The load is the file server of Filebench with its usual parameters, for two minutes on 10,000 files as in chapter 6: 50 threads; each creates
//! a file and writes it (128 KiB on average), appends 16 KiB on average to one, reads one, removes one, and gets the attributes of one. Nothing is
//! synced. Sizes have a gamma distribution (shape 1.5). The files scale alone.
//!
//! Our client has a journal, and puts into it what is a second old. The other one is the model of Ceph in `ceph_model`. The bytes that only the volatile
//! memory of the client has are counted at random times, twice in a second on average.
//!
//! The thesis does not say at which rate its threads worked. The 24.3 MB of its Ceph, which keeps bytes for some 30 s, speak for 0.8 MB in a second, which six
//! rounds write. So a thread pauses between two rounds, with an exponential distribution, and both systems get the same load; `ceph_vulnerable_mb`
//! is near the thesis for that reason, and the ratio is the measurement. The rate does not scale. An operation takes 25 µs of one of two processors.
//!
//! | figure | meaning |
//! |---|---|
//! | `vulnerable_mb`, `ceph_vulnerable_mb` | megabytes, on average |
//! | `vulnerable_over_ceph` | one over the other |
//! | `vulnerable_seconds`, `ceph_vulnerable_seconds` | the same over the bytes that were written in a second |
//! | `loops_per_second`, `ceph_loops_per_second` | rounds of all threads |
//! | `below_aim` | the figures that miss their aims |

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand_distr::{Distribution, Exp};
use thalweg_env::{Env, Rng, Time};

use crate::arion_files::{File, FileSet, size};
use crate::arion_machines::{ARION, Machines, Plan, System};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-vulnerable",
    about: "what a power cut of a client with a journal would lose",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const FILES: f64 = 10_000.0;
const THREADS: usize = 50;
const SECONDS: u64 = 120;
/// Files in a directory.
const WIDTH: usize = 20;
/// Mean bytes of a file, and of an append.
const FILE: f64 = 131_072.0;
const APPEND: f64 = 16_384.0;
/// The most bytes of one request.
const IO: usize = 1 << 20;
/// Rounds of all threads in a second.
const ROUNDS: f64 = 6.0;
/// Looks in a second.
const LOOKS: f64 = 2.0;

/// What is aimed at: a figure, and its highest value.
const AIM: (&str, f64) = ("vulnerable_over_ceph", 0.055);
/// Megabytes of figure 6.1, on average: Ceph's and Arion's.
const PAPER: [f64; 2] = [24.3, 5.4];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.2)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let seen = rig::on_all_processors(&[System::Ceph, ARION], |system| {
        let system = *system;
        thalweg_sim::run(options.seed, move |env| measure(env, system, scale))
    })?;
    for (prefix, seen) in ["ceph_", ""].iter().zip(&seen) {
        report
            .figure(&format!("{prefix}vulnerable_mb"), rounded(seen.vulnerable / 1e6))
            .figure(
                &format!("{prefix}vulnerable_seconds"),
                rounded(seen.vulnerable / seen.written_per_second),
            )
            .figure(&format!("{prefix}loops_per_second"), rounded(seen.loops));
    }
    let over = seen[1].vulnerable / seen[0].vulnerable;
    report.figure(AIM.0, rounded(over));
    report.figure("below_aim", f64::from(u8::from(over > AIM.1 + 5e-4)));
    let line = |seen: &Seen| seen.looks.iter().map(|(at, bytes)| (*at, bytes / 1e6)).collect();
    let flat = |mb| vec![(0.0, mb), (SECONDS as f64, mb)];
    report.charts = vec![Chart {
        title: "Figure 6.1: dirty data in volatile memory alone".to_owned(),
        x: "seconds".to_owned(),
        y: "MB".to_owned(),
        shape: Shape::Lines,
        series: vec![
            Series::paper("thesis: Ceph, on average", flat(PAPER[0])),
            Series::paper("thesis: Arion, on average", flat(PAPER[1])),
            Series::measured("model of Ceph", line(&seen[0])),
            Series::measured("with a journal", line(&seen[1])),
        ],
    }];
    Ok(report)
}

struct Seen {
    vulnerable: f64,
    written_per_second: f64,
    loops: f64,
    /// Seconds, and bytes.
    looks: Vec<(f64, f64)>,
}

struct Server {
    machines: Machines,
    files: FileSet,
    /// Loops, and bytes that were written.
    counts: Mutex<(u64, u64)>,
}

impl Server {
    async fn make(&self, rng: &mut Rng) -> Result<(), BenchError> {
        let mut file = self.files.make(&*self.machines.subject).await?;
        self.append(&mut file, size(FILE, rng)).await?;
        self.files.put(file);
        Ok(())
    }

    async fn append(&self, file: &mut File, bytes: usize) -> Result<(), BenchError> {
        for start in (0..bytes).step_by(IO) {
            let len = (bytes - start).min(IO);
            self.machines.subject.write(file.ino, file.size, len).await.map_err(failed)?;
            file.size += len as u64;
            self.counts.lock().1 += len as u64;
        }
        Ok(())
    }

    async fn work(&self, rng: &mut Rng) -> Result<(), BenchError> {
        let Server { machines, .. } = self;
        let subject = &machines.subject;
        machines.operation().await;
        self.make(rng).await?;
        machines.operation().await;
        if let Some(mut file) = self.files.take(rng) {
            self.append(&mut file, size(APPEND, rng)).await?;
            self.files.put(file);
        }
        machines.operation().await;
        if let Some(file) = self.files.take(rng) {
            for start in (0..file.size).step_by(IO) {
                let len = (file.size - start).min(IO as u64) as usize;
                subject.read(file.ino, start, len).await.map_err(failed)?;
            }
            self.files.put(file);
        }
        machines.operation().await;
        if let Some(file) = self.files.take(rng) {
            subject.unlink(file.directory, &file.name, file.ino).await.map_err(failed)?;
        }
        // Attributes are cached, or the client's own.
        machines.operation().await;
        self.counts.lock().0 += 1;
        Ok(())
    }
}

async fn measure(env: Env, system: System, scale: f64) -> Result<Seen, BenchError> {
    let machines = Machines::start(&env, system, &Plan::local(1.0)).await?;
    let mut rng = env.rng();
    let count = ((FILES * scale) as usize).max(THREADS + 1);
    let files = FileSet::new(&*machines.subject, count.div_ceil(WIDTH)).await?;
    let server = Arc::new(Server { machines, files, counts: Mutex::default() });
    for _ in 0..count {
        server.make(&mut rng).await?;
    }
    server.machines.subject.drain().await.map_err(failed)?;
    server.machines.subject.forget_pages();
    let (begun, before) = (env.now(), *server.counts.lock());
    let end = begun + Duration::from_secs(SECONDS);
    let threads = (0..THREADS).map(|_| {
        let (server, mut rng, own) = (server.clone(), env.rng(), env.clone());
        env.spawn(async move {
            let pauses = Exp::new(ROUNDS / THREADS as f64).map_err(failed)?;
            loop {
                own.sleep(Duration::from_secs_f64(pauses.sample(&mut rng))).await;
                if own.now() >= end {
                    return Ok(());
                }
                server.work(&mut rng).await?;
            }
        })
    });
    let threads = threads.collect();
    let looks = look(&env, &server, (begun, end), &mut rng).await?;
    let (loops, written) = *server.counts.lock();
    all(threads).await?;
    let seconds = SECONDS as f64;
    let vulnerable = looks.iter().map(|(_, bytes)| bytes).sum::<f64>() / looks.len() as f64;
    Ok(Seen {
        vulnerable,
        written_per_second: (written - before.1) as f64 / seconds,
        loops: (loops - before.0) as f64 / seconds,
        looks,
    })
}

/// What is vulnerable at random times.
async fn look(
    env: &Env,
    server: &Server,
    (begun, end): (Time, Time),
    rng: &mut Rng,
) -> Result<Vec<(f64, f64)>, BenchError> {
    let gaps = Exp::new(LOOKS).map_err(failed)?;
    let mut looks = Vec::new();
    loop {
        let next = env.now() + Duration::from_secs_f64(gaps.sample(rng));
        if next >= end {
            env.sleep_until(end).await;
            return Ok(looks);
        }
        env.sleep_until(next).await;
        let at = env.now().since(begun).as_secs_f64();
        looks.push((at, server.machines.subject.vulnerable() as f64));
    }
}
