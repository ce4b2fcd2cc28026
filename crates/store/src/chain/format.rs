//! What the chain keeps on its map device, byte for byte.
//!
//! ```text
//! map area:  label A | label B | checkpoint half 0 | checkpoint half 1 | map of segment 0 | 1 | …
//! ```
//!
//! The *label* ([`LabelHeader`], then links, snapshots, voids and cuts) describes the volume. It is written
//! to A and B in turn; the valid one with the higher sequence counts.
//!
//! The *map* holds one [`Entry`] for each physical block, at the block's index: it is the inverse map of
//! Gecko 3.1.1 and the metadata log of Isotope 4.2.3 in one. Its unit is a sector of 512 bytes
//! ([`MapSector`]), which every device writes whole or not at all: a sector that is written again with more
//! entries is afterwards either the old or the new one, and the old one's entries are a prefix of the new
//! one's, so that no acknowledged entry is lost to a torn page.
//!
//! A sector counts only if its checksum matches and it names this volume, its own index and the sequence of
//! the segment that its log expects there. A log's entries end at the first sector that does not count, at
//! the first block above the sectors' `durable` position whose content does not match its checksum, and then
//! at the last whole transaction.
//!
//! A mini-log block ([`Kind::Mini`]) holds fragments of several logical blocks; `minilog::format` has its
//! layout. It lies on a link, as content does.
//!
//! A *checkpoint* is the index at one position of the log. A half holds a page for a [`Witness`], a
//! base and the deltas that follow it; see [`CheckpointHeader`].

mod label;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::{Lba, Version};
use crate::checksum::{crc32c, crc32c_of_both};
pub use label::{
    Cleaning, CutRecord, LabelHeader, LinkRecord, Placement, ShrinkRecord, SnapshotRecord,
    TimelineRecord, VoidRecord,
};

/// Version of every structure here; readers refuse a higher one.
pub const FORMAT_VERSION: u32 = 1;
/// Version of the label of a volume with a history, which others follow or which follows another one.
pub const HISTORY_FORMAT: u32 = 2;
/// Version of the label of a volume that became smaller since it has a history.
pub const SHRINK_FORMAT: u32 = 3;

/// Bytes in a map sector.
pub const SECTOR: usize = 512;
/// Entries in a map sector.
pub const ENTRIES_PER_SECTOR: u32 = 30;
/// Bytes in a map page.
pub const PAGE: usize = 4096;
/// Entries in a map page.
pub const ENTRIES_PER_PAGE: u32 = ENTRIES_PER_SECTOR * (PAGE / SECTOR) as u32;
/// Bytes in each of the two copies of the label.
pub const LABEL_BYTES: u64 = 128 * 1024;
/// The log of a sector without entries that declares the whole map of its segment void.
pub const NO_LOG: u8 = 2;
/// "No segment".
pub const NO_SEGMENT: u32 = u32::MAX;

/// First bytes of a label.
pub const LABEL_MAGIC: [u8; 8] = *b"THALWEGV";
/// First bytes of a checkpoint record.
pub const CHECKPOINT_MAGIC: [u8; 8] = *b"THALWEGC";

/// First bytes of a witness.
pub const WITNESS_MAGIC: [u8; 8] = *b"THALWEGW";

/// A place in a log: the sequence of a segment and a block in it. Positions of one log are ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

impl Position {
    /// Bits that hold the block's number in its segment.
    const SLOT_BITS: u32 = 20;
    /// The largest number of blocks in a segment.
    pub const MAX_SLOTS: u32 = (1 << Self::SLOT_BITS) - 1;

    /// The block numbered `slot` of the segment with sequence `seq`.
    pub const fn new(seq: u64, slot: u32) -> Position {
        Position((seq << Self::SLOT_BITS) | slot as u64)
    }

    /// The segment's sequence.
    pub const fn seq(self) -> u64 {
        self.0 >> Self::SLOT_BITS
    }

    /// The block's number in its segment.
    pub const fn slot(self) -> u32 {
        (self.0 & Self::MAX_SLOTS as u64) as u32
    }
}

impl std::fmt::Debug for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.seq(), self.slot())
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The block holds the content of a logical block, written by a transaction.
    Data,
    /// The block holds a copy that cleaning made; its version is the original's.
    Moved,
    /// The block holds nothing: a run of logical blocks was discarded. The checksum field holds the run's
    /// length.
    Discard,
    /// The block holds nothing: a copy that cleaning made of a discard's entry, with its version.
    MovedDiscard,
    /// The block holds nothing: the segment was closed before it was full, or the next version leaves others out
    /// ([`MapEntry::leap`]).
    Pad,
    /// The block holds fragments of logical blocks (see `minilog`). The version is that of the last fragment;
    /// the field for the logical block holds how much older the first one is.
    Mini,
    /// The block holds nothing. Every fragment up to this version is settled: earlier entries gave each of
    /// their blocks a place of its own, unless no reader needs it.
    Settled,
}

/// A decoded map entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// What the block holds.
    pub kind: Kind,
    /// Whether it is the last of its transaction.
    pub last: bool,
    /// The logical block, or the first one of a discarded run.
    pub lba: Lba,
    /// The transaction's version.
    pub version: Version,
    /// Checksum of the content ([`block_checksum`]; that of `minilog::format` for fragments), or the
    /// length of a discarded run.
    pub check: u32,
}

/// The checksum field of a leap.
const LEAP: u32 = 1;

impl MapEntry {
    /// Notes in the users' log that the versions after `from` and before `to` are left out.
    pub fn leap(from: Version, to: Version) -> MapEntry {
        let version = Version(to.0.saturating_sub(1));
        MapEntry { kind: Kind::Pad, last: true, lba: Lba(from.0), version, check: LEAP }
    }

    /// Whether it is a [`MapEntry::leap`]. Its field for the logical block holds the version before.
    pub fn is_leap(&self) -> bool {
        self.kind == Kind::Pad && self.check == LEAP
    }
}

/// One map entry as stored. `lba` has 40 bits, `version` 48.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Entry {
    check: U32,
    lba_low: U32,
    lba_high: u8,
    kind: u8,
    version_high: U16,
    version_low: U32,
}

const KIND_DATA: u8 = 1;
const KIND_MOVED: u8 = 2;
const KIND_DISCARD: u8 = 3;
const KIND_PAD: u8 = 4;
const KIND_MOVED_DISCARD: u8 = 5;
const KIND_MINI: u8 = 6;
const KIND_SETTLED: u8 = 7;
const KIND_LAST: u8 = 0x80;

impl Entry {
    /// The stored form.
    pub fn encode(entry: &MapEntry) -> Entry {
        let kind = match entry.kind {
            Kind::Data => KIND_DATA,
            Kind::Moved => KIND_MOVED,
            Kind::Discard => KIND_DISCARD,
            Kind::MovedDiscard => KIND_MOVED_DISCARD,
            Kind::Pad => KIND_PAD,
            Kind::Mini => KIND_MINI,
            Kind::Settled => KIND_SETTLED,
        };
        Entry {
            check: entry.check.into(),
            lba_low: (entry.lba.0 as u32).into(),
            lba_high: (entry.lba.0 >> 32) as u8,
            kind: kind | if entry.last { KIND_LAST } else { 0 },
            version_high: ((entry.version.0 >> 32) as u16).into(),
            version_low: (entry.version.0 as u32).into(),
        }
    }

    /// The entry, or `None` when its kind is unknown.
    pub fn decode(&self) -> Option<MapEntry> {
        let kind = match self.kind & !KIND_LAST {
            KIND_DATA => Kind::Data,
            KIND_MOVED => Kind::Moved,
            KIND_DISCARD => Kind::Discard,
            KIND_MOVED_DISCARD => Kind::MovedDiscard,
            KIND_PAD => Kind::Pad,
            KIND_MINI => Kind::Mini,
            KIND_SETTLED => Kind::Settled,
            _ => return None,
        };
        Some(MapEntry {
            kind,
            last: self.kind & KIND_LAST != 0,
            lba: Lba(u64::from(self.lba_low.get()) | u64::from(self.lba_high) << 32),
            version: Version(
                u64::from(self.version_low.get()) | u64::from(self.version_high.get()) << 32,
            ),
            check: self.check.get(),
        })
    }
}

/// A map sector: a head, and up to 30 entries.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MapSector {
    /// CRC-32C of the rest of the sector.
    checksum: U32,
    /// [`volume_tag`] of the volume.
    tag: U32,
    /// Sequence of the segment: unique, and higher for each segment that is opened.
    seq_low: U32,
    seq_high: U16,
    /// Blocks between the last position whose entries were durable and this sector's first one; [`u16::MAX`]
    /// for more, or unknown. A gap before that position is damage, not a crash.
    uncommitted: U16,
    /// In the users' log: everything below this position was durable on the data devices when the
    /// sector was written. In the log of compaction, where data is durable before any sector: the
    /// entries of the users' log below this position were durable.
    durable: U64,
    /// The segment in which this log continues, [`NO_SEGMENT`] while that is open.
    next: U32,
    /// The sector's number within its segment's map.
    index: U16,
    /// Entries in use.
    count: u8,
    /// 0: the users' log, 1: the log of compaction in the body, [`NO_LOG`].
    log: u8,
    entries: [Entry; ENTRIES_PER_SECTOR as usize],
}

/// The head of a map sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorHead {
    /// Sequence of the segment.
    pub seq: u64,
    /// Position below which data of the users' log was durable; in the log of compaction that below
    /// which the entries of the users' log were.
    pub durable: Position,
    /// Blocks before this sector's first one whose entries were not known to be durable.
    pub uncommitted: u16,
    /// The segment in which the log continues.
    pub next: u32,
    /// Number of the sector in its segment's map.
    pub index: u16,
    /// Entries in use.
    pub count: u8,
    /// Which log.
    pub log: u8,
}

impl MapSector {
    /// The stored form of `entries`, at most [`ENTRIES_PER_SECTOR`].
    pub fn seal(tag: u32, head: SectorHead, entries: &[Entry]) -> MapSector {
        let mut sector = MapSector::new_zeroed();
        sector.tag = tag.into();
        sector.seq_low = (head.seq as u32).into();
        sector.seq_high = ((head.seq >> 32) as u16).into();
        sector.uncommitted = head.uncommitted.into();
        sector.durable = head.durable.0.into();
        sector.next = head.next.into();
        sector.index = head.index.into();
        sector.count = entries.len() as u8;
        sector.log = head.log;
        sector.entries[..entries.len()].copy_from_slice(entries);
        sector.checksum = crc32c(&sector.as_bytes()[4..]).into();
        sector
    }

    /// The sector's head when it is whole, of the volume `tag` and at its own `index`.
    pub fn verify(&self, tag: u32, index: u16) -> Option<SectorHead> {
        let whole = crc32c(&self.as_bytes()[4..]) == self.checksum.get();
        let ours = self.tag.get() == tag && self.index.get() == index;
        let counted = u32::from(self.count) <= ENTRIES_PER_SECTOR;
        let seq = u64::from(self.seq_low.get()) | u64::from(self.seq_high.get()) << 32;
        (whole && ours && counted && seq != 0).then(|| SectorHead {
            seq,
            uncommitted: self.uncommitted.get(),
            durable: Position(self.durable.get()),
            next: self.next.get(),
            index,
            count: self.count,
            log: self.log,
        })
    }

    /// Whether the sector looks like one of the volume `tag` at its index, whole or damaged: all but one of
    /// its marks match.
    pub fn is_marked(&self, tag: u32, index: u16) -> bool {
        let count = u32::from(self.count);
        let marks = [
            self.tag.get() == tag,
            self.index.get() == index,
            (1..=ENTRIES_PER_SECTOR).contains(&count) && self.log <= 1,
        ];
        marks.into_iter().filter(|mark| *mark).count() >= 2
    }

    /// Whether the sector is whole and names another volume, which used the device before.
    pub fn is_foreign(&self, tag: u32) -> bool {
        crc32c(&self.as_bytes()[4..]) == self.checksum.get() && self.tag.get() != tag
    }

    /// Whether a sector that does not verify was once one of the volume `tag` at its index, of the segment
    /// with sequence `seq` of a log: all but one of its marks match. No crash leaves such a sector. A whole
    /// sector that names another volume is a remnant of that volume.
    pub fn resembles(&self, tag: u32, index: u16, seq: u64, log: u8) -> bool {
        if self.is_foreign(tag) {
            return false;
        }
        let this = u64::from(self.seq_low.get()) | u64::from(self.seq_high.get()) << 32;
        let marks = [
            self.tag.get() == tag,
            self.index.get() == index,
            this == seq,
            self.log == log && u32::from(self.count) <= ENTRIES_PER_SECTOR && self.count > 0,
        ];
        marks.into_iter().filter(|mark| *mark).count() >= 3
    }

    /// The entries in use.
    pub fn entries(&self) -> &[Entry] {
        &self.entries[..usize::from(self.count).min(self.entries.len())]
    }
}

/// A short form of a volume's identity, for structures that have no room for all of it.
pub fn volume_tag(volume: uuid::Uuid) -> u32 {
    crc32c(volume.as_bytes())
}

/// The checksum of a block's content. It covers the logical address, so that another block's content does not
/// pass.
pub fn block_checksum(lba: Lba, content: &[u8]) -> u32 {
    crc32c_of_both(&lba.0.to_le_bytes(), content)
}

/// Head of a checkpoint record, stored twice in two sectors, then the payload from the next page on.
///
/// The payload is durable before the head is written: a whole head over a damaged payload is damage and not a
/// crash. Payload: segment sequences (u64 each), then runs of single-version blocks (lba u32, count u32, then
/// count times physical block u32 and checksum u32, physical [`u32::MAX`] for "never stored"), then runs of
/// holes (lba u32, count u32, the record's physical block u32), then blocks with several versions (lba u32,
/// count u32, then count times version u64, physical u32, checksum u32, for a hole [`u32::MAX`] and the
/// record's physical block), then the records (physical block u32, version u64). A delta replaces the blocks
/// that it names.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CheckpointHeader {
    /// [`CHECKPOINT_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub format: U32,
    /// CRC-32C of the rest of this header.
    pub checksum: U32,
    /// The volume.
    pub volume: [u8; 16],
    /// Increases with each base; a delta has its base's.
    pub generation: U64,
    /// 0 for a base, then 1, 2, … for its deltas.
    pub number: U32,
    /// CRC-32C of the payload.
    pub payload_checksum: U32,
    /// Bytes of payload.
    pub payload: U64,
    /// The newest version in the index.
    pub version: U64,
    /// The next segment sequence.
    pub next_seq: U64,
    /// Positions of the logs.
    pub logs: [LogRecord; 2],
    /// Segment sequences in the payload.
    pub segments: U32,
    /// Runs in the payload.
    pub runs: U32,
    /// Blocks with several versions in the payload.
    pub several: U32,
    /// Runs of holes in the payload.
    pub holes: U32,
    /// Records of discards in the payload.
    pub records: U32,
    /// Padding.
    pub reserved: [u8; 4],
}

/// First page of each half: names a checkpoint record that was durable when this was written. If that record
/// is missing, it was damaged, and no older one can stand in for it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Witness {
    /// [`WITNESS_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub format: U32,
    /// CRC-32C of the rest.
    pub checksum: U32,
    /// The volume.
    pub volume: [u8; 16],
    /// The record's generation.
    pub generation: U64,
    /// Its number in the generation.
    pub number: U32,
    /// Padding.
    pub reserved: [u8; 4],
}

/// Position of a log at a checkpoint.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LogRecord {
    /// The open segment, [`NO_SEGMENT`] when the log is not in use.
    pub segment: U32,
    /// The next block in it.
    pub slot: U32,
    /// Its sequence.
    pub seq: U64,
}

const _: () = {
    assert!(size_of::<Entry>() == 16);
    assert!(size_of::<MapSector>() == SECTOR);
    assert!(size_of::<LabelHeader>() == 128);
    assert!(size_of::<LinkRecord>() == 32);
    assert!(size_of::<SnapshotRecord>() == 96);
    assert!(size_of::<VoidRecord>() == 32);
    assert!(size_of::<CutRecord>() == 32);
    assert!(size_of::<CheckpointHeader>() == 128);
    assert!(size_of::<Witness>() == 48);
};
