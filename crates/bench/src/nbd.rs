//! Volumes over NBD, beside other servers on the same disk (real time).
//!
//! Three servers are measured in turns: a chain of one link whose map is on the same file, so that one
//! `fdatasync` makes a write durable, as for the others; `qemu-nbd` in its default cache mode; and
//! `nbdkit file`. Each serves a preallocated file that was written once. `fio` loads them over a Unix
//! socket, and a figure is the median over the rounds of our rate over the peer's in the same round.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use thalweg_env::{Env, server_threads};
use thalweg_nbd::{Export, Server, ServerConfig, UnixSocketOptions};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::{Chain, Cleaning, Create, Growth, Link, Options as ChainOptions, Parts};
use thalweg_store::device::{DeviceRef, FileDevice, FileOptions, Partition};
use thalweg_store::volume::StoreVolume;
use uuid::Uuid;

use crate::peer::Peer;
use crate::rig::median;
use crate::{BenchEntry, BenchError, Options, Report};

/// See the [module](self).
pub const ENTRY: BenchEntry = BenchEntry {
    name: "nbd",
    about: "fio over NBD: a chain beside qemu-nbd and nbdkit on the same disk (real time)",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes that the load covers on each server.
const SIZE: u64 = 512 << 20;
/// Bytes of the chain's link, including space for cleaning.
const LINK: u64 = 1 << 30;
/// Blocks in a segment.
const SEGMENT: u32 = 240 * 8;
/// Seconds of one measurement, at scale 1.
const SECONDS: f64 = 1.0;
/// Number of rounds.
const ROUNDS: usize = 3;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    pattern: &'static str,
    block: &'static str,
    depth: u32,
    fsync: bool,
}

impl Row {
    fn name(&self) -> String {
        let sync = if self.fsync { "_fsync" } else { "" };
        format!("{}_{}_{}{sync}", self.pattern, self.block, self.depth)
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for pattern in ["randwrite", "randrw", "read"] {
        for block in ["4k", "128k"] {
            for depth in [1, 32] {
                for fsync in [false, true] {
                    rows.push(Row { pattern, block, depth, fsync });
                }
            }
        }
    }
    rows
}

fn failed(what: impl Into<String>) -> BenchError {
    BenchError::Failed(what.into().into())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> BenchError {
    BenchError::Failed(Box::new(error))
}

/// See [`ENTRY`].
///
/// # Errors
/// [`BenchError::Failed`] when a program is missing or a load fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir =
        tempfile::tempdir_in(&parent).map_err(|source| BenchError::Io { path: parent, source })?;
    // Like that of `thalweg serve`.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(server_threads())
        .enable_all()
        .build()
        .map_err(other)?;
    let sockets = ["thalweg", "qemu", "nbdkit"].map(|name| dir.path().join(format!("{name}.sock")));
    let (_server, _chain) = runtime.block_on(serve(dir.path(), &sockets[0]))?;
    let _qemu = start_qemu(dir.path(), &sockets[1])?;
    let _nbdkit = start_nbdkit(dir.path(), &sockets[2])?;
    for socket in &sockets {
        fio(socket, &["--rw=write", "--bs=1M", "--iodepth=4"], &format!("--size={SIZE}"))?;
    }
    let mut report = Report::new("nbd", options.seed);
    for row in rows() {
        let rates = measure(&row, &sockets, options)?;
        eprintln!("{}: {rates:.0?}", row.name());
        for (peer, at) in [("qemu_nbd", 1), ("nbdkit", 2)] {
            let ratios = rates.iter().map(|rates| rates[0] / rates[at]).collect();
            report.figure(&format!("{}_vs_{peer}", row.name()), median(ratios));
        }
        let ours = rates.iter().map(|rates| rates[0]).collect();
        report.figure(&format!("{}_iops", row.name()), median(ours));
    }
    Ok(report)
}

/// The rates of the three servers, three values for each round.
fn measure(
    row: &Row,
    sockets: &[PathBuf; 3],
    options: &Options,
) -> Result<Vec<[f64; 3]>, BenchError> {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let mut rates = [0.0; 3];
        // Each round begins with another one.
        for turn in 0..3 {
            let at = (round + turn) % 3;
            rates[at] = load(&sockets[at], row, options, round as u64)?;
        }
        rounds.push(rates);
    }
    Ok(rounds)
}

fn load(socket: &Path, row: &Row, options: &Options, round: u64) -> Result<f64, BenchError> {
    let millis = (options.scale.unwrap_or(1.0) * SECONDS * 1000.0).max(100.0) as u64;
    let mut arguments = vec![
        format!("--rw={}", row.pattern),
        format!("--bs={}", row.block),
        format!("--iodepth={}", row.depth),
        format!("--randseed={}", options.seed + round),
        "--time_based".to_owned(),
        format!("--runtime={millis}ms"),
        "--ramp_time=200ms".to_owned(),
    ];
    if row.fsync && row.pattern != "read" {
        arguments.push("--fsync=1".to_owned());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fio(socket, &arguments, &format!("--size={SIZE}"))
}

/// Runs fio and returns its requests per second, reads plus writes.
fn fio(socket: &Path, arguments: &[&str], size: &str) -> Result<f64, BenchError> {
    let mut all: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    all.push(size.to_owned());
    let job = fio_job(&format!("nbd+unix:///?socket={}", socket.display()), &all)?;
    let rate = |kind: &str| job[kind]["iops"].as_f64().unwrap_or(0.0);
    Ok(rate("read") + rate("write"))
}

/// Runs one job of fio on an export, and returns fio's report of it.
pub(crate) fn fio_job(uri: &str, arguments: &[String]) -> Result<serde_json::Value, BenchError> {
    let output = Command::new("fio")
        .args(["--name=load", "--ioengine=nbd", "--output-format=json", &format!("--uri={uri}")])
        .args(arguments)
        .output()
        .map_err(|error| failed(format!("fio: {error}; install it with `make setup`")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let from = text.find('{').unwrap_or(0);
    let mut parsed: serde_json::Value = serde_json::from_str(&text[from..]).map_err(|error| {
        failed(format!("fio said {error}: {}", String::from_utf8_lossy(&output.stderr)))
    })?;
    let job = parsed["jobs"][0].take();
    match job["error"].as_i64() {
        Some(0) => Ok(job),
        _ => Err(failed(format!("fio failed: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// Makes and serves a chain on one file.
async fn serve(dir: &Path, socket: &Path) -> Result<(Server, Arc<Chain>), BenchError> {
    let env = Env::real();
    let segments = (LINK / (u64::from(SEGMENT) * BLOCK_SIZE as u64)) as u32;
    let map_bytes = Chain::map_bytes(SEGMENT, segments).next_multiple_of(1 << 20);
    let path = dir.join("thalweg.img");
    let options = FileOptions { sector: Some(512), ..FileOptions::default() };
    let file: DeviceRef =
        Arc::new(FileDevice::create(&path, map_bytes + LINK, &options).await.map_err(other)?);
    let partition = |start, size| -> Result<DeviceRef, BenchError> {
        Ok(Arc::new(Partition::new(file.clone(), start, size).map_err(other)?))
    };
    let id = Uuid::from_u128(1);
    let parts = Parts {
        links: vec![Link { id, device: partition(map_bytes, LINK)? }],
        map: partition(0, map_bytes)?,
        map_link: Some(id),
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: env.uuid(),
        blocks: SIZE / BLOCK_SIZE as u64,
        segment_blocks: SEGMENT,
        max_segments: segments,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows: false,
    };
    Chain::create(&env, parts.clone(), &create).await.map_err(other)?;
    // The caches grow, as those of a volume that `thalweg serve` opens.
    let options = ChainOptions { growth: Some(Growth::of_machine()), ..ChainOptions::default() };
    let (chain, _) = Chain::open(&env, parts, options).await.map_err(other)?;
    let chain = Arc::new(chain);
    let server = Server::new(env, ServerConfig::default());
    let volume = Arc::new(StoreVolume::live(chain.clone()));
    server.add_export(Export::new("volume", volume)).map_err(other)?;
    server.listen_unix(socket, UnixSocketOptions::default(), None).map_err(other)?;
    Ok((server, chain))
}

/// A preallocated file for a peer.
fn file_for(dir: &Path, name: &str) -> Result<String, BenchError> {
    let path = dir.join(name);
    let made = Command::new("fallocate").arg("-l").arg(SIZE.to_string()).arg(&path).status();
    match made {
        Ok(status) if status.success() => Ok(path.display().to_string()),
        _ => {
            let file = fs::File::create(&path);
            let sized = file.and_then(|file| file.set_len(SIZE));
            sized.map_err(|source| BenchError::Io { path: path.clone(), source })?;
            Ok(path.display().to_string())
        }
    }
}

fn start_qemu(dir: &Path, socket: &Path) -> Result<Peer, BenchError> {
    let file = file_for(dir, "qemu.img")?;
    let socket_name = socket.display().to_string();
    let arguments = ["--persistent", "--shared=4", "-f", "raw", "-k", &socket_name, &file];
    Peer::start("qemu-nbd", &arguments, socket)
}

fn start_nbdkit(dir: &Path, socket: &Path) -> Result<Peer, BenchError> {
    let file = file_for(dir, "nbdkit.img")?;
    let socket_name = socket.display().to_string();
    Peer::start("nbdkit", &["--foreground", "--unix", &socket_name, "file", &file], socket)
}
