//! Reads at versions as a transaction, so that stores of keys and values can be read through them.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use super::Versioned;
use crate::block::{BLOCK_SIZE, Class, EpochVersion, Lba, StoreError, Version};
use crate::txn::{Durability, Handle, Transaction, TxnError};

/// Blocks of one state.
#[async_trait]
pub(super) trait Pages: Send + Sync + fmt::Debug {
    /// The store.
    fn versions(&self) -> &Versioned;

    /// `count` blocks from `lba` on; `None` where nothing is stored.
    async fn pages(&self, lba: Lba, count: u64) -> Result<Vec<Option<Bytes>>, StoreError>;

    /// The version of the state, or the newest of several.
    fn newest(&self) -> Version;
}

/// A read-only transaction on blocks of one state.
#[derive(Debug)]
pub(super) struct Reading<'a, P>(pub(super) &'a P);

#[async_trait]
impl<P: Pages> Transaction for Reading<'_, P> {
    fn blocks(&self) -> u64 {
        self.0.versions().store().blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        let blocks = self.0.pages(lba, count).await?.into_iter();
        let zeros = || Bytes::from_static(&[0; BLOCK_SIZE]);
        Ok(blocks.map(|block| block.unwrap_or_else(zeros)).collect())
    }

    fn write_as(&self, _lba: Lba, _content: Bytes, _class: Class) -> Result<(), TxnError> {
        Err(StoreError::ReadOnly.into())
    }

    fn discard(&self, _lba: Lba) -> Result<(), TxnError> {
        Err(StoreError::ReadOnly.into())
    }

    /// Without effect, as in every read-only transaction.
    fn mark_accessed(&self, _lba: Lba, _range: std::ops::Range<usize>) -> Result<(), TxnError> {
        Ok(())
    }

    /// Without effect, as in every read-only transaction.
    fn depend(&self, _lba: Lba, _range: std::ops::Range<usize>) -> Result<(), TxnError> {
        Ok(())
    }

    fn please_cache(&self, lba: Lba) {
        self.0.versions().store().please_cache(lba);
    }

    fn version(&self) -> EpochVersion {
        self.0.versions().store().name(self.0.newest())
    }

    async fn commit(&self, _durability: Durability) -> Result<EpochVersion, TxnError> {
        Ok(self.version())
    }

    async fn abort(&self) {}

    async fn release(&self) -> Result<Handle, TxnError> {
        Err(TxnError::Invalid("reads of old versions have one owner".to_owned()))
    }
}
