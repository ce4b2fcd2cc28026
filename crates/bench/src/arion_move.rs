//! `arion-move`: a mount with a journal moves to another machine, while programs work there (virtual time).
//!
//! The machines are those of `arion-fsync`, and one more with a solid-state drive of its own; 1 Gbit/s between each two. First programs write what
//! the server does not have. Then the mount moves, while eight writers go on: each writes 4 KiB to a file of its own, and syncs it, again and again. A writer
//! that finds the mount moved repeats its call at the other machine, as a virtual machine would that moves with its mount. At the end each
//! finds there what it has written.
//!
//! | figure | meaning |
//! |---|---|
//! | `pause_ms` | the longest time for a write with its sync that began before the switch and ended behind it |
//! | `bytes_over_dirty` | bytes between both machines, in both directions, for a byte of files that the server does not have at the switch |
//! | `failed_calls` | calls of writers that failed, without those that were repeated at the other machine |
//! | `dirty_mb`, `move_ms`, `switch_ms`, `syncs` | bytes that the server does not have at the switch; how long the move takes, and for how much of that calls are held; syncs meanwhile |
//! | `below_aim` | the figures that miss their aims |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join_all};
use thalweg_cluster::client::Client;
use thalweg_env::{Env, Time, watch};
use thalweg_fs::{Filesystem, FsError, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};

use crate::cluster_site::{Site, new};
use crate::rig::{self, failed};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-move",
    about: "a mount with a journal moves to another machine while programs work there",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const JOURNAL: u64 = 1 << 30;
/// Bytes that the server does not have when the move begins, at scale 1.
const DIRTY: f64 = (128 << 20) as f64;
/// Bytes of a write before that.
const LARGE: u64 = 64 << 10;
const WRITERS: u64 = 8;
/// Bytes of a write of a writer, and how many its file has room for.
const WRITE: u64 = 4096;
const WRITES: u64 = 64;
/// The pause of a writer between two writes.
const THINKS: Duration = Duration::from_micros(500);
/// Writes of each writer at the other machine.
const AFTERWARDS: u64 = 100;

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] =
    &[("pause_ms", 1000.0), ("bytes_over_dirty", 1.1), ("failed_calls", 0.0)];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 0.5)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let dirty = ((DIRTY * scale) as u64).max(LARGE);
    let figures = thalweg_sim::run(options.seed, move |env| measure(env, dirty))?;
    rig::tell(&mut report, figures, AIMS);
    Ok(report)
}

/// A write of a writer that is not done.
struct Pending {
    number: u64,
    begun: Time,
}

/// A writer, at both machines.
struct Writer {
    env: Env,
    name: String,
    written: u64,
    failed: Arc<AtomicU64>,
}

impl Writer {
    /// Writes and syncs once; whether the mount has moved meanwhile.
    async fn write(&self, client: &Client, file: Ino, number: u64) -> bool {
        let data = vec![Bytes::from(vec![number as u8; WRITE as usize])];
        let at = WriteAt::Offset(number % WRITES * WRITE);
        let written = async {
            client.write(file, at, data, WriteHow::default()).await?;
            client.sync(file, true).await
        };
        match written.await {
            Ok(()) => false,
            Err(FsError::Stale) => true,
            Err(_) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Writes until the mount has moved.
    async fn work(&mut self, client: &Client, file: Ino) -> Pending {
        loop {
            self.env.sleep(THINKS).await;
            let pending = Pending { number: self.written, begun: self.env.now() };
            if self.write(client, file, pending.number).await {
                return pending;
            }
            self.written += 1;
        }
    }

    /// Goes on at the other machine; how long the pending write has taken.
    async fn go_on(&mut self, client: &Client, pending: Pending) -> Result<Duration, FsError> {
        let directory = client.find(Ino::ROOT, b"d").await?.ino;
        client.reference(directory);
        let file = client.find(directory, self.name.as_bytes()).await?.ino;
        client.reference(file);
        let mut took = None;
        for number in pending.number..pending.number + AFTERWARDS {
            if self.write(client, file, number).await {
                return Err(FsError::Stale);
            }
            took.get_or_insert_with(|| self.env.now().since(pending.begun));
        }
        let last = pending.number + AFTERWARDS;
        for number in last.saturating_sub(WRITES)..last {
            let found = client.read(file, number % WRITES * WRITE, WRITE as usize).await?.concat();
            if found.iter().any(|byte| *byte != number as u8) || found.len() != WRITE as usize {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(took.unwrap_or_default())
    }
}

async fn measure(env: Env, dirty: u64) -> Result<Vec<(&'static str, f64)>, BenchError> {
    let site = Site::new(&env, LinkSpec::default()).await?;
    let drive = |name| Arc::new(SolidState::new(&env, name, SolidStateSpec::sata(JOURNAL)));
    let client = site.journaled_with(drive("journal"), Vec::new()).await?;
    let files = prepare(&client, dirty).await.map_err(failed)?;
    let (receiver, target) = site.receiver(drive("destination")).await?;
    let (arrived, there) = watch::channel(None::<Client>);
    let failures = Arc::new(AtomicU64::new(0));
    let writers = files.into_iter().enumerate().map(|(at, file)| {
        let (env, failed) = (env.clone(), failures.clone());
        let mut writer = Writer { env, name: format!("w{at}"), written: 0, failed };
        let (client, mut there) = (client.clone(), there.clone());
        async move {
            let pending = writer.work(&client, file).await;
            let waited = there.wait_for(Option::is_some).await;
            let found = there.borrow().clone().filter(|_| waited.is_ok());
            let there = found.ok_or(FsError::Stale)?;
            let before = writer.written;
            writer.go_on(&there, pending).await.map(|took| (took, before))
        }
    });
    let begun = env.now();
    let arriving = async {
        let arrival = receiver.arrived().await?;
        let dirty = arrival.client().pending().unsent.bytes;
        arrived.send_replace(Some(arrival.accept()));
        Some((dirty, env.now().since(begun)))
    };
    let moving = async {
        // The writers are under way.
        env.sleep(Duration::from_millis(20)).await;
        client.move_to(target, true).await
    };
    let ((moved, arrival), done) = join(join(moving, arriving), join_all(writers)).await;
    let moved = moved.map_err(failed)?;
    let (dirty, took) = arrival.ok_or_else(|| BenchError::Failed("nothing has arrived".into()))?;
    let (mut pause, mut syncs) = (Duration::ZERO, 0);
    for done in done {
        match done {
            Ok((took, written)) => (pause, syncs) = (pause.max(took), syncs + written),
            Err(_) => drop(failures.fetch_add(1, Ordering::Relaxed)),
        }
    }
    let millis = |it: Duration| it.as_secs_f64() * 1e3;
    Ok(vec![
        ("dirty_mb", dirty as f64 / 1e6),
        ("move_ms", millis(took)),
        ("switch_ms", moved.pause_us as f64 / 1e3),
        ("syncs", syncs as f64),
        ("pause_ms", millis(pause)),
        ("bytes_over_dirty", site.wire_bytes_of_move() as f64 / dirty.max(1) as f64),
        ("failed_calls", failures.load(Ordering::Relaxed) as f64),
    ])
}

/// Writes so many bytes that the server does not have, and makes a file of each writer, in a directory that is the client's alone.
async fn prepare(client: &Client, dirty: u64) -> Result<Vec<Ino>, FsError> {
    let directory = client.create(Ino::ROOT, b"d", &new(Node::Directory)).await?.ino;
    client.reference(directory);
    let mut files = Vec::new();
    // The first two are made by calls, before the directory is the client's.
    for name in ["first", "second", "data"] {
        let file = client.create(directory, name.as_bytes(), &new(Node::File)).await?.ino;
        client.reference(file);
        files.push(file);
    }
    let data = files[2];
    for at in (0..dirty).step_by(LARGE as usize) {
        let bytes = vec![Bytes::from(vec![(at / LARGE) as u8; LARGE as usize])];
        client.write(data, WriteAt::Offset(at), bytes, WriteHow::default()).await?;
    }
    let mut files = Vec::new();
    for writer in 0..WRITERS {
        let file =
            client.create(directory, format!("w{writer}").as_bytes(), &new(Node::File)).await?;
        client.reference(file.ino);
        files.push(file.ino);
    }
    client.sync_all().await?;
    Ok(files)
}
