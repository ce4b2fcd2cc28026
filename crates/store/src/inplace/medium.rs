//! The data device with the structures that are on it. Recovery has it before the journal is open for appends.

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::RwLock;

use super::format::{MAP_SECTOR, Superblock};
use super::map::{self, Map};
use super::options::Options;
use super::state::StoreState;
use super::turns::{Kind, Turn, Turns};
use crate::block::{BLOCK_SIZE, Lba, StoreError};
use crate::damage::DamageNote;
use crate::device::{DeviceError, DeviceRef, Purpose};
use crate::lock::BriefMutex;

/// Maximum of writes in flight.
pub(super) const WRITES: usize = 32;

pub(super) struct Medium {
    pub(super) data: DeviceRef,
    /// Schedules reads and writes of the data device where it is rotational.
    pub(super) turns: Turns,
    /// The current superblock. Generation, version and journal note change without a growth, and
    /// may be older here.
    pub(super) superblock: RwLock<Superblock>,
    pub(super) state: BriefMutex<StoreState>,
    /// Whether there is damage, also from earlier openings.
    pub(super) damage: DamageNote,
}

impl Medium {
    pub(super) fn superblock(&self) -> Superblock {
        self.superblock.read().clone()
    }

    pub(super) fn blocks(&self) -> u64 {
        self.superblock.read().blocks
    }

    /// First byte of a block.
    pub(super) fn place(&self, block: u64) -> u64 {
        self.superblock.read().place(block)
    }

    /// First byte of a page of the map; a growth may change it.
    pub(super) fn map_place(&self, page: u64) -> u64 {
        self.superblock.read().map_place(page)
    }

    pub(super) fn check(&self, lba: Lba, count: u64) -> Result<std::ops::Range<u64>, StoreError> {
        let blocks = self.blocks();
        match lba.0.checked_add(count) {
            Some(end) if end <= blocks => Ok(lba.0..end),
            _ => Err(StoreError::Invalid(format!(
                "{count} blocks from {} on leave a volume of {blocks} blocks",
                lba.0
            ))),
        }
    }

    /// Maximum of bytes between two writes that are merged into one.
    pub(super) fn gap(&self) -> u64 {
        let suits = if self.is_rotational() { Options::ROTATIONAL_GAP } else { 0 };
        self.state.lock().options.gap.unwrap_or(suits).into()
    }

    /// Whether the data device is, or is taken for, a rotational disk.
    pub(super) fn is_rotational(&self) -> bool {
        let said = self.state.lock().options.rotational;
        said.unwrap_or_else(|| self.data.is_rotational())
    }

    /// Waits until the scheduler of a rotational disk admits a request; other devices need no
    /// scheduling.
    pub(super) async fn turn(&self, kind: Kind) -> Turn {
        match self.is_rotational() {
            true => self.turns.take(kind).await,
            false => Turn::default(),
        }
    }

    /// Writes dirty sectors of the map and returns the journal transactions that they hold. The
    /// caller holds `writing_back`, or is alone: a growth moves a part of the map.
    pub(super) async fn write_sectors(&self) -> Result<Vec<u64>, DeviceError> {
        let gap = self.gap();
        let superblock = self.superblock();
        let first_part = superblock.first_pages();
        let (dirty, kept) = self.state.lock().map.take_dirty(superblock.sector, gap, first_part);
        let mut writes = futures::stream::iter(dirty.into_iter().map(|write| {
            let offset = superblock.map_place(write.first / map::SECTORS)
                + write.first % map::SECTORS * MAP_SECTOR;
            async move {
                let _turn = self.turn(Kind::Write).await;
                self.data.write(offset, vec![write.bytes.freeze()], Purpose::Map).await
            }
        }))
        .buffer_unordered(WRITES);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(kept)
    }

    /// Loads the pages of the map about some blocks.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn map_all(&self, lbas: impl Iterator<Item = u64>) -> Result<(), StoreError> {
        let mut pages: Vec<u64> = {
            let state = self.state.lock();
            lbas.map(Map::page_of).filter(|page| !state.map.has(*page)).collect()
        };
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            let bytes = self.read_map_page(page).await?;
            // Concurrent loads are harmless: a map page that is not loaded cannot be dirty.
            self.state.lock().map.insert(page, &bytes);
        }
        Ok(())
    }

    /// Reads a page of the map. If a growth has moved it meanwhile, reads its new place: blocks may
    /// have been written over the old one.
    pub(super) async fn read_map_page(&self, page: u64) -> Result<Bytes, StoreError> {
        loop {
            let place = self.map_place(page);
            let turn = self.turn(Kind::Read).await;
            let read = self.data.read(place, BLOCK_SIZE, Purpose::Map).await;
            drop(turn);
            if self.map_place(page) == place {
                return Ok(read?);
            }
        }
    }
}
