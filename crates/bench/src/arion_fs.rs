//! `arion-fs`: a shared filesystem with a client's journal under durable writes and transactions of SQLite, beside a CephFS
//! with `ceph-fuse` and a mount of a volume that is not shared (real time).
//!
//! The Ceph cluster and the rounds are those of [`cluster_fs`]. The first client does the work. Where it has a
//! journal, that is on a loop device over a file of 512 MiB, all of whose blocks were written before.
//!
//! | name | filesystem |
//! |---|---|
//! | `ceph_fuse` | the CephFS, by `ceph-fuse` |
//! | `rados` | ours on the same Ceph cluster, with a journal |
//! | `embedded` | ours on a volume in a folder of the server's machine, with a journal |
//! | `rados_unjournaled`, `embedded_unjournaled` | the same without a journal |
//! | `local` | a volume in a folder that `thalweg mount` mounts without a server |
//!
//! | load | rate |
//! |---|---|
//! | `fsync` | writes of 4 KiB at the end of a file, each with an `fsync` |
//! | `sqlite` | transactions of SQLite with a rollback journal (`journal_mode=DELETE`, `synchronous=FULL`), each of which inserts 100 bytes into a table with a primary key |
//!
//! A load ends when its last step is durable, which with a journal is before the server has it. The journal is written back before
//! another filesystem is measured.
//!
//! | figure | meaning |
//! |---|---|
//! | `rados_LOAD_over_ceph_fuse`, `rados_LOAD_over_local`, `embedded_…` | rate of ours over that of the other one; above 1 ours is the faster one |
//! | `rados_LOAD_over_unjournaled`, `embedded_…` | rate with a journal over that without |
//! | `rados_unjournaled_LOAD_over_ceph_fuse`, … | the ratios without a journal |
//! | `ceph_fuse_LOAD_per_s`, `local_…`, `rados_…`, … | the rates |
//! | `rados_LOAD_calls`, `rados_unjournaled_…`, … | calls to our server for each operation, preparations included |
//! | `rados_LOAD_drain_s`, `embedded_…` | seconds from the end of the load until the server has made all of it durable |
//! | `below_aim` | the ratios that miss their aims: `rados_…_over_ceph_fuse` is to be 10 for `fsync` and 8 for `sqlite`, all `_over_local` 0.7 |

use crate::arion_charts;
use crate::cluster_fs::{self, compare};
use crate::cluster_loads::{Load, durable::LOADS};
use crate::cluster_mounts::{Kind, Subject};
use crate::machine::Need;
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-fs",
    about: "durable writes and SQLite on a shared filesystem with a client's journal, beside ceph-fuse and a local mount; needs the feature librados",
    clock: crate::Clock::Real,
    loads: || LOADS.map(|load| load.name.to_owned()).into(),
    traces: false,
    run,
};

const SUBJECTS: [Subject; 6] = [
    subject("ceph_fuse", Kind::CephFuse, 0),
    subject("rados", Kind::Rados, 1),
    subject("rados_unjournaled", Kind::Rados, 0),
    subject("embedded", Kind::Embedded, 1),
    subject("embedded_unjournaled", Kind::Embedded, 0),
    subject("local", Kind::Local, 0),
];

const fn subject(name: &'static str, kind: Kind, journals: usize) -> Subject {
    Subject { name, kind, journals, size: "2G" }
}

/// Our least ratio; `None` where there is no aim.
fn aim(load: &Load, ours: Subject, peer: Subject) -> Option<f64> {
    match (peer.kind, ours.kind) {
        _ if ours.journals == 0 => None,
        (Kind::Local, _) => Some(0.7),
        (Kind::CephFuse, Kind::Rados) => Some(if load.name == "sqlite" { 8.0 } else { 10.0 }),
        _ => None,
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let needs = [&cluster_fs::NEEDS[..], &[Need::LoopDevices, Need::Program("losetup")]].concat();
    let mut report = compare(ENTRY.name, (&LOADS, &SUBJECTS, &needs), aim, options)?;
    let loads = LOADS.map(|load| load.name);
    report.charts =
        arion_charts::rates(&report, "Durable writes", &loads, (&[], &[])).into_iter().collect();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_loads;

    fn missed(report: &Report) -> usize {
        cluster_loads::missed(report, &LOADS, &SUBJECTS, aim)
    }

    #[test]
    fn all_that_is_missing_is_named() {
        let refused = run(&Options::default()).unwrap_err().to_string();
        assert!(refused.contains("the program thalweg"), "{refused}");
        assert_eq!(refused.contains("make build-ceph"), !cfg!(feature = "librados"), "{refused}");
        let has_devices = std::path::Path::new("/dev/loop-control").exists();
        assert_eq!(refused.contains("the module loop"), !has_devices, "{refused}");
    }

    #[test]
    fn the_aims_are_those_of_figures_with_a_journal() {
        let mut report = Report::new(ENTRY.name, 1);
        assert_eq!(missed(&report), 0, "nothing was measured");
        for (name, value) in [
            ("rados_fsync_over_ceph_fuse", 10.0),
            ("rados_sqlite_over_ceph_fuse", 8.0),
            ("rados_fsync_over_local", 0.7),
            ("embedded_sqlite_over_local", 0.7),
            ("embedded_sqlite_over_ceph_fuse", 0.1),
            ("rados_unjournaled_fsync_over_local", 0.1),
            ("rados_fsync_over_unjournaled", 0.1),
        ] {
            report.figure(name, value);
        }
        assert_eq!(missed(&report), 0);
        let low = [
            ("rados_fsync_over_ceph_fuse", 9.999),
            ("rados_sqlite_over_ceph_fuse", 7.999),
            ("rados_fsync_over_local", 0.699),
            ("embedded_sqlite_over_local", 0.699),
        ];
        for (before, (name, value)) in low.into_iter().enumerate() {
            report.figure(name, value);
            assert_eq!(missed(&report), before + 1, "{name}");
        }
    }
}
