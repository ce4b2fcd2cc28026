//! Admission and eviction of both tiers, without I/O and without locks.
//!
//! The states of a block: *resident* in RAM, *waiting* for a batch to fill, *writing*, on the SSD. It can be
//! read in every state, and a key is in one state at a time. A key that is removed before its batch is taken
//! costs the SSD nothing: this is how overwrites are coalesced.

use super::ghosts::Ghosts;
use super::index::{Index, List, MAX_ENTRIES};
use super::slots::{SlotRef, Slots};
use super::trials::{Refill, Strategy, Trials};

/// Maximum blocks in a batch for the SSD: 1 MiB.
const MAX_BATCH: u32 = 256;
/// Maximum blocks waiting or writing, as a multiple of the batch, before further ones are dropped.
const BATCHES_UNDER_WAY: usize = 4;

/// Which blocks enter a cache after they were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Admission {
    /// As many as serve the reads best: for the tail, where every block enters by being written. See `trials`.
    #[default]
    Adaptive,
    /// All: for a read cache.
    Always,
}

/// How many blocks RAM may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamSizes {
    /// At first, and at least.
    pub least: usize,
    /// At most: tables are made for so many.
    pub most: usize,
}

impl RamSizes {
    /// A size that does not change.
    pub fn fixed(blocks: usize) -> RamSizes {
        RamSizes { least: blocks, most: blocks }
    }
}

/// The tier of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// In RAM.
    Ram,
    /// On the SSD.
    Ssd,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<V> {
    /// In RAM, with its value.
    Ram(V),
    /// On the SSD. Read it there, then tell [`Policy::read_done`].
    Ssd(SlotRef),
    /// Nowhere.
    Miss,
}

/// What a cache has done so far, and its present size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheStats {
    /// Reads served from RAM.
    pub ram_hits: u64,
    /// Reads served from the SSD.
    pub ssd_hits: u64,
    /// Reads served by neither.
    pub misses: u64,
    /// Blocks written to the SSD.
    pub ssd_block_writes: u64,
    /// Blocks that were overwritten or removed while in RAM, and so never written to the SSD.
    pub coalesced: u64,
    /// Blocks that left RAM to make room.
    pub ram_evictions: u64,
    /// Evicted blocks that were dropped because the SSD had fallen behind.
    pub dropped: u64,
    /// Reads of the SSD that failed.
    pub ssd_read_errors: u64,
    /// Blocks in RAM now, with those that wait for the SSD or are written to it.
    pub ram_blocks: u64,
    /// Blocks that RAM may hold now.
    pub ram_limit_blocks: u64,
    /// Blocks on the SSD now.
    pub ssd_blocks: u64,
    /// Whether the SSD failed and was taken out.
    pub ssd_failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Resident,
    Waiting,
    Writing,
    /// Removed while being written: the frame and the slot are free when the write has ended.
    Cancelled,
}

/// One block of a batch for the SSD.
#[derive(Debug)]
pub struct Move<V> {
    /// The block.
    pub key: u64,
    /// Its slot on the SSD.
    pub slot: u32,
    /// Its value.
    pub value: V,
    frame: u32,
}

/// The policy of both tiers, over keys and a value for each key in RAM.
#[derive(Debug)]
pub struct Policy<V> {
    /// `None` for a read cache.
    trials: Option<Trials>,
    sizes: RamSizes,
    /// Blocks that RAM may hold now.
    ram_blocks: usize,
    batch: usize,
    /// The number of blocks put, filled and looked up so far: the time. It may wrap.
    now: u32,
    frames: Index,
    stages: Vec<Stage>,
    /// When the block of each frame was used last.
    used: Vec<u32>,
    values: Vec<Option<V>>,
    resident: List,
    waiting: List,
    writing: usize,
    ssd: Slots,
    ghosts: Ghosts,
    stats: CacheStats,
}

impl<V: Clone> Policy<V> {
    /// A policy for blocks in RAM and `ssd_slots` on the SSD; either may be zero. Beyond those in RAM, up to four
    /// batches of at most 256 blocks may be waiting or writing.
    pub fn new(ram: RamSizes, ssd_slots: u32, admission: Admission) -> Policy<V> {
        let batch = (ssd_slots / 8).clamp(1, MAX_BATCH) as usize;
        let under_way = if ssd_slots > 0 { batch * BATCHES_UNDER_WAY } else { 0 };
        let bound = |blocks: usize| blocks.min(MAX_ENTRIES as usize - under_way - 1);
        let sizes = RamSizes { least: bound(ram.least), most: bound(ram.most.max(ram.least)) };
        let trials = || Trials::new(sizes.least + ssd_slots as usize);
        Policy {
            trials: (admission == Admission::Adaptive).then(trials),
            sizes,
            ram_blocks: sizes.least,
            batch,
            now: 0,
            frames: Index::new(sizes.least + under_way + 1, sizes.most + under_way + 1),
            stages: Vec::new(),
            used: Vec::new(),
            values: Vec::new(),
            resident: List::default(),
            waiting: List::default(),
            writing: 0,
            ssd: Slots::new(ssd_slots),
            ghosts: Ghosts::new(sizes.most + ssd_slots as usize),
            stats: CacheStats::default(),
        }
    }

    /// A block was written: it is now the youngest in RAM, and an older one under its key is gone.
    pub fn put(&mut self, key: u64, value: V) {
        self.remove(key);
        self.insert(key, value);
        if let Some(trials) = &mut self.trials {
            trials.put(key, self.now);
        }
    }

    /// A block was read from its drive after a miss. If the strategy admits it, it enters RAM as the youngest; also
    /// while RAM has grown and is not full, because then it displaces nothing. Does nothing when the key is here
    /// already.
    pub fn fill(&mut self, key: u64, value: V) {
        if self.locate(key).is_some() {
            return;
        }
        let has_grown = self.ram_blocks > self.sizes.least;
        let displaces_none = has_grown && self.resident.len() < self.ram_blocks;
        let was_missed_before = self.ghosts.meet(key);
        let is_admitted = match self.strategy().refill {
            Refill::Never => false,
            Refill::SecondMiss => was_missed_before,
            Refill::FirstMiss => true,
        };
        if is_admitted || displaces_none {
            self.insert(key, value);
        }
    }

    fn strategy(&self) -> Strategy {
        self.trials.as_ref().map_or(Strategy::OF_READ_CACHE, Trials::best)
    }

    /// Changes the blocks that RAM may hold, within its two sizes. Blocks that are too many stay until
    /// [`Policy::shrink`].
    pub fn resize(&mut self, ram_blocks: usize) {
        self.ram_blocks = ram_blocks.clamp(self.sizes.least, self.sizes.most);
    }

    /// Moves up to `count` blocks that are too many out of RAM; returns whether any were.
    pub fn shrink(&mut self, count: usize) -> bool {
        let too_many = self.resident.len().saturating_sub(self.ram_blocks);
        for _ in 0..too_many.min(count) {
            if let Some(oldest) = self.resident.pop_oldest(&mut self.frames) {
                self.evict(oldest);
            }
        }
        too_many > 0
    }

    /// Looks a block up to read it.
    pub fn get(&mut self, key: u64) -> Found<V> {
        if let Some(value) = self.get_ram(key, |_| true) {
            return Found::Ram(value);
        }
        self.count_read(key);
        match self.ssd.touch(key, self.now) {
            Some(at) => Found::Ssd(at),
            None => {
                self.stats.misses += 1;
                Found::Miss
            }
        }
    }

    /// The value in RAM for which `is_right` holds; a miss is not counted, and left to [`Policy::get`].
    pub fn get_ram(&mut self, key: u64, is_right: impl Fn(&V) -> bool) -> Option<V> {
        let frame = self.frames.find(key)?;
        let value = self.values[frame as usize].as_ref().filter(|value| is_right(value))?.clone();
        self.count_read(key);
        self.used[frame as usize] = self.now;
        if self.stages[frame as usize] == Stage::Resident {
            self.resident.make_youngest(&mut self.frames, frame);
        }
        self.stats.ram_hits += 1;
        Some(value)
    }

    fn count_read(&mut self, key: u64) {
        self.now = self.now.wrapping_add(1);
        if let Some(trials) = &mut self.trials {
            trials.get(key, self.now);
        }
    }

    /// Ends a read of the SSD. Returns whether it returned the key's block: false when it failed, which drops
    /// the key, and when the slot was reused in the meantime.
    pub fn read_done(&mut self, key: u64, at: SlotRef, succeeded: bool) -> bool {
        let current = self.ssd.is_current(key, at);
        if !succeeded {
            self.stats.ssd_read_errors += 1;
            if current {
                self.ssd.remove(key);
            }
        }
        let hit = current && succeeded;
        *(if hit { &mut self.stats.ssd_hits } else { &mut self.stats.misses }) += 1;
        hit
    }

    /// The tier of a block; not counted as a use.
    pub fn locate(&self, key: u64) -> Option<Tier> {
        if self.frames.find(key).is_some() {
            return Some(Tier::Ram);
        }
        self.ssd.contains(key).then_some(Tier::Ssd)
    }

    /// Drops a block; returns its tier.
    pub fn remove(&mut self, key: u64) -> Option<Tier> {
        if let Some(trials) = &mut self.trials {
            trials.remove(key);
        }
        let Some(frame) = self.frames.find(key) else {
            return self.ssd.remove(key).then_some(Tier::Ssd);
        };
        match self.stages[frame as usize] {
            Stage::Resident => self.resident.remove(&mut self.frames, frame),
            Stage::Waiting => self.waiting.remove(&mut self.frames, frame),
            _ => {
                self.frames.unbind(frame);
                self.stages[frame as usize] = Stage::Cancelled;
                self.values[frame as usize] = None;
                return Some(Tier::Ram);
            }
        }
        self.stats.coalesced += 1;
        self.free(frame);
        Some(Tier::Ram)
    }

    /// Whether enough blocks are waiting for a batch.
    pub fn has_batch(&self) -> bool {
        self.waiting.len() >= self.batch
    }

    /// The next batch for the SSD, in the order of its slots; empty when not enough blocks are waiting. The
    /// caller must return each block through [`Policy::write_done`].
    pub fn take_batch(&mut self) -> Vec<Move<V>> {
        if !self.has_batch() {
            return Vec::new();
        }
        let Strategy { favour, .. } = self.strategy();
        let take = |_| self.ssd.take(self.now, favour);
        let mut slots: Vec<u32> = (0..self.batch).map_while(take).collect();
        // The oldest block goes to the lowest slot: blocks written in a run are later evicted, and so written
        // again, in a run.
        slots.sort_unstable();
        slots.into_iter().filter_map(|slot| self.start_move(slot)).collect()
    }

    fn start_move(&mut self, slot: u32) -> Option<Move<V>> {
        let frame = self.waiting.pop_oldest(&mut self.frames)?;
        let value = self.values[frame as usize].clone()?;
        self.stages[frame as usize] = Stage::Writing;
        self.writing += 1;
        Some(Move { key: self.frames.key(frame), slot, value, frame })
    }

    /// Ends a block's write to the SSD; if it succeeded, and the block was not removed in the meantime, the
    /// block is on the SSD now, and else dropped.
    pub fn write_done(&mut self, block: Move<V>, succeeded: bool) {
        self.writing -= 1;
        self.stats.ssd_block_writes += u64::from(succeeded);
        let alive = self.stages[block.frame as usize] == Stage::Writing;
        let used = self.used[block.frame as usize];
        if alive {
            self.free(block.frame);
        } else {
            self.recycle(block.frame);
        }
        // No slot is left once the SSD was taken out.
        if block.slot < self.ssd.extent() {
            if alive && succeeded {
                self.ssd.insert(block.slot, block.key, used);
            } else {
                self.ssd.release(block.slot);
            }
        }
    }

    /// Takes the SSD out: its blocks and those waiting for it are dropped, RAM goes on alone.
    pub fn take_out_ssd(&mut self) {
        self.ssd = Slots::new(0);
        self.trials = self.trials.take().map(|_| Trials::new(self.sizes.least));
        self.stats.ssd_failed = true;
        while let Some(frame) = self.waiting.pop_oldest(&mut self.frames) {
            self.free(frame);
        }
    }

    /// What the cache has done so far, and its present size.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            ram_blocks: self.frames.bound() as u64,
            ram_limit_blocks: self.ram_blocks as u64,
            ssd_blocks: self.ssd.len() as u64,
            ..self.stats
        }
    }

    /// Drops the keys that `doomed` picks among the RAM frames `from..from + count`; returns whether there
    /// are frames beyond.
    pub(super) fn sweep_ram(
        &mut self,
        from: u32,
        count: u32,
        doomed: impl Fn(u64) -> bool,
    ) -> bool {
        let end = from.saturating_add(count).min(self.frames.extent());
        for frame in from..end {
            let bound = !matches!(self.stages[frame as usize], Stage::Free | Stage::Cancelled);
            if bound && doomed(self.frames.key(frame)) {
                self.remove(self.frames.key(frame));
            }
        }
        end < self.frames.extent()
    }

    /// The same for the SSD's slots.
    pub(super) fn sweep_ssd(
        &mut self,
        from: u32,
        count: u32,
        doomed: impl Fn(u64) -> bool,
    ) -> bool {
        let end = from.saturating_add(count).min(self.ssd.extent());
        for slot in from..end {
            if let Some(key) = self.ssd.key(slot).filter(|key| doomed(*key)) {
                self.ssd.remove(key);
            }
        }
        end < self.ssd.extent()
    }

    fn insert(&mut self, key: u64, value: V) {
        let frame = self.frames.reuse().unwrap_or_else(|| {
            self.stages.push(Stage::Free);
            self.used.push(0);
            self.values.push(None);
            self.frames.extend()
        });
        self.now = self.now.wrapping_add(1);
        self.stages[frame as usize] = Stage::Resident;
        self.used[frame as usize] = self.now;
        self.values[frame as usize] = Some(value);
        self.frames.bind(frame, key);
        self.resident.push_youngest(&mut self.frames, frame);
        if self.resident.len() > self.ram_blocks
            && let Some(oldest) = self.resident.pop_oldest(&mut self.frames)
        {
            self.evict(oldest);
        }
    }

    fn evict(&mut self, frame: u32) {
        self.stats.ram_evictions += 1;
        let has_ssd = self.ssd.capacity() > 0;
        let under_way = self.waiting.len() + self.writing;
        if has_ssd && under_way < self.batch * BATCHES_UNDER_WAY {
            self.stages[frame as usize] = Stage::Waiting;
            self.waiting.push_youngest(&mut self.frames, frame);
        } else {
            self.stats.dropped += u64::from(has_ssd);
            self.free(frame);
        }
    }

    fn free(&mut self, frame: u32) {
        self.frames.unbind(frame);
        self.recycle(frame);
    }

    fn recycle(&mut self, frame: u32) {
        self.stages[frame as usize] = Stage::Free;
        self.values[frame as usize] = None;
        self.frames.release(frame);
    }
}
