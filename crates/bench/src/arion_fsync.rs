//! `arion-fsync`: what an `fsync` costs a client with a journal of its own (virtual time).
//!
//! The client has a directory to itself, and files in it that are at the server. Its journal is a solid-state drive with sectors of
//! 512 bytes. Renewals of the lease, a few in each lease, are not counted. The machines are those of `cluster-creates`.
//!
//! | figure | meaning |
//! |---|---|
//! | `messages_per_fsync`, `network_bytes_per_fsync` | of the client, where each `fsync` follows a write of 128 bytes |
//! | `messages_per_create_fsync`, `_rename_fsync`, `_unlink_fsync` | the same, where a file is made, renamed or removed before |
//! | `flushes_per_fsync_1`, `_64` | of the journal's drive, with 1 and 64 writers |
//! | `wasteless_journal_bytes_per_user_byte_128_1`, `_128_64`, `_4096_1`, `_4096_64` | written to the drive, for writes of so many bytes by so many writers |
//! | `data_journal_bytes_per_user_byte_128_1`, `_128_64`, `_4096_1`, `_4096_64` | the same where the journal has whole pages (`data=data`) |
//! | `read_bytes_per_partial_write` | that the server sends for a write of 128 bytes to a block that is at the server |
//! | `below_aim` | the figures that miss their aims |

use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use thalweg_cluster::client::{Client, JournaledData};
use thalweg_env::Env;
use thalweg_fs::{Filesystem, FsError, Ino, Node, Rename, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::device::Device;

use crate::cluster_site::{Site, new};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-fsync",
    about: "what an fsync costs a client with a journal of its own",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Syncs of each load at scale 1.
const SYNCS: f64 = 4_000.0;
const JOURNAL: u64 = 1 << 30;
/// Bytes of a file that writes go to.
const FILE: u64 = 64 << 10;

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] = &[
    ("messages_per_fsync", 0.0),
    ("network_bytes_per_fsync", 0.0),
    ("messages_per_create_fsync", 0.02),
    ("messages_per_rename_fsync", 0.02),
    ("messages_per_unlink_fsync", 0.02),
    ("flushes_per_fsync_1", 1.0),
    ("flushes_per_fsync_64", 0.1),
    ("wasteless_journal_bytes_per_user_byte_128_1", 4.0),
    ("wasteless_journal_bytes_per_user_byte_128_64", 1.2),
    ("wasteless_journal_bytes_per_user_byte_4096_1", 1.13),
    ("wasteless_journal_bytes_per_user_byte_4096_64", 1.02),
    ("read_bytes_per_partial_write", 0.0),
];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let syncs = ((SYNCS * scale) as u64).max(64);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let measure = |load| thalweg_sim::run(options.seed, move |env| measure(env, load, syncs));
    let mut figures: Vec<(String, f64)> = Vec::new();
    let modes = [("wasteless", JournaledData::Wasteless), ("data", JournaledData::Pages)];
    for (at, bytes) in [128, 4096, 128, 4096].into_iter().enumerate() {
        let (mode, data) = modes[at / 2];
        for writers in [1, 64] {
            let spent = measure(Load::Writes { bytes, writers, data })?;
            let name = format!("{mode}_journal_bytes_per_user_byte_{bytes}_{writers}");
            figures.push((name, spent.journal_bytes / f64::from(bytes)));
            if data == JournaledData::Pages {
                continue;
            }
            if bytes == 128 {
                figures.push((format!("flushes_per_fsync_{writers}"), spent.flushes));
            }
            if (bytes, writers) == (128, 1) {
                figures.push(("messages_per_fsync".to_owned(), spent.messages));
                figures.push(("network_bytes_per_fsync".to_owned(), spent.sent));
                figures.push(("read_bytes_per_partial_write".to_owned(), spent.received));
            }
        }
    }
    for (name, load) in
        [("create", Load::Creates), ("rename", Load::Renames), ("unlink", Load::Unlinks)]
    {
        figures.push((format!("messages_per_{name}_fsync"), measure(load)?.messages));
    }
    let mut missed = 0;
    for (name, aim) in AIMS {
        let found = figures.iter().find(|(figure, _)| figure == name);
        let (_, figure) =
            found.ok_or_else(|| BenchError::Failed(format!("{name} was not measured").into()))?;
        report.figure(name, rounded(*figure));
        missed += u32::from(*figure > aim + 5e-4);
    }
    report.figure("below_aim", f64::from(missed));
    for (name, figure) in figures.iter().filter(|(name, _)| name.starts_with("data_")) {
        report.figure(name, rounded(*figure));
    }
    Ok(report)
}

/// What the writers do before each `fsync`.
#[derive(Clone, Copy, Debug)]
enum Load {
    Writes { bytes: u32, writers: u64, data: JournaledData },
    Creates,
    Renames,
    Unlinks,
}

/// For each `fsync`.
#[derive(Clone, Copy, Debug)]
struct Spent {
    messages: f64,
    sent: f64,
    received: f64,
    flushes: f64,
    journal_bytes: f64,
}

async fn measure(env: Env, load: Load, syncs: u64) -> Result<Spent, BenchError> {
    let site = Site::new(&env, LinkSpec::default()).await?;
    let drive = Arc::new(SolidState::new(&env, "journal", SolidStateSpec::sata(JOURNAL)));
    let (writers, data) = match load {
        Load::Writes { writers, data, .. } => (writers, data),
        _ => (1, JournaledData::default()),
    };
    let client = site.journaled_as(drive.clone(), data).await?;
    let (directory, files) = prepare(&client, load, writers, syncs).await.map_err(failed)?;
    let counts = || {
        let sent = client.traffic().sent();
        let all = sent.iter().filter(|(purpose, _)| **purpose != "Renew").map(|(_, sent)| sent);
        let (messages, bytes) = all
            .fold((0, 0), |(messages, bytes), sent| (messages + sent.messages, bytes + sent.bytes));
        let drive = drive.tallies().total();
        [messages, bytes, site.sent_to_client(), drive.flushes, drive.write_bytes]
    };
    let before = counts();
    let each = syncs / writers;
    let working = files.iter().enumerate().map(|(writer, file)| {
        let writer =
            Writer { client: client.clone(), directory, file: *file, number: writer as u64 };
        async move { writer.work(load, each).await }
    });
    try_join_all(working).await.map_err(failed)?;
    let after = counts();
    let of = |at: usize| (after[at] - before[at]) as f64 / (each * writers) as f64;
    Ok(Spent {
        messages: of(0),
        sent: of(1),
        received: of(2),
        flushes: of(3),
        journal_bytes: of(4),
    })
}

/// A directory that is the client's alone, and a file of each writer, which are at the server. Loads that use names up have them.
async fn prepare(
    client: &Client,
    load: Load,
    writers: u64,
    syncs: u64,
) -> Result<(Ino, Vec<Ino>), FsError> {
    let directory = client.create(Ino::ROOT, b"d", &new(Node::Directory)).await?.ino;
    client.reference(directory);
    let mut files = Vec::new();
    for writer in 0..writers + 2 {
        let made =
            client.create(directory, format!("w{writer}").as_bytes(), &new(Node::File)).await?;
        client.reference(made.ino);
        let data = vec![Bytes::from(vec![1; FILE as usize])];
        client.write(made.ino, WriteAt::Offset(0), data, WriteHow::default()).await?;
        files.push(made.ino);
    }
    // The first two were made by calls, before the directory was the client's.
    files.drain(..2);
    if let Load::Unlinks = load {
        for number in 0..syncs {
            client.create(directory, format!("u{number}").as_bytes(), &new(Node::File)).await?;
        }
    }
    client
        .wait_for(directory, thalweg_fs::Level::Server, std::time::Duration::from_secs(60))
        .await?;
    Ok((directory, files))
}

struct Writer {
    client: Client,
    directory: Ino,
    file: Ino,
    number: u64,
}

impl Writer {
    async fn work(&self, load: Load, syncs: u64) -> Result<(), FsError> {
        for number in 0..syncs {
            let synced = self.change(load, number).await?;
            self.client.sync(synced, true).await?;
        }
        Ok(())
    }

    /// Changes something; what is to be synced.
    async fn change(&self, load: Load, number: u64) -> Result<Ino, FsError> {
        let (client, directory) = (&self.client, self.directory);
        match load {
            Load::Writes { bytes, .. } => {
                let at = (self.number + number * 7919) * u64::from(bytes) % FILE;
                let data = vec![Bytes::from(vec![number as u8; bytes as usize])];
                client.write(self.file, WriteAt::Offset(at), data, WriteHow::default()).await?;
                Ok(self.file)
            }
            Load::Creates => {
                let name = format!("c{number}");
                Ok(client.create(directory, name.as_bytes(), &new(Node::File)).await?.ino)
            }
            Load::Renames => {
                let name =
                    |number: u64| if number == 0 { "w2".to_owned() } else { format!("r{number}") };
                let (from, to) = (name(number), name(number + 1));
                let (from, to) = ((directory, from.as_bytes()), (directory, to.as_bytes()));
                client.rename(from, to, Rename::Replace).await?;
                Ok(directory)
            }
            Load::Unlinks => {
                client.unlink(directory, format!("u{number}").as_bytes()).await?;
                Ok(directory)
            }
        }
    }
}
