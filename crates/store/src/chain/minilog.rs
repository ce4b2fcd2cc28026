//! Mini-logs: writes of parts of blocks share physical blocks (Isotope 4.2.3, proposed there).
//!
//! A write that changed little of its block appends a *fragment*, the changed bytes alone, to the
//! open mini-log block. That becomes an entry of the users' log ([`Kind::Mini`]) when it is full, when
//! a round begins, and before anything else is appended: so the log's order is that of versions, and
//! a transaction of whole blocks and fragments ends with the mini-log block that holds its last one.
//! Only the sectors in use are written.
//!
//! A block written so has a slot rather than a physical block: the index refers to that, and readers
//! find the content, which the writer gave whole, in the slot. What it held before its first
//! fragment, its *base*, is needed by nobody but a replay. Three rules keep that sound:
//!
//! 1. A checkpoint knows no slots: before it notes the index it *settles* them, which gives each
//!    block a place of its own in the users' log. So a replay meets every fragment that counts.
//! 2. Bases and mini-log blocks do not count as live, and yet stay in place: a segment is written
//!    again only after a checkpoint that does not refer to it, and then nothing needs them.
//! 3. Users leave room for settling every slot.
//!
//! Whoever reads the whole map without a checkpoint meets mini-log blocks that served long ago, some
//! of them over other content. A [`Kind::Settled`] entry ends each settling: fragments with versions
//! up to its own have served.

pub mod format;
pub(super) mod replay;
pub(super) mod slots;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;

use super::format::{Kind, MapEntry, block_checksum};
use super::index::{Location, Place};
use super::stream::USERS;
use super::{Inner, Speed, State, commit};
use crate::block::{BLOCK_SIZE, Lba, StoreError, Version, Write};
use crate::device::{AlignedBuf, Purpose};
use format::{Builder, Fragment, MAX_COST, cost, entry_of};
use slots::Slot;

/// Slots that are settled under one lock.
const GROUP: usize = 64;
/// Slots that a checkpoint settles while it is noted.
pub(super) const FEW: usize = 4 * GROUP;
/// How urgent a checkpoint is when settling begins.
pub(super) const EARLY: f64 = 0.5;
/// How urgent it is when settling waits for writers no longer.
const OVERDUE: f64 = 1.5;
/// The pause after which settling looks what writers did, or goes on without them.
const PAUSE: Duration = Duration::from_millis(10);

static ZEROS: LazyLock<Bytes> = LazyLock::new(|| AlignedBuf::zeroed(BLOCK_SIZE).freeze());

/// The open mini-log block, and what the earlier ones hold.
#[derive(Debug, Default)]
pub(super) struct Minis {
    open: Builder,
    /// Mini-log blocks since the last settling.
    pub(super) since: u64,
    pub(super) counts: MiniCounts,
}

/// What mini-logs did since the chain was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MiniCounts {
    /// Blocks of which a part was written.
    pub fragments: u64,
    /// Mini-log blocks.
    pub blocks: u64,
    /// Bytes of them that were written: whole sectors.
    pub bytes: u64,
    /// Blocks that got a place of their own.
    pub settled: u64,
    /// Blocks without a place of their own now.
    pub slots: u64,
}

/// Which writes of a transaction are fragments of at most `most` bytes, heads included.
pub(super) fn small_writes(writes: &[Write], most: usize) -> Vec<bool> {
    let small = |write: &Write| write.content.is_some() && cost(&write.changed) <= most;
    let mut chosen: Vec<bool> = writes.iter().map(small).collect();
    let mut lbas: Vec<Lba> = writes.iter().map(|write| write.lba).collect();
    lbas.sort_unstable();
    // Later writes to the same block win, which fragments apart from whole blocks would not know.
    if most == 0 || lbas.windows(2).any(|pair| pair[0] == pair[1]) {
        chosen.fill(false);
    }
    chosen
}

/// At most so many mini-log blocks hold these fragments, that which is open now included.
pub(super) fn blocks_for(writes: &[Write], small: &[bool]) -> u32 {
    let chosen = writes.iter().zip(small).filter(|(_, small)| **small);
    let costs: Vec<usize> = chosen.map(|(write, _)| cost(&write.changed)).collect();
    match costs.iter().max() {
        // Each block but the last is so full that the largest fragment did not fit.
        Some(largest) => {
            let filled = (MAX_COST - largest).max(1);
            costs.len().min(costs.iter().sum::<usize>() / filled + 1) as u32 + 1
        }
        None => 0,
    }
}

impl State {
    /// Blocks of the users' log that are spoken for: one for each slot, for the open mini-log block,
    /// and for the entry that ends a settling.
    pub(super) fn owed(&self) -> u64 {
        let open = u64::from(!self.minis.open.is_empty());
        let mark = u64::from(open > 0 || self.minis.since > 0);
        self.slots.len() as u64 + open + mark
    }

    /// Appends what `write` changed to the open mini-log block. `begun` says whether a part of the
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
        debug_assert!(self.tells_all(lba, write, content), "bytes of {lba} changed untold");
        self.minis.open.add(&Fragment::of(lba, version, &write.changed, content));
        self.minis.counts.fragments += 1;
        let block = self.slots.take(Slot::new(lba, version, content.clone()));
        self.put(lba, version, Place::At(Location { block, check: 0 }));
        Ok(())
    }

    /// Whether `write` differs from what is in memory only where it says so.
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

    /// What every link writes whole.
    fn sector(&self) -> usize {
        let sectors = self.segments.links.iter().map(|link| link.device.geometry().sector as usize);
        sectors.max().unwrap_or(BLOCK_SIZE).clamp(512, BLOCK_SIZE)
    }

    /// Gives the block in one slot a place of its own; false when there is none.
    fn settle_slot(&mut self) -> Result<bool, StoreError> {
        let Some((slot, of)) = self.slots.next() else { return Ok(false) };
        let (lba, version) = (of.lba, of.version);
        let name = Lba(u64::from(lba));
        let (content, check) = match &of.content {
            Some(content) => (content.clone(), block_checksum(name, content)),
            // Its base could not be read: it stays damaged, whoever asks.
            None => (ZEROS.clone(), !block_checksum(name, &ZEROS)),
        };
        let entry = MapEntry { kind: Kind::Moved, last: true, lba: name, version, check };
        let block = self.append(USERS, &entry, Some(content), Purpose::Cleaning)?;
        self.segments.add_live(block);
        let to = Location { block, check };
        let found = self.index.relocate(lba, slot, Place::At(to));
        self.wishes.moved(lba, slot, to);
        debug_assert!(found, "a slot is in use as long as the index refers to it");
        self.minis.counts.settled += 1;
        // The block is among the dirty ones since its fragment came: every checkpoint leaves no slot.
        // What a rebuild makes goes to a base, which has all blocks.
        self.reap();
        Ok(true)
    }

    /// Gives every block a place of its own. The index then refers to no slot.
    pub(super) fn settle_rest(&mut self) -> Result<(), StoreError> {
        self.seal_mini(true)?;
        while self.settle_slot()? {}
        if std::mem::take(&mut self.minis.since) > 0 {
            let (lba, version) = (Lba(0), self.version);
            let entry = MapEntry { kind: Kind::Settled, last: true, lba, version, check: 0 };
            self.append(USERS, &entry, None, Purpose::Cleaning)?;
        }
        Ok(())
    }
}

/// Gives most blocks a place of their own ahead of a checkpoint, a group at a time. At
/// [`Speed::Paced`] this takes as long as writers need until the checkpoint is urgent, so that there is
/// no burst; while they pause, it goes on slowly.
pub(super) async fn settle(inner: &Arc<Inner>, speed: Speed) -> Result<(), StoreError> {
    // At full speed, slots that come meanwhile are left to the checkpoint itself. It stays at that speed.
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

/// What settling in step with writers does next.
enum Step {
    /// So few slots are left that the checkpoint can be noted.
    Done,
    /// Settling is ahead of writers; how urgent the checkpoint is.
    Pause(f64),
    /// So many slots.
    Settle(usize),
}

/// `paused_at` is how urgent the checkpoint was before a pause, if there was one just now.
fn next_group(inner: &Inner, state: &State, urgency: f64, paused_at: Option<f64>) -> Step {
    let slots = state.slots.len();
    let writers_pause = paused_at == Some(urgency);
    if slots <= FEW && (urgency >= 1.0 || writers_pause) {
        return Step::Done;
    }
    // The slots that may be left fall evenly, to none when the checkpoint is urgent.
    let part = ((1.0 - urgency) / (1.0 - EARLY)).clamp(0.0, 1.0);
    let may_stay = (inner.options.mini_slots as f64 * EARLY * part) as usize;
    match slots > may_stay || writers_pause {
        true => Step::Settle(GROUP.min(slots)),
        false => Step::Pause(urgency),
    }
}

async fn settle_group(inner: &Arc<Inner>, group: usize) -> Result<(), StoreError> {
    let (is_full, tail) = {
        let mut state = inner.state.lock();
        state.poison_check()?;
        // What was appended to the open block is older than what is settled here.
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
