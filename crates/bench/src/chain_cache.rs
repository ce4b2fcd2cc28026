//! `chain-cache`: the share of reads of the tail that the tail cache serves (Gecko, 3.2.2).
//!
//! A mix of servers writes until the tail is full, beginning with an empty tail. A read counts if its
//! block is on the tail: a hit when the cache has it, else a miss. Reads of other blocks go to the
//! body of the chain and do not count, as in the paper. All counts are in 4 KiB blocks.
//!
//! The cache is the product's policy, run without devices. The paper's sizes are 512 GB of tail,
//! 2 GB of RAM and 32 GB of SSD; these and the servers' data are scaled down together.
//!
//! Recorded traces also print the hit rates of other policies, in one tier of the size of both.

mod references;

use std::collections::BTreeMap;

use references::CacheEvent;
use serde_json::json;
use thalweg_store::chain::cache::policy::{Found, Policy};
use thalweg_store::chain::cache::{Admission, RamSizes};

use crate::plot::{Chart, Series, Shape};
use crate::traces::{self, Access, Mix};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "chain-cache",
    about: "share of reads of the tail drive that the tail cache serves, and wear of its SSD",
    clock: crate::Clock::Counts,
    loads: Vec::new,
    traces: true,
    run,
};

const BLOCKS_PER_GB: f64 = 1e9 / 4096.0;
const TAIL_GB: f64 = 512.0;
const RAM_GB: f64 = 2.0;
const SSD_GB: f64 = 32.0;
const DEFAULT_SCALE: f64 = 1.0 / 64.0;
/// Figure 3.6 shows the hit rate for each 100 GB of 512 GB.
const FIFTHS: usize = 5;
/// Days that an SSD of 32 GB lasts for 10,000 erase cycles under 40 MB/s (Gecko, 3.2.2).
const SSD_ONLY_DAYS: f64 = 32e9 * 10_000.0 / 40e6 / 86_400.0;
/// The paper's hit rates: at least this rate for this many of its 21 mixes, best first.
const PAPER_HITS: [(usize, f64); 3] = [(6, 0.95), (7, 0.90), (8, 0.86)];
/// The paper's reduction of SSD writes, in the same form.
const PAPER_REDUCTIONS: [(usize, f64); 2] = [(13, 4.0), (8, 2.0)];

/// Sizes in blocks.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tail: u64,
    ram: usize,
    ssd: u32,
}

impl Sizes {
    /// A tail of `tail` blocks, and RAM and SSD in the paper's proportion to it.
    fn of_tail(tail: u64) -> Sizes {
        let share = |gb: f64| (tail as f64 * gb / TAIL_GB).max(1.0);
        Sizes { tail, ram: share(RAM_GB) as usize, ssd: share(SSD_GB) as u32 }
    }
}

/// Counts while one tail is filled, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Outcome {
    ram_hits: u64,
    ssd_hits: u64,
    misses: u64,
    /// (reads of the tail, hits) in each fifth of the tail.
    fifths: [(u64, u64); FIFTHS],
    written: u64,
    ssd_writes: u64,
}

impl Outcome {
    fn hit_rate(&self) -> f64 {
        share(self.ram_hits + self.ssd_hits, self.ram_hits + self.ssd_hits + self.misses)
    }

    fn ram_hit_rate(&self) -> f64 {
        share(self.ram_hits, self.ram_hits + self.ssd_hits + self.misses)
    }

    /// A cache of SSD alone writes every block that users write. Its writes after misses are left out,
    /// though ours are counted: the comparison favours that cache.
    fn ssd_write_reduction(&self) -> f64 {
        self.written as f64 / self.ssd_writes.max(1) as f64
    }
}

/// Without any reads the share is 1: no read missed.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// Fills one tail with `accesses` to an address space of `span` blocks.
fn fill_tail(accesses: impl Iterator<Item = Access>, span: u64, sizes: Sizes) -> Outcome {
    Tail::new(span, sizes).fill(accesses)
}

/// A tail drive that is filled block by block, and its cache.
struct Tail {
    /// The position of each logical block on the tail.
    places: Vec<Option<u32>>,
    cache: Policy<()>,
    next: u64,
    size: u64,
    outcome: Outcome,
    /// The steps of the cache's user, if they are to be recorded.
    events: Option<Vec<CacheEvent>>,
}

impl Tail {
    fn new(span: u64, sizes: Sizes) -> Tail {
        Tail {
            places: vec![None; span as usize],
            cache: Policy::new(RamSizes::fixed(sizes.ram), sizes.ssd, Admission::Adaptive),
            next: 0,
            size: sizes.tail.min(u64::from(u32::MAX)),
            outcome: Outcome::default(),
            events: None,
        }
    }

    fn record(&mut self, event: CacheEvent) {
        self.events.iter_mut().for_each(|events| events.push(event));
    }

    /// Applies the accesses up to the one that fills the tail.
    fn fill(&mut self, accesses: impl Iterator<Item = Access>) -> Outcome {
        let blocks = accesses.flat_map(|access| {
            let blocks = access.block..access.block + u64::from(access.blocks);
            blocks.map(move |block| (block, access.write))
        });
        for (block, is_write) in blocks {
            if self.is_full() {
                break;
            }
            if is_write { self.write(block) } else { self.read(block) }
        }
        let ssd_writes = self.cache.stats().ssd_block_writes;
        Outcome { written: self.next, ssd_writes, ..self.outcome }
    }

    fn is_full(&self) -> bool {
        self.next >= self.size
    }

    fn write(&mut self, block: u64) {
        if let Some(old) = self.places[block as usize].replace(self.next as u32) {
            self.cache.remove(u64::from(old));
            self.record(CacheEvent::Remove(u64::from(old)));
        }
        self.cache.put(self.next, ());
        self.record(CacheEvent::Put(self.next));
        self.next += 1;
        self.move_to_ssd();
    }

    fn read(&mut self, block: u64) {
        let Some(place) = self.places[block as usize] else { return };
        let key = u64::from(place);
        self.record(CacheEvent::Get(key));
        let hit = match self.cache.get(key) {
            Found::Ram(()) => {
                self.outcome.ram_hits += 1;
                true
            }
            Found::Ssd(at) => {
                self.outcome.ssd_hits += 1;
                self.cache.read_done(key, at, true)
            }
            Found::Miss => {
                self.outcome.misses += 1;
                self.cache.fill(key, ());
                self.move_to_ssd();
                false
            }
        };
        let fifth = (self.next * FIFTHS as u64 / self.size) as usize;
        let (reads, hits) = &mut self.outcome.fifths[fifth.min(FIFTHS - 1)];
        *reads += 1;
        *hits += u64::from(hit);
    }

    fn move_to_ssd(&mut self) {
        if self.cache.has_batch() {
            for block in self.cache.take_batch() {
                self.cache.write_done(block, true);
            }
        }
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    if options.traces.is_empty() { run_mixes(options) } else { run_recorded(options) }
}

fn run_mixes(options: &Options) -> Result<Report, BenchError> {
    let scale = options.scale.unwrap_or(DEFAULT_SCALE);
    if !(1e-5..=1.0).contains(&scale) {
        return Err(BenchError::Invalid(format!("the scale {scale} is not in 0.00001 to 1")));
    }
    let outcomes = fill_tails(&traces::mixes(), scale, options.seed);
    let mut report = report(options, &outcomes);
    report.figure("scale", scale).figure("tail_blocks", tail_blocks(scale));
    report.figure("mixes", json!(traces::mixes()));
    Ok(report)
}

/// Length of the tail in blocks.
fn tail_blocks(scale: f64) -> u64 {
    (TAIL_GB * BLOCKS_PER_GB * scale) as u64
}

/// Fills one tail with each mix.
fn fill_tails(mixes: &[Vec<usize>], scale: f64, seed: u64) -> Vec<Outcome> {
    let sizes = Sizes::of_tail(tail_blocks(scale));
    let fill = |(nth, kinds): (u64, &Vec<usize>)| {
        let mix = Mix::new(kinds, scale, seed.wrapping_mul(31).wrapping_add(nth));
        let span = mix.span();
        fill_tail(mix, span, sizes)
    };
    (0..).zip(mixes).map(fill).collect()
}

/// The cache's hit rate on reads of the tail, for each mix.
pub(crate) fn hit_rates(mixes: &[Vec<usize>], scale: f64, seed: u64) -> Vec<f64> {
    fill_tails(mixes, scale, seed).iter().map(Outcome::hit_rate).collect()
}

/// Recorded traces are short: the tail of each has the size of the trace's writes.
fn run_recorded(options: &Options) -> Result<Report, BenchError> {
    let mut outcomes = Vec::new();
    let mut tells_writes = Vec::new();
    let mut others: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for path in &options.traces {
        let trace = traces::read(path, options.seed)?;
        let written = trace.accesses.iter().filter(|access| access.write).count() as u64;
        let sizes = Sizes::of_tail(written);
        tells_writes.push(trace.tells_writes);
        // The last write fills the tail; reads after it disturb no writes.
        let mut tail = Tail { events: Some(Vec::new()), ..Tail::new(trace.span, sizes) };
        outcomes.push(tail.fill(trace.accesses.into_iter()));
        let events = tail.events.unwrap_or_default();
        for (name, rate) in references::hit_rates(&events, sizes.ram + sizes.ssd as usize) {
            others.entry(name).or_default().push(rate);
        }
    }
    let mut report = report(options, &outcomes);
    let names: Vec<String> = options.traces.iter().map(|path| path.display().to_string()).collect();
    for (name, rates) in others {
        report.figure(&format!("hit_{name}"), rates);
    }
    report.figure("traces", names).figure("tells_writes", tells_writes);
    Ok(report)
}

fn report(options: &Options, outcomes: &[Outcome]) -> Report {
    let all = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).collect::<Vec<f64>>();
    let hits = all(Outcome::hit_rate);
    let ram_hits = all(Outcome::ram_hit_rate);
    let reductions = all(Outcome::ssd_write_reduction);
    let mut report = Report::new(ENTRY.name, options.seed);
    for (name, values) in [("hit", &hits), ("ssd_write_reduction", &reductions)] {
        let sorted = ascending(values);
        report.figure(&format!("{name}_min"), sorted.first().copied());
        report.figure(&format!("{name}_median"), sorted.get(sorted.len() / 2).copied());
        report.figure(&format!("{name}_max"), sorted.last().copied());
    }
    report.figure("hit", hits.clone()).figure("ram_hit", ram_hits.clone());
    report.figure("ssd_write_reduction", reductions.clone());
    report.figure("blocks_written", json!(written(outcomes)));
    report.figure("tail_reads", json!(tail_reads(outcomes)));
    for (name, pick) in FIFTH_FIGURES {
        report.figure(name, (0..FIFTHS).map(|nth| pick(outcomes, nth)).collect::<Vec<f64>>());
    }
    report.charts =
        vec![hit_chart(&hits, &ram_hits), fifth_chart(outcomes), lifetime_chart(&reductions)];
    report
}

type FifthFigure = (&'static str, fn(&[Outcome], usize) -> f64);

/// The hit rate in each fifth of the tail over the mixes (figure 3.6).
const FIFTH_FIGURES: [FifthFigure; 3] = [
    ("hit_by_fifth_min", |outcomes, nth| fifth(outcomes, nth).fold(f64::INFINITY, f64::min)),
    ("hit_by_fifth_mean", |outcomes, nth| {
        fifth(outcomes, nth).sum::<f64>() / outcomes.len().max(1) as f64
    }),
    ("hit_by_fifth_max", |outcomes, nth| fifth(outcomes, nth).fold(0.0, f64::max)),
];

fn fifth(outcomes: &[Outcome], nth: usize) -> impl Iterator<Item = f64> + '_ {
    outcomes.iter().map(move |outcome| share(outcome.fifths[nth].1, outcome.fifths[nth].0))
}

fn written(outcomes: &[Outcome]) -> Vec<u64> {
    outcomes.iter().map(|outcome| outcome.written).collect()
}

fn tail_reads(outcomes: &[Outcome]) -> Vec<u64> {
    let reads = |outcome: &Outcome| outcome.fifths.iter().map(|fifth| fifth.0).sum();
    outcomes.iter().map(reads).collect()
}

fn ascending(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn hit_chart(hits: &[f64], ram_hits: &[f64]) -> Chart {
    Chart {
        title: "Hit rate of the tail cache (figure 3.5)".to_owned(),
        x: "mixes, best first".to_owned(),
        y: "reads of the tail served (%)".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("paper, RAM + SSD, at least", steps(&PAPER_HITS, 100.0)),
            Series::measured("RAM + SSD", best_first(hits, 100.0)),
            Series::measured("RAM alone", best_first(ram_hits, 100.0)),
        ],
    }
}

fn fifth_chart(outcomes: &[Outcome]) -> Chart {
    let line = |(name, pick): &FifthFigure| {
        let point = |nth| ((nth as f64 + 0.5) / FIFTHS as f64 * 100.0, pick(outcomes, nth) * 100.0);
        Series::measured(name, (0..FIFTHS).map(point).collect())
    };
    Chart {
        title: "Hit rate as the tail fills up (figure 3.6)".to_owned(),
        x: "tail filled (%)".to_owned(),
        y: "reads of the tail served (%)".to_owned(),
        shape: Shape::Lines,
        series: FIFTH_FIGURES.iter().map(line).collect(),
    }
}

fn lifetime_chart(reductions: &[f64]) -> Chart {
    Chart {
        title: "Lifetime of the SSD under 40 MB/s (figure 3.7)".to_owned(),
        x: "mixes, best first".to_owned(),
        y: "days".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("paper, at least", steps(&PAPER_REDUCTIONS, SSD_ONLY_DAYS)),
            Series::measured("RAM + SSD", best_first(reductions, SSD_ONLY_DAYS)),
            Series::measured(
                "SSD alone",
                (0..reductions.len()).map(|nth| (nth as f64, SSD_ONLY_DAYS)).collect(),
            ),
        ],
    }
}

fn best_first(values: &[f64], unit: f64) -> Vec<(f64, f64)> {
    let descending = ascending(values).into_iter().rev().map(|value| value * unit);
    descending.enumerate().map(|(nth, value)| (nth as f64, value)).collect()
}

fn steps(steps: &[(usize, f64)], unit: f64) -> Vec<(f64, f64)> {
    let values = steps.iter().flat_map(|(count, value)| std::iter::repeat_n(*value, *count));
    best_first(&values.collect::<Vec<f64>>(), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(write: bool, block: u64) -> Access {
        Access { write, block, blocks: 1 }
    }

    #[test]
    fn only_reads_of_the_tail_count_and_overwrites_are_coalesced() {
        let sizes = Sizes { tail: 100, ram: 8, ssd: 16 };
        let writes = (0..100).flat_map(|nth| [access(true, nth % 4), access(false, 9)]);
        let reads = [access(false, 0), access(false, 1), access(false, 2)];
        let outcome = fill_tail(reads.into_iter().chain(writes), 10, sizes);
        assert_eq!((outcome.written, outcome.ssd_writes), (100, 0));
        assert_eq!(tail_reads(&[outcome]), [0], "nothing that was read is on the tail");
        assert_eq!(outcome.hit_rate(), 1.0);
    }

    #[test]
    fn a_block_that_fell_out_of_both_tiers_is_a_miss() {
        let sizes = Sizes { tail: 200, ram: 8, ssd: 16 };
        let mut accesses: Vec<Access> = (0..150).map(|block| access(true, block)).collect();
        accesses.push(access(false, 149));
        accesses.push(access(false, 135));
        accesses.push(access(false, 0));
        let outcome = fill_tail(accesses.into_iter(), 150, sizes);
        assert_eq!((outcome.ram_hits, outcome.ssd_hits, outcome.misses), (1, 1, 1));
        assert_eq!(outcome.fifths[3], (3, 2));
    }

    #[test]
    fn a_small_run_is_a_function_of_its_seed() {
        let options = Options { scale: Some(1.0 / 4096.0), ..Options::default() };
        let one = run(&options).unwrap();
        assert_eq!(one.to_json(), run(&options).unwrap().to_json());
        let other = run(&Options { seed: 2, ..options }).unwrap();
        assert_ne!(one.to_json(), other.to_json());
        assert_eq!(one.charts[0].series[0].points.len(), 21);
        assert!(one.number("hit_min").unwrap() > 0.5);
    }

    #[test]
    fn a_scale_out_of_range_is_refused() {
        for scale in [0.0, 2.0, f64::NAN] {
            let options = Options { scale: Some(scale), ..Options::default() };
            assert!(matches!(run(&options), Err(BenchError::Invalid(_))));
        }
    }
}
