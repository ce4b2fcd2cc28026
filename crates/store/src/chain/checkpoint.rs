//! Checkpoints: the index at one position of the log.
//!
//! A checkpoint is a *base*, the whole index, or a *delta*, what changed since the record before.
//! Deltas follow their base in one half of the area; when they outgrow it, the next base goes to
//! the other half. Opening reads the newest base and its deltas, and replays the log from there.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_recursion::async_recursion;
use bytes::Bytes;
use futures::future::try_join;
use roaring::RoaringBitmap;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::format::{
    CHECKPOINT_MAGIC, CheckpointHeader, ENTRIES_PER_SECTOR, FORMAT_VERSION, LogRecord, NO_SEGMENT,
    PAGE, SECTOR, WITNESS_MAGIC, Witness,
};
use super::index::{Content, Frozen, Location, Place, Versions};
use super::label::Layout;
use super::read::{Verified, read_verified};
use super::stages::Stage;
use super::stream::Stream;
use super::{ChainError, Counts, Inner, Options, Speed, State, commit, minilog};
use crate::block::{StoreError, Version};
use crate::checksum::crc32c;
use crate::device::{AlignedBuf, DeviceRef, Purpose};

/// Bytes in one request: a user's flush waits for at most one.
const REQUEST: usize = 256 << 10;
/// Blocks of a base that are encoded at a time.
const PIECE_BLOCKS: usize = 4 * 1024;
/// "Never stored" in a run, a hole among versions.
const ABSENT: u32 = u32::MAX;
/// Bytes of a half for headers and the segments' sequences, besides the bytes for blocks.
pub(super) const HALF_SLACK: u64 = 1 << 20;

/// Where the next record goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Area {
    pub(super) generation: u64,
    pub(super) number: u32,
    /// First free byte in the half of this generation.
    pub(super) end: u64,
    pub(super) base_bytes: u64,
}

/// A record, ready to be written.
struct Record {
    header: CheckpointHeader,
    payload: Vec<u8>,
    emptied: Vec<u32>,
    entries: u64,
}

impl Area {
    /// Whether the next record has to be a base, rather than a delta of `payload` bytes: none was
    /// written, the half is full, or the deltas are many or have outgrown their base.
    fn wants_base(&self, payload: usize, half: u64, max_deltas: u32) -> bool {
        let end = self.end + bytes_for(payload);
        self.generation == 0
            || self.number > max_deltas
            || end > half
            || end > 2 * self.base_bytes.max(HALF_SLACK / 2)
    }
}

/// Writes a checkpoint at once, and frees the segments that only an older one needed.
pub(super) async fn write(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut area = lock(inner).await;
    write_next(inner, &mut area, Speed::Full).await
}

/// Writes the whole index anew, to the other half.
pub(super) async fn write_base(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut area = lock(inner).await;
    area.end = inner.layout.checkpoint_half;
    write_next(inner, &mut area, Speed::Full).await
}

/// Locks the area, and tells a checkpoint under way to stop pacing itself.
async fn lock(inner: &Inner) -> tokio::sync::MutexGuard<'_, Area> {
    inner.state.lock().checkpoint_hurry = true;
    inner.checkpoints.lock().await
}

impl State {
    /// How much a checkpoint is needed: from 1 on, at once.
    pub(super) fn checkpoint_urgency(&self, options: &Options) -> f64 {
        let sectors = self.entries_since as f64 / f64::from(ENTRIES_PER_SECTOR);
        let part = |count: f64, most: f64| count / most.max(1.0);
        part(sectors, f64::from(options.checkpoint_sectors))
            .max(part(self.slots.len() as f64, options.mini_slots as f64))
            .max(part(self.minis.since as f64, options.mini_blocks as f64))
            .max(self.freeing_urgency())
    }

    /// Whether a checkpoint should begin: early if it has many blocks to settle, so that it settles them slowly.
    pub(super) fn wants_checkpoint(&self, options: &Options) -> bool {
        let urgency = self.checkpoint_urgency(options);
        urgency >= 1.0 || (urgency >= minilog::EARLY && self.slots.len() > minilog::FEW)
    }
}

/// Whether the newest base and its deltas can be read from every copy.
pub(super) async fn is_whole(inner: &Inner) -> bool {
    let area = lock(inner).await;
    let mut at = 0;
    for number in 0..area.number {
        let wanted = Wanted {
            generation: area.generation,
            number,
            at: record_start(&inner.layout, area.generation, at),
            room: room_in(&inner.layout) - at,
        };
        match read_record(&inner.map, inner.volume.as_bytes(), wanted).await {
            Ok(Some(record)) => at += bytes_for(record.header.payload.get() as usize),
            _ => return false,
        }
    }
    true
}

/// A checkpoint under way. Dropped before its end, it restores the dirty blocks that it took.
struct Attempt<'a> {
    inner: &'a Inner,
    dirty: Option<RoaringBitmap>,
    /// Bytes were written to the area, so its content is unknown until the record is whole.
    begun: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Some(dirty) = self.dirty.take() else { return };
        self.inner.state.lock().dirty |= dirty;
        if self.begun {
            self.inner.poison("a checkpoint was interrupted; open the volume again");
        }
    }
}

#[async_recursion]
async fn write_next(inner: &Arc<Inner>, area: &mut Area, speed: Speed) -> Result<(), StoreError> {
    let begun = inner.env.now();
    minilog::settle(inner, speed).await.map_err(|error| inner.fail(error))?;
    // Most of what the checkpoint refers to becomes durable before it is noted.
    commit::body(inner).await?;
    let settled = inner.stage(Stage::Settle, begun);
    let captured = capture(inner, area);
    inner.stage(Stage::Capture, settled);
    let (mut record, frozen, dirty) = captured.map_err(|error| inner.fail(error))?;
    let mut attempt = Attempt { inner, dirty: Some(dirty), begun: false };
    let mut next = *area;
    if let Some(frozen) = frozen {
        encode_base(&mut record, frozen).await;
        let generation = area.generation + 1;
        next = Area { generation, base_bytes: bytes_for(record.payload.len()), ..Area::default() };
    }
    let bytes = bytes_for(record.payload.len());
    if next.end + bytes > room_in(&inner.layout) {
        return Err(inner.fail(StoreError::NoSpace));
    }
    try_join(commit::body(inner), commit::users(inner)).await?;
    seal(&mut record, &next);
    attempt.begun = true;
    put(inner, &record, &next).await.map_err(|error| inner.fail(error))?;
    attempt.dirty = None;
    next.end += bytes;
    next.number += 1;
    Counts::add(&inner.counts.bases, u64::from(next.generation > area.generation));
    Counts::add(&inner.counts.checkpoints, 1);
    *area = next;
    inner.stage(Stage::Checkpoint, settled);
    let mut state = inner.state.lock();
    state.has_checkpoint();
    state.entries_since -= record.entries;
    state.segments.free(&record.emptied);
    for log in [super::stream::USERS, super::stream::BODY] {
        state.reserve(log);
    }
    drop(state);
    // Waiting writers look again: they proceed, or ask for cleaning themselves.
    inner.room.notify_waiters();
    if inner.options.auto_clean {
        inner.clean_kick.notify_one();
    }
    Ok(())
}

/// Bytes for records in a half.
pub(super) fn room_in(layout: &Layout) -> u64 {
    layout.checkpoint_half.saturating_sub(PAGE as u64)
}

/// Bytes that a record with such a payload takes.
pub(super) fn bytes_for(payload: usize) -> u64 {
    PAGE as u64 + (payload as u64).next_multiple_of(PAGE as u64)
}

/// Captures the present state: the changed blocks, and the whole index if the record has to be a base.
fn capture(
    inner: &Inner,
    area: &Area,
) -> Result<(Record, Option<Frozen>, RoaringBitmap), StoreError> {
    let mut state = inner.state.lock();
    state.settle_rest()?;
    debug_assert!(state.slots.is_empty(), "a checkpoint knows no slots");
    let dirty = std::mem::take(&mut state.dirty);
    let mut changes = Payload { run_bytes: sequences(&state), ..Payload::default() };
    changes.contents(dirty.iter().map(|lba| (lba, state.index.content(lba))));
    changes.versions_of_records(|record| state.index.record(record).unwrap_or(Version(0)));
    changes.end_hole();
    let bytes = changes.len();
    let base = area.wants_base(bytes, room_in(&inner.layout), inner.options.max_deltas);
    let frozen = base.then(|| state.index.freeze());
    let header = CheckpointHeader {
        magic: CHECKPOINT_MAGIC,
        format: FORMAT_VERSION.into(),
        checksum: 0.into(),
        volume: *inner.volume.as_bytes(),
        generation: 0.into(),
        number: 0.into(),
        payload_checksum: 0.into(),
        payload: 0.into(),
        version: state.version.0.into(),
        next_seq: state.next_seq.into(),
        logs: [log_record(&state.users), state.body.as_ref().map_or(NO_LOG, log_record)],
        segments: state.segments.len().into(),
        runs: changes.runs.into(),
        several: changes.several.into(),
        holes: changes.holes.into(),
        records: (changes.records.len() as u32).into(),
        reserved: [0; 4],
    };
    let (emptied, entries) = (state.segments.emptied(), state.entries_since);
    let payload = changes.into_bytes();
    Ok((Record { header, payload, emptied, entries }, frozen, dirty))
}

fn sequences(state: &State) -> Vec<u8> {
    let ids = 0..state.segments.len();
    ids.flat_map(|id| state.segments.get(id).seq.to_le_bytes()).collect()
}

const NO_LOG: LogRecord = LogRecord {
    segment: U32::new(NO_SEGMENT),
    slot: U32::ZERO,
    seq: zerocopy::little_endian::U64::ZERO,
};

fn log_record(stream: &Stream) -> LogRecord {
    let (tail, open) = (stream.tail(), stream.open());
    LogRecord { segment: open.id.into(), slot: tail.slot().into(), seq: tail.seq().into() }
}

/// Turns a captured delta into a base, one piece at a time, and yields to other tasks between two pieces.
async fn encode_base(record: &mut Record, frozen: Frozen) {
    let sequences = record.header.segments.get() as usize * size_of::<u64>();
    record.payload.truncate(sequences);
    let mut whole =
        Payload { run_bytes: std::mem::take(&mut record.payload), ..Payload::default() };
    let mut contents = frozen.contents().peekable();
    while contents.peek().is_some() {
        whole.contents(contents.by_ref().take(PIECE_BLOCKS));
        tokio::task::yield_now().await;
    }
    drop(contents);
    whole.end_hole();
    whole.versions_of_records(|record| frozen.record(record));
    record.header.runs = whole.runs.into();
    record.header.several = whole.several.into();
    record.header.holes = whole.holes.into();
    record.header.records = (whole.records.len() as u32).into();
    record.payload = whole.into_bytes();
}

fn seal(record: &mut Record, area: &Area) {
    let header = &mut record.header;
    header.generation = area.generation.into();
    header.number = area.number.into();
    header.payload = (record.payload.len() as u64).into();
    header.payload_checksum = crc32c(&record.payload).into();
    header.checksum = crc32c(&header.as_bytes()[CHECKED_FROM..]).into();
}

/// Bytes of the header before those that its checksum covers.
const CHECKED_FROM: usize = 16;

async fn put(inner: &Inner, record: &Record, area: &Area) -> Result<(), StoreError> {
    let start = record_start(&inner.layout, area.generation, area.end);
    let mut at = start + PAGE as u64;
    for piece in record.payload.chunks(REQUEST) {
        let mut buffer = AlignedBuf::zeroed(piece.len().next_multiple_of(PAGE));
        buffer[..piece.len()].copy_from_slice(piece);
        let len = buffer.len() as u64;
        inner.map.write(at, vec![buffer.freeze()], Purpose::Checkpoint).await?;
        at += len;
    }
    inner.map.flush(Purpose::Checkpoint).await?;
    let mut page = AlignedBuf::zeroed(PAGE);
    let header = record.header.as_bytes();
    page[..header.len()].copy_from_slice(header);
    page[SECTOR..SECTOR + header.len()].copy_from_slice(header);
    inner.map.write(start, vec![page.freeze()], Purpose::Checkpoint).await?;
    inner.map.flush(Purpose::Checkpoint).await?;
    testify(inner, area).await
}

/// Writes to both halves that the record is durable. The next flush covers these writes.
async fn testify(inner: &Inner, area: &Area) -> Result<(), StoreError> {
    let mut witness = Witness {
        magic: WITNESS_MAGIC,
        format: FORMAT_VERSION.into(),
        checksum: 0.into(),
        volume: *inner.volume.as_bytes(),
        generation: area.generation.into(),
        number: area.number.into(),
        reserved: [0; 4],
    };
    witness.checksum = crc32c(&witness.as_bytes()[CHECKED_FROM..]).into();
    let mut page = AlignedBuf::zeroed(PAGE);
    page[..size_of::<Witness>()].copy_from_slice(witness.as_bytes());
    let page = page.freeze();
    for half in 0..2 {
        let at = half_start(&inner.layout, half);
        inner.map.write(at, vec![page.clone()], Purpose::Checkpoint).await?;
    }
    Ok(())
}

pub(super) fn half_start(layout: &Layout, half: u64) -> u64 {
    layout.checkpoint + half * layout.checkpoint_half
}

/// First byte of the record that begins `offset` bytes after its base.
pub(super) fn record_start(layout: &Layout, generation: u64, offset: u64) -> u64 {
    half_start(layout, generation % 2) + PAGE as u64 + offset
}

/// Decodes a witness: generation and number of a record.
pub(super) fn decode_witness(page: &[u8], volume: &[u8; 16]) -> Option<(u64, u32)> {
    let (witness, _) = Witness::read_from_prefix(page).ok()?;
    let whole = witness.magic == WITNESS_MAGIC
        && witness.format.get() <= FORMAT_VERSION
        && witness.volume == *volume
        && crc32c(&witness.as_bytes()[CHECKED_FROM..]) == witness.checksum.get();
    whole.then_some((witness.generation.get(), witness.number.get()))
}

/// The newest record that any copy of any witness names.
pub(super) async fn newest_witnessed(
    map: &DeviceRef,
    layout: &Layout,
    volume: &[u8; 16],
) -> Option<(u64, u32)> {
    let mut newest = None;
    for half in 0..2 {
        for copy in 0..map.copies() {
            let at = half_start(layout, half);
            let page = map.read_copy(copy, at, PAGE, Purpose::Checkpoint).await;
            newest = newest.max(page.ok().and_then(|page| decode_witness(&page, volume)));
        }
    }
    newest
}

/// The generation of the newest base, if the head of any copy of one is whole.
pub(super) async fn newest_base(
    map: &DeviceRef,
    layout: &Layout,
    volume: &[u8; 16],
) -> Option<u64> {
    let mut newest = None;
    for half in 0..2 {
        for copy in 0..map.copies() {
            let at = record_start(layout, half, 0);
            let page = map.read_copy(copy, at, PAGE, Purpose::Checkpoint).await;
            let header = page.ok().and_then(|page| decode_header(&page, volume));
            newest = newest.max(header.map(|header| header.generation.get()));
        }
    }
    newest
}

/// Runs, holes, blocks with several versions and records, as bytes.
#[derive(Default)]
struct Payload {
    /// The bytes before the runs, and the runs.
    run_bytes: Vec<u8>,
    hole_bytes: Vec<u8>,
    several_bytes: Vec<u8>,
    runs: u32,
    holes: u32,
    several: u32,
    records: BTreeMap<u32, Version>,
    /// Offset of the last run's count, and the block that would extend the run.
    open: Option<(usize, u32)>,
    /// The last run of holes: its first block, its length, its record.
    hole: Option<(u32, u32, u32)>,
}

impl Payload {
    fn contents(&mut self, contents: impl Iterator<Item = (u32, Content)>) {
        for (lba, content) in contents {
            match content {
                Content::Absent => self.single(lba, ABSENT, 0),
                Content::Hole(record) => self.hole(lba, record),
                Content::One(at) => self.single(lba, at.block, at.check),
                Content::Several(versions) => self.versions(lba, &versions),
            }
        }
    }

    /// Adds the versions of the records that holes refer to.
    fn versions_of_records(&mut self, version: impl Fn(u32) -> Version) {
        self.records.iter_mut().for_each(|(record, of)| *of = version(*record));
    }

    fn hole(&mut self, lba: u32, record: u32) {
        match &mut self.hole {
            Some((first, count, same)) if *same == record && *first + *count == lba => *count += 1,
            _ => {
                self.end_hole();
                self.hole = Some((lba, 1, record));
                self.records.insert(record, Version(0));
            }
        }
    }

    fn end_hole(&mut self) {
        let Some((first, count, record)) = self.hole.take() else { return };
        self.holes += 1;
        for number in [first, count, record] {
            self.hole_bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn single(&mut self, lba: u32, block: u32, check: u32) {
        let count_at = match self.open {
            Some((count_at, next)) if next == lba => count_at,
            _ => {
                self.run_bytes.extend_from_slice(&lba.to_le_bytes());
                self.run_bytes.extend_from_slice(&0u32.to_le_bytes());
                self.runs += 1;
                self.run_bytes.len() - 4
            }
        };
        self.run_bytes.extend_from_slice(&block.to_le_bytes());
        self.run_bytes.extend_from_slice(&check.to_le_bytes());
        let count = ((self.run_bytes.len() - count_at - 4) / 8) as u32;
        self.run_bytes[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
        self.open = Some((count_at, lba + 1));
    }

    fn versions(&mut self, lba: u32, versions: &Versions) {
        self.several += 1;
        let bytes = &mut self.several_bytes;
        bytes.extend_from_slice(&lba.to_le_bytes());
        bytes.extend_from_slice(&(versions.len() as u32).to_le_bytes());
        for (version, place) in versions.iter() {
            bytes.extend_from_slice(&version.0.to_le_bytes());
            let (block, check) = match *place {
                Place::At(at) => (at.block, at.check),
                Place::Hole(record) => {
                    self.records.insert(record, Version(0));
                    (ABSENT, record)
                }
            };
            bytes.extend_from_slice(&block.to_le_bytes());
            bytes.extend_from_slice(&check.to_le_bytes());
        }
    }

    /// Bytes of the payload, once no run of holes is open.
    fn len(&self) -> usize {
        let records = self.records.len() * (size_of::<u32>() + size_of::<u64>());
        self.run_bytes.len() + self.hole_bytes.len() + self.several_bytes.len() + records
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.end_hole();
        let mut bytes = self.run_bytes;
        bytes.extend_from_slice(&self.hole_bytes);
        bytes.extend_from_slice(&self.several_bytes);
        for (record, version) in &self.records {
            bytes.extend_from_slice(&record.to_le_bytes());
            bytes.extend_from_slice(&version.0.to_le_bytes());
        }
        bytes
    }
}

/// A decoded record.
pub(super) struct Loaded {
    pub(super) header: CheckpointHeader,
    pub(super) sequences: Vec<u64>,
    pub(super) contents: Vec<(u32, Content)>,
    /// Runs of holes: first block, length, record.
    pub(super) holes: Vec<(u32, u32, u32)>,
    /// Records and their versions.
    pub(super) records: Vec<(u32, Version)>,
}

/// The header in a page: the newer of its two copies, if either is whole.
pub(super) fn decode_header(page: &[u8], volume: &[u8; 16]) -> Option<CheckpointHeader> {
    let copies = [0, SECTOR].into_iter().filter_map(|at| {
        let bytes = page.get(at..at + SECTOR)?;
        let (header, _) = CheckpointHeader::read_from_prefix(bytes).ok()?;
        let whole = header.magic == CHECKPOINT_MAGIC
            && header.format.get() <= FORMAT_VERSION
            && header.volume == *volume
            && crc32c(&header.as_bytes()[CHECKED_FROM..]) == header.checksum.get();
        whole.then_some(header)
    });
    copies.max_by_key(|header| (header.generation.get(), header.number.get()))
}

/// Decodes a payload; `None` when it does not hold what the header says.
pub(super) fn decode_payload(header: &CheckpointHeader, payload: &[u8]) -> Option<Loaded> {
    let mut reader = Reader(payload);
    let segments = header.segments.get() as usize;
    if segments > payload.len() / 8 {
        return None;
    }
    let sequences = (0..segments).map(|_| reader.u64()).collect::<Option<Vec<u64>>>()?;
    let mut contents = Vec::new();
    for _ in 0..header.runs.get() {
        let (first, count) = (reader.u32()?, reader.u32()?);
        for step in 0..count {
            let (block, check) = (reader.u32()?, reader.u32()?);
            let content = match block {
                ABSENT => Content::Absent,
                block => Content::One(Location { block, check }),
            };
            contents.push((first.checked_add(step)?, content));
        }
    }
    let mut holes = Vec::new();
    for _ in 0..header.holes.get() {
        holes.push((reader.u32()?, reader.u32()?, reader.u32()?));
    }
    for _ in 0..header.several.get() {
        let (lba, count) = (reader.u32()?, reader.u32()?);
        let mut versions = Versions::new();
        for _ in 0..count {
            let version = Version(reader.u64()?);
            let (block, check) = (reader.u32()?, reader.u32()?);
            let place = match block {
                ABSENT => Place::Hole(check),
                block => Place::At(Location { block, check }),
            };
            versions.push((version, place));
        }
        contents.push((lba, Content::Several(versions)));
    }
    let mut records = Vec::new();
    for _ in 0..header.records.get() {
        records.push((reader.u32()?, Version(reader.u64()?)));
    }
    Some(Loaded { header: *header, sequences, contents, holes, records })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }
}

/// A record that the checkpoint area may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) generation: u64,
    pub(super) number: u32,
    /// Its first byte on the map device.
    pub(super) at: u64,
    /// Bytes left in its half.
    pub(super) room: u64,
}

/// Reads a record; `None` when its place holds another record, or none.
///
/// # Errors
/// [`ChainError::Damaged`] when its head is whole and its payload is not: no torn write leaves that.
pub(super) async fn read_record(
    map: &DeviceRef,
    volume: &[u8; 16],
    wanted: Wanted,
) -> Result<Option<Loaded>, ChainError> {
    let Wanted { generation, number, at, room } = wanted;
    if room < PAGE as u64 {
        return Ok(None);
    }
    // The head of an older record may stand before a payload that was half overwritten.
    let header_of = |page: &[u8]| {
        decode_header(page, volume)
            .filter(|header| header.generation.get() == generation && header.number.get() == number)
    };
    let whole = |page: &[u8]| header_of(page).is_some();
    let head = read_verified(map, at, PAGE, Purpose::Checkpoint, whole).await;
    let Ok(Verified::Whole { content: page, .. }) = head else { return Ok(None) };
    let Some(header) = header_of(&page) else { return Ok(None) };
    let damaged = || ChainError::Damaged(format!("checkpoint {generation}.{number} is damaged"));
    if header.payload.get() > room - PAGE as u64 {
        return Err(damaged());
    }
    let payload = read_payload(map, at + PAGE as u64, &header).await?;
    let loaded = payload.and_then(|bytes| decode_payload(&header, &bytes));
    loaded.map(Some).ok_or_else(damaged)
}

/// The payload from the first copy that matches its checksum.
async fn read_payload(
    map: &DeviceRef,
    start: u64,
    header: &CheckpointHeader,
) -> Result<Option<Bytes>, ChainError> {
    let len = header.payload.get() as usize;
    for copy in 0..map.copies() {
        let mut payload = AlignedBuf::zeroed(len.next_multiple_of(PAGE));
        let mut whole = true;
        let mut at = 0;
        while at < payload.len() {
            let take = REQUEST.min(payload.len() - at);
            match map.read_copy(copy, start + at as u64, take, Purpose::Checkpoint).await {
                Ok(bytes) => payload[at..at + take].copy_from_slice(&bytes),
                Err(_) => whole = false,
            }
            at += take;
        }
        if whole && crc32c(&payload[..len]) == header.payload_checksum.get() {
            return Ok(Some(payload.freeze().slice(..len)));
        }
    }
    Ok(None)
}

/// Writes checkpoints when the log has grown or segments wait to be free.
pub(super) async fn run_checkpoints(inner: Arc<Inner>) {
    loop {
        inner.wait_for_work().await;
        let written = {
            let mut area = inner.checkpoints.lock().await;
            let is_wanted = {
                let state = inner.state.lock();
                state.checkpoint_hurry || state.wants_checkpoint(&inner.options)
            };
            // Another task may have written the requested checkpoint.
            match is_wanted {
                true => write_next(&inner, &mut area, Speed::Paced).await,
                false => Ok(()),
            }
        };
        if let Err(error) = written {
            tracing::warn!(volume = %inner.volume, %error, "checkpoints stop");
            return;
        }
    }
}
