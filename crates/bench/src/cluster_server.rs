//! `cluster-server`: what a server of files does in a second for clients over TLS and loopback, all in this process, beside
//! the same calls on its filesystem without a network (real time).
//!
//! The filesystem is on a volume in memory that is updated in place. Each client has a connection and a directory of its
//! own; it makes one call after the other. The rounds of both kinds are in turns.
//!
//! | figure | meaning |
//! |---|---|
//! | `creates_per_s_1`, `_16` | files made in a second by 1 and 16 clients together |
//! | `alone_creates_per_s_1`, `_16` | the same when each client may hold its directory exclusively, until all are at the server |
//! | `stats_per_s_1`, `_16` | attributes asked for by name and not cached: each is one call |
//! | `opens_per_s_1`, `_16` | files opened and closed: two calls |
//! | `cached_stats_per_s_1`, `_16` | attributes by name that the client caches: no call |
//! | `local_…` | the same on the filesystem itself |
//! | `creates_cpu_us_1`, … | processor time of both sides for each call of a kind, in microseconds |
//! | `bulk_creates_per_s` | files that the filesystem makes in a second when they come in one transaction, as events |
//! | `…_over_local_16` | the one over the other, with 16 clients |
//! | `calls_per_create`, `calls_per_cached_stat` | messages from clients to the server for each, after the look for the name |
//!
//! Each is the median of several rounds.

use std::sync::Arc;

use thalweg_cluster::client::Client;
use thalweg_cluster::server::{self, Server};
use thalweg_env::Env;
use thalweg_fs::local::LocalFs;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Lookup, NewNode, Node, OpenFlags, Timestamp};
use thalweg_store::device::{DeviceRef, MemoryDevice};
use thalweg_store::inplace::Mode;

use crate::cluster_wire::Wire;
use crate::rig::{self, failed, median, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-server",
    about: "creates, stats and opens of 1 and 16 clients at a server of files, beside its filesystem alone",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes of the volume.
const SIZE: u64 = 4 << 30;
/// Files that all clients together make in a round at scale 1.
const FILES: f64 = 8_000.0;
const ROUNDS: u32 = 5;
/// Files that come in one transaction at scale 1.
const BULK: f64 = 100_000.0;
const CLIENTS: [u32; 2] = [1, 16];
/// The kinds of calls that are timed.
const KINDS: [&str; 5] = ["creates", "stats", "cached_stats", "opens", "alone_creates"];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let files = ((FILES * scale) as u32).max(CLIENTS[1]);
    let bulk = ((BULK * scale) as u64).max(1);
    let measured = runtime.block_on(async move { measure(&Env::real(), files, bulk).await })?;
    for (clients, (served, local)) in CLIENTS.iter().zip(&measured.rates) {
        for (nth, kind) in KINDS.iter().enumerate() {
            let of = |rounds: &[Speeds], what: fn(&Speed) -> f64| {
                median(rounds.iter().map(|round| what(&round[nth])).collect())
            };
            let cpu = of(served, |it| it.cpu_us);
            let (served, local) = (of(served, |it| it.per_s), of(local, |it| it.per_s));
            report
                .figure(&format!("{kind}_per_s_{clients}"), rounded(served))
                .figure(&format!("{kind}_cpu_us_{clients}"), rounded(cpu))
                .figure(&format!("local_{kind}_per_s_{clients}"), rounded(local));
            if *clients > 1 {
                report.figure(&format!("{kind}_over_local_{clients}"), rounded(served / local));
            }
        }
    }
    report
        .figure("bulk_creates_per_s", rounded(measured.bulk))
        .figure("calls_per_create", rounded(measured.calls[0]))
        .figure("calls_per_cached_stat", rounded(measured.calls[1]));
    Ok(report)
}

/// How fast calls of one kind are.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    per_s: f64,
    /// Processor time of this process for each.
    cpu_us: f64,
}

/// Those of a round, in the order of [`KINDS`].
type Speeds = [Speed; 5];

/// The speeds of each round, at the server and without it; by the number of clients.
type Rates = (Vec<Speeds>, Vec<Speeds>);

struct Measured {
    rates: Vec<Rates>,
    calls: [f64; 2],
    bulk: f64,
}

async fn measure(env: &Env, files: u32, bulk: u64) -> Result<Measured, BenchError> {
    let device: DeviceRef = Arc::new(MemoryDevice::new(SIZE));
    let (local, store) = crate::fs::made::make(device, Mode::default()).await?;
    let server = Server::start(env, local.clone(), server::Options::default()).await;
    let server = server.map_err(failed)?;
    let wire = Wire::start(env).await?;
    wire.serve(Some((env.clone(), server)));
    let mut rates = Vec::new();
    let mut number = 0;
    for clients in CLIENTS {
        let (mut served, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for is_served in [true, false] {
                number += 1;
                let rates =
                    round(env, (&wire, &*local, is_served), number, (clients, files)).await?;
                if is_served { served.push(rates) } else { alone.push(rates) }
            }
        }
        rates.push((served, alone));
    }
    let calls = calls(&wire).await?;
    let mut bulks = Vec::new();
    for round in 0..ROUNDS {
        bulks.push(make_in_bulk(env, &local, round, bulk).await.map_err(failed)?);
    }
    let bulk = median(bulks);
    local.close().await.map_err(failed)?;
    drop((wire, local));
    store.close().await.map_err(failed)?;
    Ok(Measured { rates, calls, bulk })
}

fn new(node: Node) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0o022, uid: 0, gid: 0 }
}

/// One round of all kinds of calls.
async fn round(
    env: &Env,
    (wire, local, is_served): (&Wire, &LocalFs, bool),
    number: u32,
    (clients, files): (u32, u32),
) -> Result<Speeds, BenchError> {
    let each = files / clients;
    let mut callers: Vec<(Arc<dyn Filesystem>, Ino)> = Vec::new();
    for client in 0..clients {
        let fs: Arc<dyn Filesystem> = match is_served {
            true => Arc::new(wire.client().await?),
            false => Arc::new(local.clone()),
        };
        let name = format!("d{number}-{client}");
        let made = fs.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await;
        callers.push((fs, made.map_err(failed)?.ino));
    }
    let mut rates = Speeds::default();
    // A client that ends tells the server, so that no later change waits for it.
    rates[0] = timed(env, &callers, each, Kind::Create).await?;
    // Other clients, which cache nothing.
    for (client, (fs, directory)) in callers.iter_mut().enumerate() {
        if is_served {
            *fs = Arc::new(wire.client().await?);
            let name = format!("d{number}-{client}");
            *directory = fs.find(Ino::ROOT, name.as_bytes()).await.map_err(failed)?.ino;
        }
    }
    rates[1] = timed(env, &callers, each, Kind::Stat).await?;
    rates[2] = timed(env, &callers, each, Kind::Stat).await?;
    rates[3] = timed(env, &callers, each, Kind::Open).await?;
    for (client, (fs, directory)) in callers.iter_mut().enumerate() {
        if is_served {
            *fs = Arc::new(wire.client_alone().await?);
        }
        let name = format!("a{number}-{client}");
        let made = fs.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await;
        *directory = made.map_err(failed)?.ino;
    }
    rates[4] = timed(env, &callers, each, Kind::Make).await?;
    Ok(rates)
}

#[derive(Clone, Copy)]
enum Kind {
    Create,
    /// The same, and in the end the server has all.
    Make,
    Stat,
    Open,
}

/// The speed of all callers together.
async fn timed(
    env: &Env,
    callers: &[(Arc<dyn Filesystem>, Ino)],
    each: u32,
    kind: Kind,
) -> Result<Speed, BenchError> {
    let (begun, worked) = (env.now(), rig::processor());
    let calling = callers.iter().map(|(fs, directory)| {
        let (fs, directory) = (fs.clone(), *directory);
        env.spawn(async move { call(&*fs, directory, each, kind).await })
    });
    for task in calling.collect::<Vec<_>>() {
        let done = task.await.ok_or_else(|| BenchError::Failed("it panicked".into()))?;
        done.map_err(failed)?;
    }
    let took = env.now().since(begun).as_secs_f64();
    let calls = f64::from(each) * callers.len() as f64;
    Ok(Speed { per_s: calls / took, cpu_us: (rig::processor() - worked) * 1e6 / calls })
}

async fn call(fs: &dyn Filesystem, directory: Ino, each: u32, kind: Kind) -> Result<(), FsError> {
    let reads = OpenFlags { read: true, ..OpenFlags::default() };
    for file in 0..each {
        let name = format!("file{file}");
        match kind {
            Kind::Create | Kind::Make => {
                // As the kernel does it: it looks first.
                if let Lookup::Found(_) = fs.lookup(directory, name.as_bytes()).await? {
                    return Err(FsError::Exists);
                }
                fs.create(directory, name.as_bytes(), &new(Node::File)).await?;
            }
            Kind::Stat => {
                fs.find(directory, name.as_bytes()).await?;
            }
            Kind::Open => {
                let ino = fs.find(directory, name.as_bytes()).await?.ino;
                let opened = fs.open(&Caller::default(), ino, reads).await?;
                fs.release(ino, opened.handle).await;
            }
        }
    }
    if matches!(kind, Kind::Make) {
        fs.sync(directory, false).await?;
    }
    Ok(())
}

/// Makes files in a new directory, in one transaction; how many in a second.
async fn make_in_bulk(env: &Env, fs: &LocalFs, round: u32, files: u64) -> Result<f64, FsError> {
    let Some(session_table) = fs.session_table() else { return Err(FsError::NotSupported) };
    let name = format!("bulk{round}");
    let parent = fs.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await?.ino;
    let numbers = session_table.reserve_numbers(files).await?;
    let time = Timestamp::of_nanos(env.wall_nanos());
    let mutation = |number| {
        let (name, new) = (format!("file{number}").into(), new(Node::File));
        Mutation { time, kind: MutationKind::Create { parent, name, new, number: Ino(number) } }
    };
    let mutations: Vec<Mutation> = numbers.map(mutation).collect();
    let begun = env.now();
    session_table.apply(&mutations, &[], JournalPosition::default()).await?;
    Ok(files as f64 / env.now().since(begun).as_secs_f64())
}

/// Messages that a client sends for a create in a directory of its own, and for a stat of what it caches.
async fn calls(wire: &Wire) -> Result<[f64; 2], BenchError> {
    const CALLS: u32 = 1000;
    let fs = wire.client().await?;
    let made = fs.create(Ino::ROOT, b"counted", &new(Node::Directory)).await;
    let directory = made.map_err(failed)?.ino;
    let mut counts = [0.0; 2];
    for (count, kind) in counts.iter_mut().zip([Kind::Create, Kind::Stat]) {
        let before = messages(&fs);
        call(&fs, directory, CALLS, kind).await.map_err(failed)?;
        *count = (messages(&fs) - before) as f64 / f64::from(CALLS);
    }
    Ok(counts)
}

fn messages(client: &Client) -> u64 {
    client.traffic().sent().values().map(|sent| sent.messages).sum()
}
