//! Online growth: more blocks at the end of an open volume.
//!
//! The map's pages about blocks that its first part has no room for are copied behind everything
//! that the volume has so far, and only then does a superblock refer to them. Until that is
//! durable, no old structure is overwritten.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion;
use bytes::Bytes;
use tokio::sync::oneshot;
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use super::create::{RUN, empty_sectors};
use super::format::{COPY, MAP_SECTOR, MapSector, SECOND_PART, Superblock};
use super::map::SECTORS;
use super::turns::Kind;
use super::{InPlace, InPlaceError, Inner};
use crate::block::{BLOCK_SIZE, StoreError};
use crate::copies;
use crate::device::{AlignedBuf, DeviceError, Purpose};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The layout of a volume after its growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    blocks: u64,
    /// Where the second part of the map is; 0 when there is none.
    second_part: u64,
    /// The first byte behind the volume, without the last backup of the superblock.
    end: u64,
}

impl Layout {
    /// The layout of a volume that grows to `blocks` blocks; `None` when no device has room for it.
    fn of(now: &Superblock, blocks: u64) -> Option<Layout> {
        let blocks_end = now.data_offset.checked_add(blocks.checked_mul(BLOCK)?)?;
        let size = now.second_size(blocks);
        let second_part = match (size, now.second_part) {
            (0, _) => 0,
            (_, 0) => blocks_end,
            // Its pages stay, and the new ones follow.
            (_, at) if blocks_end <= at => at,
            // Not over its old place, which is valid until the superblock is replaced.
            (..) => blocks_end.max(now.end()),
        };
        let end = blocks_end.max(second_part.checked_add(size)?);
        Some(Layout { blocks, second_part, end })
    }

    /// Bytes of the smallest device for this layout.
    fn device(&self) -> u64 {
        self.end.saturating_add(COPY)
    }

    /// The largest layout for a device of `size` bytes; `None` when the volume cannot grow there.
    fn largest(now: &Superblock, size: u64) -> Option<Layout> {
        let layout = |blocks| Layout::of(now, blocks).filter(|it| it.device() <= size);
        // Bisects: the room that a layout needs never falls as blocks are added.
        let (mut fits, mut too_many) = (now.blocks, size / BLOCK + 1);
        while fits + 1 < too_many {
            let middle = fits + (too_many - fits) / 2;
            match layout(middle) {
                Some(_) => fits = middle,
                None => too_many = middle,
            }
        }
        layout(fits).filter(|it| it.blocks > now.blocks)
    }
}

/// A sector of the map that counts as damaged in every format.
fn lost_sector(number: u64, volume: &Uuid) -> MapSector {
    let mut sector = MapSector::new_zeroed();
    sector.entries.fill(u32::MAX.into());
    sector.checksum = (!sector.sum(number, volume)).into();
    sector
}

impl InPlace {
    /// Grows the volume to `size` bytes, rounded up to blocks, or to the maximum that its device
    /// has room for, and returns its number of blocks. A file is extended if needed. A volume of
    /// that size already stays as it is. New blocks read as zeros; reads and writes continue
    /// meanwhile.
    ///
    /// The growth continues when this future is dropped.
    ///
    /// # Errors
    /// [`InPlaceError::Invalid`] when the volume would shrink, or the device has no room; a store
    /// that is open for reading, closed or poisoned refuses; the device's. An error while
    /// superblocks are written poisons the store: the next opening finds the old volume or the
    /// grown one.
    #[async_recursion]
    pub async fn grow(&self, size: Option<u64>) -> Result<u64, InPlaceError> {
        let inner = self.inner.clone();
        let (reply, answer) = oneshot::channel();
        // A growth that is dropped between its writes would leave memory and device inconsistent.
        let task = self.inner.env.spawn(async move {
            let _ = reply.send(inner.grow(size).await);
        });
        task.detach();
        let dropped = || StoreError::Poisoned("the store was dropped".into());
        answer.await.unwrap_or_else(|_| Err(dropped().into()))
    }
}

impl Inner {
    /// Fails when an earlier growth was cut off: the next opening may find the map in its old or its new place.
    pub(super) fn check_growth(&self) -> Result<(), StoreError> {
        match self.growing.load(Ordering::Acquire) {
            true => Err(StoreError::Poisoned("a growth failed; open the store again".into())),
            false => Ok(()),
        }
    }

    async fn grow(self: &Arc<Inner>, size: Option<u64>) -> Result<u64, InPlaceError> {
        // Excludes writes of the map and releases of the journal.
        let _one = self.writing_back.lock().await;
        if let Some(why) = self.medium.state.lock().poison.clone() {
            return Err(StoreError::Poisoned(why).into());
        }
        self.check_growth()?;
        let now = self.medium.superblock();
        let Some(layout) = self.layout(&now, size).await? else { return Ok(now.blocks) };
        self.write_second_part(&now, &layout).await?;
        self.medium.data.flush(Purpose::Map).await?;
        self.growing.store(true, Ordering::Release);
        match self.switch(&layout).await {
            Ok(grown) => *self.medium.superblock.write() = grown,
            Err(error) => {
                self.poison(&format!("its growth failed: {error}"));
                return Err(error);
            }
        }
        self.growing.store(false, Ordering::Release);
        tracing::info!(
            device = self.medium.data.name(),
            from = now.blocks,
            to = layout.blocks,
            "grown"
        );
        Ok(layout.blocks)
    }

    /// The layout to grow to, for which the device has room; `None` when the volume has that size
    /// already.
    async fn layout(
        &self,
        now: &Superblock,
        size: Option<u64>,
    ) -> Result<Option<Layout>, InPlaceError> {
        let have = self.medium.data.grow_to(None).await?;
        let name = self.medium.data.name();
        let Some(bytes) = size else {
            let layout = Layout::largest(now, have);
            if layout.is_none() {
                self.check_unused(now, have)?;
            }
            return Ok(layout);
        };
        let blocks = bytes.div_ceil(BLOCK);
        if blocks < now.blocks {
            return Err(InPlaceError::Invalid(format!(
                "{bytes} bytes are less than the volume on {name} has, {} bytes; it cannot shrink",
                now.blocks * BLOCK
            )));
        }
        if blocks == now.blocks {
            return Ok(None);
        }
        let layout = Layout::of(now, blocks).ok_or_else(|| {
            InPlaceError::Invalid(format!("a volume of {bytes} bytes fits on no device"))
        })?;
        let needed = layout.device();
        let have = match needed > have {
            true => self.medium.data.grow_to(Some(needed)).await?,
            false => have,
        };
        if needed > have {
            let most = Layout::largest(now, have).map_or(now.blocks, |it| it.blocks) * BLOCK;
            return Err(InPlaceError::Invalid(format!(
                "a volume of {} bytes needs a device of {needed} bytes; {name} has {have}, with room \
                 for a volume of {most} bytes",
                blocks * BLOCK
            )));
        }
        Ok(Some(layout))
    }

    /// Fails when the device has room for more blocks, but not for moving the second part of the map.
    fn check_unused(&self, now: &Superblock, have: u64) -> Result<(), InPlaceError> {
        let fresh = Superblock { second_part: 0, ..now.clone() };
        let next = Layout::of(now, now.blocks + 1);
        match (Layout::largest(&fresh, have), next) {
            (Some(_), Some(next)) if now.second_part > 0 => Err(InPlaceError::Invalid(format!(
                "{} has {have} bytes, but the second part of the volume's map moves when the volume \
                 grows: it needs at least {} bytes",
                self.medium.data.name(),
                next.device()
            ))),
            _ => Ok(()),
        }
    }

    /// Writes the second part of the map to its new place: the old content, and empty sectors
    /// behind it.
    async fn write_second_part(
        &self,
        now: &Superblock,
        layout: &Layout,
    ) -> Result<(), InPlaceError> {
        let size = now.second_size(layout.blocks);
        let old = if now.second_part > 0 { now.second_size(now.blocks) } else { 0 };
        if layout.second_part != now.second_part {
            for at in (0..old).step_by(RUN as usize) {
                let len = RUN.min(old - at);
                let number = now.first_pages() * SECTORS + at / MAP_SECTOR;
                let bytes = self.read_as_it_is(now.second_part + at, len, number).await?;
                self.write_map_bytes(layout.second_part + at, bytes).await?;
            }
        }
        let first = now.first_pages() * SECTORS;
        for at in (old..size).step_by(RUN as usize) {
            let len = RUN.min(size - at) as usize;
            let sectors = empty_sectors(first + at / MAP_SECTOR, len, &now.volume).freeze();
            self.write_map_bytes(layout.second_part + at, sectors).await?;
        }
        Ok(())
    }

    async fn write_map_bytes(&self, place: u64, bytes: Bytes) -> Result<(), DeviceError> {
        let _turn = self.medium.turn(Kind::Write).await;
        self.medium.data.write(place, vec![bytes], Purpose::Map).await
    }

    /// Reads sectors of the map, whole or damaged. Sectors that the device fails to read are
    /// replaced by sectors that count as damaged. `first`: the number of the first.
    async fn read_as_it_is(&self, place: u64, len: u64, first: u64) -> Result<Bytes, InPlaceError> {
        let volume = self.medium.superblock.read().volume;
        let read = async |at: u64, len: u64| {
            let _turn = self.medium.turn(Kind::Read).await;
            self.medium.data.read(at, len as usize, Purpose::Map).await
        };
        if let Ok(bytes) = read(place, len).await {
            return Ok(bytes);
        }
        let sector = u64::from(self.medium.data.geometry().sector);
        let mut all = AlignedBuf::zeroed(len as usize);
        for (at, into) in (0..len).step_by(sector as usize).zip(all.chunks_mut(sector as usize)) {
            match read(place + at, sector).await {
                Ok(bytes) => into.copy_from_slice(&bytes),
                Err(DeviceError::Closed { device }) => {
                    return Err(DeviceError::Closed { device }.into());
                }
                Err(error) => {
                    tracing::error!(place = place + at, %error, "a sector of the map is lost");
                    let numbers = first + at / MAP_SECTOR..;
                    for (number, into) in numbers.zip(into.chunks_mut(MAP_SECTOR as usize)) {
                        into.copy_from_slice(lost_sector(number, &volume).as_bytes());
                    }
                }
            }
        }
        Ok(all.freeze())
    }

    /// Writes the new size into both superblocks and their backups. The current superblock is
    /// overwritten only when another is durable.
    async fn switch(&self, layout: &Layout) -> Result<Superblock, InPlaceError> {
        let newest = Superblock::read(&self.medium.data).await?;
        let mut next = Superblock {
            blocks: layout.blocks,
            second_part: layout.second_part,
            format: if layout.second_part > 0 { SECOND_PART } else { newest.format },
            ..newest
        };
        // Both copies: the old superblock refers to a place of the map that may be overwritten from
        // now on.
        for _ in 0..copies::COPIES {
            next.generation += 1;
            copies::write(&next, &self.medium.data).await?;
            self.medium.data.flush(Purpose::Label).await?;
        }
        next.write_backups(&self.medium.data).await?;
        self.medium.data.flush(Purpose::Label).await?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::{FORMAT_VERSION, START, ZEROS_ARE_EMPTY};
    use super::super::map::PER_PAGE;
    use super::*;
    use crate::journal::Note;

    fn volume(blocks: u64) -> Superblock {
        let map_offset = START + (1 << 20);
        Superblock {
            format: FORMAT_VERSION,
            generation: 2,
            volume: Uuid::from_u128(1),
            journal: Uuid::from_u128(2),
            name: String::new(),
            blocks,
            journal_at: (START, 1 << 20),
            map_offset,
            second_part: 0,
            map_format: FORMAT_VERSION,
            data_offset: map_offset + Superblock::map_size(blocks),
            version: 0,
            created: 0,
            sector: 512,
            journal_note: Note::default(),
            damaged: false,
        }
    }

    fn grown(now: &Superblock, blocks: u64) -> Superblock {
        let Layout { blocks, second_part, .. } = Layout::of(now, blocks).unwrap();
        Superblock { blocks, second_part, ..now.clone() }
    }

    #[test]
    fn the_first_part_of_the_map_is_used_up_first() {
        let now = volume(1000);
        assert_eq!(grown(&now, PER_PAGE).second_part, 0);
        let more = grown(&now, PER_PAGE + 1);
        assert_eq!(more.second_part, more.place(PER_PAGE + 1));
        assert_eq!(more.map_place(0), now.map_offset);
        assert_eq!(more.map_place(1), more.second_part);
        assert_eq!(more.end(), more.second_part + BLOCK);
    }

    #[test]
    fn a_second_part_never_goes_over_its_old_place_or_a_block() {
        let mut now = grown(&volume(1000), 5000);
        for blocks in (5001..5020).chain((5020..40_000).step_by(371)) {
            let next = grown(&now, blocks);
            assert!(next.second_part >= next.place(blocks));
            assert!(next.second_part == now.second_part || next.second_part >= now.end());
            now = next;
        }
    }

    #[test]
    fn the_largest_volume_fits_and_one_more_block_does_not() {
        for now in [volume(1000), grown(&volume(1000), 5000)] {
            for size in (now.end()..now.end() + (12 << 20)).step_by(36 << 10) {
                match Layout::largest(&now, size) {
                    Some(most) => {
                        assert!(most.blocks > now.blocks && most.device() <= size);
                        assert!(Layout::of(&now, most.blocks + 1).unwrap().device() > size);
                    }
                    None => assert!(Layout::of(&now, now.blocks + 1).unwrap().device() > size),
                }
            }
        }
    }

    #[test]
    fn sizes_beyond_any_device_have_no_layout() {
        let now = grown(&volume(1000), 5000);
        for blocks in [u64::MAX, u64::MAX / BLOCK, u64::MAX / BLOCK - 1000] {
            assert_eq!(Layout::of(&now, blocks), None);
        }
    }

    #[test]
    fn a_lost_sector_is_damaged_in_every_format() {
        let volume = Uuid::from_u128(1);
        for format in ZEROS_ARE_EMPTY..=FORMAT_VERSION {
            assert!(!lost_sector(7, &volume).is_whole(7, &volume, format));
        }
    }
}
