//! The contents of a map area in readable form: labels, checkpoints, map sectors.
//!
//! Reads a file or any reader, takes no lock, changes nothing, and reports damage rather than stopping at it.
//! The map area of an open volume changes meanwhile.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};

use serde::Serialize;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::format::{
    Cleaning, ENTRIES_PER_SECTOR, Kind, LABEL_BYTES, MapEntry, MapSector, NO_SEGMENT, PAGE,
    Placement, SECTOR, SectorHead, volume_tag,
};
use super::{ChainError, Fence, Label, Snapshot, checkpoint};
use crate::checksum::crc32c;

/// Everything that a map area holds.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// The two copies of the label.
    pub labels: Vec<LabelDump>,
    /// The records that the witnesses name as durable, one for each half of the checkpoint area: generation
    /// and number.
    pub witnesses: Vec<Option<(u64, u32)>>,
    /// The records in both halves of the checkpoint area.
    pub checkpoints: Vec<CheckpointDump>,
    /// The segments whose map holds a sector of this volume.
    pub segments: Vec<SegmentDump>,
}

/// One copy of the label.
#[derive(Clone, Debug, Serialize)]
pub struct LabelDump {
    /// Its place, in bytes from the start of the map area.
    pub offset: u64,
    /// Why it is not a label, if it is not.
    pub error: Option<String>,
    /// Its fields.
    pub label: Option<LabelFields>,
}

/// The fields of a label.
#[derive(Clone, Debug, Serialize)]
pub struct LabelFields {
    /// Increases with each label that is written.
    pub sequence: u64,
    /// The volume's identity.
    pub volume: Uuid,
    /// Logical blocks.
    pub blocks: u64,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// Maximum number of segments in the map area.
    pub max_segments: u32,
    /// How segments are cleaned.
    pub cleaning: Cleaning,
    /// Which links the log takes.
    pub placement: Placement,
    /// When the volume was made, seconds since 1970.
    pub created: u64,
    /// The links.
    pub links: Vec<LinkFields>,
    /// Named snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Void versions: above the first, up to the second, of blocks from the third on.
    pub voids: Vec<(u64, u64, u64)>,
    /// Where recoveries ended the logs: the sequences of their last segments, the first sequence
    /// afterwards, and the version.
    pub cuts: Vec<([u64; 2], u64, u64)>,
    /// The timelines: their identities, and the versions from which they went on.
    pub timelines: Vec<(Uuid, u64)>,
    /// Whether the volume follows another one.
    pub follows: bool,
    /// Of a follower, the version from which on it has a state of the other volume.
    pub whole_from: u64,
    /// How often a replica was promoted before this volume, or became it.
    pub term: u32,
    /// The primary that has taken this one's place.
    pub fence: Option<Fence>,
    /// Of a follower, the number that tells it from the others of its primary.
    pub replica: u32,
    /// Whether blocks of which no copy is right were found, and no scrub has found none since.
    pub damaged: bool,
}

/// A link in a label.
#[derive(Clone, Debug, Serialize)]
pub struct LinkFields {
    /// Its identity.
    pub id: Uuid,
    /// Its first segment.
    pub base: u32,
    /// Its segments.
    pub segments: u32,
    /// Whether the link is being removed.
    pub leaving: bool,
}

/// One checkpoint record.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointDump {
    /// Its place, in bytes from the start of the map area.
    pub offset: u64,
    /// The generation of its base.
    pub generation: u64,
    /// 0 for a base, then 1, 2, … for deltas.
    pub number: u32,
    /// The newest version in it.
    pub version: u64,
    /// Bytes of payload.
    pub payload: u64,
    /// Whether the payload matches its checksum and its header.
    pub whole: bool,
    /// Logical blocks in its payload.
    pub blocks: u64,
    /// Segments in its payload.
    pub segments: u32,
    /// Positions of the users' log and the log of compaction: segment, slot and sequence.
    pub logs: Vec<Option<(u32, u32, u64)>>,
}

/// The map of one segment.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentDump {
    /// Its number.
    pub segment: u32,
    /// Place of its map, in bytes from the start of the map area.
    pub offset: u64,
    /// The sequence of its newest sector.
    pub seq: u64,
    /// The log that wrote it: 0 for the users', 1 for compaction's.
    pub log: u8,
    /// The segment in which the log continues.
    pub next: Option<u32>,
    /// Sectors that are whole, with this sequence.
    pub sectors: u32,
    /// Whole sectors of an earlier use of the segment.
    pub earlier: u32,
    /// Sectors that are neither whole nor zero.
    pub damaged: u32,
    /// Entries in its sectors.
    pub entries: u32,
    /// Every entry, with its slot, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<EntryDump>>,
}

/// One map entry: the inverse map's record of a physical block.
#[derive(Clone, Debug, Serialize)]
pub struct EntryDump {
    /// The block's slot in its segment.
    pub slot: u32,
    /// Its kind: data, discard, …
    pub kind: &'static str,
    /// The logical block.
    pub lba: u64,
    /// Its version.
    pub version: u64,
    /// Whether it ends its transaction.
    pub last: bool,
    /// The content's checksum.
    pub check: u32,
}

/// Reads a map area that starts at byte `start` of `file`; with `entries`, every map entry too.
///
/// # Errors
/// When the file cannot be read. Damage in it is reported in the result.
pub fn dump<F: Read + Seek>(file: &mut F, start: u64, entries: bool) -> io::Result<Dump> {
    let mut area = Area { file, start };
    let copies = [0, LABEL_BYTES].map(|offset| (offset, area.read(offset, LABEL_BYTES as usize)));
    let (mut labels, mut newest) = (Vec::new(), None::<Label>);
    for (offset, bytes) in copies {
        let decoded = Label::decode(&bytes?);
        labels.push(label_dump(offset, &decoded));
        if let Ok(label) = decoded
            && newest.as_ref().is_none_or(|known| label.sequence > known.sequence)
        {
            newest = Some(label);
        }
    }
    let (mut checkpoints, mut segments, mut witnesses) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(label) = &newest {
        for half in 0..2 {
            let page = area.read(checkpoint::half_start(&label.layout(), half), PAGE)?;
            witnesses.push(checkpoint::decode_witness(&page, label.volume.as_bytes()));
            checkpoints.extend(area.checkpoints(label, half)?);
        }
        for segment in 0..label.max_segments {
            segments.extend(area.segment(label, segment, entries)?);
        }
    }
    Ok(Dump { labels, witnesses, checkpoints, segments })
}

fn label_dump(offset: u64, decoded: &Result<Label, ChainError>) -> LabelDump {
    match decoded {
        Ok(label) => LabelDump { offset, error: None, label: Some(label_fields(label)) },
        Err(error) => LabelDump { offset, error: Some(error.to_string()), label: None },
    }
}

fn label_fields(label: &Label) -> LabelFields {
    let link = |link: &super::format::LinkRecord| LinkFields {
        id: Uuid::from_bytes(link.id),
        base: link.base.get(),
        segments: link.segments.get(),
        leaving: link.leaving != 0,
    };
    let timelines = label.history.timelines();
    LabelFields {
        sequence: label.sequence,
        volume: label.volume,
        blocks: label.blocks,
        segment_blocks: label.segment_blocks,
        max_segments: label.max_segments,
        cleaning: label.cleaning,
        placement: label.placement,
        created: label.created,
        links: label.links.iter().map(link).collect(),
        snapshots: label.snapshots.clone(),
        voids: label.voids.iter().map(|void| (void.from.0, void.to.0, void.first)).collect(),
        cuts: label.cuts.iter().map(|cut| (cut.ends, cut.first, cut.version.0)).collect(),
        timelines: timelines.iter().map(|timeline| (timeline.id, timeline.from.0)).collect(),
        follows: label.follows,
        whole_from: label.whole_from.0,
        term: label.term,
        fence: label.fence,
        replica: label.replica,
        damaged: label.damaged,
    }
}

struct Area<'a, F> {
    file: &'a mut F,
    start: u64,
}

impl<F: Read + Seek> Area<'_, F> {
    /// `len` bytes at `offset`; zeros beyond the end.
    fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let at = self.start.checked_add(offset).ok_or(ErrorKind::InvalidInput)?;
        self.file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        self.file.by_ref().take(len as u64).read_to_end(&mut bytes)?;
        bytes.resize(len, 0);
        Ok(bytes)
    }

    /// The records in one half: a base and its deltas, up to the first record that is neither.
    fn checkpoints(&mut self, label: &Label, half: u64) -> io::Result<Vec<CheckpointDump>> {
        let layout = label.layout();
        let first = checkpoint::record_start(&layout, half, 0);
        let all = checkpoint::room_in(&layout);
        let (mut found, mut offset) = (Vec::<CheckpointDump>::new(), 0);
        while offset + PAGE as u64 <= all {
            let page = self.read(first + offset, PAGE)?;
            let Some(header) = checkpoint::decode_header(&page, label.volume.as_bytes()) else {
                break;
            };
            let room = all - offset - PAGE as u64;
            let len = header.payload.get();
            let of_base =
                found.last().is_none_or(|base| base.generation == header.generation.get());
            if len > room || !of_base {
                break;
            }
            let payload = self.read(first + offset + PAGE as u64, len as usize)?;
            let loaded = (crc32c(&payload) == header.payload_checksum.get())
                .then(|| checkpoint::decode_payload(&header, &payload))
                .flatten();
            let log = |log: &super::format::LogRecord| {
                (log.segment.get() != NO_SEGMENT)
                    .then(|| (log.segment.get(), log.slot.get(), log.seq.get()))
            };
            found.push(CheckpointDump {
                offset: first + offset,
                generation: header.generation.get(),
                number: header.number.get(),
                version: header.version.get(),
                payload: len,
                whole: loaded.is_some(),
                blocks: loaded.map_or(0, |loaded| loaded.contents.len() as u64),
                segments: header.segments.get(),
                logs: header.logs.iter().map(log).collect(),
            });
            offset += checkpoint::bytes_for(len as usize);
        }
        Ok(found)
    }

    /// The map of one segment; `None` when no sector of it was ever written.
    fn segment(
        &mut self,
        label: &Label,
        segment: u32,
        entries: bool,
    ) -> io::Result<Option<SegmentDump>> {
        let layout = label.layout();
        let offset = layout.map_of(segment);
        let bytes = self.read(offset, layout.segment_map())?;
        let tag = volume_tag(label.volume);
        let (mut sectors, mut damaged) = (Vec::new(), 0);
        for (index, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
            let sector = MapSector::read_from_bytes(bytes).ok();
            let head = sector.as_ref().and_then(|sector| sector.verify(tag, index as u16));
            match (sector, head) {
                (Some(sector), Some(head)) => sectors.push((sector, head)),
                _ => damaged += u32::from(bytes.iter().any(|byte| *byte != 0)),
            }
        }
        let Some(newest) = sectors.iter().map(|(_, head)| *head).max_by_key(|head| head.seq) else {
            return Ok(None);
        };
        let all = sectors.len() as u32;
        sectors.retain(|(_, head)| head.seq == newest.seq);
        let next = sectors.iter().map(|(_, head)| head.next).find(|next| *next != NO_SEGMENT);
        Ok(Some(SegmentDump {
            segment,
            offset,
            seq: newest.seq,
            log: newest.log,
            next,
            sectors: sectors.len() as u32,
            earlier: all - sectors.len() as u32,
            damaged,
            entries: sectors.iter().map(|(_, head)| u32::from(head.count)).sum(),
            content: entries.then(|| sectors.iter().flat_map(sector_entries).collect()),
        }))
    }
}

fn sector_entries((sector, head): &(MapSector, SectorHead)) -> Vec<EntryDump> {
    let first = u32::from(head.index) * ENTRIES_PER_SECTOR;
    let entries = sector.entries().iter().enumerate();
    entries
        .filter_map(|(number, entry)| {
            let MapEntry { kind, last, lba, version, check } = entry.decode()?;
            let slot = first + number as u32;
            let (lba, version) = (lba.0, version.0);
            Some(EntryDump { slot, kind: kind_name(kind), lba, version, last, check })
        })
        .collect()
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Data => "data",
        Kind::Moved => "moved",
        Kind::Discard => "discard",
        Kind::MovedDiscard => "moved-discard",
        Kind::Pad => "pad",
        Kind::Mini => "mini",
        Kind::Settled => "settled",
    }
}
