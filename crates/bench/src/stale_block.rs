//! `stale-block`: reads of old versions on a node that follows a primary (Yogurt 5.4.1, figure 5.3; virtual time).
//!
//! Three disks hold a log that goes from disk to disk when a segment is full; a segment has room for one version of all blocks.
//! A stream of writes from the primary goes to the log as fast as the disks take it: one version of all blocks after the other
//! (`random_stream`: blocks as the clients draw them). Eight clients read and write nine to one, uniformly or by Zipf's law,
//! without and with a cache in memory, each in a session of its own. `N_back` allows a content that
//! at most N later writes of the block have replaced.
//!
//! | figure of a load | meaning |
//! |---|---|
//! | `newest_local` | mean latency of reads of the newest content on this node, in ms |
//! | `primary` | the same from a primary under this load, 100 ms away |
//! | `mr_N_back`, `rmw_N_back` | of the cheapest content that monotonic reads, or reads of the client's own writes, allow |
//! | `oracle_N_back` | the same as `mr`, chosen by when each disk will have served the read, which it says itself |
//! | `blind_N_back` | the same, without the angles of the platters |

pub(crate) mod node;

use std::time::Duration;

use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, rounded};
use crate::steady_sim::addresses::Load;
use crate::{BenchEntry, BenchError, Options, Report};
use node::{Case, Drives, Layout, Reader, Stream, read_latency};
use thalweg_store::stale::Guarantee;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "stale-block",
    about: "latency of reads that may be old, on disks that are written",
    clock: crate::Clock::Virtual,
    loads: || LOADS.iter().map(|(load, is_cached)| load_name(*load, *is_cached)).collect(),
    traces: false,
    run,
};

/// The benchmark of tiers in the list.
pub const TIERS: BenchEntry = BenchEntry {
    name: "stale-tiers",
    about: "latency of reads that may be old, on memory, a solid-state drive and a disk",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run: run_tiers,
};

/// Blocks at scale 1, and blocks of memory for the cache: 1 GiB and 256 MiB.
const BLOCKS: f64 = 262_144.0;
const CACHE: f64 = 65_536.0;
const DEFAULT_SCALE: f64 = 1.0 / 4.0;
/// Versions of all blocks before the clients begin.
const PASSES: u64 = 10;
const BACK: std::ops::RangeInclusive<u64> = 0..=9;
/// There and back, to the primary.
const AWAY_MS: f64 = 100.0;
const SPAN: Duration = Duration::from_secs(10);
const LOADS: [(Load, bool); 4] =
    [(Load::Uniform, false), (Load::Zipf, false), (Load::Uniform, true), (Load::Zipf, true)];

fn load_name(load: Load, is_cached: bool) -> String {
    format!("{}_{}", load.name(), if is_cached { "cached" } else { "uncached" })
}

fn monotonic(back: u64) -> Guarantee {
    Guarantee { max_updates: Some(back), ..Guarantee::MONOTONIC_READS }
}

fn own_writes(back: u64) -> Guarantee {
    Guarantee { max_updates: Some(back), ..Guarantee::READ_MY_WRITES }
}

/// A reader with a guarantee.
type Choice = fn(Guarantee) -> Reader;
/// Latencies by versions back.
type Curve = Vec<(f64, f64)>;

/// The latencies of one load, in ms.
struct Latencies {
    newest: f64,
    monotonic: Curve,
    own_writes: Curve,
}

fn at(curve: &Curve, back: u64) -> f64 {
    curve.iter().find(|(of, _)| *of == back as f64).map_or(f64::NAN, |(_, ms)| *ms)
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    for (load, is_cached) in LOADS {
        let name = load_name(load, is_cached);
        if !options.runs(&name) {
            continue;
        }
        let case = |reader| Case {
            layout: Layout {
                drives: Drives::Disks,
                blocks: (BLOCKS * scale) as u32,
                cache: if is_cached { (CACHE * scale) as usize } else { 0 },
            },
            load,
            stream: Stream::Passes,
            reader,
            span: SPAN,
            seed: options.seed,
        };
        let curve = |guarantee: fn(u64) -> Guarantee| -> Result<Curve, BenchError> {
            let read = |back| {
                let latency = read_latency(case(Reader::Cheapest(guarantee(back))), PASSES)?;
                Ok((back as f64, latency))
            };
            BACK.map(read).collect()
        };
        let newest = read_latency(case(Reader::Newest), PASSES)?;
        let all =
            Latencies { newest, monotonic: curve(monotonic)?, own_writes: curve(own_writes)? };
        report_load(&mut report, &name, &all);
        if (load, is_cached) == LOADS[0] {
            for back in [1, 3] {
                let ratio = at(&all.monotonic, back) / newest;
                report.figure(&format!("ours_{back}_back_over_newest_local"), rounded(ratio));
            }
            let random =
                |reader| read_latency(Case { stream: Stream::Random, ..case(reader) }, PASSES);
            report.figure("random_stream_newest_local", rounded(random(Reader::Newest)?));
            for back in [1, 3] {
                let ms = random(Reader::Cheapest(monotonic(back)))?;
                report.figure(&format!("random_stream_mr_{back}_back"), rounded(ms));
            }
            let choosers: [(&str, Choice); 2] =
                [("oracle", Reader::Oracle), ("blind", Reader::Blind)];
            for (chooser, reader) in choosers {
                let mut worst: f64 = 0.0;
                for back in [1, 3, 9] {
                    let latency = read_latency(case(reader(monotonic(back))), PASSES)?;
                    report.figure(&format!("{name}_{chooser}_{back}_back"), rounded(latency));
                    worst = worst.max(at(&all.monotonic, back) / latency);
                }
                report.figure(&format!("{chooser}_ratio"), rounded(worst));
            }
        }
    }
    Ok(report)
}

fn report_load(report: &mut Report, name: &str, all: &Latencies) {
    report.figure(&format!("{name}_newest_local"), rounded(all.newest));
    report.figure(&format!("{name}_primary"), rounded(all.newest + AWAY_MS));
    for (who, curve) in [("mr", &all.monotonic), ("rmw", &all.own_writes)] {
        for (back, ms) in curve {
            report.figure(&format!("{name}_{who}_{back}_back"), rounded(*ms));
        }
    }
    let flat = |ms: f64| BACK.map(|back| (back as f64, ms)).collect();
    report.charts.push(Chart {
        title: format!("Latency of reads, {}", name.replace('_', ", ")),
        x: "versions back".to_owned(),
        y: "ms".to_owned(),
        shape: Shape::Lines,
        series: vec![
            Series::measured("primary", flat(all.newest + AWAY_MS)),
            Series::measured("newest local", flat(all.newest)),
            Series::measured("monotonic reads", all.monotonic.clone()),
            Series::measured("read my writes", all.own_writes.clone()),
        ],
    });
}

fn run_tiers(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(TIERS.name, options.seed);
    report.figure("scale", scale);
    let case = |reader| Case {
        layout: Layout {
            drives: Drives::Tiers,
            blocks: (BLOCKS * scale) as u32,
            cache: (CACHE * scale / 4.0) as usize,
        },
        load: Load::Uniform,
        stream: Stream::Passes,
        reader,
        span: SPAN,
        seed: options.seed,
    };
    let newest = read_latency(case(Reader::Newest), PASSES)?;
    report.figure("newest_local", rounded(newest));
    for back in [0, 1, 2, 3, 4] {
        let ours = read_latency(case(Reader::Cheapest(monotonic(back))), PASSES)?;
        report.figure(&format!("mr_{back}_back"), rounded(ours));
        report.figure(&format!("newest_local_over_ours_{back}_back"), rounded(newest / ours));
    }
    Ok(report)
}
