//! A follower as its readers see it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::Chain;
use crate::block::{
    Applied, BlockStore, BlockVersion, Blocks, Hold, Layer, Lba, Locations, Position, Retention,
    StoreError, Version, Versions, WriteList,
};

/// The snapshot that keeps the state that a follower had before a copy.
pub const BEFORE_COPY: &str = "before-copy";

/// A chain that follows another one, read-only: its readers see whole states of that one, and no copy that is under way.
/// Meanwhile they see the state from before it; before the first copy has ended, reads fail.
#[derive(Clone, Debug)]
pub struct Followed {
    chain: Arc<Chain>,
}

impl Followed {
    /// Readers of `chain`.
    pub fn new(chain: Arc<Chain>) -> Followed {
        Followed { chain }
    }

    /// The newest version that is a state of the other volume.
    fn whole(&self) -> Option<Version> {
        let (now, whole) = (self.chain.now(), self.chain.whole_states());
        match whole.contains(now) {
            true => Some(now),
            false => whole.before.map(|before| before.up),
        }
    }

    /// Holds the newest version that is a state of the other volume. It stays readable, also during and after copies.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] before the first copy has ended.
    pub fn hold_whole(&self) -> Result<Hold, StoreError> {
        loop {
            let whole = self.whole().ok_or_else(nothing_yet)?;
            // A copy may begin or end, and newer versions may come, before the version is held.
            if let Some(hold) = self.hold_state(whole) {
                return Ok(hold);
            }
        }
    }

    /// Holds a version that is a state of the other volume.
    fn hold_state(&self, version: Version) -> Option<Hold> {
        let hold = self.chain.hold(version)?;
        // Looked at again under the hold: a copy that begins now keeps this state.
        self.is_whole(version).then_some(hold)
    }

    /// Whether a version that is held is a state of the other volume.
    fn is_whole(&self, version: Version) -> bool {
        self.chain.whole_states().contains(version)
    }
}

fn nothing_yet() -> StoreError {
    StoreError::Invalid(
        "the replica has no whole state yet: its first copy is under way".to_owned(),
    )
}

#[async_trait]
impl Layer for Followed {
    fn below(&self) -> &dyn BlockStore {
        &*self.chain
    }

    fn now(&self) -> Version {
        self.whole().unwrap_or(Version(0))
    }

    fn is_read_only(&self) -> bool {
        true
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        let hold = self.hold_whole()?;
        Ok((hold.version(), self.chain.read(lba, count, hold.version()).await?))
    }

    async fn submit(&self, _: WriteList, _: Retention) -> Result<Applied, StoreError> {
        Err(StoreError::ReadOnly)
    }

    /// Its primary's commits are applied to the chain itself.
    async fn submit_at(
        &self,
        _: Version,
        _: WriteList,
        _: Retention,
    ) -> Result<Applied, StoreError> {
        Err(StoreError::ReadOnly)
    }

    async fn discard(&self, _: Lba, _: u64) -> Result<Version, StoreError> {
        Err(StoreError::ReadOnly)
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        self.hold_state(version)
    }

    fn hold_synced(&self) -> Option<Hold> {
        let hold = self.chain.hold_synced().filter(|hold| self.is_whole(hold.version()));
        hold.or_else(|| self.hold_state(self.whole()?))
    }

    fn synced(&self) -> Option<Version> {
        let synced = self.chain.synced().filter(|version| self.is_whole(*version));
        synced.or_else(|| self.whole())
    }

    fn position(&self) -> Option<Position> {
        self.chain.position_of(self.whole()?)
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        let mut all = self.chain.versions(lba).await?;
        let whole = self.chain.whole_states();
        all.retain_mut(|version| whole.limit(version.oldest, &mut version.newest));
        Ok(all)
    }

    fn hold_since(&self, version: Version) -> Option<Hold> {
        let hold = self.chain.hold_since(version)?;
        self.is_whole(version).then_some(hold)
    }

    fn oldest(&self) -> Version {
        let now = Layer::now(self);
        let oldest = self.chain.oldest();
        if self.is_whole(oldest) { oldest.min(now) } else { now }
    }

    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError> {
        let mut located = self.chain.locate(lba, oldest, newest)?;
        let whole = self.chain.whole_states();
        located.retain(|content| whole.limit(content.oldest, &mut content.newest));
        Ok(located)
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        self.chain.allocation(lba, count, at.or_else(|| self.whole()))
    }
}
