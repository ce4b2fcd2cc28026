//! `cluster-creates`: clients of a server of files make files in directories of their own, and then another client makes some
//! in each of them (virtual time). The loads are those of figures 3a to 3c of the paper on Cudele.
//!
//! The server's filesystem is on a volume that is updated in place on a solid-state drive. Its processor handles one message at
//! a time, 25 µs for each and 50 ns for each byte, which is about what `cluster-server` measures; a client takes
//! 10 µs for a create. Messages take 50 µs. A round ends when everything is durable.
//!
//! | figure | meaning |
//! |---|---|
//! | `creates_per_s_N` | files that N clients make in a second together, each by a call |
//! | `alone_creates_per_s_N` | the same when a client may hold its directory exclusively |
//! | `interference_creates_per_s_N`, `alone_interference_…` | with a client that makes files in all of the directories |
//! | `…slowdown_N` | time of the slowest of the N clients, over that of one client without interference |
//! | `…deviation_N` | standard deviation of the clients' times, over their mean |
//! | `calls_per_create`, `…_interference`, `…_exclusive`, `…_exclusive_interference` | messages of 10 clients to the server for each file that they make |
//! | `server_bytes_per_create`, `…_exclusive` | bytes that reach the server's drive for each file of 10 clients |
//! | `latency_us_N` | time of a create by a call, on average |
//! | `…interference_other_latency_us_N` | time of a create of the client that makes files in all directories, on average |
//! | `client_bytes_per_unsent_file` | memory of a client for each file that it has made and not sent |
//! | `client_ns_per_delegated_write` | processor time of a client for a write of 4 KiB that replaces bytes of a file delegated to it, without sending it: the least of many rounds, in nanoseconds |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use thalweg_cluster::client::Client;
use thalweg_env::{Env, Task};
use thalweg_fs::{Filesystem, FsError, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;

use crate::cluster_site::{Site, died, messages, new};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-creates",
    about: "creates of 1 to 20 clients at a server of files, with and without interference",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Files that each client makes at scale 1, as in the paper.
const FILES: f64 = 100_000.0;
/// The scale without another one: 10,000 files.
const SCALE: f64 = 0.1;
/// Of so many files that a client makes, the one that interferes makes one beside.
const INTERFERING: u32 = 100;
const CLIENTS: [u32; 4] = [1, 5, 10, 20];
/// The number of clients whose messages are counted.
const COUNTED: u32 = 10;
/// Time of a client for a create.
const CLIENT: Duration = Duration::from_micros(10);

/// Clients whose memory is measured together, and the files of each: fewer than a client has numbers for at once.
const MEASURED: (u32, u32) = (64, 2500);

/// Rounds of writes, and the writes of each: fewer than a batch has.
const WRITES: (u32, u64) = (200, 100);
/// Bytes of a write.
const BLOCK: usize = 4096;

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Case {
    clients: u32,
    /// A client may hold its directory exclusively.
    alone: bool,
    interference: bool,
    files: u32,
}

/// What it comes to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    creates_per_s: f64,
    /// Seconds of the slowest client.
    slowest: f64,
    /// Of the clients' times, over their mean.
    deviation: f64,
    calls_per_create: f64,
    bytes_per_create: f64,
    latency_us: f64,
    /// That of the client that interferes.
    other_latency_us: f64,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, SCALE)?;
    let files = ((FILES * scale) as u32).max(INTERFERING);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    for alone in [false, true] {
        let of = if alone { "alone_" } else { "" };
        let counted = if alone { "_exclusive" } else { "" };
        let mut first = None;
        for interference in [false, true] {
            let kind = if interference { "interference_" } else { "" };
            let counted =
                format!("{counted}{}", kind.trim_end_matches('_').replace("inter", "_inter"));
            for clients in CLIENTS {
                let case = Case { clients, alone, interference, files };
                let found = thalweg_sim::run(options.seed, |env| measure(env, case))?;
                let first = *first.get_or_insert(found.slowest);
                let mut row = |figure: &str, value: f64| {
                    report.figure(&format!("{of}{kind}{figure}_{clients}"), rounded(value));
                };
                row("creates_per_s", found.creates_per_s);
                row("slowdown", found.slowest / first);
                row("deviation", found.deviation);
                if !alone {
                    row("latency_us", found.latency_us);
                }
                if interference {
                    row("other_latency_us", found.other_latency_us);
                }
                if clients == COUNTED {
                    let calls = rounded(found.calls_per_create);
                    report.figure(&format!("calls_per_create{counted}"), calls);
                    let bytes = rounded(found.bytes_per_create);
                    report.figure(&format!("server_bytes_per_create{counted}"), bytes);
                }
            }
        }
    }
    let bytes = thalweg_sim::run(options.seed, unsent_bytes)?;
    report.figure("client_bytes_per_unsent_file", rounded(bytes));
    let nanos = thalweg_sim::run(options.seed, delegated_write)?;
    report.figure("client_ns_per_delegated_write", rounded(nanos));
    Ok(report)
}

/// Processor time of this thread in nanoseconds.
fn processor_time() -> Result<f64, BenchError> {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_err(failed)?;
    Ok(now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64)
}

/// Processor time of a client for each write to a file that is delegated to it. All else in this thread runs while the
/// writes of a round are sent.
async fn delegated_write(env: Env) -> Result<f64, BenchError> {
    let site = Site::new(&env, LinkSpec::default()).await?;
    let client = site.client("c", true).await?;
    let directory = client.create(Ino::ROOT, b"own", &new(Node::Directory)).await;
    let directory = directory.map_err(failed)?.ino;
    client.reference(directory);
    let mut made = Vec::new();
    // With the second one the directory is delegated to the client, and so is the third one.
    for name in ["first", "second", "third"] {
        let file = client.create(directory, name.as_bytes(), &new(Node::File)).await;
        made.push(file.map_err(failed)?.ino);
        client.reference(made[made.len() - 1]);
    }
    let (file, data) = (made[2], Bytes::from(vec![7; BLOCK]));
    let mut least = f64::INFINITY;
    for _ in 0..WRITES.0 {
        let begun = processor_time()?;
        for number in 0..WRITES.1 {
            let at = WriteAt::Offset(number * BLOCK as u64);
            let wrote = client.write(file, at, vec![data.clone()], WriteHow::default()).await;
            wrote.map_err(failed)?;
        }
        let took = processor_time()? - begun;
        least = least.min(took / WRITES.1 as f64);
        let unsent = client.status().unsent as u64;
        assert!(unsent >= WRITES.1, "{unsent} of {} writes were made without a call", WRITES.1);
        client.sync(file, false).await.map_err(failed)?;
    }
    Ok(least)
}

/// Memory of clients for each file that they have made and not sent: they are cut off from the server meanwhile.
async fn unsent_bytes(env: Env) -> Result<f64, BenchError> {
    let site = Site::new(&env, LinkSpec::default()).await?;
    let mut clients = Vec::new();
    let make = async |client: &Client, directory, name: &str, node| {
        let made = client.create(directory, name.as_bytes(), &new(node)).await;
        made.map(|made| made.ino).map_err(failed)
    };
    for number in 0..MEASURED.0 {
        let name = format!("c{number}");
        let client = site.client(&name, true).await?;
        let directory = make(&client, Ino::ROOT, &name, Node::Directory).await?;
        client.reference(directory);
        // With the second one the directory is delegated to the client.
        for name in ["first", "second"] {
            make(&client, directory, name, Node::File).await?;
        }
        client.sync_all().await.map_err(failed)?;
        clients.push((name, client, directory));
    }
    let before = rig::resident()?;
    for (name, client, directory) in &clients {
        site.cut_off(name);
        for file in 0..MEASURED.1 {
            make(client, *directory, &format!("file{file}"), Node::File).await?;
        }
    }
    let bytes = rig::resident()?.saturating_sub(before);
    let unsent: usize = clients.iter().map(|(_, client, _)| client.status().unsent).sum();
    let made = (MEASURED.0 * MEASURED.1) as usize;
    assert!(unsent == made, "{unsent} of {made} files wait for the server");
    Ok(bytes as f64 / unsent as f64)
}

/// Makes files in a directory; the time, and that of a create on average in microseconds.
async fn make(env: Env, fs: Client, directory: Ino, files: u32) -> Result<(f64, f64), FsError> {
    let (begun, mut within) = (env.now(), Duration::ZERO);
    for file in 0..files {
        env.sleep(CLIENT).await;
        let at = env.now();
        fs.create(directory, format!("file{file}").as_bytes(), &new(Node::File)).await?;
        within += env.now().since(at);
    }
    fs.sync(directory, false).await?;
    let took = env.now().since(begun).as_secs_f64();
    Ok((took, within.as_secs_f64() * 1e6 / f64::from(files)))
}

/// Creates, and the time that they took together.
type Latencies = Arc<Mutex<(u32, Duration)>>;

/// Makes files in all directories, in turns, for as long as the others take about.
async fn interfere(
    env: Env,
    fs: Client,
    (directories, files): (Vec<Ino>, u32),
    latencies: Latencies,
) -> Result<(), FsError> {
    for file in 0..files / INTERFERING {
        for directory in &directories {
            let (name, at) = (format!("other{file}"), env.now());
            fs.create(*directory, name.as_bytes(), &new(Node::File)).await?;
            let mut latencies = latencies.lock();
            *latencies = (latencies.0 + 1, latencies.1 + env.now().since(at));
        }
    }
    Ok(())
}

async fn measure(env: Env, case: Case) -> Result<Outcome, BenchError> {
    let site = Site::new(&env, LinkSpec::default()).await?;
    let mut clients = Vec::new();
    for number in 0..case.clients {
        let client = site.client(&format!("c{number}"), case.alone).await?;
        let name = format!("d{number}");
        let made = client.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await;
        let directory = made.map_err(failed)?.ino;
        client.reference(directory);
        clients.push((client, directory));
    }
    let bytes = || site.drive.tallies().total().write_bytes;
    let (before, begun) = (bytes(), env.now());
    let calls: u64 = clients.iter().map(|(client, _)| messages(client)).sum();
    let mut making = Vec::new();
    for (client, directory) in &clients {
        let (own, fs, directory) = (env.clone(), client.clone(), *directory);
        making.push(env.spawn(make(own, fs, directory, case.files)));
    }
    let latencies = Latencies::default();
    let interfering = if case.interference {
        Some(disturb(&env, &site, (&clients, case.files), &latencies).await?)
    } else {
        None
    };
    let (mut times, mut latency) = (Vec::new(), 0.0);
    for task in making {
        let (took, within) = task.await.ok_or_else(died)?.map_err(failed)?;
        times.push(took);
        latency += within;
    }
    let took = env.now().since(begun).as_secs_f64();
    let calls = clients.iter().map(|(client, _)| messages(client)).sum::<u64>() - calls;
    drop(interfering);
    let (others, others_took) = *latencies.lock();
    let made = f64::from(case.files) * f64::from(case.clients);
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    Ok(Outcome {
        creates_per_s: made / took,
        slowest: times.iter().copied().fold(0.0, f64::max),
        deviation: variance.sqrt() / mean,
        calls_per_create: calls as f64 / made,
        bytes_per_create: (bytes() - before) as f64 / made,
        latency_us: latency / count,
        other_latency_us: others_took.as_secs_f64() * 1e6 / f64::from(others.max(1)),
    })
}

/// A client that makes files in the directories of the others, until it is dropped.
async fn disturb(
    env: &Env,
    site: &Site,
    (clients, files): (&[(Client, Ino)], u32),
    latencies: &Latencies,
) -> Result<Task<Result<(), FsError>>, BenchError> {
    let other = site.client("other", false).await?;
    let mut directories = Vec::new();
    for number in 0..clients.len() {
        let found = other.find(Ino::ROOT, format!("d{number}").as_bytes()).await;
        let found = found.map_err(failed)?.ino;
        other.reference(found);
        directories.push(found);
    }
    Ok(env.spawn(interfere(env.clone(), other, (directories, files), latencies.clone())))
}
