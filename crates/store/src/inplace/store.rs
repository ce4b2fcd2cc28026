//! The contract of a block store.

use async_trait::async_trait;
use bytes::Bytes;

use super::state::BlockLookup;
use super::{InPlace, Version};
use crate::block::{
    Applied, BlockVersion, Blocks, Epoch, Hints, Hold, Lba, Lineage, Locations, Retention,
    StoreError, Versions, WriteList,
};

#[async_trait]
impl Blocks for InPlace {
    fn blocks(&self) -> u64 {
        self.inner.medium.blocks()
    }

    fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    fn now(&self) -> Version {
        self.inner.medium.state.lock().now
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let range = self.inner.medium.check(lba, count)?;
        let (_, blocks) = self.inner.read(range, Some(at)).await?;
        Ok(blocks)
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        let range = self.inner.medium.check(lba, count)?;
        self.inner.read(range, None).await
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.inner.apply(writes, retention, None).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        let range = self.inner.medium.check(lba, count)?;
        let mut at = range.start;
        loop {
            let version = self.inner.discard(&mut at, range.end).await?;
            if at >= range.end {
                return Ok(version);
            }
        }
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        let inner = &self.inner;
        let version = version.min(self.now());
        if inner.callers.durable() >= version.0 {
            return Ok(());
        }
        let since = inner.env.now();
        let check = || match &inner.medium.state.lock().poison {
            Some(why) => Err(StoreError::Poisoned(why.clone())),
            None => Ok(()),
        };
        inner.callers.wait(version.0, since, check).await?;
        inner.synced(since);
        Ok(())
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        let mut state = self.inner.medium.state.lock();
        let at = at.unwrap_or(state.now);
        let mut runs: Vec<(u64, bool)> = Vec::new();
        for lba in lba.0..lba.0.saturating_add(count).min(self.inner.medium.blocks()) {
            let stored = match state.find(lba, at) {
                Ok(BlockLookup::Page(found)) => found.is_allocated(),
                // Only the device knows; the block counts as allocated.
                Ok(BlockLookup::Unmapped) | Err(_) => true,
            };
            match runs.last_mut() {
                Some((len, last)) if *last == stored => *len += 1,
                _ => runs.push((1, stored)),
            }
        }
        runs
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn room(&self) -> Option<u64> {
        None
    }

    /// The journal limits bytes instead: [`StoreError::TooLarge`].
    fn max_transaction(&self) -> usize {
        usize::MAX
    }
}

#[async_trait]
impl Versions for InPlace {
    fn holds_take_room(&self) -> bool {
        false
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        let mut state = self.inner.medium.state.lock();
        let is_kept = version == state.now || state.pages.holds.contains(version);
        is_kept.then(|| self.inner.hold(&mut state, version))
    }

    fn hold_since(&self, version: Version) -> Option<Hold> {
        let mut state = self.inner.medium.state.lock();
        let holds = &state.pages.holds;
        let is_kept = version == state.now || holds.floor().is_some_and(|floor| floor <= version);
        is_kept.then(|| self.inner.hold_since(&mut state, version))
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.inner.medium.check(lba, 1)?;
        self.inner.medium.map_all(std::iter::once(lba.0)).await?;
        self.inner.medium.state.lock().versions(lba.0)
    }

    fn oldest(&self) -> Version {
        let state = self.inner.medium.state.lock();
        state.pages.holds.floor().unwrap_or(state.now)
    }

    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError> {
        self.inner.medium.check(lba, 1)?;
        Ok(self.inner.medium.locate(lba.0, (oldest, newest)))
    }

    fn lapse_point(&self, most: usize) -> Option<Version> {
        let state = self.inner.medium.state.lock();
        (state.pages.aged() > most).then_some(state.now)
    }

    fn hold_synced(&self) -> Option<Hold> {
        None
    }

    fn synced(&self) -> Option<Version> {
        None
    }
}

#[async_trait]
impl Lineage for InPlace {
    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        self.inner.apply(writes, retention, Some(version)).await
    }
}

impl Hints for InPlace {}
