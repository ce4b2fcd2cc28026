//! Growth of a filesystem, mounted or not.
//!
//! The partitions of metadata and data get further runs of blocks. One transaction adds the runs and
//! writes the new size into the superblock, so that a crash leaves the old size or the new one. No block is
//! moved, and running calls continue.

use std::sync::atomic::Ordering;

use async_recursion::async_recursion;
use thalweg_store::tree::catalogue::{self, growth};
use thalweg_store::tree::format::MIN_BLOCKS;
use thalweg_store::tree::{Partition, TreeError};
use thalweg_store::txn::{Begin, Durability, Transact, Transaction, run};
use uuid::Uuid;

use super::LocalFs;
use super::area::DataArea;
use super::content::BLOCK;
use super::format::{DATA_SUFFIX, META_SUFFIX, SUPER_SUFFIX};
use super::fs_state::FsState;
use super::make::{METADATA_SHARE, count_free, inodes_for};
use super::superblock::stored_record;
use crate::error::FsError;

/// Blocks of the smallest growth: a smaller rest of a volume stays unused.
const LEAST: u64 = 64;

/// The size of a filesystem before and after a growth, in bytes of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Before.
    pub before: u64,
    /// Now.
    pub size: u64,
}

/// The size of the filesystem of that name, in bytes of its volume.
///
/// # Errors
/// Those of the catalogue of partitions.
pub async fn size(volume: &dyn Transact, name: &str) -> Result<u64, FsError> {
    Ok(Partitions::find(volume, name).await?.blocks() * BLOCK)
}

/// The size of the filesystem of that name, and its size after [`LocalFs::grow`], in bytes of its volume.
///
/// # Errors
/// Those of the catalogue of partitions.
pub async fn room(volume: &dyn Transact, name: &str) -> Result<(u64, u64), FsError> {
    let found = Partitions::find(volume, name).await?;
    let now = found.blocks();
    let more = found.room(volume).await?;
    let more = if more < LEAST { 0 } else { more };
    Ok((now * BLOCK, (now + more) * BLOCK))
}

/// The partitions of a filesystem.
struct Partitions {
    meta: Partition,
    data: Partition,
    /// Blocks of the one with the copy of the superblock.
    copy: u64,
}

impl Partitions {
    async fn find(volume: &dyn Transact, name: &str) -> Result<Partitions, FsError> {
        let meta = catalogue::open(volume, &(name.to_owned() + META_SUFFIX)).await?;
        let data = catalogue::open(volume, &(name.to_owned() + DATA_SUFFIX)).await?;
        let copy = match catalogue::open(volume, &(name.to_owned() + SUPER_SUFFIX)).await {
            Ok(copy) => copy.size(),
            Err(TreeError::Missing(_) | TreeError::Unfinished(_)) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Partitions { meta, data, copy })
    }

    fn blocks(&self) -> u64 {
        self.meta.size() + self.data.size() + self.copy
    }

    /// Blocks that the volume has free for them.
    async fn room(&self, volume: &dyn Transact) -> Result<u64, FsError> {
        Ok(growth::room(volume, &[&self.meta.name, &self.data.name]).await?)
    }

    /// Of `more` additional blocks, those for metadata: up to its share of the whole.
    fn metadata_of(&self, more: u64) -> u64 {
        let share = (self.blocks() + more) / METADATA_SHARE;
        let missing = share.saturating_sub(self.meta.size()).min(more / 2);
        // A run has a minimum size.
        if missing < MIN_BLOCKS { 0 } else { missing }
    }
}

impl LocalFs {
    /// Grows the filesystem into the free space of its volume, between partitions and behind them; with
    /// `size`, to that many bytes of the volume. Other handles on the filesystem must be opened again: they
    /// would report files in the new space as damaged.
    ///
    /// # Errors
    /// [`FsError::Smaller`] when it is larger than `size` already, [`FsError::NoRoom`] when the volume has
    /// less, [`FsError::ReadOnly`], [`FsError::NotSupported`] for a handle from [`LocalFs::within`], and
    /// those of the catalogue of partitions.
    #[async_recursion]
    pub async fn grow(&self, size: Option<u64>) -> Result<Growth, FsError> {
        match &self.within {
            Some(_) => Err(FsError::NotSupported),
            None if self.inner.options.read_only => Err(FsError::ReadOnly),
            None => self.inner.grow(size).await,
        }
    }
}

impl FsState {
    #[async_recursion]
    async fn grow(&self, size: Option<u64>) -> Result<Growth, FsError> {
        let _one = self.growing.lock().await;
        let volume = &*self.volume;
        let name = self.tree.name().strip_suffix(META_SUFFIX).unwrap_or_default().to_owned();
        let before = Partitions::find(volume, &name).await?;
        let names = [before.meta.name.as_str(), before.data.name.as_str()];
        let room = before.room(volume).await?;
        let now = before.blocks();
        let more = match size.map(|size| size.div_ceil(BLOCK)) {
            None => room,
            Some(wanted) if wanted < now => return Err(FsError::Smaller { size: now * BLOCK }),
            Some(wanted) if wanted > now + room => {
                return Err(FsError::NoRoom { size: (now + room) * BLOCK });
            }
            Some(wanted) => wanted - now,
        };
        if more < LEAST {
            return Ok(Growth { before: now * BLOCK, size: now * BLOCK });
        }
        let metadata = match self.external_contents {
            Some(_) => more,
            None => before.metadata_of(more),
        };
        let additions =
            [metadata, more - metadata].into_iter().zip(names).filter(|(blocks, _)| *blocks > 0);
        let additions = additions.map(|(blocks, name)| growth::Addition { name, blocks });
        growth::reserve(volume, &additions.collect::<Vec<_>>()).await?;
        let enlarged = run(volume, Begin::STRICT, Durability::Synced, async |txn| {
            let data = growth::add_in(&*txn, names[1]).await?;
            let meta = growth::add_in(&*txn, names[0]).await?;
            self.note_size(&*txn, &data).await?;
            Ok::<_, FsError>((meta, data))
        });
        let (meta, data) = enlarged.await?;
        self.grow_into(&meta, &data).await?;
        let now = Partitions { meta, data, copy: before.copy }.blocks();
        tracing::info!(filesystem = name, blocks = now, "the filesystem is larger");
        Ok(Growth { before: before.blocks() * BLOCK, size: now * BLOCK })
    }

    /// Writes into the superblock how much data there is now.
    async fn note_size(&self, txn: &dyn Transaction, data: &Partition) -> Result<(), FsError> {
        let mut record = stored_record(&self.tree, txn, data).await?;
        let area = DataArea::new(data, &Uuid::from_bytes(record.uuid))?;
        record.data_blocks = area.blocks().into();
        record.checksum = record.sum().into();
        self.copies.write(txn, &record).await
    }

    /// Makes the new blocks known in memory. No transaction has allocated from them yet.
    async fn grow_into(&self, meta: &Partition, data: &Partition) -> Result<(), FsError> {
        self.tree.grow_into(meta)?;
        self.area.grow_into(data)?;
        self.max_inodes.store(inodes_for(meta), Ordering::Relaxed);
        let txn = self.volume.begin(Begin::SNAPSHOT).await?;
        let pages = count_free(&*txn, &self.area, self.space.pages()).await?;
        self.space.grow(self.area.end(), pages);
        if self.rooms.are_counted() { self.recount_pages().await } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_store::tree::{Kind, State};

    use super::*;

    #[test]
    fn metadata_gets_its_share_of_all() {
        let partition = |kind, blocks| Partition {
            name: String::new(),
            kind,
            first: 16,
            blocks,
            further: vec![],
            uuid: Uuid::nil(),
            state: State::Ready,
        };
        let with = |meta, data| Partitions {
            meta: partition(Kind::Btree, meta),
            data: partition(Kind::Raw, data),
            copy: 1,
        };
        assert_eq!(with(64, 959).metadata_of(1024), 64);
        assert_eq!(with(64, 959).metadata_of(0), 0);
        assert_eq!([127, 128].map(|more| with(64, 959).metadata_of(more)), [0, 8]);
        // One that was made with more gets none before it has its share.
        assert_eq!(with(500, 523).metadata_of(1024), 0);
        assert_eq!(with(500, 523).metadata_of(15 * 1024), 524);
        // And one that has far too little leaves half.
        assert_eq!(with(32, 100_000).metadata_of(64), 32);
    }
}
