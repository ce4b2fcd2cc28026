//! Work of which each step is durable before the next one begins: durable writes, and transactions of SQLite.

use super::stage::{Load, Stage, Timed};
use super::usual::{PER_S, synced_writes};
use crate::BenchError;

#[cfg(feature = "sqlite")]
mod sqlite;

/// The loads.
pub(crate) const LOADS: [Load; 2] = [
    Load { name: "fsync", unit: PER_S, run: fsync },
    Load { name: "sqlite", unit: PER_S, run: sqlite },
];

/// Durable writes.
const WRITES: f64 = 1_000.0;
/// Transactions of SQLite.
#[cfg(feature = "sqlite")]
const TRANSACTIONS: f64 = 200.0;

/// Blocks of 4 KiB at the end of a file, each synced.
fn fsync(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    synced_writes(stage, stage.count(WRITES, 4))
}

#[cfg(feature = "sqlite")]
fn sqlite(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    sqlite::transactions(stage, stage.count(TRANSACTIONS, 4))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &Stage<'_>) -> Result<Timed, BenchError> {
    let missing = "missing: SQLite in this program (`make build-ceph` builds one with it)";
    Err(BenchError::Invalid(missing.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_stage;
    use super::*;

    #[test]
    fn writes_work_on_a_plain_directory() {
        on_stage(|stage| {
            let timed = fsync(stage).unwrap();
            assert!(timed.operations == 5.0 && timed.seconds > 0.0 && timed.lost.is_none());
            assert_eq!(std::fs::metadata(stage.first.join("log")).unwrap().len(), 5 * 4096);
        });
    }

    #[test]
    #[cfg(not(feature = "sqlite"))]
    fn sqlite_that_is_missing_is_named() {
        on_stage(|stage| {
            let missing = sqlite(stage).unwrap_err().to_string();
            assert!(missing.contains("SQLite") && missing.contains("make build-ceph"), "{missing}");
        });
    }
}
