//! Transactions on states that are chosen as blocks are read.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::transaction::ZEROS;
use super::{Durability, Handle, Reader, Seen, Transaction, TxnError};
use crate::block::{BlocksExt, Class, EpochVersion, Lba, StoreError, Version};
use crate::stale::{Needs, Snapshot, StaleError, StaleView, Versioned};

/// A view of this process. It is a running transaction too, so that limits count it and it ends with its process.
#[derive(Debug)]
pub(super) struct LocalView {
    running: Arc<dyn Transaction>,
    view: StaleView,
}

impl LocalView {
    /// Opens a view, for which `running` stands in the list of transactions.
    pub(super) fn open(
        running: Arc<dyn Transaction>,
        versions: &Versioned,
        needs: &Needs,
        first: Version,
    ) -> Result<LocalView, TxnError> {
        let view = versions.view(needs, first).map_err(|error| as_txn(versions, error))?;
        Ok(LocalView { running, view })
    }

    fn versions(&self) -> &Versioned {
        self.view.versions()
    }
}

/// An error as one of a transaction.
fn as_txn(versions: &Versioned, error: StaleError) -> TxnError {
    match error {
        StaleError::Unserved(why) => TxnError::Unserved(why),
        StaleError::Store(StoreError::Gone(version)) => {
            TxnError::Gone(versions.store().name(version))
        }
        StaleError::Store(error) => error.into(),
        StaleError::OldSnapshot(_) => StoreError::ReadOnly.into(),
        StaleError::Closed => TxnError::Ended,
        StaleError::Guarantee(_) => TxnError::Invalid(error.to_string()),
    }
}

fn filled(blocks: Vec<Option<Bytes>>) -> Vec<Bytes> {
    blocks.into_iter().map(|block| block.unwrap_or_else(|| ZEROS.clone())).collect()
}

#[async_trait]
impl Reader for LocalView {
    fn blocks(&self) -> u64 {
        self.running.blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        // Whether it was ended from outside: it takes no block from there.
        self.running.read_run(lba, 0).await?;
        Ok(filled(self.view.read_run(lba, count).await?))
    }

    fn please_cache(&self, lba: Lba) {
        self.versions().store().please_cache(lba);
    }

    fn version(&self) -> EpochVersion {
        self.versions().store().name(self.view.range().up)
    }

    async fn seen(&self) -> Result<Seen, TxnError> {
        let (range, versions) = (self.view.range(), self.versions());
        Ok(Seen {
            range,
            age: versions.age(range.up),
            position: versions.position_of(range.low),
            timeline: versions.timeline(),
        })
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        let version = self.version();
        self.running.commit(durability).await?;
        Ok(version)
    }

    async fn abort(&self) {
        self.running.abort().await;
    }
}

/// A snapshot as a transaction, so that stores of keys and values can be read and written through it. It is no
/// transaction of a manager: nothing is decided by it.
#[async_trait]
impl Transaction for Snapshot {
    fn blocks(&self) -> u64 {
        self.versions().store().blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        let mut blocks = Vec::new();
        for lba in (lba.0..lba.0.saturating_add(count)).map(Lba) {
            let block = Snapshot::read(self, lba).await;
            blocks.push(block.map_err(|error| as_txn(self.versions(), error))?);
        }
        Ok(filled(blocks))
    }

    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError> {
        let written = Snapshot::write_as(self, lba, Some(content), class);
        written.map_err(|error| as_txn(self.versions(), error))
    }

    fn discard(&self, lba: Lba) -> Result<(), TxnError> {
        let written = Snapshot::write(self, lba, None);
        written.map_err(|error| as_txn(self.versions(), error))
    }

    fn mark_accessed(&self, _lba: Lba, _range: Range<usize>) -> Result<(), TxnError> {
        Ok(())
    }

    fn depend(&self, _lba: Lba, _range: Range<usize>) -> Result<(), TxnError> {
        Ok(())
    }

    fn please_cache(&self, lba: Lba) {
        self.versions().store().please_cache(lba);
    }

    /// The version that is read.
    fn version(&self) -> EpochVersion {
        self.versions().store().name(self.read_version())
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        self.close().await.map_err(|error| as_txn(self.versions(), error))?;
        let store = self.versions().store();
        if durability == Durability::Synced {
            store.sync(Snapshot::version(self)).await?;
        }
        Ok(store.name(Snapshot::version(self)))
    }

    async fn abort(&self) {
        self.discard_writes();
    }

    async fn release(&self) -> Result<Handle, TxnError> {
        Err(TxnError::Invalid("a snapshot has one owner".to_owned()))
    }
}
