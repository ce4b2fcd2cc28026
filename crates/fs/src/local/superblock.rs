//! The superblock, and two copies of it outside of the tree: in the label of the tree's store, and in a
//! partition of its own. They are used where the record in the tree is missing or invalid.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::{BLOCK_SIZE, Class, Lba};
use thalweg_store::tree::{Partition, Store, TreeError, catalogue};
use thalweg_store::txn::{Begin, Durability, Transact, Transaction, run};
use zerocopy::{FromBytes, IntoBytes};

use super::format::{
    FORMAT_VERSION, HASH_BITS, SUPER_MAGIC, SUPER_SUFFIX, SuperRecord, Tag, decode, key,
};
use crate::error::FsError;

/// Decodes a superblock and checks that its data lies in this partition.
///
/// # Errors
/// [`FsError::Damaged`], [`FsError::Newer`].
pub(super) fn verified(value: &[u8], data: &Partition) -> Result<SuperRecord, FsError> {
    let damaged = |what: &str| FsError::Damaged(format!("the superblock {what}"));
    if value.get(..8) != Some(&SUPER_MAGIC[..]) {
        return Err(damaged("is none"));
    }
    let record: SuperRecord = decode(value, || "the superblock has another size".to_owned())?;
    if record.version.get() > FORMAT_VERSION {
        return Err(FsError::Newer(record.version.get()));
    }
    if record.checksum.get() != record.sum() {
        return Err(damaged("does not match its checksum"));
    }
    if record.data != *data.uuid.as_bytes() {
        return Err(damaged("belongs to other data"));
    }
    if !(1..=HASH_BITS).contains(&record.hash_bits) {
        return Err(damaged("has names hashed in no way"));
    }
    Ok(record)
}

/// The superblock as the tree has it.
///
/// # Errors
/// [`FsError::Damaged`] when it is absent or invalid, [`FsError::Newer`], and those of the tree.
pub(super) async fn stored_record(
    tree: &Store,
    txn: &dyn Transaction,
    data: &Partition,
) -> Result<SuperRecord, FsError> {
    let value = tree.get_in(txn, &key(0, Tag::Super, &[])).await?;
    let value = value.ok_or_else(|| FsError::Damaged("the superblock is missing".to_owned()))?;
    verified(&value, data)
}

/// Where the copies of a superblock are.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    tree: Store,
    /// The partition for it: filesystems that were made before there was one have none.
    block: Option<Lba>,
}

impl Copies {
    /// Finds the copies of a filesystem's superblock.
    ///
    /// # Errors
    /// Those of the catalogue of partitions.
    pub(crate) async fn find(
        volume: &Arc<dyn Transact>,
        name: &str,
        tree: &Store,
    ) -> Result<Copies, FsError> {
        let block = match catalogue::open(&**volume, &(name.to_owned() + SUPER_SUFFIX)).await {
            Ok(partition) => Some(Lba(partition.first)),
            Err(TreeError::Missing(_) | TreeError::Unfinished(_)) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Copies { tree: tree.clone(), block })
    }

    /// Reads the copies; `None` for one that is unreadable.
    async fn read(&self, txn: &dyn Transaction) -> Result<[Option<Bytes>; 2], FsError> {
        let label = readable(self.tree.label_in(txn).await.map_err(FsError::from))?;
        let block = match self.block {
            Some(lba) => readable(txn.read(lba).await.map_err(FsError::from))?,
            None => None,
        };
        let head = |copy: Bytes| copy.slice(..copy.len().min(size_of::<SuperRecord>()));
        Ok([label, block].map(|copy| copy.map(head)))
    }

    /// The first valid copy of the superblock.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn record(
        &self,
        txn: &dyn Transaction,
        data: &Partition,
    ) -> Result<Option<SuperRecord>, FsError> {
        let copies = self.read(txn).await?;
        Ok(copies.iter().flatten().find_map(|copy| verified(copy, data).ok()))
    }

    /// Writes the superblock: its record, and the copies.
    pub(crate) async fn write(
        &self,
        txn: &dyn Transaction,
        record: &SuperRecord,
    ) -> Result<(), FsError> {
        self.tree.put_in(txn, &key(0, Tag::Super, &[]), record.as_bytes().to_vec()).await?;
        self.write_copies(txn, record).await
    }

    /// Writes the copies.
    pub(crate) async fn write_copies(
        &self,
        txn: &dyn Transaction,
        record: &SuperRecord,
    ) -> Result<(), FsError> {
        self.tree.set_label_in(txn, record.as_bytes()).await?;
        if let Some(lba) = self.block {
            let mut block = vec![0; BLOCK_SIZE];
            block[..size_of::<SuperRecord>()].copy_from_slice(record.as_bytes());
            txn.write_as(lba, block.into(), Class::Metadata)?;
        }
        Ok(())
    }

    /// Writes copies that are missing or differ from the record in the tree, if that record is valid.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn refresh(&self, volume: &dyn Transact) -> Result<(), FsError> {
        run(volume, Begin::STRICT, Durability::Visible, async |txn| {
            let value = self.tree.get_in(&*txn, &key(0, Tag::Super, &[])).await?;
            let record = value.and_then(|value| SuperRecord::read_from_bytes(&value).ok());
            let is_whole =
                |it: &SuperRecord| it.magic == SUPER_MAGIC && it.checksum.get() == it.sum();
            // An invalid record must not overwrite its copies.
            let Some(record) = record.filter(is_whole) else { return Ok(()) };
            let [label, block] = self.read(&*txn).await?;
            let is_same =
                |copy: &Option<Bytes>| copy.as_ref().is_some_and(|it| it == record.as_bytes());
            if is_same(&label) && (self.block.is_none() || is_same(&block)) {
                Ok(())
            } else {
                self.write_copies(&*txn, &record).await
            }
        })
        .await
    }
}

/// `None` where the error is damage of the store.
fn readable<T>(read: Result<T, FsError>) -> Result<Option<T>, FsError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_damage_below() => Ok(None),
        Err(error) => Err(error),
    }
}
