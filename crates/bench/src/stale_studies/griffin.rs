//! S4: a disk that caches the writes of a solid-state drive, after Griffin.
//!
//! - Writes go to a log on the disk, one request at a time: a request has every block that arrived during
//!   the one before. A version is visible when its request has ended.
//! - The log has two halves of `trigger` blocks. When one is full it is migrated, while writes go on in the other: the half
//!   is read in order, and each block's newest version in it is written to the solid-state drive. A writer that
//!   finds both halves full waits.
//! - A read takes the block from the solid-state drive if its version there is allowed, and from the log otherwise.
//!
//! The disk acknowledges a write that is in its cache, because the load flushes nothing; [`Sizes::write_cache`] turns that
//! off. The solid-state drive is half full and all of its flash was written before, so that
//! it collects garbage. Every read checks that the content is the version that it wanted.

mod copies;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Task};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{Device, Purpose};
use tokio::sync::Notify;

use super::choice::{Place, oldest_allowed};
use super::load::{Answer, DISK_BYTES, Emulator, Operations, Tally, marks, play, wrong};
use crate::BenchError;
use crate::rig::{content, failed};
use copies::{Choice, Copies, Position, Slot};

/// Blocks in the requests that fill drives.
const CHUNK: u32 = 256;
/// Blocks in the requests that read the log for migration. Long ones make migration short, and so the time in which the
/// log has more than one half.
const MIGRATED: u32 = 4096;
/// Blocks of the solid-state drive that migration writes and then flushes.
const BATCH: usize = 256;
/// The parameters of a case; sizes in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) blocks: u32,
    /// Blocks that are written before the log is migrated.
    pub(super) trigger: u32,
    /// Whether the disk acknowledges writes that are in its cache.
    pub(super) write_cache: bool,
}

/// Blocks that wait for the log's next request.
#[derive(Debug, Default)]
struct Queue {
    blocks: Vec<u32>,
    /// Number of blocks that were ever queued, and that were written.
    queued: u64,
    written: u64,
}

#[derive(Debug)]
struct Inner {
    copies: Mutex<Copies>,
    queue: Mutex<Queue>,
    /// Held by the writer that writes the queue.
    tail: tokio::sync::Mutex<()>,
    disk: HardDisk,
    ssd: SolidState,
    /// A half became full, or was released, or migration failed.
    full: Notify,
    released: Notify,
    failure: Mutex<Option<BenchError>>,
}

/// The emulator.
#[derive(Debug)]
pub(super) struct Griffin {
    inner: Arc<Inner>,
    _migration: Task<()>,
}

/// Measures one fill of a half of the log, during which the half before is migrated.
pub(super) async fn measure(
    env: Env,
    sizes: Sizes,
    seed: u64,
    staleness: u32,
) -> Result<Tally, BenchError> {
    let griffin = Arc::new(Griffin::new(&env, sizes, seed).await?);
    // One operation of ten is a write.
    play(&env, &griffin, seed, u64::from(sizes.trigger) * 10, staleness).await
}

impl Griffin {
    /// The system with one half of the log full of random blocks.
    async fn new(env: &Env, sizes: Sizes, seed: u64) -> Result<Griffin, BenchError> {
        let bytes = u64::from(sizes.blocks) * BLOCK_SIZE as u64;
        let mut disk = HardDiskSpec::sata_7200(DISK_BYTES);
        if !sizes.write_cache {
            disk.write_cache = 0;
        }
        let inner = Arc::new(Inner {
            copies: Mutex::new(Copies::new(sizes.blocks, sizes.trigger)),
            queue: Mutex::default(),
            tail: tokio::sync::Mutex::default(),
            disk: HardDisk::new(env, "log", disk),
            ssd: SolidState::new(env, "ssd", SolidStateSpec::sata(2 * bytes)),
            full: Notify::new(),
            released: Notify::new(),
            failure: Mutex::default(),
        });
        inner.fill(sizes, seed).await?;
        let migrating = inner.clone();
        let _migration = env.spawn(async move {
            if let Err(error) = migrating.migrate().await {
                migrating.failure.lock().get_or_insert(error);
                migrating.released.notify_waiters();
            }
        });
        Ok(Griffin { inner, _migration })
    }
}

impl Inner {
    async fn fill(&self, sizes: Sizes, seed: u64) -> Result<(), BenchError> {
        // The second time uses the flash beyond the half that holds blocks.
        for _ in 0..2 {
            for first in (0..sizes.blocks).step_by(CHUNK as usize) {
                let blocks = first..(first + CHUNK).min(sizes.blocks);
                let data = blocks.map(|block| content(u64::from(block), 0)).collect();
                let offset = offset(first);
                self.ssd.write(offset, data, Purpose::UserData).await.map_err(failed)?;
            }
        }
        self.ssd.flush(Purpose::UserData).await.map_err(failed)?;
        let mut operations = Operations::new(sizes.blocks, seed, 0);
        for first in (0..sizes.trigger).step_by(CHUNK as usize) {
            let count = CHUNK.min(sizes.trigger - first);
            let blocks: Vec<u32> = (0..count).map(|_| operations.item()).collect();
            self.append(&blocks).await?;
        }
        Ok(())
    }

    /// Writes blocks to the log in one request. There is room for them.
    async fn append(&self, blocks: &[u32]) -> Result<(), BenchError> {
        let (place, data) = {
            let mut copies = self.copies.lock();
            let positions: Vec<Position> = blocks.iter().map(|it| copies.append(*it)).collect();
            let data: Vec<Bytes> = positions.iter().map(|at| slot_content(&copies, *at)).collect();
            (positions.first().map_or(0, |first| copies.place(*first)), data)
        };
        self.disk.write(offset(place), data, Purpose::UserData).await.map_err(failed)?;
        let mut copies = self.copies.lock();
        copies.publish();
        if copies.full_half().is_some() {
            self.full.notify_one();
        }
        Ok(())
    }

    /// Writes the queued blocks for which the log has room; waits until there is room for some.
    async fn write_queued(&self) -> Result<(), BenchError> {
        let room = loop {
            let released = self.released.notified();
            if let Some(error) = self.failure.lock().take() {
                return Err(error);
            }
            match self.copies.lock().room() {
                0 => {}
                room => break room as usize,
            }
            released.await;
        };
        let blocks: Vec<u32> = {
            let mut queue = self.queue.lock();
            let count = room.min(queue.blocks.len());
            queue.blocks.drain(..count).collect()
        };
        self.append(&blocks).await?;
        self.queue.lock().written += blocks.len() as u64;
        Ok(())
    }

    /// Migrates halves as they become full.
    async fn migrate(&self) -> Result<(), BenchError> {
        loop {
            let half = self.copies.lock().full_half();
            let Some(half) = half else {
                self.full.notified().await;
                continue;
            };
            self.migrate_half(half).await?;
            self.copies.lock().release();
            self.released.notify_waiters();
        }
    }

    /// Migrates a half: reads a chunk of it while the chunk before is written.
    async fn migrate_half(&self, half: Range<Position>) -> Result<(), BenchError> {
        let mut slots = Vec::new();
        for first in half.clone().step_by(MIGRATED as usize) {
            let read = self.read_chunk(first..(first + MIGRATED).min(half.end));
            let (read, written) = futures::join!(read, self.write_slots(&slots));
            written?;
            slots = read?;
        }
        self.write_slots(&slots).await
    }

    /// Reads a part of the older half; returns the newest version in the half of each block that has it there.
    async fn read_chunk(&self, chunk: Range<Position>) -> Result<Vec<Slot>, BenchError> {
        let place = self.copies.lock().place(chunk.start);
        let len = chunk.len() * BLOCK_SIZE;
        let data = self.disk.read(offset(place), len, Purpose::Cleaning).await.map_err(failed)?;
        let mut last = Vec::new();
        let copies = self.copies.lock();
        for (position, block) in chunk.zip(data.chunks(BLOCK_SIZE)) {
            let slot = copies.slot(position);
            expect(block, slot.block, slot.version)?;
            if copies.is_last_of_half(position) {
                last.push(slot);
            }
        }
        Ok(last)
    }

    /// Writes versions to the solid-state drive.
    async fn write_slots(&self, slots: &[Slot]) -> Result<(), BenchError> {
        for batch in slots.chunks(BATCH) {
            let write = |slot: &Slot| {
                let data = vec![content(u64::from(slot.block), u64::from(slot.version))];
                self.ssd.write(offset(slot.block), data, Purpose::Cleaning)
            };
            let written = futures::future::join_all(batch.iter().map(write)).await;
            written.into_iter().collect::<Result<(), _>>().map_err(failed)?;
            self.ssd.flush(Purpose::Cleaning).await.map_err(failed)?;
            let mut copies = self.copies.lock();
            batch.iter().for_each(|slot| copies.migrated(slot.block, slot.version));
        }
        Ok(())
    }

    /// Reads what was chosen; `None` if its place was used again meanwhile.
    async fn fetch(&self, block: u32, choice: Choice) -> Result<Option<u32>, BenchError> {
        let Some(position) = choice.position else {
            let data = self.ssd.read(offset(block), BLOCK_SIZE, Purpose::UserData).await;
            let found = marks(&data.map_err(failed)?);
            // Migration may have written a newer version in the meantime.
            let version = found.filter(|found| found.0 == u64::from(block)).map(|it| it.1 as u32);
            let version = version.filter(|version| *version >= choice.version);
            return version.map(Some).ok_or_else(|| {
                wrong(format!("block {block} is {found:?}, not version {}", choice.version))
            });
        };
        let place = self.copies.lock().place(position);
        let data = self.disk.read(offset(place), BLOCK_SIZE, Purpose::UserData).await;
        let data = data.map_err(failed)?;
        if !self.copies.lock().is_retained(position) {
            return Ok(None);
        }
        expect(&data, block, choice.version)?;
        Ok(Some(choice.version))
    }
}

impl Emulator for Griffin {
    fn items(&self) -> u32 {
        self.inner.copies.lock().blocks()
    }

    async fn read(&self, block: u32, staleness: u32) -> Result<Answer, BenchError> {
        let newest = self.inner.copies.lock().newest(block);
        let low = oldest_allowed(newest, staleness);
        loop {
            let choice = self.inner.copies.lock().choose(block, low);
            let missing = || wrong(format!("block {block} has no version from {low} on"));
            let choice = choice.ok_or_else(missing)?;
            if let Some(version) = self.inner.fetch(block, choice).await? {
                let place = choice.position.map_or(Place::SolidState, |_| Place::Disk);
                return Ok(Answer { place, behind: newest.saturating_sub(version) });
            }
        }
    }

    async fn write(&self, block: u32) -> Result<(), BenchError> {
        let ticket = {
            let mut queue = self.inner.queue.lock();
            queue.blocks.push(block);
            queue.queued += 1;
            queue.queued
        };
        while self.inner.queue.lock().written < ticket {
            let _tail = self.inner.tail.lock().await;
            if self.inner.queue.lock().written < ticket {
                self.inner.write_queued().await?;
            }
        }
        Ok(())
    }
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_SIZE as u64
}

fn slot_content(copies: &Copies, position: Position) -> Bytes {
    let slot = copies.slot(position);
    content(u64::from(slot.block), u64::from(slot.version))
}

/// Checks that a block's content is of a version.
fn expect(data: &[u8], block: u32, version: u32) -> Result<(), BenchError> {
    let found = marks(data);
    match found == Some((u64::from(block), u64::from(version))) {
        true => Ok(()),
        false => Err(wrong(format!("block {block} is {found:?}, not version {version}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a small system over many migrations.
    fn run(seed: u64, staleness: u32) -> Tally {
        run_with(seed, staleness, Sizes { blocks: 300, trigger: 40, write_cache: false })
    }

    fn run_with(seed: u64, staleness: u32, sizes: Sizes) -> Tally {
        let run = |env: Env| async move {
            let griffin = Arc::new(Griffin::new(&env, sizes, seed).await?);
            let tally = play(&env, &griffin, seed, 4_000, staleness).await?;
            let migrated = griffin.inner.ssd.tallies().of(Purpose::Cleaning);
            assert!(migrated.writes > 150, "{migrated:?}");
            Ok::<_, BenchError>(tally)
        };
        thalweg_sim::run(seed, run).unwrap()
    }

    #[test]
    fn reads_get_allowed_versions_across_migrations() {
        let [newest, one, five] = [0, 1, 5].map(|staleness| run(1, staleness));
        assert!(newest.share(Place::Disk) > 0.05 && newest.old_share() == 0.0, "{newest:?}");
        assert!(one.share(Place::Disk) < newest.share(Place::Disk) / 2.0, "{one:?}");
        assert_eq!((newest.most_behind, one.most_behind), (0, 1));
        assert!(five.share(Place::Disk) < 0.001 && five.latency_ms() < one.latency_ms());
        assert_eq!(run(1, 1), one, "a run is a function of its seed");
    }

    #[test]
    fn a_read_whose_place_is_used_again_meanwhile_starts_over() {
        // A write acknowledged from the cache takes a fraction of a read's time.
        for seed in 0..4 {
            let sizes = Sizes { blocks: 20, trigger: 2, write_cache: true };
            assert_eq!(run_with(seed, 1, sizes).most_behind, 1);
        }
    }
}
