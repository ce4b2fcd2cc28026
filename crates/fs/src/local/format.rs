//! The layout of a filesystem's partitions, byte for byte.
//!
//! `NAME.meta` is a B-tree. Its keys are big endian, so that the records of an inode lie together:
//!
//! ```text
//! inode | Inode                      InodeRecord
//! inode | Target                     the target of a symbolic link
//! inode | Xattr  | name              the value of an extended attribute
//! inode | Entry  | position          EntryHead, name: a name in a directory
//! inode | Extent | block of the file ExtentRecord
//! 0     | Super                      SuperRecord
//! 0     | Numbers                    the lowest inode number that was never used
//! 0     | Counts                     inodes in use at some time in the past
//! 0     | Orphan | inode             empty: the inode has no names, or blocks behind its end
//! 0     | Freed  | block of the data its blocks: still marked, but in no file
//! 0     | Quota  | inode             QuotaRecord: the directory is the root of a quota
//! 0     | Usage  | inode | lane      UsageRecord: the usage under it, to be summed over lanes
//! 0     | Reservations               the block of the data with the table of reservations
//! 0     | Session | number           what a server has written down of a client's session
//! 0     | Session | number | rest    number and outcome of the last call of a slot, and others (`sessions`)
//! 0     | Removed | inode           its stored write bound: the content, kept elsewhere, is to be removed
//! 0     | Redirect                  where redirected bytes begin and end (`redirects`)
//! 0     | Redirect | inode | byte   RedirectRecord: bytes of a content kept elsewhere that are not in their place
//! ```
//!
//! `NAME.data` begins with bitmap pages ([`BitmapHeader`]), with one bit for each block behind them that is
//! in use; a page of zeros was never written. Blocks that are not in use hold zeros.
//!
//! [`SuperRecord`] has two copies: in the label of the tree's store, and in the first bytes of the one
//! block of `NAME.super`. Filesystems that were made before copies existed have no such partition, and get
//! the first copy when they are opened for writing.
//!
//! Transactions of callers allocate blocks before they commit. The *table of reservations* is a block of
//! the data ([`ListPage`]) with an entry for each such transaction: the first blocks of its two lists, each
//! block's number plus 1. The first list has the runs that it has reserved. The second has the runs that
//! are free once it has committed; it counts when it bears the same owner as the first. When the
//! transaction has ended, one of the two lists is removed, and then the runs of the other one are freed:
//!
//! ```text
//! (reserved, released) it runs, or has just ended
//! (reserved, 0)        it has not committed: the reserved runs are being freed
//! (0, released)        it has committed: the released runs are being freed
//! (0, 0)               the entry is vacant
//! ```
//!
//! Values are little endian.

mod extent;
mod kinds;
mod times;
mod versions;

use bytes::Bytes;
use thalweg_store::{block::BLOCK_SIZE, checksum::crc32c};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{attributes::Kind, error::FsError};
pub use extent::{Extent, extent_key};

pub use kinds::{decode_kind, encode_kind};
pub use times::{decode_time, encode_time};
pub use versions::*;

/// Flag of a superblock: the contents of files are kept elsewhere. There are no extents then, and the blocks of a
/// file are those that its size has.
pub const ELSEWHERE: u8 = 1;
/// Version of a page of bits.
pub const BITMAP_VERSION: u16 = 1;
/// First bytes of the superblock.
pub const SUPER_MAGIC: [u8; 8] = *b"THALWEGF";
/// First bytes of a page of bits.
pub const BITMAP_MAGIC: [u8; 4] = *b"TWfb";
/// First bytes of the table of reservations, and of each block of a list.
pub const LIST_MAGIC: [u8; 4] = *b"TWfr";
/// Version of the table of reservations, and of each block of a list.
pub const LIST_VERSION: u16 = 1;
/// Bytes of a list's block before its entries.
pub const LIST_HEADER: usize = 64;
/// Entries in a block of a list.
pub const LIST_ENTRIES: usize = (BLOCK_SIZE - LIST_HEADER) / size_of::<ListEntry>();
/// The owner of a list that belongs to no transaction.
pub const NO_OWNER: u128 = 0;
pub use thalweg_store::tree::format::{DATA_SUFFIX, META_SUFFIX, SUPER_SUFFIX};

/// Bytes of a page of bits before them.
pub const BITMAP_HEADER: usize = 32;
/// Bits in a page.
pub const BITS_PER_PAGE: u64 = ((BLOCK_SIZE - BITMAP_HEADER) * 8) as u64;
/// Most blocks of data: their numbers have 40 bits, and the highest one is [`LOST`].
pub const MAX_DATA_BLOCKS: u64 = LOST;
/// The place of an extent whose blocks of data a repair could not find again.
pub const LOST: u64 = (1 << 40) - 1;
/// Lanes in which the usage of a quota is counted, so that concurrent transactions seldom conflict.
pub const USAGE_LANES: u8 = 16;
/// Bits of a name's hash.
pub const HASH_BITS: u8 = 54;
/// Names of one directory whose hashes are the same.
pub const MAX_SLOTS: u64 = 256;

/// The type of a record, after the inode in its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Tag {
    /// Of an inode: itself.
    Inode = 1,
    /// Of a symbolic link: its target.
    Target = 2,
    /// Of an inode: an extended attribute.
    Xattr = 3,
    /// Of a directory: a name.
    Entry = 4,
    /// Of a file: blocks.
    Extent = 5,
    /// Of the filesystem: the superblock.
    Super = 16,
    /// Of the filesystem: the next inode number.
    Numbers = 17,
    /// Of the filesystem: inodes in use.
    Counts = 18,
    /// Of the filesystem: an inode with something left to be done.
    Orphan = 19,
    /// Of the filesystem: blocks to be freed.
    Freed = 20,
    /// Of the filesystem: limits of a directory tree.
    Quota = 21,
    /// Of the filesystem: the usage of a directory tree.
    Usage = 22,
    /// Of the filesystem: where the table of reservations is.
    Reservations = 23,
    /// Of the filesystem: a session of a client of its server.
    Session = 24,
    /// Of the filesystem: a removed file whose content is kept elsewhere.
    Removed = 25,
    /// Of the filesystem: bytes of a file whose content is kept elsewhere, and that are not in their place.
    Redirect = 26,
}

/// All tags.
#[rustfmt::skip]
const TAGS: [Tag; 16] = [
    Tag::Inode, Tag::Target, Tag::Xattr, Tag::Entry, Tag::Extent, Tag::Super, Tag::Numbers, Tag::Counts, Tag::Orphan,
    Tag::Freed, Tag::Quota, Tag::Usage, Tag::Reservations, Tag::Session, Tag::Removed,
    Tag::Redirect,
];

impl Tag {
    /// Decodes a tag.
    pub fn decode(byte: u8) -> Option<Tag> {
        TAGS.into_iter().find(|tag| *tag as u8 == byte)
    }
}

/// The key of a record.
pub fn key(ino: u64, tag: Tag, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.extend_from_slice(&ino.to_be_bytes());
    key.push(tag as u8);
    key.extend_from_slice(rest);
    key
}

/// The key behind all of an inode's records with this tag.
pub fn key_behind(ino: u64, tag: Tag) -> Vec<u8> {
    let mut key = key(ino, tag, &[]);
    key[8] += 1;
    key
}

/// Splits a key into inode, tag and rest; `None` when it is invalid.
pub fn parse_key(key: &[u8]) -> Option<(u64, Tag, &[u8])> {
    let (ino, rest) = key.split_first_chunk()?;
    let (tag, rest) = rest.split_first()?;
    let (ino, tag) = (u64::from_be_bytes(*ino), Tag::decode(*tag)?);
    ((ino == 0) == (tag >= Tag::Super) && ino < END_OF_NUMBERS).then_some((ino, tag, rest))
}

/// Inodes have lower numbers.
pub const END_OF_NUMBERS: u64 = (1 << 62) - 1;
/// The inode carries blocks behind its end that are being freed, or bytes elsewhere that are to be removed.
pub const TRUNCATING: u8 = 1;
/// The inode has extended attributes.
pub const HAS_XATTRS: u8 = 2;
/// The inode has an access control list beyond its mode.
pub const HAS_ACL: u8 = 4;
/// The directory has a default access control list, for new inodes in it.
pub const HAS_DEFAULT_ACL: u8 = 8;
/// The file has, or had, extents that are lost. They do not count as blocks.
pub const HAS_LOST: u8 = 16;
/// One of several names of the file was removed: it may count for the quota of that name.
pub const LOST_NAME: u8 = 32;

/// An inode. In the tree its record begins 8 bytes earlier, so that the two times, which every write
/// changes, are one unit of 16 bytes, and size and blocks are another.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct InodeRecord {
    /// The low 12 bits of the mode.
    pub mode: U16,
    /// [`encode_kind`].
    pub kind: u8,
    /// [`TRUNCATING`] and other flags.
    pub flags: u8,
    /// As [`Attributes::links`](crate::Attributes::links).
    pub links: U32,
    /// [`encode_time`].
    pub modified: U64,
    /// [`encode_time`].
    pub changed: U64,
    /// Bytes; of a directory its names; of a symbolic link the bytes of its target.
    pub size: U64,
    /// Blocks of data; with contents elsewhere, those that the size has.
    pub blocks: U64,
    /// [`encode_time`].
    pub accessed: U64,
    /// [`encode_time`].
    pub created: U64,
    /// The owner.
    pub uid: U32,
    /// The group.
    pub gid: U32,
    /// Of a device: its number.
    pub rdev: U32,
    /// Of a file whose content is kept elsewhere: no bytes lie at `(write_bound + 1) * 4 MiB` or behind. Of others: zero.
    pub write_bound: U32,
    /// Of a directory: its parent. Of other inodes: the directory in which they were created.
    pub parent: U64,
    /// The root of the quota that it counts for, or 0.
    pub quota: U64,
}

/// The value of [`Tag::Super`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuperRecord {
    /// [`SUPER_MAGIC`].
    pub magic: [u8; 8],
    /// From [`FIRST_VERSION`] to [`FORMAT_VERSION`].
    pub version: U16,
    /// Bits of names' hashes: [`HASH_BITS`].
    pub hash_bits: u8,
    /// [`ELSEWHERE`], or zero.
    pub flags: u8,
    /// Zeros.
    pub spare: [u8; 4],
    /// The filesystem's identity.
    pub uuid: [u8; 16],
    /// The identity of the partition with the data.
    pub data: [u8; 16],
    /// The key of the hash of names.
    pub hash_key: [u8; 16],
    /// Blocks of data.
    pub data_blocks: U64,
    /// [`encode_time`].
    pub created: U64,
    /// CRC-32C of the bytes before it.
    pub checksum: U32,
    /// Zeros.
    pub end: [u8; 4],
}

impl SuperRecord {
    /// Whether the contents of files are kept elsewhere.
    pub fn is_external(&self) -> bool {
        self.flags & ELSEWHERE != 0
    }

    /// The checksum that it should have.
    pub fn sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..size_of::<SuperRecord>() - 8])
    }
}

/// The head of a value of [`Tag::Entry`], before the name. A vacant slot, kept because a name with the same
/// hash may follow it, has inode 0 and no name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EntryHead {
    /// The inode, or 0.
    pub ino: U64,
    /// [`encode_kind`], or 0.
    pub kind: u8,
    /// 1: names with the same hash may follow.
    pub chained: u8,
}

/// The value of [`Tag::Extent`]: blocks of data in a row, or blocks of the file that are [`LOST`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtentRecord {
    /// The first one, low 32 bits.
    pub start: U32,
    /// The first one, high 8 bits.
    pub high: u8,
    /// How many.
    pub blocks: U32,
}

/// The value of [`Tag::Quota`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct QuotaRecord {
    /// Most bytes, or 0.
    pub bytes: U64,
    /// Most inodes, or 0.
    pub inodes: U64,
}

/// The value of [`Tag::Usage`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UsageRecord {
    /// Blocks of data; of one lane also less than none.
    pub blocks: I64,
    /// Inodes, likewise.
    pub inodes: I64,
}

/// Begins a page of bits.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BitmapHeader {
    /// [`BITMAP_MAGIC`].
    pub magic: [u8; 4],
    /// [`BITMAP_VERSION`].
    pub version: U16,
    /// Zeros.
    pub spare: [u8; 2],
    /// The page's number.
    pub index: U32,
    /// CRC-32C of the filesystem's identity.
    pub tag: U32,
    /// Zeros.
    pub end: [u8; 16],
}

/// Begins the table of reservations, and each block of a list.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ListHeader {
    /// [`LIST_MAGIC`].
    pub magic: [u8; 4],
    /// [`LIST_VERSION`].
    pub version: U16,
    /// [`ListKind`].
    pub kind: u8,
    /// Zero.
    pub spare: u8,
    /// CRC-32C of the filesystem's identity.
    pub tag: U32,
    /// Zeros.
    pub end: [u8; 4],
    /// Of a list: the transaction's name, which no other one had.
    pub owner: [u8; 16],
    /// The list's next block, plus 1; or 0.
    pub next: U64,
    /// Zeros.
    pub rest: [u8; 24],
}

/// An entry of the table of reservations, or of a list. Vacant ones are zeros.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ListEntry {
    /// Of the table: the first block of the list of reserved runs, plus 1, or 0. Of a list: the first block
    /// of a run.
    pub first: U64,
    /// Of the table: the first block of the list of released runs, plus 1, or 0. Of a list: the blocks of
    /// the run.
    pub second: U64,
}

/// The kind of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ListKind {
    /// Reservations.
    Table = 1,
    /// The runs that a transaction has reserved.
    Reserved = 2,
    /// The runs that are free once it has committed.
    Released = 3,
}

/// A block of a list, or the table of reservations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListPage(Vec<u8>);

impl ListPage {
    /// One without entries; `next`: the list's next block.
    pub fn new(kind: ListKind, tag: u32, owner: u128, next: Option<u64>) -> ListPage {
        let header = ListHeader {
            magic: LIST_MAGIC,
            version: LIST_VERSION.into(),
            kind: kind as u8,
            spare: 0,
            tag: tag.into(),
            end: [0; 4],
            owner: owner.to_le_bytes(),
            next: next.map_or(0, |next| next + 1).into(),
            rest: [0; 24],
        };
        let mut bytes = vec![0; BLOCK_SIZE];
        bytes[..LIST_HEADER].copy_from_slice(header.as_bytes());
        ListPage(bytes)
    }

    /// The page in a block, or `None` when it is another one, or none.
    pub fn read(content: Bytes, kind: ListKind, tag: u32) -> Option<ListPage> {
        let (header, _) = ListHeader::read_from_prefix(&content).ok()?;
        let known = header.magic == LIST_MAGIC && header.version <= LIST_VERSION;
        let same = header.kind == kind as u8 && header.tag == tag;
        (content.len() == BLOCK_SIZE && known && same).then(|| ListPage(content.to_vec()))
    }

    fn header(&self) -> Option<ListHeader> {
        ListHeader::read_from_prefix(&self.0).ok().map(|(header, _)| header)
    }

    /// The transaction that owns the list.
    pub fn owner(&self) -> u128 {
        self.header().map_or(NO_OWNER, |header| u128::from_le_bytes(header.owner))
    }

    /// The list's next block.
    pub fn next(&self) -> Option<u64> {
        self.header()?.next.get().checked_sub(1)
    }

    /// Links the next block of the list, or ends the list here.
    pub fn set_next(&mut self, next: Option<u64>) {
        let next = U64::from(next.map_or(0, |next| next + 1));
        let at = std::mem::offset_of!(ListHeader, next);
        self.0[at..at + size_of::<U64>()].copy_from_slice(next.as_bytes());
    }

    /// The bytes of an entry.
    pub fn range(at: usize) -> std::ops::Range<usize> {
        let start = LIST_HEADER + at * size_of::<ListEntry>();
        start..start + size_of::<ListEntry>()
    }

    /// An entry.
    pub fn get(&self, at: usize) -> (u64, u64) {
        let entry = ListEntry::read_from_bytes(&self.0[ListPage::range(at)]);
        entry.map_or((0, 0), |entry| (entry.first.get(), entry.second.get()))
    }

    /// Changes an entry.
    pub fn set(&mut self, at: usize, (first, second): (u64, u64)) {
        let entry = ListEntry { first: first.into(), second: second.into() };
        self.0[ListPage::range(at)].copy_from_slice(entry.as_bytes());
    }

    /// The block.
    pub fn into_bytes(self) -> Bytes {
        self.0.into()
    }
}

const _: () = {
    assert!(size_of::<ListHeader>() == LIST_HEADER);
    assert!(size_of::<ListEntry>() == 16);
    assert!(size_of::<InodeRecord>() == 88);
    // With the eight bytes before it.
    assert!(std::mem::offset_of!(InodeRecord, modified) == 8);
    assert!(std::mem::offset_of!(InodeRecord, size) == 24);
    assert!(size_of::<SuperRecord>() == 88);
    assert!(size_of::<EntryHead>() == 10);
    // With the head of a record and the key two units.
    assert!(8 + 13 + size_of::<ExtentRecord>() <= 32);
    assert!(size_of::<BitmapHeader>() == BITMAP_HEADER);
};

/// A record of a fixed size.
///
/// # Errors
/// [`FsError::Damaged`] when the value has another.
pub fn decode<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    value: &[u8],
    what: impl FnOnce() -> String,
) -> Result<T, FsError> {
    T::read_from_bytes(value).map_err(|_| FsError::Damaged(what()))
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The inode.
    pub ino: u64,
    /// Its type.
    pub kind: Kind,
    /// Names with the same hash may follow.
    pub chained: bool,
    /// The name.
    pub name: Bytes,
}

/// A place in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirSlot {
    /// A name.
    Taken(DirectoryEntry),
    /// Kept free.
    Vacant,
}

impl DirSlot {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let DirSlot::Taken(entry) = self else {
            return EntryHead { ino: 0.into(), kind: 0, chained: 1 }.as_bytes().to_vec();
        };
        let chained = u8::from(entry.chained);
        let head = EntryHead { ino: entry.ino.into(), kind: encode_kind(entry.kind), chained };
        [head.as_bytes(), &entry.name].concat()
    }

    /// Decodes a slot; `None` when it is invalid.
    pub fn decode(value: &Bytes) -> Option<DirSlot> {
        let (head, name) = EntryHead::read_from_prefix(value).ok()?;
        if head.ino == 0 {
            return (name.is_empty() && head.kind == 0).then_some(DirSlot::Vacant);
        }
        let name = value.slice(size_of::<EntryHead>()..);
        let fits = (1..=crate::filesystem::MAX_NAME).contains(&name.len());
        let kind = decode_kind(head.kind).filter(|_| fits && head.chained <= 1)?;
        Some(DirSlot::Taken(DirectoryEntry {
            ino: head.ino.get(),
            kind,
            chained: head.chained == 1,
            name,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_reservations_has_these_bytes() {
        let mut page = ListPage::new(ListKind::Released, 0x0403_0201, 5, Some(6));
        page.set(0, (0x1234, 2));
        page.set(LIST_ENTRIES - 1, (7, 8));
        let bytes = page.clone().into_bytes();
        let mut golden = vec![0; BLOCK_SIZE];
        golden[..12].copy_from_slice(b"TWfr\x01\0\x03\0\x01\x02\x03\x04");
        (golden[16], golden[32]) = (5, 7);
        golden[64..66].copy_from_slice(&[0x34, 0x12]);
        (golden[72], golden[4080], golden[4088]) = (2, 7, 8);
        assert_eq!(bytes, golden);
        let read = |kind, tag| ListPage::read(bytes.clone(), kind, tag);
        assert_eq!(read(ListKind::Released, 0x0403_0201), Some(page.clone()));
        assert_eq!((page.owner(), page.next(), page.get(0)), (5, Some(6), (0x1234, 2)));
        assert_eq!(read(ListKind::Reserved, 0x0403_0201), None);
        assert_eq!(read(ListKind::Released, 1), None);
    }
}
