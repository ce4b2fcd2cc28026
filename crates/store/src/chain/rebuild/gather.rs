//! The content of each logical block, decided from map entries in any order.

use thalweg_env::HashMap;

use super::super::format::{Kind, MapEntry, Position};
use super::super::index::{CHUNK, Content, Location, Place, Versions};
use super::super::minilog::format::Fragment;
use crate::block::Version;

/// An entry that may decide a block's content. Bit 0 of `stamp`: a copy by cleaning; bit 1: a discard; the
/// rest is its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    stamp: u64,
    block: u32,
    check: u32,
}

const COPY: u64 = 1;
const HOLE: u64 = 2;
const NONE: Candidate = Candidate { stamp: 0, block: u32::MAX, check: 0 };

impl Candidate {
    fn version(&self) -> Version {
        Version(self.stamp >> 2)
    }

    fn is_hole(&self) -> bool {
        self.stamp & HOLE != 0
    }

    fn place(&self) -> Place {
        match self.is_hole() {
            true => Place::Hole(self.block),
            false => Place::At(Location { block: self.block, check: self.check }),
        }
    }
}

/// A discard of a run of blocks.
#[derive(Clone, Copy, Debug)]
struct Discard {
    first: u32,
    count: u32,
    candidate: Candidate,
}

/// One version of a block, and every place that has it, the best first.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub(super) version: Version,
    pub(super) places: Vec<Place>,
}

/// Keeps for each block the entries that any reader may need: those of the newest version that is not newer
/// than the reader's. Takes 16 bytes for each block with a single entry.
pub(super) struct Gather {
    blocks: u64,
    /// The readers' versions, ascending; the last one is the newest version.
    views: Vec<Version>,
    chunks: Vec<Option<Box<[Candidate; CHUNK]>>>,
    more: HashMap<u32, Vec<Candidate>>,
    discards: Vec<Discard>,
    /// Fragments that are not settled, in the order of their versions.
    fragments: HashMap<u32, Vec<Fragment>>,
}

impl Gather {
    /// Empty, for readers of `views` and of the newest version.
    pub(super) fn new(blocks: u64, views: impl Iterator<Item = Version>) -> Gather {
        let mut views: Vec<Version> = views.chain([Version(u64::MAX)]).collect();
        views.sort_unstable();
        views.dedup();
        let chunks = blocks.div_ceil(CHUNK as u64) as usize;
        Gather {
            blocks,
            views,
            chunks: (0..chunks).map(|_| None).collect(),
            more: HashMap::default(),
            discards: Vec::new(),
            fragments: HashMap::default(),
        }
    }

    /// Adds a fragment; those of one block come in the order of their versions.
    pub(super) fn add_fragment(&mut self, fragment: Fragment) {
        let chunk = self.chunks.get_mut(fragment.lba as usize / CHUNK);
        if let Some(chunk) = chunk.filter(|_| u64::from(fragment.lba) < self.blocks) {
            // A discard may hide it.
            chunk.get_or_insert_with(|| Box::new([NONE; CHUNK]));
            self.fragments.entry(fragment.lba).or_default().push(fragment);
        }
    }

    /// The fragments of each block that has any.
    pub(super) fn take_fragments(&mut self) -> HashMap<u32, Vec<Fragment>> {
        std::mem::take(&mut self.fragments)
    }

    /// The readers' versions, ascending; the last one is the newest version.
    pub(super) fn views(&self) -> &[Version] {
        &self.views
    }

    /// Adds the entry of a physical block.
    pub(super) fn add(&mut self, block: u32, entry: &MapEntry) {
        let copy = matches!(entry.kind, Kind::Moved | Kind::MovedDiscard);
        let hole = matches!(entry.kind, Kind::Discard | Kind::MovedDiscard);
        let flags = if copy { COPY } else { 0 } | if hole { HOLE } else { 0 };
        let stamp = entry.version.0 << 2 | flags;
        let nothing = matches!(entry.kind, Kind::Pad | Kind::Mini | Kind::Settled);
        if nothing || entry.lba.0 >= self.blocks {
            return;
        }
        let lba = entry.lba.0 as u32;
        match hole {
            true => {
                let candidate = Candidate { stamp, block, check: 0 };
                self.discards.push(Discard { first: lba, count: entry.check, candidate });
            }
            false => self.put(lba, Candidate { stamp, block, check: entry.check }),
        }
    }

    fn get(&self, lba: u32) -> Option<Candidate> {
        let chunk = self.chunks.get(lba as usize / CHUNK)?.as_ref()?;
        Some(chunk[lba as usize % CHUNK]).filter(|candidate| *candidate != NONE)
    }

    fn put(&mut self, lba: u32, new: Candidate) {
        let mut all = match (self.get(lba), self.more.remove(&lba)) {
            (_, Some(all)) => all,
            (Some(one), None) => vec![one],
            (None, None) => Vec::new(),
        };
        all.push(new);
        self.prune(&mut all);
        if let Some(chunk) = self.chunks.get_mut(lba as usize / CHUNK) {
            let chunk = chunk.get_or_insert_with(|| Box::new([NONE; CHUNK]));
            chunk[lba as usize % CHUNK] = all[0];
        }
        if all.len() > 1 {
            self.more.insert(lba, all);
        }
    }

    /// Drops entries that no reader needs.
    fn prune(&self, all: &mut Vec<Candidate>) {
        if all.len() < 2 {
            return;
        }
        all.sort_by_key(Candidate::version);
        let seen = |view: &Version| {
            let older = all.partition_point(|candidate| candidate.version() <= *view);
            older.checked_sub(1).map(|newest| all[newest].version())
        };
        let mut needed: Vec<Version> = self.views.iter().filter_map(seen).collect();
        needed.dedup();
        all.retain(|candidate| needed.binary_search(&candidate.version()).is_ok());
    }

    /// Applies the discards after all entries were added, to blocks that have content: elsewhere there is
    /// nothing to hide.
    pub(super) fn apply_discards(&mut self) {
        for discard in std::mem::take(&mut self.discards) {
            let end = (u64::from(discard.first) + u64::from(discard.count)).min(self.blocks) as u32;
            let mut lba = discard.first;
            while lba < end {
                if let Some(None) = self.chunks.get(lba as usize / CHUNK) {
                    lba = (lba / CHUNK as u32 + 1) * CHUNK as u32;
                    continue;
                }
                if self.get(lba).is_some() || self.fragments.contains_key(&lba) {
                    self.put(lba, discard.candidate);
                }
                lba += 1;
            }
        }
    }

    /// The blocks with anything to decide, ascending.
    pub(super) fn decided<'a>(
        &'a self,
        position: impl Fn(u32) -> Position + Copy + 'a,
    ) -> impl Iterator<Item = (u32, Vec<Decided>)> + 'a {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.filter(|(_, chunk)| chunk.is_some());
        let lbas = chunks
            .flat_map(|(number, _)| (number * CHUNK..(number + 1) * CHUNK).map(|lba| lba as u32));
        lbas.filter_map(move |lba| {
            let one = self.get(lba)?;
            let all = self.more.get(&lba).cloned().unwrap_or_else(|| vec![one]);
            let versions = all.chunk_by(|a, b| a.version() == b.version());
            Some((lba, versions.map(|same| decide(same, position)).collect()))
        })
    }
}

/// Among entries of one version, copies by cleaning counted last. Without a copy a later entry of the
/// transaction wins over an earlier one. Among entries of the same content, the newest place comes first: the
/// index had that one.
fn decide(same: &[Candidate], position: impl Fn(u32) -> Position) -> Decided {
    let rank = |one: &Candidate| (one.stamp & COPY, position(one.block));
    let mut same = same.to_vec();
    same.sort_by_key(|one| std::cmp::Reverse(rank(one)));
    let winner = same[0];
    same.retain(|one| one.is_hole() == winner.is_hole() && one.check == winner.check);
    // A discard has one entry; each copy replaced the one before.
    same.truncate(if winner.is_hole() { 1 } else { usize::MAX });
    let places = same.iter().map(Candidate::place).collect();
    Decided { version: winner.version(), places }
}

/// The index entry of a block with these versions, each at its place, when `oldest` is the oldest held
/// version.
pub(super) fn content(versions: &[(Version, Place)], oldest: Option<Version>) -> Content {
    let old_enough = |version: Version| oldest.is_none_or(|oldest| version <= oldest);
    match *versions {
        [] => Content::Absent,
        [(_, Place::Hole(record))] => Content::Hole(record),
        [(version, Place::At(at))] if old_enough(version) => Content::One(at),
        _ => Content::Several(versions.iter().copied().collect::<Versions>()),
    }
}
