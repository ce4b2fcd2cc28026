//! S5: deduplication of blocks on a disk, with a cache in memory that is indexed by content.
//!
//! - A write whose content is stored already changes the map alone; any other is written through to the next free
//!   place of the disk. Contents without a reference are freed. The map is in memory.
//! - The cache has read and written contents, and drops the one that was used least recently (LRU). A read hits if the
//!   content of any allowed version is cached; otherwise it reads the newest version from the disk.
//!
//! Each write draws its content from a pool, all contents equally often. The pool's size makes the share of blocks whose
//! content another block has the wanted one. Before the measurement each block is written once, and then
//! updated [`UPDATES`] times on average; the last of these updates are mixed with reads, so that the
//! cache is warm. Every read from the disk checks the content.

mod contents;

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{Device, Purpose};

use super::choice::{Place, oldest_allowed};
use super::load::{
    Answer, DISK_BYTES, Emulator, Operation, Operations, Tally, marks, play, read_memory, wrong,
};
use crate::BenchError;
use crate::rig::{content, failed};
use contents::{Content, Contents};

/// Blocks in the requests that fill the disk.
const CHUNK: usize = 256;
/// Mean number of updates of a block before the measurement.
const UPDATES: f64 = 1.0;

/// The sizes of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub(super) blocks: u32,
    pub(super) cache_blocks: usize,
    /// Share of the blocks whose content another block has.
    pub(super) redundant: f64,
    /// Operations that warm the cache, and operations that are measured.
    pub(super) warm: u64,
    pub(super) measured: u64,
    /// The most staleness that a reader allows.
    pub(super) most: u32,
}

/// The emulator.
#[derive(Debug)]
struct Dedup {
    env: Env,
    contents: Mutex<Contents>,
    /// Draws the contents of writes: a stream of contents in place of blocks.
    draws: Mutex<Operations>,
    disk: HardDisk,
}

/// The result of a case: the reads, and the share of blocks whose content another block has.
pub(super) async fn measure(
    env: Env,
    sizes: Sizes,
    seed: u64,
    staleness: u32,
) -> Result<(Tally, f64), BenchError> {
    let dedup = Dedup::new(&env, sizes, seed, staleness);
    dedup.fill().await?;
    let redundant = dedup.redundant();
    let dedup = Arc::new(dedup);
    Ok((play(&env, &dedup, seed, sizes.measured, staleness).await?, redundant))
}

/// The number of contents to draw from, so that `share` of `blocks` blocks have the content of another one. Of `pool`
/// contents, `pool * (1 - exp(-blocks / pool))` are used at any time.
fn pool(blocks: u32, share: f64) -> u32 {
    let blocks = f64::from(blocks);
    let used = |pool: f64| pool * (1.0 - (-blocks / pool).exp());
    let (mut low, mut high) = (1.0, blocks * 1e6);
    while high - low > 0.5 {
        let middle = (low + high) / 2.0;
        match used(middle) < blocks * (1.0 - share) {
            true => low = middle,
            false => high = middle,
        }
    }
    high.round() as u32
}

impl Dedup {
    /// The system after all updates and operations that warm the cache, without their time; the disk is empty.
    fn new(env: &Env, sizes: Sizes, seed: u64, staleness: u32) -> Dedup {
        let pool = pool(sizes.blocks, sizes.redundant);
        let mut draws = Operations::new(pool, seed, 100);
        let first: Vec<Content> = (0..sizes.blocks).map(|_| draws.item()).collect();
        let mut contents = Contents::new(&first, pool, sizes.most + 1, sizes.cache_blocks);
        let mut operations = Operations::new(sizes.blocks, seed, 0);
        let mut update = |contents: &mut Contents, block: u32| {
            let content = draws.item();
            let place = contents.begin(content);
            contents.end(block, content, place);
        };
        let updates = (f64::from(sizes.blocks) * UPDATES) as u64;
        for _ in 0..updates.saturating_sub(sizes.warm / 10) {
            update(&mut contents, operations.item());
        }
        for _ in 0..sizes.warm {
            match operations.draw() {
                Operation::Write(block) => update(&mut contents, block),
                Operation::Read(block) => {
                    let low = oldest_allowed(contents.newest(block), staleness);
                    let choice = contents.choose(block, low);
                    choice.into_iter().for_each(|choice| contents.touch(choice.content));
                }
            }
        }
        let disk = HardDisk::new(env, "disk", HardDiskSpec::sata_7200(DISK_BYTES));
        let (contents, draws) = (Mutex::new(contents), Mutex::new(draws));
        Dedup { env: env.clone(), contents, draws, disk }
    }

    /// Writes all contents to the disk.
    async fn fill(&self) -> Result<(), BenchError> {
        let stored = self.contents.lock().stored();
        // A gap between two places gets the content before it.
        let mut at = 0;
        while let Some((first, _)) = stored.get(at).copied() {
            let chunk = stored[at..].iter().take_while(|it| it.0 < first + CHUNK as u32).count();
            let chunk = &stored[at..at + chunk];
            let mut data = Vec::new();
            for (place, id) in chunk {
                data.resize((place - first) as usize, content(u64::from(*id), 0));
                data.push(content(u64::from(*id), 0));
            }
            self.disk.write(offset(first), data, Purpose::UserData).await.map_err(failed)?;
            at += chunk.len();
        }
        Ok(())
    }

    fn redundant(&self) -> f64 {
        let contents = self.contents.lock();
        1.0 - contents.stored().len() as f64 / f64::from(contents.blocks())
    }
}

fn offset(place: u32) -> u64 {
    u64::from(place) * BLOCK_SIZE as u64
}

impl Emulator for Dedup {
    fn items(&self) -> u32 {
        self.contents.lock().blocks()
    }

    async fn read(&self, block: u32, staleness: u32) -> Result<Answer, BenchError> {
        let newest = self.contents.lock().newest(block);
        let low = oldest_allowed(newest, staleness);
        loop {
            let choice = {
                let mut contents = self.contents.lock();
                let missing = || wrong(format!("block {block} has no version from {low} on"));
                let choice = contents.choose(block, low).ok_or_else(missing)?;
                if choice.place.is_none() {
                    contents.touch(choice.content);
                }
                choice
            };
            let behind = newest.saturating_sub(choice.version);
            let Some(place) = choice.place else {
                read_memory(&self.env).await;
                return Ok(Answer { place: Place::Memory, behind });
            };
            let data = self.disk.read(offset(place), BLOCK_SIZE, Purpose::UserData).await;
            let data = data.map_err(failed)?;
            let mut contents = self.contents.lock();
            // The content may have lost its last reference meanwhile, and its place may have another one.
            if contents.place(choice.content) == Some(place) {
                let found = marks(&data);
                if found != Some((u64::from(choice.content), 0)) {
                    return Err(wrong(format!("content {} is {found:?}", choice.content)));
                }
                contents.touch(choice.content);
                return Ok(Answer { place: Place::Disk, behind });
            }
        }
    }

    async fn write(&self, block: u32) -> Result<(), BenchError> {
        let id = self.draws.lock().item();
        let place = self.contents.lock().begin(id);
        if let Some(place) = place {
            let data = vec![content(u64::from(id), 0)];
            self.disk.write(offset(place), data, Purpose::UserData).await.map_err(failed)?;
        }
        self.contents.lock().end(block, id, place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(redundant: f64, staleness: u32) -> (Tally, f64) {
        let sizes = Sizes {
            blocks: 1_000,
            cache_blocks: 64,
            redundant,
            warm: 2_000,
            measured: 4_000,
            most: 3,
        };
        thalweg_sim::run(1, |env| measure(env, sizes, 1, staleness)).unwrap()
    }

    #[test]
    fn the_pool_makes_the_wanted_share_redundant() {
        for share in [0.3, 0.6, 0.9] {
            let (_, redundant) = run(share, 0);
            assert!((redundant - share).abs() < 0.05, "{redundant}");
        }
        assert!((9_990..10_010).contains(&pool(100_000, 0.9)), "{}", pool(100_000, 0.9));
    }

    #[test]
    fn old_versions_hit_the_cache_more_often() {
        let [newest, one, three] = [0, 1, 3].map(|staleness| run(0.9, staleness).0);
        let hits = |tally: &Tally| tally.share(Place::Memory);
        assert!(hits(&newest) > 0.5 && newest.old_share() == 0.0, "{newest:?}");
        assert!(hits(&one) > hits(&newest) && hits(&three) > hits(&one), "{one:?} {three:?}");
        assert_eq!((one.most_behind, three.most_behind), (1, 3));
        assert!(three.latency_ms() < newest.latency_ms());
        assert_eq!(run(0.9, 1).0, one, "a run is a function of its seed");
    }
}
