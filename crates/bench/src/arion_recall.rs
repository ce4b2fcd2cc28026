//! `arion-recall`: how long a client waits for what one with a journal has written and not sent (virtual time).
//!
//! The machines are those of the thesis (8.1): links of 1 Gbit/s, RADOS with three copies on disks of 15,000 rpm, a journal of 2 GB on two
//! such disks. The first client has a directory to itself and writes files in it; the second one finds one of them and reads it. The last two
//! figures are measured with the server's filesystem on a solid-state drive as well (`embedded_`), where disks of servers limit nothing.
//!
//! At scale 1 the client has 1 GiB that the server does not have. A client bounds that to what the link carries in 30 s, as its last batches
//! went, and to half of its journal, which is therefore 4 GiB here. `behind_mb` is the number of bytes that were really unsent. These bytes replace others: new
//! blocks are bounded by the room that a server promises, and a write beyond that is a call that sends everything (`new_mb`).
//!
//! | figure | meaning |
//! |---|---|
//! | `read_ms_4k`, `_64k`, `_256k` | until the second client has read a file of so many bytes that the first one has just written: neither its journal nor the server has it |
//! | `committed_read_ms_4k`, ... | the same when the journal has it |
//! | `unjournaled_read_ms_4k`, ... | the same of a client without a journal, which has as many bytes unsent |
//! | `read_over_unjournaled` | the largest `read_ms_` over `unjournaled_read_ms_`; `committed_read_over_unjournaled` |
//! | `behind_mb`, `behind_seconds` | bytes that the first client has not sent when the second one reads 4 KiB of its, and how long that takes |
//! | `new_mb` | the most bytes of a new file that the client has unsent while it writes it |
//! | `read_behind_1g_over_link` | that over the time in which the link carries those bytes |
//! | `evictions` | sessions that the server has ended, in all runs |
//! | `below_aim` | the figures that miss their aims |

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{self, Client};
use thalweg_env::Env;
use thalweg_fs::{Filesystem, FsError, Ino, Node, WriteAt, WriteHow};

use crate::arion_site::{self, RadosSite, journal_drive, link_time, striped_drive};
use crate::cluster_site::{Site, journaled, new};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-recall",
    about: "how long a client waits for what one with a journal has not sent",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes of the files that are read, no more than a client without a journal keeps to itself.
const SIZES: [(&str, usize); 3] = [("4k", 4 << 10), ("64k", 64 << 10), ("256k", 256 << 10)];
/// Reads of each size at scale 1.
const ROUNDS: f64 = 50.0;
/// Bytes that wait at scale 1.
const BEHIND: f64 = (1u64 << 30) as f64;
/// Bytes of a write.
const CHUNK: usize = 64 << 10;

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] =
    &[("read_over_unjournaled", 1.3), ("read_behind_1g_over_link", 1.2), ("evictions", 0.0)];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let rounds = ((ROUNDS * scale) as u32).max(3);
    let bytes = ((BEHIND * scale) as u64).max(16 << 20).next_multiple_of(CHUNK as u64);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let cases = cases(rounds, bytes);
    let seen = rig::on_all_processors(&cases, |case| {
        let case = case.clone();
        thalweg_sim::run(options.seed, move |env| measure(env, case))
    })?;
    let evictions: u64 = seen.iter().map(|seen| seen.evictions).sum();
    let of = |wanted: Case| -> Result<Seen, BenchError> {
        let nth = cases.iter().position(|case| *case == wanted);
        nth.map(|nth| seen[nth]).ok_or_else(|| BenchError::Failed("a case was not run".into()))
    };
    let (mut just, mut committed) = (0.0_f64, 0.0_f64);
    for (name, bytes) in SIZES {
        let read = |state| of(Case::Read { bytes, state, rounds });
        let [own, early, without] =
            [read(State::Written)?, read(State::Committed)?, read(State::Unjournaled)?];
        if own.unsent != without.unsent {
            let why = format!("{} and {} bytes were unsent", own.unsent, without.unsent);
            return Err(BenchError::Failed(why.into()));
        }
        report
            .figure(&format!("read_ms_{name}"), rounded(own.seconds * 1e3))
            .figure(&format!("committed_read_ms_{name}"), rounded(early.seconds * 1e3))
            .figure(&format!("unjournaled_read_ms_{name}"), rounded(without.seconds * 1e3));
        just = just.max(own.seconds / without.seconds);
        committed = committed.max(early.seconds / without.seconds);
    }
    report
        .figure("read_over_unjournaled", rounded(just))
        .figure("committed_read_over_unjournaled", rounded(committed));
    for (prefix, is_embedded) in [("", false), ("embedded_", true)] {
        let seen = of(Case::Behind { bytes, is_embedded })?;
        let over = seen.seconds / link_time(seen.unsent).as_secs_f64();
        report
            .figure(&format!("{prefix}behind_mb"), rounded(seen.unsent as f64 / 1e6))
            .figure(&format!("{prefix}new_mb"), rounded(seen.most_new as f64 / 1e6))
            .figure(&format!("{prefix}behind_seconds"), rounded(seen.seconds))
            .figure(&format!("{prefix}read_behind_1g_over_link"), rounded(over));
    }
    report.figure("evictions", evictions as f64);
    let missed = AIMS
        .iter()
        .filter(|(name, aim)| report.number(name).is_none_or(|figure| figure > aim + 5e-4));
    let missed = missed.count();
    report.figure("below_aim", missed as f64);
    Ok(report)
}

/// What the first client has done with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// They are in its memory alone.
    Written,
    /// They are in its journal.
    Committed,
    /// They are in its memory, and it has no journal.
    Unjournaled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Case {
    Read { bytes: usize, state: State, rounds: u32 },
    Behind { bytes: u64, is_embedded: bool },
}

fn cases(rounds: u32, bytes: u64) -> Vec<Case> {
    let states = [State::Written, State::Committed, State::Unjournaled];
    let reads = SIZES
        .iter()
        .flat_map(|(_, bytes)| states.map(|state| Case::Read { bytes: *bytes, state, rounds }));
    let behind = [false, true].map(|is_embedded| Case::Behind { bytes, is_embedded });
    behind.into_iter().chain(reads).collect()
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Of one read.
    seconds: f64,
    /// Bytes that the first client had not sent before it.
    unsent: u64,
    /// The most bytes of a new file that it had not sent.
    most_new: u64,
    evictions: u64,
}

async fn measure(env: Env, case: Case) -> Result<Seen, BenchError> {
    match case {
        Case::Read { bytes, state, rounds } => {
            let site = RadosSite::new(&env).await?;
            reads(&env, &site.site, bytes, state, rounds).await
        }
        Case::Behind { bytes, is_embedded: true } => {
            behind(&env, &arion_site::embedded(&env).await?, bytes).await
        }
        Case::Behind { bytes, is_embedded: false } => {
            let site = RadosSite::new(&env).await?;
            behind(&env, &site.site, bytes).await
        }
    }
}

/// Reads of files that were just written, each in a directory of its own.
async fn reads(
    env: &Env,
    site: &Site,
    bytes: usize,
    state: State,
    rounds: u32,
) -> Result<Seen, BenchError> {
    let owner = match state {
        State::Unjournaled => {
            // As lazy as one with a journal.
            let minute = Duration::from_secs(60);
            let lazy = client::Options { writeback: minute, expire: minute, ..Default::default() };
            site.connect(env, "owner", lazy).await?
        }
        State::Written | State::Committed => site.journaled(journal_drive(env)?.0).await?,
    };
    let reader = site.client("reader", true).await?;
    let (mut took, mut unsent) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let name = format!("d{round}");
        let directory = own_directory(&owner, &name).await.map_err(failed)?;
        // The clients are at different points of their timers.
        env.sleep(Duration::from_millis(137 * u64::from(round % 7))).await;
        write_file(&owner, directory, "f", bytes).await.map_err(failed)?;
        if state == State::Committed {
            owner.commit().await.map_err(failed)?;
        }
        unsent += owner.pending().unsent.bytes;
        let begun = env.now();
        read_file(&reader, &name, "f", bytes).await.map_err(failed)?;
        took += env.now().since(begun);
    }
    let evictions = owner.status().evictions + reader.status().evictions;
    let seconds = took.as_secs_f64() / f64::from(rounds);
    Ok(Seen { seconds, unsent, most_new: 0, evictions })
}

/// One read of a file, when so many bytes in the same directory are unsent.
async fn behind(env: &Env, site: &Site, bytes: u64) -> Result<Seen, BenchError> {
    let (drive, _disks) = striped_drive(env, 2 * arion_site::JOURNAL)?;
    client::journal::create(env, &drive).await.map_err(failed)?;
    // Nothing is sent because it is old.
    let expire = Duration::from_secs(3600);
    let options = client::Options { expire, ..journaled(drive) };
    let owner = site.connect(env, "owner", options).await?;
    let reader = site.client("reader", true).await?;
    let directory = own_directory(&owner, "d").await.map_err(failed)?;
    let file = owner.create(directory, b"f", &new(Node::File)).await.map_err(failed)?.ino;
    let mut most_new = 0;
    for offset in (0..bytes).step_by(CHUNK) {
        write_chunk(&owner, file, offset, 2).await.map_err(failed)?;
        most_new = most_new.max(owner.pending().unsent.bytes);
    }
    owner.drain().await.map_err(failed)?;
    for offset in (0..bytes).step_by(CHUNK) {
        write_chunk(&owner, file, offset, 1).await.map_err(failed)?;
    }
    let unsent = owner.pending().unsent.bytes;
    let begun = env.now();
    read_file(&reader, "d", "f", 4 << 10).await.map_err(failed)?;
    let seconds = env.now().since(begun).as_secs_f64();
    let left = owner.pending().unsent.bytes;
    if left > 0 {
        return Err(BenchError::Failed(format!("{left} bytes are unsent behind the read").into()));
    }
    let evictions = owner.status().evictions + reader.status().evictions;
    Ok(Seen { seconds, unsent, most_new, evictions })
}

/// A directory that is the client's alone, and at the server.
async fn own_directory(client: &Client, name: &str) -> Result<Ino, FsError> {
    let directory = client.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await?.ino;
    client.reference(directory);
    // The directory is the client's with the second name.
    for name in [&b"a"[..], b"b"] {
        client.create(directory, name, &new(Node::File)).await?;
    }
    client.sync(directory, false).await?;
    client.drain().await?;
    Ok(directory)
}

async fn write_file(
    client: &Client,
    directory: Ino,
    name: &str,
    bytes: usize,
) -> Result<(), FsError> {
    let made = client.create(directory, name.as_bytes(), &new(Node::File)).await?;
    for offset in (0..bytes).step_by(CHUNK) {
        let data = vec![Bytes::from(vec![1; (bytes - offset).min(CHUNK)])];
        client.write(made.ino, WriteAt::Offset(offset as u64), data, WriteHow::default()).await?;
    }
    Ok(())
}

async fn write_chunk(client: &Client, file: Ino, offset: u64, fill: u8) -> Result<(), FsError> {
    let data = vec![Bytes::from(vec![fill; CHUNK])];
    client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await.map(drop)
}

/// Finds and reads the first bytes of a file.
async fn read_file(
    client: &Client,
    directory: &str,
    name: &str,
    bytes: usize,
) -> Result<(), FsError> {
    let directory = client.find(Ino::ROOT, directory.as_bytes()).await?.ino;
    client.reference(directory);
    let file = client.find(directory, name.as_bytes()).await?.ino;
    let found = client.read(file, 0, bytes).await?;
    let whole = found.iter().map(Bytes::len).sum::<usize>() == bytes;
    match whole && found.iter().all(|part| part.iter().all(|byte| *byte == 1)) {
        true => Ok(()),
        false => Err(FsError::Invalid("a file has other bytes")),
    }
}
