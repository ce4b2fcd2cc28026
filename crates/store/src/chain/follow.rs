//! Chains that others follow, and chains that follow: positions, timelines, and what changed since a version.

use std::sync::Arc;

use thalweg_env::Env;
use zerocopy::FromBytes;

use super::format::{Kind, MapEntry, MapSector, SECTOR};
use super::history::History;
use super::index::{Content, Place, is_slot};
use super::stream::USERS;
use super::tap::Tap;
use super::write::{DISCARD_BLOCKS, discard_as};
use super::{Chain, ChainError, Inner, Label, Options, Parts, Shrink, State, commit, fence};
use crate::block::{Lba, Position, StoreError, Version, Versions};
use crate::device::Purpose;

/// Looks for the versions of blocks that move meanwhile, before the newest one is taken for theirs.
const LOOKS: usize = 8;

/// A block whose content is newer than a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Changed {
    /// The version of the content, or a newer one.
    pub version: Version,
    /// The block.
    pub lba: u32,
    /// Whether something is stored; otherwise it was discarded.
    pub stored: bool,
}

/// A block in the index whose version only the map knows.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    block: u32,
    lba: u32,
}

/// Where a tap begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The newest version: the tap gets every later one.
    pub version: Version,
    /// The newest version that survives a crash: the tap hears of every later one.
    pub durable: Version,
}

impl Chain {
    /// Shows `tap` every change from now on. It replaces an earlier tap.
    pub fn attach(&self, tap: Arc<dyn Tap>) -> Attached {
        let mut state = self.inner.state.lock();
        state.tap = Some(tap);
        Attached { version: state.version, durable: state.committed }
    }

    /// Ends what [`Chain::attach`] began.
    pub fn detach(&self) {
        let tap = self.inner.state.lock().tap.take();
        drop(tap);
    }

    /// Makes everything up to `version` survive a crash of this machine, as [`Blocks::sync`](crate::block::Blocks::sync) does, which also waits for
    /// what a tap wants.
    ///
    /// # Errors
    /// Device errors; a version that does not exist.
    pub async fn commit(&self, version: Version) -> Result<(), StoreError> {
        commit::sync(&self.inner, version).await
    }

    /// Whether the devices are not written at all: a chain that follows another one is read-only, and is written.
    pub fn is_only_looked_at(&self) -> bool {
        self.inner.options.read_only
    }

    /// The timelines of the volume.
    pub fn history(&self) -> History {
        self.inner.state.lock().label.history.clone()
    }

    /// The name of a version on any machine; `None` for one older than the history, and when there is none.
    pub fn position_of(&self, version: Version) -> Option<Position> {
        let timeline = self.inner.state.lock().label.history.timeline(version)?;
        Some(Position { volume: self.inner.volume, timeline, version })
    }

    /// Begins the history of a volume that gets its first follower; without an effect where it has one.
    ///
    /// # Errors
    /// Device errors; [`StoreError::ReadOnly`].
    pub async fn begin_history(&self) -> Result<History, ChainError> {
        let inner = &self.inner;
        let _label = inner.label_lock.lock().await;
        let version = {
            let state = inner.state.lock();
            if !state.label.history.is_empty() {
                return Ok(state.label.history.clone());
            }
            state.version
        };
        // The version from which the timeline goes on must not be lost and numbered again.
        commit::sync(inner, version).await?;
        let id = inner.env.uuid();
        inner.change_label(|label| label.history.begin(id, version)).await?;
        Ok(self.history())
    }

    /// Takes over the timelines and the term of the volume that this one follows, and when that last became smaller.
    ///
    /// # Errors
    /// Device errors.
    pub async fn adopt(
        &self,
        history: &History,
        term: u32,
        shrink: Option<Shrink>,
    ) -> Result<(), ChainError> {
        let _label = self.inner.label_lock.lock().await;
        let label = self.label();
        if label.history == *history && label.term == term && label.shrink == shrink {
            return Ok(());
        }
        let adopt = |label: &mut Label| {
            (label.history, label.term, label.shrink) = (history.clone(), term, shrink);
        };
        self.inner.change_label(adopt).await
    }

    /// The number by which a primary tells this replica of the volume from the others: drawn the first time, and durable.
    ///
    /// # Errors
    /// Device errors.
    pub async fn replica_number(&self) -> Result<u32, ChainError> {
        let _label = self.inner.label_lock.lock().await;
        let known = self.label().replica;
        if known != 0 {
            return Ok(known);
        }
        let drawn = self.inner.env.uuid().as_fields().0.max(1);
        self.inner.change_label(|label| label.replica = drawn).await?;
        Ok(drawn)
    }

    /// [`Blocks::discard`](crate::block::Blocks::discard) as a given version, for a chain that follows another one. It is one version, whatever
    /// the number of blocks.
    ///
    /// # Errors
    /// As [`Lineage::submit_at`](crate::block::Lineage::submit_at).
    pub async fn discard_at(
        &self,
        version: Version,
        lba: Lba,
        count: u32,
    ) -> Result<(), StoreError> {
        self.inner.check_writable()?;
        self.inner.check_range(lba, u64::from(count))?;
        discard_as(&self.inner, lba, count, Some(version)).await.map(drop)
    }

    /// The blocks whose content as of `at` is newer than `after`, in the order of their versions, for a follower with
    /// `blocks` blocks: including those that left the volume when it became smaller. The caller holds `at`, and it is
    /// durable.
    ///
    /// # Errors
    /// [`StoreError::Gone`] when `at` is not held; device errors.
    pub async fn changed_since(
        &self,
        after: Version,
        at: Version,
        blocks: u64,
    ) -> Result<Vec<Changed>, ChainError> {
        let inner = &self.inner;
        let _held = self.hold(at).ok_or(StoreError::Gone(at))?;
        if after == at {
            return Ok(Vec::new());
        }
        let (mut changed, mut unknown) = look(inner, after, at, None);
        for _ in 0..LOOKS {
            if unknown.is_empty() {
                break;
            }
            // Entries of moved blocks may be in memory alone.
            commit::users(inner).await?;
            commit::body(inner).await?;
            let missed = resolve(inner, unknown, after, &mut changed).await?;
            let again: Vec<u32> = missed.into_iter().map(|unknown| unknown.lba).collect();
            let (found, still) = look(inner, after, at, Some(&again));
            changed.extend(found);
            unknown = still;
        }
        let rest = unknown.iter();
        changed.extend(rest.map(|block| Changed { version: at, lba: block.lba, stored: true }));
        changed.extend(left(inner, after, at, blocks));
        changed.iter_mut().for_each(|block| block.version = block.version.min(at));
        changed.sort_unstable();
        Ok(changed)
    }
}

/// Reads the label; refuses to write to a volume that follows another one, except for changes from there.
pub(super) async fn read_label(parts: &Parts, options: &mut Options) -> Result<Label, ChainError> {
    let label = Label::read(&*parts.map).await?;
    if options.as_labelled {
        options.follow = label.follows;
    }
    match (label.follows, options.follow) {
        (true, false) if !options.read_only => Err(ChainError::Follows),
        (false, true) => Err(ChainError::Invalid("the volume follows no other one".to_owned())),
        (false, false) if !options.read_only => fence::refuse_fenced(&label).map(|()| label),
        _ => Ok(label),
    }
}

/// Writes the label of a recovered chain, with a timeline for this opening.
pub(super) async fn write_label(
    env: &Env,
    parts: &Parts,
    options: &Options,
    state: &mut State,
) -> Result<(), ChainError> {
    let label = &mut state.label;
    if !options.read_only && !label.follows && !label.history.is_empty() {
        // Versions that the crash lost may be known elsewhere, and are numbered again from here on.
        label.history.begin(env.uuid(), state.version);
    }
    label.write(&parts.map).await
}

impl State {
    /// Goes on to the version before `version`, for which the caller has ensured room for one entry if it leaves others out.
    pub(super) fn leap_to(&mut self, version: Version) -> Result<(), StoreError> {
        if version > self.version.next() {
            self.seal_mini(true)?;
            self.append(USERS, &MapEntry::leap(self.version, version), None, Purpose::Map)?;
        }
        Ok(())
    }

    /// Tells the tap of a change that is in no version.
    pub(super) fn tell_reshaped(&self) {
        if let Some(tap) = &self.tap {
            tap.reshaped(self.version);
        }
    }
}

/// Looks at blocks in the index, or at all: those that it knows to have changed, and those whose version it does not
/// know.
fn look(
    inner: &Inner,
    after: Version,
    at: Version,
    only: Option<&[u32]>,
) -> (Vec<Changed>, Vec<Unknown>) {
    let state = inner.state.lock();
    let (mut changed, mut unknown) = (Vec::new(), Vec::new());
    let mut note = |lba: u32, version: Version, place: Place| {
        let known = match place {
            Place::Hole(record) => state.index.record(record),
            Place::At(of) if is_slot(of.block) => {
                state.slots.get(of.block).map(|slot| slot.version)
            }
            Place::At(_) => None,
        };
        // Version 0 stands for one that is not newer than any held version.
        match (known.or((version > Version(0)).then_some(version)), place) {
            (Some(version), _) if version <= after => {}
            (Some(version), place) => {
                changed.push(Changed { version, lba, stored: place.location().is_some() });
            }
            (None, Place::At(of)) => unknown.push(Unknown { block: of.block, lba }),
            (None, Place::Hole(_)) => changed.push(Changed { version: at, lba, stored: false }),
        }
    };
    let mut visit = |lba: u32| match state.index.content(lba) {
        Content::Absent => {}
        Content::Hole(record) => note(lba, Version(0), Place::Hole(record)),
        Content::One(of) => note(lba, Version(0), Place::At(of)),
        Content::Several(versions) => {
            if let Some((version, place)) = versions.iter().rev().find(|(of, _)| *of <= at) {
                note(lba, *version, *place);
            }
        }
    };
    match only {
        Some(lbas) => lbas.iter().for_each(|lba| visit(*lba)),
        None => {
            let mut lba = 0;
            while u64::from(lba) < state.index.blocks() {
                match state.index.empty_until(lba) {
                    Some(next) => lba = next,
                    None => {
                        visit(lba);
                        lba += 1;
                    }
                }
            }
        }
    }
    (changed, unknown)
}

/// The blocks, of those that a follower with `blocks` blocks may have, that left the volume after version `after`, when it
/// became smaller, and have had no content since.
fn left(inner: &Inner, after: Version, at: Version, blocks: u64) -> Vec<Changed> {
    let state = inner.state.lock();
    let Some(shrink) = state.label.shrink else { return Vec::new() };
    let end = state.index.blocks();
    let content = |lba: u64| match lba < end {
        true => state.index.content(lba as u32),
        false => Content::Absent,
    };
    let is_empty = |lba: &u64| match content(*lba) {
        Content::Absent => true,
        Content::Several(versions) => versions.iter().all(|(version, _)| *version > at),
        Content::Hole(_) | Content::One(_) => false,
    };
    // Spread over the versions of the shrink, so that none of them has too many.
    let most = blocks.max(end);
    let version = |lba: u64| {
        let nth = ((most - 1 - lba) / DISCARD_BLOCKS).min(shrink.versions.saturating_sub(1));
        Version(shrink.version.0.saturating_sub(nth))
    };
    let first = if shrink.version > after { shrink.blocks } else { most };
    let gone = (first..most).filter(|lba| version(*lba) > after).filter(is_empty);
    gone.map(|lba| Changed { version: version(lba), lba: lba as u32, stored: false }).collect()
}

/// Reads the versions of blocks in the map; returns the blocks that have moved.
async fn resolve(
    inner: &Inner,
    mut unknown: Vec<Unknown>,
    after: Version,
    changed: &mut Vec<Changed>,
) -> Result<Vec<Unknown>, ChainError> {
    let per = inner.segment_blocks;
    unknown.sort_unstable_by_key(|unknown| unknown.block);
    let mut missed = Vec::new();
    for group in unknown.chunk_by(|a, b| a.block / per == b.block / per) {
        let segment = group[0].block / per;
        let (at, len) = (inner.layout.map_of(segment), inner.layout.segment_map());
        let bytes = inner.map.read(at, len, Purpose::Map).await?;
        for block in group {
            match entry_version(inner, &bytes, block) {
                Some(version) if version <= after => {}
                Some(version) => changed.push(Changed { version, lba: block.lba, stored: true }),
                None => missed.push(*block),
            }
        }
    }
    Ok(missed)
}

/// The version in the map's entry for a block; `None` if that entry is about another block, or damaged.
fn entry_version(inner: &Inner, map: &[u8], of: &Unknown) -> Option<Version> {
    let place = (of.block % inner.segment_blocks) as usize;
    let per = super::format::ENTRIES_PER_SECTOR as usize;
    let bytes = map.chunks_exact(SECTOR).nth(place / per)?;
    let sector = MapSector::ref_from_bytes(bytes).ok()?;
    let head = sector.verify(inner.tag, (place / per) as u16)?;
    let seq = inner.state.lock().segments.get(of.block / inner.segment_blocks).seq;
    let entry = sector.entries().get(place % per).filter(|_| head.seq == seq)?.decode()?;
    (entry.kind == Kind::Data && entry.lba == Lba(u64::from(of.lba))).then_some(entry.version)
}
