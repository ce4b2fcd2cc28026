//! `arion-oltp`: MariaDB on a shared filesystem with a client's journal, beside a CephFS with `ceph-fuse` and a mount of a volume that is not
//! shared (real time; thesis, 8.4).
//!
//! The Ceph cluster, the rounds, the mounts and the journals are those of [`arion_fs`](crate::arion_fs); here both clients have a journal. A
//! client runs a server of MariaDB for each load, with its files on the mount and a table of 10,000 rows; `sysbench` runs statements
//! through a Unix socket. Each is a transaction of InnoDB, which is synced before it is answered.
//!
//! | load | rate |
//! |---|---|
//! | `update_1`, `update_10` | updates of an indexed column a second (`oltp_update_index`), of so many threads |
//! | `insert_1`, `insert_10` | inserts a second (`oltp_insert`) |
//! | `two_update_1`, … | the same, of two servers at the same time: one on each client, in directories of their own; both rates together |
//!
//! All clients, servers and object servers share the processors of this machine. In the paper they are machines of their own.
//!
//! | figure | meaning |
//! |---|---|
//! | `rados_LOAD_over_ceph_fuse`, `rados_LOAD_over_local`, `embedded_…` | rate of ours over that of the other one; above 1 ours is the faster one |
//! | `ceph_fuse_LOAD_per_s`, `local_…`, `rados_…`, `embedded_…` | the rates |
//! | `rados_LOAD_calls`, `embedded_…` | calls to our server for each statement, preparations included |
//! | `rados_LOAD_drain_s`, `embedded_…` | seconds from the end of the load until the server has made all of it durable |
//! | `below_aim` | the ratios that miss their aims: `rados_…_over_ceph_fuse` is to be 8 with one thread of a server and 3.2 with ten, all `_over_local` 0.7 |

use crate::arion_charts;
use crate::cluster_fs::{self, compare};
use crate::cluster_loads::{Load, oltp::LOADS};
use crate::cluster_mounts::{Kind, Subject};
use crate::machine::Need;
use crate::plot::Chart;
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-oltp",
    about: "MariaDB on a shared filesystem with a client's journal, beside ceph-fuse and a local mount; needs the feature librados",
    clock: crate::Clock::Real,
    loads: || LOADS.map(|load| load.name.to_owned()).into(),
    traces: false,
    run,
};

const NEEDS: [Need; 5] = [
    Need::LoopDevices,
    Need::Program("losetup"),
    Need::Packaged { program: "mariadbd", package: "mariadb-server-core" },
    Need::Packaged { program: "mariadb", package: "mariadb-client-core" },
    Need::Packaged { program: "sysbench", package: "sysbench" },
];

/// Bytes of a volume in a folder: the databases of all rounds, and so much that none finds it nearly full.
const SIZE: &str = "8G";

/// Our least ratio; `None` where there is no aim.
fn aim(load: &Load, ours: Subject, peer: Subject) -> Option<f64> {
    match (peer.kind, ours.kind) {
        (Kind::Local, _) => Some(0.7),
        (Kind::CephFuse, Kind::Rados) => Some(if load.name.ends_with("_1") { 8.0 } else { 3.2 }),
        _ => None,
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let needs = [&cluster_fs::NEEDS[..], &NEEDS].concat();
    let subjects = Subject::with_journals(2).map(|subject| Subject { size: SIZE, ..subject });
    let mut report = compare(ENTRY.name, (&LOADS, &subjects, &needs), aim, options)?;
    report.charts = charts(&report);
    Ok(report)
}

/// Updates of one and of two servers over Ceph, by threads, as the text has them; of inserts it says that they are alike.
const PAPER: [(usize, f64); 4] = [(0, 4.9), (1, 2.3), (4, 8.2), (5, 3.2)];

fn charts(report: &Report) -> Vec<Chart> {
    let loads = LOADS.map(|load| load.name);
    let over = "Figure 8.8: updates and inserts of a database over Ceph, as the text has them";
    let rates = "Figure 8.8: updates and inserts of a database";
    let ratios = arion_charts::ratios(report, over, &loads, &PAPER);
    [ratios, arion_charts::rates(report, rates, &loads, (&[], &[]))].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_values_are_those_of_updates() {
        let named = PAPER.map(|(x, value)| (LOADS[x].name, value));
        let expected = [("update_1", 4.9), ("update_10", 2.3), ("two_update_1", 8.2)];
        assert_eq!(named[..3], expected);
        assert_eq!(named[3], ("two_update_10", 3.2));
        let mut report = Report::new(ENTRY.name, 1);
        assert!(charts(&report).is_empty());
        report.figure("rados_insert_1_over_ceph_fuse", 9.0).figure("rados_insert_1_per_s", 90.0);
        assert_eq!(charts(&report).len(), 2);
    }

    #[test]
    fn one_thread_has_the_higher_aim() {
        let [ceph, rados, _, local] = Subject::with_journals(2);
        let aims = LOADS.map(|load| aim(&load, rados, ceph));
        assert_eq!(aims, [8.0, 3.2, 8.0, 3.2, 8.0, 3.2, 8.0, 3.2].map(Some));
        assert_eq!(aim(&LOADS[0], rados, local), Some(0.7));
        assert_eq!(aim(&LOADS[0], local, ceph), None);
    }
}
