//! The program from outside: commands and their output.

#![allow(clippy::unwrap_used)]

mod administration;
mod attention;
mod bad_input;
mod bench;
mod block_device;
#[path = "../../../fuse/tests/common/busy.rs"]
mod busy;
#[cfg(feature = "librados")]
mod ceph;
mod clients;
mod cluster;
mod cluster_access;
mod cluster_away;
mod cluster_calls;
mod cluster_caps;
mod cluster_conflicts;
mod cluster_journal;
mod cluster_keeper;
mod cluster_mirror;
mod cluster_move;
mod cluster_pending;
mod cluster_selftest;
mod cluster_status;
mod cluster_stopped;
mod databases;
mod files;
mod in_place;
mod kv;
mod levels;
mod lost_manifest;
#[cfg(feature = "librados")]
#[path = "../../../rados/tests/rados/mini_cluster.rs"]
mod mini_cluster;
mod mounts;
mod mounts_others;
mod network;
mod output;
mod partitions;
mod random_calls;
mod raw_devices;
mod read_only;
mod replica;
mod replica_changes;
mod replica_clients;
mod replica_follow;
mod replica_idle;
mod replica_kills;
mod resize;
mod run;
mod snapshots;
mod stale;
mod text;
#[cfg(feature = "librados")]
#[path = "../../../fuse/tests/common/tools.rs"]
mod tools;
