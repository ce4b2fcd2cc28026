//! SQLite.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::{Database, Shell, numbers, value};
use crate::run::has;

/// A database with a rollback journal, or, if `WAL`, with a log ahead of it.
pub(crate) struct Sqlite<const WAL: bool>(Shell);

const FILE: &str = "rows.sqlite";

impl<const WAL: bool> Database for Sqlite<WAL> {
    const SIZES: [&str; 2] = ["96M", "16M"];

    fn is_here() -> bool {
        has("sqlite3")
    }

    fn start(directory: &Path, _scratch: &Path) -> Sqlite<WAL> {
        fs::create_dir_all(directory).unwrap();
        // Else it keeps lines to itself.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "sqlite3", "-batch", "-bail"]).arg(directory.join(FILE));
        let mut shell = Shell::start(&mut command);
        let mode = if WAL { "wal" } else { "delete" };
        // FULL does not sync the removal of a rollback journal, with which a transaction ends.
        let answer =
            shell.ask(&format!("PRAGMA synchronous = EXTRA; PRAGMA journal_mode = {mode};"));
        assert_eq!(answer.as_deref(), Some(mode));
        // Pages of the log: the database gets them now and then.
        assert_eq!(shell.ask("PRAGMA wal_autocheckpoint = 50;").as_deref(), Some("50"));
        let table =
            "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, value TEXT UNIQUE);";
        assert_eq!(shell.ask(&format!("{table} SELECT 'made';")).as_deref(), Some("made"));
        Sqlite(shell)
    }

    fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn commit(&mut self, row: u64) -> bool {
        let insert = format!("INSERT INTO entries VALUES ({row}, '{}');", value(row));
        self.0.ask(&format!("{insert} SELECT 'done';")).is_some()
    }

    fn rows(&mut self) -> Vec<u64> {
        let all = "SELECT group_concat(id) FROM (SELECT id FROM entries ORDER BY id);";
        numbers(&self.0.ask(all).unwrap())
    }

    fn check(&mut self) {
        assert_eq!(self.0.ask("PRAGMA integrity_check;").as_deref(), Some("ok"));
    }

    fn log(directory: &Path) -> Vec<PathBuf> {
        // Between two commits a rollback journal is absent.
        vec![directory.join(if WAL { format!("{FILE}-wal") } else { FILE.to_owned() })]
    }
}
