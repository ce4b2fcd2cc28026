//! The index in memory: where each version of a logical block lies.
//!
//! As in Isotope 4.2.3 there are two structures: an array while a block has one version, and a hash
//! table for blocks that have several. An array slot takes 8 bytes, with the checksum at hand, and
//! leaves the version out. That is possible because of one invariant:
//!
//! 1. **The content in an array slot is not newer than any version held.** A write while something
//!    is held keeps the old content beside the new, in the table; the block returns to the array
//!    when its only remaining version is not newer than any hold.
//! 2. In the table a block's versions ascend. The first may be 0, which stands for "not newer than
//!    any version that was held when the block came to the table".
//! 3. The array is made of shared chunks that are copied on write, so that a checkpoint sees the
//!    state of one moment while writes go on.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::holds::Holds;
use crate::block::Version;
use crate::env::HashMap;

/// Array slots in a chunk.
pub(super) const CHUNK: usize = 8192;

const ABSENT: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;
/// Physical blocks are numbered below this.
pub(super) const MAX_PHYSICAL: u32 = SEVERAL;

/// Where content lies, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The physical block.
    pub(super) block: u32,
    /// Its content's checksum.
    pub(super) check: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    block: u32,
    check: u32,
}

const EMPTY: Slot = Slot { block: ABSENT, check: 0 };

type Chunk = [Slot; CHUNK];

/// One version of a block; `None` when it was discarded then.
pub(super) type Versioned = (Version, Option<Location>);
/// A block's versions, ascending.
pub(super) type Versions = SmallVec<[Versioned; 2]>;

/// Everything the index says of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing is stored.
    Absent,
    /// One version.
    One(Location),
    /// Several.
    Several(Versions),
}

/// The chunks at one moment.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    chunks: Vec<Option<Arc<Chunk>>>,
    several: Vec<(u32, Versions)>,
}

/// Logical blocks to physical ones.
#[derive(Debug)]
pub(super) struct Index {
    blocks: u64,
    chunks: Vec<Option<Arc<Chunk>>>,
    several: HashMap<u32, Versions>,
    /// Blocks of the table with the version at which each may be looked at again, ascending.
    aging: VecDeque<(Version, u32)>,
    /// Physical blocks that lost their last reference since the last call of `take_freed`.
    freed: Vec<u32>,
    /// Logical blocks that lost an old version since the last call of `take_settled`.
    settled: Vec<u32>,
}

impl Index {
    /// An empty index over `blocks` logical blocks.
    pub(super) fn new(blocks: u64) -> Index {
        let mut index = Index {
            blocks: 0,
            chunks: Vec::new(),
            several: HashMap::default(),
            aging: VecDeque::new(),
            freed: Vec::new(),
            settled: Vec::new(),
        };
        index.resize(blocks);
        index
    }

    /// The number of logical blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Changes the number of logical blocks. What lies beyond must have been discarded.
    pub(super) fn resize(&mut self, blocks: u64) {
        self.blocks = blocks;
        self.chunks.resize(blocks.div_ceil(CHUNK as u64) as usize, None);
    }

    /// Bytes of memory that the index takes.
    pub(super) fn memory(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().count() * size_of::<Chunk>();
        let spine = self.chunks.capacity() * size_of::<Option<Arc<Chunk>>>();
        let table = self.several.capacity() * (size_of::<(u32, Versions)>() + 1);
        let aging = self.aging.capacity() * size_of::<(Version, u32)>();
        (chunks + spine + table + aging) as u64
    }

    /// How many blocks have several versions, and how many versions these have together.
    pub(super) fn several(&self) -> (usize, usize) {
        (self.several.len(), self.several.values().map(SmallVec::len).sum())
    }

    fn slot(&self, lba: u32) -> Slot {
        match self.chunks.get(lba as usize / CHUNK) {
            Some(Some(chunk)) => chunk[lba as usize % CHUNK],
            _ => EMPTY,
        }
    }

    fn set_slot(&mut self, lba: u32, slot: Slot) {
        let Some(chunk) = self.chunks.get_mut(lba as usize / CHUNK) else { return };
        match chunk {
            None if slot == EMPTY => {}
            _ => {
                let chunk = chunk.get_or_insert_with(|| Arc::new([EMPTY; CHUNK]));
                Arc::make_mut(chunk)[lba as usize % CHUNK] = slot;
            }
        }
    }

    /// The newest content with a version not above `at`.
    pub(super) fn get(&self, lba: u32, at: Version) -> Option<Location> {
        let slot = self.slot(lba);
        match slot.block {
            ABSENT => None,
            SEVERAL => {
                let versions = self.several.get(&lba)?;
                versions.iter().rev().find(|(version, _)| *version <= at)?.1
            }
            block => Some(Location { block, check: slot.check }),
        }
    }

    /// Everything about one block.
    pub(super) fn content(&self, lba: u32) -> Content {
        let slot = self.slot(lba);
        match slot.block {
            ABSENT => Content::Absent,
            SEVERAL => match self.several.get(&lba) {
                Some(versions) => Content::Several(versions.clone()),
                None => Content::Absent,
            },
            block => Content::One(Location { block, check: slot.check }),
        }
    }

    /// Puts a block into the state `content`, as a checkpoint says. Nothing is freed.
    pub(super) fn load(&mut self, lba: u32, content: Content) {
        if self.slot(lba).block == SEVERAL {
            self.several.remove(&lba);
        }
        match content {
            Content::Absent => self.set_slot(lba, EMPTY),
            Content::One(at) => self.set_slot(lba, Slot { block: at.block, check: at.check }),
            Content::Several(versions) => {
                self.set_slot(lba, Slot { block: SEVERAL, check: 0 });
                let newest = versions.last().map_or(Version(0), |(version, _)| *version);
                self.aging.push_back((newest, lba));
                self.several.insert(lba, versions);
            }
        }
    }

    /// Gives a block new content as of `version`, which is newer than all before. Old content
    /// stays as long as `holds` need it.
    pub(super) fn put(&mut self, lba: u32, version: Version, new: Option<Location>, holds: &Holds) {
        let slot = self.slot(lba);
        if slot.block == SEVERAL
            && let Some(versions) = self.several.get_mut(&lba)
        {
            versions.push((version, new));
            self.settle(lba, holds);
            return;
        }
        let old = (slot.block != ABSENT && slot.block != SEVERAL)
            .then_some(Location { block: slot.block, check: slot.check });
        if !holds.need(Version(0), version) || (old.is_none() && new.is_none()) {
            self.freed.extend(old.map(|at| at.block));
            let slot = new.map_or(EMPTY, |at| Slot { block: at.block, check: at.check });
            self.set_slot(lba, slot);
            return;
        }
        let mut versions = Versions::new();
        if old.is_some() {
            versions.push((Version(0), old));
        }
        versions.push((version, new));
        self.several.insert(lba, versions);
        self.set_slot(lba, Slot { block: SEVERAL, check: 0 });
        self.aging.push_back((version, lba));
    }

    /// Whether a run of blocks lies in a chunk that was never written: a quick way to skip it.
    pub(super) fn empty_until(&self, lba: u32) -> Option<u32> {
        let chunk = lba as usize / CHUNK;
        match self.chunks.get(chunk) {
            Some(None) => Some(((chunk + 1) * CHUNK).min(self.blocks as usize) as u32),
            _ => None,
        }
    }

    /// Drops the versions of a block in the table that nobody needs, and returns it to the array
    /// when one is left that no hold is older than.
    fn settle(&mut self, lba: u32, holds: &Holds) {
        let Some(versions) = self.several.get_mut(&lba) else { return };
        let mut kept = Versions::new();
        for (at, &(version, location)) in versions.iter().enumerate() {
            let needed = match versions.get(at + 1) {
                Some((next, _)) => holds.need(version, *next),
                None => true,
            };
            match needed {
                true => kept.push((version, location)),
                false => self.freed.extend(location.map(|at| at.block)),
            }
        }
        if kept.len() < versions.len() {
            self.settled.push(lba);
        }
        // A discard at the start says no more than absence does.
        while matches!(kept.first(), Some((_, None))) && kept.len() > 1 {
            kept.remove(0);
        }
        let old_enough = |version: Version| holds.oldest().is_none_or(|oldest| version <= oldest);
        match kept[..] {
            [(_, None)] => {
                self.several.remove(&lba);
                self.set_slot(lba, EMPTY);
            }
            [(version, Some(at))] if old_enough(version) => {
                self.several.remove(&lba);
                self.set_slot(lba, Slot { block: at.block, check: at.check });
            }
            _ => *versions = kept,
        }
    }

    /// Looks again at the blocks whose old versions a released hold may have kept: at most `most`
    /// of them. Returns whether there may be more.
    pub(super) fn age(&mut self, holds: &Holds, most: usize) -> bool {
        for _ in 0..most {
            match self.aging.front() {
                Some((version, _)) if holds.oldest().is_none_or(|oldest| *version <= oldest) => {}
                _ => return false,
            }
            let Some((_, lba)) = self.aging.pop_front() else { return false };
            self.settle(lba, holds);
            if let Some(versions) = self.several.get(&lba) {
                let newest = versions.last().map_or(Version(0), |(version, _)| *version);
                let at = self.aging.partition_point(|(version, _)| *version <= newest);
                self.aging.insert(at, (newest, lba));
            }
        }
        true
    }

    /// Looks again at every block of the table: what the release of a hold that is not the oldest
    /// needs.
    pub(super) fn settle_all(&mut self, holds: &Holds) {
        let mut blocks: Vec<u32> = self.several.keys().copied().collect();
        blocks.sort_unstable();
        for lba in blocks {
            self.settle(lba, holds);
        }
        let several = &self.several;
        self.aging.retain(|(_, lba)| several.contains_key(lba));
    }

    /// Takes back the versions above `from` and up to `to`.
    pub(super) fn take_back(&mut self, from: Version, to: Version, holds: &Holds) -> Vec<u32> {
        let void = |version: Version| version > from && version <= to;
        let mut blocks: Vec<u32> = self
            .several
            .iter()
            .filter(|(_, versions)| versions.iter().any(|(version, _)| void(*version)))
            .map(|(lba, _)| *lba)
            .collect();
        blocks.sort_unstable();
        for lba in &blocks {
            let Some(versions) = self.several.get_mut(lba) else { continue };
            let freed = &mut self.freed;
            versions.retain(|(version, location)| {
                let keep = !void(*version);
                if !keep {
                    freed.extend(location.map(|at| at.block));
                }
                keep
            });
            if versions.is_empty() {
                versions.push((Version(0), None));
            }
            self.settle(*lba, holds);
        }
        blocks
    }

    /// Whether some version of `lba` lies in the physical block.
    pub(super) fn refers(&self, lba: u32, block: u32) -> bool {
        let slot = self.slot(lba);
        match slot.block {
            SEVERAL => self.several.get(&lba).is_some_and(|versions| {
                versions.iter().any(|(_, at)| at.is_some_and(|at| at.block == block))
            }),
            other => other == block,
        }
    }

    /// The version of `lba` that lies in the physical block, where the table knows it.
    pub(super) fn version_of(&self, lba: u32, block: u32) -> Option<Version> {
        let versions = self.several.get(&lba)?;
        let found = versions.iter().find(|(_, at)| at.is_some_and(|at| at.block == block));
        found.map(|(version, _)| *version)
    }

    /// Points the version of `lba` that lies in `from` to `to`; false when none lies there.
    pub(super) fn relocate(&mut self, lba: u32, from: u32, to: u32) -> bool {
        let slot = self.slot(lba);
        if slot.block == from {
            self.set_slot(lba, Slot { block: to, check: slot.check });
            self.freed.push(from);
            return true;
        }
        if slot.block != SEVERAL {
            return false;
        }
        let Some(versions) = self.several.get_mut(&lba) else { return false };
        for (_, location) in versions.iter_mut() {
            if let Some(at) = location.as_mut().filter(|at| at.block == from) {
                at.block = to;
                self.freed.push(from);
                return true;
            }
        }
        false
    }

    /// Points the version of `lba` that content of `version` belongs to at `to`, for a log that is
    /// replayed; false when the block has no such version any more. `newest` is its newest version
    /// as far as the replay knows.
    pub(super) fn relocate_version(
        &mut self,
        lba: u32,
        version: Version,
        newest: Option<Version>,
        to: Location,
    ) -> bool {
        let from = match self.content(lba) {
            Content::Absent => None,
            Content::One(at) => newest.is_none_or(|newest| newest <= version).then_some(at.block),
            Content::Several(versions) => versions
                .iter()
                .rev()
                .find(|(held, _)| *held <= version)
                .filter(|(held, _)| *held == version || *held == Version(0))
                .and_then(|(_, at)| at.map(|at| at.block)),
        };
        from.is_some_and(|from| self.relocate(lba, from, to.block))
    }

    /// The physical blocks that lost their last reference since the last call.
    pub(super) fn take_freed(&mut self) -> std::vec::Drain<'_, u32> {
        self.freed.drain(..)
    }

    /// The logical blocks that lost an old version since the last call.
    pub(super) fn take_settled(&mut self) -> std::vec::Drain<'_, u32> {
        self.settled.drain(..)
    }

    /// Calls `visit` with each logical block and each place that it refers to.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u32, Location)) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            for (at, slot) in chunk.iter().enumerate() {
                if slot.block < MAX_PHYSICAL {
                    let lba = (number * CHUNK + at) as u32;
                    visit(lba, Location { block: slot.block, check: slot.check });
                }
            }
        }
        for (lba, versions) in &self.several {
            versions.iter().filter_map(|(_, at)| *at).for_each(|at| visit(*lba, at));
        }
    }

    /// The index at this moment.
    pub(super) fn freeze(&self) -> Frozen {
        let mut several: Vec<_> =
            self.several.iter().map(|(lba, versions)| (*lba, versions.clone())).collect();
        several.sort_unstable_by_key(|(lba, _)| *lba);
        Frozen { chunks: self.chunks.clone(), several }
    }
}

impl Frozen {
    /// Every block that is stored, ascending within the array and then within the table.
    pub(super) fn contents(&self) -> impl Iterator<Item = (u32, Content)> + '_ {
        let single = self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            chunk.iter().flat_map(move |chunk| {
                chunk.iter().enumerate().filter(|(_, slot)| slot.block < MAX_PHYSICAL).map(
                    move |(at, slot)| {
                        let at_lba = (number * CHUNK + at) as u32;
                        (at_lba, Content::One(Location { block: slot.block, check: slot.check }))
                    },
                )
            })
        });
        let several =
            self.several.iter().map(|(lba, versions)| (*lba, Content::Several(versions.clone())));
        single.chain(several)
    }
}
