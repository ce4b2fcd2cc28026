//! `cluster-losing`: a shared filesystem under the loads that suit it least, beside a CephFS with `ceph-fuse` and a mount of
//! a volume that is not shared (real time).
//!
//! The filesystems are those of [`cluster_fs`], and `local`: a volume in a folder that `thalweg mount`
//! mounts without a server, for both clients. The rounds are as there.
//!
//! | load | rate |
//! |---|---|
//! | `rm`, `rm_other` | files of a tree of 800 sources that `rm -r` removes, by the client that has unpacked it, and by the other one, until that is durable |
//! | `untar_watched` | files of an archive unpacked, while the other client lists the tree with attributes every 10 ms |
//! | `append_one`, `append_two` | lines of 64 bytes that one client, and two at the same time, append to one file with `O_APPEND`; only lines that are in the file afterwards count |
//! | `git_status` | `git status` of a repository of 800 files, after the other client has checked out another branch, in which 100 files differ |
//!
//! | figure | meaning |
//! |---|---|
//! | `rados_LOAD_over_ceph_fuse`, `rados_LOAD_over_local`, `embedded_…` | rate of ours over that of the other one; above 1 ours is the faster one |
//! | `ceph_fuse_LOAD_per_s`, `local_…`, `rados_…`, `embedded_…` | the rates |
//! | `rados_LOAD_calls`, `embedded_…` | calls to our server for each operation, preparations included |
//! | `ceph_fuse_append_two_lost`, … | lines that were written and are not in the file, of all rounds |
//! | `slower_than_ceph_fuse`, `slower_than_local` | the ratios below 1 |

use crate::cluster_fs::{self, measure};
use crate::cluster_loads::{below, losing::LOADS};
use crate::cluster_mounts::Kind;
use crate::machine::Need;
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-losing",
    about: "the loads that suit a shared filesystem least, beside ceph-fuse and a local mount; needs the feature librados",
    clock: crate::Clock::Real,
    loads: || LOADS.map(|load| load.name.to_owned()).into(),
    traces: false,
    run,
};

fn run(options: &Options) -> Result<Report, BenchError> {
    let kinds = [Kind::CephFuse, Kind::Rados, Kind::Embedded, Kind::Local];
    let needs = [&cluster_fs::NEEDS[..], &[Need::CephProgram("git")]].concat();
    let mut report = measure(ENTRY.name, &LOADS, &kinds.map(Kind::subject), &needs, options)?;
    for (figure, peer) in
        [("slower_than_ceph_fuse", Kind::CephFuse), ("slower_than_local", Kind::Local)]
    {
        let slower = below(&report, &LOADS, peer, |_| 1.0);
        report.figure(figure, slower);
    }
    Ok(report)
}
