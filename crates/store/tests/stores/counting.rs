//! A block store that counts what its transactions change.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_store::block::{
    Applied, Backpressure, BlockVersion, Blocks, Epoch, Hints, Hold, Lba, Lineage, Located,
    Locations, Residence, Retention, StoreError, Version, Versions, WriteList,
};

/// The cost of a store's transactions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) bytes: usize,
    pub(crate) ranges: usize,
    pub(crate) blocks: usize,
}

/// Holds the newest content of each block, and counts changes. For one client.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    blocks: Mutex<HashMap<u64, Bytes>>,
    now: Mutex<Version>,
    pub(crate) cost: Mutex<Cost>,
}

#[async_trait]
impl Blocks for Counting {
    fn blocks(&self) -> u64 {
        1 << 20
    }

    fn epoch(&self) -> Epoch {
        Epoch::default()
    }

    fn now(&self) -> Version {
        *self.now.lock()
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        _at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let blocks = self.blocks.lock();
        Ok((lba.0..lba.0 + count).map(|lba| blocks.get(&lba).cloned()).collect())
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        let now = self.now();
        Ok((now, self.read(lba, count, now).await?))
    }

    async fn submit(
        &self,
        writes: WriteList,
        _retention: Retention,
    ) -> Result<Applied, StoreError> {
        let (mut blocks, mut cost) = (self.blocks.lock(), self.cost.lock());
        for write in writes.into_vec() {
            cost.blocks += 1;
            match write.content {
                Some(content) => {
                    cost.bytes += write.changed.bytes();
                    cost.ranges += write.changed.count();
                    blocks.insert(write.lba.0, content);
                }
                None => drop(blocks.remove(&write.lba.0)),
            }
        }
        let mut now = self.now.lock();
        *now = now.next();
        Ok(Applied::new(*now, self.hold(*now), Backpressure::NONE))
    }

    async fn discard(&self, _lba: Lba, _count: u64) -> Result<Version, StoreError> {
        Err(StoreError::NoSpace)
    }

    async fn sync(&self, _version: Version) -> Result<(), StoreError> {
        Ok(())
    }

    fn allocation(&self, _lba: Lba, count: u64, _at: Option<Version>) -> Vec<(u64, bool)> {
        vec![(count, true)]
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn room(&self) -> Option<u64> {
        None
    }

    fn max_transaction(&self) -> usize {
        usize::MAX
    }
}

#[async_trait]
impl Versions for Counting {
    fn hold(&self, version: Version) -> Option<Hold> {
        Some(Hold::new(version, |_| ()))
    }

    async fn versions(&self, _lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        Ok(vec![BlockVersion { oldest: self.now(), newest: self.now(), stored: true }])
    }

    fn locate(&self, _: Lba, _: Version, _: Version) -> Result<Locations, StoreError> {
        let now = self.now();
        let only = Located { oldest: now, newest: now, residence: Residence::Memory };
        Ok([only].into_iter().collect())
    }

    fn hold_since(&self, _version: Version) -> Option<Hold> {
        None
    }

    fn hold_synced(&self) -> Option<Hold> {
        None
    }

    fn synced(&self) -> Option<Version> {
        None
    }

    fn oldest(&self) -> Version {
        self.now()
    }

    fn lapse_point(&self, _most: usize) -> Option<Version> {
        None
    }

    fn holds_take_room(&self) -> bool {
        true
    }
}

impl Lineage for Counting {}

impl Hints for Counting {}
