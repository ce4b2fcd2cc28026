//! `arion-replicate`: what an `fsync` costs a client whose journal has a second copy at a keeper (virtual time).
//!
//! The machines are those of `arion-fsync`, and a keeper with a solid-state drive of its own, which has a record on it before it answers. Each
//! `fsync` follows a write of 4 KiB to a file of the client's own. Bytes are those on the network in both directions, frames included; there is
//! no TLS in virtual time.
//!
//! | figure | meaning |
//! |---|---|
//! | `round_trips_per_fsync_1`, `_64` | calls to the keeper, with 1 and 64 writers; each waits for its answer |
//! | `wire_bytes_per_user_byte_1`, `_64` | bytes between client and keeper for a byte that was written |
//! | `server_messages_per_fsync` | of the client, without renewals of its lease |
//! | `fsync_us`, `without_keeper_us` | how long an `fsync` of one writer takes, and without a keeper |
//! | `round_trips_per_fsync`, `wire_bytes_per_user_byte` | the larger of the two |
//! | `below_aim` | the figures that miss their aims |

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use thalweg_cluster::client::Client;
use thalweg_cluster::keeper::{Keeper, Shelf};
use thalweg_env::Env;
use thalweg_fs::{Filesystem, FsError, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::device::DeviceRef;

use crate::cluster_site::{Site, new};
use crate::rig::{self, failed};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-replicate",
    about: "what an fsync costs a client whose journal has a second copy at a keeper",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Syncs of each load at scale 1.
const SYNCS: f64 = 4_000.0;
const JOURNAL: u64 = 1 << 30;
/// Bytes of a write.
const WRITE: u64 = 4096;
/// Writes that a file has room for.
const WRITES: u64 = 16;

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] = &[("round_trips_per_fsync", 1.0), ("wire_bytes_per_user_byte", 1.3)];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let syncs = ((SYNCS * scale) as u64).max(128);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let measure = |writers, is_kept| {
        thalweg_sim::run(options.seed, move |env| measure(env, writers, syncs, is_kept))
    };
    let (one, many) = (measure(1, true)?, measure(64, true)?);
    let alone = measure(1, false)?;
    let round_trips = one.round_trips.max(many.round_trips);
    let wire_bytes = one.wire_bytes.max(many.wire_bytes);
    let figures = [
        ("round_trips_per_fsync_1", one.round_trips),
        ("round_trips_per_fsync_64", many.round_trips),
        ("wire_bytes_per_user_byte_1", one.wire_bytes),
        ("wire_bytes_per_user_byte_64", many.wire_bytes),
        ("server_messages_per_fsync", one.messages.max(many.messages)),
        ("fsync_us", one.micros),
        ("without_keeper_us", alone.micros),
        ("round_trips_per_fsync", round_trips),
        ("wire_bytes_per_user_byte", wire_bytes),
    ];
    rig::tell(&mut report, figures, AIMS);
    Ok(report)
}

/// A keeper's drive, which has one copy.
struct OneCopy(DeviceRef);

#[async_trait]
impl Shelf for OneCopy {
    async fn names(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn open(&self, _name: &str) -> io::Result<Option<DeviceRef>> {
        Ok(Some(self.0.clone()))
    }

    async fn create(&self, _name: &str, _size: u64) -> io::Result<DeviceRef> {
        Ok(self.0.clone())
    }

    async fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }
}

/// For each `fsync`; bytes for each byte that was written.
#[derive(Clone, Copy, Debug)]
struct Spent {
    round_trips: f64,
    wire_bytes: f64,
    messages: f64,
    micros: f64,
}

async fn measure(env: Env, writers: u64, syncs: u64, is_kept: bool) -> Result<Spent, BenchError> {
    let site = Site::new(&env, LinkSpec::default()).await?;
    let drive = |name| Arc::new(SolidState::new(&env, name, SolidStateSpec::sata(JOURNAL)));
    let keeper = Keeper::new(&env, Box::new(OneCopy(drive("copy"))), JOURNAL);
    let keepers = if is_kept { vec![site.keeper(keeper)?] } else { Vec::new() };
    let client = site.journaled_with(drive("journal"), keepers).await?;
    let files = prepare(&client, writers).await.map_err(failed)?;
    let counts = || {
        let of_clock = ["Renew", "Release"];
        let messages = |traffic: &thalweg_net::Traffic| {
            let sent = traffic.sent();
            let all = sent.iter().filter(|(purpose, _)| !of_clock.contains(*purpose));
            all.map(|(_, sent)| sent.messages).sum::<u64>()
        };
        let copied = client.copy_traffic().map_or(0, |traffic| messages(&traffic));
        [copied, site.wire_bytes_of_keeper(), messages(client.traffic())]
    };
    let (before, begun) = (counts(), env.now());
    let each = syncs / writers;
    let working = files.iter().map(|file| work(&client, *file, each));
    try_join_all(working).await.map_err(failed)?;
    let (after, took) = (counts(), env.now().since(begun));
    let all = (each * writers) as f64;
    let of = |at: usize| (after[at] - before[at]) as f64 / all;
    let micros = took.as_secs_f64() * 1e6 / each as f64;
    let wire_bytes = of(1) / WRITE as f64;
    Ok(Spent { round_trips: of(0), wire_bytes, messages: of(2), micros })
}

/// A file of each writer, in a directory that is the client's alone.
async fn prepare(client: &Client, writers: u64) -> Result<Vec<Ino>, FsError> {
    let directory = client.create(Ino::ROOT, b"d", &new(Node::Directory)).await?.ino;
    client.reference(directory);
    let mut files = Vec::new();
    // The first two are made by calls, before the directory is the client's.
    for writer in 0..writers + 2 {
        let name = format!("w{writer}");
        let file = client.create(directory, name.as_bytes(), &new(Node::File)).await?.ino;
        client.reference(file);
        let data = vec![Bytes::from(vec![1; (WRITES * WRITE) as usize])];
        client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await?;
        files.push(file);
    }
    files.drain(..2);
    client.wait_for(directory, Level::Server, std::time::Duration::from_secs(60)).await?;
    Ok(files)
}

async fn work(client: &Client, file: Ino, syncs: u64) -> Result<(), FsError> {
    for number in 0..syncs {
        let data = vec![Bytes::from(vec![number as u8; WRITE as usize])];
        let at = WriteAt::Offset(number % WRITES * WRITE);
        client.write(file, at, data, WriteHow::default()).await?;
        client.sync(file, true).await?;
    }
    Ok(())
}
