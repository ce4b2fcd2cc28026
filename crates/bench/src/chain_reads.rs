//! `chain-reads`: traces with reads, chained and striped (Gecko, 3.2.3).
//!
//! The most and the least cacheable mix of eight servers run as fast as possible, 24 requests of each
//! server at a time, on a chain of three mirrored pairs and on the same log over RAID-10, with the
//! same amount of SSD. The chain gives all of the SSD to the tail's cache, as a volume with one cache
//! device does: a cache miss at the tail stops the writers, a miss in the body does not. The paper
//! gave half of it to a cache of the body; that is measured too (`halves`). The body is full, and
//! 200 GB of the tail's 512 are filled before the measurement; all sizes are scaled down. Then chains
//! of two to seven drives are compared with RAID-0.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::{Cleaning, Options as ChainOptions};

use crate::plot::{Chart, Series, Shape};
use crate::replay::{self, Places, Played, Player};
use crate::rig::{self, Placement, Plan, Rig, SCRATCH, SEGMENT, mb_per_s, rounded};
use crate::{BenchEntry, BenchError, Options, Report, chain_cache, traces};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "chain-reads",
    about: "rate of traces with reads on a chain, against RAID-10 and RAID-0",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// The paper's sizes in bytes: a drive, RAM, and half of the SSD.
const DRIVE_BYTES: f64 = 512e9;
const RAM_BYTES: f64 = 2e9;
const SSD_BYTES: f64 = 32e9;
const DEFAULT_SCALE: f64 = 1.0 / 512.0;
/// Requests in flight of one server.
const WINDOW: usize = 24;
/// The share of the tail that is filled before the measurement.
const FILLED: f64 = 200.0 / 512.0;
/// Bytes written during the measurement at the full rate, as a share of a drive.
const MEASURED: f64 = 0.4;
/// Bytes per second of a drive.
const RATE: f64 = 120e6;
/// Live share of the body in runs with cleaning.
const CLEANED_VALID: f64 = 0.25;
const LENGTHS: std::ops::RangeInclusive<usize> = 2..=7;

/// One run.
#[derive(Clone, Debug)]
struct Case {
    placement: Placement,
    drives: usize,
    mirrored: bool,
    cleaning: bool,
    /// Whether half of the SSD caches the body.
    halves: bool,
    servers: Vec<usize>,
}

/// Rates in MB/s.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    read: f64,
    written: f64,
}

impl Rates {
    fn total(&self) -> f64 {
        self.read + self.written
    }
}

/// A chain, and the same log over a stripe of the same drives.
#[derive(Clone, Copy, Debug, Default)]
struct Twins {
    chained: Rates,
    striped: Rates,
}

impl Twins {
    fn total_ratio(&self) -> f64 {
        self.chained.total() / self.striped.total().max(1e-9)
    }

    fn write_ratio(&self) -> f64 {
        self.chained.written / self.striped.written.max(1e-9)
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let (most, least) = extreme_mixes(scale, options.seed);
    let measured = |case: Case| {
        let seed = options.seed;
        thalweg_sim::run(seed, |env| async move { measure(env, case, scale, seed).await })
    };
    let twins = |drives: usize, mirrored: bool, cleaning: bool, servers: &[usize]| {
        let case = |placement| {
            let servers = servers.to_vec();
            Case { placement, drives, mirrored, cleaning, halves: false, servers }
        };
        Ok::<Twins, BenchError>(Twins {
            chained: measured(case(Placement::Chained))?,
            striped: measured(case(Placement::Striped))?,
        })
    };
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale).figure("most_cacheable", most.clone());
    report.figure("least_cacheable", least.clone());
    let mut raid10 = Vec::new();
    for cleaning in [false, true] {
        for servers in [&most, &least] {
            raid10.push(twins(3, true, cleaning, servers)?);
        }
    }
    let mut halves = Vec::new();
    for (servers, twins) in [&most, &least].into_iter().zip(&raid10) {
        let placement = Placement::Chained;
        let servers = servers.clone();
        let case =
            Case { placement, drives: 3, mirrored: true, cleaning: false, halves: true, servers };
        halves.push(Twins { chained: measured(case)?, ..*twins });
    }
    let mut raid0 = Vec::new();
    for drives in LENGTHS {
        raid0.push(twins(drives, false, false, &most)?);
    }
    fill_report(&mut report, &raid10, &halves, &raid0);
    report.charts = charts(&raid10, &raid0);
    Ok(report)
}

/// The mixes of eight servers with the highest and the lowest hit rate at the tail.
fn extreme_mixes(scale: f64, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mixes: Vec<Vec<usize>> = traces::mixes().into_iter().filter(|mix| mix.len() == 8).collect();
    let rates = chain_cache::hit_rates(&mixes, scale, seed);
    let mut order: Vec<usize> = (0..mixes.len()).collect();
    order.sort_by(|a, b| rates[*b].total_cmp(&rates[*a]));
    let pick = |at: Option<&usize>| at.map_or_else(Vec::new, |at| mixes[*at].clone());
    (pick(order.first()), pick(order.last()))
}

fn plan(case: &Case, scale: f64) -> Plan {
    let blocks = |bytes: f64| ((bytes * scale / BLOCK_SIZE as f64) as u64).max(256);
    let drive_segments = (blocks(DRIVE_BYTES) / u64::from(SEGMENT)).max(16) as u32;
    let ssd = blocks(SSD_BYTES);
    let (tail_ssd, body_ssd) = if case.halves { (ssd, ssd) } else { (2 * ssd, 0) };
    let mut plan = Plan {
        placement: case.placement,
        drives: case.drives,
        mirrored: case.mirrored,
        standby: false,
        drive_segments,
        blocks: 0,
        cleaning: Cleaning::MoveToTail,
        tail_ssd,
        body_ssd,
        options: ChainOptions {
            tail_cache_blocks: blocks(RAM_BYTES) as usize,
            auto_clean: false,
            dirty_bytes: 8 << 20,
            tail_read_wait: rig::TAIL_READ_WAIT,
            ..ChainOptions::default()
        },
    };
    plan.blocks = SCRATCH + body_blocks(&plan, case) + room(&plan);
    plan
}

/// Blocks of log on all drives but the last.
fn body_log(plan: &Plan) -> u64 {
    let segments = (plan.drives as u64 - 1) * (u64::from(plan.drive_segments) - 1);
    segments * u64::from(SEGMENT)
}

/// Live blocks of the body.
fn body_blocks(plan: &Plan, case: &Case) -> u64 {
    match case.cleaning {
        true => (body_log(plan) as f64 * CLEANED_VALID) as u64,
        false => body_log(plan),
    }
}

/// Number of addresses for the blocks that the traces write.
fn room(plan: &Plan) -> u64 {
    plan.drive_blocks() / 2
}

async fn measure(env: Env, case: Case, scale: f64, seed: u64) -> Result<Rates, BenchError> {
    let plan = plan(&case, scale);
    let mut rig = Rig::build(&env, &plan).await?;
    let body = body_blocks(&plan, &case);
    fill_body(&mut rig, body, body_log(&plan) + 1, plan.blocks).await?;
    rig.sync().await?;
    let played = Arc::new(Played::default());
    let places = Arc::new(Places::new(body, room(&plan)));
    let players = Player::all(&case.servers, scale, seed, &rig.chain, &places, &played);
    let _playing = replay::start(&env, &players, WINDOW);
    let drive = plan.drive_blocks() as f64;
    while (played.now()?.1 as f64) < drive * FILLED {
        env.sleep(Duration::from_millis(20)).await;
    }
    let chain = rig.chain.clone();
    let cleaner = case.cleaning.then(|| {
        env.spawn(
            async move { while matches!(chain.clean(1).await, Ok(cleaned) if cleaned > 0) {} },
        )
    });
    if cleaner.is_some() {
        env.sleep(Duration::from_millis(500)).await;
    }
    let time = Duration::from_secs_f64(drive * BLOCK_SIZE as f64 / RATE * MEASURED);
    let before = played.now()?;
    env.sleep(time).await;
    let after = played.now()?;
    if cleaner.is_some_and(|cleaner| cleaner.is_finished()) {
        return Err(BenchError::Invalid("cleaning ended before the measurement did".to_owned()));
    }
    let seconds = time.as_secs_f64();
    Ok(Rates {
        read: mb_per_s(after.0 - before.0, seconds),
        written: mb_per_s(after.1 - before.1, seconds),
    })
}

/// Writes `log` blocks, of which `live` at random places stay live. Blocks that die have the last addresses.
async fn fill_body(rig: &mut Rig, live: u64, log: u64, blocks: u64) -> Result<(), BenchError> {
    let mut rng = rig.env.rng();
    let (mut next, mut left) = (0, log);
    rig.fill(log, |_| {
        let chosen = rng.random_range(0..left) < live - next;
        left -= 1;
        match chosen {
            true => {
                next += 1;
                next - 1
            }
            false => blocks - 1 - left % SCRATCH,
        }
    })
    .await
}

fn fill_report(report: &mut Report, raid10: &[Twins], halves: &[Twins], raid0: &[Twins]) {
    let names = ["most", "least", "most_cleaning", "least_cleaning"];
    for (name, twins) in names.iter().zip(raid10) {
        for (system, rates) in [("chain", twins.chained), ("raid10", twins.striped)] {
            report.figure(&format!("{system}_{name}_total_mb_s"), rounded(rates.total()));
            report.figure(&format!("{system}_{name}_write_mb_s"), rounded(rates.written));
        }
    }
    let least = |twins: &[Twins], ratio: fn(&Twins) -> f64| {
        rounded(twins.iter().map(ratio).fold(f64::INFINITY, f64::min))
    };
    let (still, cleaning) = raid10.split_at(raid10.len() / 2);
    report.figure("vs_raid10_total", least(still, Twins::total_ratio));
    report.figure("vs_raid10_write", least(still, Twins::write_ratio));
    report.figure("vs_raid10_total_halves", least(halves, Twins::total_ratio));
    report.figure("vs_raid10_write_halves", least(halves, Twins::write_ratio));
    report.figure("vs_raid10_total_cleaning", least(cleaning, Twins::total_ratio));
    report.figure("vs_raid10_write_cleaning", least(cleaning, Twins::write_ratio));
    for (drives, twins) in LENGTHS.zip(raid0) {
        report.figure(&format!("vs_raid0_at_{drives}"), rounded(twins.total_ratio()));
        report.figure(&format!("vs_raid0_write_at_{drives}"), rounded(twins.write_ratio()));
        report.figure(&format!("chain_at_{drives}_mb_s"), rounded(twins.chained.total()));
        report.figure(&format!("raid0_at_{drives}_mb_s"), rounded(twins.striped.total()));
    }
}

/// The applications' rates in MB/s during cleaning, from the paper: the most and the least cacheable
/// mix.
const PAPER_CLEANING: [[f64; 2]; 2] = [[33.0, 27.0], [13.0, 12.0]];

fn charts(raid10: &[Twins], raid0: &[Twins]) -> Vec<Chart> {
    let bars = |values: Vec<f64>| (0..).map(f64::from).zip(values).collect::<Vec<_>>();
    let (still, cleaning) = raid10.split_at(raid10.len() / 2);
    let ratios = still.iter().flat_map(|twins| [twins.total_ratio(), twins.write_ratio()]);
    let rates = |twins: &[Twins], pick: fn(&Twins) -> Rates| {
        twins.iter().map(pick).flat_map(|rates| [rates.total(), rates.written]).collect()
    };
    let totals = |pick: fn(&Twins) -> Rates| cleaning.iter().map(|t| pick(t).total()).collect();
    let line = |pick: fn(&Twins) -> f64| {
        LENGTHS.map(|length| length as f64).zip(raid0.iter().map(pick)).collect()
    };
    let mixes = "most cacheable mix: total, writes; least cacheable: total, writes";
    let chart = |title: &str, x: &str, y: &str, shape, series| Chart {
        title: title.to_owned(),
        x: x.to_owned(),
        y: y.to_owned(),
        shape,
        series,
    };
    vec![
        chart(
            "Figure 3.8: rates on three mirrored pairs",
            mixes,
            "MB/s",
            Shape::Bars,
            vec![
                Series::measured("chain", bars(rates(still, |twins| twins.chained))),
                Series::measured("log over RAID-10", bars(rates(still, |twins| twins.striped))),
            ],
        ),
        chart(
            "Figure 3.8: chain over RAID-10",
            mixes,
            "ratio",
            Shape::Bars,
            vec![
                Series::paper("paper, at least", bars(vec![2.0; 4])),
                Series::measured("here", bars(ratios.collect())),
            ],
        ),
        chart(
            "As figure 3.8, while cleaning",
            "most, least cacheable",
            "MB/s",
            Shape::Bars,
            vec![
                Series::paper("paper, chain", bars(PAPER_CLEANING[0].to_vec())),
                Series::measured("chain", bars(totals(|twins| twins.chained))),
                Series::paper("paper, RAID-10", bars(PAPER_CLEANING[1].to_vec())),
                Series::measured("log over RAID-10", bars(totals(|twins| twins.striped))),
            ],
        ),
        chart(
            "Figure 3.9: length of the chain",
            "drives",
            "MB/s",
            Shape::Lines,
            vec![
                Series::measured("chain", line(|twins| twins.chained.total())),
                Series::measured("chain, writes", line(|twins| twins.chained.written)),
                Series::measured("log over RAID-0", line(|twins| twins.striped.total())),
                Series::measured("log over RAID-0, writes", line(|twins| twins.striped.written)),
            ],
        ),
        chart(
            "Figure 3.9: chain over RAID-0",
            "drives",
            "ratio",
            Shape::Lines,
            vec![
                Series::paper("paper, above", LENGTHS.map(|length| (length as f64, 1.0)).collect()),
                Series::measured("total", line(Twins::total_ratio)),
                Series::measured("writes", line(Twins::write_ratio)),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_reads_and_writes_faster_than_a_stripe_of_mirrors() {
        let rates = |placement| {
            let servers = traces::mixes()[0].clone();
            let case = Case {
                placement,
                drives: 3,
                mirrored: true,
                cleaning: false,
                halves: false,
                servers,
            };
            thalweg_sim::run(1, |env| async move { measure(env, case, 1e-3, 1).await }).unwrap()
        };
        let (chained, striped) = (rates(Placement::Chained), rates(Placement::Striped));
        assert!(striped.read > 0.0 && striped.written > 0.0);
        assert!(chained.total() > striped.total(), "{chained:?} {striped:?}");
    }
}
