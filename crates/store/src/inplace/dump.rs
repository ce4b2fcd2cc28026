//! Dump of an in-place store's device for a person to read: superblocks, journal, map.
//!
//! It takes no lock, changes nothing, and reports damage instead of stopping at it. A dump of an
//! open store may be inconsistent.

use std::sync::Arc;

use serde::Serialize;
use zerocopy::FromBytes;

use super::InPlaceError;
use super::format::{ENTRIES, Entry, MAP_SECTOR, MapSector, Superblock};
use super::map::SECTORS;
use crate::block::{BLOCK_SIZE, Lba};
use crate::copies;
pub use crate::copies::CopyDump;
use crate::device::{DeviceRef, Partition, Purpose};
use crate::journal::dump::{self as journal, JournalDump};

/// Bytes of the map that are read at a time, in whole sectors.
const RUN: u64 = 1 << 20;

/// Everything on an in-place store's device except the blocks.
#[derive(Clone, Debug, Serialize)]
pub struct InPlaceDump {
    /// The two copies of the superblock.
    pub superblocks: Vec<CopyDump<Superblock>>,
    /// The journal, if it is inside of the volume.
    pub journal: Option<JournalDump<Lba>>,
    /// The map, if a superblock says where it is.
    pub map: Option<MapDump>,
}

/// Summary of the map.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MapDump {
    /// Blocks with a checksum.
    pub summed: u64,
    /// Blocks that hold something and have no checksum.
    pub unsummed: u64,
    /// Empty blocks.
    pub empty: u64,
    /// Damaged sectors of the map; their blocks are not counted.
    pub damaged: Vec<u64>,
    /// Every block that is not empty, on request, with its checksum if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<(u64, Option<u32>)>>,
}

/// Reads a device; with `entries`, every entry of the map too.
///
/// # Errors
/// The device's. Damage is reported in the result.
pub async fn dump(device: &DeviceRef, entries: bool) -> Result<InPlaceDump, InPlaceError> {
    let (superblocks, newest) = copies::dump::<Superblock>(device).await;
    let Some(superblock) = newest else {
        return Ok(InPlaceDump { superblocks, journal: None, map: None });
    };
    let (offset, size) = superblock.journal_at;
    let journal = match size {
        0 => None,
        size => {
            let ring: DeviceRef = Arc::new(Partition::new(device.clone(), offset, size)?);
            Some(journal::dump(&ring).await?)
        }
    };
    let map = Some(map(device, &superblock, entries).await?);
    Ok(InPlaceDump { superblocks, journal, map })
}

async fn map(
    device: &DeviceRef,
    superblock: &Superblock,
    entries: bool,
) -> Result<MapDump, InPlaceError> {
    let mut found = MapDump { content: entries.then(Vec::new), ..MapDump::default() };
    let pages = Superblock::map_size(superblock.blocks) / BLOCK_SIZE as u64;
    let first_pages = superblock.first_pages();
    let mut page = 0;
    while page < pages {
        // A run stays within one part of the map.
        let end = if page < first_pages { pages.min(first_pages) } else { pages };
        let count = (RUN / BLOCK_SIZE as u64).min(end - page);
        let (place, len) = (superblock.map_place(page), count as usize * BLOCK_SIZE);
        let bytes = device.read(place, len, Purpose::Map).await?;
        for (nth, bytes) in bytes.chunks_exact(MAP_SECTOR as usize).enumerate() {
            let number = page * SECTORS + nth as u64;
            let sector = MapSector::read_from_bytes(bytes);
            let is_whole =
                |it: &MapSector| it.is_whole(number, &superblock.volume, superblock.map_format);
            match sector.ok().filter(is_whole) {
                Some(sector) => found.take(number * ENTRIES, superblock.blocks, &sector),
                None => found.damaged.push(number),
            }
        }
        page += count;
    }
    Ok(found)
}

impl MapDump {
    /// Adds the sector about the blocks from `first` on, of `blocks` in all.
    fn take(&mut self, first: u64, blocks: u64, sector: &MapSector) {
        for (lba, entry) in (first..blocks).zip(&sector.entries) {
            let sum = match Entry::decode(entry.get()) {
                Entry::Empty => {
                    self.empty += 1;
                    continue;
                }
                Entry::Unsummed => {
                    self.unsummed += 1;
                    None
                }
                Entry::Summed(sum) => {
                    self.summed += 1;
                    Some(sum)
                }
            };
            self.content.iter_mut().for_each(|content| content.push((lba, sum)));
        }
    }
}
