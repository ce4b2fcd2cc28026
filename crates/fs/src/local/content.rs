//! The bytes of files.
//!
//! A block of a file that has no block of data reads as zeros, and so does a block of data that was
//! not written: to reserve blocks one takes them, and does nothing with them. Bytes behind the end of a
//! file, in its last block, are zeros.
//!
//! A block that a repair has recorded as lost cannot be read. A write of all of it makes it a block
//! like any other; a truncation, a punched hole and a range that is zeroed take it away.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use thalweg_store::block::BLOCK_SIZE;

use super::extents::{Layout, RecordChange, Run};
use super::format::{Extent, HAS_LOST, InodeRecord, TRUNCATING, Tag, extent_key, parse_key};
use super::fs_call::FsCall;
use super::source::Source;
use super::zeros::{ZEROS, push_zeros};
use crate::error::FsError;
use crate::filesystem::{MAX_FILE, WriteAt};

/// Bytes in a block.
pub(super) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of a file at most.
pub(super) const MAX_BLOCK: u64 = MAX_FILE / BLOCK;
/// Set-user-id.
const SUID: u16 = 0o4000;
/// Set-group-id.
const SGID: u16 = 0o2000;

/// The blocks of a file that a range of bytes touches.
pub(super) fn touched(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

/// Clears set-user-id and set-group-id, as a write without privilege must.
pub(super) fn clear_suid(record: &mut InodeRecord) {
    let mode = record.mode.get();
    let group = if mode & 0o010 != 0 { SGID } else { 0 };
    record.mode = (mode & !(SUID | group)).into();
}

impl FsCall<'_> {
    fn extent(&self, ino: u64, key: &[u8], value: &[u8]) -> Result<Extent, FsError> {
        let parsed = parse_key(key).filter(|(_, tag, _)| *tag == Tag::Extent);
        let extent = parsed.and_then(|(_, _, rest)| self.inner.area.extent(rest, value));
        extent.ok_or_else(|| FsError::Damaged(format!("an extent of inode {ino} is invalid")))
    }

    /// The extents that have blocks in a range of the file's, ascending. They depend on nothing else than
    /// the inode's record, because a change of extents writes that record.
    pub(super) async fn extents(
        &mut self,
        ino: u64,
        range: Range<u64>,
    ) -> Result<Vec<Extent>, FsError> {
        let mut found = Vec::new();
        let first = extent_key(ino, range.start);
        let floor = self.floor(&first).await?;
        if let Some((key, value)) = floor
            && key.starts_with(&first[..9])
        {
            let extent = self.extent(ino, &key, &value)?;
            if extent.end() > range.start {
                found.push(extent);
            }
        }
        let next = found.last().map_or(range.start, Extent::end);
        if next >= range.end {
            return Ok(found);
        }
        let last = if range.end >= MAX_BLOCK {
            super::format::key_behind(ino, Tag::Extent)
        } else {
            extent_key(ino, range.end)
        };
        for (key, value) in self.range(extent_key(ino, next)..last, usize::MAX).await? {
            let extent = self.extent(ino, &key, &value)?;
            if found.last().is_some_and(|before| before.end() > extent.at) {
                return Err(FsError::Damaged(format!("extents of inode {ino} overlap")));
            }
            found.push(extent);
        }
        Ok(found)
    }

    /// The extents of a range of a file, and the adjacent ones, which may merge with them.
    async fn layout(&mut self, ino: u64, range: Range<u64>) -> Result<Layout, FsError> {
        let wider = range.start.saturating_sub(1)..(range.end + 1).min(MAX_BLOCK);
        Ok(Layout::new(self.extents(ino, wider).await?))
    }

    fn put_layout(&mut self, ino: u64, layout: &Layout) {
        for change in layout.changes() {
            match change {
                RecordChange::Put(extent) => self.put(extent.key(ino), extent.encode()),
                RecordChange::Delete(at) => self.delete(extent_key(ino, at)),
            }
        }
    }

    pub(super) async fn read(
        &mut self,
        ino: u64,
        offset: u64,
        len: usize,
    ) -> Result<Vec<Bytes>, FsError> {
        let record = self.file(ino).await?;
        let end = offset.saturating_add(len as u64).min(record.size.get());
        if offset >= end {
            return Ok(Vec::new());
        }
        self.read_range(ino, offset..end).await
    }

    /// The bytes of a range that lies before the end.
    async fn read_range(&mut self, ino: u64, bytes: Range<u64>) -> Result<Vec<Bytes>, FsError> {
        let blocks = touched(&bytes);
        assert!(bytes.start <= bytes.end && blocks.end <= MAX_BLOCK, "no file has {bytes:?}");
        let mut buffers = Vec::with_capacity((blocks.end - blocks.start) as usize);
        let mut at = bytes.start;
        for extent in self.extents(ino, blocks.clone()).await? {
            let (from, to) = (extent.at.max(blocks.start), extent.end().min(blocks.end));
            if extent.is_lost() {
                let (from, to) = ((from * BLOCK).max(bytes.start), (to * BLOCK).min(bytes.end));
                return Err(FsError::Lost { ino, from, to });
            }
            // Extents do not overlap (`extents` refuses those that do), and only the first may begin before the range.
            assert!(at <= (from * BLOCK).max(bytes.start), "an extent begins before {at}");
            push_zeros(&mut buffers, (from * BLOCK).saturating_sub(at));
            let run = Run { start: extent.start + (from - extent.at), blocks: to - from };
            for (block, content) in (from..to).zip(self.read_blocks(run).await?) {
                let start = (block * BLOCK).max(bytes.start);
                let end = ((block + 1) * BLOCK).min(bytes.end);
                let base = block * BLOCK;
                buffers.push(content.slice((start - base) as usize..(end - base) as usize));
                at = end;
            }
        }
        assert!(at <= bytes.end, "more was read than {bytes:?}");
        push_zeros(&mut buffers, bytes.end - at);
        Ok(buffers)
    }

    /// Writes buffers; where they went. All of it is one transaction.
    pub(super) async fn write(
        &mut self,
        ino: u64,
        at: WriteAt,
        data: Vec<Bytes>,
        clears_suid: bool,
    ) -> Result<u64, FsError> {
        let mut record = self.file(ino).await?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => record.size.get(),
        };
        let len: usize = data.iter().map(Bytes::len).sum();
        let end = offset.checked_add(len as u64).filter(|end| *end <= MAX_FILE);
        let end = end.ok_or(FsError::FileTooLarge)?;
        if len == 0 {
            return Ok(offset);
        }
        self.require_tail(ino, &mut record, end).await?;
        let blocks = touched(&(offset..end));
        let mut layout = Layout::new(self.extents(ino, blocks.clone()).await?);
        require_unlost(ino, &layout, &(offset..end), record.size.get())?;
        layout.forget_lost(blocks.clone());
        let fresh = layout.holes(blocks.clone());
        let moved = self.to_move(&layout, &blocks);
        let before = self.ends_of(&layout, &moved, offset..end).await?;
        if !fresh.is_empty() || !moved.is_empty() {
            layout = self.layout(ino, blocks.clone()).await?;
            layout.forget_lost(blocks.clone());
            for range in moved {
                for run in layout.remove(range) {
                    self.free_blocks(&mut record, run).await?;
                }
            }
            for hole in layout.holes(blocks.clone()) {
                self.fill_hole(ino, &mut record, &mut layout, hole).await?;
            }
            self.put_layout(ino, &layout);
        }
        let mut source = Source::new(data);
        for block in blocks {
            let base = block * BLOCK;
            let range = (offset.max(base) - base) as usize..(end.min(base + BLOCK) - base) as usize;
            let is_fresh = fresh.iter().any(|hole| hole.contains(&block));
            let place = layout.block(block).ok_or(FsError::NoSpace)?;
            let bytes = source.take(range.len());
            let before = before.get(&block).map(|content| &content[..]);
            let before = if is_fresh { Some(&ZEROS[..BLOCK_SIZE]) } else { before };
            self.write_part(place, before, range, bytes).await?;
        }
        assert!(source.is_empty(), "bytes are left that belong to no block");
        record.size = record.size.get().max(end).into();
        if clears_suid {
            clear_suid(&mut record);
        }
        self.touch_file(ino, record);
        Ok(offset)
    }

    /// Parts of a range of a file's blocks that get other blocks of data, because the caller's transaction
    /// has changed enough where it is.
    fn to_move(&self, layout: &Layout, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let Some(own) = self.own() else { return Vec::new() };
        let mut moved: Vec<Range<u64>> = Vec::new();
        for extent in layout.extents() {
            let (from, to) = (extent.at.max(blocks.start), extent.end().min(blocks.end));
            let run = Run { start: extent.start + (from - extent.at), blocks: to - from };
            for (part, _) in own.parts(run).into_iter().filter(|(_, is_own)| !is_own) {
                let at = from + (part.start - run.start);
                moved.push(at..at + part.blocks);
            }
        }
        let count = moved.iter().map(|range| range.end - range.start).sum();
        if own.changes_in_place(count) {
            moved.clear();
        }
        moved
    }

    /// The content of those blocks that a range overwrites in part.
    async fn ends_of(
        &self,
        layout: &Layout,
        moved: &[Range<u64>],
        bytes: Range<u64>,
    ) -> Result<BTreeMap<u64, Bytes>, FsError> {
        let mut found = BTreeMap::new();
        let ends = [(bytes.start / BLOCK, bytes.start), ((bytes.end - 1) / BLOCK, bytes.end)];
        for (block, edge) in ends {
            let is_moved = moved.iter().any(|range| range.contains(&block));
            if is_moved
                && edge % BLOCK != 0
                && let Some(place) = layout.block(block)
            {
                found.insert(block, self.read_block(place, 0..BLOCK_SIZE).await?);
            }
        }
        Ok(found)
    }

    /// Writes bytes of a data block. `before`: its former content, if known.
    async fn write_part(
        &mut self,
        place: u64,
        before: Option<&[u8]>,
        range: Range<usize>,
        bytes: Bytes,
    ) -> Result<(), FsError> {
        if range.len() == BLOCK_SIZE {
            self.write_block(place, bytes, range);
            return Ok(());
        }
        // The block held zeros if it is another one than before.
        let changed = match before {
            Some(before) if before.iter().any(|byte| *byte != 0) => 0..BLOCK_SIZE,
            _ => range.clone(),
        };
        let mut content = match before {
            Some(before) => before.to_vec(),
            None => self.read_block(place, range.clone()).await?.to_vec(),
        };
        content[range].copy_from_slice(&bytes);
        self.write_block(place, content.into(), changed);
        Ok(())
    }

    /// The content of a file has changed: its record becomes that of now.
    pub(super) fn touch_file(&mut self, ino: u64, mut record: InodeRecord) {
        self.touch_content(ino, &mut record);
        self.set_inode(ino, record);
        self.note_content(ino);
    }

    /// Takes blocks for a part of a file that has none.
    async fn fill_hole(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        layout: &mut Layout,
        hole: Range<u64>,
    ) -> Result<(), FsError> {
        let wanted = hole.end - hole.start;
        self.charge(record.quota.get(), wanted as i64, 0).await?;
        let parent = record.parent.get();
        let goes_on = match layout.continuation(hole.start) {
            Some(goal) => Some(goal),
            None if record.blocks > 0 && hole.start > 0 => {
                self.block_before(ino, hole.start).await?
            }
            None => None,
        };
        let goal = goes_on.unwrap_or_else(|| self.inner.space.beginning(parent));
        let mut at = hole.start;
        let has = record.blocks.get();
        for run in self.allocate(ino, goal, wanted, has).await? {
            layout.insert(Extent { at, start: run.start, blocks: run.blocks });
            at += run.blocks;
            if has == 0 {
                self.inner.space.took(parent, run.start + run.blocks);
            }
        }
        record.blocks = (record.blocks.get() + wanted).into();
        Ok(())
    }

    /// The data block behind the last one that the file has before a block of its own.
    async fn block_before(&mut self, ino: u64, at: u64) -> Result<Option<u64>, FsError> {
        let key = extent_key(ino, at);
        let floor = self.floor(&key).await?;
        match floor.filter(|(found, _)| found.starts_with(&key[..9])) {
            Some((key, value)) => {
                let extent = self.extent(ino, &key, &value)?;
                Ok((!extent.is_lost()).then_some(extent.start + extent.blocks))
            }
            None => Ok(None),
        }
    }

    /// Before a file grows to `end`, blocks that are being freed behind its end have to be
    /// gone.
    async fn require_tail(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        end: u64,
    ) -> Result<(), FsError> {
        if record.flags & TRUNCATING == 0 || end <= record.size.get() {
            return Ok(());
        }
        if self.is_within {
            self.truncate_tail(ino, record, usize::MAX).await.map(|_| ())
        } else {
            self.inner.finish_orphan(ino).await?;
            Err(FsError::Conflict)
        }
    }

    /// Gives a file another size.
    pub(super) async fn set_size(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        size: u64,
    ) -> Result<(), FsError> {
        if size > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        if self.inner.external_contents.is_some() {
            return self.set_external_size(ino, record, size).await;
        }
        let before = record.size.get();
        if size > before {
            self.require_tail(ino, record, size).await?;
        }
        record.size = size.into();
        if size < before {
            self.inner.space.release(ino);
            self.zero_part(ino, size..size.next_multiple_of(BLOCK)).await?;
        }
        // Blocks reserved behind the end go too.
        let most = if self.is_within { usize::MAX } else { super::orphans::EXTENTS_AT_ONCE };
        if !self.truncate_tail(ino, record, most).await? {
            record.flags |= TRUNCATING;
            self.note_orphan(ino);
        }
        self.note_content(ino);
        Ok(())
    }

    /// Frees blocks behind the end of a file, the last ones first, of at most so many extents; whether
    /// none are left.
    pub(super) async fn truncate_tail(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        most: usize,
    ) -> Result<bool, FsError> {
        let first = record.size.get().div_ceil(BLOCK);
        // No block is behind the end of the largest file.
        if first >= MAX_BLOCK || record.blocks == 0 && record.flags & HAS_LOST == 0 {
            return Ok(self.clear_truncating(ino, record));
        }
        let behind = super::format::key_behind(ino, Tag::Extent);
        let mut scan = self.scan(extent_key(ino, first)..behind)?.backward()?;
        let mut left = most;
        while let Some((key, value)) = self.next(&mut scan).await? {
            if left == 0 {
                return Ok(false);
            }
            left -= 1;
            let extent = self.extent(ino, &key, &value)?;
            self.delete(extent.key(ino));
            if !extent.is_lost() {
                self.free_blocks(record, Run { start: extent.start, blocks: extent.blocks })
                    .await?;
            }
        }
        if first > 0 {
            // One that begins before may end behind.
            let mut layout = Layout::new(self.extents(ino, first..first + 1).await?);
            if layout.extents().first().is_some_and(|extent| extent.at < first) {
                for run in layout.remove(first..MAX_BLOCK) {
                    self.free_blocks(record, run).await?;
                }
                self.put_layout(ino, &layout);
            }
        }
        Ok(self.clear_truncating(ino, record))
    }

    fn clear_truncating(&mut self, ino: u64, record: &mut InodeRecord) -> bool {
        if record.size == 0 {
            record.flags &= !HAS_LOST;
        }
        if record.flags & TRUNCATING != 0 {
            record.flags &= !TRUNCATING;
            self.forget_orphan(ino);
        }
        true
    }

    /// Frees blocks of a file.
    async fn free_blocks(&mut self, record: &mut InodeRecord, run: Run) -> Result<(), FsError> {
        let blocks = record.blocks.get().checked_sub(run.blocks);
        let blocks = blocks.ok_or_else(|| {
            FsError::Damaged("an inode has more blocks than its record says".to_owned())
        })?;
        record.blocks = blocks.into();
        self.charge(record.quota.get(), -(run.blocks as i64), 0).await?;
        self.free(run).await
    }

    /// Writes zeros over bytes of one block, if there is a block of data.
    async fn zero_part(&mut self, ino: u64, bytes: Range<u64>) -> Result<(), FsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let block = bytes.start / BLOCK;
        assert!(bytes.end <= (block + 1) * BLOCK, "{bytes:?} are of more than one block");
        let layout = Layout::new(self.extents(ino, block..block + 1).await?);
        let Some(place) = layout.block(block) else { return Ok(()) };
        let base = block * BLOCK;
        let range = (bytes.start - base) as usize..(bytes.end - base) as usize;
        let content = self.read_block(place, range.clone()).await?;
        if content[range.clone()].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let mut content = content.to_vec();
        content[range.clone()].fill(0);
        self.write_block(place, content.into(), range);
        Ok(())
    }

    /// Takes blocks for the holes of a range, at most `most` of them; where it is done up to.
    pub(super) async fn reserve(
        &mut self,
        ino: u64,
        bytes: Range<u64>,
        keep_size: bool,
        most: u64,
    ) -> Result<u64, FsError> {
        self.reserve_over(ino, bytes, keep_size, most, 0..0).await
    }

    /// [`FsCall::reserve`], which treats the lost blocks within `lost` as holes too.
    async fn reserve_over(
        &mut self,
        ino: u64,
        bytes: Range<u64>,
        keep_size: bool,
        most: u64,
        lost: Range<u64>,
    ) -> Result<u64, FsError> {
        let mut record = self.file(ino).await?;
        if bytes.end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        self.require_tail(ino, &mut record, bytes.end).await?;
        let blocks = touched(&bytes);
        let mut layout = self.layout(ino, blocks.clone()).await?;
        layout.forget_lost(lost);
        let (mut left, mut done) = (most, bytes.end);
        for hole in layout.holes(blocks) {
            let end = hole.end.min(hole.start.saturating_add(left));
            self.fill_hole(ino, &mut record, &mut layout, hole.start..end).await?;
            assert!(hole.start <= end && end - hole.start <= left, "more is filled than was asked");
            left -= end - hole.start;
            if end < hole.end || left == 0 {
                done = (end * BLOCK).min(bytes.end);
                break;
            }
        }
        self.put_layout(ino, &layout);
        if !keep_size {
            record.size = record.size.get().max(done).into();
        }
        self.touch_file(ino, record);
        Ok(done)
    }

    /// Frees the blocks of a range, of at most `most` extents, and zeroes the partial blocks at its ends.
    /// Returns the offset down to which it is done.
    pub(super) async fn punch(
        &mut self,
        ino: u64,
        bytes: Range<u64>,
        most: usize,
    ) -> Result<u64, FsError> {
        let mut record = self.file(ino).await?;
        let end = bytes.end.min(record.size.get().next_multiple_of(BLOCK)).max(bytes.start);
        let whole = bytes.start.div_ceil(BLOCK)..(end / BLOCK).max(bytes.start.div_ceil(BLOCK));
        self.zero_ends(ino, &(bytes.start..end)).await?;
        // Blocks behind the end of the file are freed too: they are invisible.
        let whole = whole.start..whole.end.max(bytes.end / BLOCK);
        let mut layout = Layout::new(self.extents(ino, whole.clone()).await?);
        let inside = layout.extents().iter().rev().nth(most.saturating_sub(1));
        let from = inside.map_or(whole.start, |extent| extent.at.max(whole.start));
        let from = if layout.extents().len() > most { from } else { whole.start };
        for run in layout.remove(from..whole.end) {
            self.free_blocks(&mut record, run).await?;
        }
        self.put_layout(ino, &layout);
        self.touch_file(ino, record);
        Ok(if from == whole.start { bytes.start } else { from * BLOCK })
    }

    /// Zeroes the parts of blocks at both ends of a range.
    async fn zero_ends(&mut self, ino: u64, bytes: &Range<u64>) -> Result<(), FsError> {
        let (first, last) = (bytes.start.next_multiple_of(BLOCK), bytes.end / BLOCK * BLOCK);
        if first > last {
            return self.zero_part(ino, bytes.clone()).await;
        }
        self.zero_part(ino, bytes.start..first).await?;
        self.zero_part(ino, last..bytes.end).await
    }

    /// Has a range read as zeros and keeps its blocks, at most `most` of them; where it is done up to.
    pub(super) async fn zero(
        &mut self,
        ino: u64,
        bytes: Range<u64>,
        keep_size: bool,
        most: u64,
    ) -> Result<u64, FsError> {
        let stop = (bytes.start / BLOCK + most) * BLOCK;
        let bytes = bytes.start..bytes.end.min(stop);
        self.zero_ends(ino, &bytes).await?;
        let whole = bytes.start.div_ceil(BLOCK)..bytes.end / BLOCK;
        if whole.start < whole.end {
            let layout = Layout::new(self.extents(ino, whole.clone()).await?);
            for place in whole.clone().filter_map(|block| layout.block(block)) {
                self.clear_block(place);
            }
        }
        self.reserve_over(ino, bytes.clone(), keep_size, u64::MAX, whole).await?;
        Ok(bytes.end)
    }
}

/// Fails when a write of these bytes would leave a part of a lost block: the rest of its content is
/// unknown.
fn require_unlost(ino: u64, layout: &Layout, bytes: &Range<u64>, size: u64) -> Result<(), FsError> {
    let blocks = touched(bytes);
    for block in [blocks.start, blocks.end - 1] {
        let held = block * BLOCK..((block + 1) * BLOCK).min(size);
        let is_whole = bytes.start <= held.start && held.end <= bytes.end;
        if !is_whole && layout.lost(block..block + 1).is_some() {
            return Err(FsError::Lost { ino, from: held.start, to: held.end });
        }
    }
    Ok(())
}
