//! The layout of partitions and stores in their blocks, byte for byte.
//!
//! ```text
//! volume:     catalogue (16 blocks) | partition | partition | …
//! b-tree:     store header, label | bitmap | root | nodes, large values
//! hash table: store header | bitmap | directory | buckets, large values
//! ```
//!
//! A *catalogue block* ([`CatalogueHeader`], [`CatalogueEntry`]) lists partitions. They fill the blocks
//! from the first on. A block of zeros lists none.
//!
//! The copy of a catalogue block lies at [`copy_place`], in a block that lists no partitions itself: the
//! first block's copy in the last block. A catalogue that fills more than half its blocks has room for the
//! copies of the first ones alone. Programs that do not know of copies take such a block for an empty list,
//! and write zeros there when they change the catalogue; [`repair`](super::catalogue::repair) adds the copies
//! again.
//!
//! A partition that has grown consists of several *runs* of blocks. Each has an entry in the catalogue, with
//! the partition's name and identity and the run's number; the first run is number 0. Such a catalogue has
//! version 2, which older programs refuse. A further run that is not ready is reserved for the partition,
//! which does not use it yet. In a store each of these runs begins with its own pages of the bitmap.
//!
//! Inside of a partition blocks are numbered from its first one on, run after run. Every block except those
//! of large values is a *page*: it begins with a [`PageHeader`] with its kind, its store and its place. A
//! page of bitmap or directory that was never written is all zeros.
//!
//! Everything is laid out in *units* of 16 bytes, the grain in which transactions conflict. The header is two
//! units: the first never changes while the page is in use, the second changes with the page's membership. A
//! node or bucket goes on with its slots, 2 bytes each: the places of its records in units, in the order of
//! their keys. A record ([`RecordHead`], room for the value, key) fills whole units, so that no two records
//! share one. A record that leaves its place has its flags cleared there, whether or not the place is used
//! again.
//!
//! Little endian.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::BLOCK_SIZE;
use crate::checksum::crc32c;

/// Version of every structure here; readers refuse a higher one.
pub const FORMAT_VERSION: u16 = 1;
/// Version of a catalogue that has a partition of several runs; the others have [`FORMAT_VERSION`].
pub const CATALOGUE_VERSION: u32 = 2;
/// Bytes in the longest key.
pub const MAX_KEY: usize = 1024;
/// Bytes in the largest value: 128 blocks. A transaction may write 256 blocks unless told otherwise.
pub const MAX_VALUE: usize = 512 << 10;

/// Bytes in a unit.
pub const UNIT: usize = 16;
/// Units in a page.
pub const UNITS: usize = BLOCK_SIZE / UNIT;
/// Where the slots of a page begin, the entries of a directory, and the bits of a bitmap.
pub const BODY: usize = 32;
/// Units of the largest record: with any two of them and its slots a page is not yet full.
pub const MAX_RECORD_UNITS: usize = 124;
/// Bytes of the largest record.
pub const MAX_RECORD: usize = MAX_RECORD_UNITS * UNIT;
/// The level of the highest root.
pub const MAX_LEVEL: u8 = 24;

/// Bits in one unit of a bitmap page: one fragment.
pub const BITS_PER_UNIT: u32 = 128;
/// Units of bits in a bitmap page.
pub const BITMAP_UNITS: u32 = (UNITS - 2) as u32;
/// Bits in a bitmap page.
pub const BITS_PER_PAGE: u32 = BITMAP_UNITS * BITS_PER_UNIT;
/// Entries in a directory page.
pub const DIRECTORY_ENTRIES: u32 = ((BLOCK_SIZE - BODY) / 4) as u32;
/// A hash table has two directory entries for each block, so that no bucket has to serve much more than one
/// page of small records.
pub const BLOCKS_PER_DIRECTORY: u32 = DIRECTORY_ENTRIES / 2;

/// First bytes of a page.
pub const PAGE_MAGIC: [u8; 4] = *b"TWpg";
/// First bytes of a catalogue block.
pub const CATALOGUE_MAGIC: [u8; 8] = *b"THALWEGP";
/// Blocks of the catalogue.
pub const CATALOGUE_BLOCKS: u64 = 16;
/// Entries in a catalogue block.
pub const CATALOGUE_ENTRIES: usize = 42;
/// Bytes in the longest name of a partition.
pub const MAX_NAME: usize = 47;
/// Ends the name of the B-tree with a filesystem's metadata.
pub const META_SUFFIX: &str = ".meta";
/// Ends the name of the raw partition with a filesystem's data.
pub const DATA_SUFFIX: &str = ".data";
/// Ends the name of the raw partition with a copy of a filesystem's superblock.
pub const SUPER_SUFFIX: &str = ".super";
/// Blocks of the smallest store.
pub const MIN_BLOCKS: u64 = 8;
/// Blocks of the largest store: they are numbered with 32 bits.
pub const MAX_BLOCKS: u64 = 1 << 32;

/// The kind of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A store with ordered keys.
    Btree,
    /// A store without order.
    Hash,
    /// Blocks whose layout is up to their user.
    Raw,
}

impl Kind {
    /// The stored form.
    pub const fn encode(self) -> u8 {
        match self {
            Kind::Btree => 1,
            Kind::Hash => 2,
            Kind::Raw => 3,
        }
    }

    /// The kind, or `None` when it is unknown.
    pub const fn decode(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Btree),
            2 => Some(Kind::Hash),
            3 => Some(Kind::Raw),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Btree => "btree",
            Kind::Hash => "hash",
            Kind::Raw => "raw",
        })
    }
}

/// Whether a partition is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its blocks are being emptied; it may be dropped.
    Unfinished,
    /// It may be used.
    Ready,
}

/// Begins a catalogue block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CatalogueHeader {
    /// [`CATALOGUE_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: U32,
    /// CRC-32C of the block, this field as zero.
    pub checksum: U32,
    /// The block's number.
    pub index: U32,
    /// Partitions that it lists, the first entries.
    pub count: U32,
    /// 0, or in a copy the number of the copied block plus 1: `count` is 0 then.
    pub copy_of: U32,
    /// In a copy, the partitions that the other block lists.
    pub copied: U32,
    /// The number of catalogue blocks that list partitions, the first ones; 0 from programs that do not know
    /// of copies.
    pub lists: U32,
    /// Zeros.
    pub spare: [u8; 28],
}

/// The block that has the copy of a catalogue block, if it lists no partitions.
pub const fn copy_place(index: u64) -> u64 {
    CATALOGUE_BLOCKS - 1 - index
}

/// One run of a partition.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CatalogueEntry {
    /// Bytes of the name.
    pub name_len: u8,
    /// The name, UTF-8, and zeros.
    pub name: [u8; MAX_NAME],
    /// [`Kind::encode`].
    pub kind: u8,
    /// 1: ready, 0: unfinished.
    pub ready: u8,
    /// The run's number among those of the partition.
    pub run: U16,
    /// Zeros.
    pub spare: [u8; 12],
    /// The partition's identity.
    pub uuid: [u8; 16],
    /// Its first block.
    pub first: U64,
    /// Its blocks.
    pub blocks: U64,
}

/// A whole catalogue block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CatalogueBlock {
    /// What it is.
    pub header: CatalogueHeader,
    /// The partitions.
    pub entries: [CatalogueEntry; CATALOGUE_ENTRIES],
}

impl CatalogueBlock {
    /// The checksum that the block should have.
    pub fn sum(&self) -> u32 {
        let mut copy = *self;
        copy.header.checksum = 0.into();
        crc32c(copy.as_bytes())
    }
}

/// The kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// The first block of a store.
    Header,
    /// Bits that say which blocks are in use.
    Bitmap,
    /// A node of a B-tree.
    Node,
    /// The places of buckets.
    Directory,
    /// Records with similar hashes.
    Bucket,
}

impl PageKind {
    /// The stored form.
    pub const fn encode(self) -> u8 {
        match self {
            PageKind::Header => 1,
            PageKind::Bitmap => 2,
            PageKind::Node => 3,
            PageKind::Directory => 4,
            PageKind::Bucket => 5,
        }
    }
}

/// Begins every page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    /// [`PAGE_MAGIC`].
    pub magic: [u8; 4],
    /// [`PageKind::encode`].
    pub kind: u8,
    /// Of a node: its height above the leaves.
    pub level: u8,
    /// [`FORMAT_VERSION`].
    pub version: U16,
    /// [`tag`] of the partition.
    pub tag: U32,
    /// The page's place in the partition.
    pub block: U32,
    /// Of a bucket: the block in which it goes on, or 0.
    pub next: U32,
    /// Of a bucket: the first entry of its directory page that it serves.
    pub first: U16,
    /// Of a bucket: the entry after the last one that it serves.
    pub end: U16,
    /// Zeros.
    pub spare: [u8; 6],
    /// Slots. It stands last so that it and the slots are written as one.
    pub count: U16,
}

/// Bytes of a page that stay the same while it keeps its kind and place.
pub const IDENTITY: std::ops::Range<usize> = 0..UNIT;
/// Bytes of a page that change whenever a record joins or leaves it.
pub const MEMBERSHIP: std::ops::Range<usize> = UNIT..BODY;

impl PageHeader {
    /// The header of a new page.
    pub fn new(kind: PageKind, level: u8, tag: u32, block: u32) -> PageHeader {
        PageHeader {
            magic: PAGE_MAGIC,
            kind: kind.encode(),
            level,
            version: FORMAT_VERSION.into(),
            tag: tag.into(),
            block: block.into(),
            ..PageHeader::new_zeroed()
        }
    }
}

/// The rest of a store's first page, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StoreHeader {
    /// Identity of the partition.
    pub uuid: [u8; 16],
    /// Its blocks.
    pub blocks: U64,
    /// [`Kind::encode`].
    pub kind: u8,
    /// Zeros.
    pub spare: [u8; 7],
}

/// Bytes of a store's first page, behind its header, that its user may fill: zeros until then.
pub const LABEL: std::ops::Range<usize> = 256..512;

/// The record is in use.
pub const LIVE: u8 = 1;
/// The record's value is a [`LargeHead`] and its extents.
pub const LARGE: u8 = 2;

/// Begins a record. After it come `room` bytes for the value, then the key.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordHead {
    /// [`LIVE`], [`LARGE`]; 0 when the record has left.
    pub flags: u8,
    /// Zero.
    pub spare: u8,
    /// Bytes of the key.
    pub key_len: U16,
    /// Bytes of the value.
    pub value_len: U16,
    /// Bytes of room for a value.
    pub room: U16,
}

/// Bytes before a record's value.
pub const RECORD_HEAD: usize = size_of::<RecordHead>();

/// Units of a record with a key and a value of so many bytes.
pub const fn record_units(key: usize, value: usize) -> usize {
    (RECORD_HEAD + key + value).div_ceil(UNIT)
}

/// A large value in its record: its length, then its extents.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LargeHead {
    /// Bytes of the value.
    pub len: U32,
}

/// A run of adjacent blocks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Extent {
    /// The first block.
    pub first: U32,
    /// Blocks, at least one.
    pub blocks: U16,
}

/// The tag that marks the pages of a partition.
pub fn tag(uuid: &uuid::Uuid) -> u32 {
    crc32c(uuid.as_bytes())
}

const _: () = {
    assert!(size_of::<CatalogueHeader>() == 64);
    assert!(size_of::<CatalogueEntry>() == 96);
    assert!(size_of::<CatalogueBlock>() == BLOCK_SIZE);
    assert!(size_of::<PageHeader>() == BODY);
    assert!(std::mem::offset_of!(PageHeader, next) == UNIT);
    assert!(std::mem::offset_of!(PageHeader, count) == BODY - 2);
    assert!(size_of::<StoreHeader>() == 32);
    assert!(BODY + size_of::<StoreHeader>() <= LABEL.start);
    assert!(size_of::<RecordHead>() == 8);
    assert!(size_of::<Extent>() == 6);
    // The longest key fits beside the most scattered of the largest values.
    assert!(
        RECORD_HEAD
            + MAX_KEY
            + size_of::<LargeHead>()
            + MAX_VALUE / BLOCK_SIZE * size_of::<Extent>()
            <= MAX_RECORD
    );
    // Two of the largest records and their slots.
    assert!(2 * MAX_RECORD_UNITS + BODY / UNIT < UNITS);
    assert!(CATALOGUE_ENTRIES == (BLOCK_SIZE - 64) / 96);
};
