//! What the device of an in-place store holds, byte for byte.
//!
//! ```text
//! 0        superblock          (512 bytes)
//! 4 KiB    superblock, a copy
//! 60 KiB   superblock, a backup
//! 64 KiB   journal, unless it is on a device of its own
//!          map: for each block, what is known of it
//!          blocks, 4 KiB each
//!          superblock, a backup, in the device's last 4 KiB, where no block is
//! ```
//!
//! Of the first two superblocks the whole one with the higher generation counts. The backups are written
//! with each of them, and read by a repair alone: what else is on the device by then may have overwritten
//! the others on purpose. Older programs write no backups.
//!
//! The *map* is an array of sectors ([`MapSector`]), each with the entries of 127 blocks. An entry is
//! 0 for a block that holds nothing and reads as zeros, whatever the device has there; 1 for one that
//! holds something nobody has a checksum of; else the CRC-32C of the content (0 and 1 with the highest
//! bit set).
//!
//! Creation writes every sector of the map with its checksum, so a sector of zeros is damaged: the
//! device has lost it. In volumes of format 1 creation wrote zeros, and a sector of zeros says that all
//! its blocks hold nothing. A volume keeps the format that it was made with.
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
use crate::device::{DeviceError, DeviceRef, Purpose};
use crate::journal::Note;

/// Version of every structure here; readers refuse a higher one.
pub const FORMAT_VERSION: u32 = 2;
/// The last version in which a sector of zeros in the map says that its blocks hold nothing.
pub const ZEROS_ARE_EMPTY: u32 = 1;
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

    /// The sector with a number in which no block holds anything.
    pub fn empty(number: u64, volume: &Uuid) -> MapSector {
        let mut sector = MapSector::new_zeroed();
        sector.checksum = sector.sum(number, volume).into();
        sector
    }

    /// Whether the sector with a number is what was written there in a volume of that format.
    pub fn is_whole(&self, number: u64, volume: &Uuid, format: u32) -> bool {
        let is_unwritten = || self.as_bytes().iter().all(|byte| *byte == 0);
        self.checksum.get() == self.sum(number, volume)
            || (format <= ZEROS_ARE_EMPTY && is_unwritten())
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
    spare: U32,
    journal_epoch: U64,
    journal_first: U64,
    journal_ring: U64,
    reserved: [u8; 304],
}

const _: () = {
    assert!(size_of::<MapSector>() == MAP_SECTOR as usize);
    assert!(size_of::<StoredSuperblock>() == 512);
};

/// What an in-place store says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superblock {
    /// The version of the format that the store was made with.
    pub format: u32,
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
    /// What helps to find the journal's transactions without the journal's own superblocks. Older
    /// programs leave it out.
    pub journal_note: Note,
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
    ///
    /// # Errors
    /// [`InPlaceError::NoStore`], [`InPlaceError::NoSuperblock`]; what a whole one says; the device's.
    pub(super) async fn read(device: &DeviceRef) -> Result<Superblock, InPlaceError> {
        if device.geometry().size <= START {
            return Err(InPlaceError::NoStore { device: device.name() });
        }
        if let Some(found) = copies::read(device).await? {
            return Ok(found);
        }
        let device_name = device.name();
        Err(match Superblock::read_backup(device).await {
            Some(_) => InPlaceError::NoSuperblock { device: device_name },
            None => InPlaceError::NoStore { device: device_name },
        })
    }

    /// The newest backup.
    pub(super) async fn read_backup(device: &DeviceRef) -> Option<Superblock> {
        let mut newest: Option<Superblock> = None;
        for at in backups(device) {
            let found: Option<Superblock> = copies::read_backup(device, at).await;
            newest = newest.into_iter().chain(found).max_by_key(|it| it.generation);
        }
        newest
    }

    /// Writes every backup that there is room for.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn write_backups(&self, device: &DeviceRef) -> Result<(), DeviceError> {
        let end = self.place(self.blocks);
        for at in backups(device).into_iter().filter(|at| *at < START || *at >= end) {
            copies::write_at(self, device, at).await?;
        }
        Ok(())
    }
}

/// Where backups of the superblock are.
pub(super) fn backups(device: &DeviceRef) -> [u64; 2] {
    let last = (device.geometry().size / COPY).saturating_sub(1) * COPY;
    [START - COPY, last]
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
            format: self.format.into(),
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
            journal_epoch: self.journal_note.epoch.into(),
            journal_first: self.journal_note.first.into(),
            journal_ring: self.journal_note.size.into(),
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
            format: stored.format.get(),
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
            journal_note: Note {
                epoch: stored.journal_epoch.get(),
                first: stored.journal_first.get(),
                size: stored.journal_ring.get(),
            },
        };
        superblock.check(device)?;
        Ok(Some(superblock))
    }
}
