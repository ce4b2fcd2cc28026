//! Queues: from a log's queue to the devices of its links.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};

use super::Inner;
use super::cache::Entering;
use super::format::Position;
use super::stages::Stage;
use super::stream::{Batch, Pending, Stream, USERS};
use crate::block::StoreError;
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
    let mut state = inner.state.lock();
    let cached = batch.purpose == Purpose::UserData || link == state.tail_link();
    let mut kept: Vec<Entering> = Vec::new();
    for at in 0..batch.contents.len() {
        let block = batch.first + at as u32;
        if let Some(Pending { content, check }) = state.pending.get(&block).filter(|_| cached) {
            let content = content.clone();
            kept.push(Entering { key: u64::from(block), check: *check, content });
        }
    }
    if !kept.is_empty() {
        drop(state);
        if batch.purpose != Purpose::UserData {
            // Blocks that cleaning read are slices of long runs, which they would keep alive.
            let copy = |block: &mut Entering| block.content = FrameBuf::copy_block(&block.content);
            kept.iter_mut().for_each(copy);
        }
        // Before they leave `pending`: readers find them in either.
        inner.tail_cache.put_all(kept);
        state = inner.state.lock();
    }
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
