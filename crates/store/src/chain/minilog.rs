//! Mini-logs: writes of parts of blocks share physical blocks (Isotope 4.2.3, proposed there).
//!
//! A write that changed little of its block appends a *fragment*, the changed bytes alone, to the open
//! mini-log block. That becomes an entry of the users' log ([`Kind::Mini`]) when it is full, when a round
//! begins, and before any other append: so the log's order is that of versions, and a transaction of whole
//! blocks and fragments ends with the mini-log block that holds its last one. Only the sectors in use are
//! written.
//!
//! A block written so has a slot rather than a physical block: the index refers to the slot, which holds the
//! whole content that the writer supplied, for readers. Only a replay needs the content before the first
//! fragment, the *base*. Three rules make that safe:
//!
//! 1. No checkpoint refers to slots: before it captures the index it *settles* them, which gives each block a
//!    place of its own in the users' log. So a replay reads every fragment that counts.
//! 2. Bases and mini-log blocks do not count as live, and yet stay in place: a segment is written again only
//!    after a checkpoint that does not refer to it, and then nothing needs them.
//! 3. Users leave room for settling every slot.
//!
//! A scan of the whole map without a checkpoint meets mini-log blocks that were settled long ago, some of
//! them over other content. A [`Kind::Settled`] entry ends each settling: fragments with versions up to its
//! own are obsolete.

pub mod format;
pub(super) mod replay;
pub(super) mod slots;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use super::format::{Kind, MapEntry, block_checksum};
use super::index::{Location, Place, is_slot};
use super::stream::USERS;
use super::{Inner, Speed, State, commit};
use crate::block::{BLOCK_SIZE, Lba, StoreError, Version, Write};
use crate::device::{AlignedBuf, Purpose};
use format::{Builder, Fragment, MAX_COST, cost, entry_of};
use slots::Slot;

/// Slots that are settled under one hold of the lock.
const GROUP: usize = 64;
/// Maximum slots that a checkpoint settles under the lock while it captures the index.
pub(super) const FEW: usize = 4 * GROUP;
/// The urgency of a checkpoint at which settling begins.
pub(super) const EARLY: f64 = 0.5;
/// Slots that are settled for each write, where blocks are written again and again.
const LATE: f64 = 8.0;
/// The urgency at which settling stops waiting for writers.
const OVERDUE: f64 = 1.5;
/// Settling sleeps this long between two looks at the writers' progress.
const PAUSE: Duration = Duration::from_millis(10);

static ZEROS: LazyLock<Bytes> = LazyLock::new(|| AlignedBuf::zeroed(BLOCK_SIZE).freeze());

/// The open mini-log block, and the fragments of the earlier ones.
#[derive(Debug, Default)]
pub(super) struct Minis {
    open: Builder,
    /// Mini-log blocks since the last settling.
    pub(super) since: u64,
    /// Fragments since then of blocks that had a slot already: settled before, each of those blocks would have to be
    /// settled again.
    rewrites: u64,
    pub(super) counts: MiniCounts,
}

/// Counts of mini-logs since the chain was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MiniCounts {
    /// Blocks that were written in part.
    pub fragments: u64,
    /// Mini-log blocks.
    pub blocks: u64,
    /// Bytes written to them, in whole sectors.
    pub bytes: u64,
    /// Blocks that got a place of their own.
    pub settled: u64,
    /// Blocks without a place of their own now.
    pub slots: u64,
}

/// A value for each write of a transaction.
pub(super) type PerWrite<T> = SmallVec<[T; 8]>;

/// Which writes of a transaction become fragments of at most `most` bytes, heads included.
pub(super) fn small_writes(writes: &[Write], most: usize) -> PerWrite<bool> {
    let small = |write: &Write| write.content.is_some() && cost(&write.changed) <= most;
    writes.iter().map(small).map(|small| small && most > 0).collect()
}

/// Maximum mini-log blocks for these fragments, including the open one.
pub(super) fn blocks_for(writes: &[Write], small: &[bool]) -> u32 {
    let chosen = writes.iter().zip(small).filter(|(_, small)| **small);
    let costs = chosen.map(|(write, _)| cost(&write.changed));
    let (count, all, largest) = costs
        .fold((0, 0, 0), |(count, all, largest), cost| (count + 1, all + cost, cost.max(largest)));
    match count {
        0 => 0,
        // Each block but the last is so full that the largest fragment did not fit.
        _ => {
            let filled = (MAX_COST - largest).max(1);
            count.min(all / filled + 1) as u32 + 1
        }
    }
}

impl State {
    /// Blocks of the users' log that are reserved: one for each slot, for the open mini-log block, and for
    /// the entry that ends a settling.
    pub(super) fn owed(&self) -> u64 {
        let open = u64::from(!self.minis.open.is_empty());
        let mark = u64::from(open > 0 || self.minis.since > 0);
        self.slots.len() as u64 + open + mark
    }

    /// Appends the bytes that `write` changed to the open mini-log block. `begun` says whether a part of the
    /// transaction was appended before.
    pub(super) fn apply_fragment(
        &mut self,
        version: Version,
        write: &Write,
        content: &Bytes,
        begun: bool,
    ) -> Result<(), StoreError> {
        let lba = write.lba.0 as u32;
        if !self.minis.open.fits(version, cost(&write.changed)) {
            self.seal_mini(!begun)?;
        }
        debug_assert!(self.tells_all(lba, write, content), "undeclared bytes of {lba} changed");
        self.minis.open.add(&Fragment::of(lba, version, &write.changed, content));
        self.minis.counts.fragments += 1;
        let before = self.index.get(lba, Version(u64::MAX));
        self.minis.rewrites += u64::from(before.is_some_and(|at| is_slot(at.block)));
        let block = self.slots.take(Slot::new(lba, version, content.clone()));
        self.put(lba, version, Place::At(Location { block, check: 0 }));
        Ok(())
    }

    /// Whether `write` declares every byte in which it differs from the content in memory.
    fn tells_all(&self, lba: u32, write: &Write, content: &[u8]) -> bool {
        let before = match self.index.get(lba, Version(u64::MAX)) {
            Some(at) => self.unwritten_content(at.block),
            None => Some(&*ZEROS),
        };
        before.is_none_or(|before| {
            let mut after = before.to_vec();
            write.changed.copy(content, &mut after);
            after == content
        })
    }

    /// Appends the open mini-log block to the users' log; `last` when it ends a transaction.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] when no segment is free: users leave room for it.
    pub(super) fn seal_mini(&mut self, last: bool) -> Result<(), StoreError> {
        if self.minis.open.is_empty() {
            return Ok(());
        }
        if self.users.room() == 0 {
            self.roll(USERS, true)?;
        }
        let sealed = self.minis.open.seal(self.sector());
        self.minis.since += 1;
        self.minis.counts.blocks += 1;
        self.minis.counts.bytes += sealed.content.len() as u64;
        self.entries_since += 1;
        self.unwritten += 1;
        let entry = entry_of(&sealed, last);
        self.users.append(&entry, Some(sealed.content), Purpose::UserData);
        Ok(())
    }

    /// The largest write unit among the links' devices.
    fn sector(&self) -> usize {
        let sectors = self.segments.links.iter().map(|link| link.device.geometry().sector as usize);
        sectors.max().unwrap_or(BLOCK_SIZE).clamp(512, BLOCK_SIZE)
    }

    /// Gives the block in one slot a place of its own; false when there is none.
    fn settle_slot(&mut self) -> Result<bool, StoreError> {
        let Some((slot, of)) = self.slots.next() else { return Ok(false) };
        let (lba, version) = (of.lba, of.version);
        let name = Lba(u64::from(lba));
        let is_damaged = of.content.is_none();
        let (content, check) = match &of.content {
            Some(content) => (content.clone(), block_checksum(name, content)),
            // Its base could not be read: the block stays damaged for every reader.
            None => (ZEROS.clone(), !block_checksum(name, &ZEROS)),
        };
        let entry = MapEntry { kind: Kind::Moved, last: true, lba: name, version, check };
        let block = self.append(USERS, &entry, Some(content), Purpose::Cleaning)?;
        if is_damaged {
            // No reader gets the zeros from memory.
            self.pending.remove(&block);
        }
        self.segments.add_live(block);
        let to = Location { block, check };
        let found = self.index.relocate(lba, slot, Place::At(to));
        self.wishes.moved(lba, slot, to);
        debug_assert!(found, "a slot is in use as long as the index refers to it");
        self.minis.counts.settled += 1;
        // The block is dirty since its fragment came, because every checkpoint leaves no slot. A rebuild
        // writes a base, which has all blocks.
        self.reap();
        Ok(true)
    }

    /// Gives every block a place of its own. The index then refers to no slot.
    pub(super) fn settle_rest(&mut self) -> Result<(), StoreError> {
        self.seal_mini(true)?;
        while self.settle_slot()? {}
        self.minis.rewrites = 0;
        if std::mem::take(&mut self.minis.since) > 0 {
            let (lba, version) = (Lba(0), self.version);
            let entry = MapEntry { kind: Kind::Settled, last: true, lba, version, check: 0 };
            self.append(USERS, &entry, None, Purpose::Cleaning)?;
        }
        Ok(())
    }
}

/// Gives most blocks a place of their own ahead of a checkpoint, a group at a time. At [`Speed::Paced`] this
/// takes as long as writers need until the checkpoint is urgent, so that there is no burst; while they pause,
/// it goes on slowly.
pub(super) async fn settle(inner: &Arc<Inner>, speed: Speed) -> Result<(), StoreError> {
    // At full speed, new slots are left to the checkpoint itself. Once at full speed, it stays there.
    let mut left = None;
    let mut paused_at = None;
    loop {
        let step = {
            let state = inner.state.lock();
            state.poison_check()?;
            let urgency = state.checkpoint_urgency(&inner.options);
            let is_hasty = state.checkpoint_hurry || urgency >= OVERDUE || left.is_some();
            match speed == Speed::Full || is_hasty {
                true => Step::Settle(GROUP.min(*left.get_or_insert(state.slots.len()))),
                false => next_group(inner, &state, urgency, paused_at),
            }
        };
        match step {
            Step::Done | Step::Settle(0) => return Ok(()),
            Step::Settle(group) => {
                (paused_at, left) = (None, left.map(|left| left - group));
                settle_group(inner, group).await?;
            }
            Step::Pause(urgency) => {
                paused_at = Some(urgency);
                inner.env.sleep(PAUSE).await;
            }
        }
    }
}

/// The next step of settling in pace with writers.
enum Step {
    /// So few slots are left that the checkpoint can settle them itself.
    Done,
    /// Settling is ahead of writers; holds the checkpoint's urgency.
    Pause(f64),
    /// Settle this many slots.
    Settle(usize),
}

/// `paused_at` is the checkpoint's urgency before the last pause, if the last step was one.
fn next_group(inner: &Inner, state: &State, urgency: f64, paused_at: Option<f64>) -> Step {
    let slots = state.slots.len();
    let writers_pause = paused_at == Some(urgency);
    if slots <= FEW && (urgency >= 1.0 || writers_pause) {
        return Step::Done;
    }
    // The allowed number of slots falls linearly, to none when the checkpoint is urgent.
    let part = ((1.0 - urgency) / (1.0 - EARLY)).clamp(0.0, 1.0);
    let evenly = inner.options.mini_slots as f64 * EARLY * part;
    // Blocks that are written again and again are settled late, since each write until the checkpoint costs one more
    // settling: as many writes are left as there were, in proportion to the urgency.
    let rewrites = state.minis.rewrites as f64 * (1.0 - urgency).max(0.0) / urgency;
    match slots as f64 > evenly.max(rewrites * LATE) || writers_pause {
        true => Step::Settle(GROUP.min(slots)),
        false => Step::Pause(urgency),
    }
}

async fn settle_group(inner: &Arc<Inner>, group: usize) -> Result<(), StoreError> {
    let (is_full, tail) = {
        let mut state = inner.state.lock();
        state.poison_check()?;
        // Fragments in the open block are older than what is settled here.
        state.seal_mini(true)?;
        for _ in 0..group {
            if !state.settle_slot()? {
                break;
            }
        }
        if state.charge_cleaning(group as u32) {
            inner.clean_turn.notify_one();
        }
        let most = inner.background_bytes(&state, USERS);
        (state.moving[USERS] * BLOCK_SIZE >= most / 2, state.users.tail())
    };
    inner.bury_all();
    if is_full {
        commit::write_out(inner, tail).await?;
    }
    Ok(())
}
