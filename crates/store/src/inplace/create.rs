//! Creation of an in-place store.

use thalweg_env::Env;
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::format::{COPY, FORMAT_VERSION, MAP_SECTOR, MapSector, START, Superblock, backups};
use super::{InPlace, InPlaceError, Parts};
use crate::block::{BLOCK_SIZE, Lba};
use crate::copies;
use crate::device::{AlignedBuf, DeviceRef, Geometry, Partition, Purpose};
use crate::journal::{self, Journal, Note};

/// Bytes of one write.
pub(super) const RUN: u64 = 1 << 20;
/// The largest journal inside of a volume by default: 128 MiB as in ext3.
const JOURNAL: u64 = 128 << 20;

/// A store to be created.
#[derive(Clone, Debug, Default)]
pub struct NewInPlace {
    /// Its name, at most 64 bytes: for messages.
    pub name: String,
    /// Bytes of the journal inside of the volume; by default a sixteenth of the device, at most
    /// 128 MiB. Ignored when the journal has a device of its own.
    pub journal_size: Option<u64>,
    /// Its size in bytes; by default as many as fit.
    pub size: Option<u64>,
}

impl InPlace {
    /// Makes an empty store. All content of the devices is lost.
    ///
    /// # Errors
    /// [`InPlaceError::Invalid`] when it does not fit; the devices'.
    pub async fn create(env: &Env, parts: &Parts, new: &NewInPlace) -> Result<(), InPlaceError> {
        let geometry = parts.data.geometry();
        let journal_size = match parts.journal {
            Some(_) => 0,
            None => journal_size(geometry, new)?,
        };
        let blocks = blocks(geometry, journal_size, new)?;
        let map_offset = START + journal_size;
        let mut superblock = Superblock {
            format: FORMAT_VERSION,
            generation: 2,
            volume: env.uuid(),
            journal: env.uuid(),
            name: new.name.clone(),
            blocks,
            journal_at: (START, journal_size),
            map_offset,
            second_part: 0,
            map_format: FORMAT_VERSION,
            data_offset: map_offset + Superblock::map_size(blocks),
            version: 0,
            created: env.wall_clock(),
            sector: geometry.sector,
            journal_note: Note::default(),
            damaged: false,
        };
        // The old superblocks go first: a half-made store must not open.
        zero(&parts.data, 0, START).await?;
        for at in backups(&parts.data).into_iter().filter(|at| *at >= START) {
            zero(&parts.data, at, COPY).await?;
        }
        parts.data.flush(Purpose::Label).await?;
        write_empty_map(&parts.data, &superblock).await?;
        let journal = journal_device(parts, &superblock)?;
        let (id, owner) = (superblock.journal, superblock.volume);
        superblock.journal_note = Journal::<Lba>::create(&journal, id, owner).await?;
        copies::write_all(&superblock, &parts.data).await?;
        superblock.write_backups(&parts.data).await?;
        parts.data.flush(Purpose::Label).await?;
        Ok(())
    }
}

/// Where the journal of a store is.
pub(super) fn journal_device(
    parts: &Parts,
    superblock: &Superblock,
) -> Result<DeviceRef, InPlaceError> {
    let (offset, size) = superblock.journal_at;
    match (&parts.journal, size) {
        (Some(device), 0) => Ok(device.clone()),
        (None, 0) => Err(InPlaceError::JournalElsewhere { id: superblock.journal }),
        (Some(_), _) => Err(InPlaceError::JournalInside),
        (None, size) => Ok(std::sync::Arc::new(Partition::new(parts.data.clone(), offset, size)?)),
    }
}

fn journal_size(geometry: Geometry, new: &NewInPlace) -> Result<u64, InPlaceError> {
    let default = (geometry.size / 16).clamp(4 << 20, JOURNAL).min(geometry.size / 4);
    let size = new.journal_size.unwrap_or(default) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    match size >= journal::MIN_SIZE {
        true => Ok(size),
        false => Err(InPlaceError::Invalid(format!(
            "a journal of {size} bytes is too small: the minimum is {}",
            journal::MIN_SIZE
        ))),
    }
}

/// Number of blocks: the requested size, or the maximum beside journal and map.
fn blocks(geometry: Geometry, journal_size: u64, new: &NewInPlace) -> Result<u64, InPlaceError> {
    let backup = COPY;
    let room = geometry.size.saturating_sub(START + journal_size + backup);
    let block = BLOCK_SIZE as u64;
    // The map has room for a few blocks more than fit.
    let fit = room.saturating_sub(Superblock::map_size(room / block)) / block;
    let wanted = new.size.map_or(fit, |size| size.div_ceil(block));
    match (1..=fit).contains(&wanted) {
        true => Ok(wanted),
        false => Err(InPlaceError::Invalid(format!(
            "{wanted} blocks of {block} bytes do not fit: there is room for {fit} on {} bytes",
            geometry.size
        ))),
    }
}

/// Overwrites a part of a device with zeros.
async fn zero(device: &DeviceRef, offset: u64, len: u64) -> Result<(), InPlaceError> {
    let zeros = AlignedBuf::zeroed(RUN.min(len) as usize).freeze();
    for at in (0..len).step_by(RUN as usize) {
        let take = (len - at).min(RUN) as usize;
        device.write(offset + at, vec![zeros.slice(..take)], Purpose::Label).await?;
    }
    Ok(())
}

/// Writes the map of an empty store, up to the last sector before the blocks.
async fn write_empty_map(device: &DeviceRef, superblock: &Superblock) -> Result<(), InPlaceError> {
    let len = superblock.data_offset - superblock.map_offset;
    for at in (0..len).step_by(RUN as usize) {
        let take = (len - at).min(RUN) as usize;
        let sectors = empty_sectors(at / MAP_SECTOR, take, &superblock.volume).freeze();
        device.write(superblock.map_offset + at, vec![sectors], Purpose::Map).await?;
    }
    Ok(())
}

/// `len` bytes of empty map sectors, from number `first` on.
pub(super) fn empty_sectors(first: u64, len: usize, volume: &Uuid) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(len);
    for (number, into) in (first..).zip(bytes.chunks_exact_mut(MAP_SECTOR as usize)) {
        into.copy_from_slice(MapSector::empty(number, volume).as_bytes());
    }
    bytes
}
