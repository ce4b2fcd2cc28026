//! `cluster-fs`: a shared filesystem under usual loads, beside a CephFS with `ceph-fuse` (real time).
//!
//! The program that the variable `THALWEG_MINI_CLUSTER` names starts a Ceph cluster on this machine: three object servers
//! with BlueStore and three copies of each object, and a metadata server. Two clients mount each of these filesystems through
//! FUSE:
//!
//! | name | filesystem |
//! |---|---|
//! | `ceph_fuse` | the CephFS, by `ceph-fuse` |
//! | `rados` | ours on the same Ceph cluster, with contents in objects |
//! | `embedded` | ours on a volume in a folder of the server's machine, without copies |
//!
//! Each load runs on each in turns, three rounds, always in a new directory. A ratio is that of medians over the rounds; above
//! 1 ours is the faster one.
//!
//! | load | rate |
//! |---|---|
//! | `creates` | empty files made in one directory, until they are durable |
//! | `fsync` | writes of 4 KiB at the end of a file, each with an `fsync` |
//! | `untar` | files of an archive of 800 sources unpacked, until their names are durable |
//! | `postmark` | files of 500 B to 20 kB made by 16 threads, with appends and reads, every write synced |
//! | `cached_random`, `cached_sequential` | reads of 4 KiB, and MiB in reads of 4 MiB, of a file that the client has read |
//! | `uncached_random`, `uncached_sequential` | the same of a file that another client has written, and this one has never read |
//! | `stat` | attributes of 10,000 files that another client has made, by name |
//!
//! | figure | meaning |
//! |---|---|
//! | `rados_LOAD_over_ceph_fuse`, `embedded_…` | rate of ours over that of `ceph-fuse` |
//! | `ceph_fuse_LOAD_per_s`, `rados_…`, `embedded_…` | the rates; `_mib_per_s` of sequential reads |
//! | `rados_LOAD_calls`, `embedded_…` | calls to our server for each operation, preparations included |
//! | `below_aim` | the ratios below their aims: 5 for `creates`, 1 for the others |

use thalweg_env::Env;

use crate::ceph::Ceph;
use crate::cluster_loads::{self, Load, Plan, below, usual::LOADS};
use crate::cluster_mounts::{Kind, Site, Subject};
use crate::fs::loads::SourceTree;
use crate::machine::{Machine, Need};
use crate::rig::{self, failed};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-fs",
    about: "a shared filesystem through FUSE beside ceph-fuse on the same Ceph cluster; needs the feature librados",
    clock: crate::Clock::Real,
    loads: || LOADS.map(|load| load.name.to_owned()).into(),
    traces: false,
    run,
};

/// The requirements of a Ceph cluster with mounts.
pub(crate) const NEEDS: [Need; 9] = [
    Need::Librados,
    Need::MiniCluster,
    Need::CephProgram("ceph-mon"),
    Need::CephProgram("ceph-osd"),
    Need::CephProgram("ceph-mds"),
    Need::CephProgram("ceph-fuse"),
    Need::Root,
    Need::Fuse,
    Need::Program("fusermount3"),
];

/// Our least ratio over `ceph-fuse`.
fn aim(load: &Load) -> f64 {
    if load.name == "creates" { 5.0 } else { 1.0 }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let kinds = [Kind::CephFuse, Kind::Rados, Kind::Embedded];
    let mut report = measure(ENTRY.name, &LOADS, &kinds.map(Kind::subject), &NEEDS, options)?;
    let missed = below(&report, &LOADS, Kind::CephFuse, aim);
    report.figure("below_aim", missed);
    Ok(report)
}

/// As [`measure`], with how many ratios miss their aims: `aim` is the least for a load of ours over a peer, if there is one.
pub(crate) fn compare(
    name: &'static str,
    (loads, subjects, needs): (&[Load], &[Subject], &[Need]),
    aim: impl Fn(&Load, Subject, Subject) -> Option<f64>,
    options: &Options,
) -> Result<Report, BenchError> {
    let mut report = measure(name, loads, subjects, needs, options)?;
    let missed = cluster_loads::missed(&report, loads, subjects, aim);
    report.figure("below_aim", missed);
    Ok(report)
}

/// Starts a Ceph cluster and the filesystems, and measures the selected loads on them.
pub(crate) fn measure(
    name: &'static str,
    loads: &[Load],
    subjects: &[Subject],
    needs: &[Need],
    options: &Options,
) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let machine = Machine::new(options, scale, needs.iter().copied())?;
    let tree = SourceTree::make(machine.folder.path())?;
    let loads: Vec<Load> = loads.iter().filter(|load| options.runs(load.name)).copied().collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let _entered = runtime.enter();
    let env = Env::real();
    let ceph = Ceph::start("bluestore", 1)?;
    let mut sites = Vec::new();
    for subject in subjects {
        sites.push(Site::start(*subject, &machine, &ceph)?);
    }
    let mut report = Report::new(name, options.seed);
    report.figure("scale", scale);
    let plan =
        Plan { env: &env, sites: &sites, loads: &loads, tree: &tree, scale, seed: options.seed };
    cluster_loads::measure(&plan, &mut report)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_named() {
        let refused = run(&Options::default()).unwrap_err().to_string();
        assert!(refused.contains("the program thalweg"), "{refused}");
        assert_eq!(refused.contains("make build-ceph"), !cfg!(feature = "librados"), "{refused}");
        let has_program = std::env::var_os("THALWEG_MINI_CLUSTER").is_some();
        assert_eq!(refused.contains("THALWEG_MINI_CLUSTER"), !has_program, "{refused}");
    }

    #[test]
    fn creates_have_an_aim_of_their_own() {
        let aims: Vec<f64> = LOADS.iter().map(aim).collect();
        assert_eq!(aims.iter().filter(|aim| **aim == 5.0).count(), 1);
        assert_eq!((LOADS[0].name, aims[0]), ("creates", 5.0));
    }
}
