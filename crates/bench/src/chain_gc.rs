//! `chain-gc`: the rate of user writes while the volume is cleaned (Gecko, 3.2.1).
//!
//! One drive's share of the log holds long-lived blocks: all of them stay live, or every second one at
//! random. The other drive takes random writes of 4 KiB from several writers, whose blocks only
//! replace each other. Cleaning begins midway. The same code also runs over a stripe of both drives,
//! and the same writes go in place to a stripe. The rate is measured while cleaning runs, after a
//! short time in which the queue fills with the blocks that cleaning moves.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Task, Time};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_store::block::{BLOCK_SIZE, BlocksExt};
use thalweg_store::chain::{Chain, Cleaning, Options as ChainOptions};
use thalweg_store::device::{DeviceRef, Purpose, Stripe};

use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, Placement, Plan, Rig, SCRATCH, SEGMENT, failed, mb_per_s, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "chain-gc",
    about: "rate of random writes while the volume is cleaned, chained and striped",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes on a drive of the paper.
const DRIVE_BYTES: f64 = 600e9;
const DEFAULT_SCALE: f64 = 1.0 / 256.0;
/// Sequential rate of a drive in bytes per second.
const RATE: f64 = 120e6;
const WRITERS: u64 = 4;
const WRITES_IN_FLIGHT: u64 = 16;
/// Samples of the rate before and during cleaning.
const SAMPLES: [usize; 2] = [8, 24];
/// The phases, as shares of the time in which a drive is filled: until the rate is steady, before
/// cleaning, until cleaning is steady, and cleaning.
const PHASES: [f64; 4] = [0.05, 0.15, 0.05, 0.35];

/// One chain, and the fill of its body.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    placement: Placement,
    cleaning: Cleaning,
    /// The share of the body that is live.
    valid: f64,
}

const fn case(name: &'static str, placement: Placement, cleaning: Cleaning, valid: f64) -> Case {
    Case { name, placement, cleaning, valid }
}

const CASES: [Case; 6] = [
    case("mtt_50", Placement::Chained, Cleaning::MoveToTail, 0.5),
    case("mtt_100", Placement::Chained, Cleaning::MoveToTail, 1.0),
    case("cib_50", Placement::Chained, Cleaning::CompactInBody, 0.5),
    case("cib_100", Placement::Chained, Cleaning::CompactInBody, 1.0),
    case("log_raid0_50", Placement::Striped, Cleaning::MoveToTail, 0.5),
    case("log_raid0_100", Placement::Striped, Cleaning::MoveToTail, 1.0),
];

/// Rates in MB/s over one sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    second: f64,
    users: f64,
    moved: f64,
}

#[derive(Clone, Debug)]
struct Outcome {
    /// User writes in MB/s before cleaning, and during it.
    before: f64,
    users: f64,
    /// MB/s that cleaning moved, and MB/s that it cleaned.
    moved: f64,
    cleaned: f64,
    /// Seconds of the tail's drives during cleaning: on reads, and on seeks and rotation of writes.
    nonwrite: f64,
    positioning: f64,
    samples: Vec<Sample>,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let segment_bytes = f64::from(SEGMENT) * BLOCK_SIZE as f64;
    let drive_segments = ((DRIVE_BYTES * scale / segment_bytes) as u32).max(16);
    let mut outcomes = Vec::new();
    for case in CASES {
        let measured = thalweg_sim::run(options.seed, |env| async move {
            measure(env, case, drive_segments).await
        });
        outcomes.push(measured?);
    }
    let in_place =
        thalweg_sim::run(
            options.seed,
            |env| async move { write_in_place(&env, drive_segments).await },
        )?;
    Ok(report(options, scale, &outcomes, in_place))
}

fn plan(case: Case, drive_segments: u32) -> Plan {
    let drive = u64::from(drive_segments) * u64::from(SEGMENT);
    Plan {
        placement: case.placement,
        drives: 2,
        mirrored: false,
        standby: false,
        drive_segments,
        blocks: drive + SCRATCH + written_span(drive),
        cleaning: case.cleaning,
        tail_ssd: drive / 64,
        body_ssd: 0,
        options: ChainOptions {
            tail_cache_blocks: 4096,
            auto_clean: false,
            dirty_bytes: 32 << 20,
            tail_read_wait: rig::TAIL_READ_WAIT,
            ..ChainOptions::default()
        },
    }
}

/// Number of addresses that writers use.
fn written_span(drive: u64) -> u64 {
    drive / 4
}

async fn measure(env: Env, case: Case, drive_segments: u32) -> Result<Outcome, BenchError> {
    let plan = plan(case, drive_segments);
    let mut rig = Rig::build(&env, &plan).await?;
    let drive = plan.drive_blocks();
    fill_body(&mut rig, case.valid, drive - u64::from(SEGMENT) + 1).await?;
    rig.sync().await?;
    let fill_time = drive as f64 * BLOCK_SIZE as f64 / RATE;
    let phase = |nth: usize| Duration::from_secs_f64(fill_time * PHASES[nth]);
    let first = drive + SCRATCH;
    let _writers = start_writers(&env, &rig.chain, first, written_span(drive));
    let start = env.now();
    env.sleep(phase(0)).await;
    let mut meter = Meter::new(&rig, start);
    meter.samples(phase(1), SAMPLES[0]).await;
    let before = mean(&meter.samples, |sample| sample.users);
    let chain = rig.chain.clone();
    let cleaner = env
        .spawn(async move { while matches!(chain.clean(1).await, Ok(cleaned) if cleaned > 0) {} });
    let tail = rig.tail();
    let busy = rig.busy(tail);
    meter.samples(phase(2), SAMPLES[1] / 8).await;
    let (steady, steady_from) = (meter.samples.len(), meter.counts());
    meter.samples(phase(3), SAMPLES[1]).await;
    if cleaner.is_finished() {
        return Err(BenchError::Invalid("cleaning ended before the measurement did".to_owned()));
    }
    let (nonwrite, positioning) = rig.disturbance(tail, &busy);
    let samples = &meter.samples[steady..];
    let segments = meter.counts().2 - steady_from.2;
    Ok(Outcome {
        before,
        users: mean(samples, |sample| sample.users),
        moved: mean(samples, |sample| sample.moved),
        cleaned: mb_per_s(segments * u64::from(SEGMENT), phase(3).as_secs_f64()),
        nonwrite,
        positioning,
        samples: meter.samples,
    })
}

/// Writes `count` blocks of log of which the share `valid` stays live, at random places.
async fn fill_body(rig: &mut Rig, valid: f64, count: u64) -> Result<(), BenchError> {
    let mut rng = rig.env.rng();
    let (mut next, mut dead) = (SCRATCH, 0);
    rig.fill(count, |_| {
        if rng.random_bool(valid) {
            next += 1;
            next - 1
        } else {
            dead += 1;
            dead % SCRATCH
        }
    })
    .await
}

/// Starts writers of random blocks among the `span` addresses from `first` on; dropping them stops them.
fn start_writers(env: &Env, chain: &Arc<Chain>, first: u64, span: u64) -> Vec<Task<()>> {
    let write = |nth: u64| {
        let (chain, mut rng) = (chain.clone(), env.rng());
        env.spawn(async move {
            let mut stamp = nth << 32;
            loop {
                let lba = first + rng.random_range(0..span);
                if chain.apply(vec![rig::block(lba, stamp)]).await.is_err() {
                    return;
                }
                stamp += 1;
            }
        })
    };
    (0..WRITERS * WRITES_IN_FLIGHT).map(write).collect()
}

/// Samples rates from the chain's counters.
struct Meter<'a> {
    rig: &'a Rig,
    start: Time,
    samples: Vec<Sample>,
}

impl<'a> Meter<'a> {
    fn new(rig: &'a Rig, start: Time) -> Meter<'a> {
        Meter { rig, start, samples: Vec::new() }
    }

    /// Blocks that reached the drives for users and for cleaning, and segments cleaned.
    fn counts(&self) -> (u64, u64, u64) {
        let status = self.rig.chain.status();
        let written = |purpose| {
            let links = status.links.iter().map(|link| link.io.of(purpose).write_bytes);
            links.sum::<u64>() / BLOCK_SIZE as u64
        };
        (written(Purpose::UserData), written(Purpose::Cleaning), status.counts.segments_cleaned)
    }

    async fn samples(&mut self, time: Duration, count: usize) {
        let each = time / count as u32;
        for _ in 0..count {
            let before = self.counts();
            self.rig.env.sleep(each).await;
            let after = self.counts();
            let seconds = each.as_secs_f64();
            self.samples.push(Sample {
                second: self.rig.env.now().since(self.start).as_secs_f64() - seconds / 2.0,
                users: mb_per_s(after.0 - before.0, seconds),
                moved: mb_per_s(after.1 - before.1, seconds),
            });
        }
    }
}

fn mean(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    samples.iter().map(value).sum::<f64>() / samples.len().max(1) as f64
}

/// The same writes, each in place on a stripe of both drives; in MB/s.
async fn write_in_place(env: &Env, drive_segments: u32) -> Result<f64, BenchError> {
    const SECONDS: u64 = 5;
    let size = u64::from(drive_segments) * u64::from(SEGMENT) * BLOCK_SIZE as u64;
    let disk = |name: &str| -> DeviceRef {
        Arc::new(HardDisk::new(env, name, HardDiskSpec::sas_10k(size)))
    };
    let drives = vec![disk("disk0"), disk("disk1")];
    let stripe: DeviceRef = Arc::new(Stripe::new(drives, 64 * 1024).map_err(failed)?);
    let blocks = stripe.geometry().size / BLOCK_SIZE as u64;
    let write = |_| {
        let (stripe, mut rng) = (stripe.clone(), env.rng());
        env.spawn(async move {
            loop {
                let block = rng.random_range(0..blocks);
                let content = rig::content(block, 0);
                let at = block * BLOCK_SIZE as u64;
                if stripe.write(at, vec![content], Purpose::UserData).await.is_err() {
                    return;
                }
            }
        })
    };
    let _writers: Vec<Task<()>> = (0..WRITERS * WRITES_IN_FLIGHT).map(write).collect();
    env.sleep(Duration::from_secs(1)).await;
    // The stripe counts a request when it starts; the number in flight is the same at both ends.
    let before = stripe.tallies().of(Purpose::UserData).writes;
    env.sleep(Duration::from_secs(SECONDS)).await;
    let written = stripe.tallies().of(Purpose::UserData).writes - before;
    Ok(mb_per_s(written, SECONDS as f64))
}

fn report(options: &Options, scale: f64, outcomes: &[Outcome], in_place: f64) -> Report {
    let mut report = Report::new(ENTRY.name, options.seed);
    let chained =
        || CASES.iter().zip(outcomes).filter(|(case, _)| case.placement == Placement::Chained);
    let sequential =
        chained().map(|(_, outcome)| outcome.before).sum::<f64>() / chained().count() as f64;
    report.figure("scale", scale).figure("tail_sequential_mb_s", rounded(sequential));
    for (case, outcome) in CASES.iter().zip(outcomes) {
        let name = case.name;
        report.figure(&format!("{name}_mb_s"), rounded(outcome.users));
        report.figure(&format!("{name}_moved_mb_s"), rounded(outcome.moved));
        report.figure(&format!("{name}_cleaned_mb_s"), rounded(outcome.cleaned));
        report.figure(&format!("{name}_before_mb_s"), rounded(outcome.before));
    }
    report.figure("in_place_raid0_mb_s", rounded(in_place));
    let sum =
        |value: fn(&Outcome) -> f64| chained().map(|(_, outcome)| value(outcome)).sum::<f64>();
    report.figure("tail_busy_nonwrite_s", rounded(sum(|outcome| outcome.nonwrite)));
    report.figure("tail_write_positioning_s", rounded(sum(|outcome| outcome.positioning)));
    report.charts = charts(outcomes);
    report
}

/// Rates in MB/s during cleaning, from the paper's figures.
const PAPER: [(&str, f64); 4] =
    [("mtt_50", 60.0), ("mtt_100", 60.0), ("log_raid0_50", 10.0), ("log_raid0_100", 40.0)];

fn charts(outcomes: &[Outcome]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (name, paper) in PAPER {
        let Some((case, outcome)) = CASES.iter().zip(outcomes).find(|(case, _)| case.name == name)
        else {
            continue;
        };
        let dead = (1.0 - case.valid) * 100.0;
        let what = match case.placement {
            Placement::Chained => "chain",
            Placement::Striped => "log over RAID-0",
        };
        let title = format!("Figure 3.3: {what}, {dead:.0}% of the body trimmed");
        charts.push(chart(title, outcome, paper));
    }
    if let Some((_, outcome)) = CASES.iter().zip(outcomes).find(|(case, _)| case.name == "cib_50") {
        let title = "Figure 3.4: chain, compact-in-body, 50% of the body trimmed".to_owned();
        charts.push(chart(title, outcome, 120.0));
    }
    charts
}

fn chart(title: String, outcome: &Outcome, paper: f64) -> Chart {
    let line = |value: fn(&Sample) -> f64| {
        outcome.samples.iter().map(|sample| (sample.second, value(sample))).collect()
    };
    let cleaning = outcome.samples[SAMPLES[0]..].iter().map(|sample| (sample.second, paper));
    Chart {
        title,
        x: "seconds".to_owned(),
        y: "MB/s".to_owned(),
        shape: Shape::Lines,
        series: vec![
            Series::paper("paper: applications while cleaning", cleaning.collect()),
            Series::measured("applications", line(|sample| sample.users)),
            Series::measured(
                "applications and cleaning",
                line(|sample| sample.users + sample.moved),
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_keeps_users_ahead_of_cleaning() {
        let options = Options { scale: Some(1e-3), ..Options::default() };
        let report = run(&options).unwrap();
        let figure = |name: &str| report.number(name).unwrap();
        assert!(figure("mtt_50_mb_s") > 0.4 * figure("tail_sequential_mb_s"));
        assert!(figure("mtt_50_moved_mb_s") > 0.2 * figure("tail_sequential_mb_s"));
        assert!(figure("in_place_raid0_mb_s") < figure("log_raid0_50_mb_s"));
        assert_eq!(figure("tail_busy_nonwrite_s"), 0.0);
        assert_eq!(report.charts.len(), 5);
    }
}
