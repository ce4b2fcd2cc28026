//! Writes: from a transaction to the queue of its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::MutexGuard;
use thalweg_env::Time;

use super::format::{Kind, MapEntry, block_checksum};
use super::index::is_slot;
use super::minilog::format::MAX_COST;
use super::minilog::{PerWrite, blocks_for, small_writes};
use super::room::{Need, Room};
use super::stages::{Cause, Stage};
use super::state::Dead;
use super::stream::{BODY, USERS};
use super::tap::Change;
use super::{ChainError, Counts, Inner, State, queue};
use crate::block::{
    Applied, BLOCK_SIZE, Backpressure, Lba, Retention, StoreError, Version, Write, WriteList,
};
use crate::device::Purpose;

/// Maximum blocks in one transaction on any volume. It may span several segments.
const MAX_TRANSACTION: usize = 1 << 16;
/// Minimum of that maximum on a small volume.
const MIN_TRANSACTION: usize = 256;
/// The divisor that gives a transaction's maximum part of a volume: cleaning has to make that much room at a
/// time.
const TRANSACTIONS: usize = 8;
/// Maximum blocks in one discard record, which bounds the time under the lock.
pub(super) const DISCARD_BLOCKS: u64 = 64 * 1024;

/// See [`crate::block::Blocks::submit`] and [`crate::block::Lineage::submit_at`]. Writers wait for cleaning before they are applied, each in its
/// turn, so that no backpressure is left for afterwards.
pub(super) async fn apply(
    inner: &Arc<Inner>,
    writes: &WriteList,
    retention: Retention,
    at: Option<Version>,
) -> Result<Applied, StoreError> {
    let hold = retention == Retention::Hold;
    check_writes(inner, writes)?;
    let small = small_writes(writes, inner.options.mini_bytes.min(MAX_COST));
    let check = |(write, small): (&Write, &bool)| match &write.content {
        Some(content) if !small => block_checksum(write.lba, content),
        _ => 0,
    };
    let checks: PerWrite<u32> = writes.iter().zip(&small).map(check).collect();
    let blocks = entries(writes) as u32;
    let slots = small.iter().filter(|small| **small).count() as u32;
    let leap = u32::from(at.is_some());
    let need =
        Need { live: blocks, blocks: blocks - slots + blocks_for(writes, &small) + leap, slots };
    let version = with_room(inner, need, |state| {
        if at.is_none() {
            // It may have waited for room since it was checked.
            inner.check_fence()?;
        }
        let version = state.version.or_next(at)?;
        state.leap_to(version)?;
        state.apply(version, writes, &checks, &small)?;
        if let Some(tap) = &state.tap {
            tap.changed(version, Change::Writes(writes));
        }
        if hold {
            state.holds.take(version);
        }
        Ok(version)
    })
    .await?;
    Counts::add(&inner.counts.user_blocks_written, writes.len() as u64);
    let hold = hold.then(|| inner.release_later(version));
    Ok(Applied::new(version, hold, Backpressure::NONE))
}

/// See [`crate::block::Blocks::discard`].
pub(super) async fn discard(
    inner: &Arc<Inner>,
    lba: Lba,
    count: u64,
) -> Result<Version, StoreError> {
    inner.check_range(lba, count)?;
    let mut version = inner.state.lock().version;
    let mut at = lba.0;
    while at < lba.0 + count {
        let run = (lba.0 + count - at).min(DISCARD_BLOCKS);
        let stored = inner.state.lock().allocation(Lba(at), run, Version(u64::MAX));
        if stored.iter().any(|(_, stored)| *stored) {
            version = discard_as(inner, Lba(at), run as u32, None).await?;
        }
        at += run;
    }
    Ok(version)
}

/// Discards a run as the version `at`, or else the next.
pub(super) async fn discard_as(
    inner: &Arc<Inner>,
    lba: Lba,
    count: u32,
    at: Option<Version>,
) -> Result<Version, StoreError> {
    with_room(inner, Need::whole(1 + u32::from(at.is_some())), |state| {
        if at.is_none() {
            // It may have waited for room since it was checked.
            inner.check_fence()?;
        }
        let version = state.version.or_next(at)?;
        state.leap_to(version)?;
        state.discard(version, lba, count)?;
        if let Some(tap) = &state.tap {
            tap.changed(version, Change::Discard { lba, count });
        }
        Ok(version)
    })
    .await
}

/// Discards the blocks from `lba` on, in which nothing is stored, for a volume that is about to become smaller; returns the
/// last of the versions for that, and their number.
///
/// # Errors
/// That of `check`, which is called under the lock, and those of a discard.
pub(super) async fn discard_end(
    inner: &Arc<Inner>,
    lba: Lba,
    check: impl FnOnce(&State) -> Result<(), ChainError>,
) -> Result<(Version, u64), ChainError> {
    let runs = |end: u64| (lba.0..end).step_by(DISCARD_BLOCKS as usize);
    let most = runs(inner.blocks.load(Ordering::Acquire)).count() as u32;
    let mut refused = Ok(());
    let discarded = with_room(inner, Need::whole(most), |state| {
        refused = check(state);
        if refused.is_err() {
            return Ok((state.version, 0));
        }
        let end = state.index.blocks();
        for at in runs(end) {
            let count = (end - at).min(DISCARD_BLOCKS) as u32;
            let version = state.version.next();
            state.discard(version, Lba(at), count)?;
            if let Some(tap) = &state.tap {
                tap.changed(version, Change::Discard { lba: Lba(at), count });
            }
        }
        Ok((state.version, runs(end).count() as u64))
    })
    .await?;
    refused.map(|()| discarded)
}

/// Whether cleaning makes no room for a block unless others die, such as those of old versions. Otherwise a writer
/// waits for the cleaner, a checkpoint or devices, and they end the wait whatever versions are held.
pub(super) fn is_full(inner: &Inner) -> bool {
    matches!(inner.state.lock().room(Need::whole(1)), Room::Full)
}

/// See [`crate::block::Blocks::max_transaction`].
pub(super) fn max_transaction(inner: &Inner) -> usize {
    let part = inner.state.lock().capacity() as usize / TRANSACTIONS;
    part.clamp(MIN_TRANSACTION, MAX_TRANSACTION)
}

/// Entries of a transaction in the log: adjacent discards share one.
fn entries(writes: &[Write]) -> usize {
    if !writes.is_sorted_by(|a, b| a.lba < b.lba) {
        return writes.len();
    }
    let shares = |pair: &&[Write]| {
        let is_discard = pair.iter().all(|write| write.content.is_none());
        is_discard && pair[0].lba.0 + 1 == pair[1].lba.0
    };
    writes.len() - writes.windows(2).filter(shares).count()
}

fn check_writes(inner: &Inner, writes: &[Write]) -> Result<(), StoreError> {
    let most = max_transaction(inner);
    let count = entries(writes);
    if count == 0 || count > most {
        return Err(StoreError::Invalid(format!(
            "a transaction has 1 to {most} blocks, not {count}"
        )));
    }
    let highest = writes.iter().map(|write| write.lba).max().unwrap_or(Lba(0));
    inner.check_range(highest, 1)
}

/// Runs `change` under the lock as soon as there is room for it, and wakes the tasks that it concerns.
async fn with_room<T>(
    inner: &Arc<Inner>,
    need: Need,
    change: impl FnOnce(&mut State) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let begun = inner.env.now();
    if inner.line.is_empty() {
        let mut state = inner.state.lock();
        state.poison_check()?;
        if wait_cause(inner, &mut state, need)?.is_none() {
            return change_now(inner, state, need, begun, change);
        }
    }
    let _first = inner.line.stand().await;
    let mut waited = None;
    loop {
        let cause = {
            let mut state = inner.state.lock();
            state.poison_check()?;
            match wait_cause(inner, &mut state, need)? {
                Some(cause) => cause,
                None => {
                    let since = inner.stage(Stage::WriteWait, begun);
                    return change_now(inner, state, need, since, change);
                }
            }
        };
        // Registered before the next look at the state, so that no wake-up is lost.
        if let Some(room) = waited.replace(inner.room.notified()) {
            let _counted = inner.waiting_for(cause);
            let _urgent = (cause == Cause::Cleaning).then(|| Urgent::new(inner));
            room.await;
        }
    }
}

/// Runs `change`, for which there is room.
fn change_now<T>(
    inner: &Inner,
    mut state: MutexGuard<'_, State>,
    need: Need,
    since: Time,
    change: impl FnOnce(&mut State) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let result = change(&mut state);
    if state.charge_cleaning(need.blocks) {
        inner.clean_turn.notify_one();
    }
    inner.after_append(&mut state);
    let dead = std::mem::take(&mut state.dead);
    drop(state);
    inner.bury(dead);
    inner.stage(Stage::WriteApply, since);
    result
}

/// The queue of writers that wait for room, first come, first served.
#[derive(Debug, Default)]
pub(super) struct Line {
    first: tokio::sync::Mutex<()>,
    standing: AtomicUsize,
}

/// A place in the queue, until it is dropped; held by the first writer.
pub(super) struct Place<'a> {
    line: &'a Line,
    first: Option<tokio::sync::MutexGuard<'a, ()>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.standing.fetch_sub(1, Ordering::Relaxed);
        self.first = None;
    }
}

impl Line {
    fn is_empty(&self) -> bool {
        self.standing.load(Ordering::Relaxed) == 0
    }

    /// Waits until earlier writers have what they need.
    async fn stand(&self) -> Place<'_> {
        self.standing.fetch_add(1, Ordering::Relaxed);
        let mut place = Place { line: self, first: None };
        place.first = Some(self.first.lock().await);
        place
    }
}

/// The reason why a writer has to wait; `None` when there is room. Wakes the tasks that can end the wait.
fn wait_cause(inner: &Inner, state: &mut State, need: Need) -> Result<Option<Cause>, StoreError> {
    if !matches!(state.room(need), Room::Yes) {
        state.lapse_all();
        if state.ended_within > 0 {
            state.settle_holds();
        }
        state.reap();
    }
    let dirty = (state.unwritten - state.moving[BODY]) * BLOCK_SIZE;
    let is_crowded = need.slots > 0 && state.slots.len() >= 2 * inner.options.mini_slots;
    Ok(match state.room(need) {
        _ if state.frozen > 0 => Some(Cause::Change),
        _ if is_crowded => {
            inner.hurry_checkpoint(state);
            Some(Cause::Checkpoint)
        }
        Room::Yes if !state.keeps_pace() => Some(Cause::Cleaning),
        Room::Yes if dirty < inner.options.dirty_bytes => None,
        Room::Yes => {
            inner.queue_kick.iter().for_each(|kick| kick.notify_one());
            Some(Cause::Device)
        }
        Room::Wait => {
            inner.clean_kick.notify_one();
            // Settled slots leave dead blocks behind, and need no more room.
            if state.segments.can_free() || state.slots.len() > super::minilog::FEW {
                inner.hurry_checkpoint(state);
            }
            Some(Cause::Cleaning)
        }
        Room::Full if state.segments.can_free() => {
            inner.hurry_checkpoint(state);
            Some(Cause::Checkpoint)
        }
        // Their room is free again as soon as their owners have heard of it.
        Room::Full if inner.ask_holds() => Some(Cause::Change),
        Room::Full => return Err(StoreError::NoSpace),
    })
}

impl State {
    /// Discards a run as `version`.
    pub(super) fn discard(
        &mut self,
        version: Version,
        lba: Lba,
        count: u32,
    ) -> Result<(), StoreError> {
        self.seal_mini(true)?;
        let entry = MapEntry { kind: Kind::Discard, last: true, lba, version, check: count };
        let record = self.append(USERS, &entry, None, Purpose::Map)?;
        self.put_discard(lba.0 as u32, count, version, record);
        self.version = version;
        Ok(())
    }
}

/// A writer that waits for cleaning, until it is dropped: cleaning takes no pauses meanwhile.
struct Urgent<'a>(&'a Inner);

impl Urgent<'_> {
    fn new(inner: &Inner) -> Urgent<'_> {
        inner.state.lock().cleaning.waiting += 1;
        inner.clean_turn.notify_one();
        Urgent(inner)
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.state.lock().cleaning.waiting -= 1;
    }
}

impl Inner {
    /// Wakes the tasks that an append concerns.
    pub(super) fn after_append(&self, state: &mut State) {
        for log in [super::stream::USERS, super::stream::BODY] {
            if state.stream(log).queued() >= queue::LAZY_BLOCKS {
                self.queue_kick[log].notify_one();
            }
        }
        self.check_roles(state);
        if state.wants_checkpoint(&self.options) {
            self.checkpoint_kick.notify_one();
        }
        if self.options.auto_clean && state.wants_cleaning() {
            self.clean_kick.notify_one();
        }
    }

    /// Maximum bytes of cleaning and settling queued for a log's device or under way to it.
    pub(super) fn background_bytes(&self, state: &State, log: usize) -> usize {
        let has_arm = state.segments.has_arm();
        self.rates[log].background_bytes(has_arm, self.options.dirty_bytes / 2)
    }

    /// Asks for a checkpoint at once.
    pub(super) fn hurry_checkpoint(&self, state: &mut State) {
        state.checkpoint_hurry = true;
        self.checkpoint_kick.notify_one();
    }

    /// Removes dead blocks from the caches, and frees their contents.
    pub(super) fn bury(&self, dead: Vec<Dead>) {
        for block in dead.iter().map(|dead| dead.block).filter(|block| !is_slot(*block)) {
            self.tail_cache.remove(u64::from(block));
            if let Some(cache) = &self.body_cache {
                cache.remove(u64::from(block));
            }
        }
    }

    /// Buries what has died so far.
    pub(super) fn bury_all(&self) {
        let dead = std::mem::take(&mut self.state.lock().dead);
        self.bury(dead);
    }
}
