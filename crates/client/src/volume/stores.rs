//! Key-value stores in the partitions of a volume. A call inside this thread's transaction is part of it, so
//! that a transaction may span several stores and raw blocks; any other call is a transaction of its own.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::EpochVersion;
use thalweg_store::tree::{Batch, Iter, Kind, NewPartition, Pair, Store, TreeError, catalogue};
use thalweg_store::txn::{Begin, Durability, Transaction, run};

use super::Volume;

impl Volume {
    /// Makes a partition of `blocks` blocks; without a number, of the longest free run.
    ///
    /// # Errors
    /// As [`catalogue::create`]; [`TreeError::Invalid`] inside a transaction, since the partition would not
    /// be part of it.
    pub fn create_store(
        &self,
        name: &str,
        kind: Kind,
        blocks: Option<u64>,
    ) -> Result<(), TreeError> {
        if self.depth() > 0 {
            let why = "a partition is not made in the middle of a transaction".to_owned();
            return Err(TreeError::Invalid(why));
        }
        let new = NewPartition { name: name.to_owned(), kind, first: None, blocks };
        self.run(catalogue::create(&self.own()?.env, &*self.transact, &new)).map(|_| ())
    }

    /// Opens the store in a partition.
    ///
    /// # Errors
    /// [`TreeError::OfFilesystem`], and as [`Store::open`].
    pub fn open_store(&self, name: &str) -> Result<Store, TreeError> {
        self.run(async {
            let store = Store::open(&self.own()?.env, self.transact.clone(), name).await?;
            catalogue::refuse_filesystem(&*self.transact, name).await?;
            Ok(store)
        })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`Store::get_in`].
    pub fn get(&self, store: &Store, key: &[u8]) -> Result<Option<Bytes>, TreeError> {
        match self.inside(|it| self.run(store.get_in(&**it, key)))? {
            Some(value) => Ok(value),
            None => self.run(store.get(key)),
        }
    }

    /// [`Volume::get`], and which version the value is of; see [`Volume::read_with_version`].
    ///
    /// # Errors
    /// As [`Volume::get`].
    pub fn get_with_version(
        &self,
        store: &Store,
        key: &[u8],
    ) -> Result<(EpochVersion, Option<Bytes>), TreeError> {
        let read = async |it: Arc<dyn Transaction>| -> Result<_, TreeError> {
            Ok((it.version(), store.get_in(&*it, key).await?))
        };
        match self.inside(|it| self.run(read(it.clone())))? {
            Some(done) => Ok(done),
            None => self.run(run(&*self.transact, Begin::SNAPSHOT, Durability::Visible, read)),
        }
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub fn put(&self, store: &Store, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
        let value = Bytes::copy_from_slice(value);
        match self.inside(|it| self.run(store.put_in(&**it, key, value.clone())))? {
            Some(()) => Ok(()),
            None => self.run(store.put(key, value)),
        }
    }

    /// Deletes a key; returns whether it was present.
    ///
    /// # Errors
    /// As [`Store::delete_in`].
    pub fn delete(&self, store: &Store, key: &[u8]) -> Result<bool, TreeError> {
        match self.inside(|it| self.run(store.delete_in(&**it, key)))? {
            Some(was_there) => Ok(was_there),
            None => self.run(store.delete(key)),
        }
    }

    /// Applies a batch: all of its changes or none.
    ///
    /// # Errors
    /// As [`Store::write_in`].
    pub fn write_batch(&self, store: &Store, batch: &Batch) -> Result<(), TreeError> {
        match self.inside(|it| self.run(store.write_in(&**it, batch)))? {
            Some(()) => Ok(()),
            None => self.run(store.write(batch)),
        }
    }

    /// Iterates over keys and values: in a store with an order, sorted, from `from` (inclusive) to `to`
    /// (exclusive), each optional. It sees what this thread's transaction sees, or the state now.
    ///
    /// # Errors
    /// As [`Store::range_in`].
    pub fn scan(
        &self,
        store: &Store,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<Iter, TreeError> {
        let range = (
            from.map_or(Bound::Unbounded, Bound::Included),
            to.map_or(Bound::Unbounded, Bound::Excluded),
        );
        let is_all = from.is_none() && to.is_none();
        let inside = |it: &Arc<dyn Transaction>| match is_all {
            true => Ok(store.iter_in(it.clone())),
            false => store.range_in::<&[u8]>(it.clone(), range),
        };
        match (self.inside(inside)?, is_all) {
            (Some(iter), _) => Ok(iter),
            (None, true) => self.run(store.iter()),
            (None, false) => self.run(store.range::<&[u8]>(range)),
        }
    }

    /// The next pair of a [`Volume::scan`].
    ///
    /// # Errors
    /// As [`Iter::next`].
    pub fn next(&self, iter: &mut Iter) -> Result<Option<Pair>, TreeError> {
        self.run(iter.next())
    }
}
