//! A read-only view of a block store at one version.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Applied, BlockStore, BlockVersion, Blocks, Epoch, Hints, Hold, Holds, Lba, Lineage, Locations,
    Retention, StoreError, Version, Versions, WriteList,
};

/// A block store at one version: its newest, or that of a snapshot. Changes fail with
/// [`StoreError::ReadOnly`].
///
/// It is a block store itself, so read-only transactions run over it as over a live one.
#[derive(Clone, Debug)]
pub struct Frozen {
    store: Arc<dyn BlockStore>,
    hold: Arc<Hold>,
    blocks: u64,
}

impl Frozen {
    /// The first `blocks` blocks of the store at the version that `hold` keeps.
    pub fn new(store: Arc<dyn BlockStore>, hold: Hold, blocks: u64) -> Frozen {
        Frozen { store, hold: Arc::new(hold), blocks }
    }

    /// The whole store at its newest version.
    ///
    /// # Errors
    /// [`StoreError::Gone`] when the newest version changes meanwhile.
    pub fn newest(store: Arc<dyn BlockStore>) -> Result<Frozen, StoreError> {
        let version = store.now();
        let hold = store.hold(version).ok_or(StoreError::Gone(version))?;
        let blocks = store.blocks();
        Ok(Frozen::new(store, hold, blocks))
    }

    fn check(&self, lba: Lba, count: u64) -> Result<(), StoreError> {
        match lba.0.checked_add(count) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(StoreError::Invalid(format!(
                "{count} blocks from {} on leave a volume of {} blocks",
                lba.0, self.blocks
            ))),
        }
    }

    /// A guard that shares this view's hold.
    fn another_hold(&self) -> Hold {
        let kept = self.hold.clone();
        Hold::new(self.hold.version(), move |_| drop(kept))
    }
}

#[async_trait]
impl Blocks for Frozen {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn epoch(&self) -> Epoch {
        self.store.epoch()
    }

    fn now(&self) -> Version {
        self.hold.version()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.check(lba, count)?;
        Holds::default().check_read(at, self.now())?;
        self.store.read(lba, count, self.now()).await
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        let blocks = self.read(lba, count, self.now()).await?;
        Ok((self.now(), blocks))
    }

    async fn submit(
        &self,
        _writes: WriteList,
        _retention: Retention,
    ) -> Result<Applied, StoreError> {
        Err(StoreError::ReadOnly)
    }

    async fn discard(&self, _lba: Lba, _count: u64) -> Result<Version, StoreError> {
        Err(StoreError::ReadOnly)
    }

    /// A view changes nothing, so there is nothing to flush.
    async fn sync(&self, _version: Version) -> Result<(), StoreError> {
        Ok(())
    }

    fn allocation(&self, lba: Lba, count: u64, _at: Option<Version>) -> Vec<(u64, bool)> {
        let count = count.min(self.blocks.saturating_sub(lba.0));
        self.store.allocation(lba, count, Some(self.now()))
    }

    fn room(&self) -> Option<u64> {
        None
    }

    /// No change is refused for its size, since each one is.
    fn max_transaction(&self) -> usize {
        usize::MAX
    }
}

#[async_trait]
impl Versions for Frozen {
    fn hold(&self, version: Version) -> Option<Hold> {
        (version == self.now()).then(|| self.another_hold())
    }

    fn hold_synced(&self) -> Option<Hold> {
        Some(self.another_hold())
    }

    fn synced(&self) -> Option<Version> {
        Some(self.now())
    }

    /// The one content that this view shows.
    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.check(lba, 1)?;
        let (now, mut versions) = (self.now(), self.store.versions(lba).await?);
        versions.retain(|it| (it.oldest..=it.newest).contains(&now));
        versions.iter_mut().for_each(|it| (it.oldest, it.newest) = (now, now));
        Ok(versions)
    }

    /// The one content that this view shows.
    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError> {
        self.check(lba, 1)?;
        let now = self.now();
        if !(oldest..=newest).contains(&now) {
            return Ok(Locations::new());
        }
        let mut located = self.store.locate(lba, now, now)?;
        located.iter_mut().for_each(|it| (it.oldest, it.newest) = (now, now));
        Ok(located)
    }

    /// Newer versions are not shown.
    fn hold_since(&self, _version: Version) -> Option<Hold> {
        None
    }

    fn oldest(&self) -> Version {
        self.now()
    }

    fn lapse_point(&self, _most: usize) -> Option<Version> {
        None
    }

    fn holds_take_room(&self) -> bool {
        false
    }
}

/// A view is no state that replicas follow.
#[async_trait]
impl Lineage for Frozen {
    async fn submit_at(
        &self,
        _: Version,
        _: WriteList,
        _: Retention,
    ) -> Result<Applied, StoreError> {
        Err(StoreError::ReadOnly)
    }
}

impl Hints for Frozen {
    /// As a read, from memory.
    fn peek(&self, lba: Lba, at: Version) -> Option<Option<Bytes>> {
        let is_here = at == self.now() && self.check(lba, 1).is_ok();
        is_here.then(|| self.store.peek(lba, at)).flatten()
    }

    fn please_cache(&self, lba: Lba) {
        self.store.please_cache(lba);
    }
}
