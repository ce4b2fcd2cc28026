//! `steady-sim`: write amplification and evenness of a chain that is nearly full (virtual time).
//!
//! A case fills a share of the chain's capacity and then keeps overwriting single blocks, uniformly or
//! by Zipf's law. 32 writers work in a closed loop, and a task syncs after every 64 writes; at most
//! 256 writes are not durable. Measurement starts when the write amplification has settled. Two links
//! share a solid-state drive, or have one each; for the highest fill there are hard disks too, with
//! the map on a drive of its own.
//!
//! | figure of a case | meaning |
//! |---|---|
//! | `wa` | bytes written to the links over bytes that users wrote |
//! | `moved` | blocks that cleaning moved for each user block |
//! | `live_share` | live share of the segments that were cleaned |
//! | `map_bytes` | bytes written to the map area for each byte that users wrote |
//! | `worst_second_over_median` | user blocks in the worst second over those in the median second |
//! | `blocks_per_s` | user blocks in the median second |
//! | `sync_p99_ms`, `sync_max_ms` | latency of syncs |
//!
//! Two more cases (`small`) count what durable puts of 256 bytes cost over several checkpoints.
//!
//! The references (`reference`) get the same blocks and the same segments. The better one of SepBIT's
//! two ways to choose a victim counts. `greedy` and `sepbit` keep as many segments open or free as the
//! chain withholds from its capacity. `greedy_tight` and `sepbit_tight` keep one free segment besides
//! the open ones, as late cleaning can; they do not depend on how much the chain withholds.

pub(crate) mod addresses;
mod drives;
mod reference;
mod small;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::{Env, Task};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt};
use thalweg_store::chain::{Chain, Status};
use tokio::sync::{Notify, Semaphore};

use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, failed, median, rounded};
use crate::{BenchEntry, BenchError, Options, Report};
use addresses::{Addresses, Load};
use drives::{DEFAULT_KIND, Drives, KINDS, Kind, create, kind_name, make, parts};
use reference::{Geometry, Log, Placement, Selection};
use small::Small;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "steady-sim",
    about: "write amplification and evenness of a chain that is nearly full",
    clock: crate::Clock::Virtual,
    loads: || cases().iter().map(Case::name).chain(small::ALL.map(Small::name)).collect(),
    traces: false,
    run,
};

/// Fills in percent of the chain's capacity.
const FILLS: [u32; 4] = [50, 80, 90, 95];
const FULLEST: u32 = 95;
/// Segments of a link at scale 1.
const LINK_SEGMENTS: f64 = 64.0;
const SEGMENT: u32 = 480;
const WRITERS: usize = 32;
/// A sync follows this many writes, or this much time.
const SYNC_WRITES: usize = 64;
const SYNC_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of writes that are not durable.
const UNSYNCED: usize = 256;
/// Blocks in the transactions that fill the chain.
const FILL_BLOCKS: u64 = 240;
const SAMPLES_PER_SECOND: usize = 4;
/// Time without a user write after which a case fails.
const STANDSTILL: Duration = Duration::from_secs(600);

/// The duration of a case.
#[derive(Clone, Copy, Debug)]
struct Plan {
    link_segments: u32,
    segment_blocks: u32,
    /// Overwrites of all live blocks before measurement: minimum and maximum.
    settle: (usize, usize),
    /// Minimum overwrites of all live blocks, and minimum seconds, of the measurement.
    overwrites: usize,
    seconds: usize,
}

impl Plan {
    fn of_scale(scale: f64) -> Plan {
        Plan {
            link_segments: ((LINK_SEGMENTS * scale).round() as u32).max(16),
            segment_blocks: SEGMENT,
            settle: (4, 12),
            overwrites: 2,
            seconds: 20,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    kind: Kind,
    fill: u32,
    load: Load,
}

impl Case {
    fn name(&self) -> String {
        format!("{}_{}_{}", kind_name(self.kind), self.fill, self.load.name())
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Longest first.
    for fill in FILLS.into_iter().rev() {
        for load in Load::ALL {
            for kind in KINDS {
                if kind.1 != Drives::Disks || fill == FULLEST {
                    cases.push(Case { kind, fill, load });
                }
            }
        }
    }
    cases
}

/// The measurements of a case.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    space: Geometry,
    live: u32,
    wa: f64,
    moved: f64,
    live_share: f64,
    map_bytes: f64,
    worst_second_over_median: f64,
    blocks_per_s: f64,
    sync_p99: Duration,
    sync_max: Duration,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let chosen: Vec<Case> = cases().into_iter().filter(|case| options.runs(&case.name())).collect();
    let small: Vec<Small> =
        small::ALL.into_iter().filter(|case| options.runs(&case.name())).collect();
    report(options, scale, Plan::of_scale(scale), &chosen, &small)
}

/// Runs the cases, on all processors.
fn outcomes(seed: u64, plan: Plan, cases: &[Case]) -> Result<Vec<(Case, Outcome)>, BenchError> {
    rig::on_all_processors(cases, |case| {
        let outcome = thalweg_sim::run(seed, |env| measure(env, seed, plan, *case));
        let outcome = outcome
            .map_err(|error| BenchError::Failed(format!("{}: {error}", case.name()).into()))?;
        eprintln!("{}: {:.2}", case.name(), outcome.wa);
        Ok((*case, outcome))
    })
}

/// Makes a chain whose logical blocks are the fill's share of its capacity.
async fn open(env: &Env, plan: Plan, case: Case) -> Result<Arc<Chain>, BenchError> {
    let parts = parts(env, plan, case.kind.1)?;
    let create = |blocks| create(plan, case.kind, blocks);
    // The capacity depends on the links and the kind of cleaning: a chain of one block reports it.
    let probe = make(env, &parts, create(1)).await?;
    let capacity = probe.status().capacity_blocks;
    probe.close().await.map_err(failed)?;
    drop(probe);
    make(env, &parts, create(capacity * u64::from(case.fill) / 100)).await.map(Arc::new)
}

/// State that the tasks of a case share.
struct Traffic {
    addresses: Mutex<Addresses>,
    /// Permits for writes that may begin before a sync ends.
    gate: Semaphore,
    /// Writes since the last sync began.
    written: AtomicUsize,
    enough: Notify,
    syncs: Mutex<Vec<Duration>>,
    error: Mutex<Option<BenchError>>,
}

async fn write(chain: Arc<Chain>, traffic: Arc<Traffic>, mut stamp: u64) -> Result<(), BenchError> {
    while let Ok(permit) = traffic.gate.acquire().await {
        permit.forget();
        let lba = u64::from(traffic.addresses.lock().draw());
        chain.apply(vec![rig::block(lba, stamp)]).await.map_err(failed)?;
        stamp += 1;
        if traffic.written.fetch_add(1, Ordering::Relaxed) + 1 >= SYNC_WRITES {
            traffic.enough.notify_one();
        }
    }
    Ok(())
}

async fn sync(env: Env, chain: Arc<Chain>, traffic: Arc<Traffic>) -> Result<(), BenchError> {
    loop {
        env.timeout(SYNC_INTERVAL, traffic.enough.notified()).await;
        let (covered, begun) = (traffic.written.swap(0, Ordering::Relaxed), env.now());
        chain.sync(chain.now()).await.map_err(failed)?;
        traffic.syncs.lock().push(env.now().since(begun));
        traffic.gate.add_permits(covered);
    }
}

/// Starts the writers and the task that syncs, until they are dropped.
fn start(env: &Env, chain: &Arc<Chain>, traffic: &Arc<Traffic>) -> Vec<Task<()>> {
    let watched = |work: futures::future::BoxFuture<'static, Result<(), BenchError>>| {
        let traffic = traffic.clone();
        env.spawn(async move {
            if let Err(error) = work.await {
                traffic.error.lock().get_or_insert(error);
            }
        })
    };
    let writer =
        |nth: usize| Box::pin(write(chain.clone(), traffic.clone(), (nth as u64 + 1) << 32)) as _;
    let mut tasks: Vec<_> = (0..WRITERS).map(|nth| watched(writer(nth))).collect();
    tasks.push(watched(Box::pin(sync(env.clone(), chain.clone(), traffic.clone()))));
    tasks
}

/// Writes every live block once.
async fn fill(chain: &Chain, live: u64) -> Result<(), BenchError> {
    for first in (0..live).step_by(FILL_BLOCKS as usize) {
        let blocks = first..(first + FILL_BLOCKS).min(live);
        chain.apply(blocks.map(|lba| rig::block(lba, 0)).collect()).await.map_err(failed)?;
        chain.sync(chain.now()).await.map_err(failed)?;
    }
    Ok(())
}

/// Counters at one point in time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    user: u64,
    moved: u64,
    cleaned: u64,
    link_bytes: u64,
    map_bytes: u64,
}

impl Reading {
    fn of(status: &Status) -> Reading {
        let links = status.links.iter().map(|link| link.io.total().write_bytes);
        Reading {
            user: status.counts.user_blocks_written,
            moved: status.counts.blocks_moved,
            cleaned: status.counts.segments_cleaned,
            link_bytes: links.sum(),
            map_bytes: status.map_io.total().write_bytes,
        }
    }

    fn since(self, earlier: Reading) -> Reading {
        Reading {
            user: self.user - earlier.user,
            moved: self.moved - earlier.moved,
            cleaned: self.cleaned - earlier.cleaned,
            link_bytes: self.link_bytes - earlier.link_bytes,
            map_bytes: self.map_bytes - earlier.map_bytes,
        }
    }

    /// A count of bytes for each byte that users wrote.
    fn per_user_byte(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.user * BLOCK_SIZE as u64).max(1) as f64
    }

    fn amplification(&self) -> f64 {
        self.per_user_byte(self.link_bytes)
    }
}

/// A running case.
struct Run {
    env: Env,
    chain: Arc<Chain>,
    traffic: Arc<Traffic>,
    /// User blocks in samples of a quarter of a second.
    samples: Vec<u64>,
}

impl Run {
    fn reading(&self) -> Reading {
        Reading::of(&self.chain.status())
    }

    /// Runs for the time of one sample.
    async fn sample(&mut self) -> Result<(), BenchError> {
        let before = self.reading().user;
        self.env.sleep(Duration::from_secs(1) / SAMPLES_PER_SECOND as u32).await;
        if let Some(error) = self.traffic.error.lock().take() {
            return Err(error);
        }
        self.samples.push(self.reading().user - before);
        let still = STANDSTILL.as_secs() as usize * SAMPLES_PER_SECOND;
        let latest = self.samples.iter().rev().take(still);
        match latest.clone().count() == still && latest.sum::<u64>() == 0 {
            true => Err(BenchError::Failed("no write has ended for 10 minutes".into())),
            false => Ok(()),
        }
    }

    /// Runs until users have written `blocks` more blocks.
    async fn advance(&mut self, blocks: u64) -> Result<Reading, BenchError> {
        let before = self.reading();
        loop {
            self.sample().await?;
            let since = self.reading().since(before);
            if since.user >= blocks {
                return Ok(since);
            }
        }
    }

    /// Overwrites all live blocks until the write amplification has settled.
    async fn settle(&mut self, live: u64, plan: Plan) -> Result<(), BenchError> {
        let mut history = Vec::new();
        while history.len() < plan.settle.1 {
            history.push(self.advance(live).await?.amplification());
            if history.len() >= plan.settle.0 && is_settled(&history) {
                break;
            }
        }
        Ok(())
    }
}

/// Whether the last two values differ by less than 2 %.
fn is_settled(values: &[f64]) -> bool {
    matches!(values, [.., before, last] if (last / before - 1.0).abs() < 0.02)
}

async fn measure(env: Env, seed: u64, plan: Plan, case: Case) -> Result<Outcome, BenchError> {
    let chain = open(&env, plan, case).await?;
    let status = chain.status();
    let live = status.blocks as u32;
    let usable = (status.capacity_blocks / u64::from(plan.segment_blocks)) as u32;
    let segments = status.segments as u32;
    let space =
        Geometry { segments, segment_blocks: plan.segment_blocks, reserved: segments - usable };
    fill(&chain, u64::from(live)).await?;
    let traffic = Arc::new(Traffic {
        addresses: Mutex::new(Addresses::new(case.load, live, seed)?),
        gate: Semaphore::new(UNSYNCED),
        written: AtomicUsize::new(0),
        enough: Notify::new(),
        syncs: Mutex::default(),
        error: Mutex::default(),
    });
    let _tasks = start(&env, &chain, &traffic);
    let mut run = Run { env, chain, traffic, samples: Vec::new() };
    run.settle(u64::from(live), plan).await?;
    run.samples.clear();
    run.traffic.syncs.lock().clear();
    let before = run.reading();
    let goal = u64::from(live) * plan.overwrites as u64;
    while run.samples.len() < plan.seconds * SAMPLES_PER_SECOND
        || run.reading().since(before).user < goal
    {
        run.sample().await?;
    }
    Ok(outcome(space, live, &run, run.reading().since(before)))
}

fn outcome(space: Geometry, live: u32, run: &Run, done: Reading) -> Outcome {
    let seconds = run.samples.windows(SAMPLES_PER_SECOND);
    let seconds: Vec<f64> = seconds.map(|samples| samples.iter().sum::<u64>() as f64).collect();
    let worst = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let usual = median(seconds);
    let mut syncs = run.traffic.syncs.lock().clone();
    syncs.sort_unstable();
    let quantile = |share: f64| {
        let nth = (syncs.len() as f64 * share) as usize;
        syncs.get(nth.min(syncs.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    let looked_through = done.cleaned * u64::from(space.segment_blocks);
    Outcome {
        space,
        live,
        wa: done.amplification(),
        moved: done.moved as f64 / (done.user as f64).max(1.0),
        live_share: done.moved as f64 / (looked_through as f64).max(1.0),
        map_bytes: done.per_user_byte(done.map_bytes),
        worst_second_over_median: worst / usual.max(1.0),
        blocks_per_s: usual,
        sync_p99: quantile(0.99),
        sync_max: quantile(1.0),
    }
}

/// Write amplification of the references, by [`REFERENCES`].
type References = [f64; 4];

/// The names of the references, their placement of blocks, and whether they keep only one segment free.
const REFERENCES: [(&str, Placement, bool); 4] = [
    ("greedy", Placement::Single, false),
    ("sepbit", Placement::SepBit, false),
    ("greedy_tight", Placement::Single, true),
    ("sepbit_tight", Placement::SepBit, true),
];

fn references(seed: u64, plan: Plan, case: Case, of: &Outcome) -> Result<References, BenchError> {
    let mut all = [0.0; REFERENCES.len()];
    for (value, (_, placement, tight)) in all.iter_mut().zip(REFERENCES) {
        let reserved = match tight {
            true => placement.classes() as u32 + 1,
            false => of.space.reserved,
        };
        let space = Geometry { reserved, ..of.space };
        let with = |selection| {
            let mut log = Log::new(space, placement, selection, of.live);
            let mut addresses = Addresses::new(case.load, of.live, seed)?;
            Ok::<_, BenchError>(steady_amplification(&mut log, &mut addresses, of.live, plan))
        };
        *value = with(Selection::Greedy)?;
        if placement == Placement::SepBit {
            *value = value.min(with(Selection::CostBenefit)?);
        }
    }
    Ok(all)
}

/// Measures a reference as a chain is measured, over twice as many overwrites.
fn steady_amplification(log: &mut Log, addresses: &mut Addresses, live: u32, plan: Plan) -> f64 {
    (0..live).for_each(|lba| log.write(lba));
    let mut advance = |overwrites: usize| {
        let before = log.counts();
        (0..overwrites * live as usize).for_each(|_| log.write(addresses.draw()));
        let after = log.counts();
        reference::amplification((after.0 - before.0, after.1 - before.1))
    };
    let mut history = Vec::new();
    while history.len() < plan.settle.1 && !(history.len() >= plan.settle.0 && is_settled(&history))
    {
        history.push(advance(1));
    }
    advance(2 * plan.overwrites)
}

/// The references of each fill and load of the default kind.
type Table = BTreeMap<(u32, Load), References>;

fn report(
    options: &Options,
    scale: f64,
    plan: Plan,
    cases: &[Case],
    small: &[Small],
) -> Result<Report, BenchError> {
    let mut outcomes = outcomes(options.seed, plan, cases)?;
    outcomes.sort_by_key(|(case, _)| (case.load, case.fill, kind_name(case.kind)));
    let mut table = Table::new();
    for (case, outcome) in outcomes.iter().filter(|(case, _)| case.kind == DEFAULT_KIND) {
        let references = references(options.seed, plan, *case, outcome)?;
        table.insert((case.fill, case.load), references);
    }
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    summarise(&mut report, &outcomes, &table);
    for ((fill, load), references) in &table {
        for ((name, ..), value) in REFERENCES.iter().zip(references) {
            report.figure(&format!("{name}_{fill}_{}_wa", load.name()), rounded(*value));
        }
    }
    for (case, outcome) in &outcomes {
        tell(&mut report, &case.name(), outcome);
    }
    for case in small {
        let cost = thalweg_sim::run(options.seed, |env| case.measure(env, options.seed, plan))?;
        case.tell(&mut report, cost);
    }
    report.charts = Load::ALL.iter().map(|load| chart(*load, &outcomes, &table)).collect();
    Ok(report)
}

/// The figures of the default kind of volume when it is nearly full.
fn summarise(report: &mut Report, outcomes: &[(Case, Outcome)], table: &Table) {
    for load in Load::ALL {
        let case = Case { kind: DEFAULT_KIND, fill: FULLEST, load };
        let Some((_, outcome)) = outcomes.iter().find(|(other, _)| *other == case) else {
            continue;
        };
        let Some(references) = table.get(&(FULLEST, load)) else { continue };
        let mut row = |name: &str, value: f64| {
            report.figure(&format!("{name}_{FULLEST}_{}", load.name()), rounded(value));
        };
        for ((reference, ..), value) in REFERENCES.iter().zip(references) {
            row(&format!("wa_over_{reference}"), outcome.wa / value);
        }
        row("worst_second_over_median", outcome.worst_second_over_median);
    }
}

fn tell(report: &mut Report, name: &str, outcome: &Outcome) {
    let mut row = |figure: &str, value: f64| {
        report.figure(&format!("{name}_{figure}"), rounded(value));
    };
    row("wa", outcome.wa);
    row("moved", outcome.moved);
    row("live_share", outcome.live_share);
    row("map_bytes", outcome.map_bytes);
    row("worst_second_over_median", outcome.worst_second_over_median);
    row("blocks_per_s", outcome.blocks_per_s);
    row("sync_p99_ms", outcome.sync_p99.as_secs_f64() * 1e3);
    row("sync_max_ms", outcome.sync_max.as_secs_f64() * 1e3);
}

fn chart(load: Load, outcomes: &[(Case, Outcome)], table: &Table) -> Chart {
    let of_load = table.iter().filter(|((_, of), _)| *of == load);
    let reference = |nth: usize, (name, ..): &(&str, Placement, bool)| {
        let points = of_load.clone().map(|((fill, _), all)| (f64::from(*fill), all[nth]));
        Series::measured(&format!("reference: {name}"), points.collect())
    };
    let references = REFERENCES.iter().enumerate();
    let mut series: Vec<Series> = references.map(|(nth, about)| reference(nth, about)).collect();
    for kind in KINDS.into_iter().filter(|kind| kind.1 != Drives::Disks) {
        let mine = outcomes.iter().filter(|(case, _)| case.kind == kind && case.load == load);
        let points = mine.map(|(case, outcome)| (f64::from(case.fill), outcome.wa));
        series.push(Series::measured(&kind_name(kind), points.collect()));
    }
    series.retain(|series| !series.points.is_empty());
    Chart {
        title: format!("Write amplification of {} overwrites", load.name()),
        x: "live blocks, percent of the capacity".to_owned(),
        y: "blocks written for each user block".to_owned(),
        shape: Shape::Lines,
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_unique_names() {
        let mut names: Vec<String> = cases().iter().map(Case::name).collect();
        assert!(names.contains(&"cib_shared_95_zipf".to_owned()));
        assert_eq!(names.len(), 36);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 36);
    }

    #[test]
    fn a_small_run_writes_more_than_users_do_and_repeats() {
        let plan = Plan {
            link_segments: 16,
            segment_blocks: 240,
            settle: (1, 2),
            overwrites: 1,
            seconds: 1,
        };
        let case = |fill, load| Case { kind: DEFAULT_KIND, fill, load };
        let cases = [case(50, Load::Uniform), case(80, Load::Zipf)];
        let measured = || report(&Options::default(), 1.0, plan, &cases, &small::ALL).unwrap();
        let report = measured();
        let figure = |name: &str| report.number(name).unwrap();
        assert!(figure("cib_shared_50_uniform_wa") >= 1.0);
        assert!(figure("cib_shared_80_zipf_wa") >= 1.0);
        assert!((0.0..1.0).contains(&figure("cib_shared_80_zipf_live_share")));
        assert!(figure("greedy_50_uniform_wa") < figure("greedy_80_zipf_wa"));
        assert!(figure("cib_shared_50_uniform_sync_max_ms") > 0.0);
        assert!(figure("small_1_flushes_per_put") >= 1.0);
        assert!(figure("small_64_flushes_per_put") < 0.1);
        assert!(figure("small_64_bytes_per_put") > 256.0);
        assert_eq!(report.charts.len(), 2);
        assert_eq!(report.figures, measured().figures);
    }
}
