//! Raw blocks of a volume: the blocks of a raw partition, or of a volume without partitions. A call inside
//! this thread's transaction is part of it; any other call is a transaction of its own.

use std::ops::Range;

use bytes::Bytes;
use thalweg_store::block::{BLOCK_SIZE, EpochVersion};
use thalweg_store::device::FrameBuf;
use thalweg_store::tree::{Raw, RawBlocks, TreeError};
use thalweg_store::txn::{Begin, TxnError};

use super::{Fate, Middle, Volume};

impl Volume {
    /// Opens the raw partition `name`.
    ///
    /// # Errors
    /// As [`Raw::open`].
    pub fn raw(&self, name: &str) -> Result<Raw, TreeError> {
        self.run(Raw::open(self.transact.clone(), name))
    }

    /// Reads blocks from `block` on. Outside of a transaction it sees all commits so far.
    ///
    /// # Errors
    /// As [`Raw::within`] and [`RawBlocks::read`].
    pub fn read_raw(&self, raw: &Raw, block: u64, count: u64) -> Result<Vec<Bytes>, TreeError> {
        self.read_raw_with_version(raw, block, count).map(|(_, blocks)| blocks)
    }

    /// [`Volume::read_raw`], and which version the blocks are of; see [`Volume::read_with_version`].
    ///
    /// # Errors
    /// As [`Volume::read_raw`].
    pub fn read_raw_with_version(
        &self,
        raw: &Raw,
        block: u64,
        count: u64,
    ) -> Result<(EpochVersion, Vec<Bytes>), TreeError> {
        let read = |blocks: &RawBlocks| -> Result<_, TreeError> {
            Ok((blocks.version(), self.run(blocks.read(block, count))?))
        };
        match self.inside_raw(raw, read)? {
            Some(done) => Ok(done),
            None => read(
                &self
                    .run(async { raw.within(self.transact.begin(Begin::SNAPSHOT).await?).await })?,
            ),
        }
    }

    /// Writes whole blocks from `block` on. Outside of a transaction the write is a transaction of its own,
    /// which always commits and is durable when this returns.
    ///
    /// # Errors
    /// As [`Raw::within`] and [`RawBlocks::write`]; the block that failed and the blocks behind it are not
    /// written then.
    pub fn write_raw(&self, raw: &Raw, block: u64, content: &[u8]) -> Result<(), TreeError> {
        if !content.len().is_multiple_of(BLOCK_SIZE) {
            return Err(TreeError::Invalid(format!("a block has {BLOCK_SIZE} bytes")));
        }
        let blocks: Vec<Bytes> = content.chunks(BLOCK_SIZE).map(FrameBuf::copy_block).collect();
        let places = places(block, blocks.len() as u64)?;
        self.change_raw(raw, |raw| {
            places
                .clone()
                .zip(&blocks)
                .try_for_each(|(place, block)| raw.write(place, block.clone()))
        })
    }

    /// Discards blocks from `block` on. Outside of a transaction as [`Volume::write_raw`].
    ///
    /// # Errors
    /// As [`Raw::within`] and [`RawBlocks::discard`].
    pub fn discard_raw(&self, raw: &Raw, block: u64, count: u64) -> Result<(), TreeError> {
        let places = places(block, count)?;
        self.change_raw(raw, |raw| places.clone().try_for_each(|place| raw.discard(place)))
    }

    /// Narrows this thread's last read or write of a block to `range`. Outside of a transaction it has no
    /// effect: the access was a transaction of its own, which has ended.
    ///
    /// # Errors
    /// As [`Raw::within`] and [`RawBlocks::mark_accessed`].
    pub fn mark_raw(&self, raw: &Raw, block: u64, range: Range<usize>) -> Result<(), TreeError> {
        self.inside_raw(raw, |raw| raw.mark_accessed(block, range)).map(|_| ())
    }

    /// Asks for a block to be kept in memory.
    ///
    /// # Errors
    /// As [`Raw::within`] and [`RawBlocks::please_cache`].
    pub fn please_cache_raw(&self, raw: &Raw, block: u64) -> Result<(), TreeError> {
        match self.inside_raw(raw, |raw| raw.please_cache(block))? {
            Some(()) => Ok(()),
            None => self.run(raw.change(|raw| raw.please_cache(block))),
        }
    }

    fn change_raw(
        &self,
        raw: &Raw,
        change: impl Fn(&RawBlocks) -> Result<(), TreeError> + Sync,
    ) -> Result<(), TreeError> {
        match self.inside_raw(raw, &change)? {
            Some(()) => Ok(()),
            None => self.run(raw.change(change)),
        }
    }

    /// Runs `work` on raw blocks in this thread's transaction, if it has one.
    fn inside_raw<T>(
        &self,
        raw: &Raw,
        work: impl FnOnce(&RawBlocks) -> Result<T, TreeError>,
    ) -> Result<Option<T>, TreeError> {
        let bound = self.bound()?;
        let mut middle = bound.get().map_err(TxnError::from)?.lock();
        if middle.nest.running()?.is_none() {
            return Ok(None);
        }
        let done = self.blocks_of(&mut middle, raw).and_then(|blocks| work(&blocks));
        if let Some(why) = done.as_ref().err().and_then(Fate::preempted) {
            middle.nest.preempt(why);
        }
        done.map(Some)
    }

    /// The raw blocks as the running transaction sees them; it reads the catalogue once.
    fn blocks_of(&self, middle: &mut Middle, raw: &Raw) -> Result<RawBlocks, TreeError> {
        if let Some((_, blocks)) = middle.raw.iter().find(|(id, _)| *id == raw.id()) {
            return Ok(blocks.clone());
        }
        let Some(transaction) = middle.nest.running()? else {
            return Err(TreeError::Invalid("no transaction has begun here".to_owned()));
        };
        let blocks = self.run(raw.within(transaction.clone()))?;
        middle.raw.push((raw.id(), blocks.clone()));
        Ok(blocks)
    }
}

fn places(block: u64, count: u64) -> Result<Range<u64>, TreeError> {
    // The transaction checks whether the blocks exist.
    let end = block.checked_add(count).ok_or_else(|| {
        TreeError::Invalid(format!("{count} blocks from {block} on do not exist"))
    })?;
    Ok(block..end)
}
