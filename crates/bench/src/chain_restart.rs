//! `chain-restart`: bytes read by opening after a crash (Gecko, 3.1.1).
//!
//! Random blocks are written to volumes of the same size; then the power of every drive is cut, and
//! the volume is opened again. Reads other than those of the checkpoint must not grow with the
//! amount of data in the volume.

use std::time::Duration;
use thalweg_store::block::BlocksExt;

use rand::RngExt;
use thalweg_env::Env;

use thalweg_store::chain::{Cleaning, Options as ChainOptions};

use crate::rig::{self, Placement, Plan, Restart, Rig, SEGMENT, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "chain-restart",
    about: "bytes read and time taken by opening after a crash",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Blocks written before the crash, at scale 1.
const WRITES: [f64; 3] = [1e5, 1e6, 1e7];
/// Logical blocks at scale 1: the last run overwrites each about ten times.
const BLOCKS: f64 = 1e6;
/// Blocks in a transaction.
const BATCH: u64 = 20;
/// Blocks between two calls of `sync`.
const SYNC_EVERY: u64 = 25 * BATCH;
/// From the cut until every drive spins again.
const POWER_OFF: Duration = Duration::from_secs(60);

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let blocks = ((BLOCKS * scale) as u64).max(20_000);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale).figure("blocks", blocks);
    for writes in WRITES.map(|writes| (writes * scale) as u64) {
        let restart =
            thalweg_sim::run(options.seed, |env| async move { crash(env, blocks, writes).await })?;
        let checkpoint = restart.recovered.checkpoint_bytes;
        let mut figure = |name: &str, value: serde_json::Value| {
            report.figure(&format!("{name}_{writes}"), value);
        };
        figure("bytes_read", restart.bytes_read.into());
        figure("checkpoint_bytes", checkpoint.into());
        figure("beyond_checkpoint", restart.bytes_read.saturating_sub(checkpoint).into());
        figure("checked_bytes", restart.recovered.checked_bytes.into());
        figure("replayed", restart.recovered.replayed.into());
        figure("ms", rounded(restart.time.as_secs_f64() * 1e3).into());
    }
    Ok(report)
}

async fn crash(env: Env, blocks: u64, writes: u64) -> Result<Restart, BenchError> {
    // Twice the logical blocks, plus the reserve of cleaning.
    let drive_segments = (blocks * 2 / 3).div_ceil(u64::from(SEGMENT)) as u32 + 8;
    let plan = Plan {
        placement: Placement::Chained,
        drives: 3,
        mirrored: false,
        standby: false,
        drive_segments,
        blocks,
        cleaning: Cleaning::MoveToTail,
        tail_ssd: 0,
        body_ssd: 0,
        options: ChainOptions { tail_cache_blocks: 1024, ..ChainOptions::default() },
    };
    let rig = Rig::build(&env, &plan).await?;
    let mut rng = env.rng();
    let mut stamp = 0;
    while stamp < writes {
        let transaction = (0..BATCH).map(|at| rig::block(rng.random_range(0..blocks), stamp + at));
        rig.chain.apply(transaction.collect()).await.map_err(failed)?;
        stamp += BATCH;
        if stamp % SYNC_EVERY == 0 {
            rig.sync().await?;
        }
    }
    rig.cut_power_and_open(POWER_OFF, plan.options).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_beyond_the_checkpoint_is_bounded() {
        let report = run(&Options { scale: Some(0.02), ..Options::default() }).unwrap();
        for writes in [2_000, 20_000, 200_000] {
            let figure = |name: &str| report.number(&format!("{name}_{writes}")).unwrap();
            assert!(figure("bytes_read") > figure("checkpoint_bytes"));
            assert!(figure("beyond_checkpoint") <= 1_048_576.0);
        }
    }
}
