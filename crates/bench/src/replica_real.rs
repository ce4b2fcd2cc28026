//! `replica-real`: what replicas cost in real time, on one machine: TLS over loopback, and files for the drives.
//!
//! A volume full of blocks is copied to a new follower, and in turn a file of as many bytes is copied as `dd` does it: read in
//! pieces of 1 MiB, sent through the same TLS, written, and made durable at the end. Then a client puts keys, one after the
//! other, each durable when the call returns: at a primary that waits for its follower, and at one that does not, in turns.
//!
//! | figure | meaning |
//! |---|---|
//! | `copy_mb_s` | megabytes per second of a first copy, until it is durable |
//! | `dd_mb_s` | megabytes per second of a copy as `dd` does it |
//! | `copy_over_dd` | the first over the second |
//! | `put_us` | microseconds of a durable put |
//! | `ack_put_us` | the same, durable at a follower as well |
//! | `ack_adds_us` | the difference |
//!
//! Each is the median of several turns.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::connection::{Connector, Listener, Stream, TcpConnector};
use thalweg_env::{Env, Task};
use thalweg_net::keys::Key;
use thalweg_net::tls::{TlsClient, TlsServer};
use thalweg_replica::{Follower, Primary, PrimaryOptions};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Write};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options as ChainOptions, Parts};
use thalweg_store::device::{AlignedBuf, DeviceRef, FileDevice, FileOptions, Purpose};
use thalweg_store::tree::{Kind, NewPartition, Store, catalogue};
use thalweg_store::txn::{Options as TxnOptions, TransactionManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::rig::{self, failed, median, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "replica-real",
    about: "rate of a first copy beside dd, and what --ack adds to a put, through TLS",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

const SEGMENT: u32 = 960;
/// Bytes of `dd`'s requests.
const PIECE: usize = 1 << 20;
/// Megabytes that are copied at scale 1, in units of 2^20 bytes.
const MEGABYTES: f64 = 512.0;
/// Turns of each kind.
const TURNS: u64 = 5;
/// Puts in a turn at scale 1.
const PUTS: f64 = 200.0;
/// A follower that is this long behind fails.
const PATIENCE: Duration = Duration::from_secs(300);

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&parent)
        .map_err(|source| BenchError::Io { path: parent.clone(), source })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    runtime.block_on(async {
        let env = Env::real();
        // In a task, so that the workers run it.
        let (on, place) = (env.clone(), folder.path().to_owned());
        let measuring = env.spawn(async move {
            let copies = copies(&on, &place, scale).await?;
            let puts = puts(&on, &place, scale).await?;
            Ok::<_, BenchError>((copies, puts))
        });
        let ended = measuring.await;
        let ([copy, dd], [ack, alone]) =
            ended.ok_or_else(|| BenchError::Failed("it panicked".into()))??;
        report
            .figure("copy_mb_s", rounded(copy))
            .figure("dd_mb_s", rounded(dd))
            .figure("copy_over_dd", rounded(copy / dd))
            .figure("put_us", rounded(alone))
            .figure("ack_put_us", rounded(ack))
            .figure("ack_adds_us", rounded(ack - alone));
        Ok(report)
    })
}

/// Two ends of a TLS connection over loopback.
struct Wire {
    client: TlsClient,
    server: TlsServer,
    listener: TcpListener,
}

impl Wire {
    async fn new(env: &Env) -> Result<Wire, BenchError> {
        let own = Key::generate(env).map_err(failed)?;
        let theirs = Key::generate(env).map_err(failed)?;
        Ok(Wire {
            client: TlsClient::new(&own, Some(theirs.public())).map_err(failed)?,
            server: TlsServer::new(&theirs).map_err(failed)?,
            listener: TcpListener::bind("127.0.0.1:0").await.map_err(failed)?,
        })
    }

    /// The client's and the server's end of a new connection.
    async fn connect(&self) -> Result<(impl Stream, impl Stream), BenchError> {
        let place = self.listener.local_addr().map_err(failed)?;
        let near = async { self.client.connect(TcpConnector(place).connect().await?).await };
        let far = async { self.server.accept(Listener::accept(&self.listener).await?).await };
        let ((near, _), (far, _)) = tokio::try_join!(near, far).map_err(failed)?;
        Ok((near, far))
    }
}

/// The files of a volume.
async fn file(place: &Path, name: &str, size: u64) -> Result<DeviceRef, BenchError> {
    let options = FileOptions::default();
    let created = FileDevice::create(place.join(name), size, &options).await;
    Ok(Arc::new(created.map_err(failed)?))
}

fn remove(place: &Path, name: &str) {
    for part in ["link", "map"] {
        // It is in a temporary folder.
        let _ = std::fs::remove_file(place.join(format!("{name}-{part}")));
    }
}

/// A volume in files; their names begin with `name`.
async fn chain(
    env: &Env,
    place: &Path,
    name: &str,
    blocks: u64,
    follows: bool,
) -> Result<Arc<Chain>, BenchError> {
    let segments = (blocks.div_ceil(u64::from(SEGMENT)) * 3 / 2 + 16) as u32;
    let link =
        file(place, &format!("{name}-link"), blocks_in(segments) * BLOCK_SIZE as u64).await?;
    let map = file(place, &format!("{name}-map"), Chain::map_bytes(SEGMENT, segments)).await?;
    let parts = Parts {
        links: vec![Link { id: Uuid::from_u128(100), device: link }],
        map,
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: Uuid::from_u128(7),
        blocks,
        segment_blocks: SEGMENT,
        max_segments: segments,
        cleaning: Cleaning::CompactInBody,
        placement: Default::default(),
        follows,
    };
    let options = ChainOptions { follow: follows, ..ChainOptions::default() };
    Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
    Ok(Arc::new(Chain::open(env, parts, options).await.map_err(failed)?.0))
}

fn blocks_in(segments: u32) -> u64 {
    u64::from(segments) * u64::from(SEGMENT)
}

/// A follower that is connected to a primary, until it is dropped.
struct Following {
    chain: Arc<Chain>,
    _tasks: [Task<()>; 2],
}

impl Following {
    async fn new(
        env: &Env,
        wire: &Wire,
        primary: &Arc<Primary>,
        chain: Arc<Chain>,
    ) -> Result<Following, BenchError> {
        let (near, far) = wire.connect().await?;
        let (follower, serving) = (Follower::new(env, chain.clone()), primary.clone());
        let _tasks = [
            env.spawn(async move { drop(follower.follow(near).await) }),
            env.spawn(async move { drop(serving.serve(far, "replica").await) }),
        ];
        Ok(Following { chain, _tasks })
    }

    /// Waits until the follower has made everything durable that the primary has.
    async fn caught_up(&self, env: &Env, primary: &Primary, of: &Chain) -> Result<(), BenchError> {
        let reached = primary.acknowledged(of.now(), 1);
        let late = || BenchError::Failed("the follower does not catch up".into());
        env.timeout(PATIENCE, reached).await.ok_or_else(late)?;
        debug_assert!(self.chain.now() >= of.now());
        Ok(())
    }
}

/// Megabytes per second of a first copy, and of one as `dd` does it.
async fn copies(env: &Env, place: &Path, scale: f64) -> Result<[f64; 2], BenchError> {
    let pieces = (MEGABYTES * scale).ceil().max(1.0) as u64;
    let blocks = pieces * (PIECE / BLOCK_SIZE) as u64;
    let wire = Wire::new(env).await?;
    let volume = chain(env, place, "primary", blocks, false).await?;
    for first in (0..blocks).step_by(64) {
        let writes: Vec<Write> =
            (first..blocks.min(first + 64)).map(|lba| rig::block(lba, 1)).collect();
        volume.apply(writes).await.map_err(failed)?;
    }
    volume.checkpoint().await.map_err(failed)?;
    let options = PrimaryOptions::default();
    let primary = Primary::new(env, volume.clone(), options).await.map_err(failed)?;
    let primary = Arc::new(primary);
    let source = file(place, "source", pieces * PIECE as u64).await?;
    for piece in 0..pieces {
        let content = vec![AlignedBuf::copy_of(&vec![piece as u8; PIECE]).freeze()];
        let written = source.write(piece * PIECE as u64, content, Purpose::UserData);
        written.await.map_err(failed)?;
    }
    source.flush(Purpose::UserData).await.map_err(failed)?;
    let megabytes = (pieces * PIECE as u64) as f64 / 1e6;
    let (mut copy, mut dd) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let follower = chain(env, place, "follower", blocks, true).await?;
        let since = env.now();
        let following = Following::new(env, &wire, &primary, follower).await?;
        following.caught_up(env, &primary, &volume).await?;
        copy.push(megabytes / env.now().since(since).as_secs_f64());
        following.chain.close().await.map_err(failed)?;
        drop(following);
        remove(place, "follower");
        let target = file(place, "target", pieces * PIECE as u64).await?;
        let since = env.now();
        as_dd(env, &wire, &source, &target, pieces).await?;
        dd.push(megabytes / env.now().since(since).as_secs_f64());
        drop(target);
        let _ = std::fs::remove_file(place.join("target"));
    }
    volume.close().await.map_err(failed)?;
    eprintln!("copy: {copy:.0?} MB/s, dd: {dd:.0?} MB/s");
    Ok([median(copy), median(dd)])
}

/// Copies a file through TLS: each side does one thing after the other.
async fn as_dd(
    env: &Env,
    wire: &Wire,
    source: &DeviceRef,
    target: &DeviceRef,
    pieces: u64,
) -> Result<(), BenchError> {
    let (mut near, mut far) = wire.connect().await?;
    let from = source.clone();
    let sending = env.spawn(async move {
        for piece in 0..pieces {
            let content = from.read(piece * PIECE as u64, PIECE, Purpose::UserData).await;
            far.write_all(&content.map_err(failed)?).await.map_err(failed)?;
        }
        far.shutdown().await.map_err(failed)
    });
    for piece in 0..pieces {
        let mut buffer = AlignedBuf::zeroed(PIECE);
        near.read_exact(&mut buffer).await.map_err(failed)?;
        let content = vec![buffer.freeze()];
        let written = target.write(piece * PIECE as u64, content, Purpose::UserData);
        written.await.map_err(failed)?;
    }
    target.flush(Purpose::UserData).await.map_err(failed)?;
    sending.await.ok_or_else(|| BenchError::Failed("the sender panicked".into()))?
}

/// A primary with its follower, and a store on it.
struct Pair {
    store: Store,
    primary: Arc<Primary>,
    chain: Arc<Chain>,
    following: Following,
    next: u64,
}

impl Pair {
    async fn new(env: &Env, place: &Path, wire: &Wire, ack: usize) -> Result<Pair, BenchError> {
        const BLOCKS: u64 = 16 << 10;
        let own = chain(env, place, &format!("primary{ack}"), BLOCKS, false).await?;
        let theirs = chain(env, place, &format!("follower{ack}"), BLOCKS, true).await?;
        let options = PrimaryOptions { ack, ..PrimaryOptions::default() };
        let primary = Primary::new(env, own.clone(), options).await.map_err(failed)?;
        let primary = Arc::new(primary);
        let following = Following::new(env, wire, &primary, theirs).await?;
        let manager = TransactionManager::new(env, own.clone(), TxnOptions::default());
        let name = "puts".to_owned();
        let new = NewPartition { name, kind: Kind::Btree, first: None, blocks: None };
        catalogue::create(env, &manager, &new).await.map_err(failed)?;
        let store = Store::open(env, Arc::new(manager), "puts").await.map_err(failed)?;
        Ok(Pair { store, primary, chain: own, following, next: 0 })
    }

    /// Microseconds of a put.
    async fn puts(&mut self, env: &Env, count: u64) -> Result<f64, BenchError> {
        self.following.caught_up(env, &self.primary, &self.chain).await?;
        let since = env.now();
        for _ in 0..count {
            self.next += 1;
            let key = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            let value = Bytes::from(vec![self.next as u8; 100]);
            self.store.put(&key, value).await.map_err(failed)?;
        }
        Ok(env.now().since(since).as_secs_f64() * 1e6 / count as f64)
    }
}

/// Microseconds of a put with an acknowledgement of the follower, and without one.
async fn puts(env: &Env, place: &Path, scale: f64) -> Result<[f64; 2], BenchError> {
    let count = (PUTS * scale).ceil().max(1.0) as u64;
    let wire = Wire::new(env).await?;
    let mut ack = Pair::new(env, place, &wire, 1).await?;
    let mut alone = Pair::new(env, place, &wire, 0).await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..2 * TURNS {
        with.push(ack.puts(env, count).await?);
        without.push(alone.puts(env, count).await?);
    }
    eprintln!("puts with --ack 1: {with:.0?} us, without: {without:.0?} us");
    Ok([median(with), median(without)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_copies_and_puts() {
        let report = run(&Options { scale: Some(0.02), ..Options::default() }).unwrap();
        for name in ["copy_mb_s", "dd_mb_s", "copy_over_dd", "put_us", "ack_put_us"] {
            assert!(report.number(name).unwrap() > 0.0, "{name}");
        }
    }
}
