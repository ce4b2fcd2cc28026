//! Redis: commands that set values of 3 bytes, by `redis-benchmark`, with a file of all commands that is synced after each turn of its
//! server, or once a second.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::stage::{Load, Stage, Timed};
use super::usual::PER_S;
use crate::BenchError;
use crate::machine::output;
use crate::peer::Peer;
use crate::rig::failed;

/// The loads.
pub(crate) const LOADS: [Load; 5] = [
    Load { name: "always_1", unit: PER_S, run: |stage| always(stage, 1) },
    Load { name: "always_10", unit: PER_S, run: |stage| always(stage, 10) },
    Load { name: "always_100", unit: PER_S, run: |stage| always(stage, 100) },
    Load { name: "always_1000", unit: PER_S, run: |stage| always(stage, 1000) },
    Load { name: "everysec_10", unit: PER_S, run: everysec },
];

/// Commands of each connection. A turn of the server takes one of each at most.
const TURNS: f64 = 400.0;
/// Commands where one sync a second is all that they wait for.
const UNSYNCED: f64 = 300_000.0;

fn always(stage: &Stage<'_>, connections: usize) -> Result<Timed, BenchError> {
    sets(stage, "always", connections, stage.count(TURNS, 4) * connections)
}

fn everysec(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    sets(stage, "everysec", 10, stage.count(UNSYNCED, 40))
}

/// Sets so many values at a new server, with its file in the first client's directory.
fn sets(
    stage: &Stage<'_>,
    syncs: &str,
    connections: usize,
    count: usize,
) -> Result<Timed, BenchError> {
    let folder = tempfile::tempdir().map_err(failed)?;
    let socket = folder.path().join("redis.sock");
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", syncs]);
    // Rewriting the file would be other work.
    server.args(["--auto-aof-rewrite-percentage", "0", "--dir"]).arg(&stage.first);
    server.arg("--unixsocket").arg(&socket);
    let server = Peer::until(&mut server, || UnixStream::connect(&socket).is_ok())?;
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.arg("-s").arg(&socket).args(["-t", "set", "-d", "3", "--csv"]);
    benchmark.args(["-c", &connections.to_string(), "-n", &count.to_string()]);
    let said = output(&mut benchmark)?;
    drop(server);
    let rate = rate(&said).ok_or_else(|| {
        BenchError::Failed(format!("redis-benchmark tells no rate: {said}").into())
    })?;
    appended(&stage.first, count)?;
    Ok(Timed::new(count as f64, count as f64 / rate))
}

/// Commands a second, by the table that `redis-benchmark --csv` prints.
fn rate(table: &str) -> Option<f64> {
    let line = table.lines().find_map(|line| line.strip_prefix("\"SET\",\""))?;
    line.split('"').next()?.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

/// Fails unless the server's files have so many commands.
fn appended(folder: &Path, count: usize) -> Result<(), BenchError> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder.join("appendonlydir")).map_err(failed)? {
        bytes += entry.and_then(|entry| entry.metadata()).map_err(failed)?.len();
    }
    // A command with its lengths: SET, the one key, 3 bytes.
    let least = count as u64 * 40;
    match bytes >= least {
        true => Ok(()),
        false => Err(BenchError::Failed(
            format!("the file of commands has {bytes} bytes, not {least} or more").into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_stage;
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_table() {
        let table = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"12345.67\",\"0.1\"\n";
        assert_eq!(rate(table), Some(12345.67));
        for bad in ["", "\"SET\",\"0.00\",\"0.1\"", "\"GET\",\"1.0\"", "\"SET\",\"fast\""] {
            assert_eq!(rate(bad), None, "{bad}");
        }
    }

    #[test]
    fn values_are_set_on_a_plain_directory() {
        if output(Command::new("redis-server").arg("--version")).is_err() {
            return eprintln!("SKIPPED: redis-server is not installed");
        }
        on_stage(|stage| {
            let timed = always(stage, 10).unwrap();
            assert!(timed.operations == 40.0 && timed.seconds > 0.0 && timed.lost.is_none());
            assert!(appended(&stage.first, 40).is_ok() && appended(&stage.first, 400).is_err());
        });
    }
}
