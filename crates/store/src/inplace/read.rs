//! Reads, from memory or from the device.

use std::ops::Range;

use bytes::Bytes;

use super::Inner;
use super::format::Entry;
use super::pages::PageLookup;
use super::state::BlockLookup;
use super::turns::Kind;
use crate::block::{BLOCK_SIZE, Lba, StoreError, Version};
use crate::device::Purpose;

/// Maximum of blocks in one read.
const RUN: usize = 256;

/// Blocks that are being read from the device. They are not written until this is dropped.
struct Reading<'a> {
    inner: &'a Inner,
    blocks: Vec<(u64, Entry)>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.medium.state.lock();
        for (lba, _) in &self.blocks {
            state.pages.end_read(*lba);
        }
        drop(state);
        self.inner.changed.notify_waiters();
    }
}

/// Result of looking some blocks up in memory.
enum Look<'a> {
    /// All blocks are in memory, or will be read from the device, as of this version. Reads from the device see
    /// that version: blocks that are being read are not written.
    Begun(Version, Vec<Option<Bytes>>, Reading<'a>),
    /// Pages of the map have to be read first.
    Unmapped,
    /// Some blocks are under writeback.
    Wait,
}

impl Inner {
    /// Reads blocks as they were at a version, or else as they are; returns the version too. Damage is noted.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::Gone`], and the device's.
    pub(super) async fn read(
        &self,
        range: Range<u64>,
        at: Option<Version>,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        let read = self.read_blocks(range, at).await;
        read.inspect_err(|error| self.note_damage(error))
    }

    async fn read_blocks(
        &self,
        range: Range<u64>,
        at: Option<Version>,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        // Nearly every read waits for nothing, and need not enter the line of those that do.
        let mut is_waiting = false;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            if is_waiting {
                changed.as_mut().enable();
            }
            match self.look(range.clone(), at)? {
                Look::Begun(at, blocks, reading) if reading.blocks.is_empty() => {
                    return Ok((at, blocks));
                }
                Look::Begun(at, mut blocks, reading) => {
                    self.fill(range.start, &mut blocks, &reading).await?;
                    return Ok((at, blocks));
                }
                Look::Unmapped => self.medium.map_all(range.clone()).await?,
                Look::Wait if !is_waiting => is_waiting = true,
                Look::Wait => changed.await,
            }
        }
    }

    fn look(&self, range: Range<u64>, at: Option<Version>) -> Result<Look<'_>, StoreError> {
        let mut state = self.medium.state.lock();
        let at = at.unwrap_or(state.now);
        state.pages.holds.check_read(at, state.now)?;
        let mut blocks = Vec::with_capacity((range.end - range.start) as usize);
        let mut missing = Vec::new();
        for lba in range {
            blocks.push(match state.find(lba, at)? {
                BlockLookup::Page(PageLookup::Content(content)) => content,
                BlockLookup::Page(PageLookup::InPlace(Entry::Empty)) => None,
                BlockLookup::Page(PageLookup::InPlace(entry)) => {
                    missing.push((lba, entry));
                    None
                }
                BlockLookup::Page(PageLookup::Writeback) => return Ok(Look::Wait),
                BlockLookup::Unmapped => return Ok(Look::Unmapped),
            });
        }
        missing.iter().for_each(|(lba, _)| state.pages.begin_read(*lba));
        state.counts.reads += missing.len() as u64;
        Ok(Look::Begun(at, blocks, Reading { inner: self, blocks: missing }))
    }

    /// Reads blocks from the device, run by run, and caches them.
    async fn fill(
        &self,
        first: u64,
        blocks: &mut [Option<Bytes>],
        reading: &Reading<'_>,
    ) -> Result<(), StoreError> {
        let runs = reading.blocks.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(RUN));
        let reads = runs.map(|run| async move {
            let entries: Vec<Entry> = run.iter().map(|(_, entry)| *entry).collect();
            let Some((start, _)) = run.first() else { return Ok((0, Vec::new())) };
            Ok::<_, StoreError>((*start, self.read_home(*start, &entries).await?))
        });
        let read = futures::future::try_join_all(reads).await?;
        let mut entries = reading.blocks.iter();
        let mut state = self.medium.state.lock();
        for (lba, content) in read.into_iter().flat_map(|(start, blocks)| (start..).zip(blocks)) {
            if let Some((_, entry)) = entries.next() {
                state.pages.keep_read(lba, *entry, content.clone());
            }
            if let Some(block) = blocks.get_mut((lba - first) as usize) {
                *block = Some(content);
            }
        }
        state.evict();
        Ok(())
    }

    /// Reads neighbouring blocks from the device. A block that does not match its checksum is read
    /// from another copy and repaired.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when no copy matches the map's entry.
    pub(super) async fn read_home(
        &self,
        first: u64,
        entries: &[Entry],
    ) -> Result<Vec<Bytes>, StoreError> {
        let place = self.medium.place(first);
        let len = entries.len() * BLOCK_SIZE;
        let turn = self.medium.turn(Kind::Read).await;
        let read = match self.medium.data.read(place, len, Purpose::UserData).await {
            Ok(read) => Some(read),
            Err(_) if self.medium.data.copies() > 1 || entries.len() > 1 => None,
            Err(error) => return Err(error.into()),
        };
        drop(turn);
        let mut blocks = Vec::with_capacity(entries.len());
        for (nth, entry) in entries.iter().enumerate() {
            let bytes =
                read.as_ref().map(|read| read.slice(nth * BLOCK_SIZE..(nth + 1) * BLOCK_SIZE));
            let content = match bytes.filter(|bytes| entry.fits(bytes)) {
                // A slice of a long run would keep the whole run in memory.
                Some(bytes) if entries.len() > 1 => crate::device::FrameBuf::copy_block(&bytes),
                Some(bytes) => bytes,
                None => self.read_copies(first + nth as u64, *entry).await?,
            };
            blocks.push(content);
        }
        Ok(blocks)
    }

    /// Finds a copy of a block that matches, and repairs the others with it.
    async fn read_copies(&self, lba: u64, entry: Entry) -> Result<Bytes, StoreError> {
        let place = self.medium.place(lba);
        let copies = self.medium.data.copies();
        let (mut right, mut wrong, mut failure) = (None, Vec::new(), None);
        for copy in 0..copies {
            match self.medium.data.read_copy(copy, place, BLOCK_SIZE, Purpose::Repair).await {
                Ok(bytes) if entry.fits(&bytes) => right = right.or(Some(bytes)),
                Ok(_) => wrong.push(copy),
                Err(error) => {
                    wrong.push(copy);
                    failure = Some(error);
                }
            }
        }
        let Some(right) = right else {
            return Err(failure.map_or_else(
                || StoreError::Corrupt {
                    lba: Lba(lba),
                    detail: format!(
                        "no copy matches its checksum, at byte {place} of {}, in {copies} copies",
                        self.medium.data.name()
                    ),
                },
                StoreError::from,
            ));
        };
        for copy in wrong {
            if let Err(error) = self.medium.data.repair_copy(copy, place, right.clone()).await {
                tracing::warn!(lba, copy, %error, "a copy could not be repaired");
            }
        }
        Ok(right)
    }
}
