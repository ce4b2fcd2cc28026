//! MariaDB with InnoDB: statements that are a transaction each, by `sysbench`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::stage::{Load, Stage, Timed};
use super::usual::PER_S;
use crate::BenchError;
use crate::machine::output;
use crate::peer::Peer;
use crate::rig::failed;

/// The loads.
pub(crate) const LOADS: [Load; 8] = [
    Load { name: "update_1", unit: PER_S, run: |stage| on_one(stage, "update_index", 1) },
    Load { name: "update_10", unit: PER_S, run: |stage| on_one(stage, "update_index", 10) },
    Load { name: "insert_1", unit: PER_S, run: |stage| on_one(stage, "insert", 1) },
    Load { name: "insert_10", unit: PER_S, run: |stage| on_one(stage, "insert", 10) },
    Load { name: "two_update_1", unit: PER_S, run: |stage| on_two(stage, "update_index", 1) },
    Load { name: "two_update_10", unit: PER_S, run: |stage| on_two(stage, "update_index", 10) },
    Load { name: "two_insert_1", unit: PER_S, run: |stage| on_two(stage, "insert", 1) },
    Load { name: "two_insert_10", unit: PER_S, run: |stage| on_two(stage, "insert", 10) },
];

/// Rows of the table before.
const ROWS: &str = "10000";
/// Statements of one thread, and of all threads of a server where there are more.
const STATEMENTS: [f64; 2] = [2_000.0, 5_000.0];
const DATABASE: &str = "sysbench";
const SOCKET: &str = "mariadb.sock";

/// An option with a path.
fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(path);
    option
}

/// A new server, and a table.
struct MariaDb {
    /// For its socket and messages.
    folder: TempDir,
    threads: usize,
    /// Statements of a run.
    count: usize,
    _peer: Peer,
}

impl MariaDb {
    /// Starts it with its files in a directory, and makes the table.
    fn start(
        directory: &Path,
        kind: &str,
        (threads, count): (usize, usize),
    ) -> Result<MariaDb, BenchError> {
        let folder = tempfile::tempdir().map_err(failed)?;
        let socket = folder.path().join(SOCKET);
        let mut server = Command::new("mariadbd");
        // Without tables of rights, which only an installation makes.
        server.args(["--no-defaults", "--user=root", "--skip-grant-tables", "--skip-networking"]);
        server.args(["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=32M"]);
        server.args([option("datadir", directory), option("socket", &socket)]);
        server.arg(option("pid-file", &folder.path().join("mariadb.pid")));
        server.arg(option("log-error", &folder.path().join("mariadb.log")));
        let peer = Peer::until(&mut server, || socket.exists())?;
        let mut create = Command::new("mariadb");
        create.arg("--no-defaults").arg(option("socket", &socket));
        output(create.args(["-e", &format!("CREATE DATABASE {DATABASE}")]))?;
        let made = MariaDb { folder, threads, count, _peer: peer };
        made.sysbench(kind, "prepare")?;
        Ok(made)
    }

    fn sysbench(&self, kind: &str, verb: &str) -> Result<String, BenchError> {
        let mut command = Command::new("sysbench");
        command.args([format!("oltp_{kind}"), "--db-driver=mysql".into()]);
        command.arg(option("mysql-socket", &self.folder.path().join(SOCKET)));
        command.arg("--mysql-user=root");
        command.args([format!("--mysql-db={DATABASE}"), format!("--table-size={ROWS}")]);
        command.args([format!("--threads={}", self.threads), format!("--events={}", self.count)]);
        output(command.args(["--time=0", verb]))
    }

    fn run(&self, kind: &str) -> Result<Timed, BenchError> {
        let said = self.sysbench(kind, "run")?;
        let timed = timed(&said).filter(|timed| timed.operations >= self.count as f64);
        timed.ok_or_else(|| BenchError::Failed(format!("sysbench tells of less: {said}").into()))
    }
}

/// Runs statements at a server with its files in the first client's directory.
fn on_one(stage: &Stage<'_>, kind: &str, threads: usize) -> Result<Timed, BenchError> {
    statements(stage, kind, threads, &[&stage.first])
}

/// Runs statements at two servers at the same time, each with its files in a directory that a client has made.
fn on_two(stage: &Stage<'_>, kind: &str, threads: usize) -> Result<Timed, BenchError> {
    let directories = [stage.first.join("one"), stage.second.join("two")];
    for directory in &directories {
        std::fs::create_dir(directory)
            .map_err(|source| BenchError::Io { path: directory.clone(), source })?;
    }
    statements(stage, kind, threads, &directories.each_ref().map(PathBuf::as_path))
}

/// Runs statements at a server for each directory, all at the same time. Their rates are added up.
fn statements(
    stage: &Stage<'_>,
    kind: &str,
    threads: usize,
    directories: &[&Path],
) -> Result<Timed, BenchError> {
    let count = stage.count(STATEMENTS[usize::from(threads > 1)], 4 * threads);
    let start = |directory: &&Path| MariaDb::start(directory, kind, (threads, count));
    let servers: Vec<MariaDb> = directories.iter().map(start).collect::<Result<_, _>>()?;
    let all: Vec<Timed> = std::thread::scope(|scope| {
        let runs: Vec<_> =
            servers.iter().map(|server| scope.spawn(move || server.run(kind))).collect();
        let ended = runs.into_iter().map(|run| {
            run.join().unwrap_or_else(|_| Err(BenchError::Failed("a thread has died".into())))
        });
        ended.collect::<Result<_, _>>()
    })?;
    let operations: f64 = all.iter().map(|timed| timed.operations).sum();
    let rate: f64 = all.iter().map(Timed::rate).sum();
    Ok(Timed::new(operations, operations / rate))
}

/// Transactions, and their time, by the report of `sysbench`.
fn timed(report: &str) -> Option<Timed> {
    let line = report.lines().find_map(|line| line.trim().strip_prefix("transactions:"))?;
    let (count, rate) = line.trim().split_once('(')?;
    let count: f64 = count.trim().parse().ok()?;
    let rate: f64 = rate.split_whitespace().next()?.parse().ok()?;
    (rate > 0.0).then(|| Timed::new(count, count / rate))
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_stage;
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_report() {
        let report = "SQL statistics:\n    transactions:                        200    (50.00 per sec.)\n    queries: 1";
        let found = timed(report).unwrap();
        assert_eq!((found.operations, found.seconds, found.rate()), (200.0, 4.0, 50.0));
        for bad in ["", "transactions: 5 (0.00 per sec.)", "transactions: many (1.0 per sec.)"] {
            assert!(timed(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn statements_run_on_a_plain_directory() {
        for program in ["mariadbd", "sysbench"] {
            if output(Command::new(program).arg("--version")).is_err() {
                return eprintln!("SKIPPED: {program} is not installed");
            }
        }
        on_stage(|stage| {
            let found = on_two(stage, "insert", 10).unwrap();
            assert!(found.operations >= 80.0 && found.seconds > 0.0 && found.lost.is_none());
            for server in ["one", "two"] {
                assert!(stage.first.join(server).join(DATABASE).is_dir(), "{server}");
            }
            let [first, second] = ["three", "four"].map(|name| stage.first.join(name));
            std::fs::create_dir(&first).unwrap();
            let Stage { env, tree, scale, seed, .. } = *stage;
            let stage = Stage { env, first, second, tree, scale, seed };
            let found = on_one(&stage, "update_index", 1).unwrap();
            assert!(found.operations >= 10.0 && found.seconds > 0.0);
            let missing = on_two(&stage, "insert", 1).unwrap_err().to_string();
            assert!(missing.contains("four"), "{missing}");
        });
    }
}
