//! `arion-redis`: Redis on a shared filesystem with a client's journal, beside a CephFS with `ceph-fuse` and a mount of a volume that is
//! not shared (real time; thesis, 8.5).
//!
//! The Ceph cluster, the rounds, the mounts and the journal are those of [`arion_fs`](crate::arion_fs). The first client runs a server of
//! Redis for each load, with its file of commands on the mount; `redis-benchmark` sets values of 3 bytes through a Unix socket.
//!
//! | load | rate |
//! |---|---|
//! | `always_1`, `always_10`, `always_100`, `always_1000` | commands a second of so many connections, `appendfsync always`: the server syncs the file before it answers |
//! | `everysec_10` | of 10 connections, `appendfsync everysec` |
//!
//! | figure | meaning |
//! |---|---|
//! | `rados_LOAD_over_ceph_fuse`, `rados_LOAD_over_local`, `embedded_…` | rate of ours over that of the other one; above 1 ours is the faster one |
//! | `ceph_fuse_LOAD_per_s`, `local_…`, `rados_…`, `embedded_…` | the rates |
//! | `rados_LOAD_calls`, `embedded_…` | calls to our server for each command, preparations included |
//! | `rados_LOAD_drain_s`, `embedded_…` | seconds from the end of the load until the server has made all of it durable |
//! | `below_aim` | the ratios that miss their aims: `rados_…_over_ceph_fuse` is to be 10 with one connection, 1 with more, and 0.95 for `everysec_10`; all `_over_local` 0.7 |

use crate::arion_charts;
use crate::cluster_fs::{self, compare};
use crate::cluster_loads::{Load, redis::LOADS};
use crate::cluster_mounts::{Kind, Subject};
use crate::machine::Need;
use crate::plot::Chart;
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-redis",
    about: "Redis on a shared filesystem with a client's journal, beside ceph-fuse and a local mount; needs the feature librados",
    clock: crate::Clock::Real,
    loads: || LOADS.map(|load| load.name.to_owned()).into(),
    traces: false,
    run,
};

const NEEDS: [Need; 4] = [
    Need::LoopDevices,
    Need::Program("losetup"),
    Need::Packaged { program: "redis-server", package: "redis-server" },
    Need::Packaged { program: "redis-benchmark", package: "redis-tools" },
];

/// Our least ratio; `None` where there is no aim.
fn aim(load: &Load, ours: Subject, peer: Subject) -> Option<f64> {
    match (peer.kind, ours.kind) {
        (Kind::Local, _) => Some(0.7),
        (Kind::CephFuse, Kind::Rados) => Some(match load.name {
            "always_1" => 10.0,
            "everysec_10" => 0.95,
            _ => 1.0,
        }),
        _ => None,
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let needs = [&cluster_fs::NEEDS[..], &NEEDS].concat();
    let mut report =
        compare(ENTRY.name, (&LOADS, &Subject::with_journals(1), &needs), aim, options)?;
    report.charts = charts(&report);
    Ok(report)
}

/// Operations in a second of one connection, each of them synced.
const PAPER: [f64; 2] = [233.0, 1669.0];

fn charts(report: &Report) -> Vec<Chart> {
    let loads = LOADS.map(|load| load.name);
    let [ceph, arion] = PAPER.map(|rate| [(0, rate)]);
    let title = "Figure 8.13: SET of Redis";
    arion_charts::rates(report, title, &loads, (&ceph, &arion)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_loads::missed;

    #[test]
    fn the_papers_values_are_those_of_one_connection() {
        assert_eq!(LOADS[0].name, "always_1");
        let mut report = Report::new(ENTRY.name, 1);
        report.figure("ceph_fuse_always_1_per_s", 200.0);
        let [chart] = &charts(&report)[..] else { panic!("one chart") };
        let points: Vec<_> = chart.series.iter().map(|it| &it.points[..]).collect();
        assert_eq!(points, [[(0.0, 233.0)], [(0.0, 1669.0)], [(0.0, 200.0)]]);
    }

    #[test]
    fn one_connection_has_the_highest_aim() {
        let subjects = Subject::with_journals(1);
        let mut report = Report::new(ENTRY.name, 1);
        for (name, value) in [
            ("rados_always_1_over_ceph_fuse", 10.0),
            ("rados_always_1000_over_ceph_fuse", 1.0),
            ("rados_everysec_10_over_ceph_fuse", 0.95),
            ("embedded_always_1_over_ceph_fuse", 0.1),
            ("embedded_always_1_over_local", 0.7),
        ] {
            report.figure(name, value);
        }
        assert_eq!(missed(&report, &LOADS, &subjects, aim), 0);
        let low = [
            ("rados_always_1_over_ceph_fuse", 9.99),
            ("rados_always_1000_over_ceph_fuse", 0.99),
            ("rados_everysec_10_over_ceph_fuse", 0.94),
            ("embedded_always_1_over_local", 0.69),
        ];
        for (before, (name, value)) in low.into_iter().enumerate() {
            report.figure(name, value);
            assert_eq!(missed(&report, &LOADS, &subjects, aim), before + 1, "{name}");
        }
    }
}
