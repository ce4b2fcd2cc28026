//! The tail cache: no read should reach the drive that takes the writes (Gecko, 3.1.2).
//!
//! Blocks are named by their physical address in the chain, in blocks; the content under a key does not
//! change until the key is removed, put again, or evicted. There are two tiers, and a block is in one of
//! them:
//!
//! - RAM, least recently used first out. Every block written to the tail enters here. An overwrite gives the logical
//!   block a new physical address, and the chain removes the old one: if that is still in RAM, it never costs
//!   the SSD a write;
//! - an SSD, least recently used first out as well, but blocks that were read there stay longer. Blocks that leave
//!   RAM wait there until a batch is full, and one task writes the batch, in runs of consecutive slots where the
//!   free slots allow. They are read from RAM until the write has ended.
//!
//! Which missed blocks enter, and how much longer blocks stay that were read, is tried on a sample of the keys.
//!
//! Writers never wait for the SSD: when it falls behind, evicted blocks are dropped. When a write
//! to it fails, or reads of it keep failing, it is taken out and RAM goes on alone. Nothing on it
//! outlives the process: a cache starts empty, and the SSD is never flushed.
//!
//! With [`Admission::Always`] the same type is the optional read cache of the body: there blocks enter by
//! [`Cache::fill`] alone.
//!
//! A block in RAM keeps the checksum under which it entered. [`Cache::read_ram`] compares it with the caller's
//! and does not compute it again: so a hit costs no pass over the content, and a key that names another block by
//! now does not hit. Blocks from the SSD are not verified here: the caller has the checksum, and on a mismatch it
//! calls [`Cache::remove`] and reads the drive.
//!
//! - [`policy`]: which blocks stay in RAM and on the SSD, without I/O;
//! - `slots`: the SSD's part of it;
//! - `index`: keys and lists in flat arrays;
//! - `trials`: the choice between strategies;
//! - `ghosts`: which blocks were missed lately.

mod ghosts;
mod index;
pub mod policy;
mod slots;
#[cfg(test)]
mod tests;
mod trials;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use smallvec::SmallVec;
use thalweg_env::{Env, Task};
use tokio::sync::Notify;

use crate::block::BLOCK_SIZE;
use crate::device::{DeviceError, DeviceRef, FrameBuf, Purpose};
use crate::lock::BriefMutex;
pub use policy::{Admission, CacheStats, RamSizes, Tier};
use policy::{Found, Move, Policy};

/// Runs of one batch that are written at a time.
const WRITES_IN_FLIGHT: usize = 8;
/// Failed reads in a row after which the SSD counts as failed. One alone may be a bad sector.
const READ_FAILURES: u32 = 8;
/// Entries looked at under one hold of the lock while a range is removed.
const SWEEP: u32 = 4096;

/// Keys to look for, each with a number by which the caller knows it.
pub type Wanted = SmallVec<[(usize, u64); 4]>;

/// A cache of blocks in RAM and on an SSD; see the [module](self).
#[derive(Debug)]
pub struct Cache {
    shared: Arc<Shared>,
    /// Moves blocks to the SSD; ends with the cache.
    _mover: Option<Task<()>>,
}

#[derive(Debug)]
struct Shared {
    state: BriefMutex<State>,
    ssd: Option<DeviceRef>,
    batch_ready: Notify,
}

/// A block that enters a cache.
#[derive(Clone, Debug)]
pub struct Entering {
    /// Its physical address in the chain, in blocks.
    pub key: u64,
    /// Its content's checksum, which the caller has computed or verified.
    pub check: u32,
    /// [`BLOCK_SIZE`] bytes.
    pub content: Bytes,
}

/// A block in RAM.
#[derive(Clone, Debug)]
struct Kept {
    check: u32,
    content: Bytes,
}

#[derive(Debug)]
struct State {
    policy: Policy<Kept>,
    read_failures: u32,
}

impl State {
    fn get_ram(&mut self, key: u64, check: u32) -> Option<Bytes> {
        self.policy.get_ram(key, |kept| kept.check == check).map(|kept| kept.content)
    }
}

impl Cache {
    /// A tail cache: `ram_blocks` blocks of RAM, and all of `ssd`. Either tier may be absent. Up to 4 MiB beyond
    /// `ram_blocks` may be queued or under way to the SSD.
    pub fn new(env: &Env, ram_blocks: usize, ssd: Option<DeviceRef>) -> Arc<Cache> {
        Cache::with_sizes(env, RamSizes::fixed(ram_blocks), ssd, Admission::Adaptive)
    }

    /// A cache with RAM between two sizes: the least at first, and then as [`Cache::resize`] says.
    pub fn with_sizes(
        env: &Env,
        ram: RamSizes,
        ssd: Option<DeviceRef>,
        admission: Admission,
    ) -> Arc<Cache> {
        let slots = ssd.as_ref().map_or(0, |ssd| ssd.geometry().size / BLOCK_SIZE as u64);
        let policy = Policy::new(ram, u32::try_from(slots).unwrap_or(u32::MAX), admission);
        let shared = Arc::new(Shared {
            state: BriefMutex::new(State { policy, read_failures: 0 }),
            ssd: ssd.clone(),
            batch_ready: Notify::new(),
        });
        let mover = ssd.map(|ssd| env.spawn(move_to_ssd(Arc::clone(&shared), ssd)));
        Arc::new(Cache { shared, _mover: mover })
    }

    /// Takes in blocks that were just written, each in place of what was under its key. Their memory is kept as
    /// it is, so it should be each block's alone. Never waits for a device.
    pub fn put_all(&self, blocks: Vec<Entering>) {
        debug_assert!(blocks.iter().all(|block| block.content.len() == BLOCK_SIZE));
        self.admit(|policy| {
            for Entering { key, check, content } in blocks {
                policy.put(key, Kept { check, content });
            }
        });
    }

    /// Offers a block that was read from its drive after a miss; does nothing when the key is already cached.
    /// A read cache admits it at once. A tail cache admits it at once, at the second offer soon after the first, or
    /// not at all, whichever has served recent reads best; then it is as a new block. Copies the bytes. The caller
    /// ensures that the key still names this block.
    pub fn fill(&self, block: &Entering) {
        if self.contains(block.key).is_none() {
            let (check, content) = (block.check, FrameBuf::copy_block(&block.content));
            self.admit(|policy| policy.fill(block.key, Kept { check, content }));
        }
    }

    /// The block under `key`, if it is in RAM with this checksum. A miss is not counted.
    pub fn get_ram(&self, key: u64, check: u32) -> Option<Bytes> {
        self.shared.state.lock().get_ram(key, check)
    }

    /// Adds the blocks that are in RAM to `blocks`, where it has none: of these numbers in it, keys and checksums.
    pub fn read_ram(
        &self,
        wanted: impl Iterator<Item = (usize, u64, u32)>,
        blocks: &mut [Option<Bytes>],
    ) {
        let mut state = self.shared.state.lock();
        for (number, key, check) in wanted {
            if let Some(block @ None) = blocks.get_mut(number) {
                *block = state.get_ram(key, check);
            }
        }
    }

    /// The block under `key` from RAM, else from the SSD. A failed read of the SSD is a miss, and
    /// drops the key.
    pub async fn get(&self, key: u64) -> Option<Bytes> {
        let found = self.shared.state.lock().policy.get(key);
        let at = match found {
            Found::Ram(kept) => return Some(kept.content),
            Found::Ssd(at) => at,
            Found::Miss => return None,
        };
        let ssd = self.shared.ssd.as_ref()?;
        let read = ssd.read(slot_offset(at.slot), BLOCK_SIZE, Purpose::Cache).await;
        let mut state = self.shared.state.lock();
        let hit = state.policy.read_done(key, at, read.is_ok());
        match read {
            Ok(block) => {
                state.read_failures = 0;
                hit.then_some(block)
            }
            Err(error) => {
                state.read_failed(ssd, &error);
                None
            }
        }
    }

    /// The device of its second tier.
    pub fn ssd(&self) -> Option<&DeviceRef> {
        self.shared.ssd.as_ref()
    }

    /// The tier that holds the block under `key`.
    pub fn contains(&self, key: u64) -> Option<Tier> {
        self.shared.state.lock().policy.locate(key)
    }

    /// Calls `found` for each of the `wanted` blocks that is cached, and removes these from `wanted`. One hold of the lock.
    pub fn find_all(&self, wanted: &mut Wanted, mut found: impl FnMut(usize, Tier)) {
        let state = self.shared.state.lock();
        wanted.retain(|(number, key)| match state.policy.locate(*key) {
            Some(tier) => {
                found(*number, tier);
                false
            }
            None => true,
        });
    }

    /// Drops the block under `key`: it was overwritten, or it turned out to be damaged.
    pub fn remove(&self, key: u64) {
        self.shared.state.lock().policy.remove(key);
    }

    /// Drops every block in `keys` that is cached at the time of this call: the tail moved to another link.
    /// Holds the lock for `SWEEP` entries at a time.
    pub fn remove_range(&self, keys: Range<u64>) {
        // RAM first: a block only ever moves from RAM to the SSD, so none slips by.
        self.sweep(|policy, from| policy.sweep_ram(from, SWEEP, |key| keys.contains(&key)));
        self.sweep(|policy, from| policy.sweep_ssd(from, SWEEP, |key| keys.contains(&key)));
    }

    /// Changes the blocks that RAM may hold, within its two sizes. Blocks that are too many stay until
    /// [`Cache::shrink`].
    pub fn resize(&self, ram_blocks: usize) {
        self.shared.state.lock().policy.resize(ram_blocks);
    }

    /// Moves up to `count` blocks that are too many out of RAM, in the order in which blocks leave it. Returns
    /// whether any were.
    pub fn shrink(&self, count: usize) -> bool {
        let mut moved = false;
        self.admit(|policy| moved = policy.shrink(count));
        moved
    }

    /// What the cache has done so far, and its present size.
    pub fn stats(&self) -> CacheStats {
        self.shared.state.lock().policy.stats()
    }

    fn admit(&self, enter: impl FnOnce(&mut Policy<Kept>)) {
        let mut state = self.shared.state.lock();
        enter(&mut state.policy);
        let ready = state.policy.has_batch();
        drop(state);
        if ready {
            self.shared.batch_ready.notify_one();
        }
    }

    fn sweep(&self, mut step: impl FnMut(&mut Policy<Kept>, u32) -> bool) {
        let mut from = 0;
        while step(&mut self.shared.state.lock().policy, from) {
            from += SWEEP;
        }
    }
}

impl State {
    fn read_failed(&mut self, ssd: &DeviceRef, error: &DeviceError) {
        self.read_failures += 1;
        tracing::warn!(device = ssd.name(), %error, "a cached block is lost; it is read from its drive");
        if self.read_failures >= READ_FAILURES {
            self.take_out(ssd, error);
        }
    }

    fn take_out(&mut self, ssd: &DeviceRef, error: &DeviceError) {
        if !self.policy.stats().ssd_failed {
            self.policy.take_out_ssd();
            tracing::warn!(
                device = ssd.name(),
                %error,
                "the cache device failed and is not used until the next start; replace it"
            );
        }
    }
}

/// Writes one batch after the other to the SSD, until the cache is dropped or the SSD fails.
async fn move_to_ssd(shared: Arc<Shared>, ssd: DeviceRef) {
    loop {
        let batch = shared.state.lock().policy.take_batch();
        if batch.is_empty() {
            shared.batch_ready.notified().await;
            continue;
        }
        let writes = runs(batch).into_iter().map(|run| write_run(&shared, &ssd, run));
        futures::stream::iter(writes).buffer_unordered(WRITES_IN_FLIGHT).collect::<()>().await;
        if shared.state.lock().policy.stats().ssd_failed {
            return;
        }
    }
}

async fn write_run(shared: &Shared, ssd: &DeviceRef, run: Vec<Move<Kept>>) {
    let offset = run.first().map_or(0, |block| slot_offset(block.slot));
    let blocks = run.iter().map(|block| block.value.content.clone()).collect();
    let written = ssd.write(offset, blocks, Purpose::Cache).await;
    let mut state = shared.state.lock();
    for block in run {
        state.policy.write_done(block, written.is_ok());
    }
    if let Err(error) = written {
        state.take_out(ssd, &error);
    }
}

/// A batch, cut into runs of consecutive slots.
fn runs(batch: Vec<Move<Kept>>) -> Vec<Vec<Move<Kept>>> {
    let mut runs: Vec<Vec<Move<Kept>>> = Vec::new();
    for block in batch {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.slot + 1 == block.slot) => {
                run.push(block);
            }
            _ => runs.push(vec![block]),
        }
    }
    runs
}

fn slot_offset(slot: u32) -> u64 {
    u64::from(slot) * BLOCK_SIZE as u64
}
