//! Keys and values at versions (table 5.1), over the stores of [`tree`](crate::tree).

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::reading::{Pages, Reading};
use super::{Cost, Got, Item, Range, Session, StaleError, StaleView, Versioned};
use crate::block::{EpochVersion, Lba, StoreError, Version};
use crate::tree::Store;
use crate::txn::{Begin, Durability, run_versioned};

/// A store of keys and values whose versions are read by what they cost.
///
/// A value and the blocks that lead to it are of one state: each block that is read narrows the versions that the
/// next one may have (5.3.4).
#[derive(Clone, Debug)]
pub struct Keys {
    versions: Versioned,
    store: Store,
    /// The oldest version that is known to have the store.
    first: Version,
}

impl Keys {
    /// The versions of `store`, which lies on the blocks of `versions`, from the newest on: older ones may not have it.
    pub fn new(versions: Versioned, store: Store) -> Keys {
        let first = versions.store().now();
        Keys { versions, store, first }
    }

    /// A view of one version.
    fn at(&self, version: Version) -> Result<StaleView, StoreError> {
        match version < self.first {
            true => Err(StoreError::Gone(version)),
            false => StaleView::at(&self.versions, version),
        }
    }

    /// The blocks below.
    pub fn versions(&self) -> &Versioned {
        &self.versions
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The value of a key at a version (*Get*).
    ///
    /// # Errors
    /// [`StoreError::Gone`] for a version that is not kept, [`StoreError::Invalid`] for one of the future, and those of
    /// the store.
    pub async fn get_version(
        &self,
        key: &[u8],
        version: Version,
    ) -> Result<Option<Bytes>, StaleError> {
        let view = self.at(version)?;
        Ok(self.store.get_in(&Reading(&view), key).await?)
    }

    /// Gives a key a value as of a version, which is newer than all before (*Put*). The volume must be one without
    /// transactions, which number their versions themselves.
    ///
    /// # Errors
    /// [`StaleError::OldSnapshot`] for a version that exists, and those of the store.
    pub async fn put_version(
        &self,
        key: &[u8],
        version: Version,
        value: impl Into<Bytes>,
    ) -> Result<(), StaleError> {
        let snapshot = self.versions.open_snapshot(version)?;
        if !snapshot.is_writable() {
            return Err(StaleError::OldSnapshot(version));
        }
        self.store.put_in(&snapshot, key, value).await?;
        snapshot.close().await
    }

    /// The cost of reading a key at a version (*GetCost*): of the blocks on the way to it, as far as they are in
    /// memory, and of the first that is not.
    ///
    /// # Errors
    /// As [`Keys::get_version`].
    pub async fn cost(&self, key: &[u8], version: Version) -> Result<Cost, StaleError> {
        let view = self.at(version)?;
        let asking = Asking { versions: &self.versions, version, found: Mutex::default() };
        let asked = self.store.get_in(&Reading(&asking), key).await;
        drop(view);
        let found = *asking.found.lock();
        match (asked, found) {
            // It ended at a block that is not in memory.
            (_, Some(cost)) => Ok(cost),
            (Ok(_), None) => Ok(Cost::MEMORY),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// The versions in which a key is known to have the value of a version (*GetVersionRange*): those in which no block
    /// on the way to it changes.
    ///
    /// # Errors
    /// As [`Keys::get_version`].
    pub async fn version_range(&self, key: &[u8], version: Version) -> Result<Range, StaleError> {
        let view = self.at(version)?;
        let all = Range { low: self.first, up: self.versions.store().now() };
        let following = Following { view: &view, range: Mutex::new(all) };
        self.store.get_in(&Reading(&following), key).await?;
        let range = *following.range.lock();
        Ok(range)
    }

    /// Reads a key for a session: the value whose blocks are the cheapest that its guarantee allows, block by block.
    ///
    /// # Errors
    /// As [`Versioned::open_view`], and those of the store.
    pub async fn get(
        &self,
        session: &mut Session,
        key: &[u8],
    ) -> Result<Got<Option<Bytes>>, StaleError> {
        let item = Item::Key(key.into());
        let view = self.versions.open_view(session, &item, self.first)?;
        let value = self.store.get_in(&Reading(&view), key).await?;
        Ok(self.versions.got(session, &item, value, view.range()))
    }

    /// Gives a key a value, for a session; durable when it returns. Returns the version.
    ///
    /// # Errors
    /// [`Unserved`](super::Unserved), and those of the store.
    pub async fn put(
        &self,
        session: &mut Session,
        key: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<Version, StaleError> {
        session.may_write(self.versions.store().now())?;
        let value = value.into();
        let (volume, begin) = (self.store.volume(), Begin::STRICT);
        let put = run_versioned(&**volume, begin, Durability::Synced, async |txn| {
            self.store.put_in(&*txn, key, value.clone()).await
        });
        let ((), EpochVersion { version, .. }) = put.await?;
        session.has_written(&Item::Key(key.into()), version);
        Ok(version)
    }
}

/// Reads what is in memory; ends at the first block that is not.
#[derive(Debug)]
struct Asking<'a> {
    versions: &'a Versioned,
    version: Version,
    found: Mutex<Option<Cost>>,
}

#[async_trait]
impl Pages for Asking<'_> {
    fn versions(&self) -> &Versioned {
        self.versions
    }

    async fn pages(&self, lba: Lba, count: u64) -> Result<Vec<Option<Bytes>>, StoreError> {
        for lba in (lba.0..lba.0.saturating_add(count)).map(Lba) {
            let cost = self.versions.cost_at(lba, self.version)?;
            if cost > Cost::MEMORY {
                *self.found.lock() = Some(cost);
                return Err(StoreError::Gone(self.version));
            }
        }
        self.versions.store().read(lba, count, self.version).await
    }

    fn newest(&self) -> Version {
        self.version
    }
}

/// Reads at one version, and finds out in which others the same blocks are valid.
#[derive(Debug)]
struct Following<'a> {
    view: &'a StaleView,
    range: Mutex<Range>,
}

#[async_trait]
impl Pages for Following<'_> {
    fn versions(&self) -> &Versioned {
        self.view.versions()
    }

    async fn pages(&self, lba: Lba, count: u64) -> Result<Vec<Option<Bytes>>, StoreError> {
        let version = self.newest();
        for lba in (lba.0..lba.0.saturating_add(count)).map(Lba) {
            let valid = self.versions().range_at(lba, version)?;
            let mut range = self.range.lock();
            // Both have the version.
            *range = range.and(valid).unwrap_or(Range { low: version, up: version });
        }
        self.view.pages(lba, count).await
    }

    fn newest(&self) -> Version {
        self.view.newest()
    }
}
