//! Reads of blocks: at given versions, and for sessions.

use bytes::Bytes;

use super::{Got, Item, Needs, Session, Snapshot, StaleError, StaleView, Unserved, Versioned};
use crate::block::{Lba, StoreError, Version};

impl Versioned {
    /// The content of a block at a version (*ReadVersion*): what was last written to it up to then. `None` where
    /// nothing was.
    ///
    /// # Errors
    /// [`StoreError::Gone`] for a version that is not kept, [`StoreError::Invalid`] for one of the future, and those of
    /// the store.
    pub async fn read_version(
        &self,
        lba: Lba,
        version: Version,
    ) -> Result<Option<Bytes>, StaleError> {
        let view = StaleView::at(self, version)?;
        Ok(view.read(lba).await?)
    }

    /// Opens a snapshot (*OpenSnapshot*): for reading, of a version that is kept; for writing as well, if `version` is newer
    /// than all there are.
    ///
    /// # Errors
    /// [`StoreError::Gone`] for a version that is not kept.
    pub fn open_snapshot(&self, version: Version) -> Result<Snapshot, StaleError> {
        Snapshot::open(self, version)
    }

    /// Opens a view of what a read needs, no older than `first`.
    ///
    /// # Errors
    /// [`Unserved`], and [`StoreError::Gone`] for an exact version that is not kept.
    pub fn view(&self, needs: &Needs, first: Version) -> Result<StaleView, StaleError> {
        let node = self.node(needs);
        let mut range = needs.range(&node)?;
        if first > node.newest {
            return Err(Unserved::Behind(first).into());
        }
        if let Some(version) = needs.at {
            let gone = version < first;
            return Ok(if gone {
                Err(StoreError::Gone(version))
            } else {
                StaleView::at(self, version)
            }?);
        }
        if let Some((most, Some(lba))) = needs.max_updates {
            range.low = range.low.max(self.updates_back(lba, most)?);
        }
        range.low = range.low.max(first);
        range.up = range.up.max(range.low);
        Ok(StaleView::within(self, range)?)
    }

    /// The oldest version in which a block has a content that at most `most` later ones have replaced, of those that can
    /// be read.
    fn updates_back(&self, lba: Lba, most: u64) -> Result<Version, StoreError> {
        let contents = self.store().locate(lba, Version(0), Version(u64::MAX))?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let oldest = contents.iter().rev().nth(most).or(contents.first());
        Ok(oldest.map_or(self.store().now(), |content| content.oldest))
    }

    /// Reads a block for a session: the cheapest content that its guarantee allows.
    ///
    /// # Errors
    /// As [`Versioned::view`], and those of the store; [`GuaranteeError`](super::GuaranteeError).
    pub async fn read(
        &self,
        session: &mut Session,
        lba: Lba,
    ) -> Result<Got<Option<Bytes>>, StaleError> {
        let item = Item::Block(lba);
        session.guarantee().checked()?;
        let view = self.view(&session.needs(&item), Version(0))?;
        let value = view.read(lba).await?;
        let range = view.range();
        session.has_read(&item, range, self.position_of(range.low));
        Ok(Got { value, range, age: self.age(range.up), node: None })
    }
}
