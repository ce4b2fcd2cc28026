//! The label: the description of the volume.

mod records;

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::format::{
    Cleaning, CutRecord, ENTRIES_PER_PAGE, FORMAT_VERSION, HISTORY_FORMAT, LABEL_BYTES,
    LABEL_MAGIC, LabelHeader, LinkRecord, PAGE, Placement, Position, SHRINK_FORMAT, ShrinkRecord,
    SnapshotRecord, TimelineRecord, VoidRecord,
};
use super::history::{Fence, History, MAX_TIMELINES};
use super::{ChainError, Create};
use crate::block::Version;
use crate::checksum::crc32c_of_both;
use crate::device::{AlignedBuf, Device, DeviceRef, Purpose};
pub use records::{Cut, Shrink, Void};

/// A named version.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Its name, at most 64 bytes.
    pub name: String,
    /// The version that it keeps readable.
    #[serde(serialize_with = "version_number")]
    pub version: Version,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// The volume's logical blocks then.
    pub blocks: u64,
}

fn version_number<S: serde::Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(version.0)
}

/// A volume's label, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
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
    /// Bytes in each half of the checkpoint area.
    pub checkpoint_half: u64,
    /// How segments are cleaned.
    pub cleaning: Cleaning,
    /// Where the log goes on.
    pub placement: Placement,
    /// When the volume was made, seconds since 1970.
    pub created: u64,
    /// The chain's links, in order.
    pub links: Vec<LinkRecord>,
    /// Named snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Versions that roll-backs took back, and blocks that left the volume when it became smaller.
    pub voids: Vec<Void>,
    /// Where recoveries ended the logs, oldest first.
    pub cuts: Vec<Cut>,
    /// The timelines, if another volume has followed this one.
    pub history: History,
    /// Whether the volume follows another one, from which all its versions come.
    pub follows: bool,
    /// Of a follower, the version from which on it has a state of the other volume: below, blocks are missing that
    /// have newer versions there. 0 for any.
    pub whole_from: Version,
    /// Raised by each promotion of a replica of the volume. The primary of a lower term has lost its place.
    pub term: u32,
    /// The primary that has taken this one's place: users write nothing here any more.
    pub fence: Option<Fence>,
    /// When the volume last became smaller, if it has followers: they may have missed what left it.
    pub shrink: Option<Shrink>,
    /// Of a follower, the number that tells it from the others of its primary; 0 until it has followed one.
    pub replica: u32,
    /// Whether blocks of which no copy is right were found, and no scrub has found none since.
    pub damaged: bool,
}

/// Maximum snapshots in a label.
pub(super) const MAX_SNAPSHOTS: usize = 1000;
/// Maximum links in a chain.
pub(super) const MAX_LINKS: usize = 256;
/// Maximum voids in a label.
pub(super) const MAX_VOIDS: usize = 512;
/// Maximum cuts in a label.
pub(super) const MAX_CUTS: usize = 256;

const _: () = assert!(
    size_of::<LabelHeader>()
        + MAX_LINKS * size_of::<LinkRecord>()
        + MAX_SNAPSHOTS * size_of::<SnapshotRecord>()
        + MAX_VOIDS * size_of::<VoidRecord>()
        + MAX_CUTS * size_of::<CutRecord>()
        + MAX_TIMELINES * size_of::<TimelineRecord>()
        + size_of::<ShrinkRecord>()
        <= LABEL_BYTES as usize
);

/// Offsets in the map area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) checkpoint: u64,
    pub(super) checkpoint_half: u64,
    map: u64,
    segment_map: u64,
    max_segments: u32,
}

impl Layout {
    /// The layout of a map area for segments of `segment_blocks` blocks.
    pub(super) fn new(segment_blocks: u32, max_segments: u32, checkpoint_half: u64) -> Layout {
        let checkpoint = 2 * LABEL_BYTES;
        Layout {
            checkpoint,
            checkpoint_half,
            map: checkpoint + 2 * checkpoint_half,
            segment_map: u64::from(segment_blocks / ENTRIES_PER_PAGE) * PAGE as u64,
            max_segments,
        }
    }

    /// First byte of a segment's map.
    pub(super) fn map_of(&self, segment: u32) -> u64 {
        self.map + u64::from(segment) * self.segment_map
    }

    /// Bytes in a segment's map.
    pub(super) fn segment_map(&self) -> usize {
        self.segment_map as usize
    }

    /// Bytes in the whole area.
    pub(super) fn total(&self) -> u64 {
        self.map_of(self.max_segments)
    }
}

impl Label {
    /// The label of a new chain.
    pub(super) fn new(
        create: &Create,
        checkpoint_half: u64,
        links: Vec<LinkRecord>,
        created: u64,
    ) -> Label {
        Label {
            sequence: 0,
            volume: create.volume,
            blocks: create.blocks,
            segment_blocks: create.segment_blocks,
            max_segments: create.max_segments,
            checkpoint_half,
            cleaning: create.cleaning,
            placement: create.placement,
            created,
            links,
            snapshots: Vec::new(),
            voids: Vec::new(),
            cuts: Vec::new(),
            history: History::default(),
            follows: create.follows,
            whole_from: Version(0),
            term: 0,
            fence: None,
            shrink: None,
            replica: 0,
            damaged: false,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::new(self.segment_blocks, self.max_segments, self.checkpoint_half)
    }

    /// Whether `version` of a block is void.
    pub(super) fn is_void(&self, version: Version, lba: u64) -> bool {
        let covers = |void: &Void| version > void.from && version <= void.to && lba >= void.first;
        self.voids.iter().any(covers)
    }

    /// Whether a recovery declared the segment with sequence `seq` of a log lost.
    pub(super) fn is_cut(&self, log: u8, seq: u64) -> bool {
        let end = |cut: &Cut| cut.ends.get(usize::from(log)).copied().unwrap_or(0);
        self.cuts.iter().any(|cut| seq > end(cut) && seq < cut.first)
    }

    /// Records that the logs are durable up to the segments with the sequences `ends`.
    pub(super) fn note_ends(&mut self, ends: [u64; 2]) {
        let version = self.cuts.last().map_or(Version(0), |cut| cut.version);
        self.cuts.retain(|cut| cut.first != 0);
        if self.cuts.len() < MAX_CUTS {
            self.cuts.push(Cut { ends, first: 0, version });
        }
    }

    /// Whether voids or cuts have filled their room.
    pub(super) fn is_crowded(&self) -> bool {
        self.voids.len() > MAX_VOIDS / 2 || self.cuts.len() > MAX_CUTS / 2
    }

    /// Records where a recovery ended the logs, and drops cuts of which the map shows no entries any more.
    /// `seqs` has for each segment the sequence that it was last opened with, and whether a log that this
    /// recovery cut off may have opened it again.
    pub(super) fn add_cut(&mut self, cut: Cut, seqs: &[(u64, bool)]) {
        self.cuts.retain(|old| old.first != 0);
        self.cuts.push(cut);
        self.cuts.retain(|old| seqs.iter().any(|(seq, lost)| *lost && *seq < old.first));
        // Two cuts are one when no segment that counts was opened between them.
        let mut merged: Vec<Cut> = Vec::new();
        for cut in std::mem::take(&mut self.cuts) {
            let between = |last: &Cut| {
                let range = last.first..=cut.ends[0].max(cut.ends[1]);
                seqs.iter().any(|(seq, _)| range.contains(seq))
            };
            match merged.last_mut() {
                Some(last) if !between(last) => {
                    (last.first, last.version) = (cut.first, cut.version);
                }
                _ => merged.push(cut),
            }
        }
        let surplus = merged.len().saturating_sub(MAX_CUTS);
        debug_assert!(
            surplus == 0,
            "opening wipes the map of free segments before it comes to this"
        );
        self.cuts = merged.split_off(surplus);
    }

    /// The snapshot called `name`.
    pub fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.name == name)
    }

    /// The oldest format that has a place for everything in the label.
    fn format(&self) -> u32 {
        match self.history.is_empty() && !self.follows {
            _ if self.shrink.is_some() => SHRINK_FORMAT,
            true => FORMAT_VERSION,
            false => HISTORY_FORMAT,
        }
    }

    /// The stored form, [`LABEL_BYTES`] long.
    pub(super) fn encode(&self) -> AlignedBuf {
        let mut buffer = AlignedBuf::zeroed(LABEL_BYTES as usize);
        let mut header = LabelHeader {
            magic: LABEL_MAGIC,
            format: self.format().into(),
            checksum: 0.into(),
            sequence: self.sequence.into(),
            volume: *self.volume.as_bytes(),
            blocks: self.blocks.into(),
            segment_blocks: self.segment_blocks.into(),
            max_segments: self.max_segments.into(),
            checkpoint_half: self.checkpoint_half.into(),
            cleaning: self.cleaning.encode(),
            placement: self.placement.encode(),
            shrinks: self.shrink.is_some().into(),
            damaged: self.damaged.into(),
            links: (self.links.len() as u32).into(),
            snapshots: (self.snapshots.len() as u32).into(),
            voids: (self.voids.len() as u32).into(),
            created: self.created.into(),
            cuts: (self.cuts.len() as u32).into(),
            timelines: (self.history.timelines().len() as u32).into(),
            follows: self.follows.into(),
            reserved2: [0; 3],
            whole_from: self.whole_from.0.into(),
            term: self.term.into(),
            fence_term: self.fence.map_or(0, |fence| fence.term).into(),
            fence_from: self.fence.map_or(0, |fence| fence.from.0).into(),
            replica: self.replica.into(),
        };
        let mut records: Vec<u8> = self.links.as_bytes().to_vec();
        for snapshot in &self.snapshots {
            records.extend_from_slice(encode_snapshot(snapshot).as_bytes());
        }
        self.voids.iter().for_each(|void| records.extend_from_slice(void.encode().as_bytes()));
        self.cuts.iter().for_each(|cut| records.extend_from_slice(cut.encode().as_bytes()));
        for timeline in self.history.timelines() {
            let record =
                TimelineRecord { id: *timeline.id.as_bytes(), from: timeline.from.0.into() };
            records.extend_from_slice(record.as_bytes());
        }
        if let Some(shrink) = self.shrink {
            records.extend_from_slice(shrink.encode().as_bytes());
        }
        let checked = &header.as_bytes()[CHECKED_FROM..];
        header.checksum = crc32c_of_both(checked, &records).into();
        let (head, body) = buffer.split_at_mut(size_of::<LabelHeader>());
        head.copy_from_slice(header.as_bytes());
        body[..records.len()].copy_from_slice(&records);
        buffer
    }

    /// Decodes a label.
    ///
    /// # Errors
    /// [`ChainError::NewerFormat`], or [`ChainError::NoLabel`] when the bytes are no whole label.
    pub fn decode(bytes: &[u8]) -> Result<Label, ChainError> {
        let (header, mut rest) =
            LabelHeader::read_from_prefix(bytes).map_err(|_| ChainError::NoLabel)?;
        if header.magic != LABEL_MAGIC {
            return Err(ChainError::NoLabel);
        }
        if header.format.get() > SHRINK_FORMAT {
            return Err(ChainError::NewerFormat(header.format.get()));
        }
        let counts = [
            header.links.get(),
            header.snapshots.get(),
            header.voids.get(),
            header.cuts.get(),
            header.timelines.get(),
            header.shrinks.into(),
        ];
        let most = [MAX_LINKS, MAX_SNAPSHOTS, MAX_VOIDS, MAX_CUTS, MAX_TIMELINES, 1];
        if counts.iter().zip(most).any(|(count, most)| *count as usize > most) {
            return Err(ChainError::NoLabel);
        }
        let records = rest;
        let links: Vec<LinkRecord> = take(&mut rest, counts[0])?;
        let snapshots: Vec<SnapshotRecord> = take(&mut rest, counts[1])?;
        let voids: Vec<VoidRecord> = take(&mut rest, counts[2])?;
        let cuts: Vec<CutRecord> = take(&mut rest, counts[3])?;
        let timelines: Vec<TimelineRecord> = take(&mut rest, counts[4])?;
        let shrinks: Vec<ShrinkRecord> = take(&mut rest, counts[5])?;
        let used = &records[..records.len() - rest.len()];
        let checked = &header.as_bytes()[CHECKED_FROM..];
        if crc32c_of_both(checked, used) != header.checksum.get() {
            return Err(ChainError::NoLabel);
        }
        let label = Label {
            sequence: header.sequence.get(),
            volume: Uuid::from_bytes(header.volume),
            blocks: header.blocks.get(),
            segment_blocks: header.segment_blocks.get(),
            max_segments: header.max_segments.get(),
            checkpoint_half: header.checkpoint_half.get(),
            cleaning: Cleaning::decode(header.cleaning),
            placement: Placement::decode(header.placement),
            created: header.created.get(),
            links,
            snapshots: snapshots.iter().map(decode_snapshot).collect(),
            voids: voids.iter().map(Void::decode).collect(),
            cuts: cuts.iter().map(Cut::decode).collect(),
            history: History::decode(&timelines).ok_or(ChainError::NoLabel)?,
            follows: header.follows != 0,
            whole_from: Version(header.whole_from.get()),
            term: header.term.get(),
            fence: Fence::decode(&header),
            shrink: shrinks.first().map(Shrink::decode),
            replica: header.replica.get(),
            damaged: header.damaged != 0,
        };
        label.check()
    }

    /// Refuses numbers that no valid label has, so that no arithmetic on them can overflow.
    fn check(self) -> Result<Label, ChainError> {
        let segments_fit = self.links.iter().all(|link| {
            link.base
                .get()
                .checked_add(link.segments.get())
                .is_some_and(|end| end <= self.max_segments)
        });
        let blocks = u64::from(self.max_segments) * u64::from(self.segment_blocks);
        let whole = self.segment_blocks != 0
            && self.segment_blocks.is_multiple_of(ENTRIES_PER_PAGE)
            && self.segment_blocks <= Position::MAX_SLOTS
            && blocks < u64::from(super::index::MAX_PHYSICAL)
            && self.blocks < u64::from(super::index::MAX_PHYSICAL)
            && self.checkpoint_half.is_multiple_of(PAGE as u64)
            && self.checkpoint_half < 1 << 48;
        match whole && segments_fit {
            true => Ok(self),
            false => Err(ChainError::NoLabel),
        }
    }

    /// Reads both copies and returns the newer one that is whole.
    ///
    /// # Errors
    /// [`ChainError::NoLabel`] when neither is, [`ChainError::NewerFormat`], or a device error.
    pub async fn read(map: &dyn Device) -> Result<Label, ChainError> {
        if map.geometry().size < 2 * LABEL_BYTES {
            return Err(ChainError::NoLabel);
        }
        let mut newest: Result<Label, ChainError> = Err(ChainError::NoLabel);
        for slot in 0..2 {
            for copy in 0..map.copies() {
                let at = slot * LABEL_BYTES;
                let read = map.read_copy(copy, at, LABEL_BYTES as usize, Purpose::Label).await;
                let found = match read {
                    Ok(bytes) => Label::decode(&bytes),
                    Err(error) => Err(error.into()),
                };
                newest = match (newest, found) {
                    (Ok(old), Ok(new)) if new.sequence > old.sequence => Ok(new),
                    (Ok(old), _) => Ok(old),
                    (Err(_), Ok(new)) => Ok(new),
                    (Err(ChainError::NoLabel), Err(error)) => Err(error),
                    (Err(error), Err(_)) => Err(error),
                };
            }
        }
        newest
    }

    /// Writes the label over both copies, one after the other, with the next sequence: a crash leaves one of
    /// them whole, and later damage to either is repaired from the other.
    pub(super) async fn write(&mut self, map: &DeviceRef) -> Result<(), ChainError> {
        self.sequence += 1;
        let bytes = self.encode().freeze();
        for slot in 0..2 {
            map.write(slot * LABEL_BYTES, vec![bytes.clone()], Purpose::Label).await?;
            map.flush(Purpose::Label).await?;
        }
        Ok(())
    }
}

/// Bytes of the header before those that its checksum covers.
const CHECKED_FROM: usize = 16;

fn take<T: FromBytes>(rest: &mut &[u8], count: u32) -> Result<Vec<T>, ChainError> {
    let mut records = Vec::new();
    for _ in 0..count {
        let (record, left) = T::read_from_prefix(rest).map_err(|_| ChainError::NoLabel)?;
        records.push(record);
        *rest = left;
    }
    Ok(records)
}

fn encode_snapshot(snapshot: &Snapshot) -> SnapshotRecord {
    let mut name = [0; 64];
    name[..snapshot.name.len()].copy_from_slice(snapshot.name.as_bytes());
    SnapshotRecord {
        name,
        version: snapshot.version.0.into(),
        created: snapshot.created.into(),
        blocks: snapshot.blocks.into(),
        reserved: [0; 8],
    }
}

fn decode_snapshot(record: &SnapshotRecord) -> Snapshot {
    let end = record.name.iter().position(|byte| *byte == 0).unwrap_or(record.name.len());
    Snapshot {
        name: String::from_utf8_lossy(&record.name[..end]).into_owned(),
        version: Version(record.version.get()),
        created: record.created.get(),
        blocks: record.blocks.get(),
    }
}
