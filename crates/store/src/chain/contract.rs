//! A chain as a block store.

use async_trait::async_trait;
use bytes::Bytes;

use super::{Chain, Counts, State, commit, locate, read, write};
use crate::block::{
    Applied, BlockVersion, Blocks, Epoch, Hints, Hold, Lba, Locations, Retention, StoreError,
    Version, Versions, WriteList,
};

#[async_trait]
impl Blocks for Chain {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    fn now(&self) -> Version {
        self.inner.state.lock().version
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        read::read(&self.inner, lba, count, at).await
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        read::read_newest(&self.inner, lba, count).await
    }

    fn is_read_only(&self) -> bool {
        self.inner.options.read_only || self.inner.options.follow
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.inner.check_users()?;
        write::apply(&self.inner, &writes, retention, None).await
    }

    fn room(&self) -> Option<u64> {
        self.inner.state.lock().room_beside_snapshots()
    }

    fn max_transaction(&self) -> usize {
        write::max_transaction(&self.inner)
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        self.inner.check_users()?;
        write::discard(&self.inner, lba, count).await
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        Counts::add(&self.inner.counts.syncs, 1);
        commit::sync(&self.inner, version).await?;
        let tap = self.inner.state.lock().tap.clone();
        let acknowledged = match tap.and_then(|tap| tap.acknowledged(version)) {
            Some(waiting) => waiting.await,
            None => Ok(()),
        };
        // What was written before the volume was fenced may be in no version of the new primary.
        self.inner.check_fence().and(acknowledged)
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        self.inner.state.lock().allocation(lba, count, at.unwrap_or(Version(u64::MAX)))
    }
}

#[async_trait]
impl Versions for Chain {
    fn holds_take_room(&self) -> bool {
        write::is_full(&self.inner)
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        let mut state = self.inner.state.lock();
        state.can_hold(version).then(|| state.holds.take(version))?;
        Some(self.inner.release_later(version))
    }

    fn hold_since(&self, version: Version) -> Option<Hold> {
        let mut state = self.inner.state.lock();
        state.can_hold_since(version).then(|| state.holds.take_since(version))?;
        Some(self.inner.release_by(version, State::release_since))
    }

    fn hold_synced(&self) -> Option<Hold> {
        let version = self.inner.state.lock().hold_synced()?;
        Some(self.inner.release_later(version))
    }

    fn synced(&self) -> Option<Version> {
        self.inner.state.lock().synced()
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.inner.check_range(lba, 1)?;
        Ok(self.inner.state.lock().versions(lba.0 as u32))
    }

    fn oldest(&self) -> Version {
        let state = self.inner.state.lock();
        state.holds.floor().unwrap_or(state.version)
    }

    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError> {
        self.inner.check_range(lba, 1)?;
        Ok(locate::locate(&self.inner, lba.0 as u32, (oldest, newest)))
    }

    fn lapse_point(&self, most: usize) -> Option<Version> {
        self.inner.state.lock().index.lapse_point(most)
    }
}

impl Hints for Chain {
    fn peek(&self, lba: Lba, at: Version) -> Option<Option<Bytes>> {
        read::peek(&self.inner, lba, at)
    }

    fn please_cache(&self, lba: Lba) {
        let mut state = self.inner.state.lock();
        if lba.0 < state.index.blocks() {
            state.wish(lba.0 as u32);
        }
    }
}
