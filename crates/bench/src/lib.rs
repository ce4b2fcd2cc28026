//! Workloads, figures and plots for Thalweg.
//!
//! A benchmark is one file with one function `run(&Options) -> Result<Report, BenchError>`, and one
//! line in [`list`]. Its figures are counts or virtual times where possible, so that they are a
//! function of the seed and the sizes alone.
//!
//! - [`report`]: the result of a run, as JSON and as SVG;
//! - [`page`]: the page of results, `docs/benchmarks.md`;
//! - [`plot`]: bars and lines, the paper's values beside ours;
//! - [`traces`]: generated block traces of servers, and readers of recorded ones;
//! - [`chain_cache`]: hit rate of the tail cache;
//! - [`chain_gc`]: rate of user writes while the volume is cleaned;
//! - [`chain_reads`]: traces with reads, chained and striped;
//! - [`chain_power`]: time in stand-by of the body's second drives;
//! - [`chain_restart`]: bytes read by opening after a crash;
//! - [`chain_memory`]: RAM of the index for each stored block;
//! - [`txn_cpu`]: processor time of transactions;
//! - [`txn_contention`]: rate of transactions that conflict;
//! - [`imgstore`](mod@imgstore): two stores in one transaction, as libraries, in threads, in processes;
//! - `engine`: our key-value stores and other engines, behind one interface;
//! - [`kv`]: our stores beside other engines under load;
//! - [`txn_put`]: bytes and flushes that a durable small put costs a device;
//! - [`mod@fs`]: filesystems on the same disk, ours and others;
//! - [`cluster_creates`]: clients make files in directories of their own, with and without interference;
//! - [`cluster_fs`]: a shared filesystem under usual loads, beside `ceph-fuse` on the same Ceph;
//! - [`cluster_losing`]: the same under the loads that suit it least, also beside a local mount;
//! - [`arion_filebench`]: a mail server, and threads that make files, on a client with a journal and without;
//! - [`arion_fs`]: durable writes and SQLite on one with a client's journal, beside the same;
//! - [`arion_fsync`]: what an fsync costs a client with a journal;
//! - [`arion_logs`]: a mail server's log, and programs of a desktop, on one and without;
//! - [`arion_losing`]: the loads that suit a client's journal least, in virtual time;
//! - [`arion_move`]: a mount with a journal moves to another machine while programs work;
//! - [`arion_objects`]: what object servers get so that its batches are whole after a crash;
//! - [`arion_replicate`]: the same, where the journal has a second copy at a keeper;
//! - [`arion_recall`]: a client waits for what one with a journal has not sent;
//! - [`arion_redis`], [`arion_oltp`], [`arion_leveldb`]: Redis, MariaDB and LevelDB on one, beside `ceph-fuse` and a local mount;
//! - [`arion_recovery`]: a client's journal is recovered after a power cut;
//! - [`arion_scale`]: many clients with journals on many object servers;
//! - [`arion_vulnerable`]: what a power cut of a client would lose;
//! - [`arion_zipf`]: random writes of which many overwrite others;
//! - [`cluster_recall`]: a client waits for what another one has made;
//! - [`cluster_restart`]: a server of files is killed under its clients;
//! - [`cluster_server`]: a server of files, beside its filesystem alone;
//! - [`fs_many`]: a filesystem with millions of files;
//! - [`okeanos`]: the modes of the in-place store, on simulated drives;
//! - [`nbd`]: volumes over NBD, beside other servers on the same disk;
//! - [`rados_device`]: devices on the objects of a Ceph cluster, beside librados alone;
//! - [`replica`]: replicas of a volume, on a simulated network;
//! - [`replica_real`]: the same in real time, through TLS on one machine;
//! - [`stale_block`]: reads of old versions on disks that are written, and on tiers;
//! - [`stale_kv`]: the same of values of several blocks;
//! - [`stale_cost`]: the time to ask for the costs of versions;
//! - [`stale_studies`]: reads of old versions on three emulated systems;
//! - [`steady_sim`]: write amplification and evenness of a chain that is nearly full;
//! - [`steady`]: nearly full volumes and filesystems, beside their peers on the same disk.
//!
//! # Lock order
//!
//! The names of a simulated pool of files, then their number. Every other lock is held alone, for a few statements.

mod arion_charts;
pub mod arion_filebench;
mod arion_files;
pub mod arion_fs;
pub mod arion_fsync;
pub mod arion_leveldb;
pub mod arion_logs;
pub mod arion_losing;
mod arion_machines;
pub mod arion_move;
pub mod arion_objects;
pub mod arion_oltp;
mod arion_own_client;
pub mod arion_recall;
pub mod arion_recovery;
pub mod arion_redis;
pub mod arion_replicate;
pub mod arion_scale;
mod arion_site;
mod arion_subject;
pub mod arion_vulnerable;
pub mod arion_zipf;
mod ceph;
mod ceph_metadata;
mod ceph_model;
pub mod chain_cache;
pub mod chain_gc;
pub mod chain_memory;
pub mod chain_power;
pub mod chain_reads;
pub mod chain_restart;

pub mod cluster_creates;
pub mod cluster_fs;
mod cluster_loads;
pub mod cluster_losing;
mod cluster_mounts;
pub mod cluster_recall;
pub mod cluster_restart;
pub mod cluster_server;
mod cluster_site;
mod cluster_wire;
mod engine;
pub mod fs;
pub mod fs_many;
pub mod imgstore;
pub mod kv;
#[cfg(feature = "leveldb")]
mod level_stores;
mod loops;
mod machine;
pub mod nbd;
pub mod okeanos;
pub mod page;
mod peer;
pub mod plot;
pub mod rados_device;
mod recency;
mod replay;
pub mod replica;
pub mod replica_real;
pub mod report;
mod rig;
pub mod stale_block;
pub mod stale_cost;
pub mod stale_kv;
pub mod stale_studies;
pub mod steady;
pub mod steady_sim;
pub mod traces;
pub mod txn_contention;
pub mod txn_cpu;
pub mod txn_put;

use std::ffi::OsString;
use std::path::PathBuf;

pub use report::{Figures, Report};

/// The settings of a run. A benchmark ignores those that do not concern it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all random choices.
    pub seed: u64,
    /// The size of the run as a share of the paper's; `None` for the benchmark's own default.
    pub scale: Option<f64>,
    /// Recorded traces to replay in place of generated ones, where the benchmark replays traces.
    pub traces: Vec<PathBuf>,
    /// The names of the loads to run, where the benchmark has several; all when empty.
    pub loads: Vec<String>,
    /// Folder for the files of benchmarks that use a real disk; the system's folder for temporary files
    /// when absent.
    pub dir: Option<PathBuf>,
    /// The program `thalweg`, for benchmarks that serve or mount volumes with it.
    pub program: Option<PathBuf>,
    /// A command that calls [`imgstore::serve_store`] with its last two arguments, for benchmarks that
    /// have stores in processes of their own.
    pub store_process: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            scale: None,
            traces: Vec::new(),
            loads: Vec::new(),
            dir: None,
            program: None,
            store_process: Vec::new(),
        }
    }
}

impl Options {
    /// Whether a load is selected.
    fn runs(&self, load: &str) -> bool {
        self.loads.is_empty() || self.loads.iter().any(|name| name == load)
    }
}

/// What the figures of a benchmark depend on besides its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Simulated drives in virtual time: the figures are a function of the seed.
    Virtual,
    /// Counts without time: the figures are a function of the seed.
    Counts,
    /// Real time, or counts of a real device: the figures depend on the machine.
    Real,
}

/// One benchmark.
#[derive(Clone, Copy, Debug)]
pub struct BenchEntry {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    /// What its figures depend on.
    pub clock: Clock,
    /// The names of its loads, of which a run may choose some; empty for a benchmark that has no choice.
    pub loads: fn() -> Vec<String>,
    /// Whether it can replay recorded traces.
    pub traces: bool,
    /// Runs the benchmark.
    pub run: fn(&Options) -> Result<Report, BenchError>,
}

const BENCHES: &[BenchEntry] = &[
    arion_filebench::CREATEFILES,
    arion_filebench::VARMAIL,
    arion_fs::ENTRY,
    arion_fsync::ENTRY,
    arion_leveldb::ENTRY,
    arion_logs::ENTRY,
    arion_losing::ENTRY,
    arion_move::ENTRY,
    arion_objects::ENTRY,
    arion_replicate::ENTRY,
    arion_oltp::ENTRY,
    arion_recall::ENTRY,
    arion_recovery::ENTRY,
    arion_redis::ENTRY,
    arion_scale::ENTRY,
    arion_vulnerable::ENTRY,
    arion_zipf::ENTRY,
    chain_cache::ENTRY,
    chain_gc::ENTRY,
    chain_memory::ENTRY,
    chain_power::ENTRY,
    chain_reads::ENTRY,
    chain_restart::ENTRY,
    cluster_creates::ENTRY,
    cluster_fs::ENTRY,
    cluster_losing::ENTRY,
    cluster_recall::ENTRY,
    cluster_restart::ENTRY,
    cluster_server::ENTRY,
    fs::ENTRY,
    fs_many::ENTRY,
    imgstore::ENTRY,
    kv::ENTRY,
    nbd::ENTRY,
    okeanos::filebench::ENTRY,
    okeanos::logs::ENTRY,
    okeanos::parallel::ENTRY,
    okeanos::postmark::ENTRY,
    okeanos::recovery::ENTRY,
    okeanos::streams::ENTRY,
    rados_device::ENTRY,
    replica::ENTRY,
    replica_real::ENTRY,
    stale_block::ENTRY,
    stale_block::TIERS,
    stale_cost::ENTRY,
    stale_kv::ENTRY,
    stale_studies::ENTRY,
    steady::ENTRY,
    steady_sim::ENTRY,
    txn_contention::ENTRY,
    txn_cpu::ENTRY,
    txn_put::ENTRY,
];

/// Every benchmark.
pub fn list() -> &'static [BenchEntry] {
    BENCHES
}

/// Runs the benchmark called `name`.
///
/// # Errors
/// [`BenchError::Unknown`], [`BenchError::Invalid`] for a load that it does not have or traces that it
/// cannot replay, or the error of the benchmark.
pub fn run(name: &str, options: &Options) -> Result<Report, BenchError> {
    let entry = list().iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| BenchError::Unknown(name.to_owned()))?;
    let known = (entry.loads)();
    if let Some(load) = options.loads.iter().find(|load| !known.contains(*load)) {
        let choice = match known.is_empty() {
            true => "it has no loads to choose from".to_owned(),
            false => format!("known are: {}", known.join(", ")),
        };
        return Err(BenchError::Invalid(format!("{name} has no load called {load}; {choice}")));
    }
    if !entry.traces && !options.traces.is_empty() {
        return Err(BenchError::Invalid(format!("{name} does not replay recorded traces")));
    }
    (entry.run)(options)
}

/// Errors of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There is no such benchmark.
    #[error("there is no benchmark called {0}; `thalweg bench --list` names them")]
    Unknown(String),
    /// The options are invalid.
    #[error("invalid option: {0}")]
    Invalid(String),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A trace has no known format, or is damaged.
    #[error("{}, line {line}: {detail}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why it was refused.
        detail: String,
    },
    /// A stored result, the page's template or a quotation of a figure is invalid.
    #[error("{}: {detail}", path.display())]
    Page {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A plot could not be drawn.
    #[error("cannot draw the plot: {0}")]
    Plot(String),
    /// The system under test failed.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_unknown_ones_refused() {
        let mut names: Vec<_> = list().iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), list().len());
        let missing = run("no-such-bench", &Options::default());
        assert!(matches!(missing, Err(BenchError::Unknown(_))));
    }

    #[test]
    fn every_benchmark_refuses_loads_and_traces_that_it_would_ignore() {
        for entry in list() {
            let known = (entry.loads)();
            let loads = known.first().cloned().into_iter().chain(["cib".to_owned()]).collect();
            let refused = run(entry.name, &Options { loads, ..Options::default() }).unwrap_err();
            let told =
                matches!(refused, BenchError::Invalid(_)) && refused.to_string().contains(" cib;");
            assert!(
                told && known.iter().all(|load| refused.to_string().contains(load)),
                "{refused}"
            );
            if !entry.traces {
                let options = Options { traces: vec!["trace".into()], ..Options::default() };
                assert!(matches!(run(entry.name, &options), Err(BenchError::Invalid(_))));
            }
        }
    }
}
