//! The layout of an in-place store's device, byte for byte.
//!
//! ```text
//! 0        superblock          (512 bytes)
//! 4 KiB    superblock, a copy
//! 60 KiB   superblock, a backup
//! 64 KiB   journal, unless it is on a device of its own
//!          map: for each block, what is known of it
//!          blocks, 4 KiB each
//!          second part of the map, in a volume that has grown beyond what the first has room for
//!          superblock, a backup, in the device's last 4 KiB, where no block is
//! ```
//!
//! Of the first two superblocks the valid one with the higher generation counts. The backups are
//! written with each of them, and only a repair reads them: another user of the device may have
//! overwritten the superblocks on purpose. Older programs write no backups.
//!
//! The *map* is an array of sectors ([`MapSector`]), each with the entries of 127 blocks. An entry
//! is 0 for an empty block, which reads as zeros whatever the device has there; 1 for a block with
//! content that has no checksum; else the CRC-32C of the content (0 and 1 with the highest bit
//! set).
//!
//! Creation writes every sector of the map with its checksum, so a sector of zeros is damaged: the
//! device has lost it. In volumes of format 1 creation wrote zeros, and a sector of zeros means
//! that all its blocks are empty. A volume keeps the format that it was made with, unless it grows
//! beyond its map.
//!
//! A volume grows at its end: no block moves. The map between journal and blocks has room for whole
//! pages of 4 KiB (1016 blocks each). When a volume has more blocks than that, the pages about the
//! others are the *second part* of the map, behind the last block. Sectors keep their numbers: the
//! first sector of the second part follows the last one of the first part. A volume with a second
//! part has format 3, which older programs refuse; its superblock says in a field of its own
//! whether sectors of zeros count as empty. Each growth copies the second part behind its old place
//! and makes the copy durable before a superblock refers to it, so that a crash leaves the old
//! volume or the grown one.
//!
//! Map and blocks are written after the journal holds their changes durably, and the journal keeps
//! these until map and blocks are durable: a crash may tear them at any sector boundary. Little
//! endian.

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

/// Version of every structure that creation writes.
pub const FORMAT_VERSION: u32 = 2;
/// The version of a volume that has a second part of the map; readers refuse a higher one.
pub const SECOND_PART: u32 = 3;
/// The last version in which a map sector of zeros means that its blocks are empty.
pub const ZEROS_ARE_EMPTY: u32 = 1;
/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"THALWEGI";
/// First byte behind the superblocks.
pub const START: u64 = 64 << 10;
/// Bytes of a name.
pub const NAME: usize = 64;
/// Blocks per sector of the map.
pub const ENTRIES: u64 = 127;
/// Bytes of a sector of the map.
pub const MAP_SECTOR: u64 = 512;

/// The journal's note on a run of blocks: they are empty.
pub const NOTE_CLEARED: u8 = 1;
/// The journal's note on a run of blocks: they were written in place directly.
pub const NOTE_DIRECT: u8 = 2;

/// The map's entry about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Empty: the block reads as zeros.
    Empty,
    /// The block has content, without a checksum.
    Unsummed,
    /// The block has content with this checksum.
    Summed(u32),
}

impl Entry {
    /// The entry of a block with this content.
    pub fn of(content: &[u8]) -> Entry {
        Entry::decode(match crc32c(content) {
            low @ (0 | 1) => low | 1 << 31,
            sum => sum,
        })
    }

    /// The entry of the same block once it is given up: no content that it may have matches.
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

    /// Decodes the stored form.
    pub const fn decode(stored: u32) -> Entry {
        match stored {
            0 => Entry::Empty,
            1 => Entry::Unsummed,
            sum => Entry::Summed(sum),
        }
    }

    /// Whether `content` matches the entry.
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
    /// The checksum of this sector under a number.
    pub fn sum(&self, number: u64, volume: &Uuid) -> u32 {
        let mut bytes = [0; ENTRIES as usize * 4 + 24];
        let (entries, rest) = bytes.split_at_mut(ENTRIES as usize * 4);
        entries.copy_from_slice(self.entries.as_bytes());
        rest[..8].copy_from_slice(&number.to_le_bytes());
        rest[8..].copy_from_slice(volume.as_bytes());
        crc32c(&bytes)
    }

    /// A sector whose blocks are all empty.
    pub fn empty(number: u64, volume: &Uuid) -> MapSector {
        let mut sector = MapSector::new_zeroed();
        sector.checksum = sector.sum(number, volume).into();
        sector
    }

    /// Whether the sector is valid under a number, in a map of this format
    /// ([`Superblock::map_format`]).
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
    damaged: U32,
    journal_epoch: U64,
    journal_first: U64,
    journal_ring: U64,
    second_part: U64,
    map_format: U32,
    reserved: [u8; 292],
}

const _: () = {
    assert!(size_of::<MapSector>() == MAP_SECTOR as usize);
    assert!(size_of::<StoredSuperblock>() == 512);
};

/// The superblock of an in-place store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superblock {
    /// The version of the format: the one that the store was made with, or [`SECOND_PART`].
    pub format: u32,
    /// Higher in each one that is written.
    pub generation: u64,
    /// The store's identity.
    pub volume: Uuid,
    /// Its journal's.
    pub journal: Uuid,
    /// Its name, used in messages.
    pub name: String,
    /// Number of blocks.
    pub blocks: u64,
    /// Where the journal begins, and its bytes: 0 when it is on another device.
    pub journal_at: (u64, u64),
    /// Where the map begins.
    pub map_offset: u64,
    /// Where the second part of the map begins; 0 when there is none.
    pub second_part: u64,
    /// The version of the format that the map's sectors have: the one that the store was made with.
    pub map_format: u32,
    /// Where block 0 is.
    pub data_offset: u64,
    /// The version when the journal was last empty.
    pub version: u64,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// The sector in bytes that it was made with.
    pub sector: u32,
    /// Helps to rebuild the journal if its own superblocks are lost. Older programs leave it out.
    pub journal_note: Note,
    /// Whether blocks of which no copy is right were found, and no scrub has found none since.
    pub damaged: bool,
}

impl Superblock {
    /// Bytes of the map of so many blocks.
    pub fn map_size(blocks: u64) -> u64 {
        (blocks.div_ceil(ENTRIES) * MAP_SECTOR).next_multiple_of(BLOCK_SIZE as u64)
    }

    /// First byte of a block.
    pub fn place(&self, block: u64) -> u64 {
        self.data_offset + block * BLOCK_SIZE as u64
    }

    /// Pages in the first part of the map.
    pub(super) fn first_pages(&self) -> u64 {
        (self.data_offset - self.map_offset) / BLOCK_SIZE as u64
    }

    /// Bytes of the second part of the map of so many blocks; 0 when the first part has room for
    /// all.
    pub(super) fn second_size(&self, blocks: u64) -> u64 {
        Superblock::map_size(blocks).saturating_sub(self.data_offset - self.map_offset)
    }

    /// First byte of a page of the map.
    pub fn map_place(&self, page: u64) -> u64 {
        match page.checked_sub(self.first_pages()) {
            Some(nth) if self.second_part > 0 => self.second_part + nth * BLOCK_SIZE as u64,
            _ => self.map_offset + page * BLOCK_SIZE as u64,
        }
    }

    /// The first byte behind the volume, without the last backup.
    pub(super) fn end(&self) -> u64 {
        let blocks = self.place(self.blocks);
        match self.second_part {
            0 => blocks,
            at => at + self.second_size(self.blocks),
        }
    }

    /// Whether the map has room for all blocks and overlaps nothing. The caller has checked that
    /// blocks and first part are in order and on the device.
    fn has_map(&self, size: u64) -> bool {
        let second = self.second_size(self.blocks);
        match self.second_part {
            0 => second == 0,
            at => {
                self.format >= SECOND_PART
                    && second > 0
                    && at.is_multiple_of(BLOCK_SIZE as u64)
                    && at >= self.place(self.blocks)
                    && at.checked_add(second).is_some_and(|end| end <= size)
            }
        }
    }

    fn check(&self, device: &DeviceRef) -> Result<(), InPlaceError> {
        let geometry = device.geometry();
        let invalid = |why: String| {
            Err(InPlaceError::Damaged(format!("the superblock of {}: {why}", device.name())))
        };
        if self.sector < geometry.sector {
            let (have, made) = (geometry.sector, self.sector);
            return invalid(format!(
                "it was made for sectors of {made} bytes, but the device has {have}"
            ));
        }
        let end = self.blocks.checked_mul(BLOCK_SIZE as u64);
        let end = end.and_then(|bytes| self.data_offset.checked_add(bytes));
        let journal_end = self.journal_at.0.checked_add(self.journal_at.1);
        let in_order = self.blocks > 0
            && self.journal_at.0 >= START
            && journal_end.is_some_and(|end| end <= self.map_offset)
            && self.map_offset <= self.data_offset;
        let aligned = [self.journal_at.0, self.journal_at.1, self.map_offset, self.data_offset]
            .iter()
            .all(|at| at.is_multiple_of(BLOCK_SIZE as u64));
        match end {
            _ if !in_order || !aligned => invalid("its parts overlap".to_owned()),
            Some(end) if end <= geometry.size => match self.has_map(geometry.size) {
                true if (ZEROS_ARE_EMPTY..=FORMAT_VERSION).contains(&self.map_format) => Ok(()),
                true => invalid(format!("its map has unknown format {}", self.map_format)),
                false => invalid("its map does not fit its blocks".to_owned()),
            },
            _ => invalid(format!("{} blocks do not fit into {}", self.blocks, geometry.size)),
        }
    }

    /// Reads the current superblock.
    ///
    /// # Errors
    /// [`InPlaceError::NoStore`], [`InPlaceError::NoSuperblock`]; errors of a valid superblock's
    /// content; the device's.
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

    /// Reads the newest backup.
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
        let end = self.end();
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
            damaged: u32::from(self.damaged).into(),
            journal_epoch: self.journal_note.epoch.into(),
            journal_first: self.journal_note.first.into(),
            journal_ring: self.journal_note.size.into(),
            second_part: self.second_part.into(),
            map_format: if self.format < SECOND_PART { 0 } else { self.map_format }.into(),
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
        if stored.format.get() > SECOND_PART {
            let (device, format) = (device.name(), stored.format.get());
            return Err(InPlaceError::Newer { device, format });
        }
        let format = stored.format.get();
        let (second_part, map_format) = match format < SECOND_PART {
            true => (0, format),
            false => (stored.second_part.get(), stored.map_format.get()),
        };
        let len = stored.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let superblock = Superblock {
            format,
            generation: stored.generation.get(),
            volume: Uuid::from_bytes(stored.volume),
            journal: Uuid::from_bytes(stored.journal),
            name: String::from_utf8_lossy(&stored.name[..len]).into_owned(),
            blocks: stored.blocks.get(),
            journal_at: (stored.journal_offset.get(), stored.journal_size.get()),
            map_offset: stored.map_offset.get(),
            second_part,
            map_format,
            data_offset: stored.data_offset.get(),
            version: stored.version.get(),
            created: stored.created.get(),
            sector: stored.sector.get(),
            journal_note: Note {
                epoch: stored.journal_epoch.get(),
                first: stored.journal_first.get(),
                size: stored.journal_ring.get(),
            },
            damaged: stored.damaged.get() != 0,
        };
        superblock.check(device)?;
        Ok(Some(superblock))
    }
}
