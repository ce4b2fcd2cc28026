//! `arion-objects`: what it costs that a batch is whole after a crash where it replaces bytes of several objects (virtual time).
//!
//! The machines are those of `arion-zipf`. A client with a journal writes, and drains after each 8 MiB. Bytes are those that objects of files get,
//! once for all copies, without names and attributes. As it is built, what a batch replaces is stored aside, unless it is in one object, and
//! placed when it is old: so `redo_` figures are those when all bytes are in their places, and `at_once_` ones those before. With *undo* (thesis,
//! section 10.6), the bytes that are replaced are read, and in the pool before they are replaced.
//!
//! | load | writes |
//! |---|---|
//! | `append` | 64 KiB, each at the end of one file |
//! | `one_object` | each 64 KiB of one object of 4 MiB, in random order, again and again; after each 4 MiB the client drains |
//! | `overwrite` | each 64 KiB of a file, in random order |
//!
//! | figure | meaning |
//! |---|---|
//! | `redo_bytes_over_user_LOAD`, `undo_…` | bytes that objects get for a byte that was written |
//! | `at_once_bytes_over_user_LOAD` | those of them until the client has drained |
//! | `redo_read_bytes_over_user_LOAD`, `undo_…` | bytes that are read for that |
//! | `below_aim` | the figures that miss their aims |

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::seq::SliceRandom;
use thalweg_cluster::client::Client;
use thalweg_env::Env;
use thalweg_fs::contents::{Space, Stored};
use thalweg_fs::{Contents, Filesystem, FsError, Ino, Node, WriteAt, WriteHow};

use crate::arion_site::{RadosSite, journal_drive};
use crate::cluster_site::new;
use crate::rig::{self, failed};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-objects",
    about: "bytes that object servers get so that a batch of a client's journal is whole after a crash",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes that each load writes at scale 1.
const BYTES: f64 = 256e6;
const WRITE: u64 = 64 << 10;
/// After so many bytes the client drains.
const DRAIN: u64 = 8 << 20;
const OBJECT: u64 = 4 << 20;
/// What is stored aside is in the file with this number, and undo records are in those behind it.
const RECORDS: u64 = 1 << 63;
/// After so long all bytes are in their places, at the latest.
const PLACED_WITHIN: Duration = Duration::from_secs(300);

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] = &[
    ("redo_bytes_over_user_append", 1.05),
    ("redo_bytes_over_user_one_object", 1.05),
    ("redo_bytes_over_user_overwrite", 2.1),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Append,
    OneObject,
    Overwrite,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let bytes = ((BYTES * scale) as u64).max(2 * DRAIN).next_multiple_of(DRAIN);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let measure =
        |load, undoes| thalweg_sim::run(options.seed, move |env| measure(env, load, bytes, undoes));
    let loads = [Load::Append, Load::OneObject, Load::Overwrite];
    let [append, one_object, overwrite] =
        loads.map(|load| Ok::<_, BenchError>((measure(load, false)?, measure(load, true)?)));
    let (append, one_object, overwrite) = (append?, one_object?, overwrite?);
    let figures = [
        ("redo_bytes_over_user_append", append.0.written),
        ("at_once_bytes_over_user_append", append.0.at_once),
        ("redo_read_bytes_over_user_append", append.0.read),
        ("undo_bytes_over_user_append", append.1.written),
        ("undo_read_bytes_over_user_append", append.1.read),
        ("redo_bytes_over_user_one_object", one_object.0.written),
        ("at_once_bytes_over_user_one_object", one_object.0.at_once),
        ("redo_read_bytes_over_user_one_object", one_object.0.read),
        ("undo_bytes_over_user_one_object", one_object.1.written),
        ("undo_read_bytes_over_user_one_object", one_object.1.read),
        ("redo_bytes_over_user_overwrite", overwrite.0.written),
        ("at_once_bytes_over_user_overwrite", overwrite.0.at_once),
        ("redo_read_bytes_over_user_overwrite", overwrite.0.read),
        ("undo_bytes_over_user_overwrite", overwrite.1.written),
        ("undo_read_bytes_over_user_overwrite", overwrite.1.read),
    ];
    rig::tell(&mut report, figures, AIMS);
    Ok(report)
}

/// Bytes for a byte that was written.
#[derive(Clone, Copy, Debug)]
struct Moved {
    written: f64,
    /// Until the client has drained.
    at_once: f64,
    read: f64,
}

async fn measure(env: Env, load: Load, bytes: u64, undoes: bool) -> Result<Moved, BenchError> {
    let counted = Arc::new(Mutex::new(None));
    let site = RadosSite::with_contents(&env, |contents| {
        let (written, read, ends) = Default::default();
        let counting = Arc::new(Counting { contents, undoes, written, read, ends });
        *counted.lock() = Some(counting.clone());
        counting as Arc<dyn Contents>
    });
    let site = site.await?;
    let counting =
        counted.lock().clone().ok_or_else(|| BenchError::Failed("nothing is counted".into()))?;
    let client = site.site.journaled(journal_drive(&env)?.0).await?;
    let size = match load {
        Load::Append => 0,
        Load::OneObject => OBJECT,
        Load::Overwrite => bytes,
    };
    let file = make(&client, size).await.map_err(failed)?;
    let before = counting.counts();
    let user = writes(&env, &client, file, (load, bytes)).await.map_err(failed)?;
    let drained = counting.counts();
    placed(&env, &*counting).await?;
    let after = if undoes { drained } else { counting.counts() };
    let over = |after: u64, before: u64| (after - before) as f64 / user as f64;
    Ok(Moved {
        written: over(after.0, before.0),
        at_once: over(drained.0, before.0),
        read: over(after.1, before.1),
    })
}

/// Returns when nothing is aside any more.
async fn placed(env: &Env, contents: &dyn Contents) -> Result<(), BenchError> {
    let begun = env.now();
    while contents.list().await.map_err(failed)?.contains_key(&Ino(RECORDS)) {
        if env.now().since(begun) > PLACED_WITHIN {
            return Err(BenchError::Failed("bytes are not in their places".into()));
        }
        env.sleep(Duration::from_secs(5)).await;
    }
    Ok(())
}

/// A file of this size, which the client has to itself.
async fn make(client: &Client, size: u64) -> Result<Ino, FsError> {
    let directory = client.create(Ino::ROOT, b"d", &new(Node::Directory)).await?.ino;
    client.reference(directory);
    let file = client.create(directory, b"f", &new(Node::File)).await?.ino;
    client.reference(file);
    for offset in (0..size).step_by(WRITE as usize) {
        write(client, file, offset).await?;
        if offset % DRAIN == 0 {
            client.drain().await?;
        }
    }
    client.drain().await?;
    Ok(file)
}

async fn write(client: &Client, file: Ino, offset: u64) -> Result<(), FsError> {
    let data = vec![Bytes::from(vec![offset as u8 | 1; WRITE as usize])];
    client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await.map(drop)
}

/// Writes, and drains; how many bytes were written.
async fn writes(
    env: &Env,
    client: &Client,
    file: Ino,
    (load, bytes): (Load, u64),
) -> Result<u64, FsError> {
    let (span, drain) = match load {
        Load::Append | Load::Overwrite => (bytes, DRAIN),
        Load::OneObject => (OBJECT, OBJECT),
    };
    let mut rng = env.rng();
    let mut written = 0;
    while written < bytes {
        let mut offsets: Vec<u64> = (0..span).step_by(WRITE as usize).collect();
        if load != Load::Append {
            offsets.shuffle(&mut rng);
        }
        for offset in offsets {
            write(client, file, offset).await?;
            written += WRITE;
            if written % drain == 0 {
                client.drain().await?;
            }
        }
    }
    client.drain().await?;
    Ok(written)
}

/// Contents that count what is written and read. If they undo, what is replaced is read and stored first.
#[derive(Debug)]
struct Counting {
    contents: Arc<dyn Contents>,
    undoes: bool,
    written: AtomicU64,
    read: AtomicU64,
    /// The byte behind the last one of each file.
    ends: Mutex<BTreeMap<Ino, u64>>,
}

fn len_of(data: &[Bytes]) -> u64 {
    data.iter().map(|buffer| buffer.len() as u64).sum()
}

impl Counting {
    fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    fn add(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Stores what writes are about to replace.
    async fn keep(&self, ino: Ino, writes: &[(u64, Vec<Bytes>)]) -> Result<(), FsError> {
        let end = self.ends.lock().get(&ino).copied().unwrap_or_default();
        let replaced =
            |(offset, data): &(u64, Vec<Bytes>)| *offset..(offset + len_of(data)).min(end);
        let replaced: Vec<Range<u64>> =
            writes.iter().map(replaced).filter(|range| range.start < range.end).collect();
        let mut before = Vec::new();
        for range in &replaced {
            before.push(self.read(ino, range.start, (range.end - range.start) as usize).await?);
        }
        // Where the bytes were, and how long the file was.
        let head = Bytes::from(vec![0; 16 * replaced.len() + 16]);
        before.insert(0, head);
        self.add(len_of(&before));
        self.contents.write_all(Ino(RECORDS | ino.0), &[(0, before)], u64::MAX).await
    }
}

#[async_trait]
impl Contents for Counting {
    fn name(&self) -> String {
        self.contents.name()
    }

    fn unit(&self) -> u64 {
        self.contents.unit()
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes, FsError> {
        if !(self.undoes && ino == Ino(RECORDS)) {
            self.read.fetch_add(len as u64, Ordering::Relaxed);
        }
        self.contents.read(ino, offset, len).await
    }

    async fn write(&self, ino: Ino, offset: u64, data: &[Bytes]) -> Result<(), FsError> {
        self.write_all(ino, &[(offset, data.to_vec())], u64::MAX).await
    }

    async fn write_all(
        &self,
        ino: Ino,
        writes: &[(u64, Vec<Bytes>)],
        absent_from: u64,
    ) -> Result<(), FsError> {
        if self.undoes && ino == Ino(RECORDS) {
            // They would be in their places at once, behind a read and a record of what they replace.
            let bytes = writes.iter().map(|(_, data)| len_of(data)).sum();
            self.add(2 * bytes);
            self.read.fetch_add(bytes, Ordering::Relaxed);
            return self.contents.write_all(ino, writes, absent_from).await;
        }
        if self.undoes {
            self.keep(ino, writes).await?;
        }
        self.add(writes.iter().map(|(_, data)| len_of(data)).sum());
        let end = writes.iter().map(|(offset, data)| offset + len_of(data)).max();
        {
            let mut ends = self.ends.lock();
            let known = ends.entry(ino).or_default();
            *known = end.unwrap_or_default().max(*known);
        }
        self.contents.write_all(ino, writes, absent_from).await
    }

    async fn zero(&self, ino: Ino, range: Range<u64>) -> Result<(), FsError> {
        self.contents.zero(ino, range).await
    }

    async fn truncate(&self, ino: Ino, end: u64, size: u64) -> Result<(), FsError> {
        self.contents.truncate(ino, end, size).await
    }

    async fn list(&self) -> Result<BTreeMap<Ino, Stored>, FsError> {
        self.contents.list().await
    }

    async fn settle(&self) -> Result<(), FsError> {
        self.contents.settle().await
    }

    async fn space(&self) -> Result<Option<Space>, FsError> {
        self.contents.space().await
    }
}
