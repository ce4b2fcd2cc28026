//! `okeanos-parallel`: the server side of parallel programs that write checkpoints, each process to a
//! file of its own (Okeanos 5.2.4, figures 5.5 and 5.6).

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_fs::{Ino, WriteAt};
use thalweg_store::inplace::Mode;

use super::rig::{Caches, Plan, Rig, Traffic, bytes};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, all, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "okeanos-parallel",
    about: "throughput and traffic of many processes that write a file each, in every mode",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const DEFAULT_SCALE: f64 = 0.1;
const PROCESSES: [usize; 3] = [52, 208, 520];
/// Bytes of a write, and the writes of all processes together at scale 1. The paper has 65,000 of each; that many small
/// ones are made at the default scale, since of fewer a rotation of the disk is too large a part.
const SIZES: [(usize, f64); 2] = [(1024, 650_000.0), (47_001, 65_000.0)];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    for (size, writes) in SIZES {
        let (mut series, mut journal, mut home) = (Vec::new(), Vec::new(), Vec::new());
        for (nth, mode) in Mode::ALL.into_iter().enumerate() {
            let mut points = Vec::new();
            for processes in PROCESSES {
                let outcome = thalweg_sim::run(options.seed, |env| async move {
                    measure(&env, mode, processes, size, (writes * scale) as usize).await
                })?;
                let name = |figure: &str| format!("{mode}_{size}_{processes}_{figure}");
                let mb = |bytes: u64| rounded(bytes as f64 / 1e6);
                report.figure(&name("mb_s"), rounded(outcome.rate));
                report.figure(&name("journal_mb"), mb(outcome.traffic.journal));
                report.figure(&name("home_mb"), mb(outcome.traffic.home()));
                points.push((processes as f64, outcome.rate));
                if Some(&processes) == PROCESSES.last() {
                    journal.push((nth as f64, mb(outcome.traffic.journal)));
                    home.push((nth as f64, mb(outcome.traffic.home())));
                }
            }
            series.push(Series::measured(mode.name(), points));
        }
        let worst = |a: &str, b: &str, figure: &str, pick: fn(f64, f64) -> f64| {
            let of = |mode: &str, processes| {
                report.number(&format!("{mode}_{size}_{processes}_{figure}")).unwrap_or(0.0)
            };
            let ratios = PROCESSES.map(|processes| of(a, processes) / of(b, processes).max(1e-9));
            ratios.into_iter().reduce(pick).unwrap_or(0.0)
        };
        let faster = worst("wasteless", "ordered", "mb_s", f64::min);
        let smaller = worst("wasteless", "data", "journal_mb", f64::max);
        report.figure(&format!("{size}_wasteless_over_ordered"), rounded(faster));
        report.figure(&format!("{size}_journal_wasteless_over_data"), rounded(smaller));
        report.charts.push(Chart {
            title: format!("5.5: throughput of writes of {size} bytes"),
            x: "processes".to_owned(),
            y: "MB/s".to_owned(),
            shape: Shape::Lines,
            series,
        });
        let mut traffic =
            vec![Series::measured("journal", journal), Series::measured("filesystem", home)];
        if size == SIZES[0].0 {
            // In the order of modes here; the paper did not measure writeback.
            let paper = |points: &[(f64, f64)]| points.to_vec();
            traffic.push(Series::paper(
                "journal, paper",
                paper(&[(1.0, 139.0), (2.0, 415.0), (3.0, 240.7), (4.0, 240.7)]),
            ));
            traffic.push(Series::paper("filesystem, paper", paper(&[(1.0, 255.0)])));
        }
        report.charts.push(Chart {
            title: format!("5.6: traffic of writes of {size} bytes"),
            x: Mode::ALL.map(Mode::name).join(", "),
            y: "MB".to_owned(),
            shape: Shape::Bars,
            series: traffic,
        });
    }
    Ok(report)
}

struct Outcome {
    /// MB/s.
    rate: f64,
    traffic: Traffic,
}

async fn measure(
    env: &Env,
    mode: Mode,
    processes: usize,
    size: usize,
    writes: usize,
) -> Result<Outcome, BenchError> {
    let rig = Rig::build(env, Plan::new(mode, Caches::Loose)).await?;
    let mut rng = env.rng();
    let mut files = Vec::new();
    for process in 0..processes {
        let folder = rig.mkdir(Ino::ROOT, &format!("rank{process}")).await?;
        files.push(rig.create(folder, "checkpoint", 0, &mut rng).await?);
    }
    rig.settle().await?;
    let (before, begun) = (rig.traffic(), env.now());
    let (rig, left) = (Arc::new(rig), Arc::new(Mutex::new(writes)));
    let clients = files.into_iter().map(|file| {
        let (rig, left, mut rng) = (rig.clone(), left.clone(), env.rng());
        env.spawn(async move {
            loop {
                {
                    let mut left = left.lock();
                    if *left == 0 {
                        return Ok(());
                    }
                    *left -= 1;
                }
                rig.write(file, WriteAt::End, bytes(&mut rng, size), true).await?;
            }
        })
    });
    all(clients.collect()).await?;
    let seconds = env.now().since(begun).as_secs_f64();
    rig.settle().await?;
    let rate = (writes * size) as f64 / 1e6 / seconds.max(1e-9);
    Ok(Outcome { rate, traffic: rig.traffic().since(before) })
}
