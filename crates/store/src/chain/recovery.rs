//! Making and opening a chain: the label, the newest checkpoint, and the logs that follow it.
//!
//! What opening guarantees:
//!
//! - After a crash, however often recovery itself is cut short, it finds one version, no older than
//!   what was acknowledged, and the same one each time.
//! - One rotten copy of the label, or of a checkpoint record's head, costs nothing.
//! - Rot or unreadable sectors in what recovery needs (a checkpoint record, the map of the log after
//!   it) are [`ChainError::Damaged`]: nothing is written over, and no acknowledged write vanishes
//!   in silence.
//!
//! What it does not: a map sector at the very end of the log whose write the device acknowledged
//! and lost, or over which somebody wrote foreign bytes, looks like a crash before it. Nothing later
//! tells of it. A volume that is damaged so is what [`Chain::rebuild`] is for.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use parking_lot::Mutex;
use roaring::RoaringBitmap;
use tokio::sync::Notify;
use zerocopy::{FromBytes, IntoBytes};

use super::cache::{Cache, RamOrder};
use super::checkpoint::{self, Area, HALF_SLACK, Loaded, Wanted};
use super::format::{
    ENTRIES_PER_PAGE, ENTRIES_PER_SECTOR, Entry, Kind, LinkRecord, LogRecord, MapEntry, MapSector,
    NO_LOG, NO_SEGMENT, PAGE, Position, SECTOR, SectorHead, block_checksum, volume_tag,
};
use super::holds::{Holds, Synced};
use super::index::{Content, Index, Location, MAX_PHYSICAL, Place, is_slot};
use super::label::{Cut, Label, Layout, Void};
use super::minilog::replay::{Minis, read_minis};
use super::read::{Verified, read_verified};
use super::segments::{SegmentState, Segments};
use super::state::{State, reserved_segments};
use super::stream::{BODY, SegmentMap, Stream, USERS};
use super::{Chain, ChainError, Cleaning, Counts, Create, Inner, Options, Parts, minilog, scrub};
use crate::block::{BLOCK_SIZE, Lba, Version};
use crate::device::{AlignedBuf, DeviceRef, Purpose};
use crate::env::{Env, HashMap};

/// What opening a chain found and read.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Recovered {
    /// Bytes of the checkpoint: a base and its deltas.
    pub checkpoint_bytes: u64,
    /// Bytes of map read after it.
    pub map_bytes: u64,
    /// Bytes of blocks read because only their checksum tells whether they were written.
    pub checked_bytes: u64,
    /// Entries of the logs that the checkpoint did not hold.
    pub replayed: u64,
    /// Entries beyond the end of what survived as a whole.
    pub dropped: u64,
    /// The version that was recovered.
    pub version: u64,
    /// Mini-log blocks read.
    pub minis: u64,
    /// Blocks that got a place of their own because of them.
    pub slots: u64,
}

/// The layout of a map area that has room for so much.
pub(super) fn layout_for(segment_blocks: u32, max_segments: u32) -> Layout {
    let blocks = u64::from(max_segments) * u64::from(segment_blocks);
    // A block that was discarded, written and discarded again while versions were held takes 56
    // bytes in a checkpoint: its number, and three versions of which one is a place.
    let half = 56 * blocks + 8 * u64::from(max_segments) + HALF_SLACK;
    Layout::new(segment_blocks, max_segments, half.next_multiple_of(PAGE as u64))
}

fn invalid(why: impl Into<String>) -> ChainError {
    ChainError::Invalid(why.into())
}

/// The records of links that follow each other from segment `base` on.
pub(super) fn link_record(
    link: &super::Link,
    base: u32,
    segment_blocks: u32,
) -> Result<LinkRecord, ChainError> {
    let segment_bytes = u64::from(segment_blocks) * BLOCK_SIZE as u64;
    let segments = link.device.geometry().size / segment_bytes;
    if segments < 4 {
        return Err(invalid(format!(
            "{} is too small for a link: it has room for {segments} segments of {segment_bytes} \
             bytes, and a link needs 4",
            link.device.name()
        )));
    }
    let segments = u32::try_from(segments).map_err(|_| invalid("a link is too large"))?;
    Ok(LinkRecord {
        id: *link.id.as_bytes(),
        base: base.into(),
        segments: segments.into(),
        leaving: 0,
        reserved: [0; 7],
    })
}

/// See [`Chain::create`].
pub(super) async fn create(env: &Env, parts: Parts, create: &Create) -> Result<(), ChainError> {
    let per = create.segment_blocks;
    if per == 0 || !per.is_multiple_of(ENTRIES_PER_PAGE) || per > Position::MAX_SLOTS {
        return Err(invalid(format!("a segment has a multiple of {ENTRIES_PER_PAGE} blocks")));
    }
    let mut links = Vec::new();
    let mut base = 0;
    for link in &parts.links {
        let record = link_record(link, base, per)?;
        base += record.segments.get();
        links.push(record);
    }
    let layout = layout_for(per, create.max_segments);
    let label = Label {
        sequence: 0,
        volume: create.volume,
        blocks: create.blocks,
        segment_blocks: per,
        max_segments: create.max_segments,
        checkpoint_half: layout.checkpoint_half,
        cleaning: create.cleaning,
        created: env.wall_clock(),
        links,
        snapshots: Vec::new(),
        voids: Vec::new(),
        cuts: Vec::new(),
    };
    check_sizes(&label, &parts)?;
    let mut state = empty_state(label, &parts)?;
    state.users = open_stream(&mut state, USERS, 0);
    state.add_body();
    let inner = Arc::new(build(env, parts, Options::default(), state, Area::default()));
    checkpoint::write(&inner).await?;
    let mut label = inner.state.lock().label.clone();
    label.write(&inner.map).await
}

pub(super) fn check_sizes(label: &Label, parts: &Parts) -> Result<(), ChainError> {
    if label.links.is_empty() {
        return Err(invalid("a chain needs at least one link"));
    }
    let segments: u64 = label.links.iter().map(|link| u64::from(link.segments.get())).sum();
    if segments > u64::from(label.max_segments) {
        return Err(invalid(format!(
            "the links have {segments} segments, and the map area has room for {}",
            label.max_segments
        )));
    }
    let physical = u64::from(label.max_segments) * u64::from(label.segment_blocks);
    if physical >= u64::from(MAX_PHYSICAL) {
        return Err(invalid("a chain has less than 15 TiB of physical space"));
    }
    let compaction = label.cleaning == Cleaning::CompactInBody && label.links.len() > 1;
    let reserve = u64::from(reserved_segments(label.links.len() as u32, compaction));
    let most = segments.saturating_sub(reserve) * u64::from(label.segment_blocks);
    if label.blocks == 0 || label.blocks > most {
        return Err(invalid(format!(
            "the volume cannot have {} blocks: its links hold up to {most} besides what cleaning \
             needs; make it smaller or its links larger",
            label.blocks
        )));
    }
    let (need, have) = (label.layout().total(), parts.map.geometry().size);
    if need > have {
        return Err(invalid(format!("the map area needs {need} bytes and has {have}")));
    }
    Ok(())
}

/// A state without blocks or logs, in which every segment is free.
pub(super) fn empty_state(label: Label, parts: &Parts) -> Result<State, ChainError> {
    let mut segments = Segments::new(label.segment_blocks);
    for (number, record) in label.links.iter().enumerate() {
        let id = uuid::Uuid::from_bytes(record.id);
        let link = parts.links.iter().find(|link| link.id == id);
        let link = link.ok_or(ChainError::MissingLink { number, id })?;
        let need =
            u64::from(record.segments.get()) * u64::from(label.segment_blocks) * BLOCK_SIZE as u64;
        let have = link.device.geometry().size;
        if have < need {
            return Err(invalid(format!(
                "link {number} ({}) has shrunk: it needs {need} bytes and has {have}",
                link.device.name()
            )));
        }
        segments.add_link(record, link.device.clone());
    }
    let mut holds = Holds::default();
    label.snapshots.iter().for_each(|snapshot| holds.take(snapshot.version));
    let tag = volume_tag(label.volume);
    let placeholder = SegmentMap::fresh(0, 0);
    Ok(State {
        index: Index::new(label.blocks),
        users: Stream::new(USERS, tag, label.segment_blocks, placeholder),
        label,
        segments,
        holds,
        synced: Synced::default(),
        ended_within: 0,
        version: Version(0),
        committed: Version(0),
        body: None,
        next_seq: 1,
        pending: HashMap::default(),
        slots: Default::default(),
        minis: Default::default(),
        wishes: Default::default(),
        unwritten: 0,
        moving: [0; 2],
        told: [u16::MAX; 6],
        dirty: RoaringBitmap::new(),
        entries_since: 0,
        turns: Default::default(),
        poison: None,
        frozen: 0,
        dead: Vec::new(),
    })
}

/// A new log in the free segment `id`.
pub(super) fn open_stream(state: &mut State, log: usize, id: u32) -> Stream {
    state.segments.open(id);
    let seq = state.next_seq;
    state.next_seq += 1;
    state.segments.begin(id, seq);
    let tag = volume_tag(state.label.volume);
    Stream::new(log, tag, state.label.segment_blocks, SegmentMap::fresh(id, seq))
}

impl State {
    /// Starts the log of compaction if the volume wants one and there is a body to write to.
    pub(super) fn add_body(&mut self) {
        let wanted = self.label.cleaning == Cleaning::CompactInBody;
        if self.body.is_some() || !wanted || self.segments.links.len() < 2 {
            return;
        }
        let tail = self.tail_link();
        let links = (0..self.segments.links.len()).filter(|link| *link != tail);
        let free = links.filter_map(|link| self.segments.next_on(link, 0, 0)).next();
        if let Some(id) = free {
            self.body = Some(open_stream(self, BODY, id));
        }
    }
}

pub(super) fn build(
    env: &Env,
    parts: Parts,
    options: Options,
    mut state: State,
    area: Area,
) -> Inner {
    state.wishes.most = options.please_cache_blocks;
    let label = &state.label;
    let sector = parts.map.geometry().sector as usize;
    let body = parts.body_cache.is_some() || options.body_cache_blocks > 0;
    Inner {
        env: env.clone(),
        volume: label.volume,
        tag: volume_tag(label.volume),
        layout: label.layout(),
        segment_blocks: label.segment_blocks,
        map_unit: sector.clamp(SECTOR, PAGE),
        map: parts.map,
        map_link: parts.map_link,
        blocks: AtomicU64::new(state.index.blocks()),
        state: Mutex::new(state),
        rounds: Mutex::default(),
        checkpoints: tokio::sync::Mutex::new(area),
        label_lock: tokio::sync::Mutex::new(()),
        cleaning_lock: tokio::sync::Mutex::new(()),
        tail_cache: Cache::new(env, options.tail_cache_blocks, parts.tail_cache),
        body_cache: body.then(|| {
            Cache::with_order(env, options.body_cache_blocks, parts.body_cache, RamOrder::Lru)
        }),
        room: Notify::new(),
        written: Notify::new(),
        turn: Notify::new(),
        queue_kick: [Notify::new(), Notify::new()],
        clean_kick: Notify::new(),
        checkpoint_kick: Notify::new(),
        role_kick: Notify::new(),
        counts: Counts::default(),
        options,
    }
}

/// See [`Chain::open`].
pub(super) async fn open(
    env: &Env,
    parts: Parts,
    options: Options,
) -> Result<(Chain, Recovered), ChainError> {
    let label = Label::read(&*parts.map).await?;
    let mut state = empty_state(label, &parts)?;
    check_sizes(&state.label, &parts)?;
    // After a crash of this program alone, the devices' caches may hold what is not yet durable.
    parts.map.flush(Purpose::Map).await?;
    for link in &parts.links {
        link.device.flush(Purpose::UserData).await?;
    }
    let mut found = Recovered::default();
    let (area, logs) = load_checkpoint(&parts.map, &mut state, &mut found).await?;
    let mut idle = state.segments.ids(|segment| segment.live == 0);
    let first_new = state.next_seq;
    let replay = Replay { map: parts.map.clone(), tag: volume_tag(state.label.volume) };
    let users = replay.read_log(&state, USERS, logs[USERS], &mut found).await?;
    let body = match logs[BODY].segment.get() {
        NO_SEGMENT => None,
        _ => Some(replay.read_log(&state, BODY, logs[BODY], &mut found).await?),
    };
    let minis = read_minis(&state, &users).await?;
    found.minis = minis.len() as u64;
    apply_logs(&mut state, &users, body.as_ref(), &minis, &mut found);
    let in_use = users.segments.iter().chain(body.iter().flat_map(|body| &body.segments));
    let in_use: Vec<u32> = in_use.map(|segment| segment.id).collect();
    idle.retain(|id| !in_use.contains(id));
    found.slots = state.slots.len() as u64;
    state.fill_slots().await;
    replay.seal(&state, &users).await?;
    if let Some(body) = &body {
        replay.seal(&state, body).await?;
    }
    // Without a log of compaction, none of its segments opened since the checkpoint counts.
    let body_end = body.as_ref().map_or(first_new - 1, |body| body.end.seq());
    let ends = [users.end.seq(), body_end];
    let first = state.next_seq;
    resume(&mut state, Some(users), body);
    note_cut(&mut state, ends, first);
    state.label.write(&parts.map).await?;
    if state.owed() > 0 {
        // Settling comes before the checkpoint. It needs room that neither the last checkpoint nor
        // the logs behind it refer to, so that a recovery which is cut short can be done again.
        state.segments.free(&idle);
    }
    found.version = state.version.0;
    let inner = Arc::new(build(env, parts, options, state, area));
    // Copies of the map that a crash left different must agree on what this recovery went by.
    if inner.map.copies() > 1 {
        checkpoint::write_base(&inner).await?;
        scrub::renew_labels(&inner).await?;
    } else {
        checkpoint::write(&inner).await?;
    }
    if inner.state.lock().label.is_crowded() {
        forget_lives(&inner).await?;
    }
    inner.state.lock().add_body();
    Ok((Chain::start(inner), found))
}

/// Reads the newest base and its deltas into `state`.
async fn load_checkpoint(
    map: &DeviceRef,
    state: &mut State,
    found: &mut Recovered,
) -> Result<(Area, [LogRecord; 2]), ChainError> {
    let layout = state.label.layout();
    let volume = *state.label.volume.as_bytes();
    let newest = checkpoint::newest_base(map, &layout, &volume).await;
    let generation = newest.ok_or_else(|| damaged_checkpoint("no checkpoint is whole"))?;
    let mut area = Area { generation, ..Area::default() };
    let mut logs = None;
    loop {
        let wanted = Wanted {
            generation,
            number: area.number,
            at: checkpoint::record_start(&layout, generation, area.end),
            room: checkpoint::room_in(&layout).saturating_sub(area.end),
        };
        let Some(record) = checkpoint::read_record(map, &volume, wanted).await? else { break };
        area.end += checkpoint::bytes_for(record.header.payload.get() as usize);
        if area.number == 0 {
            area.base_bytes = area.end;
        }
        area.number += 1;
        logs = Some(record.header.logs);
        load_record(state, record);
    }
    let logs = logs.ok_or_else(|| damaged_checkpoint("no checkpoint is whole"))?;
    let witnessed = checkpoint::newest_witnessed(map, &layout, &volume).await;
    if let Some((there, number)) = witnessed.filter(|newest| *newest >= (generation, area.number)) {
        let why = format!("checkpoint {there}.{number} was durable, and its head is not whole");
        return Err(damaged_checkpoint(&why));
    }
    found.checkpoint_bytes = area.end;
    state.index.recount();
    let mut places: Vec<u32> = state.index.records().collect();
    state.index.for_each(|_, at| places.push(at.block));
    for block in places {
        if !state.segments.exists(state.segments.of(block)) {
            return Err(ChainError::Damaged(format!("the index names block {block} of no link")));
        }
        state.segments.add_live(block);
    }
    Ok((area, logs))
}

fn damaged_checkpoint(why: &str) -> ChainError {
    ChainError::Damaged(why.to_owned())
}

fn load_record(state: &mut State, record: Loaded) {
    for (id, seq) in record.sequences.iter().enumerate() {
        if state.segments.exists(id as u32) {
            state.segments.get_mut(id as u32).seq = *seq;
        }
    }
    let blocks = state.index.blocks();
    for (first, count, hole) in record.holes {
        let end = (u64::from(first) + u64::from(count)).min(blocks) as u32;
        (first..end).for_each(|lba| state.index.load(lba, Content::Hole(hole)));
    }
    for (lba, content) in record.contents {
        state.index.load(lba, content);
    }
    for (record, version) in record.records {
        state.index.add_record(record, version);
    }
    state.version = Version(record.header.version.get());
    state.next_seq = record.header.next_seq.get();
}

/// A log's entries after the checkpoint.
pub(super) struct Log {
    pub(super) number: usize,
    /// Segments in the log's order: where it stood first.
    pub(super) segments: Vec<LogSegment>,
    /// Entries from the checkpoint on, as far as they survived as a whole.
    pub(super) entries: Vec<(Position, u32, MapEntry)>,
    /// Where they end.
    pub(super) end: Position,
    /// Sectors beyond the end that look like this log's: they must not be met again.
    pub(super) stale: Vec<(u32, u16)>,
    /// The highest sequence seen.
    pub(super) top: u64,
    /// The highest position below which data was said to be durable. It may lie beyond the end.
    pub(super) durable: Position,
}

/// A segment of a log.
pub(super) struct LogSegment {
    pub(super) id: u32,
    pub(super) seq: u64,
    pub(super) next: u32,
    /// Entries from block 0 on; those before the first page that was read are placeholders.
    pub(super) entries: Vec<Entry>,
}

/// Reads logs, and ends them.
pub(super) struct Replay {
    pub(super) map: DeviceRef,
    pub(super) tag: u32,
}

impl Replay {
    /// Reads a log from where the checkpoint left it.
    async fn read_log(
        &self,
        state: &State,
        number: usize,
        from: LogRecord,
        found: &mut Recovered,
    ) -> Result<Log, ChainError> {
        let start = Position::new(from.seq.get(), from.slot.get());
        let mut log = Log {
            number,
            segments: Vec::new(),
            entries: Vec::new(),
            end: start,
            stale: Vec::new(),
            top: from.seq.get(),
            durable: start,
        };
        let mut durable = start;
        let (mut id, mut slot, mut seq) = (from.segment.get(), from.slot.get(), Some(start.seq()));
        let first_new = state.next_seq;
        let mut open = true;
        while id != NO_SEGMENT && state.segments.exists(id) && !log.visited(id) {
            // The last page of a full segment names the next one.
            let page = slot.min(state.label.segment_blocks - 1) / ENTRIES_PER_PAGE;
            let first = page * (ENTRIES_PER_PAGE / ENTRIES_PER_SECTOR);
            let sectors = self.read_sectors(state, id, first, found).await?;
            let expected = seq.or_else(|| {
                let heads = sectors.iter().filter_map(Sector::head);
                let mut ours = heads.filter(|head| {
                    // A recovery that was cut short may have left a segment behind, and the next one
                    // may have opened it again.
                    let cut = state.label.is_cut(head.log, head.seq);
                    let new = head.seq >= first_new && head.seq > log.top;
                    usize::from(head.log) == number && new && !cut
                });
                ours.next().map(|head| head.seq)
            });
            let Some(expected) = expected else {
                let hidden = |(index, sector): (usize, &Sector)| sector.hides(self.tag, index);
                if open && sectors.iter().enumerate().any(hidden) {
                    return Err(damaged_map(id, 0));
                }
                break;
            };
            log.top = log.top.max(expected);
            let mut segment = LogSegment::new(id, expected, first);
            let gap_before = !open;
            for (at, sector) in sectors.into_iter().enumerate() {
                let index = first + at as u32;
                match sector {
                    Sector::Unreadable if open => return Err(damaged_map(id, index)),
                    // A sector is written whole or not at all: this is no crash's work.
                    Sector::Other(sector)
                        if sector.resembles(self.tag, index as u16, expected, number as u8) =>
                    {
                        if open {
                            return Err(damaged_map(id, index));
                        }
                        log.stale.push((id, index as u16));
                    }
                    Sector::Whole(head, _) if head.seq > expected && head.seq >= first_new => {
                        return Err(missed_checkpoint(id));
                    }
                    Sector::Whole(head, entries)
                        if head.seq == expected && usize::from(head.log) == number =>
                    {
                        // What compaction writes is durable before its entries are.
                        let end = index * ENTRIES_PER_SECTOR + u32::from(head.count);
                        durable = durable.max(match number {
                            USERS => head.durable,
                            _ => Position::new(head.seq, end),
                        });
                        segment.next = head.next;
                        if open {
                            segment.entries.extend_from_slice(&entries);
                            open = u32::from(head.count) == ENTRIES_PER_SECTOR;
                            continue;
                        }
                        let committed = (index * ENTRIES_PER_SECTOR)
                            .saturating_sub(u32::from(head.uncommitted));
                        let known = head.uncommitted != u16::MAX;
                        if known && (gap_before || committed > segment.entries.len() as u32) {
                            return Err(damaged_map(id, index));
                        }
                        log.stale.push((id, index as u16));
                    }
                    _ => open = false,
                }
            }
            // What the checkpoint refers to was durable before it.
            if segment.entries.len() < slot as usize {
                return Err(damaged_map(id, segment.entries.len() as u32 / ENTRIES_PER_SECTOR));
            }
            let next = segment.next;
            log.take(segment, start, state.label.segment_blocks)?;
            (id, slot, seq) = (next, 0, None);
        }
        self.settle(state, &mut log, start, durable, found).await?;
        log.durable = durable;
        Ok(log)
    }

    /// The sectors of a segment's map from the one numbered `first` on.
    async fn read_sectors(
        &self,
        state: &State,
        id: u32,
        first: u32,
        found: &mut Recovered,
    ) -> Result<Vec<Sector>, ChainError> {
        let layout = state.label.layout();
        let len = layout.segment_map() - first as usize * SECTOR;
        let at = layout.map_of(id) + u64::from(first) * SECTOR as u64;
        let mut sectors = Vec::new();
        found.map_bytes += len as u64;
        let whole = match self.map.copies() {
            1 => self.map.read(at, len, Purpose::Map).await.ok(),
            _ => None,
        };
        for page in (0..len).step_by(PAGE) {
            let index = (first as usize + page / SECTOR) as u16;
            let bytes = match &whole {
                Some(bytes) => Some(bytes.slice(page..page + PAGE)),
                None => self.agree(at + page as u64, index).await?,
            };
            for number in 0..PAGE / SECTOR {
                let index = first as usize + page / SECTOR + number;
                let bytes = bytes.as_ref().map(|bytes| &bytes[number * SECTOR..][..SECTOR]);
                sectors.push(Sector::decode(bytes, self.tag, index as u16));
            }
        }
        Ok(sectors)
    }

    /// A page of the map as every copy has it from now on, `None` when no copy can be read.
    ///
    /// A crash may leave copies that differ in what no flush had covered, each of them valid. What
    /// this recovery goes by must be what the next one finds, whichever copy it reads.
    async fn agree(&self, at: u64, first: u16) -> Result<Option<bytes::Bytes>, ChainError> {
        let mut copies = Vec::new();
        for copy in 0..self.map.copies() {
            copies.extend(self.map.read_copy(copy, at, PAGE, Purpose::Map).await);
        }
        let Some(one) = copies.first() else { return Ok(None) };
        let mut agreed = AlignedBuf::copy_of(one);
        for (number, sector) in agreed.chunks_exact_mut(SECTOR).enumerate() {
            let of_copy = |copy: &bytes::Bytes| {
                let bytes = copy.slice(number * SECTOR..(number + 1) * SECTOR);
                let found = MapSector::ref_from_bytes(&bytes).ok()?;
                let head = found.verify(self.tag, first + number as u16)?;
                Some(((head.seq, head.count), bytes.clone()))
            };
            if let Some((_, best)) = copies.iter().filter_map(of_copy).max_by_key(|(rank, _)| *rank)
            {
                sector.copy_from_slice(&best);
            }
        }
        let agreed = agreed.freeze();
        if copies.iter().any(|copy| *copy != agreed) {
            self.map.write(at, vec![agreed.clone()], Purpose::Repair).await?;
        }
        Ok(Some(agreed))
    }

    /// Cuts a log where it stops being whole: at damage that a crash explains, at content that was
    /// never written, inside a transaction.
    async fn settle(
        &self,
        state: &State,
        log: &mut Log,
        start: Position,
        durable: Position,
        found: &mut Recovered,
    ) -> Result<(), ChainError> {
        let all = log.entries.len();
        let doubtful = log.entries.partition_point(|(at, _, _)| *at < durable);
        let mut whole = all;
        for (number, (_, block, entry)) in log.entries.iter().enumerate().skip(doubtful) {
            if matches!(entry.kind, Kind::Data | Kind::Moved | Kind::Mini) {
                found.checked_bytes += BLOCK_SIZE as u64;
                if !holds(state, *block, entry).await? {
                    whole = number;
                    break;
                }
            }
        }
        while whole > 0 && !log.entries[whole - 1].2.last {
            whole -= 1;
        }
        log.entries.truncate(whole);
        log.check_versions(state.version)?;
        found.dropped += (all - whole) as u64;
        found.replayed += whole as u64;
        log.cut(log.entries.last().map_or(start, |(at, _, _)| Position(at.0 + 1)));
        Ok(())
    }

    /// Overwrites what lies beyond a log's end, so that a later recovery does not take it for what
    /// will be written there.
    pub(super) async fn seal(&self, state: &State, log: &Log) -> Result<(), ChainError> {
        for (id, index) in &log.stale {
            self.put_sector(state, *id, *index, &[0; SECTOR]).await?;
        }
        if !log.stale.is_empty() {
            self.map.flush(Purpose::Map).await?;
        }
        // Nor may what the last sector holds beyond the end be joined to what follows it.
        if let Some((index, sector)) = log.last_sector(self.tag) {
            let id = log.segments.last().map_or(0, |segment| segment.id);
            self.put_sector(state, id, index, sector.as_bytes()).await?;
            self.map.flush(Purpose::Map).await?;
        }
        Ok(())
    }

    /// Overwrites one sector of a segment's map; others in the device's unit stay as they are.
    async fn put_sector(
        &self,
        state: &State,
        id: u32,
        index: u16,
        sector: &[u8],
    ) -> Result<(), ChainError> {
        let unit = (self.map.geometry().sector as usize).clamp(SECTOR, PAGE);
        let at = usize::from(index) * SECTOR;
        let start = at / unit * unit;
        let offset = state.label.layout().map_of(id) + start as u64;
        let mut buffer = AlignedBuf::copy_of(&self.map.read(offset, unit, Purpose::Map).await?);
        buffer[at - start..at - start + SECTOR].copy_from_slice(sector);
        self.map.write(offset, vec![buffer.freeze()], Purpose::Map).await?;
        Ok(())
    }
}

/// A map sector as read.
enum Sector {
    /// It holds for this volume and its place.
    Whole(SectorHead, Vec<Entry>),
    /// It does not: never written, or another's, or damaged.
    Other(Box<MapSector>),
    /// No copy could be read.
    Unreadable,
}

impl Sector {
    fn decode(bytes: Option<&[u8]>, tag: u32, index: u16) -> Sector {
        let Some(sector) = bytes.and_then(|bytes| MapSector::ref_from_bytes(bytes).ok()) else {
            return Sector::Unreadable;
        };
        match sector.verify(tag, index) {
            Some(head) => Sector::Whole(head, sector.entries().to_vec()),
            None => Sector::Other(Box::new(*sector)),
        }
    }

    /// Whether it may be the damaged rest of a sector that counted.
    fn hides(&self, tag: u32, index: usize) -> bool {
        match self {
            Sector::Whole(..) => false,
            Sector::Other(sector) => sector.is_marked(tag, index as u16),
            Sector::Unreadable => true,
        }
    }

    fn head(&self) -> Option<&SectorHead> {
        match self {
            Sector::Whole(head, _) => Some(head),
            _ => None,
        }
    }
}

fn damaged_map(segment: u32, sector: u32) -> ChainError {
    ChainError::Damaged(format!(
        "the map of segment {segment} is damaged before or at sector {sector}, and what it held \
         was durable"
    ))
}

/// A segment was opened again after the checkpoint that is being replayed: a newer one is missing.
fn missed_checkpoint(segment: u32) -> ChainError {
    ChainError::Damaged(format!(
        "segment {segment} was written after a newer checkpoint than any that is whole"
    ))
}

/// Whether a block holds what its entry says. A block that cannot be read is taken to: a crash does
/// not explain it, and readers will be told.
pub(super) async fn holds(state: &State, block: u32, entry: &MapEntry) -> Result<bool, ChainError> {
    let Some((link, offset)) = state.segments.place(block) else { return Ok(false) };
    let device = &state.segments.links[link].device;
    let right = |content: &[u8]| match entry.kind {
        Kind::Mini => minilog::format::open(entry, &Bytes::copy_from_slice(content)).is_some(),
        _ => block_checksum(entry.lba, content) == entry.check,
    };
    match read_verified(device, offset, BLOCK_SIZE, Purpose::UserData, right).await {
        Ok(Verified::Whole { .. }) | Err(_) => Ok(true),
        Ok(Verified::Damaged) => Ok(false),
    }
}

impl LogSegment {
    fn new(id: u32, seq: u64, first: u32) -> LogSegment {
        let pad =
            MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: Version(0), check: 0 };
        let entries = vec![Entry::encode(&pad); (first * ENTRIES_PER_SECTOR) as usize];
        LogSegment { id, seq, next: NO_SEGMENT, entries }
    }
}

impl Log {
    fn visited(&self, id: u32) -> bool {
        self.segments.iter().any(|segment| segment.id == id)
    }

    /// Adds a segment's entries from `start` on.
    fn take(&mut self, segment: LogSegment, start: Position, per: u32) -> Result<(), ChainError> {
        for (slot, entry) in segment.entries.iter().enumerate() {
            let at = Position::new(segment.seq, slot as u32);
            if at < start {
                continue;
            }
            let entry = entry.decode().ok_or_else(|| {
                ChainError::Damaged(format!("unknown map entry in segment {}", segment.id))
            })?;
            self.entries.push((at, segment.id * per + slot as u32, entry));
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Versions follow each other without a gap, or part of the log is missing.
    fn check_versions(&self, mut version: Version) -> Result<(), ChainError> {
        for (_, block, entry) in &self.entries {
            let first = match entry.kind {
                Kind::Data | Kind::Discard => entry.version,
                Kind::Mini => Version(entry.version.0.saturating_sub(entry.lba.0)),
                _ => continue,
            };
            if first < version || first > version.next() {
                return Err(ChainError::Damaged(format!(
                    "the log goes from version {version} to {} at block {block}: a part of it, or \
                     a newer checkpoint, is missing",
                    entry.version
                )));
            }
            version = entry.version;
        }
        Ok(())
    }

    /// The sector in which the log ends, with nothing beyond the end; `None` at a sector's start.
    fn last_sector(&self, tag: u32) -> Option<(u16, MapSector)> {
        let last = self.segments.last()?;
        let filled = last.entries.len();
        let first = filled / ENTRIES_PER_SECTOR as usize * ENTRIES_PER_SECTOR as usize;
        let index = (first / ENTRIES_PER_SECTOR as usize) as u16;
        let head = SectorHead {
            seq: last.seq,
            durable: if self.number == USERS { self.end } else { Position::default() },
            uncommitted: u16::MAX,
            next: NO_SEGMENT,
            index,
            count: (filled - first) as u8,
            log: self.number as u8,
        };
        (filled > first).then(|| (index, MapSector::seal(tag, head, &last.entries[first..])))
    }

    /// Ends the log at `end`; sectors after it are stale.
    fn cut(&mut self, end: Position) {
        self.end = end;
        let keep = self.segments.iter().position(|segment| segment.seq == end.seq()).unwrap_or(0);
        for segment in &mut self.segments[keep..] {
            let kept = if segment.seq == end.seq() { end.slot() } else { 0 };
            let first = kept.div_ceil(ENTRIES_PER_SECTOR);
            let last = (segment.entries.len() as u32).div_ceil(ENTRIES_PER_SECTOR);
            self.stale.extend((first..last).map(|index| (segment.id, index as u16)));
            segment.entries.truncate(kept as usize);
        }
        self.segments.truncate(keep + 1);
    }
}

/// Replays the users' log, then that of compaction.
fn apply_logs(
    state: &mut State,
    users: &Log,
    body: Option<&Log>,
    minis: &Minis,
    found: &mut Recovered,
) {
    let mut newest: HashMap<u32, Version> = HashMap::default();
    for (_, block, entry) in &users.entries {
        replay_entry(state, *block, entry, &mut newest);
        for fragment in minis.get(block).into_iter().flatten() {
            state.replay_fragment(fragment, &mut newest);
        }
    }
    state.minis.since = minis.len() as u64;
    for (_, block, entry) in body.iter().flat_map(|body| &body.entries) {
        replay_entry(state, *block, entry, &mut newest);
    }
    let voids = state.label.voids.clone();
    for void in voids.into_iter().filter(Void::is_rollback) {
        state.take_back(void.from, void.to);
        state.version = state.version.max(void.to);
    }
    state.index.settle_all(&state.holds);
    state.reap();
    state.dead.clear();
    state.next_seq = first_unused_seq(state, users.top.max(body.map_or(0, |body| body.top)));
    state.committed = state.version;
    found.version = state.version.0;
}

/// A sequence that no segment had before the crash. Since the checkpoint each segment was opened at
/// most once, perhaps without the log that led there having survived: its sectors must not count
/// when the segment is opened again. Nor were maps cleared more than twice without a checkpoint.
fn first_unused_seq(state: &State, top: u64) -> u64 {
    let most = u64::from(state.segments.len()) + 2;
    // A recovery that was cut short may have gone on to further segments.
    let before = state.label.cuts.last().map_or(0, |cut| cut.first);
    let before = if before > state.next_seq { before + most } else { 0 };
    (state.next_seq + most).max(top + 1).max(before)
}

fn replay_entry(
    state: &mut State,
    block: u32,
    entry: &MapEntry,
    newest: &mut HashMap<u32, Version>,
) {
    let lba = entry.lba.0 as u32;
    let place = Location { block, check: entry.check };
    match entry.kind {
        Kind::Pad | Kind::Mini | Kind::Settled => {}
        // What was taken back has no version to be moved either.
        _ if state.label.is_void(entry.version, entry.lba.0) => {}
        Kind::Data => {
            newest.insert(lba, entry.version);
            state.put(lba, entry.version, Place::At(place));
        }
        Kind::Discard => {
            let end = (u64::from(lba) + u64::from(entry.check)).min(state.index.blocks()) as u32;
            // Only blocks that are stored can have a version to compare with.
            for at in lba..end {
                if state.index.get(at, Version(u64::MAX)).is_some() {
                    newest.insert(at, entry.version);
                }
            }
            state.put_discard(lba, entry.check, entry.version, block);
        }
        Kind::Moved => {
            let known = newest.get(&lba).copied();
            state.segments.add_live(block);
            let slots = &state.slots;
            let slot_at = |block| is_slot(block).then(|| slots.get(block)).flatten();
            let same = |at: Location| match slot_at(at.block) {
                Some(slot) => slot.version == entry.version,
                None => at.check == entry.check,
            };
            match state.index.relocate_version(lba, entry.version, known, Place::At(place), same) {
                true => {
                    state.dirty.insert(lba);
                }
                false => state.segments.drop_live(block),
            }
            state.reap();
        }
        Kind::MovedDiscard => {
            let end = (u64::from(lba) + u64::from(entry.check)).min(state.index.blocks()) as u32;
            for at in lba..end {
                let known = newest.get(&at).copied();
                let to = Place::Hole(block);
                if state.index.relocate_version(at, entry.version, known, to, |_| false) {
                    state.dirty.insert(at);
                }
            }
            state.reap();
        }
    }
    state.version = match entry.kind {
        Kind::Data | Kind::Discard | Kind::Mini => state.version.max(entry.version),
        Kind::Moved | Kind::MovedDiscard | Kind::Pad | Kind::Settled => state.version,
    };
}

/// Remembers in the label where the logs ended: what lies beyond was never acknowledged, and must
/// not be met again when somebody reads the whole map.
pub(super) fn note_cut(state: &mut State, ends: [u64; 2], first: u64) {
    let ids = (0..state.segments.len()).filter(|id| state.segments.exists(*id));
    let seqs: Vec<(u64, bool)> = ids
        .map(|id| {
            let segment = state.segments.get(id);
            (segment.seq, segment.state != SegmentState::Open && segment.live == 0)
        })
        .collect();
    let cut = Cut { ends, first, version: state.version };
    state.label.add_cut(cut, &seqs);
    state.forget_voids();
}

/// Marks the maps of all segments without entries that count, before anybody writes, and forgets what
/// the label remembers because of them.
pub(super) async fn forget_lives(inner: &Inner) -> Result<(), ChainError> {
    let free = {
        let state = inner.state.lock();
        let mut free = state
            .segments
            .ids(|segment| matches!(segment.state, SegmentState::Free | SegmentState::Open));
        let written = |id: &u32| {
            state.users.holds_map_of(*id)
                || state.body.as_ref().is_some_and(|body| body.holds_map_of(*id))
        };
        free.retain(|id| !written(id));
        free
    };
    let seq = clear_maps(inner, &free).await?;
    let voids = {
        let mut state = inner.state.lock();
        for id in free {
            let segment = state.segments.get_mut(id);
            (segment.seq, segment.before) = (seq, 0);
        }
        state.forget_voids();
        state.label.voids.clone()
    };
    inner
        .change_label(|label| {
            label.voids = voids;
            label.cuts.drain(..label.cuts.len() - 1);
        })
        .await
}

/// Says in the maps of segments that nothing in them counts, under a sequence that it returns: in
/// the first sector, since one sector is written whole or not at all.
pub(super) async fn clear_maps(inner: &Inner, segments: &[u32]) -> Result<u64, ChainError> {
    let seq = {
        let mut state = inner.state.lock();
        state.next_seq += 1;
        state.next_seq - 1
    };
    let head = SectorHead {
        seq,
        durable: Position::default(),
        uncommitted: u16::MAX,
        next: NO_SEGMENT,
        index: 0,
        count: 0,
        log: NO_LOG,
    };
    let mut buffer = AlignedBuf::zeroed(inner.map_unit);
    buffer[..SECTOR].copy_from_slice(MapSector::seal(inner.tag, head, &[]).as_bytes());
    let sector = buffer.freeze();
    for id in segments {
        inner.map.write(inner.layout.map_of(*id), vec![sector.clone()], Purpose::Map).await?;
    }
    inner.map.flush(Purpose::Map).await?;
    Ok(seq)
}

/// Lets the logs go on where they ended, as far as they can.
pub(super) fn resume(state: &mut State, users: Option<Log>, body: Option<Log>) {
    for log in users.iter().chain(body.as_ref()) {
        for segment in &log.segments {
            state.segments.get_mut(segment.id).seq = segment.seq;
        }
    }
    let ids = state.segments.ids(|segment| segment.state != SegmentState::Absent);
    for id in ids {
        state.segments.open(id);
        state.segments.close(id);
    }
    let body_stream = body.and_then(|body| resume_log(state, body));
    if let Some(stream) = users.and_then(|users| resume_log(state, users)) {
        state.users = stream;
    }
    state.body = body_stream;
}

fn resume_log(state: &mut State, mut log: Log) -> Option<Stream> {
    let number = log.number;
    let last = log.segments.pop()?;
    state.segments.open(last.id);
    if last.entries.is_empty() {
        // The map still shows what was there before, whatever that was.
        state.segments.get_mut(last.id).before = 1;
    }
    let filled = last.entries.len() as u32;
    let map = SegmentMap {
        id: last.id,
        seq: last.seq,
        next: NO_SEGMENT,
        entries: last.entries,
        committed: filled,
        // What follows the end in its sector, and the name of the next segment, go.
        renamed: filled > 0,
    };
    let tag = volume_tag(state.label.volume);
    let mut stream = Stream::new(number, tag, state.label.segment_blocks, map);
    // A sector before the end may say that data was durable up to some position beyond it. That
    // was so of blocks whose entries are lost: of what comes to their places it must not be believed.
    let pad =
        MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: state.version, check: 0 };
    while stream.room() > 0 && stream.tail() < log.durable {
        stream.append(&pad, None, Purpose::Map);
        state.entries_since += 1;
    }
    Some(stream)
}
