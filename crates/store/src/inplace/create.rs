//! Making an in-place store.

use super::format::{START, Superblock};
use super::{InPlace, InPlaceError, Parts};
use crate::block::{BLOCK_SIZE, Lba};
use crate::copies;
use crate::device::{AlignedBuf, DeviceRef, Geometry, Partition, Purpose};
use crate::env::Env;
use crate::journal::{self, Journal};

/// Bytes of zeros that are written at a time.
const ZEROS: u64 = 1 << 20;
/// The largest journal inside of a volume unless somebody says otherwise: ext3's 128 MiB.
const JOURNAL: u64 = 128 << 20;

/// A store to be made.
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
    /// Makes an empty store. What was on the devices is gone.
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
        let superblock = Superblock {
            generation: 2,
            volume: env.uuid(),
            journal: env.uuid(),
            name: new.name.clone(),
            blocks,
            journal_at: (START, journal_size),
            map_offset,
            data_offset: map_offset + Superblock::map_size(blocks),
            version: 0,
            created: env.wall_clock(),
            sector: geometry.sector,
        };
        // First of all the old superblocks go: a store that is half made is none.
        zero(&parts.data, 0, START).await?;
        parts.data.flush(Purpose::Label).await?;
        zero(&parts.data, map_offset, superblock.data_offset - map_offset).await?;
        let journal = journal_device(parts, &superblock)?;
        Journal::<Lba>::create(&journal, superblock.journal, superblock.volume).await?;
        copies::write_all(&superblock, &parts.data).await?;
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
            "a journal of {size} bytes; it has at least {}",
            journal::MIN_SIZE
        ))),
    }
}

/// As many blocks as fit beside journal and map, or as were asked for.
fn blocks(geometry: Geometry, journal_size: u64, new: &NewInPlace) -> Result<u64, InPlaceError> {
    let room = geometry.size.saturating_sub(START + journal_size);
    let block = BLOCK_SIZE as u64;
    // A map for a few blocks more than fit.
    let fit = room.saturating_sub(Superblock::map_size(room / block)) / block;
    let wanted = new.size.map_or(fit, |size| size.div_ceil(block));
    match (1..=fit).contains(&wanted) {
        true => Ok(wanted),
        false => Err(InPlaceError::Invalid(format!(
            "{wanted} blocks of {block} bytes; there is room for {fit} on {} bytes",
            geometry.size
        ))),
    }
}

async fn zero(device: &DeviceRef, offset: u64, len: u64) -> Result<(), InPlaceError> {
    let zeros = AlignedBuf::zeroed(ZEROS.min(len) as usize).freeze();
    let mut at = 0;
    while at < len {
        let take = (len - at).min(ZEROS);
        device.write(offset + at, vec![zeros.slice(..take as usize)], Purpose::Label).await?;
        at += take;
    }
    Ok(())
}
