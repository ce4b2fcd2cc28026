//! Random writes over NBD to a chained volume, beside `qemu-nbd`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{ROUNDS, maximum, millis, pace, ratio};
use crate::machine::Machine;
use crate::nbd::fio_job;
use crate::peer::Peer;
use crate::rig::{median, rounded};
use crate::{BenchError, Report};

/// Bytes of the volume at scale 1.
const SIZE: u64 = 1 << 30;
const LEAST: u64 = 64 << 20;
/// Seconds of one measurement at scale 1.
const SECONDS: f64 = 10.0;
/// Percent of the volume's blocks that are written.
const FILLS: [u64; 3] = [50, 80, 95];
/// Writes in flight.
const DEPTH: u32 = 16;
/// Writes of each of the 16 clients before it flushes. A single client of fio with 16 writes in flight
/// would flush many times in a row.
const FLUSH_AFTER: u32 = 32;

/// A server and its socket. Fields are dropped in order.
struct Server {
    name: &'static str,
    uri: String,
    _process: Peer,
}

/// The result of one measurement, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    /// Writes a second.
    rate: f64,
    write_p999: f64,
    write_max: f64,
    /// Latencies of flushes, when there were any.
    flush: [f64; 4],
    /// The longest time in which no write completed.
    stall: f64,
}

/// The figures of flush latency: our name, and fio's name of the percentile.
const FLUSH_ROWS: [(&str, &str); 3] =
    [("p50", "50.000000"), ("p99", "99.000000"), ("p999", "99.900000")];

impl Measured {
    /// From fio's job and the completion times in its log; `None` when the log lacks more than one in a
    /// hundred of them, as on a full disk.
    fn parse(job: &Value, log: &str, seconds: f64) -> Option<Measured> {
        let seconds_of = |value: &Value| value.as_f64().map(|nanos| nanos / 1e9);
        let write = &job["write"]["clat_ns"];
        let sync = &job["sync"]["lat_ns"];
        let mut flush = [0.0; 4];
        for (value, (_, percentile)) in flush.iter_mut().zip(FLUSH_ROWS) {
            *value = seconds_of(&sync["percentile"][percentile]).unwrap_or_default();
        }
        flush[3] = seconds_of(&sync["max"]).unwrap_or_default();
        let mut times = Vec::new();
        for line in log.lines() {
            times.push(line.split(',').next()?.trim().parse::<f64>().ok()? / 1e3);
        }
        times.sort_by(f64::total_cmp);
        if (times.len() as f64) < 0.99 * job["write"]["total_ios"].as_f64()? {
            return None;
        }
        Some(Measured {
            rate: job["write"]["iops"].as_f64()?,
            write_p999: seconds_of(&write["percentile"]["99.900000"])?,
            write_max: seconds_of(&write["max"])?,
            flush,
            stall: pace::longest_gap(times.into_iter(), seconds),
        })
    }
}

/// Results for each fill and server, with and without flushes.
type Table = BTreeMap<(u64, &'static str, bool), Vec<Measured>>;

/// The part `nbd`.
pub(super) fn measure(machine: &Machine, report: &mut Report) -> Result<(), BenchError> {
    let folder = machine.folder.path().join("nbd");
    std::fs::create_dir(&folder)
        .map_err(|source| BenchError::Io { path: folder.clone(), source })?;
    let size = machine.size(SIZE, LEAST);
    let servers = [serve_chain(machine, &folder, size)?, serve_qemu(&folder, size)?];
    let mut table = Table::new();
    let mut written = 0;
    for fill in FILLS {
        let range = size * fill / 100 / (1 << 20) * (1 << 20);
        for server in &servers {
            prepare(machine, server, written, range)?;
        }
        written = range;
        for round in 0..ROUNDS {
            for flushes in [true, false] {
                for turn in 0..servers.len() {
                    // Each round begins with another server.
                    let server = &servers[(round + turn) % servers.len()];
                    let run = Run { machine, folder: &folder, range, round, flushes };
                    let measured = run.fio(server)?;
                    eprintln!("nbd {fill} %, {}, flushes {flushes}: {measured:.4?}", server.name);
                    table.entry((fill, server.name, flushes)).or_default().push(measured);
                }
            }
        }
    }
    drop(servers);
    std::fs::remove_dir_all(&folder).ok();
    tell(report, &table);
    Ok(())
}

fn serve_chain(machine: &Machine, folder: &Path, size: u64) -> Result<Server, BenchError> {
    let volume = folder.join("volume").display().to_string();
    let socket = folder.join("chain.sock");
    machine.thalweg(&["volume", "create", &volume, "--size", &size.to_string()])?;
    let place = socket.display().to_string();
    let program = machine.program().display().to_string();
    let process = Peer::start(&program, &["serve", &volume, "--socket", &place], &socket)?;
    let uri = format!("nbd+unix:///volume?socket={place}");
    Ok(Server { name: "chain", uri, _process: process })
}

fn serve_qemu(folder: &Path, size: u64) -> Result<Server, BenchError> {
    let (path, socket) = (folder.join("qemu.img"), folder.join("qemu.sock"));
    pace::write_file(&path, size)
        .map_err(|source| BenchError::Io { path: path.clone(), source })?;
    let (place, file) = (socket.display().to_string(), path.display().to_string());
    let arguments =
        ["--persistent", "--shared=32", "--cache=none", "-f", "raw", "-k", &place, &file];
    let process = Peer::start("qemu-nbd", &arguments, &socket)?;
    let uri = format!("nbd+unix:///?socket={place}");
    Ok(Server { name: "qemu", uri, _process: process })
}

/// Writes the range from `from` on, and then overwrites all of it twice.
fn prepare(machine: &Machine, server: &Server, from: u64, range: u64) -> Result<(), BenchError> {
    let sequential = [
        "--rw=write".to_owned(),
        "--bs=1M".to_owned(),
        "--iodepth=4".to_owned(),
        format!("--offset={from}"),
        format!("--size={}", range - from),
    ];
    fio_job(&server.uri, &sequential)?;
    let random = [
        "--rw=randwrite".to_owned(),
        "--bs=4k".to_owned(),
        format!("--iodepth={DEPTH}"),
        "--norandommap".to_owned(),
        format!("--randseed={}", machine.seed + 100),
        format!("--size={range}"),
        format!("--io_size={}", 2 * range),
    ];
    fio_job(&server.uri, &random).map(drop)
}

/// One measurement.
struct Run<'a> {
    machine: &'a Machine,
    folder: &'a Path,
    /// Bytes that are overwritten.
    range: u64,
    round: usize,
    flushes: bool,
}

impl Run<'_> {
    fn fio(&self, server: &Server) -> Result<Measured, BenchError> {
        let seconds = self.machine.seconds(SECONDS);
        // fio appends to an existing log.
        let logs = self.folder.join("logs");
        std::fs::remove_dir_all(&logs).ok();
        std::fs::create_dir(&logs)
            .map_err(|source| BenchError::Io { path: logs.clone(), source })?;
        let job = fio_job(&server.uri, &self.arguments(seconds, &logs))?;
        let path: PathBuf = logs.join("run_clat.log");
        let log = std::fs::read_to_string(&path)
            .map_err(|source| BenchError::Io { path: path.clone(), source })?;
        Measured::parse(&job, &log, seconds).ok_or_else(|| {
            BenchError::Failed("fio's log is incomplete, or in an unknown format".into())
        })
    }

    fn arguments(&self, seconds: f64, logs: &Path) -> Vec<String> {
        let mut arguments = vec![
            "--rw=randwrite".to_owned(),
            "--bs=4k".to_owned(),
            "--norandommap".to_owned(),
            format!("--size={}", self.range),
            format!("--randseed={}", self.machine.seed + self.round as u64),
            "--time_based".to_owned(),
            format!("--runtime={}ms", (seconds * 1e3) as u64),
            format!("--write_lat_log={}", logs.join("run").display()),
            "--per_job_logs=0".to_owned(),
            "--group_reporting".to_owned(),
        ];
        arguments.extend(match self.flushes {
            true => vec![
                "--iodepth=1".to_owned(),
                "--thread".to_owned(),
                format!("--numjobs={DEPTH}"),
                format!("--fsync={FLUSH_AFTER}"),
            ],
            false => vec![format!("--iodepth={DEPTH}")],
        });
        arguments
    }
}

fn tell(report: &mut Report, table: &Table) {
    let fullest = FILLS[FILLS.len() - 1];
    let rows = |fill: u64, server, flushes| &table[&(fill, server, flushes)][..];
    let p99 = |row: &Measured| row.flush[1];
    let median_p99 = |fill| median(rows(fill, "chain", true).iter().map(p99).collect());
    let over = median_p99(fullest) / median_p99(FILLS[0]).max(1e-12);
    report.figure(&format!("flush_p99_{fullest}_over_{}", FILLS[0]), rounded(over));
    let over = ratio(rows(fullest, "chain", true), rows(fullest, "qemu", true), p99);
    report.figure(&format!("flush_p99_{fullest}_over_qemu"), rounded(over));
    let over = ratio(rows(fullest, "chain", false), rows(fullest, "qemu", false), |row| row.rate);
    report.figure(&format!("rate_{fullest}_over_qemu"), rounded(over));
    for (name, server) in [("stall_ms", "chain"), ("qemu_stall_ms", "qemu")] {
        let both = [true, false].map(|flushes| rows(fullest, server, flushes)).concat();
        let stall = maximum(both.iter().map(|row| row.stall));
        report.figure(&format!("{name}_{fullest}"), millis(stall));
    }
    for ((fill, server, flushes), rows) in table {
        let of = |value: &dyn Fn(&Measured) -> f64| median(rows.iter().map(value).collect());
        let most = |value: &dyn Fn(&Measured) -> f64| maximum(rows.iter().map(value));
        let kind = if *flushes { "fsync_" } else { "" };
        let mut row = |name: &str, value: f64| {
            report.figure(&format!("nbd_{server}_{fill}_{kind}{name}"), value);
        };
        row("per_s", rounded(of(&|row| row.rate)));
        row("write_p999_ms", millis(of(&|row| row.write_p999)));
        row("write_max_ms", millis(most(&|row| row.write_max)));
        row("stall_ms", millis(most(&|row| row.stall)));
        if *flushes {
            for (nth, (name, _)) in FLUSH_ROWS.iter().enumerate() {
                row(&format!("flush_{name}_ms"), millis(of(&|row| row.flush[nth])));
            }
            row("flush_max_ms", millis(most(&|row| row.flush[3])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_job_and_its_log() {
        let percentile = |value: u64| {
            serde_json::json!({
                "50.000000": value, "99.000000": 2 * value, "99.900000": 3 * value
            })
        };
        let job = serde_json::json!({
            "write": {
                "iops": 1234.5,
                "total_ios": 3,
                "clat_ns": { "max": 7e6, "percentile": percentile(1_000_000) },
            },
            "sync": { "lat_ns": { "max": 9e6, "percentile": percentile(2_000_000) } },
        });
        let log = "900, 5000, 1, 4096, 0\n100, 5000, 1, 4096, 0\n350, 6000, 1, 4096, 0\n";
        let measured = Measured::parse(&job, log, 1.0).unwrap();
        let expected = Measured {
            rate: 1234.5,
            write_p999: 0.003,
            write_max: 0.007,
            flush: [0.002, 0.004, 0.006, 0.009],
            stall: 0.55,
        };
        assert!((measured.stall - expected.stall).abs() < 1e-9);
        assert_eq!(Measured { stall: 0.55, ..measured }, expected);
        assert_eq!(Measured::parse(&job, "time\n", 1.0), None);
        assert_eq!(Measured::parse(&job, "900, 5000, 1, 4096, 0\n", 1.0), None);
        assert_eq!(Measured::parse(&serde_json::json!({}), log, 1.0), None);
    }

    #[test]
    fn every_row_is_told() {
        let mut table = Table::new();
        for fill in FILLS {
            for (server, factor) in [("chain", 2.0), ("qemu", 1.0)] {
                for flushes in [true, false] {
                    let share = fill as f64 / 50.0;
                    let row = Measured {
                        rate: 1000.0 / factor,
                        flush: [factor * share / 1e3; 4],
                        stall: factor,
                        ..Measured::default()
                    };
                    table.insert((fill, server, flushes), vec![row; ROUNDS]);
                }
            }
        }
        let mut report = Report::new("steady", 1);
        tell(&mut report, &table);
        let figure = |name: &str| report.number(name).unwrap();
        assert_eq!(figure("flush_p99_95_over_50"), 1.9);
        assert_eq!(figure("flush_p99_95_over_qemu"), 2.0);
        assert_eq!((figure("rate_95_over_qemu"), figure("stall_ms_95")), (0.5, 2000.0));
        assert_eq!(figure("nbd_chain_80_fsync_flush_p99_ms"), 3.2);
        assert_eq!(figure("nbd_qemu_95_per_s"), 1000.0);
        assert_eq!(report.figures.len(), 5 + 6 * 4 + 6 * 8);
    }
}
