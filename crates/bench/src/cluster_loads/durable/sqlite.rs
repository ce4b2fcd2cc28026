//! Transactions of SQLite with a rollback journal: each makes the journal's file, writes and syncs it, writes and syncs the database,
//! and removes the journal.

use std::path::Path;

use rusqlite::{Connection, params};

use super::super::stage::{Stage, Timed};
use crate::BenchError;
use crate::rig::failed;

const TABLE: &str = "CREATE TABLE entries (id INTEGER PRIMARY KEY, value TEXT NOT NULL)";
const INSERT: &str = "INSERT INTO entries (id, value) VALUES (?1, ?2)";

/// Bytes of a value.
const VALUE: usize = 100;

/// Small inserts into a table with a primary key, each a transaction.
pub(super) fn transactions(stage: &Stage<'_>, count: usize) -> Result<Timed, BenchError> {
    let connection = connect(&stage.first.join("entries.sqlite"))?;
    connection.execute_batch(TABLE).map_err(failed)?;
    let mut insert = connection.prepare(INSERT).map_err(failed)?;
    stage.time(count, || {
        let mut each = |number: usize| {
            // Outside of an explicit transaction each statement is one.
            insert.execute(params![number as i64, value(number)]).map(drop)
        };
        (0..count).try_for_each(&mut each).map_err(failed)
    })
}

fn value(number: usize) -> String {
    format!("{number:0VALUE$}")
}

/// Opens a database that syncs as SQLite does by default.
fn connect(path: &Path) -> Result<Connection, BenchError> {
    let connection = Connection::open(path).map_err(failed)?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))
        .map_err(failed)?;
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
    match mode.as_str() {
        "delete" => Ok(connection),
        other => Err(BenchError::Failed(format!("SQLite keeps the journal mode {other}").into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::on_stage;
    use super::*;

    #[test]
    fn transactions_work_on_a_plain_directory() {
        on_stage(|stage| {
            let timed = transactions(stage, 7).unwrap();
            assert!(timed.operations == 7.0 && timed.seconds > 0.0 && timed.lost.is_none());
            let names = std::fs::read_dir(&stage.first).unwrap().count();
            assert_eq!(names, 1, "each transaction removes its journal");
            let connection = connect(&stage.first.join("entries.sqlite")).unwrap();
            let ask = |what: &str| connection.query_row(what, [], |row| row.get::<_, i64>(0));
            assert_eq!(ask("SELECT count(*) FROM entries WHERE length(value) = 100").unwrap(), 7);
            assert_eq!(ask("PRAGMA synchronous").unwrap(), 2);
            // The table is not new.
            assert!(transactions(stage, 1).is_err());
        });
    }
}
