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

use crate::cluster_fs::{self, compare};
use crate::cluster_loads::{Load, oltp::LOADS};
use crate::cluster_mounts::{Kind, Subject};
use crate::machine::Need;
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
    compare(ENTRY.name, (&LOADS, &subjects, &needs), aim, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_the_higher_aim() {
        let [ceph, rados, _, local] = Subject::with_journals(2);
        let aims = LOADS.map(|load| aim(&load, rados, ceph));
        assert_eq!(aims, [8.0, 3.2, 8.0, 3.2, 8.0, 3.2, 8.0, 3.2].map(Some));
        assert_eq!(aim(&LOADS[0], rados, local), Some(0.7));
        assert_eq!(aim(&LOADS[0], local, ceph), None);
    }
}
