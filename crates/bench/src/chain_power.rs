//! `chain-power`: time in stand-by of the body's second drives (Gecko, 3.1.4).
//!
//! Eight servers run on a chain of three mirrored pairs at about their recorded rate. They write the
//! whole chain several times, so that cleaning runs all the time. The second side of a pair in the
//! body serves no requests.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::{Cleaning, Options as ChainOptions};

use crate::replay::{Places, Played, Player};
use crate::rig::{self, Placement, Plan, Rig, SEGMENT, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "chain-power",
    about: "share of time that second sides of mirrors in the body spend in stand-by",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes on a drive of the paper.
const DRIVE_BYTES: f64 = 600e9;
const DEFAULT_SCALE: f64 = 1.0 / 512.0;
/// The servers A to D and F to I of table 3.1 write 2.6 TB in a week.
const SERVERS: [usize; 8] = [0, 1, 2, 3, 5, 6, 7, 8];
const BYTES_PER_SECOND: f64 = 2.6e12 / (7.0 * 86_400.0);
/// Number of times that the servers write the whole log.
const ROUNDS: f64 = 1.5;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let seed = options.seed;
    let measured = thalweg_sim::run(seed, |env| async move { measure(env, scale, seed).await })?;
    let mut report = Report::new(ENTRY.name, seed);
    report.figure("scale", scale);
    report.figure("standby_share", rounded(measured.share));
    report.figure("spin_ups", measured.spin_ups);
    report.figure("seconds", rounded(measured.seconds));
    report.figure("tail_moves", measured.tail_moves);
    report.figure("segments_cleaned", measured.segments_cleaned);
    Ok(report)
}

struct Measured {
    share: f64,
    spin_ups: u64,
    seconds: f64,
    tail_moves: u64,
    segments_cleaned: u64,
}

async fn measure(env: Env, scale: f64, seed: u64) -> Result<Measured, BenchError> {
    let segment_bytes = f64::from(SEGMENT) * BLOCK_SIZE as f64;
    let drive_segments = ((DRIVE_BYTES * scale / segment_bytes) as u32).max(16);
    let drive = u64::from(drive_segments) * u64::from(SEGMENT);
    // Half of the chain is live: a body, and the addresses that the servers write.
    let (body, room) = (drive / 2, drive);
    let plan = Plan {
        placement: Placement::Chained,
        drives: 3,
        mirrored: true,
        standby: true,
        drive_segments,
        blocks: body + room,
        cleaning: Cleaning::MoveToTail,
        tail_ssd: drive / 16,
        body_ssd: drive / 16,
        options: ChainOptions {
            tail_cache_blocks: (drive / 256) as usize,
            body_cache_blocks: (drive / 256) as usize,
            tail_read_wait: rig::TAIL_READ_WAIT,
            ..ChainOptions::default()
        },
    };
    let mut rig = Rig::build(&env, &plan).await?;
    rig.fill(body, |block| block).await?;
    rig.sync().await?;
    let played = Arc::new(Played::default());
    let places = Arc::new(Places::new(body, room));
    let players = Player::all(&SERVERS, scale, seed, &rig.chain, &places, &played);
    // The second sides go to stand-by as soon as the chain is idle.
    env.sleep(Duration::from_secs(30)).await;
    let rest = |rig: &Rig| {
        let second = rig.disks.iter().map(|sides| sides[1].standby());
        second.fold((0.0, 0), |sum, (time, ups)| (sum.0 + time.as_secs_f64(), sum.1 + ups))
    };
    let (before, start) = (rest(&rig), env.now());
    let tail_moves = play(&rig, &players, (3 * drive) as f64 * ROUNDS).await?;
    let seconds = env.now().since(start).as_secs_f64();
    let after = rest(&rig);
    Ok(Measured {
        share: (after.0 - before.0) / (seconds * (plan.drives - 1) as f64),
        spin_ups: after.1 - before.1,
        seconds,
        tail_moves,
        segments_cleaned: rig.chain.status().counts.segments_cleaned,
    })
}

/// Plays the servers in turn at their rate until they have written `blocks` blocks; returns how often
/// the tail moved to another link.
async fn play(rig: &Rig, players: &[Arc<Player>], blocks: f64) -> Result<u64, BenchError> {
    let mut rng = rig.env.rng();
    let (mut written, mut moves, mut tail) = (0.0, 0, rig.tail());
    let mut due = rig.env.now();
    while written < blocks {
        let player = &players[rng.random_range(0..players.len())];
        let wrote = player.step().await.map_err(failed)?.1 as f64;
        written += wrote;
        due = due + Duration::from_secs_f64(wrote * BLOCK_SIZE as f64 / BYTES_PER_SECOND);
        rig.env.sleep_until(due).await;
        let now = rig.tail();
        moves += u64::from(now != tail);
        tail = now;
    }
    Ok(moves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_sides_rest_while_the_tail_goes_round() {
        let report = run(&Options { scale: Some(8e-4), ..Options::default() }).unwrap();
        let figure = |name: &str| report.number(name).unwrap();
        assert!(figure("standby_share") > 0.6, "{}", figure("standby_share"));
        assert!(figure("tail_moves") >= 3.0 && figure("segments_cleaned") > 0.0);
    }
}
