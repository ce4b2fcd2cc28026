//! MariaDB with InnoDB: statements that are a transaction each, by `sysbench`.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::stage::{Load, Stage, Timed};
use super::usual::PER_S;
use crate::BenchError;
use crate::machine::output;
use crate::peer::Peer;
use crate::rig::failed;

/// The loads.
pub(crate) const LOADS: [Load; 4] = [
    Load { name: "update_1", unit: PER_S, run: |stage| statements(stage, "update_index", 1) },
    Load { name: "update_10", unit: PER_S, run: |stage| statements(stage, "update_index", 10) },
    Load { name: "insert_1", unit: PER_S, run: |stage| statements(stage, "insert", 1) },
    Load { name: "insert_10", unit: PER_S, run: |stage| statements(stage, "insert", 10) },
];

/// Rows of the table before.
const ROWS: &str = "10000";
/// Statements of one thread, and of all threads where there are more.
const STATEMENTS: [f64; 2] = [2_000.0, 5_000.0];
const DATABASE: &str = "sysbench";

/// An option with a path.
fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(path);
    option
}

/// Runs statements at a new server, with its files in the first client's directory.
fn statements(stage: &Stage<'_>, kind: &str, threads: usize) -> Result<Timed, BenchError> {
    let folder = tempfile::tempdir().map_err(failed)?;
    let socket = folder.path().join("mariadb.sock");
    let mut server = Command::new("mariadbd");
    // Without tables of rights, which only an installation makes.
    server.args(["--no-defaults", "--user=root", "--skip-grant-tables", "--skip-networking"]);
    server.args(["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=32M"]);
    server.args([option("datadir", &stage.first), option("socket", &socket)]);
    server.arg(option("pid-file", &folder.path().join("mariadb.pid")));
    server.arg(option("log-error", &folder.path().join("mariadb.log")));
    let server = Peer::until(&mut server, || socket.exists())?;
    let mut create = Command::new("mariadb");
    create.arg("--no-defaults").arg(option("socket", &socket));
    output(create.args(["-e", &format!("CREATE DATABASE {DATABASE}")]))?;
    let count = stage.count(STATEMENTS[usize::from(threads > 1)], 4 * threads);
    let sysbench = |verb: &str| {
        let mut command = Command::new("sysbench");
        command.args([format!("oltp_{kind}"), "--db-driver=mysql".into()]);
        command.arg(option("mysql-socket", &socket)).arg("--mysql-user=root");
        command.args([format!("--mysql-db={DATABASE}"), format!("--table-size={ROWS}")]);
        command.args([format!("--threads={threads}"), format!("--events={count}")]);
        output(command.args(["--time=0", verb]))
    };
    sysbench("prepare")?;
    let said = sysbench("run")?;
    drop(server);
    let timed = timed(&said).filter(|timed| timed.operations >= count as f64);
    timed.ok_or_else(|| BenchError::Failed(format!("sysbench tells of less: {said}").into()))
}

/// Transactions, and their time, by the report of `sysbench`.
fn timed(report: &str) -> Option<Timed> {
    let line = report.lines().find_map(|line| line.trim().strip_prefix("transactions:"))?;
    let (count, rate) = line.trim().split_once('(')?;
    let count: f64 = count.trim().parse().ok()?;
    let rate: f64 = rate.split_whitespace().next()?.parse().ok()?;
    (rate > 0.0).then(|| Timed { operations: count, seconds: count / rate, lost: None })
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
            let found = statements(stage, "insert", 10).unwrap();
            assert!(found.operations >= 40.0 && found.seconds > 0.0 && found.lost.is_none());
        });
    }
}
