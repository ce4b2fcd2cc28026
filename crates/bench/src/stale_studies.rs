//! `stale-studies`: reads of old versions on three emulated systems (virtual time; Isolation in Cloud Storage, 2.1.3).
//!
//! A reader that allows a staleness of *k* updates accepts each version of an item that at most *k* later updates of that
//! item have replaced; with 0 it gets the newest. It reads the version that is cheapest to reach.
//!
//! | study | system | parameter |
//! |---|---|---|
//! | `griffin` (S4) | a log on a disk that caches the writes of a solid-state drive | MB written before the log is migrated |
//! | `dedup` (S5) | deduplicated blocks on a disk, a cache of 256 MB by content | percent of blocks whose content another block has |
//! | `merged` (S6) | a log of small pairs on a solid-state drive, a cache of 256 MB by block | pairs in a block |
//!
//! Common to all: 8 threads in a closed loop, nine reads for each write, all items equally often; blocks of 4 KiB; an
//! address space of 4 GB, or a million pairs. A pair is a block divided by the pairs in a block, so that the newest
//! versions of all pairs are 256 MB to 2 GB, and the log has four times that. Disks are SATA drives of 600 GB with 7,200 rpm and
//! 32 MiB of write cache; solid-state drives are SATA drives of twice the data's size; a read from memory takes 1 µs. Drives
//! have real queues, and hold the contents, which every read checks. `--scale` shrinks all sizes alike.
//!
//! | figure of a case | meaning |
//! |---|---|
//! | `ms_K` | mean time of a read that allows a staleness of K updates |
//! | `over_newest_K` | the same over that of the newest version |
//! | `disk_reads_K` | share of reads that the disk answers (S4) |
//! | `hit_rate_K` | share of reads that memory answers (S5, S6) |
//! | `old_K` | share of reads that get an old version |
//!
//! `griffin_1_over_newest` and `griffin_4_over_newest` are the best of all sizes, as in the paper's text. An `improvement` is the
//! share of the time of a read that staleness saves, a `gain` the rise of the rate of reads. `griffin_through` is S4 with
//! the disk's write cache turned off.

mod choice;
mod dedup;
mod griffin;
mod load;
mod merged;

use std::collections::BTreeMap;

use crate::plot::{Chart, LogAxes, Series, Shape};
use crate::rig::{self, rounded};
use crate::{BenchEntry, BenchError, Options, Report};
use choice::Place;
use load::Tally;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "stale-studies",
    about: "reads of old versions: a disk as write cache, deduplication, a log of small pairs",
    clock: crate::Clock::Virtual,
    loads: || Study::ALL.map(|study| study.name().to_owned()).to_vec(),
    traces: false,
    run,
};

/// Blocks of the address space, and pairs, at scale 1.
const BLOCKS: f64 = (4u64 << 30) as f64 / 4096.0;
const PAIRS: f64 = 1e6;
/// Blocks of the caches in memory at scale 1.
const CACHE: f64 = (256u64 << 20) as f64 / 4096.0;
const BLOCKS_OF_MB: f64 = (1u64 << 20) as f64 / 4096.0;
/// Blocks of the log of pairs over those that the newest versions fill.
const SPREAD: f64 = 4.0;
/// Operations at scale 1 that warm a cache, and that are measured.
const WARM: f64 = 500e3;
const MEASURED: f64 = 200e3;

/// The most staleness that a reader allows, in updates.
const MOST: u32 = 5;

/// One of the three studies, or a variant of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Study {
    Griffin,
    /// The same without the disk's write cache.
    GriffinThrough,
    Dedup,
    Merged,
}

impl Study {
    const ALL: [Study; 4] = [Study::Griffin, Study::GriffinThrough, Study::Dedup, Study::Merged];

    fn name(self) -> &'static str {
        match self {
            Study::Griffin => "griffin",
            Study::GriffinThrough => "griffin_through",
            Study::Dedup => "dedup",
            Study::Merged => "merged",
        }
    }

    /// The values of its parameter: MB before migration, percent of redundant blocks, pairs in a block.
    fn parameters(self) -> &'static [u32] {
        match self {
            Study::Griffin => &[128, 256, 512, 1024],
            Study::GriffinThrough => &[1024],
            Study::Dedup => &[30, 50, 70, 90],
            Study::Merged => &[2, 4, 8, 16],
        }
    }

    /// The place whose share of reads is a figure, and the figure's name.
    fn place(self) -> (Place, &'static str) {
        match self {
            Study::Griffin | Study::GriffinThrough => (Place::Disk, "disk_reads"),
            Study::Dedup | Study::Merged => (Place::Memory, "hit_rate"),
        }
    }

    fn legend(self, parameter: u32) -> String {
        match self {
            Study::Griffin | Study::GriffinThrough => format!("{parameter} MB before migration"),
            Study::Dedup => format!("{parameter} % redundant"),
            Study::Merged => format!("{parameter} pairs in a block"),
        }
    }
}

/// One point of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    study: Study,
    parameter: u32,
    staleness: u32,
}

impl Case {
    fn all(study: Study) -> impl Iterator<Item = Case> {
        let parameters = study.parameters().iter();
        parameters.flat_map(move |parameter| {
            (0..=MOST).map(move |staleness| Case { study, parameter: *parameter, staleness })
        })
    }

    /// Measures the case: its reads, and for [`Study::Dedup`] the share of blocks that are redundant.
    fn measure(self, scale: f64, seed: u64) -> Result<(Tally, Option<f64>), BenchError> {
        let Case { study, parameter, staleness } = self;
        let sized = |whole: f64| ((whole * scale).round() as u32).max(16);
        let (warm, measured) = (sized(WARM).into(), sized(MEASURED).into());
        let cache_blocks = sized(CACHE) as usize;
        let most = MOST;
        thalweg_sim::run(seed, |env| async move {
            match study {
                Study::Griffin | Study::GriffinThrough => {
                    let trigger = sized(f64::from(parameter) * BLOCKS_OF_MB);
                    let write_cache = study == Study::Griffin;
                    let sizes = griffin::Sizes { blocks: sized(BLOCKS), trigger, write_cache };
                    Ok((griffin::measure(env, sizes, seed, staleness).await?, None))
                }
                Study::Dedup => {
                    let (blocks, redundant) = (sized(BLOCKS), f64::from(parameter) / 100.0);
                    let sizes =
                        dedup::Sizes { blocks, cache_blocks, redundant, warm, measured, most };
                    let (tally, redundant) = dedup::measure(env, sizes, seed, staleness).await?;
                    Ok((tally, Some(redundant)))
                }
                Study::Merged => {
                    let (pairs, pairs_in_block, spread) = (sized(PAIRS), parameter, SPREAD);
                    let sizes = merged::Sizes {
                        pairs,
                        pairs_in_block,
                        cache_blocks,
                        spread,
                        warm,
                        measured,
                        most,
                    };
                    Ok((merged::measure(env, sizes, seed, staleness).await?, None))
                }
            }
        })
    }
}

/// The reads of each case.
type Table = BTreeMap<Case, Tally>;

/// The mean time of a case's reads over that of reads of the newest version.
fn over_newest(table: &Table, case: Case) -> f64 {
    let ms = |case| table.get(&case).map_or(f64::NAN, Tally::latency_ms);
    ms(case) / ms(Case { staleness: 0, ..case })
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let studies: Vec<Study> =
        Study::ALL.into_iter().filter(|study| options.runs(study.name())).collect();
    let mut cases: Vec<Case> = studies.iter().flat_map(|study| Case::all(*study)).collect();
    // Longest first.
    cases.sort_by_key(|case| (case.study, std::cmp::Reverse(case.parameter)));
    let outcomes = rig::on_all_processors(&cases, |case| case.measure(scale, options.seed))?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let mut table = Table::new();
    for (case, (tally, redundant)) in cases.into_iter().zip(outcomes) {
        table.insert(case, tally);
        if let Some(redundant) = redundant.filter(|_| case.staleness == 0) {
            report.figure(&format!("dedup_{}_redundant", case.parameter), rounded(redundant));
        }
    }
    for (case, tally) in &table {
        let Case { study, parameter, staleness } = *case;
        let (place, share) = study.place();
        let mut row = |figure: &str, value: f64| {
            let name = format!("{}_{parameter}_{figure}_{staleness}", study.name());
            report.figure(&name, precise(value));
        };
        row("ms", tally.latency_ms());
        row("over_newest", over_newest(&table, *case));
        row(share, tally.share(place));
        row("old", tally.old_share());
    }
    summarise(&mut report, &table);
    report.charts = studies.iter().flat_map(|study| charts(*study, &table)).collect();
    Ok(report)
}

/// Rounds to four significant digits: latencies and shares range over several powers of ten.
fn precise(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// The figures that the paper states in its text.
fn summarise(report: &mut Report, table: &Table) {
    let of = |study: Study| table.keys().filter(move |case| case.study == study).copied();
    for staleness in [1, 4] {
        let cases = of(Study::Griffin).filter(|case| case.staleness == staleness);
        let best = cases.map(|case| over_newest(table, case)).reduce(f64::min);
        if let Some(best) = best {
            report.figure(&format!("griffin_{staleness}_over_newest"), precise(best));
        }
    }
    let whole = of(Study::Dedup).chain(of(Study::Merged)).filter(|case| case.staleness == MOST);
    for case in whole {
        let (name, over) =
            (format!("{}_{}", case.study.name(), case.parameter), over_newest(table, case));
        report.figure(&format!("{name}_improvement"), precise(1.0 - over));
        report.figure(&format!("{name}_gain"), precise(1.0 / over - 1.0));
    }
}

/// How a study is drawn, with the paper's values.
struct Drawing {
    figure: &'static str,
    system: &'static str,
    /// Of the latency.
    shape: Shape,
    /// Name of the share that [`Study::place`] has.
    share: &'static str,
    /// The paper's latencies over that of the newest version, and its shares.
    latencies: Vec<Series>,
    shares: Vec<Series>,
}

/// The paper's figures are known from its text alone.
fn drawing(study: Study) -> Option<Drawing> {
    let mark = |label: &str, x: u32, y: f64| Series::paper(label, vec![(f64::from(x), y)]);
    let level = |label: &str, y: f64| Series::paper(label, vec![(0.0, y), (f64::from(MOST), y)]);
    let (figure, system, shape, share, latencies, shares) = match study {
        Study::Griffin => (
            "2.3",
            "a disk as write cache",
            Shape::LogLines(LogAxes::Y),
            "share of reads from the disk",
            vec![mark("paper: down to 1/8", 1, 0.125), mark("paper: down to 1/20", 4, 0.05)],
            vec![mark("paper: none from 5 on", 5, 0.0)],
        ),
        Study::GriffinThrough => return None,
        Study::Dedup => (
            "2.5",
            "deduplication",
            Shape::Lines,
            "hit rate",
            vec![
                level("paper, worst ratio: 10 % better", 0.9),
                level("paper, best ratio: 35 % better", 0.65),
            ],
            Vec::new(),
        ),
        Study::Merged => (
            "2.7",
            "a log of small pairs",
            Shape::Lines,
            "hit rate",
            vec![level("paper: up to 60 % better", 0.4)],
            Vec::new(),
        ),
    };
    Some(Drawing { figure, system, shape, share, latencies, shares })
}

fn charts(study: Study, table: &Table) -> Vec<Chart> {
    let Some(drawing) = drawing(study) else { return Vec::new() };
    let lines = |value: &dyn Fn(Case, &Tally) -> f64| -> Vec<Series> {
        let line = |parameter: &u32| {
            let cases = table.iter().filter(|(case, _)| case.study == study);
            let cases = cases.filter(|(case, _)| case.parameter == *parameter);
            let point =
                |(case, tally): (&Case, &Tally)| (f64::from(case.staleness), value(*case, tally));
            Series::measured(&study.legend(*parameter), cases.map(point).collect())
        };
        study.parameters().iter().map(line).collect()
    };
    let chart = |part: &str, y: &str, shape, paper: Vec<Series>, measured: Vec<Series>| Chart {
        title: format!("Figure {}({part}): {}", drawing.figure, drawing.system),
        x: "allowed staleness (updates)".to_owned(),
        y: y.to_owned(),
        shape,
        series: paper.into_iter().chain(measured).collect(),
    };
    let (shape, place) = (drawing.shape, study.place().0);
    let (latencies, shares) = (drawing.latencies.clone(), drawing.shares.clone());
    let over = lines(&|case, _| over_newest(table, case));
    vec![
        chart("a", "mean read latency (ms)", shape, Vec::new(), lines(&|_, it| it.latency_ms())),
        chart("a", "read latency over that of the newest version", shape, latencies, over),
        chart("b", drawing.share, Shape::Lines, shares, lines(&|_, it| it.share(place))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_has_all_figures_and_repeats() {
        let options = Options { scale: Some(0.002), ..Options::default() };
        let report = run(&options).unwrap();
        let figure = |name: &str| report.number(name).unwrap();
        assert!(figure("griffin_1024_disk_reads_0") > figure("griffin_1024_disk_reads_1"));
        assert!(figure("griffin_through_1024_ms_0") > figure("griffin_through_1024_ms_4"));
        assert!(figure("griffin_1_over_newest") < 1.0);
        assert!(figure("dedup_90_hit_rate_4") > figure("dedup_90_hit_rate_0"));
        assert!((0.0..1.0).contains(&figure("dedup_90_improvement")));
        assert!(figure("merged_16_gain") > figure("merged_16_improvement"));
        assert!(figure("merged_16_hit_rate_5") > figure("merged_16_hit_rate_0"));
        assert_eq!(figure("merged_2_old_0"), 0.0);
        assert_eq!(report.charts.len(), 9);
        assert_eq!(report.figures, run(&options).unwrap().figures);
    }

    #[test]
    fn one_study_can_run_alone() {
        let loads = vec!["dedup".to_owned()];
        let report = run(&Options { scale: Some(0.001), loads, ..Options::default() }).unwrap();
        assert!(report.figures.keys().all(|name| name == "scale" || name.starts_with("dedup")));
        assert_eq!(report.charts.len(), 3);
    }
}
