//! The index in memory: where each version of a logical block lies.
//!
//! As in Isotope 4.2.3 there are two structures: an array while a block has one version, and a hash
//! table for blocks that have several. An array slot takes 8 bytes, with the checksum at hand, and
//! leaves the version out. That is possible because of one invariant:
//!
//! 1. **The content in an array slot is not newer than any held version.** A write while a version is held
//!    keeps the old content beside the new, in the table; the block returns to the array when its only
//!    remaining version is not newer than any hold.
//! 2. In the table a block's versions ascend. The first may be 0, which stands for "not newer than any
//!    version that was held when the block came to the table".
//! 3. A discarded block is a *hole*: it refers to the physical block of the map entry of its discard, its
//!    *record*, which counts as live as long as any hole refers to it. So a reader of the whole map finds a
//!    record for every absent block of which the map may still show older content.
//! 4. The array is made of shared chunks that are copied on write, so that a checkpoint captures one state of
//!    it while writes go on.

mod aging;
mod places;
mod versions;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use thalweg_env::HashMap;

use crate::block::{Holds, Version};

pub(super) use places::Places;
pub(super) use versions::Versions;

/// Array slots in a chunk.
pub(super) const CHUNK: usize = 8192;

const ABSENT: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;
/// The checksum field holds the record's physical block.
const HOLE: u32 = u32::MAX - 2;
/// Physical blocks are numbered below this.
pub(super) const MAX_PHYSICAL: u32 = 0xf000_0000;
/// Block numbers from here to [`LAST_SLOT`] are those of slots of the mini-logs.
pub(super) const FIRST_SLOT: u32 = MAX_PHYSICAL;
/// Block numbers of slots are below this.
pub(super) const LAST_SLOT: u32 = HOLE;

/// Whether a block's number is that of a slot.
pub(super) fn is_slot(block: u32) -> bool {
    (FIRST_SLOT..LAST_SLOT).contains(&block)
}

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

impl Slot {
    fn of(place: Place) -> Slot {
        match place {
            Place::At(at) => Slot { block: at.block, check: at.check },
            Place::Hole(record) => Slot { block: HOLE, check: record },
        }
    }
}

type Chunk = [Slot; CHUNK];

/// The value of one version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Content.
    At(Location),
    /// A hole: the physical block of its record.
    Hole(u32),
}

impl Place {
    /// Where content lies; `None` for a hole.
    pub(super) fn location(self) -> Option<Location> {
        match self {
            Place::At(at) => Some(at),
            Place::Hole(_) => None,
        }
    }

    /// The physical block of the content or the record.
    pub(super) fn block(self) -> u32 {
        match self {
            Place::At(at) => at.block,
            Place::Hole(record) => record,
        }
    }

    fn is_hole(self) -> bool {
        matches!(self, Place::Hole(_))
    }
}

/// One version of a block.
pub(super) type Versioned = (Version, Place);

/// The index entry of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing was ever stored.
    Absent,
    /// It was discarded: the record's physical block.
    Hole(u32),
    /// One version.
    One(Location),
    /// Several.
    Several(Versions),
}

/// An immutable copy of the index.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    chunks: Vec<Option<Arc<Chunk>>>,
    several: Vec<(u32, Versions)>,
    records: HashMap<u32, Record>,
}

/// A discard to which holes refer.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// The discard's version.
    version: Version,
    /// Versions of blocks that are holes because of it.
    refs: u32,
}

/// Logical blocks to physical ones.
#[derive(Debug)]
pub(super) struct Index {
    blocks: u64,
    chunks: Vec<Option<Arc<Chunk>>>,
    several: HashMap<u32, Versions>,
    /// Blocks of the table with the version at which each may be looked at again, the lowest first.
    aging: BinaryHeap<Reverse<(Version, u32)>>,
    /// Blocks of which old content was kept while all versions from some version on were held, with the version that
    /// replaced it; ascending.
    lapsing: VecDeque<(Version, u32)>,
    /// Discards that holes refer to, by the physical blocks of their entries.
    records: HashMap<u32, Record>,
    /// Records that got their first reference since the last call of `take_gained`.
    gained: Vec<u32>,
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
            aging: BinaryHeap::new(),
            lapsing: VecDeque::new(),
            records: HashMap::default(),
            gained: Vec::new(),
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

    /// Changes the number of logical blocks. Blocks beyond the new end must have been discarded.
    pub(super) fn resize(&mut self, blocks: u64) {
        let mut lba = blocks;
        while lba < self.blocks {
            if let Some(next) = self.empty_until(lba as u32) {
                lba = u64::from(next);
                continue;
            }
            if let Content::Hole(record) = self.content(lba as u32) {
                self.set_slot(lba as u32, EMPTY);
                self.release(Place::Hole(record));
            }
            lba += 1;
        }
        self.blocks = blocks;
        self.chunks.resize(blocks.div_ceil(CHUNK as u64) as usize, None);
    }

    /// Bytes of memory that the index takes.
    pub(super) fn memory(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().count() * size_of::<Chunk>();
        let spine = self.chunks.capacity() * size_of::<Option<Arc<Chunk>>>();
        let table = self.several.capacity() * (size_of::<(u32, Versions)>() + 1);
        let aging = (self.aging.capacity() + self.lapsing.capacity()) * size_of::<(Version, u32)>();
        let records = self.records.capacity() * (size_of::<(u32, Record)>() + 1);
        (chunks + spine + table + aging + records) as u64
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
            ABSENT | HOLE => None,
            SEVERAL => {
                let versions = self.several.get(&lba)?;
                let after = versions.partition_point(|(version, _)| *version <= at);
                versions.get(after.checked_sub(1)?)?.1.location()
            }
            block => Some(Location { block, check: slot.check }),
        }
    }

    /// The entry of one block.
    pub(super) fn content(&self, lba: u32) -> Content {
        let slot = self.slot(lba);
        match slot.block {
            ABSENT => Content::Absent,
            HOLE => Content::Hole(slot.check),
            SEVERAL => match self.several.get(&lba) {
                Some(versions) => Content::Several(versions.clone()),
                None => Content::Absent,
            },
            block => Content::One(Location { block, check: slot.check }),
        }
    }

    /// Puts a block into the state `content` of a checkpoint. Frees nothing and does not count references:
    /// see [`Index::recount`].
    pub(super) fn load(&mut self, lba: u32, content: Content) {
        if u64::from(lba) >= self.blocks {
            return;
        }
        if self.slot(lba).block == SEVERAL {
            self.several.remove(&lba);
        }
        match content {
            Content::Absent => self.set_slot(lba, EMPTY),
            Content::Hole(record) => self.set_slot(lba, Slot { block: HOLE, check: record }),
            Content::One(at) => self.set_slot(lba, Slot { block: at.block, check: at.check }),
            Content::Several(versions) => {
                self.set_slot(lba, Slot { block: SEVERAL, check: 0 });
                let newest = versions.last().map_or(Version(0), |(version, _)| *version);
                self.aging.push(Reverse((newest, lba)));
                self.several.insert(lba, versions);
            }
        }
    }

    /// Adds the record of a discard of `version` whose entry is in the physical block `record`.
    pub(super) fn add_record(&mut self, record: u32, version: Version) {
        self.records.entry(record).or_insert(Record { version, refs: 0 }).version = version;
    }

    /// Counts the references to records, after a checkpoint was loaded.
    pub(super) fn recount(&mut self) {
        let mut refs: HashMap<u32, u32> = HashMap::default();
        let slots = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter());
        let holes = slots.filter(|slot| slot.block == HOLE).map(|slot| slot.check);
        let several = self.several.values().flat_map(|them| them.iter());
        let table = several.filter_map(|(_, place)| match place {
            Place::Hole(record) => Some(*record),
            Place::At(_) => None,
        });
        holes.chain(table).for_each(|record| *refs.entry(record).or_default() += 1);
        self.records.retain(|record, _| refs.contains_key(record));
        for (record, refs) in refs {
            let version = Version(0);
            self.records.entry(record).or_insert(Record { version, refs: 0 }).refs = refs;
        }
        self.gained.clear();
    }

    /// For each of `versions`, in ascending order: how many blocks only it sees, which would be free without
    /// it. The newest content of a block is never among them.
    pub(super) fn only_seen_by(&self, versions: &[Version]) -> Vec<u64> {
        let mut counts = vec![0; versions.len()];
        for contents in self.several.values() {
            for pair in contents.windows(2) {
                let ((version, place), (next, _)) = (pair[0], pair[1]);
                let first = versions.partition_point(|seen| *seen < version);
                let end = versions.partition_point(|seen| *seen < next);
                if end == first + 1 && matches!(place, Place::At(_)) {
                    counts[first] += 1;
                }
            }
        }
        counts
    }

    /// The version of a record to which holes refer.
    pub(super) fn record(&self, block: u32) -> Option<Version> {
        self.records.get(&block).map(|record| record.version)
    }

    /// The records to which holes refer.
    pub(super) fn records(&self) -> impl Iterator<Item = u32> + '_ {
        self.records.keys().copied()
    }

    fn take_ref(&mut self, place: Place, version: Version) {
        let Place::Hole(block) = place else { return };
        let record = self.records.entry(block).or_insert(Record { version, refs: 0 });
        record.refs += 1;
        if record.refs == 1 {
            self.gained.push(block);
        }
    }

    /// Drops a reference.
    fn release(&mut self, place: Place) {
        match place {
            Place::At(at) => self.freed.push(at.block),
            Place::Hole(block) => {
                let Some(record) = self.records.get_mut(&block) else { return };
                record.refs -= 1;
                if record.refs == 0 {
                    self.records.remove(&block);
                    self.freed.push(block);
                }
            }
        }
    }

    /// Gives a block new content as of `version`, which is newer than all before, or makes it a hole. Old
    /// content stays as long as `holds` need it; a hole that is discarded again keeps its record.
    pub(super) fn put(&mut self, lba: u32, version: Version, new: Place, holds: &Holds) {
        let slot = self.slot(lba);
        if slot.block == SEVERAL
            && let Some(versions) = self.several.get_mut(&lba)
        {
            let still_hole = versions.last().is_some_and(|(_, last)| last.is_hole());
            if !(new.is_hole() && still_hole) {
                versions.push((version, new));
                self.take_ref(new, version);
                self.lapse_later(lba, version, holds);
            }
            self.settle_replaced(lba, holds);
            return;
        }
        let old = match slot.block {
            ABSENT | SEVERAL => None,
            HOLE => Some(Place::Hole(slot.check)),
            block => Some(Place::At(Location { block, check: slot.check })),
        };
        if new.is_hole() && old.is_none_or(Place::is_hole) {
            return;
        }
        self.take_ref(new, version);
        if !holds.need(Version(0), version) {
            self.set_slot(lba, Slot::of(new));
            if let Some(old) = old {
                self.release(old);
            }
            return;
        }
        let mut versions = Versions::new();
        versions.extend(old.map(|old| (Version(0), old)));
        versions.push((version, new));
        self.several.insert(lba, versions);
        self.set_slot(lba, Slot { block: SEVERAL, check: 0 });
        self.aging.push(Reverse((version, lba)));
        self.lapse_later(lba, version, holds);
    }

    /// The end of the chunk of `lba`, if that chunk was never written: a quick way to skip it.
    pub(super) fn empty_until(&self, lba: u32) -> Option<u32> {
        let chunk = lba as usize / CHUNK;
        match self.chunks.get(chunk) {
            Some(None) => Some(((chunk + 1) * CHUNK).min(self.blocks as usize) as u32),
            _ => None,
        }
    }

    /// Drops the versions of a block in the table that no hold needs, and returns it to the array when one is
    /// left and no hold is older than that.
    fn settle(&mut self, lba: u32, holds: &Holds) {
        let Some(versions) = self.several.get_mut(&lba) else { return };
        let mut kept = Versions::new();
        let mut dropped = Versions::new();
        for (at, &versioned) in versions.iter().enumerate() {
            let needed = match versions.get(at + 1) {
                Some((next, _)) => holds.need(versioned.0, *next),
                None => true,
            };
            match needed {
                true => kept.push(versioned),
                false => dropped.push(versioned),
            }
        }
        if !dropped.is_empty() {
            self.settled.push(lba);
        }
        let old_enough = |version: Version| holds.oldest().is_none_or(|oldest| version <= oldest);
        match kept[..] {
            // Before a hold or after it, readers see nothing there.
            [(_, place @ Place::Hole(_))] => {
                self.several.remove(&lba);
                self.set_slot(lba, Slot::of(place));
            }
            [(version, place)] if old_enough(version) => {
                self.several.remove(&lba);
                self.set_slot(lba, Slot::of(place));
            }
            _ => *versions = kept,
        }
        dropped.iter().for_each(|(_, place)| self.release(*place));
    }

    /// Takes back the versions above `from`, which is held, and up to `to`.
    pub(super) fn take_back(&mut self, from: Version, to: Version, holds: &Holds) -> Vec<u32> {
        let void = |version: Version| version > from && version <= to;
        let records = self.records.iter().filter(|(_, record)| void(record.version));
        let records: BTreeSet<u32> = records.map(|(block, _)| *block).collect();
        let gone = |(version, place): &Versioned| {
            void(*version) || (place.is_hole() && records.contains(&place.block()))
        };
        let table = self.several.iter().filter(|(_, versions)| versions.iter().any(gone));
        let mut blocks: Vec<u32> = table.map(|(lba, _)| *lba).collect();
        blocks.sort_unstable();
        for lba in &blocks {
            let Some(versions) = self.several.get_mut(lba) else { continue };
            let (dropped, kept): (Versions, Versions) = versions.iter().copied().partition(gone);
            *versions = kept;
            if versions.is_empty() {
                self.several.remove(lba);
                self.set_slot(*lba, EMPTY);
            }
            dropped.iter().for_each(|(_, place)| self.release(*place));
            self.settle(*lba, holds);
        }
        if !records.is_empty() {
            blocks.extend(self.fill_holes(&records));
        }
        blocks
    }

    /// Clears holes in the array whose records are taken back. A hole that is newer than a held version and
    /// has no older version beside it means that the block was never stored before.
    fn fill_holes(&mut self, records: &BTreeSet<u32>) -> Vec<u32> {
        let mut holes = Vec::new();
        self.for_each_hole(|lba, record| {
            if records.contains(&record) {
                holes.push((lba, record));
            }
        });
        for (lba, record) in &holes {
            self.set_slot(*lba, EMPTY);
            self.release(Place::Hole(*record));
        }
        holes.into_iter().map(|(lba, _)| lba).collect()
    }

    /// Whether some version of `lba` lies in the physical block, or is a hole because of the record
    /// there.
    pub(super) fn refers(&self, lba: u32, block: u32) -> bool {
        let slot = self.slot(lba);
        match slot.block {
            SEVERAL => self
                .several
                .get(&lba)
                .is_some_and(|versions| versions.iter().any(|(_, place)| place.block() == block)),
            HOLE => slot.check == block,
            other => other == block,
        }
    }

    /// The version of `lba` that lies in the physical block, where the table knows it.
    pub(super) fn version_of(&self, lba: u32, block: u32) -> Option<Version> {
        let versions = self.several.get(&lba)?;
        let found = versions.iter().find(|(_, place)| place.block() == block);
        found.map(|(version, _)| *version)
    }

    /// Points the version of `lba` that lies in `from`, or whose record does, to `to`; false when
    /// there is none.
    pub(super) fn relocate(&mut self, lba: u32, from: u32, to: Place) -> bool {
        let slot = self.slot(lba);
        let old = match slot.block {
            ABSENT => return false,
            HOLE => Some(Place::Hole(slot.check)),
            SEVERAL => None,
            block => Some(Place::At(Location { block, check: slot.check })),
        };
        let found = match old {
            Some(old) if old.block() == from => {
                self.set_slot(lba, Slot::of(to));
                Some(old)
            }
            Some(_) => None,
            None => {
                let versions = self.several.get_mut(&lba).into_iter();
                let mut versions = versions.flat_map(|them| them.iter_mut());
                versions
                    .find(|(_, place)| place.block() == from)
                    .map(|(_, place)| std::mem::replace(place, to))
            }
        };
        let Some(old) = found else { return false };
        let version = self.record(from).unwrap_or(Version(0));
        self.take_ref(to, version);
        self.release(old);
        true
    }

    /// Points the version of `lba` that content of `version` belongs to at `to`, for a log that is replayed;
    /// false when the block has no such version any more. `newest` is its newest version as far as the replay
    /// knows. `same` says whether a place may hold the moved content: the hold on that version may have ended
    /// since, and a content of version 0 is then another one.
    pub(super) fn relocate_version(
        &mut self,
        lba: u32,
        version: Version,
        newest: Option<Version>,
        to: Place,
        same: impl Fn(Location) -> bool,
    ) -> bool {
        let from = match self.content(lba) {
            Content::Absent => None,
            Content::Hole(record) => Some(Place::Hole(record)),
            Content::One(at) => {
                newest.is_none_or(|newest| newest <= version).then_some(Place::At(at))
            }
            Content::Several(versions) => versions
                .iter()
                .rev()
                .find(|(held, _)| *held <= version)
                .filter(|(held, _)| *held == version || *held == Version(0))
                .map(|(_, place)| *place),
        };
        // A block may have several discards: move only this record, no older or newer one.
        let same = |from: &Place| match from {
            Place::At(at) => !to.is_hole() && same(*at),
            Place::Hole(record) => to.is_hole() && self.record(*record) == Some(version),
        };
        from.filter(same).is_some_and(|from| self.relocate(lba, from.block(), to))
    }

    /// The records that got their first reference since the last call.
    pub(super) fn take_gained(&mut self) -> std::vec::Drain<'_, u32> {
        self.gained.drain(..)
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
                if slot.block < LAST_SLOT {
                    let lba = (number * CHUNK + at) as u32;
                    visit(lba, Location { block: slot.block, check: slot.check });
                }
            }
        }
        for (lba, versions) in &self.several {
            let places = versions.iter().filter_map(|(_, place)| place.location());
            places.for_each(|at| visit(*lba, at));
        }
    }

    /// Calls `visit` with each logical block that is a hole, and its record.
    pub(super) fn for_each_hole(&self, mut visit: impl FnMut(u32, u32)) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            for (at, slot) in chunk.iter().enumerate().filter(|(_, slot)| slot.block == HOLE) {
                visit((number * CHUNK + at) as u32, slot.check);
            }
        }
        for (lba, versions) in &self.several {
            for (_, place) in versions.iter().filter(|(_, place)| place.is_hole()) {
                visit(*lba, place.block());
            }
        }
    }

    /// An immutable copy of the index.
    pub(super) fn freeze(&self) -> Frozen {
        let mut several: Vec<_> =
            self.several.iter().map(|(lba, versions)| (*lba, versions.clone())).collect();
        several.sort_unstable_by_key(|(lba, _)| *lba);
        Frozen { chunks: self.chunks.clone(), several, records: self.records.clone() }
    }
}

impl Frozen {
    /// Every block that was ever stored, ascending within the array and then within the table.
    pub(super) fn contents(&self) -> impl Iterator<Item = (u32, Content)> + '_ {
        let content = |slot: &Slot| match slot.block {
            HOLE => Some(Content::Hole(slot.check)),
            block => {
                (block < LAST_SLOT).then_some(Content::One(Location { block, check: slot.check }))
            }
        };
        let single = self.chunks.iter().enumerate().flat_map(move |(number, chunk)| {
            chunk.iter().flat_map(move |chunk| {
                let slots = chunk.iter().enumerate();
                slots.filter_map(move |(at, slot)| {
                    content(slot).map(|content| ((number * CHUNK + at) as u32, content))
                })
            })
        });
        let several =
            self.several.iter().map(|(lba, versions)| (*lba, Content::Several(versions.clone())));
        single.chain(several)
    }

    /// The version of a record.
    pub(super) fn record(&self, block: u32) -> Version {
        self.records.get(&block).map_or(Version(0), |record| record.version)
    }
}
