//! The volume over a block store: live, or as it was at a version.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use bytes::Bytes;

use super::locks::BlockLocks;
use super::{Extent, Volume};
use crate::block::{
    BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Hold, Lba, StoreError, Version, Write,
};
use crate::device::{AlignedBuf, FrameBuf, total_len};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks in one transaction, the maximum that a store takes. A larger request is not atomic.
const TRANSACTION: u64 = 240;

/// A block of zeros: the content of a hole, and the source of written zeros.
static ZEROS: LazyLock<Bytes> = LazyLock::new(|| AlignedBuf::zeroed(64 * BLOCK_SIZE).freeze());

/// A byte-addressed volume over a block store.
///
/// A write of at most 240 blocks is atomic, also in a crash. Partly covered blocks are read, changed and
/// written back under a lock, so that no concurrent write is lost; see `locks`.
pub struct StoreVolume<S: Blocks + ?Sized> {
    store: Arc<S>,
    /// Bytes at the end of the last block that are not part of the volume.
    unused: u64,
    frozen: Option<Frozen>,
    locks: BlockLocks,
}

/// A version that is served read-only.
#[derive(Debug)]
struct Frozen {
    hold: Hold,
    size: u64,
}

impl<S: Blocks + ?Sized> fmt::Debug for StoreVolume<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreVolume")
            .field("size", &self.size())
            .field("frozen", &self.frozen)
            .finish_non_exhaustive()
    }
}

/// A request, in blocks.
struct Span {
    /// Every block that it touches.
    blocks: Range<u64>,
    /// The blocks that it covers in whole; empty, and somewhere in `blocks`, if there are none.
    whole: Range<u64>,
}

impl Span {
    fn new(offset: u64, len: u64) -> Span {
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let start = offset.div_ceil(BLOCK);
        let whole = start..((offset + len) / BLOCK).max(start);
        Span { blocks, whole }
    }

    fn is_whole(&self) -> bool {
        self.blocks == self.whole
    }

    /// The blocks that it covers in part: one or two.
    fn parts(&self) -> impl Iterator<Item = u64> + use<> {
        let whole = self.whole.clone();
        let (first, last) = (self.blocks.start, self.blocks.end.saturating_sub(1));
        let ends = [Some(first), (last > first).then_some(last)];
        ends.into_iter().flatten().filter(move |block| !whole.contains(block))
    }
}

impl<S: Blocks + ?Sized> StoreVolume<S> {
    /// The store's newest content.
    pub fn live(store: Arc<S>) -> StoreVolume<S> {
        StoreVolume { store, unused: 0, frozen: None, locks: BlockLocks::default() }
    }

    /// The same volume, shorter by `unused` bytes, less than a block.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when it is a block or more, or not in units of
    /// [`Volume::min_block`].
    pub fn without_last(mut self, unused: u64) -> Result<StoreVolume<S>, StoreError> {
        if unused >= BLOCK || !unused.is_multiple_of(u64::from(self.min_block())) {
            let why = format!("{unused} bytes are not less than a block in whole sectors");
            return Err(StoreError::Invalid(why));
        }
        self.unused = unused;
        Ok(self)
    }

    /// The first `blocks` blocks of the store at the version that `hold` keeps, read-only.
    pub fn snapshot(store: Arc<S>, hold: Hold, blocks: u64) -> StoreVolume<S> {
        let frozen = Some(Frozen { hold, size: blocks * BLOCK });
        StoreVolume { store, unused: 0, frozen, locks: BlockLocks::default() }
    }

    /// The version that is served; `None` for the newest.
    fn version(&self) -> Option<Version> {
        self.frozen.as_ref().map(|frozen| frozen.hold.version())
    }

    async fn read_blocks(&self, blocks: Range<u64>) -> Result<Vec<Option<Bytes>>, StoreError> {
        let (first, count) = (Lba(blocks.start), blocks.end - blocks.start);
        match self.version() {
            Some(version) => self.store.read(first, count, version).await,
            None => Ok(self.store.read_newest(first, count).await?.1),
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        let (unit, size) = (u64::from(self.min_block()), self.size());
        if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            return Err(StoreError::Invalid(format!(
                "{len} bytes at {offset} are not in units of {unit} bytes"
            )));
        }
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(StoreError::Invalid(format!(
                "{len} bytes at {offset} leave a volume of {size} bytes"
            ))),
        }
    }

    fn check_change(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        // A store that refuses writes says why.
        match self.frozen.is_some() {
            true => Err(StoreError::ReadOnly),
            false => self.check(offset, len),
        }
    }

    async fn finish(&self, version: Version, fua: bool) -> Result<(), StoreError> {
        match fua {
            true => self.store.sync(version).await,
            false => Ok(()),
        }
    }

    /// The content of `block` after the bytes of `data` from `offset` on are written to it. The caller holds
    /// the block's lock.
    async fn merged(&self, block: u64, offset: u64, data: &[u8]) -> Result<Bytes, StoreError> {
        let old = self.read_blocks(block..block + 1).await?.pop().flatten();
        let mut content = match old {
            Some(old) => AlignedBuf::copy_of(&old),
            None => AlignedBuf::zeroed(BLOCK_SIZE),
        };
        let start = block * BLOCK;
        let from = start.max(offset);
        let to = (start + BLOCK).min(offset + data.len() as u64);
        content[(from - start) as usize..(to - start) as usize]
            .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        Ok(content.freeze())
    }

    /// Blocks of which the first and the last may be covered in part.
    async fn merge_ends(
        &self,
        span: &Span,
        offset: u64,
        data: &[Bytes],
    ) -> Result<Vec<Bytes>, StoreError> {
        let data = gather(data);
        let mut blocks = Vec::with_capacity((span.blocks.end - span.blocks.start) as usize);
        for block in span.blocks.clone() {
            blocks.push(match span.whole.contains(&block) {
                true => {
                    let from = (block * BLOCK - offset) as usize;
                    FrameBuf::copy_block(&data[from..from + BLOCK_SIZE])
                }
                false => self.merged(block, offset, &data).await?,
            });
        }
        Ok(blocks)
    }

    /// Writes whole blocks from `first` on.
    async fn write_blocks(&self, first: u64, blocks: Vec<Bytes>) -> Result<Version, StoreError> {
        let mut version = Version(0);
        let mut writes = Vec::with_capacity(blocks.len().min(TRANSACTION as usize));
        let last = blocks.len().saturating_sub(1);
        for (number, content) in blocks.into_iter().enumerate() {
            writes.push(Write::block(Lba(first + number as u64), content));
            if writes.len() == TRANSACTION as usize || number == last {
                version = self.store.apply(std::mem::take(&mut writes)).await?;
            }
        }
        Ok(version)
    }

    /// Writes blocks from `first` on. Only the bytes in `changed`, in the volume's offsets, differ from the
    /// present content.
    async fn write_parts(
        &self,
        first: u64,
        blocks: Vec<Bytes>,
        changed: Range<u64>,
    ) -> Result<Version, StoreError> {
        let mut version = Version(0);
        let mut number = first;
        let mut blocks = blocks.into_iter().peekable();
        while blocks.peek().is_some() {
            let writes = blocks.by_ref().take(TRANSACTION as usize).map(|content| {
                let write = part(number, content, &changed);
                number += 1;
                write
            });
            version = self.store.apply(writes.collect()).await?;
        }
        Ok(version)
    }

    /// Writes zeros over `blocks`, so that they are stored.
    async fn write_zero_blocks(&self, blocks: Range<u64>) -> Result<Version, StoreError> {
        let mut version = self.store.now();
        for start in blocks.clone().step_by(TRANSACTION as usize) {
            let blocks = start..blocks.end.min(start + TRANSACTION);
            let zero = ZEROS.slice(..BLOCK_SIZE);
            let writes = blocks.map(|block| Write::block(Lba(block), zero.clone()));
            version = self.store.apply(writes.collect()).await?;
        }
        Ok(version)
    }

    /// Makes the part of `block` in `[offset, offset + len)` zero, if it is not already.
    async fn zero_part(&self, block: u64, offset: u64, len: u64) -> Result<Version, StoreError> {
        let stored = self.store.allocation(Lba(block), 1, None);
        if !stored.iter().any(|(_, stored)| *stored) {
            return Ok(self.store.now());
        }
        let start = (block * BLOCK).max(offset);
        let end = ((block + 1) * BLOCK).min(offset + len);
        let content = self.merged(block, start, &ZEROS[..(end - start) as usize]).await?;
        self.store.apply(vec![part(block, content, &(start..end))]).await
    }
}

/// A write of `block` whose changed bytes are those of `changed`, in the volume's offsets.
fn part(block: u64, content: Bytes, changed: &Range<u64>) -> Write {
    let start = block * BLOCK;
    let within = |at: u64| at.saturating_sub(start).min(BLOCK) as usize;
    let changed = ByteRanges::from(within(changed.start)..within(changed.end));
    Write { changed, ..Write::block(Lba(block), content) }
}

/// Whole blocks, each in memory of its own.
fn blocks_of(data: Vec<Bytes>) -> Vec<Bytes> {
    if data.iter().all(|piece| piece.len() == BLOCK_SIZE) {
        return data;
    }
    FrameBuf::copy_of(&gather(&data)).into_blocks()
}

/// Joins the pieces.
fn gather(data: &[Bytes]) -> Bytes {
    match data {
        [one] => one.clone(),
        many => Bytes::from(many.concat()),
    }
}

#[async_trait]
impl<S: Blocks + ?Sized> Volume for StoreVolume<S> {
    fn size(&self) -> u64 {
        match &self.frozen {
            Some(frozen) => frozen.size,
            None => (self.store.blocks() * BLOCK).saturating_sub(self.unused),
        }
    }

    fn is_read_only(&self) -> bool {
        self.frozen.is_some() || self.store.is_read_only()
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, StoreError> {
        self.check(offset, len as u64)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let Range { start, end } = Span::new(offset, len as u64).blocks;
        let found = self.read_blocks(start..end).await?;
        let mut buffers = Vec::with_capacity(found.len());
        let mut at = start * BLOCK;
        for block in found {
            let from = offset.saturating_sub(at) as usize;
            let to = (offset + len as u64 - at).min(BLOCK) as usize;
            buffers.push(match block {
                Some(content) if to - from == BLOCK_SIZE => content,
                Some(content) => content.slice(from..to),
                None => ZEROS.slice(from..to),
            });
            at += BLOCK;
        }
        Ok(buffers)
    }

    async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError> {
        let len = total_len(&data);
        self.check_change(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let span = Span::new(offset, len);
        let range = span.blocks.clone();
        let version = if span.is_whole() {
            let blocks = blocks_of(data);
            let _guard = self.locks.whole(range).await;
            self.write_blocks(span.blocks.start, blocks).await?
        } else {
            let _guard = self.locks.partial(range).await;
            let blocks = self.merge_ends(&span, offset, &data).await?;
            self.write_parts(span.blocks.start, blocks, offset..offset + len).await?
        };
        self.finish(version, fua).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        keep_allocated: bool,
        fua: bool,
    ) -> Result<(), StoreError> {
        self.check_change(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let span = Span::new(offset, len);
        let mut version = self.store.now();
        for block in span.parts() {
            let _guard = self.locks.partial(block..block + 1).await;
            version = version.max(self.zero_part(block, offset, len).await?);
        }
        let whole = span.whole;
        if !whole.is_empty() {
            let _guard = self.locks.whole(whole.clone()).await;
            let done = match keep_allocated {
                true => self.write_zero_blocks(whole).await?,
                false => self.store.discard(Lba(whole.start), whole.end - whole.start).await?,
            };
            version = version.max(done);
        }
        self.finish(version, fua).await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), StoreError> {
        self.check_change(offset, len)?;
        let whole = Span::new(offset, len).whole;
        if whole.is_empty() {
            return Ok(());
        }
        let version = {
            let _guard = self.locks.whole(whole.clone()).await;
            self.store.discard(Lba(whole.start), whole.end - whole.start).await?
        };
        self.finish(version, fua).await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        match self.frozen.is_some() {
            true => Ok(()),
            false => self.store.sync(self.store.now()).await,
        }
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, StoreError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let Range { start, end } = Span::new(offset, len).blocks;
        let runs = self.store.allocation(Lba(start), end - start, self.version());
        let mut at = start * BLOCK;
        let mut extents = Vec::with_capacity(runs.len());
        for (blocks, stored) in runs {
            let until = at + blocks * BLOCK;
            let len = until.min(offset + len) - at.max(offset);
            extents.push(Extent { len, stored });
            at = until;
        }
        Ok(extents)
    }
}
