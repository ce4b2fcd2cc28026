//! What a rebuild writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use thalweg_env::Env;
use zerocopy::IntoBytes;

use super::super::checkpoint::{self, Area};
use super::super::format::{
    ENTRIES_PER_SECTOR, Entry, Kind, MapEntry, MapSector, NO_SEGMENT, Position, SECTOR, SectorHead,
    volume_tag,
};
use super::super::label::Label;
use super::super::log::{Log, Replay};
use super::super::recovery::{build, forget_lives, note_cut, open_stream, put_cleared, resume};
use super::super::segments::SegmentState;
use super::super::state::State;
use super::super::stream::{BODY, USERS};
use super::super::{ChainError, Inner, Options, Parts, scrub};
use super::Scan;
use super::survey::{Gap, Maps, Sector};
use crate::block::{Lba, Version};
use crate::device::{AlignedBuf, Purpose};

/// Distance of the new checkpoint's generation above all readable ones: the unreadable ones must be older,
/// too.
const GENERATIONS: u64 = 1 << 32;

/// Writes the result: the map where a crash tore it, the logs' ends, the label, a checkpoint, and then the map where
/// it is damaged or has void entries. Interrupted before the checkpoint is whole, it can be repeated; afterwards the
/// volume opens.
pub(super) async fn finish(
    env: &Env,
    parts: Parts,
    mut state: State,
    scan: &Scan,
    logs: [Option<Log>; 2],
) -> Result<(), ChainError> {
    let tag = volume_tag(state.label.volume);
    let layout = state.label.layout();
    let map = parts.map.clone();
    let maps = Maps { map: &map, layout, tag };
    let replay = Replay { map: map.clone(), tag };
    for log in logs.iter().flatten() {
        replay.seal(&state, log).await?;
    }
    let area = newest_area(&parts, &state.label).await;
    let end = |log: usize| scan.reach[log].as_ref().map_or(0, |reach| reach.end.seq());
    // The end of compaction does not matter when all of it counts.
    let ends = [end(USERS), end(BODY).min(state.next_seq)];
    let first = state.next_seq;
    // To a repetition the label says that all of compaction's map is whole.
    mend_maps(&maps, state.version, &scan.torn).await?;
    let [users, body] = logs;
    let resumed = users.is_some();
    resume(&mut state, users, body);
    note_cut(&mut state, ends, first);
    state.label.write(&map).await?;
    if !resumed {
        let id = empty_segment(&state, &scan.kept)?;
        // Its map may show the beginning of the ended log. The label is durable before that is cleared: with neither,
        // a repetition would take segments behind a hole for the log.
        let seq = state.take_seq();
        put_cleared(&map, &layout, tag, &[id], seq).await?;
        state.users = open_stream(&mut state, USERS, id);
    }
    state.minis.since = scan.kept.len() as u64;
    if state.owed() > 0 {
        // Settling comes before the checkpoint, and leaves the sources of this rebuild alone.
        let mut empty = state.segments.emptied();
        empty.retain(|id| !scan.kept.contains(id));
        state.segments.free(&empty);
    }
    let inner = Arc::new(build(env, parts, Options::default(), state, area));
    checkpoint::write_base(&inner).await?;
    scrub::renew_labels(&inner).await?;
    let (in_use, version) = in_use(&inner, scan.gaps.iter().chain(&scan.rest));
    mend_maps(&maps, version, &in_use).await?;
    forget_lives(&inner).await
}

/// Where the next checkpoint goes: above every readable one, whole or not.
async fn newest_area(parts: &Parts, label: &Label) -> Area {
    let (layout, volume) = (label.layout(), *label.volume.as_bytes());
    let base = checkpoint::newest_base(&parts.map, &layout, &volume).await;
    let witnessed = checkpoint::newest_witnessed(&parts.map, &layout, &volume).await;
    let seen = base.max(witnessed.map(|(generation, _)| generation)).unwrap_or(0);
    Area { generation: seen + GENERATIONS, ..Area::default() }
}

/// A segment without live entries, for a log that has to begin anew.
fn empty_segment(state: &State, kept: &BTreeSet<u32>) -> Result<u32, ChainError> {
    let empty = state.segments.ids(|segment| segment.state == SegmentState::Emptied);
    let usable = |id: &u32| {
        let link = usize::from(state.segments.get(*id).link);
        !kept.contains(id) && !state.segments.links[link].leaving
    };
    empty.into_iter().find(usable).ok_or_else(|| {
        ChainError::Damaged("no segment is left in which the log could go on".to_owned())
    })
}

/// The gaps in segments that are still in use as they were, and the newest version.
fn in_use<'a>(inner: &Inner, gaps: impl Iterator<Item = &'a Gap>) -> (Vec<Gap>, Version) {
    let state = inner.state.lock();
    let in_use = gaps.filter(|gap| {
        let segment = state.segments.get(gap.segment);
        gap.seq != 0 && segment.state == SegmentState::Used && segment.seq == gap.seq
    });
    (in_use.copied().collect(), state.version)
}

/// Overwrites parts of the map with pads, so that the map of their segments is whole again.
async fn mend_maps(maps: &Maps<'_>, version: Version, gaps: &[Gap]) -> Result<(), ChainError> {
    for gap in gaps {
        mend_map(maps, version, gap).await?;
    }
    if !gaps.is_empty() {
        maps.map.flush(Purpose::Map).await?;
    }
    Ok(())
}

/// Overwrites one gap. Sectors that it does not touch stay as they are, damaged ones too: a repetition must find them.
async fn mend_map(maps: &Maps<'_>, version: Version, gap: &Gap) -> Result<(), ChainError> {
    let sectors = maps.read(gap.segment).await;
    let mut bytes = AlignedBuf::zeroed(sectors.len() * SECTOR);
    let mut heads = sectors.iter().filter_map(Sector::head);
    let log = heads.find(|head| head.seq == gap.seq).map_or(0, |head| head.log);
    for (index, (sector, room)) in sectors.iter().zip(bytes.chunks_exact_mut(SECTOR)).enumerate() {
        let first = index as u32 * ENTRIES_PER_SECTOR;
        let is_touched = gap.first < first + ENTRIES_PER_SECTOR && first < gap.end;
        let mended = match (is_touched, sector) {
            (true, _) => Some(mended(maps.tag, sector, index, gap, (version, log))),
            (false, Sector::Whole(head, entries)) => {
                Some(MapSector::seal(maps.tag, *head, entries))
            }
            (false, Sector::Damaged(sector)) => Some(**sector),
            (false, Sector::Unreadable | Sector::Other) => None,
        };
        if let Some(mended) = mended {
            room.copy_from_slice(mended.as_bytes());
        }
    }
    let at = maps.layout.map_of(gap.segment);
    maps.map.write(at, vec![bytes.freeze()], Purpose::Repair).await?;
    Ok(())
}

/// A sector with pads of `version` in place of the entries in a gap.
fn mended(
    tag: u32,
    sector: &Sector,
    index: usize,
    gap: &Gap,
    (version, log): (Version, u8),
) -> MapSector {
    let first = index as u32 * ENTRIES_PER_SECTOR;
    let (known, next, durable) = match sector {
        Sector::Whole(head, entries) if head.seq == gap.seq => {
            (&entries[..], head.next, head.durable)
        }
        _ => (&[][..], NO_SEGMENT, Position::default()),
    };
    let pad = MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version, check: 0 };
    let entry = |slot: u32| match (gap.first..gap.end).contains(&slot) {
        true => Some(Entry::encode(&pad)),
        false => known.get((slot - first) as usize).copied(),
    };
    let entries: Vec<Entry> = (first..first + ENTRIES_PER_SECTOR).map_while(entry).collect();
    let head = SectorHead {
        seq: gap.seq,
        durable,
        uncommitted: u16::MAX,
        next,
        index: index as u16,
        count: entries.len() as u8,
        log,
    };
    MapSector::seal(tag, head, &entries)
}
