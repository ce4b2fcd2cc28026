//! Small rewrites: what a durable put of some bytes costs the drive over several checkpoints.
//!
//! The chain is of the default kind. A few of its blocks are written again and again, as the leaves of a tree are: each
//! put changes 256 bytes of a random one, and its client continues when the put is durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Class, Lba, Write};
use thalweg_store::chain::Chain;
use thalweg_store::device::Tally;

use super::Plan;
use super::drives::{DEFAULT_KIND, LINKS, create, make, parts};
use crate::rig::{self, failed, rounded};
use crate::{BenchError, Report};

/// Bytes that a put changes.
const CHANGED: usize = 256;
/// One block in so many is written.
const SPREAD: u64 = 8;
/// Puts for each block that is written, by each client of the case.
const REWRITES: u64 = 24;
/// The most puts for each block that is written.
const MOST: u64 = 128;

/// A number of clients that put at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Small {
    pub(super) clients: u64,
}

/// All cases.
pub(super) const ALL: [Small; 2] = [Small { clients: 1 }, Small { clients: 64 }];

/// What a put costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    bytes: f64,
    flushes: f64,
    settled: f64,
    checkpoints: u64,
}

/// Counters at one point in time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    drive: Tally,
    settled: u64,
    checkpoints: u64,
}

impl Small {
    pub(super) fn name(self) -> String {
        format!("small_{}", self.clients)
    }

    /// Adds the figures of this case.
    pub(super) fn tell(self, report: &mut Report, cost: Cost) {
        let mut row = |figure: &str, value: f64| {
            report.figure(&format!("{}_{figure}", self.name()), rounded(value));
        };
        row("bytes_per_put", cost.bytes);
        row("flushes_per_put", cost.flushes);
        row("settled_per_put", cost.settled);
        row("checkpoints", cost.checkpoints as f64);
    }

    pub(super) async fn measure(self, env: Env, seed: u64, plan: Plan) -> Result<Cost, BenchError> {
        let parts = parts(&env, plan, DEFAULT_KIND.1)?;
        let blocks = u64::from(LINKS * plan.link_segments * plan.segment_blocks) / 2;
        let chain = Arc::new(make(&env, &parts, create(plan, DEFAULT_KIND, blocks)).await?);
        super::fill(&chain, blocks / SPREAD).await?;
        let puts = blocks / SPREAD * (self.clients * REWRITES).min(MOST);
        let before = reading(&chain);
        let left = Arc::new(AtomicU64::new(puts));
        let clients = (0..self.clients).map(|client| {
            let rng = Rng::seed_from_u64(seed.wrapping_mul(1 << 20) + client);
            env.spawn(put(chain.clone(), left.clone(), blocks / SPREAD, rng))
        });
        rig::all(clients.collect()).await?;
        let after = reading(&chain);
        let drive = after.drive - before.drive;
        let each = |count: u64| count as f64 / puts as f64;
        Ok(Cost {
            bytes: each(drive.write_bytes),
            flushes: each(drive.flushes),
            settled: each(after.settled - before.settled),
            checkpoints: after.checkpoints - before.checkpoints,
        })
    }
}

fn reading(chain: &Chain) -> Reading {
    let status = chain.status();
    let mut drive = status.map_io.total();
    status.links.iter().for_each(|link| drive += link.io.total());
    Reading { drive, settled: status.minis.settled, checkpoints: status.counts.checkpoints }
}

/// Puts until none is left to make.
async fn put(
    chain: Arc<Chain>,
    left: Arc<AtomicU64>,
    blocks: u64,
    mut rng: Rng,
) -> Result<(), BenchError> {
    let take = |left: u64| left.checked_sub(1);
    while let Ok(stamp) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
        let lba = rng.random_range(0..blocks);
        let start = rng.random_range(0..=BLOCK_SIZE - CHANGED);
        let old = chain.read(Lba(lba), 1, chain.now()).await.map_err(failed)?.pop().flatten();
        let mut content = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
        let new = rig::content(lba, stamp);
        content[start..start + CHANGED].copy_from_slice(&new[start..start + CHANGED]);
        let mut changed = ByteRanges::none();
        changed.add(start..start + CHANGED);
        let content = Some(Bytes::from(content));
        let write = Write { lba: Lba(lba), content, changed, class: Class::Data };
        let version = chain.apply(vec![write]).await.map_err(failed)?;
        chain.sync(version).await.map_err(failed)?;
    }
    Ok(())
}
