//! Keys and values at versions (Yogurt, table 5.1 and section 5.3.4), and raw blocks for sessions.
//!
//! A value and the blocks that lead to it are of one state: each block that is read narrows the versions that the
//! next one may have.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::format::CATALOGUE_BLOCKS;
use super::{Raw, Store, TreeError};
use crate::block::{EpochVersion, Lba, StoreError, Version};
use crate::stale::{Cost, Got, Item, Needs, Session, Snapshot, VersionRange};
use crate::txn::{
    Durability, Reader, Reading, Seen, Transact, Transaction, TxnError, read_for, write_for,
};

impl Store {
    /// The oldest version that is known to have the store: since then no partition was made, changed or dropped.
    async fn first(&self) -> Result<Version, TreeError> {
        let first = self.first.get_or_try_init(|| unchanged_since(&**self.volume())).await?;
        Ok(*first)
    }

    /// A view of one version.
    async fn view_at(&self, version: Version) -> Result<Arc<dyn Transaction>, TreeError> {
        let needs = Needs { at: Some(version), ..Needs::default() };
        Ok(self.volume().view(&needs, self.first().await?).await?)
    }

    /// The value of a key at a version (*Get*).
    ///
    /// # Errors
    /// [`TxnError::Gone`] for a version that is not kept, [`TxnError::Unserved`] for one of the future, and those of
    /// [`Store::get_in`].
    pub async fn get_version(
        &self,
        key: &[u8],
        version: Version,
    ) -> Result<Option<Bytes>, TreeError> {
        let view = self.view_at(version).await?;
        self.get_in(&*view, key).await
    }

    /// Gives a key a value in a snapshot of a new version (*Put*), which becomes visible with it. The volume must be one
    /// without transactions, which number their versions themselves.
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub async fn put_version(
        &self,
        snapshot: &Snapshot,
        key: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<(), TreeError> {
        self.put_in(snapshot, key, value).await
    }

    /// The cost of reading a key at a version (*GetCost*): of the dearest block on the way to it, as far as that is in
    /// memory, or else of the first that is not.
    ///
    /// # Errors
    /// As [`Store::get_version`].
    pub async fn cost(&self, key: &[u8], version: Version) -> Result<Cost, TreeError> {
        let asking = Reading(Asking::new(self, version).await?);
        let asked = self.get_in(&asking, key).await;
        let found = asking.0.found.into_inner();
        match asked {
            Err(error) if found.cost.is_none_or(|cost| cost <= Cost::MEMORY) => Err(error),
            _ => Ok(found.cost.unwrap_or(Cost::MEMORY)),
        }
    }

    /// The versions in which a key is known to have the value of a version (*GetVersionRange*): those in which no block
    /// on the way to it changes.
    ///
    /// # Errors
    /// As [`Store::get_version`].
    pub async fn version_range(
        &self,
        key: &[u8],
        version: Version,
    ) -> Result<VersionRange, TreeError> {
        let asking = Asking { reads_devices: true, ..Asking::new(self, version).await? };
        let asking = Reading(asking);
        self.get_in(&asking, key).await?;
        Ok(asking.0.found.into_inner().range)
    }

    /// Reads a key for a session: the value whose blocks are the cheapest that its guarantee allows, block by block.
    ///
    /// # Errors
    /// [`TxnError::Unserved`] when this node cannot serve the session, [`TxnError::Gone`] for an exact version that is not
    /// kept, and those of [`Store::get_in`].
    pub async fn get_for(
        &self,
        session: &mut Session,
        key: &[u8],
    ) -> Result<Got<Option<Bytes>>, TreeError> {
        let (item, first) = (Item::Key(key.into()), self.first().await?);
        let read = async |view: Arc<dyn Transaction>| self.get_in(&*view, key).await;
        read_for(&**self.volume(), session, &item, first, read).await
    }

    /// Gives a key a value, for a session; durable when it returns. Returns the version.
    ///
    /// # Errors
    /// [`TxnError::Unserved`] when the volume is behind what the session has seen, and those of [`Store::put_in`].
    pub async fn put_for(
        &self,
        session: &mut Session,
        key: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<Version, TreeError> {
        Ok(self.change_for(session, key, SessionChange::Put(value.into())).await?.1)
    }

    /// Overwrites a part of a key's value, for a session; see [`Store::overwrite`]. Durable when it returns. Returns the
    /// version; `None` when there is no value that is long enough.
    ///
    /// # Errors
    /// As [`Store::put_for`].
    pub async fn overwrite_for(
        &self,
        session: &mut Session,
        key: &[u8],
        offset: usize,
        part: impl Into<Bytes>,
    ) -> Result<Option<Version>, TreeError> {
        let change = SessionChange::Overwrite(offset, part.into());
        let (was_there, version) = self.change_for(session, key, change).await?;
        Ok(was_there.then_some(version))
    }

    /// A change of a key in a transaction of its own. Returns whether there was something to change, and the version.
    async fn change_for(
        &self,
        session: &mut Session,
        key: &[u8],
        change: SessionChange,
    ) -> Result<(bool, Version), TreeError> {
        let change = async |txn: Arc<dyn Transaction>| match change.clone() {
            SessionChange::Put(value) => self.put_in(&*txn, key, value).await.map(|()| true),
            SessionChange::Overwrite(offset, part) => {
                self.overwrite_in(&*txn, key, offset, part).await
            }
        };
        write_for(&**self.volume(), session, &Item::Key(key.into()), change).await
    }
}

/// A change of a key for a session.
#[derive(Clone, Debug)]
enum SessionChange {
    Put(Bytes),
    /// A part of the value, from this byte on.
    Overwrite(usize, Bytes),
}

impl Raw {
    /// Reads a block for a session: the cheapest content that its guarantee allows. On a volume with partitions, the block
    /// must be of a raw partition.
    ///
    /// # Errors
    /// As [`Store::get_for`], and as [`Raw::within`].
    pub async fn read_for(
        &self,
        session: &mut Session,
        block: u64,
    ) -> Result<Got<Bytes>, TreeError> {
        let item = Item::Block(self.place(block)?);
        let first = self.first.get_or_try_init(|| unchanged_since(&**self.volume())).await?;
        let read = async |view: Arc<dyn Transaction>| {
            let mut blocks = self.within(view).await?.read(block, 1).await?;
            blocks.pop().ok_or_else(|| TreeError::Invalid("a read without a block".to_owned()))
        };
        read_for(&**self.volume(), session, &item, *first, read).await
    }

    /// Writes a block for a session, [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes, or discards it; durable when it returns.
    /// Returns the version.
    ///
    /// # Errors
    /// As [`Store::put_for`], and as [`Raw::within`].
    pub async fn write_for(
        &self,
        session: &mut Session,
        block: u64,
        content: Option<Bytes>,
    ) -> Result<Version, TreeError> {
        let item = Item::Block(self.place(block)?);
        let write = async |txn: Arc<dyn Transaction>| {
            let blocks = self.within(txn).await?;
            match &content {
                Some(content) => blocks.write(block, content.clone()),
                None => blocks.discard(block),
            }
            .map(|()| true)
        };
        Ok(write_for(&**self.volume(), session, &item, write).await?.1)
    }
}

/// The oldest version that can be read and has the catalogue as it is now.
async fn unchanged_since(volume: &dyn Transact) -> Result<Version, TreeError> {
    let all = VersionRange { low: Version(0), up: Version(u64::MAX) };
    let mut since = Version(0);
    for lba in (0..CATALOGUE_BLOCKS.min(volume.blocks())).map(Lba) {
        let contents = volume.contents(lba, all).await?;
        since = since.max(contents.last().map_or(Version(0), |(range, _)| range.low));
    }
    Ok(since)
}

/// What was found out on the way to a key.
#[derive(Debug)]
struct Found {
    /// The cost of the dearest block.
    cost: Option<Cost>,
    /// The versions in which no block changes.
    range: VersionRange,
}

/// Reads at one version, and notes what the blocks cost and in which versions they are valid. It ends at the first block that
/// is not in memory, unless it is to read those too.
#[derive(Debug)]
struct Asking<'a> {
    volume: &'a dyn Transact,
    view: Arc<dyn Transaction>,
    version: Version,
    found: Mutex<Found>,
    reads_devices: bool,
}

impl<'a> Asking<'a> {
    async fn new(store: &'a Store, version: Version) -> Result<Asking<'a>, TreeError> {
        let view = store.view_at(version).await?;
        let range = VersionRange { low: store.first().await?, up: Version(u64::MAX) };
        let found = Mutex::new(Found { cost: None, range });
        Ok(Asking { volume: &**store.volume(), view, version, found, reads_devices: false })
    }
}

#[async_trait]
impl Reader for Asking<'_> {
    fn blocks(&self) -> u64 {
        self.view.blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        let only = VersionRange { low: self.version, up: self.version };
        for lba in (lba.0..lba.0.saturating_add(count)).map(Lba) {
            let contents = self.volume.contents(lba, only).await?;
            let (valid, cost) = *contents.first().ok_or(StoreError::Gone(self.version))?;
            let mut found = self.found.lock();
            found.cost = found.cost.max(Some(cost));
            // Both have the version.
            found.range = found.range.and(valid).unwrap_or(only);
            if cost > Cost::MEMORY && !self.reads_devices {
                return Err(StoreError::Gone(self.version).into());
            }
        }
        self.view.read_run(lba, count).await
    }

    fn version(&self) -> EpochVersion {
        self.view.version()
    }

    async fn seen(&self) -> Result<Seen, TxnError> {
        self.view.seen().await
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        self.view.commit(durability).await
    }

    async fn abort(&self) {
        self.view.abort().await;
    }
}
