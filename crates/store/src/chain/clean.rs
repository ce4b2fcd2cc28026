//! Cleaning: live blocks leave a segment, so that it can be written again.
//!
//! *Move-to-tail* (Gecko 3.1) appends them to the users' log; *compact-in-body* (3.1.3) to a log of its own,
//! which leaves the tail's drive alone where the body has another, and keeps old blocks apart from what users
//! just wrote. Cleaning copies the record of a discard, one entry for one, as long as any block is absent
//! because of it.
//!
//! - [`victim`]: which segment is cleaned;
//! - [`pace`]: when, and how fast;
//! - [`logs`]: where to;
//! - [`damaged`]: segments that are not cleaned, until they are repaired.

mod damaged;
mod logs;
pub(super) mod pace;
mod victim;

use std::sync::Arc;

use async_recursion::async_recursion;
use bytes::Bytes;
use futures::future::{Either, select};
use futures::{StreamExt, stream};
use zerocopy::FromBytes;

use super::format::{Kind, MapEntry, MapSector, SECTOR, block_checksum};
use super::index::Location;
use super::read::{Pin, read_copies};
use super::stages::Stage;
use super::stream::{BODY, USERS};
use super::{Counts, Inner, Speed, State, checkpoint};
use crate::block::{BLOCK_SIZE, Lba, StoreError};
use crate::device::Purpose;
use pace::GROUP;
use victim::Order;

/// Blocks in one request to the body.
const RUN_BLOCKS: usize = 256;
/// Runs read ahead of the one that is being moved, so that the body's drive does not idle.
const RUNS_AHEAD: usize = 2;
/// Dead blocks between live ones that a read includes rather than skips.
const GAP_BLOCKS: u32 = 16;
/// Blocks with several versions that are examined between two segments.
const AGE_BLOCKS: usize = 16 * 1024;

/// Cleans when free segments become few.
pub(super) async fn run_cleaner(inner: Arc<Inner>) {
    loop {
        inner.clean_kick.notified().await;
        let result = clean_until_enough(&inner).await;
        end_pace(&inner);
        if let Err(error) = result {
            tracing::warn!(volume = %inner.volume, %error, "cleaning stops");
            return;
        }
    }
}

/// Ends the pace of writers: they keep step with the cleaner only while it works.
fn end_pace(inner: &Inner) {
    let worked = inner.state.lock().cleaning.end();
    if worked {
        inner.room.notify_waiters();
    }
}

async fn clean_until_enough(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut is_tight = false;
    while let Some(order) = next_step(inner)? {
        let order = if is_tight { Order::FewestLive } else { order };
        let _cleaning = match inner.cleaning_lock.try_lock() {
            Ok(lock) => lock,
            Err(_) => {
                // The task that holds it changes the volume, which may take long.
                end_pace(inner);
                inner.cleaning_lock.lock().await
            }
        };
        let Some(victim) = victim::choose(inner, order) else {
            give_up(inner);
            return Ok(());
        };
        let before = {
            let mut state = inner.state.lock();
            let per = state.segments.per();
            state.cleaning.begin(victim.live, per);
            state.segments.gains()
        };
        match clean_segment(inner, victim.id, Speed::Paced).await {
            // There may be room for the blocks of another one.
            Err(StoreError::NoSpace) if order != Order::FewestLive => is_tight = true,
            Err(StoreError::NoSpace) => {
                if inner.state.lock().segments.gains() == before {
                    give_up(inner);
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
            Ok(()) => is_tight = false,
        }
        free_emptied(inner).await?;
    }
    Ok(())
}

/// Ends cleaning that gains nothing. A checkpoint wakes it again if it will gain something then; else writers that wait for
/// it hear that there is no room.
fn give_up(inner: &Inner) {
    let mut state = inner.state.lock();
    if state.gains_later() {
        state.await_checkpoint();
        inner.hurry_checkpoint(&mut state);
        return;
    }
    state.note_in_vain();
    drop(state);
    inner.room.notify_waiters();
}

/// How the next victim is chosen; `None` when enough segments are free.
fn next_step(inner: &Inner) -> Result<Option<Order>, StoreError> {
    let mut state = inner.state.lock();
    state.poison_check()?;
    if state.awaits_checkpoint() {
        return Ok(None);
    }
    state.settle_some(AGE_BLOCKS);
    state.reap();
    if state.wants_cleaning() {
        state.settle_holds();
        state.reap();
    }
    let (wanted, is_urgent) = (state.wants_cleaning(), state.is_short_of_segments());
    drop(state);
    inner.bury_all();
    Ok(wanted.then_some(if is_urgent { Order::FewestLive } else { Order::CostBenefit }))
}

/// Has a checkpoint free the segments that cleaning emptied before users need them.
async fn free_emptied(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let (is_urgent, is_wanted) = {
        let state = inner.state.lock();
        let is_urgent = state.segments.free_count() <= state.segments.links.len();
        (is_urgent && state.segments.can_free(), state.wants_checkpoint(&inner.options))
    };
    if is_urgent {
        return checkpoint::write(inner).await;
    }
    if is_wanted {
        inner.checkpoint_kick.notify_one();
    }
    Ok(())
}

/// See [`super::Chain::clean`].
pub(super) async fn clean_some(inner: &Arc<Inner>, segments: usize) -> Result<usize, StoreError> {
    let mut cleaned = 0;
    for _ in 0..segments {
        let _cleaning = inner.cleaning_lock.lock().await;
        let victim = {
            let state = inner.state.lock();
            let ids = (0..state.segments.len()).filter(|id| state.can_clean(*id));
            ids.min_by_key(|id| state.segments.get(*id).seq)
        };
        let Some(victim) = victim else { break };
        clean_segment(inner, victim, Speed::Full).await?;
        cleaned += 1;
    }
    Ok(cleaned)
}

/// A live block of a victim: content, or the record of a discard to which holes refer.
#[derive(Clone, Copy)]
struct Live {
    block: u32,
    entry: MapEntry,
}

/// Waits for room for all live blocks of a victim: cleaning that stopped half way would use up space and gain
/// none. Users leave that much free; see [`State::room`].
async fn make_room(inner: &Arc<Inner>, victim: u32) -> Result<(), StoreError> {
    loop {
        {
            let state = inner.state.lock();
            if state.cleaning_room() >= u64::from(state.segments.get(victim).live) {
                return Ok(());
            }
            if !state.segments.can_free() {
                return Err(StoreError::NoSpace);
            }
        }
        checkpoint::write(inner).await?;
    }
}

/// Moves every live block out of a segment.
///
/// # Errors
/// [`StoreError::NoSpace`] when there is no room for them, besides device errors.
#[async_recursion]
pub(super) async fn clean_segment(
    inner: &Arc<Inner>,
    victim: u32,
    speed: Speed,
) -> Result<(), StoreError> {
    make_room(inner, victim).await?;
    Counts::add(&inner.counts.segments_cleaned, 1);
    // Users may empty the segment meanwhile; the pin keeps it from being written anew under the reads.
    let _pin = Pin::segment(inner, victim);
    let entries = entries_of(inner, victim).await;
    let live = {
        let state = inner.state.lock();
        let lives = |live: &Live| match live.entry.kind {
            Kind::Discard | Kind::MovedDiscard => state.index.record(live.block).is_some(),
            _ => state.index.refers(live.entry.lba.0 as u32, live.block),
        };
        entries.into_iter().filter(lives).collect::<Vec<_>>()
    };
    let is_record = |live: &Live| matches!(live.entry.kind, Kind::Discard | Kind::MovedDiscard);
    let (records, live): (Vec<Live>, Vec<Live>) = live.into_iter().partition(is_record);
    for record in records {
        // One at a time: each may concern many blocks.
        append_moved(inner, 1, |state, log| carry_now(state, log, &record)).await?;
    }
    let reads = runs(&live, run_blocks(inner)).into_iter().map(|run| read_live(inner.clone(), run));
    let mut reads = stream::iter(reads).buffered(RUNS_AHEAD + 1);
    while let Some(contents) = reads.next().await {
        for group in contents.chunks(GROUP) {
            if speed == Speed::Paced {
                wait_for_turn(inner, group.len()).await;
            }
            let append = |state: &mut State, log| move_now(state, log, group);
            let moved = append_moved(inner, group.len(), append).await?;
            Counts::add(&inner.counts.blocks_moved, moved);
        }
    }
    if inner.state.lock().segments.get(victim).live > 0 {
        damaged::settle_rest(inner, victim);
    }
    inner.bury_all();
    Ok(())
}

/// Waits until writers have run up a debt of blocks to move, or pause.
async fn wait_for_turn(inner: &Inner, blocks: usize) {
    loop {
        let debt = std::pin::pin!(inner.clean_turn.notified());
        if inner.state.lock().take_turn(blocks) {
            return;
        }
        let (idle, since) = (std::pin::pin!(inner.env.sleep(pace::IDLE)), inner.env.now());
        let ended = select(debt, idle).await;
        inner.stage(Stage::CleanWait, since);
        if let Either::Right(_) = ended {
            return;
        }
    }
}

/// Blocks in one read: a user's flush waits for the reads under way. On a rotational disk a seek costs more
/// than these bytes, so the reads stay long.
fn run_blocks(inner: &Inner) -> u32 {
    if inner.state.lock().segments.has_arm() {
        return RUN_BLOCKS as u32;
    }
    let most = (RUNS_AHEAD + 1) * RUN_BLOCKS * BLOCK_SIZE;
    let bytes = inner.clean_reads.background_bytes(false, most);
    (bytes / (RUNS_AHEAD + 1) / BLOCK_SIZE).max(GROUP) as u32
}

/// Live blocks in runs that one request of at most `most` blocks reads.
fn runs(live: &[Live], most: u32) -> Vec<Vec<Live>> {
    let mut runs = Vec::new();
    for mut rest in live.chunk_by(|a, b| b.block - a.block <= GAP_BLOCKS) {
        while let Some(first) = rest.first() {
            let fits = |live: &&Live| live.block - first.block < most;
            let (run, later) = rest.split_at(rest.iter().take_while(fits).count());
            runs.push(run.to_vec());
            rest = later;
        }
    }
    runs
}

/// What a segment's blocks hold: from its map, or from the index where the map is damaged.
async fn entries_of(inner: &Inner, victim: u32) -> Vec<Live> {
    match mapped_entries(inner, victim).await {
        Some(entries) => entries,
        None => indexed_entries(inner, victim),
    }
}

async fn mapped_entries(inner: &Inner, victim: u32) -> Option<Vec<Live>> {
    let len = inner.layout.segment_map();
    let seq = inner.state.lock().segments.get(victim).seq;
    let bytes = inner.map.read(inner.layout.map_of(victim), len, Purpose::Cleaning).await.ok()?;
    let mut entries = Vec::new();
    let mut block = victim * inner.segment_blocks;
    for (index, sector) in bytes.chunks_exact(SECTOR).enumerate() {
        let sector = MapSector::ref_from_bytes(sector).ok()?;
        let head = sector.verify(inner.tag, index as u16).filter(|head| head.seq == seq)?;
        for entry in sector.entries() {
            let entry = entry.decode()?;
            if !matches!(entry.kind, Kind::Pad | Kind::Mini | Kind::Settled) {
                entries.push(Live { block, entry });
            }
            block += 1;
        }
        if block
            != (victim * inner.segment_blocks)
                + (index as u32 + 1) * super::format::ENTRIES_PER_SECTOR
        {
            debug_assert!(head.count > 0);
            return None;
        }
    }
    Some(entries)
}

/// The live blocks of a segment according to the index. Their versions are the index's where it has them.
/// Where it has none, the content is older than every held version, or nothing is held: the oldest held
/// version, or else the newest durable one, is then correct for every reader.
fn indexed_entries(inner: &Inner, victim: u32) -> Vec<Live> {
    let state = inner.state.lock();
    let mut entries = Vec::new();
    state.index.for_each(|lba, at| {
        if state.segments.of(at.block) == victim {
            let known = state.index.version_of(lba, at.block).filter(|known| known.0 > 0);
            let version = known.unwrap_or(state.holds.oldest().unwrap_or(state.committed));
            let entry = MapEntry {
                kind: Kind::Moved,
                last: true,
                lba: Lba(u64::from(lba)),
                version,
                check: at.check,
            };
            entries.push(Live { block: at.block, entry });
        }
    });
    indexed_records(&state, victim, &mut entries);
    entries.sort_unstable_by_key(|live| live.block);
    entries
}

/// Adds the records of a segment that the index refers to, each with the runs of its present holes: whether a
/// block that is no hole any more was part of the discarded run is unknown.
fn indexed_records(state: &State, victim: u32, entries: &mut Vec<Live>) {
    let mut holes = Vec::new();
    state.index.for_each_hole(|lba, record| {
        if state.segments.of(record) == victim {
            holes.push((record, lba));
        }
    });
    holes.sort_unstable();
    holes.dedup();
    for run in holes.chunk_by(|(a, first), (b, second)| a == b && first + 1 == *second) {
        let ((block, lba), count) = (run[0], run.len() as u32);
        let version = state.index.record(block).unwrap_or(state.committed);
        let lba = Lba(u64::from(lba));
        let entry = MapEntry { kind: Kind::Discard, last: true, lba, version, check: count };
        entries.push(Live { block, entry });
    }
}

/// The contents of live blocks within one run, without blocks of which no copy is whole.
async fn read_live(inner: Arc<Inner>, run: Vec<Live>) -> Vec<(Live, Bytes)> {
    let (first, last) = (run[0].block, run[run.len() - 1].block);
    let place = {
        let state = inner.state.lock();
        state
            .segments
            .place(first)
            .map(|(link, at)| (state.segments.links[link].device.clone(), at))
    };
    let Some((device, offset)) = place else { return Vec::new() };
    let len = (last - first + 1) as usize * BLOCK_SIZE;
    let (under_way, since) = (inner.clean_reads.begin(len), inner.env.now());
    let bytes = device.read(offset, len, Purpose::Cleaning).await.ok();
    under_way.end(inner.env.now().since(since));
    let mut contents = Vec::with_capacity(run.len());
    for live in &run {
        let entry = &live.entry;
        let at = (live.block - first) as usize * BLOCK_SIZE;
        let content = bytes.as_ref().map(|bytes| bytes.slice(at..at + BLOCK_SIZE));
        let content = content.filter(|content| block_checksum(entry.lba, content) == entry.check);
        let content = match content {
            Some(content) => Some(content),
            None => {
                let location = Location { block: live.block, check: entry.check };
                read_copies(&inner, entry.lba, location).await.ok()
            }
        };
        match content {
            Some(content) => contents.push((*live, content)),
            None => inner.note_damage(),
        }
    }
    contents
}

/// Calls `append`, which appends up to `blocks` copies to the log that it is given, once that log has room
/// for them; returns its result.
async fn append_moved(
    inner: &Arc<Inner>,
    blocks: usize,
    mut append: impl FnMut(&mut State, usize) -> Result<u64, StoreError>,
) -> Result<u64, StoreError> {
    loop {
        let room = inner.room.notified();
        let wants_checkpoint = {
            let mut state = inner.state.lock();
            state.poison_check()?;
            let log = state.cleaning_log();
            let fits = log == USERS || state.body_has_room(blocks);
            if !fits && state.segments.can_free() {
                true
            } else if state.moving[log] * BLOCK_SIZE < inner.background_bytes(&state, log) {
                let moved = append(&mut state, log);
                inner.after_append(&mut state);
                drop(state);
                inner.bury_all();
                inner.room.notify_waiters();
                return moved;
            } else {
                state.stream(log).hurry();
                inner.queue_kick[log].notify_one();
                false
            }
        };
        match wants_checkpoint {
            // The checkpoint frees emptied segments: better than appending to the tail.
            true => checkpoint::write(inner).await?,
            false => room.await,
        }
    }
}

/// Appends a copy of a discard's record.
fn carry_now(state: &mut State, log: usize, live: &Live) -> Result<u64, StoreError> {
    let there = match state.carry(log, &live.entry, live.block) {
        Err(StoreError::NoSpace) if log == BODY => state.carry(USERS, &live.entry, live.block),
        other => other,
    };
    there.map(u64::from)
}

/// Compaction falls back on the tail when no segment of the body is free (Gecko 3.1.3).
fn move_now(state: &mut State, log: usize, group: &[(Live, Bytes)]) -> Result<u64, StoreError> {
    let mut moved = 0;
    for (live, content) in group {
        let entry = &live.entry;
        let there = match state.relocate(log, entry, live.block, content.clone()) {
            Err(StoreError::NoSpace) if log == BODY => {
                state.relocate(USERS, entry, live.block, content.clone())
            }
            other => other,
        };
        moved += u64::from(there?);
    }
    Ok(moved)
}
