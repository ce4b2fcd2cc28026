//! `cluster-recall`: how long a client waits for what another one has made and not sent (virtual time).
//!
//! The first client has a directory to itself, and makes files in it. The second one lists the directory, and finds and reads
//! each file. The machines are those of `cluster-creates`.
//!
//! | figure | meaning |
//! |---|---|
//! | `read_ms_1`, `_5000` | until the second client has read one file of 4 KiB, or 5000 files of 100 bytes |
//! | `first_ms_5000` | until it has read the first one of them |
//! | `alone_ms_1`, `_5000` | the same when the first client has sent everything before, and has left |
//! | `messages_1`, `_5000` | messages of both clients to the server meanwhile |
//! | `round_trips_1`, `alone_round_trips_1` | of the network, in `read_ms_1` and `alone_ms_1`: by how much they grow with its latency |
//! | `dead_seconds` | for one file, when the first client's machine is dead: it is lost then |

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::Client;
use thalweg_env::Env;
use thalweg_fs::{Cookie, Filesystem, FsError, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;

use crate::cluster_site::{Site, messages, new};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-recall",
    about: "how long a client waits for what another one has made and not sent",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Files at scale 1, of so many bytes.
const MANY: (f64, usize) = (5_000.0, 100);
const ONE: (u32, usize) = (1, 4096);
/// Latencies that round trips are counted with.
const LATENCIES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let many = (((MANY.0 * scale) as u32).max(10), MANY.1);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let seed = options.seed;
    let measure = |files, state| {
        thalweg_sim::run(seed, |env| measure(env, LinkSpec::default(), files, state))
    };
    for (name, files) in [("1", ONE), ("5000", many)] {
        let (unsent, sent) = (measure(files, State::Unsent)?, measure(files, State::Sent)?);
        report
            .figure(&format!("read_ms_{name}"), rounded(unsent.all_ms))
            .figure(&format!("alone_ms_{name}"), rounded(sent.all_ms))
            .figure(&format!("messages_{name}"), rounded(unsent.messages as f64));
        if files != ONE {
            report.figure("first_ms_5000", rounded(unsent.first_ms));
        }
    }
    report
        .figure("round_trips_1", rounded(round_trips(seed, State::Unsent)?))
        .figure("alone_round_trips_1", rounded(round_trips(seed, State::Sent)?));
    let dead = measure(ONE, State::Dead)?;
    report.figure("dead_seconds", rounded(dead.all_ms / 1e3));
    Ok(report)
}

/// Round trips of the network until the second client has read one file.
fn round_trips(seed: u64, state: State) -> Result<f64, BenchError> {
    let millis = |latency| -> Result<f64, BenchError> {
        let link = LinkSpec { jitter: Duration::ZERO, ..LinkSpec::of(latency) };
        Ok(thalweg_sim::run(seed, |env| measure(env, link, ONE, state))?.all_ms)
    };
    let [near, far] = LATENCIES;
    let more = (far - near).as_secs_f64() * 2e3;
    Ok((millis(far)? - millis(near)?) / more)
}

/// What the first client has done when the second one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It has sent nothing.
    Unsent,
    /// It has sent everything, and left.
    Sent,
    /// It has sent nothing, and does not answer.
    Dead,
}

/// What the second client has seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first_ms: f64,
    all_ms: f64,
    messages: u64,
}

async fn measure(
    env: Env,
    link: LinkSpec,
    files: (u32, usize),
    state: State,
) -> Result<Seen, BenchError> {
    let site = Site::new(&env, link).await?;
    let (owner, reader) = (site.client("owner", true).await?, site.client("reader", true).await?);
    make(&owner, files).await.map_err(failed)?;
    match state {
        State::Unsent => {}
        State::Sent => owner.close().await,
        State::Dead => site.cut_off("owner"),
    }
    let before = messages(&owner) + messages(&reader);
    let begun = env.now();
    let first = read(&env, &reader, (state != State::Dead).then_some(files)).await;
    let first = first.map_err(failed)?;
    let millis = |span: Duration| span.as_secs_f64() * 1e3;
    let all_ms = millis(env.now().since(begun));
    let messages = messages(&owner) + messages(&reader) - before;
    Ok(Seen { first_ms: millis(first.since(begun)), all_ms, messages })
}

/// Makes a directory of the client alone, and files in it.
async fn make(fs: &Client, (files, bytes): (u32, usize)) -> Result<(), FsError> {
    let directory = fs.create(Ino::ROOT, b"d", &new(Node::Directory)).await?.ino;
    fs.reference(directory);
    // The directory is the client's with the second name; the first two are at the server.
    for name in [&b"a"[..], b"b"] {
        fs.create(directory, name, &new(Node::File)).await?;
    }
    fs.sync(directory, false).await?;
    for file in 0..files {
        let made = fs.create(directory, format!("f{file}").as_bytes(), &new(Node::File)).await?;
        let data = vec![Bytes::from(vec![1; bytes])];
        fs.write(made.ino, WriteAt::Offset(0), data, WriteHow::default()).await?;
    }
    Ok(())
}

/// Finds and reads the files; when the first one was read. Without `files`, those that are lost are not there.
async fn read(
    env: &Env,
    fs: &Client,
    files: Option<(u32, usize)>,
) -> Result<thalweg_env::Time, FsError> {
    let directory = fs.find(Ino::ROOT, b"d").await?.ino;
    fs.reference(directory);
    let (mut from, mut found, mut first) = (Cookie::START, 0, None);
    loop {
        let some = fs.read_directory(directory, from, 2048, false).await?;
        let Some(last) = some.last() else { break };
        from = last.cookie;
        for entry in some.iter().filter(|entry| entry.name.starts_with(b"f")) {
            let ino = fs.find(directory, &entry.name).await?.ino;
            let len: usize = fs.read(ino, 0, 8192).await?.iter().map(Bytes::len).sum();
            if files.is_none_or(|(_, bytes)| bytes != len) {
                return Err(FsError::Invalid("a file has another length"));
            }
            first.get_or_insert(env.now());
            found += 1;
        }
    }
    match found == files.map_or(0, |(files, _)| files) {
        true => Ok(first.unwrap_or(env.now())),
        false => Err(FsError::Invalid("files are missing")),
    }
}
