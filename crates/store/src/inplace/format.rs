//! What the device of an in-place store holds, byte for byte.
//!
//! ```text
//! 0        superblock          (512 bytes)
//! 4 KiB    superblock, a copy
//! 64 KiB   journal, unless it is on a device of its own
//!          map: for each block, what is known of it
//!          blocks, 4 KiB each
//! ```
//!
//! The *map* is an array of sectors ([`MapSector`]), each with the entries of 127 blocks. An entry is
//! 0 for a block that holds nothing and reads as zeros, whatever the device has there; 1 for one that
//! holds something nobody has a checksum of; else the CRC-32C of the content (0 and 1 with the highest
//! bit set). A sector of zeros says that all its blocks hold nothing.
//!
//! Map and blocks are written when what they say is in the journal for good, and the journal keeps it
//! until they are durable: they may be torn anywhere between sectors. Little endian.

use serde::Serialize;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::InPlaceError;
use crate::block::BLOCK_SIZE;
use crate::checksum::crc32c;
use crate::copies::{self, Copied};
pub use crate::copies::{COPIES, COPY};
use crate::device::{DeviceRef, Purpose};

/// Version of every structure here; readers refuse a higher one.
pub const FORMAT_VERSION: u32 = 1;
/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"THALWEGI";
/// Where what follows the superblocks begins.
pub const START: u64 = 64 << 10;
/// Bytes of a name.
pub const NAME: usize = 64;
/// Blocks that a sector of the map is about.
pub const ENTRIES: u64 = 127;
/// Bytes of a sector of the map.
pub const MAP_SECTOR: u64 = 512;

/// The journal's note on a run of blocks: they hold nothing.
pub const NOTE_CLEARED: u8 = 1;
/// The journal's note on a run of blocks: they were written at home.
pub const NOTE_DIRECT: u8 = 2;

/// What the map says of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It reads as zeros.
    Empty,
    /// It holds something.
    Unsummed,
    /// It holds something with this checksum.
    Summed(u32),
}

impl Entry {
    /// Of a block with that content.
    pub fn of(content: &[u8]) -> Entry {
        Entry::decode(match crc32c(content) {
            low @ (0 | 1) => low | 1 << 31,
            sum => sum,
        })
    }

    /// Of the same block when that is given up: what the entry was about does not fit any more.
    pub fn spoilt(self) -> Entry {
        match self {
            Entry::Empty | Entry::Unsummed => Entry::Summed(2),
            Entry::Summed(sum) => Entry::Summed(sum.checked_add(1).unwrap_or(2)),
        }
    }

    /// The stored form.
    pub const fn encode(self) -> u32 {
        match self {
            Entry::Empty => 0,
            Entry::Unsummed => 1,
            Entry::Summed(sum) => sum,
        }
    }

    /// The entry.
    pub const fn decode(stored: u32) -> Entry {
        match stored {
            0 => Entry::Empty,
            1 => Entry::Unsummed,
            sum => Entry::Summed(sum),
        }
    }

    /// Whether `content` may be what the entry is about.
    pub fn fits(self, content: &[u8]) -> bool {
        match self {
            Entry::Empty | Entry::Unsummed => true,
            Entry::Summed(_) => Entry::of(content) == self,
        }
    }
}

/// Entries of 127 blocks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MapSector {
    /// [`Entry::encode`].
    pub entries: [U32; ENTRIES as usize],
    /// CRC-32C of the entries, the sector's number (u64) and the volume's identity.
    pub checksum: U32,
}

impl MapSector {
    /// The checksum of the sector with a number.
    pub fn sum(&self, number: u64, volume: &Uuid) -> u32 {
        let mut bytes = [0; ENTRIES as usize * 4 + 24];
        let (entries, rest) = bytes.split_at_mut(ENTRIES as usize * 4);
        entries.copy_from_slice(self.entries.as_bytes());
        rest[..8].copy_from_slice(&number.to_le_bytes());
        rest[8..].copy_from_slice(volume.as_bytes());
        crc32c(&bytes)
    }

    /// Whether it is what was written, or nothing was.
    pub fn is_whole(&self, number: u64, volume: &Uuid) -> bool {
        self.checksum.get() == self.sum(number, volume)
            || self.as_bytes().iter().all(|byte| *byte == 0)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StoredSuperblock {
    magic: [u8; 8],
    format: U32,
    checksum: U32,
    generation: U64,
    volume: [u8; 16],
    journal: [u8; 16],
    name: [u8; NAME],
    blocks: U64,
    journal_offset: U64,
    journal_size: U64,
    map_offset: U64,
    data_offset: U64,
    version: U64,
    created: U64,
    sector: U32,
    reserved: [u8; 332],
}

const _: () = {
    assert!(size_of::<MapSector>() == MAP_SECTOR as usize);
    assert!(size_of::<StoredSuperblock>() == 512);
};

/// What an in-place store says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superblock {
    /// Higher in each one that is written.
    pub generation: u64,
    /// The store's identity.
    pub volume: Uuid,
    /// Its journal's.
    pub journal: Uuid,
    /// Its name, for messages.
    pub name: String,
    /// Its blocks.
    pub blocks: u64,
    /// Where the journal begins, and its bytes: 0 when it is on another device.
    pub journal_at: (u64, u64),
    /// Where the map begins.
    pub map_offset: u64,
    /// Where block 0 is.
    pub data_offset: u64,
    /// The version when the journal was last empty.
    pub version: u64,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// The sector in bytes that it was made with.
    pub sector: u32,
}

impl Superblock {
    /// Bytes of the map.
    pub fn map_size(blocks: u64) -> u64 {
        (blocks.div_ceil(ENTRIES) * MAP_SECTOR).next_multiple_of(BLOCK_SIZE as u64)
    }

    /// First byte of a block.
    pub fn place(&self, block: u64) -> u64 {
        self.data_offset + block * BLOCK_SIZE as u64
    }

    fn check(&self, device: &DeviceRef) -> Result<(), InPlaceError> {
        let geometry = device.geometry();
        let invalid = |why: String| {
            Err(InPlaceError::Damaged(format!("the superblock of {}: {why}", device.name())))
        };
        if self.sector < geometry.sector {
            let (have, made) = (geometry.sector, self.sector);
            return invalid(format!("made for sectors of {made} bytes, the device has {have}"));
        }
        let map_end = self.map_offset.checked_add(Superblock::map_size(self.blocks.min(1 << 50)));
        let end = self.blocks.checked_mul(BLOCK_SIZE as u64);
        let end = end.and_then(|bytes| self.data_offset.checked_add(bytes));
        let journal_end = self.journal_at.0.checked_add(self.journal_at.1);
        let in_order = self.blocks > 0
            && self.journal_at.0 >= START
            && journal_end.is_some_and(|end| end <= self.map_offset)
            && map_end.is_some_and(|end| end <= self.data_offset);
        let aligned = [self.journal_at.0, self.journal_at.1, self.map_offset, self.data_offset]
            .iter()
            .all(|at| at.is_multiple_of(BLOCK_SIZE as u64));
        match end {
            _ if !in_order || !aligned => invalid("its parts overlap".to_owned()),
            Some(end) if end <= geometry.size => Ok(()),
            _ => invalid(format!("{} blocks do not fit into {}", self.blocks, geometry.size)),
        }
    }

    /// The one that counts.
    pub(super) async fn read(device: &DeviceRef) -> Result<Superblock, InPlaceError> {
        let found = match device.geometry().size > START {
            true => copies::read(device).await?,
            false => None,
        };
        found.ok_or_else(|| InPlaceError::NoStore { device: device.name() })
    }
}

impl Copied for Superblock {
    type Error = InPlaceError;

    const PURPOSE: Purpose = Purpose::Label;

    fn generation(&self) -> u64 {
        self.generation
    }

    fn sector(&self) -> u32 {
        self.sector
    }

    fn encode(&self) -> [u8; copies::LEN] {
        let mut name = [0; NAME];
        let len = self.name.len().min(NAME);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        let mut stored = StoredSuperblock {
            magic: MAGIC,
            format: FORMAT_VERSION.into(),
            generation: self.generation.into(),
            volume: self.volume.into_bytes(),
            journal: self.journal.into_bytes(),
            name,
            blocks: self.blocks.into(),
            journal_offset: self.journal_at.0.into(),
            journal_size: self.journal_at.1.into(),
            map_offset: self.map_offset.into(),
            data_offset: self.data_offset.into(),
            version: self.version.into(),
            created: self.created.into(),
            sector: self.sector.into(),
            ..StoredSuperblock::new_zeroed()
        };
        stored.checksum = crc32c(stored.as_bytes()).into();
        zerocopy::transmute!(stored)
    }

    fn decode(bytes: &[u8], device: &DeviceRef) -> Result<Option<Superblock>, InPlaceError> {
        let Ok((mut stored, _)) = StoredSuperblock::read_from_prefix(bytes) else {
            return Ok(None);
        };
        if stored.magic != MAGIC {
            return Ok(None);
        }
        let checksum = std::mem::take(&mut stored.checksum);
        if checksum.get() != crc32c(stored.as_bytes()) {
            return Ok(None);
        }
        if stored.format.get() > FORMAT_VERSION {
            let (device, format) = (device.name(), stored.format.get());
            return Err(InPlaceError::Newer { device, format });
        }
        let len = stored.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let superblock = Superblock {
            generation: stored.generation.get(),
            volume: Uuid::from_bytes(stored.volume),
            journal: Uuid::from_bytes(stored.journal),
            name: String::from_utf8_lossy(&stored.name[..len]).into_owned(),
            blocks: stored.blocks.get(),
            journal_at: (stored.journal_offset.get(), stored.journal_size.get()),
            map_offset: stored.map_offset.get(),
            data_offset: stored.data_offset.get(),
            version: stored.version.get(),
            created: stored.created.get(),
            sector: stored.sector.get(),
        };
        superblock.check(device)?;
        Ok(Some(superblock))
    }
}
