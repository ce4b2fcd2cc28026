//! The label: its head, and the records behind it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[cfg(doc)]
use super::{ENTRIES_PER_PAGE, FORMAT_VERSION, LABEL_MAGIC};

/// Head of a label. Links, snapshots, voids, cuts, timelines and the shrink follow it in this order.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LabelHeader {
    /// [`LABEL_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub format: U32,
    /// CRC-32C of the label from `sequence` to the end of its records.
    pub checksum: U32,
    /// Increases with each label that is written.
    pub sequence: U64,
    /// The volume.
    pub volume: [u8; 16],
    /// Logical blocks.
    pub blocks: U64,
    /// Blocks in a segment, a multiple of [`ENTRIES_PER_PAGE`].
    pub segment_blocks: U32,
    /// Maximum number of segments in the map area.
    pub max_segments: U32,
    /// Bytes in each half of the checkpoint area.
    pub checkpoint_half: U64,
    /// 0: move to tail, 1: compact in body.
    pub cleaning: u8,
    /// 0: chained, 1: round-robin.
    pub placement: u8,
    /// Shrink records, 0 or 1.
    pub shrinks: u8,
    /// 0: no; 1: blocks of which no copy is right were found, and no scrub has found none since.
    pub damaged: u8,
    /// Link records.
    pub links: U32,
    /// Snapshot records.
    pub snapshots: U32,
    /// Void records.
    pub voids: U32,
    /// When the volume was made, seconds since 1970.
    pub created: U64,
    /// Cut records.
    pub cuts: U32,
    /// Timeline records.
    pub timelines: U32,
    /// 0: the volume is written here; 1: it follows another one.
    pub follows: u8,
    /// Padding.
    pub reserved2: [u8; 3],
    /// Of a follower, the version from which on it has a state of the other volume; 0 for any.
    pub whole_from: U64,
    /// How often a replica was promoted before this volume, or became it.
    pub term: U32,
    /// The term of the primary that has taken this one's place; 0 for none.
    pub fence_term: U32,
    /// The version from which that primary went on.
    pub fence_from: U64,
    /// The number of a replica of the volume; 0 for none yet.
    pub replica: U32,
}

/// How cleaning frees a segment, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleaning {
    /// Live blocks go to the tail (Gecko 3.1).
    MoveToTail,
    /// Live blocks go to free segments of the body (Gecko 3.1.3).
    CompactInBody,
}

/// Which link the users' log takes for its next segment, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The tail's link while it has a free one (Gecko 3.1): one drive takes the writes, and the others only reads.
    #[default]
    Chained,
    /// The links by turns (Yogurt 5.3.2): the versions of a block come to lie on different drives.
    RoundRobin,
}

impl Cleaning {
    /// As the label stores it.
    pub const fn encode(self) -> u8 {
        match self {
            Cleaning::MoveToTail => 0,
            Cleaning::CompactInBody => 1,
        }
    }

    /// From a label.
    pub const fn decode(byte: u8) -> Cleaning {
        match byte {
            0 => Cleaning::MoveToTail,
            _ => Cleaning::CompactInBody,
        }
    }
}

impl Placement {
    /// As the label stores it.
    pub const fn encode(self) -> u8 {
        match self {
            Placement::Chained => 0,
            Placement::RoundRobin => 1,
        }
    }

    /// From a label.
    pub const fn decode(byte: u8) -> Placement {
        match byte {
            0 => Placement::Chained,
            _ => Placement::RoundRobin,
        }
    }
}

/// A link of the chain.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LinkRecord {
    /// The link's identity.
    pub id: [u8; 16],
    /// Its first segment.
    pub base: U32,
    /// Its segments.
    pub segments: U32,
    /// 0: in use, 1: being removed.
    pub leaving: u8,
    /// Padding.
    pub reserved: [u8; 7],
}

/// A named snapshot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct SnapshotRecord {
    /// Name in UTF-8, filled with zeros.
    pub name: [u8; 64],
    /// The version that it keeps.
    pub version: U64,
    /// When it was made, seconds since 1970.
    pub created: U64,
    /// The volume's logical blocks then.
    pub blocks: U64,
    /// Padding.
    pub reserved: [u8; 8],
}

/// Void versions: above `from` and up to `to`, of blocks from `first` on. A roll-back took them back, or the
/// volume became so small that the blocks left it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VoidRecord {
    /// The version that was restored; 0 for a volume that became smaller.
    pub from: U64,
    /// The newest version when that happened.
    pub to: U64,
    /// The next segment sequence then: once every segment is newer, the record is obsolete.
    pub seq: U64,
    /// The first logical block concerned: 0 for a roll-back.
    pub first: U64,
}

/// The end of the logs at a recovery. Segments of a log with sequences between the one in which that log
/// ended and `first` never counted, though their sectors may be whole.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CutRecord {
    /// Sequence of the segment in which the users' log ended.
    pub users: U64,
    /// Sequence of the segment in which the log of compaction ended.
    pub body: U64,
    /// The lowest sequence of a segment opened since.
    pub first: U64,
    /// The version that was recovered.
    pub version: U64,
}

/// The beginning of a timeline, oldest first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TimelineRecord {
    /// Its identity.
    pub id: [u8; 16],
    /// The version from which it went on.
    pub from: U64,
}

/// The last time that a volume with followers became smaller.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ShrinkRecord {
    /// The last version in which blocks were discarded for that.
    pub version: U64,
    /// The number of these versions.
    pub versions: U64,
    /// The fewest blocks that the volume ever had.
    pub blocks: U64,
}
