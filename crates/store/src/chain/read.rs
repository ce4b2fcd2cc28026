//! Reads: from the index to bytes whose checksum matches.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use smallvec::SmallVec;

use super::cache::Entering;
use super::format::block_checksum;
use super::index::{Content, Location, Place};
use super::{Counts, Inner, State, rescue};
use crate::block::{BLOCK_SIZE, BlockVersion, Lba, StoreError, Version};
use crate::device::{DeviceRef, FrameBuf, Purpose};

/// Blocks in one request to a device.
const RUN_BLOCKS: usize = 256;
/// Attempts to look up a block that moved while it was read.
const RETRIES: usize = 8;

/// The blocks of a read that are in memory, and those to fetch.
struct Plan {
    /// The blocks known so far.
    blocks: Vec<Option<Bytes>>,
    /// The blocks to fetch, by their number in the read.
    fetch: SmallVec<[(usize, Location); 4]>,
    /// A block to fetch is one to keep in memory (`please_cache`).
    wished: bool,
}

/// See [`crate::block::Blocks::read`].
pub(super) async fn read(
    inner: &Arc<Inner>,
    lba: Lba,
    count: u64,
    at: Version,
) -> Result<Vec<Option<Bytes>>, StoreError> {
    inner.check_range(lba, count)?;
    Counts::add(&inner.counts.user_blocks_read, count);
    let planned = inner.state.lock().plan(inner, lba, count, at)?;
    fetch(inner, lba, at, planned).await
}

/// See [`crate::block::Blocks::read_newest`].
pub(super) async fn read_newest(
    inner: &Arc<Inner>,
    lba: Lba,
    count: u64,
) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
    inner.check_range(lba, count)?;
    Counts::add(&inner.counts.user_blocks_read, count);
    let (version, planned) = {
        let mut state = inner.state.lock();
        let version = state.version;
        (version, state.plan(inner, lba, count, version)?)
    };
    match fetch(inner, lba, version, planned).await {
        Err(StoreError::Gone(_)) => {}
        read => return Ok((version, read?)),
    }
    // A block was overwritten and its segment freed while it was read; a held version stays.
    let (hold, planned) = {
        let mut state = inner.state.lock();
        let version = state.version;
        let planned = state.plan(inner, lba, count, version)?;
        state.holds.take(version);
        (inner.release_later(version), planned)
    };
    Ok((hold.version(), fetch(inner, lba, hold.version(), planned).await?))
}

/// See [`crate::block::Hints::peek`].
pub(super) fn peek(inner: &Inner, lba: Lba, at: Version) -> Option<Option<Bytes>> {
    inner.check_range(lba, 1).ok()?;
    let found = {
        let mut state = inner.state.lock();
        state.holds.check_read(at, state.version).ok()?;
        let location = state.index.get(lba.0 as u32, at);
        match location {
            None => Ok(None),
            Some(location) => match state.in_memory(inner, lba.0 as u32, location) {
                Some(content) => Ok(Some(content)),
                // A fetch keeps it from then on.
                None if state.wishes.wants(lba.0 as u32) => return None,
                None => Err(location),
            },
        }
    };
    let block = match found {
        Ok(block) => block,
        Err(at) => Some(inner.tail_cache.get_ram(u64::from(at.block), at.check)?),
    };
    Counts::add(&inner.counts.user_blocks_read, 1);
    Some(block)
}

/// Reads the blocks of a plan that are not in memory.
///
/// # Errors
/// [`StoreError::Gone`] when a block has moved and `at` is no longer kept.
async fn fetch(
    inner: &Arc<Inner>,
    lba: Lba,
    at: Version,
    plan: Plan,
) -> Result<Vec<Option<Bytes>>, StoreError> {
    let Plan { mut blocks, fetch, wished } = plan;
    if fetch.is_empty() {
        return Ok(blocks);
    }
    from_ram(inner, &fetch, &mut blocks);
    if fetch.iter().any(|(number, _)| blocks[*number].is_none()) {
        let absent = fetch.iter().filter(|(number, _)| blocks[*number].is_none()).copied();
        let absent: Vec<(usize, Location)> = absent.collect();
        from_devices(inner, lba, at, absent, &mut blocks).await?;
    }
    if wished {
        keep_wished(inner, lba, &fetch, &blocks);
    }
    Ok(blocks)
}

impl State {
    /// The contents of a block that can be read.
    pub(super) fn versions(&self, lba: u32) -> Vec<BlockVersion> {
        let stored = |place: Place| matches!(place, Place::At(_));
        let contents: Vec<(Version, bool)> = match self.index.content(lba) {
            Content::Absent | Content::Hole(_) => vec![(Version(0), false)],
            Content::One(_) => vec![(Version(0), true)],
            Content::Several(versions) => {
                versions.iter().map(|(version, place)| (*version, stored(*place))).collect()
            }
        };
        self.holds.versions(&contents, self.version)
    }

    /// Looks up where each block is.
    ///
    /// # Errors
    /// [`StoreError::Gone`] when `at` is neither the newest version nor held.
    fn plan(
        &mut self,
        inner: &Inner,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Plan, StoreError> {
        self.holds.check_read(at, self.version)?;
        let blocks = Vec::with_capacity(count as usize);
        let mut plan = Plan { blocks, fetch: SmallVec::new(), wished: false };
        for lba in lba.0 as u32..(lba.0 + count) as u32 {
            let block = match self.index.get(lba, at) {
                None => None,
                Some(location) => self.in_memory(inner, lba, location).or_else(|| {
                    plan.wished |= self.wishes.wants(lba);
                    plan.fetch.push((plan.blocks.len(), location));
                    None
                }),
            };
            plan.blocks.push(block);
        }
        Ok(plan)
    }

    /// The content at a location, if it is not written yet or kept for `please_cache`.
    fn in_memory(&mut self, inner: &Inner, lba: u32, location: Location) -> Option<Bytes> {
        if let Some(content) = self.unwritten_content(location.block) {
            return Some(content.clone());
        }
        let content = self.wishes.get(lba, location)?;
        Counts::add(&inner.counts.wish_hits, 1);
        Some(content)
    }
}

/// Keeps fetched blocks of `please_cache`, unless they have changed.
fn keep_wished(inner: &Inner, lba: Lba, fetched: &[(usize, Location)], blocks: &[Option<Bytes>]) {
    for (number, location) in fetched {
        let Some(content) = &blocks[*number] else { continue };
        let lba = (lba.0 + *number as u64) as u32;
        let current = |state: &State| {
            let newest = state.index.get(lba, Version(u64::MAX));
            state.wishes.wants(lba) && newest == Some(*location)
        };
        if !current(&inner.state.lock()) {
            continue;
        }
        // The content is a slice of a long run, which it would keep alive.
        let content = FrameBuf::copy_block(content);
        let mut state = inner.state.lock();
        if current(&state) {
            state.wishes.keep(lba, *location, &content);
        }
    }
}

/// Adds the blocks that a cache has in RAM.
fn from_ram(inner: &Inner, fetch: &[(usize, Location)], blocks: &mut [Option<Bytes>]) {
    for cache in std::iter::once(&inner.tail_cache).chain(inner.body_cache.as_ref()) {
        cache.read_ram(
            fetch.iter().map(|(number, at)| (*number, u64::from(at.block), at.check)),
            blocks,
        );
    }
}

/// Adds blocks that are in no RAM.
async fn from_devices(
    inner: &Arc<Inner>,
    lba: Lba,
    at: Version,
    absent: Vec<(usize, Location)>,
    blocks: &mut [Option<Bytes>],
) -> Result<(), StoreError> {
    let cached = absent
        .iter()
        .map(|(number, location)| from_caches(inner, Lba(lba.0 + *number as u64), *location));
    let mut missing: Vec<(usize, Location)> = Vec::new();
    for ((number, location), cached) in absent.iter().zip(join_all(cached).await) {
        match cached {
            Some(content) => blocks[*number] = Some(content),
            None => missing.push((*number, *location)),
        }
    }
    let runs = group(&missing);
    let reads = runs.into_iter().map(|run| read_run(inner, lba, at, run));
    for fetched in try_join_all(reads).await? {
        for (number, content) in fetched {
            blocks[number] = content;
        }
    }
    Ok(())
}

/// The content from a cache, if one has it whole.
async fn from_caches(inner: &Inner, lba: Lba, location: Location) -> Option<Bytes> {
    let key = u64::from(location.block);
    let caches = std::iter::once(&inner.tail_cache).chain(inner.body_cache.as_ref());
    for cache in caches {
        if let Some(content) = cache.get(key).await {
            if block_checksum(lba, &content) == location.check {
                return Some(content);
            }
            cache.remove(key);
        }
    }
    None
}

/// Missing blocks as runs that are contiguous on the devices.
fn group(missing: &[(usize, Location)]) -> Vec<&[(usize, Location)]> {
    missing
        .chunk_by(|(_, before), (_, after)| before.block + 1 == after.block)
        .flat_map(|run| run.chunks(RUN_BLOCKS))
        .collect()
}

type Fetched = Vec<(usize, Option<Bytes>)>;

/// Blocks that one request reads.
struct Piece<'a> {
    blocks: &'a [(usize, Location)],
    device: DeviceRef,
    offset: u64,
    on_tail: bool,
    /// Whether the tail's cache is to keep them.
    to_tail_cache: bool,
}

/// Cuts a run at segment boundaries, where the link may change; `None` when some of it lies on a link that
/// has left.
fn cut<'a>(inner: &Inner, run: &'a [(usize, Location)]) -> Option<Vec<Piece<'a>>> {
    let state = inner.state.lock();
    let per = state.segments.per();
    let tail = state.tail_link();
    run.chunk_by(|(_, a), (_, b)| a.block / per == b.block / per)
        .map(|blocks| {
            let (link, offset) = state.segments.place(blocks[0].1.block)?;
            let device = state.segments.links[link].device.clone();
            let on_tail = link == tail;
            let to_tail_cache = on_tail || state.segments.goes_round();
            Some(Piece { blocks, device, offset, on_tail, to_tail_cache })
        })
        .collect()
}

/// Reads a run of blocks from its link, verifies them, and retries those that do not match.
async fn read_run(
    inner: &Arc<Inner>,
    lba: Lba,
    at: Version,
    run: &[(usize, Location)],
) -> Result<Fetched, StoreError> {
    let Some(pieces) = cut(inner, run) else { return read_again(inner, lba, at, run).await };
    let mut fetched = Fetched::with_capacity(run.len());
    for piece in pieces {
        let len = piece.blocks.len() * BLOCK_SIZE;
        let turn = match piece.on_tail {
            true => Some(inner.turn_at_tail().await),
            false => None,
        };
        let read = piece.device.read(piece.offset, len, Purpose::UserData).await;
        drop(turn);
        let Ok(bytes) = read else {
            fetched.extend(read_again(inner, lba, at, piece.blocks).await?);
            continue;
        };
        for (at_block, (number, location)) in piece.blocks.iter().enumerate() {
            let content = bytes.slice(at_block * BLOCK_SIZE..(at_block + 1) * BLOCK_SIZE);
            let this = Lba(lba.0 + *number as u64);
            if block_checksum(this, &content) == location.check {
                remember(inner, *location, &content, &piece);
                fetched.push((*number, Some(content)));
            } else {
                fetched.extend(read_again(inner, lba, at, &[(*number, *location)]).await?);
            }
        }
    }
    Ok(fetched)
}

/// A block that was read from a drive goes to that drive's cache; where the tail goes from drive to drive, to the one cache
/// of all.
fn remember(inner: &Inner, at: Location, content: &Bytes, piece: &Piece<'_>) {
    let content = content.clone();
    let block = Entering { key: u64::from(at.block), check: at.check, content };
    Counts::add(&inner.counts.tail_reads, u64::from(piece.on_tail));
    if piece.to_tail_cache {
        inner.tail_cache.fill(&block);
    } else if let Some(cache) = &inner.body_cache {
        cache.fill(&block);
    }
}

/// Reads blocks one by one: they moved meanwhile, or their device returned wrong bytes.
async fn read_again(
    inner: &Arc<Inner>,
    lba: Lba,
    at: Version,
    blocks: &[(usize, Location)],
) -> Result<Fetched, StoreError> {
    let mut fetched = Fetched::with_capacity(blocks.len());
    for (number, _) in blocks {
        let this = Lba(lba.0 + *number as u64);
        fetched.push((*number, read_one(inner, this, at).await?));
    }
    Ok(fetched)
}

/// Reads one block from each copy, and again when it moved in between.
async fn read_one(inner: &Arc<Inner>, lba: Lba, at: Version) -> Result<Option<Bytes>, StoreError> {
    let mut failure = None;
    for _ in 0..RETRIES {
        let mut plan = inner.state.lock().plan(inner, lba, 1, at)?;
        let Some(&(_, location)) = plan.fetch.first() else {
            return Ok(plan.blocks.pop().flatten());
        };
        match read_copies(inner, lba, location).await {
            Ok(content) => return Ok(Some(content)),
            Err(error) => failure = Some(error),
        }
        let again = inner.state.lock().index.get(lba.0 as u32, at);
        if again == Some(location) {
            break;
        }
    }
    inner.note_damage();
    Err(failure.unwrap_or_else(|| StoreError::Corrupt {
        lba,
        detail: "it moved during every attempt to read it".to_owned(),
    }))
}

/// Keeps a segment from being written anew while one of its blocks is read or repaired.
pub(super) struct Pin<'a> {
    inner: &'a Inner,
    segment: u32,
}

impl<'a> Pin<'a> {
    /// Pins the segment of `block`; `None` when `lba` does not lie there any more.
    pub(super) fn new(inner: &'a Inner, lba: Lba, block: u32) -> Option<(Pin<'a>, DeviceRef, u64)> {
        let mut state = inner.state.lock();
        if !state.index.refers(lba.0 as u32, block) {
            return None;
        }
        let (link, offset) = state.segments.place(block)?;
        let segment = state.segments.of(block);
        state.segments.get_mut(segment).pins += 1;
        Some((Pin { inner, segment }, state.segments.links[link].device.clone(), offset))
    }

    /// Pins a segment.
    pub(super) fn segment(inner: &'a Inner, segment: u32) -> Pin<'a> {
        inner.state.lock().segments.get_mut(segment).pins += 1;
        Pin { inner, segment }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        let segment = state.segments.get_mut(self.segment);
        // Also when the segment's link has left the chain meanwhile.
        assert!(segment.pins > 0, "a segment is unpinned more often than it was pinned");
        segment.pins -= 1;
        if state.segments.can_free() {
            // A waiting writer may now request a checkpoint.
            self.inner.room.notify_waiters();
        }
    }
}

/// Reads a block from each copy until one matches, and from another machine if none does; repairs the copies that do not
/// match.
///
/// # Errors
/// [`StoreError::Corrupt`], or the device's error when no copy could be read at all.
pub(super) async fn read_copies(
    inner: &Inner,
    lba: Lba,
    location: Location,
) -> Result<Bytes, StoreError> {
    let Some((_pin, device, offset)) = Pin::new(inner, lba, location.block) else {
        return Err(StoreError::Corrupt { lba, detail: "it has moved".to_owned() });
    };
    let right = |content: &[u8]| block_checksum(lba, content) == location.check;
    let failure = match read_verified(&device, offset, BLOCK_SIZE, Purpose::UserData, right).await {
        Ok(Verified::Whole { content, mended }) => {
            inner.note_repaired(location.block, mended as u64);
            return Ok(content);
        }
        Ok(Verified::Damaged) => StoreError::Corrupt {
            lba,
            detail: format!("{} at byte {offset}, {} copies", device.name(), device.copies()),
        },
        Err(error) => error,
    };
    rescue::fetch(inner, lba, location, (&device, offset)).await.ok_or(failure)
}

/// The result of reading every copy.
pub(super) enum Verified {
    /// A right copy.
    Whole {
        /// The right bytes.
        content: Bytes,
        /// Other copies that were overwritten with it.
        mended: usize,
    },
    /// No copy is right.
    Damaged,
}

/// Reads from each copy until one is `right`, and overwrites the wrong ones with it.
///
/// # Errors
/// The last device error when no copy could be read.
pub(super) async fn read_verified(
    device: &DeviceRef,
    offset: u64,
    len: usize,
    purpose: Purpose,
    right: impl Fn(&[u8]) -> bool,
) -> Result<Verified, StoreError> {
    let mut wrong = Vec::new();
    let mut failure = None;
    let mut any_read = false;
    for copy in 0..device.copies() {
        match device.read_copy(copy, offset, len, purpose).await {
            Ok(content) if right(&content) => {
                let mut mended = 0;
                for bad in wrong {
                    mended +=
                        usize::from(device.repair_copy(bad, offset, content.clone()).await.is_ok());
                }
                return Ok(Verified::Whole { content, mended });
            }
            Ok(_) => {
                any_read = true;
                wrong.push(copy);
            }
            Err(error) => {
                failure = Some(error);
                wrong.push(copy);
            }
        }
    }
    match failure {
        Some(error) if !any_read => Err(error.into()),
        _ => Ok(Verified::Damaged),
    }
}
