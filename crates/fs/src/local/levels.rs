//! How far the changes of an inode have come.

use std::time::Duration;

use super::LocalFs;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::level::Level;

impl LocalFs {
    /// See [`Filesystem::level`](crate::Filesystem::level).
    pub(super) async fn level_of(&self, ino: Ino) -> Result<Level, FsError> {
        self.exists(ino).await?;
        let changes = |within: &super::Within| within.effects.lock().inodes.contains_key(&ino.0);
        let is_private = self.within.as_deref().is_some_and(changes);
        if is_private || !self.inner.is_synced(Some(ino.0)) {
            return Ok(Level::Memory);
        }
        let version = match self.inner.synced_version() {
            Some(version) => version,
            // Before the first sync: this one has every change.
            None => self.inner.look().await?.version().version,
        };
        match self.inner.volume.replicated(version, Duration::ZERO).await? {
            Some(true) => Ok(Level::Replicas),
            Some(false) | None => Ok(Level::Server),
        }
    }

    /// See [`Filesystem::wait_for`](crate::Filesystem::wait_for).
    pub(super) async fn bring_to(
        &self,
        ino: Ino,
        level: Level,
        within: Duration,
    ) -> Result<bool, FsError> {
        self.exists(ino).await?;
        if level == Level::Memory {
            return Ok(true);
        }
        if self.within.is_some() {
            return Err(FsError::Invalid("a transaction is durable when it has committed"));
        }
        self.inner.sync(Some(ino.0)).await?;
        // Without a client's journal there is no level before the server's.
        if level <= Level::Server {
            return Ok(true);
        }
        let version = match self.inner.synced_version() {
            Some(version) => version,
            None => self.inner.sync_volume().await?,
        };
        let replicated = self.inner.volume.replicated(version, within).await?;
        replicated.ok_or(FsError::NoReplicas)
    }

    async fn exists(&self, ino: Ino) -> Result<(), FsError> {
        self.look(async |txn| self.op(&txn).inode(ino.0).await.map(|_| ())).await
    }
}
