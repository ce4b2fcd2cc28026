//! A key-value store in a partition, as its users see it.
//!
//! Every call comes in two forms. One works within a transaction that the caller has begun, so that one
//! transaction may span several stores and raw blocks; the caller then commits, and retries when that fails.
//! The other does all of it: begin, work, commit, retry; concurrent callers share a transaction
//! (`group`). A store has no log and no cache: each transaction reads again.

use std::ops::RangeBounds;
use std::sync::Arc;

use async_recursion::async_recursion;
use bytes::Bytes;
use thalweg_env::Env;
use tokio::sync::OnceCell;

use super::area::Area;
use super::batch::{Batch, Change};
use super::catalogue;
use super::check::{self, Report};
use super::error::TreeError;
use super::format::{Kind, LABEL};
use super::group::{Found, Groups};
use super::partition::Partition;
use super::read_view::ReadViews;
use super::salvage::{self, Salvage};
use super::scan::Scan;
use super::value::Pair;
use super::work::Work;
use super::working_set::{WorkingSet, check};
use crate::block::Version;
use crate::txn::{Begin, Durability, Isolation, Retry, Transact, Transaction, newest, run};

/// A store in a partition: a B-tree or a hash table. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    env: Env,
    volume: Arc<dyn Transact>,
    area: Arc<Area>,
    isolation: Isolation,
    pub(super) durability: Durability,
    /// The store's own transactions that change it; of clones with this isolation and durability.
    groups: Groups,
    /// What the store's own transactions that only read share.
    views: ReadViews,
    /// A version that has the store, once that was asked for; older ones may not have it.
    pub(super) first: Arc<OnceCell<Version>>,
}

impl Store {
    /// The store in the partition of that name. Its own transactions are strictly serializable, and durable
    /// when a call returns.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`] for a raw partition, and those of [`catalogue::open`].
    #[async_recursion]
    pub async fn open(
        env: &Env,
        volume: Arc<dyn Transact>,
        name: &str,
    ) -> Result<Store, TreeError> {
        let store = Store::find(env, volume, name).await?;
        let txn = newest(&*store.volume).await?;
        store.work(&*txn).verify_store().await?;
        Ok(store)
    }

    /// The store in the partition of that name, of any kind.
    async fn find(env: &Env, volume: Arc<dyn Transact>, name: &str) -> Result<Store, TreeError> {
        let partition = catalogue::open(&*volume, name).await?;
        if partition.kind == Kind::Raw {
            return Err(TreeError::WrongKind {
                name: partition.name,
                is: partition.kind,
                wanted: "store",
            });
        }
        let area = Arc::new(Area::new(&partition)?);
        Ok(Store {
            env: env.clone(),
            volume,
            area,
            isolation: Isolation::default(),
            durability: Durability::default(),
            groups: Groups::default(),
            views: ReadViews::default(),
            first: Arc::default(),
        })
    }

    /// Rebuilds a damaged B-tree from what can still be read. Returns what is lost. Nothing else may use the
    /// tree meanwhile. The work takes several transactions: the next call continues an interrupted one.
    ///
    /// # Errors
    /// [`TreeError::Damaged`] when no part of it can be read, or stale leaves cannot be told from current
    /// ones: then nothing was changed. [`TreeError::Full`] when its inner nodes find no room: leaves that
    /// were not added are kept for another call. [`TreeError::WrongKind`], and those of [`Store::open`].
    pub async fn salvage(
        env: &Env,
        volume: Arc<dyn Transact>,
        name: &str,
    ) -> Result<Salvage, TreeError> {
        let store = Store::find(env, volume, name).await?.require(Kind::Btree, "b-tree")?;
        salvage::salvage(&store.env, &*store.volume, &store.area).await
    }

    /// The B-tree in the partition of that name.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`], and those of [`Store::open`].
    pub async fn open_btree(
        env: &Env,
        volume: Arc<dyn Transact>,
        name: &str,
    ) -> Result<Store, TreeError> {
        Store::open(env, volume, name).await?.require(Kind::Btree, "b-tree")
    }

    /// The hash table in the partition of that name.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`], and those of [`Store::open`].
    pub async fn open_hash(
        env: &Env,
        volume: Arc<dyn Transact>,
        name: &str,
    ) -> Result<Store, TreeError> {
        Store::open(env, volume, name).await?.require(Kind::Hash, "hash table")
    }

    fn require(self, kind: Kind, wanted: &'static str) -> Result<Store, TreeError> {
        match self.area.kind == kind {
            true => Ok(self),
            false => Err(TreeError::WrongKind {
                name: self.area.name.clone(),
                is: self.area.kind,
                wanted,
            }),
        }
    }

    /// The same store; its own transactions have this isolation.
    pub fn with_isolation(mut self, isolation: Isolation) -> Store {
        (self.isolation, self.groups) = (isolation, Groups::default());
        self
    }

    /// The same store; its own transactions are acknowledged with this durability.
    pub fn with_durability(mut self, durability: Durability) -> Store {
        (self.durability, self.groups) = (durability, Groups::default());
        self
    }

    /// What kind of store it is.
    pub fn kind(&self) -> Kind {
        self.area.kind
    }

    /// The name of its partition.
    pub fn name(&self) -> &str {
        &self.area.name
    }

    /// Makes the open store use the runs by which its partition has grown
    /// ([`growth`](super::catalogue::growth)). Other processes that have it open have to open it again.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] when the store would be too large.
    pub fn grow_into(&self, partition: &Partition) -> Result<(), TreeError> {
        self.area.grow_into(partition)
    }

    /// Its volume.
    pub fn volume(&self) -> &Arc<dyn Transact> {
        &self.volume
    }

    pub(super) fn work<'a>(&'a self, txn: &'a dyn Transaction) -> Work<'a> {
        Work::new(txn, &self.area, &self.env)
    }

    /// An empty working set, for several calls in one transaction.
    pub fn working_set<'a>(&'a self, txn: &'a dyn Transaction) -> WorkingSet<'a> {
        WorkingSet::new(self.work(txn))
    }

    pub(super) fn begin(&self) -> Begin {
        Begin { isolation: self.isolation, ..Begin::default() }
    }

    /// A reader must see what this store's own puts have acknowledged.
    fn begin_reading(&self) -> Begin {
        match self.durability {
            Durability::Synced => Begin::READ_ONLY,
            Durability::Visible => Begin::SNAPSHOT,
        }
    }

    /// The store's label: bytes for its user beside the records, zeros until they are set. A salvage that has
    /// to rewrite the store's first page clears them.
    ///
    /// # Errors
    /// Those of the transaction, and [`TreeError::Damaged`].
    pub async fn label_in(&self, txn: &dyn Transaction) -> Result<Bytes, TreeError> {
        self.work(txn).label().await
    }

    /// Sets the first bytes of the store's label; those behind them stay.
    ///
    /// # Errors
    /// Those of the transaction, [`TreeError::Damaged`], and [`TreeError::ValueTooLarge`] for more bytes than
    /// [`LABEL`](super::format::LABEL) has.
    pub async fn set_label_in(&self, txn: &dyn Transaction, label: &[u8]) -> Result<(), TreeError> {
        if label.len() > LABEL.len() {
            return Err(TreeError::ValueTooLarge(label.len()));
        }
        let mut work = self.work(txn);
        work.set_label(label).await?;
        work.finish()
    }

    /// The value of a key, within a transaction.
    ///
    /// # Errors
    /// Those of the transaction, and [`TreeError::Damaged`].
    pub async fn get_in(
        &self,
        txn: &dyn Transaction,
        key: &[u8],
    ) -> Result<Option<Bytes>, TreeError> {
        self.working_set(txn).get(key).await
    }

    /// The greatest key at or below `key`, and its value, within a transaction. The transaction depends on
    /// that key alone: a key added in between is not noticed, so the caller has to exclude it by other means.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`] unless it is a B-tree, and those of [`Store::get_in`].
    pub async fn floor_in(
        &self,
        txn: &dyn Transaction,
        key: &[u8],
    ) -> Result<Option<Pair>, TreeError> {
        self.working_set(txn).floor(key).await
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`Store::get_in`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TreeError> {
        if self.durability == Durability::Synced
            && let Some(view) = self.views.newest(&self.env, &*self.volume).await?
        {
            let work = Work::of_view(&view, &self.area, &self.env);
            match WorkingSet::new(work).get(key).await {
                // The transaction was aborted: for its age, or to change the volume as a whole.
                Err(error) if error.is_retryable() => self.views.drop_view(&view),
                done => return done,
            }
        }
        run(&*self.volume, self.begin_reading(), self.durability, async |txn| {
            self.get_in(&*txn, key).await
        })
        .await
    }

    /// Gives a key a value, within a transaction. A failure changes nothing, unless the transaction itself
    /// fails.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLarge`], [`TreeError::ValueTooLarge`], [`TreeError::Full`],
    /// [`TreeError::Damaged`], and those of the transaction.
    pub async fn put_in(
        &self,
        txn: &dyn Transaction,
        key: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<(), TreeError> {
        let mut set = self.working_set(txn);
        set.put(key, value.into()).await?;
        set.finish()
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub async fn put(&self, key: &[u8], value: impl Into<Bytes>) -> Result<(), TreeError> {
        let change = Change { key: Bytes::copy_from_slice(key), value: Some(value.into()) };
        self.change(vec![change]).await.map(drop)
    }

    /// Makes changes in a transaction of the store's own, perhaps together with those of other callers. Returns
    /// for each whether its key was present; meaningful for deletions only.
    async fn change(&self, changes: Vec<Change>) -> Result<Found, TreeError> {
        for change in &changes {
            check(&change.key, change.value.as_deref())?;
        }
        self.groups.make(changes, |changes| Box::pin(self.clone().make(changes))).await
    }

    async fn make(self, changes: Vec<Option<Change>>) -> Result<Arc<Found>, TreeError> {
        run(&*self.volume, self.begin(), self.durability, async |txn| {
            self.make_in(&*txn, changes.iter().map(Option::as_ref)).await
        })
        .await
        .map(Arc::new)
    }

    async fn make_in(
        &self,
        txn: &dyn Transaction,
        changes: impl Iterator<Item = Option<&Change>>,
    ) -> Result<Found, TreeError> {
        let mut set = self.working_set(txn);
        let mut found = Found::new();
        for change in changes {
            found.push(match change {
                Some(Change { key, value: Some(value) }) => {
                    set.put(key, value.clone()).await?;
                    true
                }
                Some(Change { key, value: None }) => set.delete(key).await?,
                None => false,
            });
        }
        set.finish()?;
        Ok(found)
    }

    /// Removes a key, within a transaction. Returns whether it was present.
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub async fn delete_in(&self, txn: &dyn Transaction, key: &[u8]) -> Result<bool, TreeError> {
        let mut set = self.working_set(txn);
        let was_there = set.delete(key).await?;
        set.finish()?;
        Ok(was_there)
    }

    /// Removes a key. Returns whether it was present.
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, TreeError> {
        let change = Change { key: Bytes::copy_from_slice(key), value: None };
        Ok(self.change(vec![change]).await?.contains(&true))
    }

    /// Makes the changes of a batch, within a transaction.
    ///
    /// # Errors
    /// As [`Store::put_in`]. A batch is limited by the blocks that a transaction may write.
    pub async fn write_in(&self, txn: &dyn Transaction, batch: &Batch) -> Result<(), TreeError> {
        self.make_in(txn, batch.0.iter().map(Some)).await.map(drop)
    }

    /// Makes the changes of a batch: all of them or none.
    ///
    /// # Errors
    /// As [`Store::write_in`].
    pub async fn write(&self, batch: &Batch) -> Result<(), TreeError> {
        self.change(batch.0.clone()).await.map(drop)
    }

    /// All keys and values, within a transaction; in the order of keys if the store has one.
    pub fn iter_in(&self, txn: Arc<dyn Transaction>) -> Iter {
        let scan = self.working_set(&*txn).all();
        Iter { store: self.clone(), txn, scan }
    }

    /// All keys and values of the current state; in the order of keys if the store has one.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn iter(&self) -> Result<Iter, TreeError> {
        Ok(self.iter_in(self.volume.begin(self.begin_reading()).await?))
    }

    /// The keys in a range, in order, within a transaction.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`] unless it is a B-tree; [`TreeError::KeyTooLarge`].
    pub fn range_in<K: AsRef<[u8]>>(
        &self,
        txn: Arc<dyn Transaction>,
        range: impl RangeBounds<K>,
    ) -> Result<Iter, TreeError> {
        let scan = self.working_set(&*txn).range(range)?;
        Ok(Iter { store: self.clone(), txn, scan })
    }

    /// The keys in a range of the current state, in order.
    ///
    /// # Errors
    /// As [`Store::range_in`], and those of the transaction.
    pub async fn range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
    ) -> Result<Iter, TreeError> {
        self.range_in(self.volume.begin(self.begin_reading()).await?, range)
    }

    /// A snapshot of the store, kept as long as it lives or until it is too old to be kept.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn snapshot(&self) -> Result<StoreSnapshot, TreeError> {
        let txn = self.volume.begin(self.begin_reading()).await?;
        Ok(StoreSnapshot { store: self.clone(), txn })
    }

    /// Checks the whole store, on one snapshot.
    ///
    /// # Errors
    /// [`TreeError::Damaged`] with the first damage found.
    #[async_recursion]
    pub async fn check(&self) -> Result<Report, TreeError> {
        run(&*self.volume, self.begin_reading(), self.durability, async |txn| {
            check::check(&mut self.work(&*txn)).await
        })
        .await
    }
}

/// A snapshot of a store.
#[derive(Clone, Debug)]
pub struct StoreSnapshot {
    store: Store,
    txn: Arc<dyn Transaction>,
}

impl StoreSnapshot {
    /// The value of a key.
    ///
    /// # Errors
    /// As [`Store::get_in`]; [`TxnError::Preempted`](crate::txn::TxnError::Preempted) when the
    /// snapshot could not be kept.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TreeError> {
        self.store.get_in(&*self.txn, key).await
    }

    /// All keys and values.
    pub fn iter(&self) -> Iter {
        self.store.iter_in(self.txn.clone())
    }

    /// The keys in a range.
    ///
    /// # Errors
    /// As [`Store::range_in`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Iter, TreeError> {
        self.store.range_in(self.txn.clone(), range)
    }
}

/// Iterates over keys and values. In a transaction that writes at the same time, it may or may not show those
/// writes; each other key it shows once.
#[derive(Debug)]
pub struct Iter {
    store: Store,
    txn: Arc<dyn Transaction>,
    scan: Scan,
}

impl Iter {
    /// The same keys in reverse order.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for a hash table, which has no order, and after the first key.
    pub fn backward(self) -> Result<Iter, TreeError> {
        Ok(Iter { scan: self.scan.backward()?, ..self })
    }

    /// The next key and its value.
    ///
    /// # Errors
    /// Those of the transaction, and [`TreeError::Damaged`].
    pub async fn next(&mut self) -> Result<Option<Pair>, TreeError> {
        self.scan.next(&mut self.store.work(&*self.txn)).await
    }

    /// All remaining pairs.
    ///
    /// # Errors
    /// As [`Iter::next`].
    pub async fn collect(mut self) -> Result<Vec<Pair>, TreeError> {
        let mut pairs = Vec::new();
        while let Some(pair) = self.next().await? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}
