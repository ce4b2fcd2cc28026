//! The first MiB of a member device, byte for byte.
//!
//! ```text
//! 0        header, twice: whose device this is      (2 × 4 KiB)
//! 8 KiB    slot 0, twice: an extent and its owner   (2 × 4 KiB)
//! 16 KiB   slot 1 …
//! 1 MiB    extents
//! ```
//!
//! Header and slots are structures of one 512-byte sector, each at the start of a page of 4 KiB, so that no
//! device writes one in part and no write touches a neighbour. Each is written to both of its pages in one
//! request; if both are valid, the one with the higher sequence counts. A free slot is all zeros.
//!
//! Only a slot's owner, the volume that it names, changes the slot. The volumes that share a device need a
//! lock to take a free slot, but none to change their own.

use crate::checksum::crc32c;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of every structure here; a reader refuses a higher one.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes in each copy of a header or slot.
pub const COPY: u64 = 4096;
/// Bytes of a header or slot, both copies.
pub const PAIR: u64 = 2 * COPY;
/// Slots on a device.
pub const SLOTS: usize = (DATA_START / PAIR) as usize - 1;
/// First byte of the first extent.
pub const DATA_START: u64 = 1 << 20;
/// Bytes of the structure at the start of each copy.
pub const RECORD: usize = 512;
/// Bytes of a volume's name.
pub const NAME: usize = 64;

/// First bytes of a header.
pub const HEADER_MAGIC: [u8; 8] = *b"THALWEGD";
/// First bytes of a slot in use.
pub const MEMBER_MAGIC: [u8; 8] = *b"THALWEGM";

/// First byte of slot `slot`.
pub const fn slot_offset(slot: usize) -> u64 {
    PAIR * (1 + slot as u64)
}

/// Which volumes may have extents on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One volume.
    Owned,
    /// Several volumes.
    Shared,
}

/// A device's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Higher in each header that is written.
    pub sequence: u64,
    /// The device's identity.
    pub device: Uuid,
    /// Which volumes may have extents on it.
    pub sharing: Sharing,
    /// Its size in bytes when it was labelled.
    pub size: u64,
    /// The time when it was labelled, in seconds since 1970.
    pub created: u64,
}

/// The use of an extent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A side of a link.
    Link,
    /// The map area, or a side of it.
    Map,
    /// The tail cache.
    TailCache,
    /// The body cache.
    BodyCache,
    /// A side of the journal of a client, which is no part of a volume.
    ClientJournal,
}

impl Role {
    /// The role's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Link => "link",
            Role::Map => "map",
            Role::TailCache => "tail cache",
            Role::BodyCache => "body cache",
            Role::ClientJournal => "client's journal",
        }
    }
}

/// An extent and its place in its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Higher in each copy that is written.
    pub sequence: u64,
    /// The identity of the slot's device: exposes a slot that was copied from another device.
    pub device: Uuid,
    /// The volume that owns the extent.
    pub volume: Uuid,
    /// The volume's name, for messages, at most [`NAME`] bytes.
    pub name: String,
    /// The use of the extent.
    pub role: Role,
    /// The link's identity; other roles have one of their own.
    pub group: Uuid,
    /// The number of columns of the group's stripe.
    pub columns: u8,
    /// This extent's column.
    pub column: u8,
    /// The number of sides of each column.
    pub sides: u8,
    /// This extent's side.
    pub side: u8,
    /// Bytes of the stripe's unit: so many go to one column before the next.
    pub unit: u32,
    /// The sector in bytes that the volume was made with, or 0 for the device's own.
    pub sector: u32,
    /// First byte of the extent.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes at the start of the group that hold the map area; the rest holds segments.
    pub map_bytes: u64,
    /// The number of changes of the set of sides in sync, in this column. The highest counts.
    pub events: u64,
    /// The sides that were in sync after the last change, one bit each.
    pub in_sync: u64,
}

/// Why bytes are not a valid header or slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They are empty.
    None,
    /// They are damaged.
    Damaged,
    /// A newer program wrote them.
    Newer(u32),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StoredHeader {
    magic: [u8; 8],
    format: U32,
    checksum: U32,
    sequence: U64,
    device: [u8; 16],
    sharing: u8,
    reserved: [u8; 7],
    size: U64,
    created: U64,
    reserved2: [u8; 448],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StoredMember {
    magic: [u8; 8],
    format: U32,
    checksum: U32,
    sequence: U64,
    device: [u8; 16],
    volume: [u8; 16],
    group: [u8; 16],
    name: [u8; NAME],
    role: u8,
    columns: u8,
    column: u8,
    sides: u8,
    side: u8,
    reserved: [u8; 3],
    unit: U32,
    sector: U32,
    start: U64,
    length: U64,
    map_bytes: U64,
    events: U64,
    in_sync: U64,
    reserved2: [u8; 320],
}

const _: () = assert!(size_of::<StoredHeader>() == RECORD);
const _: () = assert!(size_of::<StoredMember>() == RECORD);

/// The number of bytes before those that a checksum covers.
const CHECKED_FROM: usize = 16;

/// Checks the fields that every structure begins with.
fn check(bytes: &[u8], magic: [u8; 8]) -> Result<(), Fault> {
    let record = bytes.get(..RECORD).ok_or(Fault::None)?;
    if record[..8] != magic {
        return Err(Fault::None);
    }
    let number = |at: usize| U32::read_from_bytes(&record[at..at + 4]).map_or(0, U32::get);
    if crc32c(&record[CHECKED_FROM..]) != number(12) {
        return Err(Fault::Damaged);
    }
    match number(8) {
        format if format > FORMAT_VERSION => Err(Fault::Newer(format)),
        _ => Ok(()),
    }
}

impl Header {
    /// The encoded form.
    pub fn encode(&self) -> [u8; RECORD] {
        let mut stored = StoredHeader {
            magic: HEADER_MAGIC,
            format: FORMAT_VERSION.into(),
            checksum: 0.into(),
            sequence: self.sequence.into(),
            device: *self.device.as_bytes(),
            sharing: matches!(self.sharing, Sharing::Shared).into(),
            reserved: [0; 7],
            size: self.size.into(),
            created: self.created.into(),
            reserved2: [0; 448],
        };
        stored.checksum = crc32c(&stored.as_bytes()[CHECKED_FROM..]).into();
        zerocopy::transmute!(stored)
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// A [`Fault`].
    pub fn decode(bytes: &[u8]) -> Result<Header, Fault> {
        check(bytes, HEADER_MAGIC)?;
        let (stored, _) = StoredHeader::read_from_prefix(bytes).map_err(|_| Fault::None)?;
        Ok(Header {
            sequence: stored.sequence.get(),
            device: Uuid::from_bytes(stored.device),
            sharing: match stored.sharing {
                0 => Sharing::Owned,
                1 => Sharing::Shared,
                _ => return Err(Fault::Damaged),
            },
            size: stored.size.get(),
            created: stored.created.get(),
        })
    }
}

impl Member {
    /// The encoded form.
    pub fn encode(&self) -> [u8; RECORD] {
        let mut name = [0; NAME];
        let len = self.name.len().min(NAME);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        let mut stored = StoredMember {
            magic: MEMBER_MAGIC,
            format: FORMAT_VERSION.into(),
            checksum: 0.into(),
            sequence: self.sequence.into(),
            device: *self.device.as_bytes(),
            volume: *self.volume.as_bytes(),
            group: *self.group.as_bytes(),
            name,
            role: self.role as u8,
            columns: self.columns,
            column: self.column,
            sides: self.sides,
            side: self.side,
            reserved: [0; 3],
            unit: self.unit.into(),
            sector: self.sector.into(),
            start: self.start.into(),
            length: self.length.into(),
            map_bytes: self.map_bytes.into(),
            events: self.events.into(),
            in_sync: self.in_sync.into(),
            reserved2: [0; 320],
        };
        stored.checksum = crc32c(&stored.as_bytes()[CHECKED_FROM..]).into();
        zerocopy::transmute!(stored)
    }

    /// Decodes a slot.
    ///
    /// # Errors
    /// A [`Fault`]; [`Fault::None`] when the slot is free.
    pub fn decode(bytes: &[u8]) -> Result<Member, Fault> {
        check(bytes, MEMBER_MAGIC)?;
        let (stored, _) = StoredMember::read_from_prefix(bytes).map_err(|_| Fault::None)?;
        let end = stored.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let member = Member {
            sequence: stored.sequence.get(),
            device: Uuid::from_bytes(stored.device),
            volume: Uuid::from_bytes(stored.volume),
            group: Uuid::from_bytes(stored.group),
            name: String::from_utf8_lossy(&stored.name[..end]).into_owned(),
            role: match stored.role {
                0 => Role::Link,
                1 => Role::Map,
                2 => Role::TailCache,
                3 => Role::BodyCache,
                4 => Role::ClientJournal,
                _ => return Err(Fault::Damaged),
            },
            columns: stored.columns,
            column: stored.column,
            sides: stored.sides,
            side: stored.side,
            unit: stored.unit.get(),
            sector: stored.sector.get(),
            start: stored.start.get(),
            length: stored.length.get(),
            map_bytes: stored.map_bytes.get(),
            events: stored.events.get(),
            in_sync: stored.in_sync.get(),
        };
        match member.is_plausible() {
            true => Ok(member),
            false => Err(Fault::Damaged),
        }
    }

    /// Refuses numbers that no valid label has, so that arithmetic on them cannot overflow.
    fn is_plausible(&self) -> bool {
        let most = 1 << 60;
        self.column < self.columns
            && self.side < self.sides
            && self.sides <= 64
            && self.start >= DATA_START
            && self.start < most
            && self.length < most
            && self.map_bytes < most
            && self.events < u64::MAX / 2
            && self.sequence < u64::MAX / 2
            && [0, 512, 4096].contains(&self.sector)
            && (self.columns == 1 || self.unit != 0)
    }

    /// First byte after the extent.
    pub fn end(&self) -> u64 {
        self.start + self.length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            sequence: 3,
            device: Uuid::from_u128(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00),
            sharing: Sharing::Shared,
            size: 1 << 30,
            created: 1_700_000_000,
        }
    }

    fn member() -> Member {
        Member {
            sequence: 9,
            device: header().device,
            volume: Uuid::from_u128(0x7),
            name: "häfen".to_owned(),
            role: Role::Map,
            group: Uuid::from_u128(0x8),
            columns: 2,
            column: 1,
            sides: 3,
            side: 2,
            unit: 65536,
            sector: 4096,
            start: 1 << 20,
            length: 1 << 24,
            map_bytes: 5 << 12,
            events: 6,
            in_sync: 0b101,
        }
    }

    #[test]
    fn golden_header() {
        let bytes = header().encode();
        let mut golden = Vec::new();
        golden.extend_from_slice(b"THALWEGD");
        golden.extend_from_slice(&[1, 0, 0, 0]);
        golden.extend_from_slice(&0x7dec_e122_u32.to_le_bytes());
        golden.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
            0xff, 0x00,
        ]);
        golden.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[0, 0, 0, 0x40, 0, 0, 0, 0]);
        golden.extend_from_slice(&[0x00, 0xf1, 0x53, 0x65, 0, 0, 0, 0]);
        golden.resize(RECORD, 0);
        assert_eq!(bytes[..], golden[..]);
        assert_eq!(Header::decode(&bytes), Ok(header()));
    }

    #[test]
    fn golden_member() {
        let bytes = member().encode();
        let mut golden = Vec::new();
        golden.extend_from_slice(b"THALWEGM");
        golden.extend_from_slice(&[1, 0, 0, 0]);
        golden.extend_from_slice(&0x7011_5b25_u32.to_le_bytes());
        golden.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(header().device.as_bytes());
        golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        golden.extend_from_slice("häfen".as_bytes());
        golden.resize(72 + NAME, 0);
        golden.extend_from_slice(&[1, 2, 1, 3, 2, 0, 0, 0]);
        golden.extend_from_slice(&[0, 0, 1, 0, 0, 16, 0, 0]);
        golden.extend_from_slice(&[0, 0, 16, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0]);
        golden.extend_from_slice(&[0, 0x50, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]);
        golden.resize(RECORD, 0);
        assert_eq!(bytes[..], golden[..]);
        assert_eq!(Member::decode(&bytes), Ok(member()));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        for at in 0..RECORD {
            let mut bytes = member().encode();
            bytes[at] ^= 0x40;
            assert!(Member::decode(&bytes).is_err(), "byte {at}");
            let mut bytes = header().encode();
            bytes[at] ^= 0x40;
            assert!(Header::decode(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_newer_format_is_told_apart() {
        let mut bytes = member().encode();
        bytes[8] = 2;
        assert_eq!(Member::decode(&bytes), Err(Fault::Newer(2)));
        assert_eq!(Member::decode(&[0; RECORD]), Err(Fault::None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in prop::collection::vec(any::<u8>(), RECORD)) {
            bytes[..8].copy_from_slice(&MEMBER_MAGIC);
            bytes[8..12].copy_from_slice(&[1, 0, 0, 0]);
            let checksum = crc32c(&bytes[CHECKED_FROM..]).to_le_bytes();
            bytes[12..16].copy_from_slice(&checksum);
            if let Ok(member) = Member::decode(&bytes) {
                prop_assert!(member.end() > member.start || member.length == 0);
            }
        }
    }
}
