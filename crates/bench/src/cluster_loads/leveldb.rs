//! LevelDB whose writes are synced: keys are put, and the workloads A and F of YCSB run on them.

use super::stage::{Load, Stage, Timed};
use super::usual::PER_S;
use crate::BenchError;

#[cfg(feature = "leveldb")]
mod ycsb;

/// The loads. `run_a` times its reads.
pub(crate) const LOADS: [Load; 3] = [
    Load { name: "load", unit: PER_S, run: load },
    Load { name: "run_a", unit: PER_S, run: |stage| run(stage, false) },
    Load { name: "run_f", unit: PER_S, run: |stage| run(stage, true) },
];

/// Keys, and operations of a run.
#[cfg(feature = "leveldb")]
const KEYS: f64 = 100_000.0;

#[cfg(feature = "leveldb")]
fn load(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    ycsb::load(stage, stage.count(KEYS, 10))
}

/// Half of the operations are reads; the others are updates, each behind a read of the same key if so.
#[cfg(feature = "leveldb")]
fn run(stage: &Stage<'_>, reads_before: bool) -> Result<Timed, BenchError> {
    ycsb::run(stage, stage.count(KEYS, 10), reads_before)
}

#[cfg(not(feature = "leveldb"))]
fn load(_: &Stage<'_>) -> Result<Timed, BenchError> {
    Err(missing())
}

#[cfg(not(feature = "leveldb"))]
fn run(_: &Stage<'_>, _: bool) -> Result<Timed, BenchError> {
    Err(missing())
}

#[cfg(not(feature = "leveldb"))]
fn missing() -> BenchError {
    let missing = "missing: LevelDB in this program (`make build-ceph` builds one with it)";
    BenchError::Invalid(missing.to_owned())
}

#[cfg(test)]
#[cfg(not(feature = "leveldb"))]
mod tests {
    use super::super::tests::on_stage;
    use super::*;

    #[test]
    fn leveldb_that_is_missing_is_named() {
        on_stage(|stage| {
            for load in LOADS {
                let missing = (load.run)(stage).unwrap_err().to_string();
                assert!(missing.contains("LevelDB") && missing.contains("make build-ceph"));
            }
        });
    }
}
