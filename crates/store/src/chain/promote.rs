//! A follower becomes a primary.

use super::followed::BEFORE_COPY;
use super::{Chain, ChainError, commit};
use crate::block::{Blocks, Position, Version};

impl Chain {
    /// Ends following: from the next opening on the volume is written here, on a timeline of its own, with a term above
    /// its own one and at least `term`. A copy that was interrupted is taken back. Returns the state from which the volume
    /// goes on.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] unless the volume follows another one and has a state of it; device errors.
    pub async fn promote(&self, term: u32) -> Result<Position, ChainError> {
        let inner = &self.inner;
        if !self.label().follows {
            return Err(ChainError::Invalid("the volume follows no other one".to_owned()));
        }
        if self.history().is_empty() {
            return Err(ChainError::Invalid("the volume has followed nothing yet".to_owned()));
        }
        let before_copy = self.take_back_copy().await?;
        let _label = inner.label_lock.lock().await;
        let version = self.now();
        commit::sync(inner, version).await?;
        let id = inner.env.uuid();
        inner
            .change_label(|label| {
                label.follows = false;
                label.whole_from = Version(0);
                label.term = term.max(label.term.saturating_add(1));
                label.history.begin(id, version);
            })
            .await?;
        let nameless = || ChainError::Invalid("the volume has not reached its history".to_owned());
        self.position_of(before_copy.unwrap_or(version)).ok_or_else(nameless)
    }

    /// Goes back to the state from before a copy that has not ended; returns its version if there was one.
    async fn take_back_copy(&self) -> Result<Option<Version>, ChainError> {
        let whole_from = self.whole_from();
        if self.now() >= whole_from {
            return Ok(None);
        }
        let Some(before) = self.snapshot(BEFORE_COPY) else {
            let why = format!("the volume has no whole state before version {whole_from}");
            return Err(ChainError::Invalid(why));
        };
        self.rollback(BEFORE_COPY).await?;
        self.set_whole_from(Version(0)).await?;
        self.delete_snapshot(BEFORE_COPY).await?;
        Ok(Some(before.version))
    }
}
