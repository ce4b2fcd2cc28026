//! PostgreSQL.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::database::{Database, Process, Shell, numbers, value};
use crate::run::good;

pub(crate) struct Postgres {
    client: Shell,
    scratch: PathBuf,
    process: Process,
}

/// The user nobody: a server does not run as root.
const USER: u32 = 65534;

/// Where its programs are.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.map(|version| version.unwrap().path().join("bin"));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

/// One of its programs, as that user.
fn program(name: &str) -> Command {
    let mut command = Command::new(programs().unwrap().join(name));
    command.uid(USER).gid(USER).current_dir("/");
    command
}

/// One that connects to the server.
fn client(name: &str, scratch: &Path) -> Command {
    let mut command = program(name);
    command.env("PGHOST", scratch).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
    command
}

impl Database for Postgres {
    const SIZES: [&str; 2] = ["512M", "128M"];

    fn is_here() -> bool {
        let is_there = programs().is_some();
        if !is_there {
            eprintln!("SKIPPED: initdb is not installed; it is in the package postgresql");
        }
        is_there
    }

    fn start(directory: &Path, scratch: &Path) -> Postgres {
        fs::create_dir_all(scratch).unwrap();
        // The user may pass through.
        let home = scratch.parent().unwrap();
        fs::set_permissions(home, Permissions::from_mode(0o711)).unwrap();
        chown(scratch, Some(USER), Some(USER)).unwrap();
        if !directory.exists() {
            fs::create_dir(directory).unwrap();
            chown(directory, Some(USER), Some(USER)).unwrap();
            let mut make = program("initdb");
            make.args(["--username=postgres", "--auth=trust", "--wal-segsize=1", "--locale=C"]);
            good(make.args(["--no-instructions", "--pgdata"]).arg(directory));
        }
        let mut command = program("postgres");
        command.arg("-D").arg(directory).arg("-k").arg(scratch);
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB"]);
        let process = Process::until(&mut command, &scratch.join("postgres.log"), || {
            let mut ready = client("pg_isready", scratch);
            ready.stdout(Stdio::null()).status().unwrap().success()
        });
        let mut command = client("psql", scratch);
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        let mut client = Shell::start(command.args(["--set", "ON_ERROR_STOP=1"]));
        let table =
            "CREATE TABLE IF NOT EXISTS entries (id BIGINT PRIMARY KEY, value TEXT UNIQUE);";
        let quiet = "SET client_min_messages = error;";
        let made = client.ask(&format!("{quiet} {table} SELECT 'made';"));
        assert_eq!(made.as_deref(), Some("made"));
        Postgres { client, scratch: scratch.to_owned(), process }
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn commit(&mut self, row: u64) -> bool {
        let insert = format!("INSERT INTO entries VALUES ({row}, '{}');", value(row));
        self.client.ask(&format!("{insert} SELECT 'done';")).is_some()
    }

    fn rows(&mut self) -> Vec<u64> {
        let all = "SELECT string_agg(id::text, ',' ORDER BY id) FROM entries;";
        numbers(&self.client.ask(all).unwrap())
    }

    fn check(&mut self) {
        let mut check = client("pg_amcheck", &self.scratch);
        good(check.args(["--install-missing", "--heapallindexed", "--table=entries"]));
    }

    fn log(directory: &Path) -> Vec<PathBuf> {
        let found = fs::read_dir(directory.join("pg_wal")).unwrap();
        let found = found.map(|entry| entry.unwrap().path());
        found.filter(|path| path.is_file()).collect()
    }
}
