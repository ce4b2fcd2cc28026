//! Writes: from a transaction to the tail's device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::MutexGuard;
use thalweg_env::Time;

use super::format::{Position, block_checksum};
use super::index::is_slot;
use super::minilog::format::MAX_COST;
use super::minilog::{blocks_for, small_writes};
use super::stages::{Cause, Stage};
use super::state::{Dead, Need, Room};
use super::stream::{BODY, Batch, Stream, USERS};
use super::{Counts, Inner, State};
use crate::block::{BLOCK_SIZE, Hold, Lba, StoreError, Version, Write};
use crate::device::{FrameBuf, Purpose};

/// Blocks in one request to a device.
pub(super) const BATCH_BLOCKS: usize = 256;
/// Queued blocks from which on a writer sends them without a flush.
pub(super) const LAZY_BLOCKS: usize = 128;
/// Large requests of one log at a time: one is written while the next waits. With more, a disk that reorders
/// requests by its head's position leaves gaps behind and seeks back for them.
const REQUESTS: usize = 2;
/// Small requests of one log at a time, with less than [`BATCH_BLOCKS`] together: mini-log blocks that are
/// not contiguous. One after the other, each would cost a device's whole latency.
const SMALL_REQUESTS: usize = 32;
/// Maximum blocks in one transaction on any volume. It may span several segments.
const MAX_TRANSACTION: usize = 1 << 16;
/// Minimum of that maximum on a small volume.
const MIN_TRANSACTION: usize = 256;
/// The divisor that gives a transaction's maximum part of a volume: cleaning has to make that much room at a
/// time.
const TRANSACTIONS: usize = 8;
/// Maximum blocks in one discard record, which bounds the time under the lock.
const DISCARD_BLOCKS: u64 = 64 * 1024;

/// See [`crate::block::BlockStore::apply`], and with `hold` [`crate::block::BlockStore::apply_and_hold`].
pub(super) async fn apply(
    inner: &Arc<Inner>,
    writes: Vec<Write>,
    hold: bool,
) -> Result<(Version, Option<Hold>), StoreError> {
    check_writes(inner, &writes)?;
    let small = small_writes(&writes, inner.options.mini_bytes.min(MAX_COST));
    let check = |(write, small): (&Write, &bool)| match &write.content {
        Some(content) if !small => block_checksum(write.lba, content),
        _ => 0,
    };
    let checks: Vec<u32> = writes.iter().zip(&small).map(check).collect();
    let blocks = writes.len() as u32;
    let slots = small.iter().filter(|small| **small).count() as u32;
    let need = Need { live: blocks, blocks: blocks - slots + blocks_for(&writes, &small), slots };
    let version = with_room(inner, need, |state| {
        let version = state.apply(&writes, &checks, &small)?;
        if hold {
            state.holds.take(version);
        }
        Ok(version)
    })
    .await?;
    Counts::add(&inner.counts.user_blocks_written, u64::from(blocks));
    Ok((version, hold.then(|| inner.release_later(version))))
}

/// See [`crate::block::BlockStore::discard`].
pub(super) async fn discard(
    inner: &Arc<Inner>,
    lba: Lba,
    count: u64,
) -> Result<Version, StoreError> {
    check_range(inner, lba, count)?;
    let mut version = inner.state.lock().version;
    let mut at = lba.0;
    while at < lba.0 + count {
        let run = (lba.0 + count - at).min(DISCARD_BLOCKS);
        let stored = inner.state.lock().allocation(Lba(at), run, Version(u64::MAX));
        if stored.iter().any(|(_, stored)| *stored) {
            version = with_room(inner, Need::whole(1), |state| state.discard(Lba(at), run as u32))
                .await?;
        }
        at += run;
    }
    Ok(version)
}

pub(super) fn check_range(inner: &Inner, lba: Lba, count: u64) -> Result<(), StoreError> {
    let blocks = inner.blocks();
    match lba.0.checked_add(count) {
        Some(end) if end <= blocks => Ok(()),
        _ => Err(StoreError::Invalid(format!(
            "blocks {} to {} leave a volume of {blocks} blocks",
            lba.0,
            lba.0.saturating_add(count)
        ))),
    }
}

/// Whether an ordinary transaction finds room once the devices have written the queued blocks.
pub(super) fn has_room(inner: &Inner) -> bool {
    let need = Need::whole(MIN_TRANSACTION as u32);
    matches!(inner.state.lock().room(need), Room::Yes)
}

/// See [`crate::block::BlockStore::max_transaction`].
pub(super) fn max_transaction(inner: &Inner) -> usize {
    let part = inner.state.lock().capacity() as usize / TRANSACTIONS;
    part.clamp(MIN_TRANSACTION, MAX_TRANSACTION)
}

fn check_writes(inner: &Inner, writes: &[Write]) -> Result<(), StoreError> {
    let most = max_transaction(inner);
    if writes.is_empty() || writes.len() > most {
        return Err(StoreError::Invalid(format!(
            "a transaction has 1 to {most} blocks, not {}",
            writes.len()
        )));
    }
    let highest = writes.iter().map(|write| write.lba).max().unwrap_or(Lba(0));
    check_range(inner, highest, 1)?;
    for write in writes {
        if write.content.as_ref().is_some_and(|content| content.len() != BLOCK_SIZE) {
            return Err(StoreError::Invalid(format!("a block has {BLOCK_SIZE} bytes")));
        }
    }
    Ok(())
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
    if state.ended_within > 0 && !matches!(state.room(need), Room::Yes) {
        state.settle_holds();
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
        Room::Full => return Err(StoreError::NoSpace),
    })
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
            if state.stream(log).queued() >= LAZY_BLOCKS {
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

/// Writes a batch to its link and records that it arrived.
pub(super) async fn write_batch(inner: &Inner, batch: Batch) -> Result<(), StoreError> {
    let (device, link, offset) = {
        let state = inner.state.lock();
        let place = state.segments.place(batch.first);
        // A link leaves the chain only when nothing is written to it any more.
        let (link, offset) = place.expect("a batch is written to a segment of the chain");
        (state.segments.links[link].device.clone(), link, offset)
    };
    let contents = batch.contents.clone();
    let (bytes, since) = (contents.iter().map(Bytes::len).sum(), inner.env.now());
    let under_way = inner.rates[batch.log].begin(bytes);
    let written = device.write(offset, contents, batch.purpose).await;
    under_way.end(inner.stage(Stage::DeviceWrite, since).since(since));
    written.map_err(|error| inner.fail(error))?;
    finish(inner, &batch, link);
    inner.written.notify_waiters();
    inner.room.notify_waiters();
    Ok(())
}

/// Takes the blocks of a batch from `pending`; live ones go to the tail cache.
fn finish(inner: &Inner, batch: &Batch, link: usize) {
    let mut kept: Vec<(u64, Bytes)> = Vec::with_capacity(batch.contents.len());
    {
        let state = inner.state.lock();
        let cached = batch.purpose == Purpose::UserData || link == state.tail_link();
        for at in 0..batch.contents.len() {
            let block = batch.first + at as u32;
            if let Some(content) = state.pending.get(&block).filter(|_| cached) {
                kept.push((u64::from(block), content.clone()));
            }
        }
    }
    if batch.purpose != Purpose::UserData {
        // Blocks that cleaning read are slices of long runs, which they would keep alive.
        kept.iter_mut().for_each(|(_, content)| *content = FrameBuf::copy_block(content));
    }
    inner.tail_cache.put_all(kept);
    let mut state = inner.state.lock();
    for at in 0..batch.contents.len() {
        state.pending.remove(&(batch.first + at as u32));
    }
    state.unwritten -= batch.contents.len();
    if batch.purpose == Purpose::Cleaning {
        state.moving[batch.log] -= batch.contents.len();
    }
    if batch.log == USERS {
        state.turns.wrote(inner.env.now());
    }
    state.stream(batch.log).finish_batch(batch.start, link);
}

/// Whether a log has the maximum of requests under way.
fn is_busy(stream: &Stream) -> bool {
    let (requests, blocks) = stream.in_flight();
    requests >= SMALL_REQUESTS || (requests >= REQUESTS && blocks >= BATCH_BLOCKS)
}

/// Takes queued blocks below `until` and writes them, several requests at a time.
pub(super) async fn drain(
    inner: &Arc<Inner>,
    log: usize,
    until: Position,
) -> Result<(), StoreError> {
    let mut requests = FuturesUnordered::new();
    loop {
        let written = inner.written.notified();
        let waits = loop {
            let mut state = inner.state.lock();
            state.poison_check()?;
            let held = log == USERS && state.turns.holds_writers();
            let stream = state.stream(log);
            if is_busy(stream) || held {
                break stream.is_queued(until);
            }
            match stream.take_batch(until, BATCH_BLOCKS) {
                Some(batch) => requests.push(write_batch(inner, batch)),
                None => break false,
            }
        };
        match requests.next().await {
            Some(result) => result?,
            // Another task has the maximum of requests under way, or reads hold the drive.
            None if waits => written.await,
            None => return Ok(()),
        }
    }
}

/// Writes a log's queue as it fills.
pub(super) async fn run_writer(inner: Arc<Inner>, log: usize) {
    loop {
        inner.queue_kick[log].notified().await;
        let mut requests = FuturesUnordered::new();
        loop {
            loop {
                let batch = {
                    let mut state = inner.state.lock();
                    // Without a log of compaction there is one writer, which keeps the order.
                    let exists = log == USERS || state.body.is_some();
                    let held = log == USERS && state.turns.holds_writers();
                    let stream = state.stream(log);
                    let enough =
                        exists && !held && stream.wants_writing(LAZY_BLOCKS) && !is_busy(stream);
                    let until = stream.tail();
                    enough.then(|| stream.take_batch(until, BATCH_BLOCKS)).flatten()
                };
                match batch {
                    Some(batch) => requests.push(write_batch(&inner, batch)),
                    None => break,
                }
            }
            match requests.next().await {
                Some(Ok(())) => {}
                Some(Err(_)) => return,
                None => break,
            }
        }
    }
}
