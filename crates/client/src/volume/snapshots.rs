//! Old versions: reads of a given one, what they cost, and snapshots around ordinary reads (Yogurt, tables 5.1 and 5.2).

use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::{Lba, StoreError, Version};
use thalweg_store::stale::{Cost, Needs, Unserved, VersionRange};
use thalweg_store::tree::{Raw, Store, TreeError};
use thalweg_store::txn::{Durability, Transaction, TxnError};

use super::Volume;

impl Volume {
    async fn view_at(&self, version: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        let needs = Needs { at: Some(version), ..Needs::default() };
        self.transact.view(&needs, Version(0)).await
    }

    /// Opens a snapshot: until [`Volume::close_snapshot`] this thread's reads, of blocks and of keys, see this version, and
    /// its writes are refused. It is a transaction of the thread.
    ///
    /// # Errors
    /// [`TxnError::Gone`] for a version that is not kept, [`Unserved::Behind`] for one of the future, and
    /// [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn open_snapshot(&self, version: Version) -> Result<(), TxnError> {
        self.check_alone()?;
        let view = self.run(self.view_at(version))?;
        let bound = self.bound()?;
        let mut middle = bound.get().map_err(TxnError::from)?.lock();
        middle.nest.enter(view)?;
        middle.is_snapshot = true;
        Ok(())
    }

    /// Closes this thread's snapshot.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] when none is open, or a transaction is open inside of it; the error that has ended the
    /// snapshot.
    pub fn close_snapshot(&self) -> Result<(), TxnError> {
        let invalid = |why: &str| Err(TxnError::Invalid(why.to_owned()));
        {
            let bound = self.bound()?;
            let middle = bound.get()?.lock();
            match (middle.is_snapshot, middle.nest.depth()) {
                (false, _) => return invalid("no snapshot is open here"),
                (true, 0..=1) => {}
                (true, _) => return invalid("a transaction is open inside of the snapshot"),
            }
        }
        match self.end()? {
            super::Outcome::Committed(_) => Ok(()),
            super::Outcome::Aborted(why) => Err(why),
        }
    }

    /// Reads blocks at a version (*ReadVersion*).
    ///
    /// # Errors
    /// As [`Volume::open_snapshot`] and [`Transaction::read_run`].
    pub fn read_at(&self, version: Version, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.check_alone()?;
        self.run(async {
            let view = self.view_at(version).await?;
            let blocks = view.read_run(lba, count).await?;
            view.commit(Durability::Visible).await?;
            Ok(blocks)
        })
    }

    /// [`Volume::read_at`], of a raw partition.
    ///
    /// # Errors
    /// As [`Volume::read_at`] and [`Raw::within`].
    pub fn read_raw_at(
        &self,
        version: Version,
        raw: &Raw,
        block: u64,
        count: u64,
    ) -> Result<Vec<Bytes>, TreeError> {
        self.check_alone()?;
        self.run(async {
            let view = self.view_at(version).await?;
            let blocks = raw.within(view.clone()).await?.read(block, count).await?;
            view.commit(Durability::Visible).await?;
            Ok(blocks)
        })
    }

    /// The value of a key at a version (*Get*).
    ///
    /// # Errors
    /// As [`Store::get_version`], and [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn get_at(
        &self,
        version: Version,
        store: &Store,
        key: &[u8],
    ) -> Result<Option<Bytes>, TreeError> {
        self.check_alone()?;
        self.run(store.get_version(key, version))
    }

    /// The contents of a block in a range of versions, as far as they can be read, oldest first, each with the versions that
    /// have it and what it costs: *GetCost* and *GetVersionRange* of all of them in one call.
    ///
    /// # Errors
    /// As [`Transact::contents`](thalweg_store::txn::Transact::contents).
    pub fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        self.run(self.transact.contents(lba, range))
    }

    fn content_at(&self, lba: Lba, version: Version) -> Result<(VersionRange, Cost), TxnError> {
        let contents = self.contents(lba, VersionRange { low: version, up: version })?;
        if let Some(content) = contents.first() {
            return Ok(*content);
        }
        match version > self.run(self.transact.standing())?.newest {
            true => Err(Unserved::Behind(version).into()),
            false => Err(StoreError::Gone(version).into()),
        }
    }

    /// What it costs to read a block at a version (*GetCost*).
    ///
    /// # Errors
    /// [`StoreError::Gone`] for a version that is not kept, [`Unserved::Behind`] for one of the future, and as
    /// [`Volume::contents`].
    pub fn cost(&self, lba: Lba, version: Version) -> Result<Cost, TxnError> {
        Ok(self.content_at(lba, version)?.1)
    }

    /// The versions in which a block has the content of a version (*GetVersionRange*), as far as they can be read.
    ///
    /// # Errors
    /// As [`Volume::cost`].
    pub fn version_range(&self, lba: Lba, version: Version) -> Result<VersionRange, TxnError> {
        Ok(self.content_at(lba, version)?.0)
    }

    /// What it costs to read a key at a version.
    ///
    /// # Errors
    /// As [`Store::cost`].
    pub fn cost_of_key(
        &self,
        store: &Store,
        key: &[u8],
        version: Version,
    ) -> Result<Cost, TreeError> {
        self.run(store.cost(key, version))
    }

    /// The versions in which a key is known to have the value of a version.
    ///
    /// # Errors
    /// As [`Store::version_range`].
    pub fn versions_of_key(
        &self,
        store: &Store,
        key: &[u8],
        version: Version,
    ) -> Result<VersionRange, TreeError> {
        self.run(store.version_range(key, version))
    }
}
