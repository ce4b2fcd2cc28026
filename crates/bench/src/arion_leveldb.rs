//! `arion-leveldb`: LevelDB on a shared filesystem with a client's journal, beside a CephFS with `ceph-fuse` and a mount of a volume that is
//! not shared (real time; thesis, 8.2.5).
//!
//! The Ceph cluster, the rounds, the mounts and the journal are those of [`arion_fs`](crate::arion_fs). The first client opens a database
//! for each load, with its files on the mount. One thread calls it; each write is synced before it returns. Values have 1,000 bytes of noise. The cache has
//! 256 MiB, as in one of the paper's figures; nothing is compressed, and other settings are LevelDB's own.
//!
//! At scale 1 there are 100,000 keys, and a run has as many operations, as in the paper. By default there are a tenth of both: `ceph-fuse`
//! makes some hundreds of such writes a second at most, and each load runs three times.
//!
//! | load | rate |
//! |---|---|
//! | `load` | keys put a second |
//! | `run_a` | operations a second of YCSB's workload A: half reads, half updates, keys by Zipf's law with exponent 0.99 |
//! | `run_f` | of workload F: half reads, half updates that read the key first |
//!
//! Before a run all keys are put, in batches, and the database is opened again. After each load it is opened again, and every key must have what was put last;
//! neither is timed.
//!
//! | figure | meaning |
//! |---|---|
//! | `rados_LOAD_over_ceph_fuse`, `rados_LOAD_over_local`, `embedded_…` | rate of ours over that of the other one; above 1 ours is the faster one |
//! | `rados_read_latency_over_ceph_fuse`, `rados_read_latency_over_local`, `embedded_…` | mean time of a read of `run_a` over that on the other one; below 1 ours is the faster one |
//! | `ceph_fuse_LOAD_per_s`, `local_…`, `rados_…`, `embedded_…` | the rates |
//! | `ceph_fuse_read_latency_us`, `local_…`, `rados_…`, `embedded_…` | mean microseconds of a read of `run_a` |
//! | `rados_LOAD_calls`, `embedded_…` | calls to our server for each operation, preparations included |
//! | `rados_LOAD_drain_s`, `embedded_…` | seconds from the end of the load until the server has made all of it durable |
//! | `below_aim` | the ratios that miss their aims: `rados_…_over_ceph_fuse` is to be 2.5 for `load` and 5.7 for the runs, all `_over_local` 0.7; a read is to take 1.05 times as long as with `ceph-fuse` at most, and 1 / 0.7 times as long as on a local mount |

use crate::arion_charts;
use crate::cluster_fs::{self, measure};
use crate::cluster_loads::{Load, latency_name, leveldb::LOADS, missed};
use crate::cluster_mounts::{Kind, Subject};
use crate::machine::Need;
use crate::plot::Chart;
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-leveldb",
    about: "LevelDB on a shared filesystem with a client's journal, beside ceph-fuse and a local mount; needs the feature librados",
    clock: crate::Clock::Real,
    loads: || LOADS.map(|load| load.name.to_owned()).into(),
    traces: false,
    run,
};

const NEEDS: [Need; 3] = [Need::LoopDevices, Need::Program("losetup"), Need::LevelDb];

/// The part of the paper's size that a run has by default.
const SCALE: f64 = 0.1;
/// Bytes of a volume in a folder: the databases of all rounds.
const SIZE: &str = "4G";

fn subjects() -> [Subject; 4] {
    Subject::with_journals(1).map(|subject| Subject { size: SIZE, ..subject })
}

/// Our least ratio; `None` where there is no aim.
fn aim(load: &Load, ours: Subject, peer: Subject) -> Option<f64> {
    match (peer.kind, ours.kind) {
        (Kind::Local, _) => Some(0.7),
        (Kind::CephFuse, Kind::Rados) => Some(if load.name == "load" { 2.5 } else { 5.7 }),
        _ => None,
    }
}

/// How many times as long our reads may take at most; `None` where there is no aim.
fn read_aim(ours: Subject, peer: Subject) -> Option<f64> {
    match (peer.kind, ours.kind) {
        (Kind::Local, _) => Some(1.0 / 0.7),
        (Kind::CephFuse, Kind::Rados) => Some(1.05),
        _ => None,
    }
}

/// The ratios that miss their aims.
fn all_missed(report: &Report) -> usize {
    let subjects = subjects();
    let pairs = subjects.iter().flat_map(|ours| subjects.iter().map(move |peer| (*ours, *peer)));
    let is_slow = |(ours, peer): &(Subject, Subject)| {
        let over = report.number(&latency_name(*ours, *peer));
        over.zip(read_aim(*ours, *peer)).is_some_and(|(over, aim)| over > aim)
    };
    missed(report, &LOADS, &subjects, aim) + pairs.filter(is_slow).count()
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let needs = [&cluster_fs::NEEDS[..], &NEEDS].concat();
    let options = Options { scale: options.scale.or(Some(SCALE)), ..options.clone() };
    let mut report = measure(ENTRY.name, &LOADS, &subjects(), &needs, &options)?;
    let missed = all_missed(&report);
    report.figure("below_aim", missed);
    report.charts = charts(&report);
    Ok(report)
}

/// Operations in a second of Ceph and Arion, whatever the cache: of the load phase about, of the run of workload A up to.
const PAPER: [[(usize, f64); 2]; 2] = [[(0, 225.0), (1, 441.0)], [(0, 563.0), (1, 2490.0)]];
/// Milliseconds of an update, and of a read, which take around 0.1 in both.
const PAPER_LATENCY: [[(usize, f64); 2]; 2] = [[(0, 4.4), (1, 0.1)], [(0, 0.7), (1, 0.1)]];

fn charts(report: &Report) -> Vec<Chart> {
    let loads = LOADS.map(|load| load.name);
    let [ceph, arion] = &PAPER;
    let title = "Figure 8.14a: YCSB over LevelDB, cache of 256 MB (load phase of the thesis: approximately)";
    let rates = arion_charts::rates(report, title, &loads, (ceph, arion));
    let [ceph, arion] = &PAPER_LATENCY;
    let title =
        "Figure 8.15a: latency of workload A, mean of the run (reads of the thesis: approximately)";
    let latencies = arion_charts::latencies(report, title, "run_a", (ceph, arion));
    [rates, latencies].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leveldb_that_is_missing_is_named() {
        let refused = run(&Options::default()).unwrap_err().to_string();
        assert_eq!(refused.contains("libleveldb-dev"), !cfg!(feature = "leveldb"), "{refused}");
    }

    #[test]
    fn the_papers_values_are_those_of_the_load_and_of_workload_a() {
        assert_eq!((LOADS[0].name, LOADS[1].name), ("load", "run_a"));
        let mut report = Report::new(ENTRY.name, 1);
        assert!(charts(&report).is_empty());
        report.figure("rados_run_a_per_s", 2000.0);
        assert_eq!(charts(&report).len(), 1);
        report.figure("rados_read_latency_us", 100.0);
        assert_eq!(charts(&report).len(), 2);
    }

    #[test]
    fn rates_have_least_ratios_and_reads_greatest_ones() {
        let mut report = Report::new(ENTRY.name, 1);
        for (name, value) in [
            ("rados_load_over_ceph_fuse", 2.5),
            ("rados_run_a_over_ceph_fuse", 5.7),
            ("rados_run_f_over_local", 0.7),
            ("rados_read_latency_over_ceph_fuse", 1.05),
            ("rados_read_latency_over_local", 1.42),
            ("embedded_read_latency_over_ceph_fuse", 9.0),
            ("embedded_load_over_ceph_fuse", 0.1),
        ] {
            report.figure(name, value);
        }
        assert_eq!(all_missed(&report), 0);
        let missing = [
            ("rados_load_over_ceph_fuse", 2.49),
            ("rados_run_a_over_ceph_fuse", 5.69),
            ("rados_run_f_over_local", 0.69),
            ("rados_read_latency_over_ceph_fuse", 1.06),
            ("rados_read_latency_over_local", 1.43),
            ("embedded_read_latency_over_local", 1.43),
        ];
        for (before, (name, value)) in missing.into_iter().enumerate() {
            report.figure(name, value);
            assert_eq!(all_missed(&report), before + 1, "{name}");
        }
    }
}
