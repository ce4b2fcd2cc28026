//! `replica`: what replicas cost the network and the primary's writers (virtual time).
//!
//! A chain on a solid-state drive, and followers on machines of their own, 1 ms or 100 ms away (there and back). 16 writers
//! change bytes of a random block and wait until that is durable at the primary.
//!
//! | figure of a case | meaning |
//! |---|---|
//! | `wire_bytes_per_user_byte` | bytes that the primary sends to one follower for each byte that changes |
//! | `rate_over_alone` | commits per second, over those of a primary that nothing follows |
//! | `lag_ms` | how long ago the newest version of a follower was made, on average |
//! | `resync_bytes_over_changed` | bytes to a follower that was cut off for a minute and fell out of the backlog, over those of the blocks that changed meanwhile |
//! | `copy_bytes_over_live` | bytes to a follower that starts from nothing, over those of all stored blocks |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use thalweg_env::connection::Listener;
use thalweg_env::{Env, Rng, Task};
use thalweg_replica::{Follower, Primary, PrimaryOptions, Room};
use thalweg_sim::net::{Host, LinkSpec, Network};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Lba, Version, Write};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options as ChainOptions, Parts};
use thalweg_store::device::{DeviceRef, Partition};
use uuid::Uuid;

use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "replica",
    about: "what replicas cost the network and the primary's writers",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const SEGMENT: u32 = 240;
const SEGMENTS: u32 = 128;
/// Logical blocks, all of them stored.
const BLOCKS: u64 = 12_000;
const WRITERS: u64 = 16;
/// Commits of a case at scale 1.
const COMMITS: f64 = 20_000.0;
const PORT: u16 = 8494;
/// The backlog: a minute's changes do not fit.
const ROOM: Room = Room { raw: 64 << 20, encoded: 1 << 20 };
/// A follower that is this long behind fails the case.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where the followers are, and what is written.
#[derive(Clone, Copy, Debug)]
struct Case {
    followers: usize,
    /// Milliseconds there and back.
    away: u64,
    /// Bytes that a commit changes.
    bytes: usize,
}

impl Case {
    fn name(&self) -> String {
        format!("{}_followers_{}_ms_{}", self.followers, self.away, self.bytes)
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let commits = (COMMITS * scale).ceil() as u64;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let (mut wire, mut slowest) = ([0.0_f64; 2], f64::INFINITY);
    for (kind, bytes) in [128, BLOCK_SIZE].into_iter().enumerate() {
        let alone = Case { followers: 0, away: 1, bytes };
        let alone = measure(options.seed, alone, commits)?.rate;
        for (followers, away) in [(1, 1), (3, 1), (1, 100), (3, 100)] {
            let case = Case { followers, away, bytes };
            let cost = measure(options.seed, case, commits)?;
            let over_alone = cost.rate / alone;
            let mut row = |figure: &str, value: f64| {
                report.figure(&format!("{}_{figure}", case.name()), rounded(value));
            };
            row("wire_bytes_per_user_byte", cost.wire);
            row("rate_over_alone", over_alone);
            row("lag_ms", cost.lag_ms);
            wire[kind] = wire[kind].max(cost.wire);
            slowest = slowest.min(over_alone);
        }
    }
    let (resync, copy) = thalweg_sim::run(options.seed, |env| resync(env, options.seed, commits))?;
    report
        .figure("wire_bytes_per_user_byte_128", rounded(wire[0]))
        .figure("wire_bytes_per_user_byte_4096", rounded(wire[1]))
        .figure("primary_rate_over_alone", rounded(slowest))
        .figure("resync_bytes_over_changed", rounded(resync))
        .figure("copy_bytes_over_live", rounded(copy));
    Ok(report)
}

/// What a case costs.
#[derive(Clone, Copy, Debug)]
struct Cost {
    rate: f64,
    wire: f64,
    lag_ms: f64,
}

fn measure(seed: u64, case: Case, commits: u64) -> Result<Cost, BenchError> {
    thalweg_sim::run(seed, |env| async move {
        let cluster = Cluster::new(&env, case.followers, case.away).await?;
        cluster.caught_up().await?;
        let before = cluster.sent();
        let begun = env.now();
        let made = Arc::new(Mutex::new(Vec::new()));
        let load = cluster.load(seed, case.bytes, commits, made.clone());
        let lag_ms = cluster.lag_while(load, &made).await?;
        let rate = commits as f64 / env.now().since(begun).as_secs_f64();
        cluster.caught_up().await?;
        let user = (commits * case.bytes as u64 * case.followers.max(1) as u64) as f64;
        Ok(Cost { rate, wire: (cluster.sent() - before) as f64 / user, lag_ms })
    })
}

/// The bytes of a follower that was cut off over those that changed, and of a new one over all that are stored.
async fn resync(env: Env, seed: u64, commits: u64) -> Result<(f64, f64), BenchError> {
    let cluster = Cluster::new(&env, 1, 1).await?;
    let live = (BLOCKS * BLOCK_SIZE as u64) as f64;
    cluster.caught_up().await?;
    let copy = cluster.sent() as f64 / live;
    let (primary, follower) = (cluster.primary.clone(), cluster.followers[0].host.clone());
    cluster.network.part(std::slice::from_ref(&primary), std::slice::from_ref(&follower));
    let begun = env.now();
    let changed: BTreeSet<u64> = {
        let made = Arc::default();
        for task in cluster.load(seed, BLOCK_SIZE, commits / 4, made) {
            task.await.ok_or_else(died)??;
        }
        std::mem::take(&mut *cluster.changed.lock())
    };
    let past = env.now().since(begun);
    env.sleep(Duration::from_secs(60).saturating_sub(past)).await;
    let before = cluster.sent();
    cluster.network.heal();
    cluster.caught_up().await?;
    let resync = (cluster.sent() - before) as f64 / (changed.len() * BLOCK_SIZE) as f64;
    Ok((resync, copy))
}

fn died() -> BenchError {
    BenchError::Failed("a task of the simulation died".into())
}

/// A machine with a follower.
struct Remote {
    host: Host,
    chain: Arc<Chain>,
    _task: Task<()>,
}

struct Cluster {
    env: Env,
    network: Network,
    primary: Host,
    chain: Arc<Chain>,
    followers: Vec<Remote>,
    /// Blocks that the load changed.
    changed: Arc<Mutex<BTreeSet<u64>>>,
    _serving: Option<Task<()>>,
}

/// A chain on a drive of its own.
async fn chain(env: &Env, name: &str, follows: bool) -> Result<Arc<Chain>, BenchError> {
    let map = Chain::map_bytes(SEGMENT, SEGMENTS).next_multiple_of(1 << 20);
    let link = u64::from(SEGMENTS * SEGMENT) * BLOCK_SIZE as u64;
    let drive: DeviceRef = Arc::new(SolidState::new(env, name, SolidStateSpec::sata(map + link)));
    let part = |start, size| -> Result<DeviceRef, BenchError> {
        Ok(Arc::new(Partition::new(drive.clone(), start, size).map_err(failed)?))
    };
    let id = Uuid::from_u128(1);
    let parts = Parts {
        links: vec![Link { id, device: part(map, link)? }],
        map: part(0, map)?,
        map_link: Some(id),
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: Uuid::from_u128(7),
        blocks: BLOCKS,
        segment_blocks: SEGMENT,
        max_segments: SEGMENTS,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows,
    };
    Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
    let options = ChainOptions { follow: follows, ..ChainOptions::default() };
    Ok(Arc::new(Chain::open(env, parts, options).await.map_err(failed)?.0))
}

impl Cluster {
    /// A primary whose blocks are all stored, and followers that begin from nothing.
    async fn new(env: &Env, followers: usize, away: u64) -> Result<Cluster, BenchError> {
        let network = Network::new(env, LinkSpec::of(Duration::from_millis(away) / 2));
        let primary = network.host("primary");
        let chain = chain(env, "primary", false).await?;
        for first in (0..BLOCKS).step_by(200) {
            let blocks = first..(first + 200).min(BLOCKS);
            chain.apply(blocks.map(|lba| rig::block(lba, 0)).collect()).await.map_err(failed)?;
        }
        chain.sync(chain.now()).await.map_err(failed)?;
        let mut cluster = Cluster {
            env: env.clone(),
            network,
            primary,
            chain,
            followers: Vec::new(),
            changed: Arc::default(),
            _serving: None,
        };
        if followers > 0 {
            cluster._serving = Some(cluster.serve().await?);
        }
        for number in 0..followers {
            let follower = cluster.follower(&format!("follower{number}")).await?;
            cluster.followers.push(follower);
        }
        Ok(cluster)
    }

    async fn serve(&self) -> Result<Task<()>, BenchError> {
        let options = PrimaryOptions { room: ROOM, ..PrimaryOptions::default() };
        let primary = Primary::new(&self.env, self.chain.clone(), options).await.map_err(failed)?;
        let (primary, env) = (Arc::new(primary), self.env.clone());
        let listener = self.primary.listen(PORT).map_err(failed)?;
        Ok(self.env.spawn(async move {
            while let Ok(stream) = listener.accept().await {
                let primary = primary.clone();
                let work = async move { drop(primary.serve(stream, "follower").await) };
                env.spawn(work).detach();
            }
        }))
    }

    async fn follower(&self, name: &str) -> Result<Remote, BenchError> {
        let host = self.network.host(name);
        let chain = chain(&self.env, name, true).await?;
        let follower = Follower::new(&self.env, chain.clone());
        let (connector, env) = (host.connector(&self.primary, PORT), self.env.clone());
        let _task = self.env.spawn(async move {
            loop {
                if let Ok(stream) = connector.open().await {
                    drop(follower.follow(stream).await);
                }
                env.sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Remote { host, chain, _task })
    }

    /// Bytes that the primary has sent.
    fn sent(&self) -> u64 {
        let to = self.followers.iter();
        to.map(|follower| self.network.tally(&self.primary, &follower.host).bytes).sum()
    }

    /// Waits until the followers have everything.
    async fn caught_up(&self) -> Result<(), BenchError> {
        let (target, begun) = (self.chain.now(), self.env.now());
        while self.followers.iter().any(|follower| follower.chain.now() < target) {
            if self.env.now().since(begun) > PATIENCE {
                return Err(BenchError::Failed("a follower does not catch up".into()));
            }
            self.env.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Starts writers that make `commits` commits; `made` gets the time of each version.
    fn load(
        &self,
        seed: u64,
        bytes: usize,
        commits: u64,
        made: Arc<Mutex<Vec<(Version, thalweg_env::Time)>>>,
    ) -> Vec<Task<Result<(), BenchError>>> {
        let left = Arc::new(AtomicU64::new(commits));
        let writer = |number: u64| Writer {
            env: self.env.clone(),
            chain: self.chain.clone(),
            left: left.clone(),
            bytes,
            rng: Rng::seed_from_u64(seed.wrapping_mul(1 << 20) + number),
            made: made.clone(),
            changed: self.changed.clone(),
        };
        (0..WRITERS).map(|number| self.env.spawn(writer(number).run())).collect()
    }

    /// How old the followers' newest versions are on average, in milliseconds, until the load has ended.
    async fn lag_while(
        &self,
        load: Vec<Task<Result<(), BenchError>>>,
        made: &Mutex<Vec<(Version, thalweg_env::Time)>>,
    ) -> Result<f64, BenchError> {
        let all = futures::future::join_all(load);
        tokio::pin!(all);
        let (mut sum, mut samples) = (0.0, 0.0_f64);
        loop {
            let ended = tokio::select! {
                biased;
                ended = &mut all => Some(ended),
                () = self.env.sleep(Duration::from_millis(10)) => None,
            };
            if let Some(ended) = ended {
                for result in ended {
                    result.ok_or_else(died)??;
                }
                return Ok(sum / samples.max(1.0));
            }
            let made = made.lock();
            for follower in &self.followers {
                // The oldest version that it lacks was made so long ago.
                let newest = follower.chain.now();
                let first = made.partition_point(|(version, _)| *version <= newest);
                let age =
                    made.get(first).map_or(Duration::ZERO, |(_, at)| self.env.now().since(*at));
                sum += age.as_secs_f64() * 1e3;
                samples += 1.0;
            }
        }
    }
}

/// Changes blocks until none is left to change.
struct Writer {
    env: Env,
    chain: Arc<Chain>,
    left: Arc<AtomicU64>,
    bytes: usize,
    rng: Rng,
    made: Arc<Mutex<Vec<(Version, thalweg_env::Time)>>>,
    changed: Arc<Mutex<BTreeSet<u64>>>,
}

impl Writer {
    async fn run(mut self) -> Result<(), BenchError> {
        let take = |left: u64| left.checked_sub(1);
        while let Ok(stamp) = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            let lba = self.rng.random_range(0..BLOCKS);
            let start = self.rng.random_range(0..=BLOCK_SIZE - self.bytes);
            let old = self.chain.read(Lba(lba), 1, self.chain.now()).await;
            let old = match old {
                Ok(mut old) => old.pop().flatten(),
                // Another writer was faster.
                Err(_) => {
                    self.chain.read_newest(Lba(lba), 1).await.map_err(failed)?.1.pop().flatten()
                }
            };
            let mut content = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
            let range = start..start + self.bytes;
            content[range.clone()].copy_from_slice(&rig::content(lba, stamp)[range.clone()]);
            let mut changed = ByteRanges::none();
            changed.add(range);
            let write = Write { changed, ..Write::block(Lba(lba), Bytes::from(content)) };
            let version = self.chain.apply(vec![write]).await.map_err(failed)?;
            {
                let mut made = self.made.lock();
                let place = made.partition_point(|(other, _)| *other < version);
                made.insert(place, (version, self.env.now()));
            }
            self.changed.lock().insert(lba);
            self.chain.sync(version).await.map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_counts_bytes_and_repeats() {
        let options = Options { scale: Some(0.02), ..Options::default() };
        let report = run(&options).unwrap();
        let figure = |name: &str| report.number(name).unwrap();
        assert!(figure("wire_bytes_per_user_byte_128") >= 1.0);
        assert!(figure("wire_bytes_per_user_byte_4096") >= 1.0);
        assert!(figure("copy_bytes_over_live") >= 1.0);
        assert!(figure("1_followers_100_ms_128_lag_ms") > figure("1_followers_1_ms_128_lag_ms"));
        assert_eq!(report.figures, run(&options).unwrap().figures);
    }
}
