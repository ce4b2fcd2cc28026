//! Rebuilds the index from the map alone, when a checkpoint, or the map of the log behind it, is damaged.
//!
//! Every entry in the map of every segment counts that counted before: of each segment's newest use, unless a
//! recovery declared that void ([`Cut`](super::Cut)); up to the end of its log, which is found as recovery
//! finds it; not of a void version ([`Void`](super::Void)). Of these entries, each logical block gets the
//! newest version that each reader may see. That this equals the lost index follows from three rules which
//! all other modules keep: a live entry stays in the map while the index refers to its block, a discard
//! counts as long as any block is absent because of it, and a segment is written again only when nothing in
//! it counts.
//!
//! **Damage in the map itself.** A missing sector of durable entries is a loss, and the report names it.
//! Nothing is rebuilt then unless the caller accepts the loss. Then everything else is rebuilt: entries
//! behind the gap stay, rather than a prefix of the log, because most of a volume's entries are old and a gap
//! may be anywhere. So a transaction of which the gap held a part survives in part, and a block whose newest
//! entry was there has its previous content: an older one of its own, or nothing. Blocks written after the
//! gap are not concerned; the report has the number of the others.

mod ends;
mod finish;
mod gather;
mod survey;

use std::collections::BTreeSet;

use async_recursion::async_recursion;
use thalweg_env::Env;

use super::format::{
    ENTRIES_PER_SECTOR, Entry, Kind, MapEntry, Position, block_checksum, volume_tag,
};
use super::index::{Location, Place, is_slot};
use super::label::Label;
use super::minilog::format::Fragment;
use super::minilog::replay::read_mini;
use super::minilog::slots::{Overlay, Slot};
use super::read::{Verified, read_verified};
use super::recovery::{check_sizes, empty_state};
use super::state::State;
use super::stream::USERS;
use super::{Chain, ChainError, Parts};
use crate::block::{BLOCK_SIZE, Lba, Version};
use crate::device::Purpose;
use finish::finish;
use gather::{Gather, content};
use survey::{Gap, Life, Maps, Reach, Sector, Shown, shown};

/// Options of a rebuild.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rebuild {
    /// Go on although durable entries are lost.
    pub accept_loss: bool,
    /// Report the outcome, and write nothing.
    pub dry_run: bool,
}

/// A part of the map whose entries are lost.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LostEntries {
    /// The segment.
    pub segment: u32,
    /// The first block in it.
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// No logical block with a newer version is concerned; `None` when unknown, because no later entry was
    /// found.
    pub newest: Option<u64>,
}

/// The result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RebuildReport {
    /// Segments whose map was read.
    pub segments: u64,
    /// Entries that count.
    pub entries: u64,
    /// Logical blocks that hold content.
    pub blocks: u64,
    /// Bytes of blocks read to verify by checksum that they were written.
    pub checked_bytes: u64,
    /// Entries beyond the end of the logs.
    pub dropped: u64,
    /// The newest version.
    pub version: u64,
    /// Parts of the map whose entries are lost.
    pub lost: Vec<LostEntries>,
    /// Physical blocks in these parts: the maximum number of logical blocks concerned.
    pub lost_blocks: u64,
    /// Logical blocks without a version newer than the lost entries: which of them are concerned is unknown.
    pub undecided: u64,
    /// The first hundred logical blocks with several copies of which none is right.
    pub damaged: Vec<u64>,
    /// Whether the index was written.
    pub written: bool,
}

/// Maximum blocks listed in a report.
const NAMED: usize = 100;

impl Chain {
    /// Rebuilds the index from the map of every segment, without any checkpoint, and writes it as a new one:
    /// [`Chain::open`] then works. Calls `progress` with the number of segments read and of all.
    ///
    /// # Errors
    /// [`ChainError::Loss`] when durable entries are lost, unless the caller accepts that; nothing was
    /// written then. [`ChainError::NoLabel`] and others as [`Chain::open`].
    #[async_recursion]
    pub async fn rebuild(
        env: &Env,
        parts: Parts,
        how: Rebuild,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<RebuildReport, ChainError> {
        let label = Label::read(&*parts.map).await?;
        let mut state = empty_state(label, &parts)?;
        check_sizes(&state.label, &parts)?;
        parts.map.flush(Purpose::Map).await?;
        for link in &parts.links {
            link.device.flush(Purpose::UserData).await?;
        }
        let maps = Maps {
            map: &parts.map,
            layout: state.label.layout(),
            tag: volume_tag(state.label.volume),
        };
        let mut scan = Scan::survey(&maps, &state, progress).await;
        let logs = scan.end_logs(&maps, &state).await?;
        let gather = scan.gather(&maps, &state, progress).await;
        scan.decide(&mut state, gather).await?;
        scan.sum_up(&state);
        let report = scan.report.clone();
        if how.dry_run {
            return Ok(report);
        }
        if !report.lost.is_empty() && !how.accept_loss {
            return Err(ChainError::Loss(Box::new(report)));
        }
        for lost in &report.lost {
            tracing::warn!(volume = %state.label.volume, ?lost, "entries of the map are lost");
        }
        finish(env, parts, state, &scan, logs).await?;
        Ok(RebuildReport { written: true, ..report })
    }
}

/// The content of the whole map.
struct Scan {
    lives: Vec<Life>,
    /// Segments with damaged sectors alone.
    ruins: BTreeSet<u32>,
    gaps: Vec<Gap>,
    /// Parts of the map that a crash left torn in the log of compaction, which cannot continue then.
    torn: Vec<Gap>,
    /// The rest of the users' last segment when their log cannot continue in it.
    rest: Option<Gap>,
    /// The logs' ends: of users and of compaction.
    reach: [Option<Reach>; 2],
    /// Segments whose last use counts no more.
    unused: BTreeSet<u32>,
    report: RebuildReport,
    /// The newest version found anywhere.
    version: Version,
    /// The highest sequence seen.
    top: u64,
    /// Positions in the users' log with the versions written there: the first one of each segment and behind
    /// each gap.
    marks: Vec<(Position, Version)>,
    /// Segments with mini-log blocks that are not settled, or with the bases of their fragments: they stay
    /// unchanged until there is a checkpoint.
    kept: BTreeSet<u32>,
}

/// A mini-log block.
struct MiniAt {
    at: Position,
    block: u32,
    entry: MapEntry,
}

impl Scan {
    /// Reads the map of every segment once.
    async fn survey(
        maps: &Maps<'_>,
        state: &State,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Scan {
        let mut scan = Scan {
            lives: Vec::new(),
            ruins: BTreeSet::new(),
            gaps: Vec::new(),
            torn: Vec::new(),
            rest: None,
            reach: [None, None],
            unused: BTreeSet::new(),
            report: RebuildReport::default(),
            version: Version(0),
            top: 0,
            marks: Vec::new(),
            kept: BTreeSet::new(),
        };
        let ids = existing(state);
        for (done, id) in ids.iter().enumerate() {
            // The map is read twice: once to find the ends, once for its entries.
            progress(done as u64, 2 * ids.len() as u64);
            match shown(*id, &maps.read(*id).await, maps.tag) {
                Shown::Nothing => {}
                Shown::Ruins => drop(scan.ruins.insert(*id)),
                Shown::Life(life) => {
                    scan.top = scan.top.max(life.seq).max(life.durable.seq());
                    scan.lives.push(life);
                }
            }
        }
        scan.report.segments = ids.len() as u64;
        scan.lives.sort_by_key(|life| life.seq);
        let label = &state.label;
        for life in scan.lives.iter().filter(|life| label.is_cut(life.log, life.seq)) {
            scan.unused.insert(life.id);
        }
        let known = label.snapshots.iter().map(|snapshot| snapshot.version);
        let known = known.chain(label.voids.iter().map(|void| void.to));
        let known = known.chain(label.cuts.iter().map(|cut| cut.version));
        scan.version = known.max().unwrap_or_default();
        scan.top = label.cuts.iter().map(|cut| cut.first).fold(scan.top, u64::max);
        scan
    }

    /// Reads the map a second time, for its entries.
    async fn gather(
        &mut self,
        maps: &Maps<'_>,
        state: &State,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Gather {
        let label = &state.label;
        let views = label.snapshots.iter().map(|snapshot| snapshot.version);
        let mut gather = Gather::new(state.index.blocks(), views);
        let (mut minis, mut settled) = (Vec::new(), Version(0));
        let total = self.lives.len() as u64;
        let lives = std::mem::take(&mut self.lives);
        for (done, life) in lives.iter().enumerate() {
            progress(total + done as u64, 2 * total);
            if self.unused.contains(&life.id) {
                continue;
            }
            let end = self.reach[usize::from(life.log)].as_ref().map_or(Position(0), |one| one.end);
            let gaps = self.gaps.iter().filter(|gap| gap.seq == life.seq);
            let mut behind: Vec<u32> = gaps.map(|gap| gap.end).chain([0]).collect();
            for (slot, entry) in entries_of(life, &maps.read(life.id).await) {
                if Position::new(life.seq, slot) >= end {
                    break;
                }
                let Some(entry) = entry.decode() else {
                    let gap = Gap { segment: life.id, seq: life.seq, first: slot, end: slot + 1 };
                    self.gaps.push(gap);
                    continue;
                };
                self.report.entries += 1;
                // A pad of compaction has the users' version, which may not have survived.
                if entry.kind != Kind::Pad || usize::from(life.log) == USERS {
                    self.version = self.version.max(entry.version);
                }
                let first = match entry.kind {
                    Kind::Mini => entry.version.0.saturating_sub(entry.lba.0),
                    _ => entry.version.0,
                };
                let written = matches!(entry.kind, Kind::Data | Kind::Discard | Kind::Mini);
                if written && behind.iter().any(|from| *from <= slot) {
                    behind.retain(|from| *from > slot);
                    self.marks.push((Position::new(life.seq, slot), Version(first)));
                }
                let (at, block) =
                    (Position::new(life.seq, slot), life.id * label.segment_blocks + slot);
                match entry.kind {
                    Kind::Mini => minis.push(MiniAt { at, block, entry }),
                    Kind::Settled => settled = settled.max(entry.version),
                    _ => {}
                }
                if !label.is_void(entry.version, entry.lba.0) {
                    gather.add(block, &entry);
                }
            }
        }
        progress(2 * total, 2 * total);
        self.lives = lives;
        minis.retain(|mini| mini.entry.version > settled);
        self.gather_fragments(state, minis, &mut gather).await;
        gather.apply_discards();
        gather
    }

    /// Reads the mini-log blocks that are not settled. A damaged one is a loss.
    async fn gather_fragments(
        &mut self,
        state: &State,
        mut minis: Vec<MiniAt>,
        gather: &mut Gather,
    ) {
        minis.sort_by_key(|mini| mini.at);
        for MiniAt { at, block, entry } in minis {
            let segment = state.segments.of(block);
            self.kept.insert(segment);
            self.report.checked_bytes += BLOCK_SIZE as u64;
            let Some(fragments) = read_mini(state, block, &entry).await else {
                let (seq, first) = (at.seq(), at.slot());
                self.gaps.push(Gap { segment, seq, first, end: first + 1 });
                continue;
            };
            for fragment in fragments {
                if !state.label.is_void(fragment.version, u64::from(fragment.lba)) {
                    gather.add_fragment(fragment);
                }
            }
        }
    }

    /// Fills the index.
    async fn decide(&mut self, state: &mut State, mut gather: Gather) -> Result<(), ChainError> {
        let mut fragments = gather.take_fragments();
        for life in &self.lives {
            state.segments.get_mut(life.id).seq = life.seq;
        }
        let per = state.label.segment_blocks;
        let seqs: Vec<u64> =
            (0..state.segments.len()).map(|id| state.segments.get(id).seq).collect();
        let position = |block: u32| Position::new(seqs[(block / per) as usize], block % per);
        let unknown = Version(u64::MAX);
        let newest = |gap| self.newest_in(gap).unwrap_or(unknown);
        let newest_lost = self.gaps.iter().map(newest).max();
        self.report.undecided = newest_lost.map_or(0, |_| state.index.blocks());
        for (lba, decided) in gather.decided(&position) {
            let mut versions: Vec<(Version, Place)> = Vec::new();
            for one in &decided {
                let place = match one.places[..] {
                    [place] => place,
                    // All are right, unless the map is damaged.
                    [place, ..] if self.gaps.is_empty() => place,
                    _ => self.first_right(state, lba, &one.places).await?,
                };
                if let Place::Hole(record) = place {
                    state.index.add_record(record, one.version);
                }
                versions.push((one.version, place));
            }
            if let Some(fragments) = fragments.remove(&lba) {
                versions = lay_over(state, gather.views(), &versions, &fragments);
            }
            let newest = versions.last();
            let newer = newest.is_some_and(|(version, _)| Some(*version) > newest_lost);
            self.report.undecided -= u64::from(newer && newest_lost.is_some());
            self.report.blocks +=
                u64::from(newest.is_some_and(|(_, place)| place.location().is_some()));
            let content = content(&versions, state.holds.oldest());
            state.index.load(lba, content);
        }
        let mut fresh: Vec<(u32, Vec<Fragment>)> = fragments.into_iter().collect();
        fresh.sort_unstable_by_key(|(lba, _)| *lba);
        for (lba, fragments) in fresh {
            let versions = lay_over(state, gather.views(), &[], &fragments);
            self.report.blocks += 1;
            state.index.load(lba, content(&versions, state.holds.oldest()));
        }
        self.kept.extend(state.base_segments());
        state.fill_slots().await;
        state.index.recount();
        let mut places: Vec<u32> = state.index.records().collect();
        state.index.for_each(|_, at| places.push(at.block));
        places.retain(|block| !is_slot(*block));
        places.into_iter().for_each(|block| state.segments.add_live(block));
        state.version = self.version;
        state.committed = self.version;
        state.next_seq = self.top + u64::from(state.segments.len()) + 1;
        Ok(())
    }

    /// Maximum version of an entry in a gap: users write versions in order, and compaction copies what they
    /// wrote before it continues in another segment.
    fn newest_in(&self, gap: &Gap) -> Option<Version> {
        let life = self.lives.iter().find(|life| gap.seq != 0 && life.seq == gap.seq);
        let behind = life.and_then(|life| match usize::from(life.log) {
            USERS => Some(Position::new(gap.seq, gap.end)),
            log => {
                let next = |other: &&Life| usize::from(other.log) == log && other.seq > gap.seq;
                self.lives.iter().find(next).map(|next| Position::new(next.seq, 0))
            }
        });
        let marks = self.marks.iter();
        let later = marks.filter(|(at, _)| behind.is_some_and(|behind| *at >= behind));
        later.map(|(_, version)| *version).min()
    }

    /// The first place with the right content.
    async fn first_right(
        &mut self,
        state: &State,
        lba: u32,
        places: &[Place],
    ) -> Result<Place, ChainError> {
        for place in places {
            let Some(at) = place.location() else { return Ok(*place) };
            self.report.checked_bytes += BLOCK_SIZE as u64;
            if is_right(state, lba, at).await {
                return Ok(*place);
            }
        }
        if self.report.damaged.len() < NAMED {
            self.report.damaged.push(u64::from(lba));
        }
        Ok(places[0])
    }

    /// Completes the report.
    fn sum_up(&mut self, state: &State) {
        self.report.version = state.version.0;
        self.gaps.sort_by_key(|gap| (gap.segment, gap.first));
        let lost = |gap: &Gap| LostEntries {
            segment: gap.segment,
            first: gap.first,
            blocks: gap.end - gap.first,
            newest: self.newest_in(gap).map(|version| version.0),
        };
        self.report.lost = self.gaps.iter().map(lost).collect();
        self.report.lost_blocks = self.report.lost.iter().map(|lost| u64::from(lost.blocks)).sum();
    }
}

/// The versions of a block for each reader, from those of its whole contents and the fragments of all
/// versions: fragments lie over whole contents that are older.
fn lay_over(
    state: &mut State,
    views: &[Version],
    whole: &[(Version, Place)],
    fragments: &[Fragment],
) -> Vec<(Version, Place)> {
    let mut seen: Vec<(Version, Place)> = Vec::new();
    for view in views {
        let base = whole.iter().rev().find(|(version, _)| version <= view).copied();
        let since = base.map_or(Version(0), |(version, _)| version);
        let newer = |fragment: &&Fragment| fragment.version > since && fragment.version <= *view;
        let newer: Vec<&Fragment> = fragments.iter().filter(newer).collect();
        let version = newer.last().map_or(since, |fragment| fragment.version);
        if seen.last().is_some_and(|(last, _)| *last == version) {
            continue;
        }
        match newer.first() {
            Some(first) => {
                let mut overlay = Overlay::over(base.and_then(|(_, place)| place.location()));
                newer.iter().for_each(|fragment| overlay.add(fragment));
                let block = state.slots.take(Slot::replayed(first.lba, version, overlay));
                seen.push((version, Place::At(Location { block, check: 0 })));
            }
            None => seen.extend(base),
        }
    }
    seen
}

/// The segments of the chain's links.
fn existing(state: &State) -> Vec<u32> {
    (0..state.segments.len()).filter(|id| state.segments.exists(*id)).collect()
}

/// The entries of a segment's newest use, with their slots.
fn entries_of(life: &Life, sectors: &[Sector]) -> Vec<(u32, Entry)> {
    let mut found = Vec::new();
    for (index, sector) in sectors.iter().enumerate() {
        let first = index as u32 * ENTRIES_PER_SECTOR;
        if let Sector::Whole(head, entries) = sector
            && head.seq == life.seq
        {
            found.extend((first..).zip(entries.iter().copied()));
        }
    }
    found
}

async fn is_right(state: &State, lba: u32, at: Location) -> bool {
    let Some((link, offset)) = state.segments.place(at.block) else { return false };
    let device = &state.segments.links[link].device;
    let right = |content: &[u8]| block_checksum(Lba(u64::from(lba)), content) == at.check;
    let read = read_verified(device, offset, BLOCK_SIZE, Purpose::UserData, right).await;
    matches!(read, Ok(Verified::Whole { .. }))
}
