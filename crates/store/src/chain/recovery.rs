//! Making and opening a chain: the label, the newest checkpoint, and the logs that follow it.
//!
//! Guarantees of opening:
//!
//! - After a crash, however often recovery itself is interrupted, it finds one version, no older than the
//!   acknowledged ones, and the same one each time.
//! - One damaged copy of the label, or of a checkpoint record's head, costs nothing.
//! - Damage or unreadable sectors in the checkpoint records or in the map of the log after them are
//!   [`ChainError::Damaged`]: nothing is overwritten, and no acknowledged write is lost in silence.
//!
//! Not covered: a map sector at the very end of the log whose write the device acknowledged and lost, or that
//! foreign bytes overwrote, looks like a crash before that write, and nothing later refers to it.
//! [`Chain::rebuild`] is for a volume with such damage.

use std::sync::{Arc, atomic::AtomicU64};

use async_recursion::async_recursion;
use roaring::RoaringBitmap;
use thalweg_env::{Env, HashMap};
use tokio::sync::Notify;
use zerocopy::IntoBytes;

use super::checkpoint::{self, Area, HALF_SLACK, Loaded, Wanted};
use super::format::{
    ENTRIES_PER_PAGE, Kind, LinkRecord, LogRecord, MapEntry, MapSector, NO_LOG, NO_SEGMENT, PAGE,
    Position, SECTOR, SectorHead, volume_tag,
};
use super::index::{Content, Index, Location, MAX_PHYSICAL, Place, is_slot};
use super::label::{Cut, Label, Layout, Void};
use super::log::{Log, Replay};
use super::minilog::replay::{Minis, read_minis};
use super::recovered::Recovered;
use super::segments::{SegmentState, Segments};
use super::state::{State, reserved_segments};
use super::stream::{BODY, SegmentMap, Stream, USERS};
use super::synced::Synced;
use super::{
    Chain, ChainError, Cleaning, Counts, Create, Inner, Options, Parts, caches, follow, scrub,
};
use crate::block::{BLOCK_SIZE, Epoch, Holds, Lba, Version};
use crate::device::{AlignedBuf, DeviceRef, Purpose};
use crate::lock::BriefMutex;

/// The layout of a map area for this many segments.
pub(super) fn layout_for(segment_blocks: u32, max_segments: u32) -> Layout {
    let blocks = u64::from(max_segments) * u64::from(segment_blocks);
    // A block that was discarded, written and discarded again while versions were held takes 56 bytes in a
    // checkpoint: its number, and three versions of which one is a place.
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
    let segments =
        u32::try_from(segments).map_err(|_| invalid("a link is larger than 2^32 segments"))?;
    Ok(LinkRecord {
        id: *link.id.as_bytes(),
        base: base.into(),
        segments: segments.into(),
        leaving: 0,
        reserved: [0; 7],
    })
}

/// See [`Chain::create`].
#[async_recursion]
pub(super) async fn create(env: &Env, parts: Parts, create: &Create) -> Result<(), ChainError> {
    let per = create.segment_blocks;
    if per == 0 || !per.is_multiple_of(ENTRIES_PER_PAGE) || per > Position::MAX_SLOTS {
        return Err(invalid(format!(
            "the blocks in a segment must be a multiple of {ENTRIES_PER_PAGE}, not {per}"
        )));
    }
    let mut links = Vec::new();
    let mut base = 0;
    for link in &parts.links {
        let record = link_record(link, base, per)?;
        base += record.segments.get();
        links.push(record);
    }
    let layout = layout_for(per, create.max_segments);
    let label = Label::new(create, layout.checkpoint_half, links, env.wall_clock());
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
        return Err(invalid("the physical space of a chain must be less than 15 TiB"));
    }
    let compaction = label.cleaning == Cleaning::CompactInBody && label.links.len() > 1;
    let reserve = u64::from(reserved_segments(label.links.len() as u32, compaction));
    let most = segments.saturating_sub(reserve) * u64::from(label.segment_blocks);
    if label.blocks == 0 || label.blocks > most {
        return Err(invalid(format!(
            "the volume cannot have {} blocks: its links hold up to {most} besides the reserve for \
             cleaning; make it smaller or its links larger",
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
    let mut segments = Segments::new(label.segment_blocks, label.placement);
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
    Ok(State {
        index: Index::new(label.blocks),
        users: Stream::new(USERS, tag, label.segment_blocks, SegmentMap::fresh(0, 0)),
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
        cleaning: Default::default(),
        checkpoint_hurry: false,
        poison: None,
        tap: None,
        frozen: 0,
        dead: Vec::new(),
    })
}

/// A new log in the free segment `id`.
pub(super) fn open_stream(state: &mut State, log: usize, id: u32) -> Stream {
    state.segments.open(id);
    let seq = state.take_seq();
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
    let (tail_cache, body_cache) = caches::new(env, &options, &parts);
    Inner {
        env: env.clone(),
        volume: label.volume,
        epoch: Epoch(label.sequence),
        tag: volume_tag(label.volume),
        layout: label.layout(),
        segment_blocks: label.segment_blocks,
        map_unit: map_unit(&parts.map),
        map: parts.map,
        map_link: parts.map_link,
        blocks: AtomicU64::new(state.index.blocks()),
        committed: AtomicU64::new(state.committed.0),
        gate: super::yielding::WriterGate::new(label),
        counts: Counts::new(label.damaged),
        state: BriefMutex::new(state),
        rounds: BriefMutex::default(),
        checkpoints: tokio::sync::Mutex::new(area),
        label_lock: tokio::sync::Mutex::new(()),
        cleaning_lock: tokio::sync::Mutex::new(()),
        of_primary: Default::default(),
        tail_cache,
        body_cache,
        room: Notify::new(),
        line: Default::default(),
        written: Notify::new(),
        turn: Notify::new(),
        queue_kick: [Notify::new(), Notify::new()],
        clean_kick: Notify::new(),
        clean_turn: Notify::new(),
        checkpoint_kick: Notify::new(),
        role_kick: Notify::new(),
        rates: Default::default(),
        clean_reads: Default::default(),
        stages: Default::default(),
        options,
    }
}

/// See [`Chain::open`].
#[async_recursion]
pub(super) async fn open(
    env: &Env,
    parts: Parts,
    mut options: Options,
) -> Result<(Chain, Recovered), ChainError> {
    let parts = match options.read_only {
        // A cache's writes to its device would stay in memory.
        true => Parts { tail_cache: None, body_cache: None, ..parts },
        false => parts,
    };
    let label = follow::read_label(&parts, &mut options).await?;
    let mut state = empty_state(label, &parts)?;
    check_sizes(&state.label, &parts)?;
    // After a crash of this process alone, the devices' caches may hold writes that are not yet durable.
    parts.map.flush(Purpose::Map).await?;
    for link in &parts.links {
        link.device.flush(Purpose::UserData).await?;
    }
    let mut found = Recovered::default();
    let (area, logs) = load_checkpoint(&parts.map, &mut state, &mut found).await?;
    let mut idle = state.segments.ids(|segment| segment.live == 0);
    let first_new = state.next_seq;
    let replay = Replay { map: parts.map.clone(), tag: volume_tag(state.label.volume) };
    let users = replay.read_log(&state, USERS, logs[USERS]).await?;
    let body = match logs[BODY].segment.get() {
        NO_SEGMENT => None,
        _ => Some(replay.read_log(&state, BODY, logs[BODY]).await?),
    };
    for log in std::iter::once(&users).chain(&body) {
        found.add(&log.counts);
    }
    let minis = read_minis(&state, &users.entries).await?;
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
    follow::write_label(env, &parts, &options, &mut state).await?;
    if state.owed() > 0 || options.read_only {
        // Room for settling, which comes before the checkpoint; a read-only chain writes none. Neither the last
        // checkpoint nor the logs behind it refer to it, so that an interrupted recovery can be repeated.
        state.segments.free(&idle);
    }
    (found.version, found.epoch) = (state.version.0, state.label.sequence);
    let inner = Arc::new(build(env, parts, options, state, area));
    if inner.options.read_only {
        return Ok((Chain::start(inner), found));
    }
    // Copies of the map that a crash left different must agree on the content that this recovery used.
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

/// A sequence that no segment had before the crash. Since the checkpoint each segment was opened at most
/// once, perhaps by a part of the log that did not survive: such sectors must not count when the segment is
/// opened again. Nor were maps cleared more than twice without a checkpoint.
fn first_unused_seq(state: &State, top: u64) -> u64 {
    let most = u64::from(state.segments.len()) + 2;
    // An interrupted recovery may have opened further segments.
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
        // A void version cannot have moved either.
        _ if state.label.is_void(entry.version, entry.lba.0) => {}
        Kind::Data => {
            newest.insert(lba, entry.version);
            state.put(lba, entry.version, Place::At(place));
        }
        Kind::Discard => {
            let end = (u64::from(lba) + u64::from(entry.check)).min(state.index.blocks()) as u32;
            // Only stored blocks have a version to compare with.
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

/// Records in the label where the logs ended: entries beyond were never acknowledged, and a scan of the whole
/// map must ignore them.
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

/// Declares the maps of all segments without entries that count void, before any write, and drops the label's
/// records that concern them.
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

/// Declares the maps of segments void, under a sequence that it returns.
pub(super) async fn clear_maps(inner: &Inner, segments: &[u32]) -> Result<u64, ChainError> {
    let seq = inner.state.lock().take_seq();
    put_cleared(&inner.map, &inner.layout, inner.tag, segments, seq).await?;
    Ok(seq)
}

/// Writes the void sector of [`clear_maps`]: as the first sector, because one sector is written whole or not
/// at all.
pub(super) async fn put_cleared(
    map: &DeviceRef,
    layout: &Layout,
    tag: u32,
    segments: &[u32],
    seq: u64,
) -> Result<(), ChainError> {
    let head = SectorHead {
        seq,
        durable: Position::default(),
        uncommitted: u16::MAX,
        next: NO_SEGMENT,
        index: 0,
        count: 0,
        log: NO_LOG,
    };
    let mut buffer = AlignedBuf::zeroed(map_unit(map));
    buffer[..SECTOR].copy_from_slice(MapSector::seal(tag, head, &[]).as_bytes());
    let sector = buffer.freeze();
    for id in segments {
        map.write(layout.map_of(*id), vec![sector.clone()], Purpose::Map).await?;
    }
    map.flush(Purpose::Map).await?;
    Ok(())
}

/// The unit in bytes in which the map is written.
fn map_unit(map: &DeviceRef) -> usize {
    (map.geometry().sector as usize).clamp(SECTOR, PAGE)
}

/// Continues the logs where they ended, as far as possible.
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
        // The map still shows an earlier use of the segment.
        state.segments.get_mut(last.id).before = 1;
    }
    let filled = last.entries.len() as u32;
    let map = SegmentMap {
        id: last.id,
        seq: last.seq,
        next: NO_SEGMENT,
        entries: last.entries,
        committed: filled,
        sealed: filled,
        // Entries beyond the end in this sector, and the name of the next segment, are dropped.
        renamed: filled > 0,
        naming: None,
    };
    let tag = volume_tag(state.label.volume);
    let mut stream = Stream::new(number, tag, state.label.segment_blocks, map);
    // A sector before the end may declare data durable up to a position beyond it. That was true of the
    // blocks whose entries are lost, and is not true of the blocks that take their places.
    let pad =
        MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: state.version, check: 0 };
    while stream.room() > 0 && stream.tail() < log.durable {
        stream.append(&pad, None, Purpose::Map);
        state.entries_since += 1;
    }
    Some(stream)
}
