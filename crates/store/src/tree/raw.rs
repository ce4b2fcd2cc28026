//! Raw access: blocks for programs with their own layout, in a raw partition or on a volume without
//! partitions.
//!
//! A transaction with raw writes depends on the catalogue: it conflicts with one that drops the partition, or
//! that creates the first partition of a volume. So a raw write never overwrites another program's data.

use std::ops::Range;
use std::sync::Arc;

use async_recursion::async_recursion;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::catalogue;
use super::error::TreeError;
use super::format::{CATALOGUE_BLOCKS, CATALOGUE_MAGIC, Kind, UNIT};
use super::partition::Partition;
use crate::block::{EpochVersion, Lba, Version};
use crate::txn::{Begin, Durability, Transact, Transaction, run};

/// The bytes of a catalogue block that change with anything in it: they hold its checksum.
const CHANGES: Range<usize> = 0..UNIT;

/// The blocks of a raw partition, or of a volume without partitions, numbered from 0. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Raw {
    volume: Arc<dyn Transact>,
    /// `None`: the whole volume.
    partition: Option<Partition>,
    seen: Arc<Mutex<Seen>>,
    /// A version that has the partition, once that was asked for; older ones may not have it.
    pub(super) first: Arc<OnceCell<Version>>,
}

/// The catalogue as last seen, so that most transactions read one block of it.
#[derive(Debug, Default)]
struct Seen {
    /// The catalogue block that lists the partition, and its content.
    listing: Option<(Lba, Bytes)>,
    /// The volume had no partitions.
    unpartitioned: bool,
}

impl Raw {
    /// The blocks of the raw partition of that name.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`] for a store, [`TreeError::OfFilesystem`], and those of
    /// [`catalogue::open`].
    #[async_recursion]
    pub async fn open(volume: Arc<dyn Transact>, name: &str) -> Result<Raw, TreeError> {
        let partition = catalogue::open(&*volume, name).await?;
        if partition.kind != Kind::Raw {
            return Err(TreeError::WrongKind {
                name: partition.name,
                is: partition.kind,
                wanted: "raw partition",
            });
        }
        catalogue::refuse_filesystem(&*volume, name).await?;
        Ok(Raw { volume, partition: Some(partition), seen: Arc::default(), first: Arc::default() })
    }

    /// All blocks of a volume, for as long as it has no partitions.
    pub fn whole(volume: Arc<dyn Transact>) -> Raw {
        Raw { volume, partition: None, seen: Arc::default(), first: Arc::default() }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.partition.as_ref().map_or_else(|| self.volume.blocks(), Partition::size)
    }

    /// The volume.
    pub(super) fn volume(&self) -> &Arc<dyn Transact> {
        &self.volume
    }

    /// The volume blocks that it takes, and what to call it.
    fn area(&self) -> (Vec<Range<u64>>, String) {
        match &self.partition {
            Some(it) => (it.ranges().collect(), format!("partition {}", it.name)),
            None => (std::iter::once(0..self.volume.blocks()).collect(), "the volume".to_owned()),
        }
    }

    /// The block of the volume that is a block here.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] outside.
    pub fn place(&self, block: u64) -> Result<Lba, TreeError> {
        let (runs, name) = self.area();
        lba(&runs, &name, block)
    }

    /// The partition's identity; nil for a whole volume.
    pub fn id(&self) -> Uuid {
        self.partition.as_ref().map_or(Uuid::nil(), |it| it.uuid)
    }

    /// The blocks as a transaction sees them and changes them.
    ///
    /// # Errors
    /// [`TreeError::Missing`] when the partition was dropped, [`TreeError::Partitioned`] when the volume has
    /// partitions now.
    pub async fn within(&self, txn: Arc<dyn Transaction>) -> Result<RawBlocks, TreeError> {
        match &self.partition {
            Some(partition) => self.verify_partition(&*txn, partition).await?,
            None => self.verify_whole(&*txn).await?,
        }
        let (runs, name) = self.area();
        Ok(RawBlocks { txn, runs, name })
    }

    async fn verify_partition(
        &self,
        txn: &dyn Transaction,
        partition: &Partition,
    ) -> Result<(), TreeError> {
        let listing = self.seen.lock().listing.clone();
        if let Some((lba, content)) = listing {
            let now = txn.read(lba).await?;
            depend(txn, lba)?;
            if now == content {
                return Ok(());
            }
        }
        let lba = catalogue::listing(txn, partition).await?;
        let content = txn.read(lba).await?;
        depend(txn, lba)?;
        self.seen.lock().listing = Some((lba, content));
        Ok(())
    }

    async fn verify_whole(&self, txn: &dyn Transaction) -> Result<(), TreeError> {
        let head = txn.read(Lba(0)).await?;
        depend(txn, Lba(0))?;
        // Checked in full once: afterwards only a commit that changes block 0 creates partitions.
        let is_known = self.seen.lock().unpartitioned;
        let unpartitioned = match head.starts_with(&CATALOGUE_MAGIC) {
            true => false,
            false => is_known || self.is_unpartitioned(txn).await?,
        };
        self.seen.lock().unpartitioned = unpartitioned;
        match unpartitioned {
            true => Ok(()),
            false => Err(catalogue::refusal(&*self.volume, 0).await),
        }
    }

    async fn is_unpartitioned(&self, txn: &dyn Transaction) -> Result<bool, TreeError> {
        let is_there = catalogue::is_there_in(txn).await?;
        // Block 0 changes with any of them: the transaction need not depend on the others.
        for lba in 1..CATALOGUE_BLOCKS.min(txn.blocks()) {
            txn.mark_accessed(Lba(lba), 0..0)?;
        }
        Ok(!is_there)
    }

    /// Reads `count` blocks from `block` on, as of the latest commit.
    ///
    /// # Errors
    /// As [`Raw::within`] and [`RawBlocks::read`].
    pub async fn read(&self, block: u64, count: u64) -> Result<Vec<Bytes>, TreeError> {
        let txn = self.volume.begin(Begin::SNAPSHOT).await?;
        self.within(txn).await?.read(block, count).await
    }

    /// Runs `change` in a transaction of its own, which survives a crash when this returns. `change` is
    /// called again after a conflict.
    ///
    /// # Errors
    /// As [`Raw::within`], and those of `change`.
    pub async fn change(
        &self,
        change: impl Fn(&RawBlocks) -> Result<(), TreeError> + Sync,
    ) -> Result<(), TreeError> {
        let change = &change;
        let work = move |txn| async move { change(&self.within(txn).await?) };
        run(&*self.volume, Begin::SNAPSHOT, Durability::Synced, work).await
    }
}

/// Makes the transaction conflict with one that changes a block of the catalogue.
fn depend(txn: &dyn Transaction, lba: Lba) -> Result<(), TreeError> {
    txn.mark_accessed(lba, CHANGES)?;
    Ok(txn.depend(lba, CHANGES)?)
}

/// The volume blocks of a range of blocks in `runs`.
fn places(
    runs: &[Range<u64>],
    name: &str,
    block: u64,
    count: u64,
) -> Result<Vec<Range<u64>>, TreeError> {
    let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
    if block.checked_add(count).is_none_or(|end| end > blocks) {
        return Err(TreeError::Invalid(format!(
            "{count} blocks from {block} on leave {name}, which has {blocks} blocks"
        )));
    }
    let (mut skip, mut missing, mut places) = (block, count, Vec::new());
    for run in runs {
        let start = run.start + skip.min(run.end - run.start);
        skip -= start - run.start;
        let end = start + missing.min(run.end - start);
        missing -= end - start;
        if start < end {
            places.push(start..end);
        }
    }
    Ok(places)
}

fn lba(runs: &[Range<u64>], name: &str, block: u64) -> Result<Lba, TreeError> {
    let places = places(runs, name, block, 1)?;
    Ok(Lba(places.first().map_or(0, |place| place.start)))
}

/// The blocks of a [`Raw`] within one transaction.
#[derive(Clone, Debug)]
pub struct RawBlocks {
    txn: Arc<dyn Transaction>,
    /// The volume blocks that they take.
    runs: Vec<Range<u64>>,
    name: String,
}

impl RawBlocks {
    /// The version that the transaction reads.
    pub fn version(&self) -> EpochVersion {
        self.txn.version()
    }

    fn lba(&self, block: u64) -> Result<Lba, TreeError> {
        lba(&self.runs, &self.name, block)
    }

    /// Reads `count` blocks from `block` on; zeros where nothing is stored.
    ///
    /// # Errors
    /// As [`Transaction::read_run`]; [`TreeError::Invalid`] for blocks outside, as all calls here.
    pub async fn read(&self, block: u64, count: u64) -> Result<Vec<Bytes>, TreeError> {
        let mut blocks = Vec::with_capacity(count as usize);
        for place in places(&self.runs, &self.name, block, count)? {
            blocks.extend(self.txn.read_run(Lba(place.start), place.end - place.start).await?);
        }
        Ok(blocks)
    }

    /// Writes a block, [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    pub fn write(&self, block: u64, content: Bytes) -> Result<(), TreeError> {
        Ok(self.txn.write(self.lba(block)?, content)?)
    }

    /// Discards a block: it reads as zeros.
    ///
    /// # Errors
    /// As [`Transaction::discard`].
    pub fn discard(&self, block: u64) -> Result<(), TreeError> {
        Ok(self.txn.discard(self.lba(block)?)?)
    }

    /// Narrows the last read or write of a block to these bytes.
    ///
    /// # Errors
    /// As [`Transaction::mark_accessed`].
    pub fn mark_accessed(&self, block: u64, range: Range<usize>) -> Result<(), TreeError> {
        Ok(self.txn.mark_accessed(self.lba(block)?, range)?)
    }

    /// Asks for a block to be kept in memory: a hint.
    ///
    /// # Errors
    /// [`TreeError::Invalid`].
    pub fn please_cache(&self, block: u64) -> Result<(), TreeError> {
        self.txn.please_cache(self.lba(block)?);
        Ok(())
    }
}
