//! S6: a log of small key-value pairs on a solid-state drive, below a cache of blocks.
//!
//! - Updates are merged: a put ends when its pair is in the open block, in memory, unless it fills the block. The thread that
//!   fills it writes it to the tail of the log and waits.
//! - The log is a ring. Blocks are cleaned in order, the oldest first: pairs that are still the newest version are appended
//!   again, and all older versions in the block are gone. A thread that wrote a block cleans if space is short.
//! - Memory caches blocks that were read or written, and drops the one that was used least recently (LRU). A read hits if any
//!   allowed version of its pair is in a block in memory; otherwise it reads the newest version's block.
//!
//! Before the measurement all pairs are written in order and updated [`UPDATES`] times on average, then the cache is
//! warmed. The drive is half full. Every read from the drive checks that it is the block that was wanted.

mod pairs;

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{Device, Purpose};

use super::choice::{Place, oldest_allowed};
use super::load::{
    Answer, Emulator, Operation, Operations, Tally, marks, play, read_memory, wrong,
};
use crate::BenchError;
use crate::rig::{content, failed};
use pairs::{BlockNumber, Layout, Pairs};

/// Blocks in the requests that fill the drive.
const CHUNK: u32 = 256;
/// Mean number of updates of a pair before the measurement.
const UPDATES: u64 = 3;

/// The sizes of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub(super) pairs: u32,
    pub(super) pairs_in_block: u32,
    pub(super) cache_blocks: usize,
    /// Blocks of the log over those that the newest versions fill.
    pub(super) spread: f64,
    /// Operations that warm the cache, and operations that are measured.
    pub(super) warm: u64,
    pub(super) measured: u64,
    /// The most staleness that a reader allows.
    pub(super) most: u32,
}

impl Sizes {
    fn layout(&self) -> Layout {
        let full = f64::from(self.pairs.div_ceil(self.pairs_in_block));
        Layout {
            pairs: self.pairs,
            pairs_in_block: self.pairs_in_block,
            log_blocks: (full * self.spread) as u32 + pairs::RESERVE,
            cache_blocks: self.cache_blocks,
            known: self.most + 1,
        }
    }
}

/// The emulator.
#[derive(Debug)]
struct Merged {
    env: Env,
    pairs: Mutex<Pairs>,
    ssd: SolidState,
    /// Held by the thread that cleans.
    cleaning: tokio::sync::Mutex<()>,
}

/// Measures a case.
pub(super) async fn measure(
    env: Env,
    sizes: Sizes,
    seed: u64,
    staleness: u32,
) -> Result<Tally, BenchError> {
    let merged = Merged::new(&env, sizes, seed, staleness)?;
    merged.fill().await?;
    play(&env, &Arc::new(merged), seed, sizes.measured, staleness).await
}

/// Updates a pair and cleans, without any time.
fn update(pairs: &mut Pairs, pair: u32) -> Result<(), BenchError> {
    let full = pairs.put(pair).map_err(failed)?;
    full.into_iter().for_each(|block| pairs.written(block));
    while pairs.victim().is_some() {
        pairs.clean().into_iter().for_each(|block| pairs.written(block));
    }
    Ok(())
}

impl Merged {
    /// The system after all updates and operations that warm the cache, without their time; the drive is empty.
    fn new(env: &Env, sizes: Sizes, seed: u64, staleness: u32) -> Result<Merged, BenchError> {
        let layout = sizes.layout();
        let mut pairs = Pairs::new(layout);
        let mut operations = Operations::new(sizes.pairs, seed, 0);
        for _ in 0..u64::from(sizes.pairs) * UPDATES {
            update(&mut pairs, operations.item())?;
        }
        for _ in 0..sizes.warm {
            match operations.draw() {
                Operation::Write(pair) => update(&mut pairs, pair)?,
                Operation::Read(pair) => {
                    let low = oldest_allowed(pairs.newest(pair), staleness);
                    let choice = pairs.choose(pair, low);
                    choice.into_iter().for_each(|choice| pairs.touch(choice.block));
                }
            }
        }
        let bytes = u64::from(layout.log_blocks) * BLOCK_SIZE as u64;
        let ssd = SolidState::new(env, "ssd", SolidStateSpec::sata(2 * bytes));
        let cleaning = tokio::sync::Mutex::default();
        Ok(Merged { env: env.clone(), pairs: Mutex::new(pairs), ssd, cleaning })
    }

    /// Writes all blocks of the log to the drive.
    async fn fill(&self) -> Result<(), BenchError> {
        let blocks = self.pairs.lock().full_blocks();
        let mut first = blocks.start;
        while first < blocks.end {
            let place = self.pairs.lock().place(first);
            let after = (first + CHUNK).min(blocks.end);
            let adjacent = |block: &BlockNumber| {
                self.pairs.lock().place(*block).checked_sub(place) == Some(*block - first)
            };
            let data = (first..after).take_while(adjacent).map(|it| content(u64::from(it), 0));
            let data: Vec<_> = data.collect();
            first += data.len() as u32;
            self.ssd.write(offset(place), data, Purpose::UserData).await.map_err(failed)?;
        }
        self.ssd.flush(Purpose::UserData).await.map_err(failed)
    }

    async fn write_block(&self, block: BlockNumber, purpose: Purpose) -> Result<(), BenchError> {
        let place = self.pairs.lock().place(block);
        let data = vec![content(u64::from(block), 0)];
        self.ssd.write(offset(place), data, purpose).await.map_err(failed)?;
        self.pairs.lock().written(block);
        Ok(())
    }

    /// Reads a block from the drive; false if it was cleaned meanwhile.
    async fn read_block(&self, block: BlockNumber, purpose: Purpose) -> Result<bool, BenchError> {
        let place = self.pairs.lock().place(block);
        let data = self.ssd.read(offset(place), BLOCK_SIZE, purpose).await.map_err(failed)?;
        if !self.pairs.lock().is_retained(block) {
            return Ok(false);
        }
        let found = marks(&data);
        match found == Some((u64::from(block), 0)) {
            true => Ok(true),
            false => Err(wrong(format!("block {block} of the log is {found:?}"))),
        }
    }

    /// Frees the oldest blocks while space is short.
    async fn clean(&self) -> Result<(), BenchError> {
        let _cleaning = self.cleaning.lock().await;
        loop {
            let (victim, in_memory) = {
                let pairs = self.pairs.lock();
                let Some(victim) = pairs.victim() else { return Ok(()) };
                (victim, pairs.in_memory(victim))
            };
            if !in_memory {
                self.read_block(victim, Purpose::Cleaning).await?;
            }
            let full = self.pairs.lock().clean();
            if let Some(block) = full {
                self.write_block(block, Purpose::Cleaning).await?;
            }
        }
    }
}

fn offset(place: u32) -> u64 {
    u64::from(place) * BLOCK_SIZE as u64
}

impl Emulator for Merged {
    fn items(&self) -> u32 {
        self.pairs.lock().count()
    }

    async fn read(&self, pair: u32, staleness: u32) -> Result<Answer, BenchError> {
        let newest = self.pairs.lock().newest(pair);
        let low = oldest_allowed(newest, staleness);
        loop {
            let choice = {
                let mut pairs = self.pairs.lock();
                let missing = || wrong(format!("pair {pair} has no version from {low} on"));
                let choice = pairs.choose(pair, low).ok_or_else(missing)?;
                if choice.place == Place::Memory {
                    pairs.touch(choice.block);
                }
                choice
            };
            let behind = newest.saturating_sub(choice.version);
            if choice.place == Place::Memory {
                read_memory(&self.env).await;
            } else if self.read_block(choice.block, Purpose::UserData).await? {
                self.pairs.lock().touch(choice.block);
            } else {
                continue;
            }
            return Ok(Answer { place: choice.place, behind });
        }
    }

    async fn write(&self, pair: u32) -> Result<(), BenchError> {
        let full = self.pairs.lock().put(pair).map_err(failed)?;
        if let Some(block) = full {
            self.write_block(block, Purpose::UserData).await?;
            self.clean().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pairs_in_block: u32, staleness: u32) -> Tally {
        let sizes = Sizes {
            pairs: 4_000,
            pairs_in_block,
            cache_blocks: 256,
            spread: 2.0,
            warm: 4_000,
            measured: 20_000,
            most: 3,
        };
        thalweg_sim::run(1, |env| measure(env, sizes, 1, staleness)).unwrap()
    }

    #[test]
    fn old_versions_hit_the_cache_more_often() {
        let [newest, one, three] = [0, 1, 3].map(|staleness| run(8, staleness));
        let hits = |tally: &Tally| tally.share(Place::Memory);
        assert!(hits(&newest) > 0.3 && newest.old_share() == 0.0, "{newest:?}");
        assert!(hits(&one) > hits(&newest) && hits(&three) > hits(&one), "{one:?} {three:?}");
        assert_eq!((one.most_behind, three.most_behind), (1, 3));
        assert!(three.latency_ms() < newest.latency_ms());
        assert!(hits(&newest) > hits(&run(2, 0)), "smaller pairs fit the cache better");
        assert_eq!(run(8, 1), one, "a run is a function of its seed");
    }
}
