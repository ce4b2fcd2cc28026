//! `arion-recovery`: how long a client's journal takes to be recovered after a power cut of the client (figure 8.19; virtual time).
//!
//! The machines are those of the thesis (8.1): links of 1 Gbit/s, RADOS with three copies on disks of 15,000 rpm, a journal of 2 GB on two
//! such disks without caches. As in 8.2.7 one thread makes 1, 10 or 100 writes of 4 KiB in a second for 30 s, here to places in a file of 64 MiB
//! that the server has, each with an `fsync`; then the client loses its power. It mounts the journal again when the server has noticed that.
//! The server sees the new client after a lease at most, which counts in no figure.
//!
//! Of a recovery, `scan` is the time until the journal is read; `replay` is the time from then until the mount is there, when the server has made
//! everything durable. `network` is the part of the replay in which the messages are on the link: its latency for each
//! write to the stream, and the bytes by its bandwidth.
//!
//! For the last figure the journal is as full as the client lets it become: see `full_mb`. These bytes replace others, too. All is measured with
//! the server's filesystem on a solid-state drive as well (`embedded_`), where a batch is one transaction, and not a write to each object.
//!
//! | figure | meaning |
//! |---|---|
//! | `scan_ms_1`, `_10`, `_100` | until the journal is read |
//! | `replay_ms_1`, `_10`, `_100` | from then on until everything is durable at the server |
//! | `network_ms_1`, `_10`, `_100` | of that, on the link |
//! | `beyond_network_ms` | the largest `scan + replay - network` |
//! | `recovery_ms_1` | `scan + replay` at one write in a second |
//! | `replayed_1`, `_10`, `_100` | bytes that the server did not have |
//! | `lost_bytes` | bytes that were synced, and that another client does not read after the recovery |
//! | `full_mb`, `full_seconds` | of the full journal: bytes in it that the server did not have, and its recovery |
//! | `full_replay_over_link` | that over the time in which the link carries those bytes |
//! | `below_aim` | the figures that miss their aims |

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{self, Client, journal};
use thalweg_env::Env;
use thalweg_fs::{Filesystem, FsError, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::net::LinkTally;
use thalweg_store::device::DeviceRef;

use crate::arion_site::{self, LATENCY, RadosSite, journal_drive, link_time};
use crate::cluster_site::{Site, journaled, new};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "arion-recovery",
    about: "how long a client's journal takes to be recovered",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Writes in a second.
const RATES: [u32; 3] = [1, 10, 100];
/// Seconds of writing at scale 1.
const SECONDS: f64 = 30.0;
/// Bytes of a write, and of the file.
const WRITE: usize = 4096;
const FILE: u64 = 64 << 20;
/// Bytes of the file behind the full journal at scale 1, and of a write to it.
const FULL: f64 = (1u64 << 30) as f64;
const CHUNK: usize = 64 << 10;
/// After so long the server knows that a client is away, and the client's disks have spun up.
const AWAY: Duration = Duration::from_secs(20);

/// What is aimed at: a figure, and its highest value.
const AIMS: &[(&str, f64)] = &[
    ("beyond_network_ms", 100.0),
    ("recovery_ms_1", 77.0),
    ("lost_bytes", 0.0),
    ("full_replay_over_link", 1.2),
];
/// Milliseconds of figure 8.19 that the text says: the least and the most.
const PAPER: [(f64, f64); 2] = [(0.0, 77.4), (2.0, 852.2)];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let seconds = ((SECONDS * scale) as u32).max(3);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let full = ((FULL * scale) as u64).max(4 << 20).next_multiple_of(CHUNK as u64);
    let loads = RATES.iter().map(|rate| Load::Paced { rate: *rate, seconds });
    let loads: Vec<Load> = loads.chain([Load::Full { bytes: full }]).collect();
    let cases: Vec<(bool, Load)> = [false, true]
        .iter()
        .flat_map(|is_embedded| loads.iter().map(|load| (*is_embedded, *load)))
        .collect();
    let seen = rig::on_all_processors(&cases, |(is_embedded, load)| {
        let (is_embedded, load) = (*is_embedded, *load);
        thalweg_sim::run(options.seed, move |env| measure(env, is_embedded, load))
    })?;
    let (on_rados, embedded) = seen.split_at(loads.len());
    tell(&mut report, "", on_rados)?;
    tell(&mut report, "embedded_", embedded)?;
    report.figure("lost_bytes", seen.iter().map(|seen| seen.lost).sum::<u64>());
    let missed = AIMS
        .iter()
        .filter(|(name, aim)| report.number(name).is_none_or(|figure| figure > aim + 5e-4))
        .count();
    report.figure("below_aim", missed as f64);
    report.charts = vec![chart(on_rados)];
    Ok(report)
}

/// Reports the recoveries of one site.
fn tell(report: &mut Report, prefix: &str, seen: &[Recovery]) -> Result<(), BenchError> {
    let millis = |span: Duration| span.as_secs_f64() * 1e3;
    let mut beyond = f64::NEG_INFINITY;
    for (rate, seen) in RATES.iter().zip(seen) {
        report
            .figure(&format!("{prefix}scan_ms_{rate}"), rounded(millis(seen.scan)))
            .figure(&format!("{prefix}replay_ms_{rate}"), rounded(millis(seen.replay)))
            .figure(&format!("{prefix}network_ms_{rate}"), rounded(millis(seen.network)))
            .figure(&format!("{prefix}replayed_{rate}"), seen.bytes);
        beyond = beyond.max(millis(seen.scan + seen.replay) - millis(seen.network));
    }
    let [one, .., full] = seen else {
        return Err(BenchError::Failed("recoveries are missing".into()));
    };
    let whole = (full.scan + full.replay).as_secs_f64();
    let over = whole / link_time(full.bytes).as_secs_f64();
    report
        .figure(&format!("{prefix}recovery_ms_1"), rounded(millis(one.scan + one.replay)))
        .figure(&format!("{prefix}beyond_network_ms"), rounded(beyond))
        .figure(&format!("{prefix}full_mb"), rounded(full.bytes as f64 / 1e6))
        .figure(&format!("{prefix}full_seconds"), rounded(whole))
        .figure(&format!("{prefix}full_replay_over_link"), rounded(over));
    Ok(())
}

fn chart(seen: &[Recovery]) -> Chart {
    let points = |of: fn(&Recovery) -> Duration| {
        let recoveries = seen.iter().take(RATES.len()).enumerate();
        recoveries.map(|(x, seen)| (x as f64, of(seen).as_secs_f64() * 1e3)).collect()
    };
    Chart {
        title: "Figure 8.19: recovery after 1, 10 and 100 writes of 4 KiB in a second".to_owned(),
        x: "writes in a second (1, 10, 100)".to_owned(),
        y: "ms".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::paper("thesis, all (least and most)", PAPER.to_vec()),
            Series::measured("scan", points(|seen| seen.scan)),
            Series::measured("replay", points(|seen| seen.replay)),
            Series::measured("of that on the link", points(|seen| seen.network)),
        ],
    }
}

#[derive(Clone, Copy, Debug)]
enum Load {
    /// Writes with an `fsync` each.
    Paced { rate: u32, seconds: u32 },
    /// As fast as it goes, and one `fsync`.
    Full { bytes: u64 },
}

impl Load {
    fn file(self) -> u64 {
        match self {
            Load::Paced { .. } => FILE,
            Load::Full { bytes } => bytes,
        }
    }
}

struct Recovery {
    scan: Duration,
    replay: Duration,
    network: Duration,
    bytes: u64,
    lost: u64,
}

async fn measure(env: Env, is_embedded: bool, load: Load) -> Result<Recovery, BenchError> {
    if is_embedded {
        return recover(&env, &arion_site::embedded(&env).await?, load).await;
    }
    let on_rados = RadosSite::new(&env).await?;
    recover(&env, &on_rados.site, load).await
}

async fn recover(env: &Env, site: &Site, load: Load) -> Result<Recovery, BenchError> {
    let (drive, disks) = journal_drive(env)?;
    journal::create(env, &drive).await.map_err(failed)?;
    let process = env.node();
    let client = site.connect(process.env(), "first", recoverable(&drive)).await?;
    let file = prepare(&client, load.file()).await.map_err(failed)?;
    let written = write(env, &client, file, load).await.map_err(failed)?;
    let unsent = client.pending().unsent.bytes;
    process.kill();
    site.power_off("first");
    disks.iter().for_each(|disk| disk.power_cut());
    drop(client);
    disks.iter().for_each(|disk| disk.power_on());
    env.sleep(AWAY).await;

    // The same scan as that of the mount, which changes nothing.
    let begun = env.now();
    journal::inspect(env, &drive).await.map_err(failed)?;
    let scan = env.now().since(begun);
    let begun = env.now();
    let client = site.connect(env, "second", recoverable(&drive)).await?;
    let whole = env.now().since(begun);
    let replay = whole.saturating_sub(scan);
    let network = on_the_link(site.link_use("second")).min(replay);
    let lost = lost(&client, file, &written).await.map_err(failed)?;
    Ok(Recovery { scan, replay, network, bytes: unsent, lost })
}

/// Conflict copies would hide that something is lost.
fn recoverable(drive: &DeviceRef) -> client::Options {
    // Nothing is sent because it is old.
    let expire = Duration::from_secs(3600);
    client::Options { expire, on_conflict: client::OnConflict::Refuse, ..journaled(drive.clone()) }
}

/// The time of what a link has carried: there and back.
fn on_the_link((there, back): (LinkTally, LinkTally)) -> Duration {
    let messages = there.writes.min(back.writes);
    link_time(there.bytes + back.bytes) + LATENCY * 2 * u32::try_from(messages).unwrap_or(u32::MAX)
}

/// A file of so many bytes in a directory of the client's own, which the server has.
async fn prepare(client: &Client, bytes: u64) -> Result<Ino, FsError> {
    let directory = client.create(Ino::ROOT, b"d", &new(Node::Directory)).await?.ino;
    client.reference(directory);
    // The directory is the client's with the second name.
    for name in [&b"a"[..], b"b"] {
        client.create(directory, name, &new(Node::File)).await?;
    }
    let file = client.create(directory, b"f", &new(Node::File)).await?.ino;
    client.reference(file);
    for offset in (0..bytes).step_by(CHUNK) {
        put(client, file, offset, vec![0; CHUNK]).await?;
    }
    client.drain().await?;
    // The last record of a journal stays there, and is a small one so.
    put(client, file, 0, vec![0; 1]).await?;
    client.drain().await?;
    client.wait_for(file, Level::Server, Duration::from_secs(60)).await?;
    Ok(file)
}

async fn put(client: &Client, file: Ino, offset: u64, bytes: Vec<u8>) -> Result<(), FsError> {
    let data = vec![Bytes::from(bytes)];
    client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await.map(drop)
}

/// Writes, and syncs. It returns the synced writes: offsets, lengths and bytes.
async fn write(
    env: &Env,
    client: &Client,
    file: Ino,
    load: Load,
) -> Result<Vec<(u64, usize, u8)>, FsError> {
    let mut written = Vec::new();
    match load {
        Load::Paced { rate, seconds } => {
            let begun = env.now();
            for number in 0..rate * seconds {
                env.sleep_until(begun + Duration::from_secs(1) * number / rate).await;
                // Each of them elsewhere.
                let offset = u64::from(number) * 7919 * WRITE as u64 % FILE;
                let fill = (number % 251 + 1) as u8;
                put(client, file, offset, vec![fill; WRITE]).await?;
                client.sync(file, true).await?;
                written.push((offset, WRITE, fill));
            }
            env.sleep_until(begun + Duration::from_secs(u64::from(seconds))).await;
        }
        Load::Full { bytes } => {
            for offset in (0..bytes).step_by(CHUNK) {
                let fill = (offset / CHUNK as u64 % 251 + 1) as u8;
                put(client, file, offset, vec![fill; CHUNK]).await?;
                written.push((offset, CHUNK, fill));
            }
            client.sync(file, true).await?;
        }
    }
    Ok(written)
}

/// Bytes that are not there.
async fn lost(client: &Client, file: Ino, written: &[(u64, usize, u8)]) -> Result<u64, FsError> {
    let directory = client.find(Ino::ROOT, b"d").await?.ino;
    client.reference(directory);
    let found = client.find(directory, b"f").await?.ino;
    assert_eq!(found, file, "the file has kept its number");
    client.reference(found);
    let mut lost = 0;
    for (offset, len, fill) in written {
        let read = client.read(found, *offset, *len).await?;
        let bytes = read.iter().flat_map(|part| part.iter());
        let kept = bytes.filter(|byte| *byte == fill).count();
        lost += len.saturating_sub(kept) as u64;
    }
    Ok(lost)
}
