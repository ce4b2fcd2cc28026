//! How far the changes of a file have come: from this client to the server's drives, and to the replicas of its volume.
//!
//! A change that the server has answered, and not made durable, is still a change in memory: it survives a crash of the server
//! or of this client, and not of both.

use std::sync::Arc;
use std::time::Duration;

use thalweg_fs::{FsError, Ino, Level};

use super::base::ClientBase;
use super::calls::Calls;
use super::error::unexpected;
use super::size_records::SizeRecords;
use super::writeback::Writeback;
use crate::protocol::{Answer, Request};

/// The longest wait of one call.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Says how far changes have come, and has them come further.
pub(super) struct Durability {
    base: Arc<ClientBase>,
    writeback: Arc<Writeback>,
    calls: Arc<Calls>,
    size_records: Arc<SizeRecords>,
}

impl Durability {
    pub(super) fn new(
        base: Arc<ClientBase>,
        writeback: Arc<Writeback>,
        calls: Arc<Calls>,
        size_records: Arc<SizeRecords>,
    ) -> Durability {
        Durability { base, writeback, calls, size_records }
    }

    /// How far the changes of this client have come: to its memory or to the server.
    fn own_level(&self, ino: Ino) -> Result<Level, FsError> {
        if let Some(error) = self.base.losses.untold(ino) {
            return Err(error);
        }
        let is_durable = self.base.inodes.with(ino, |node| {
            let is_unsent = node.delegation.unsent() > 0;
            is_unsent.then(|| node.delegation.has_ended())
        });
        // What was sent is kept before it counts as sent.
        let is_durable = is_durable.flatten().unwrap_or_else(|| !self.base.replay_log.has(ino));
        Ok(if is_durable { Level::Server } else { Level::Memory })
    }

    pub(super) async fn level(&self, ino: Ino) -> Result<Level, FsError> {
        let own = self.own_level(ino)?;
        if own == Level::Server && !self.base.inodes.is_unsent(ino) {
            return self.level_at_server(ino, None).await;
        }
        Ok(own)
    }

    async fn level_at_server(
        &self,
        ino: Ino,
        wait: Option<(Level, u32)>,
    ) -> Result<Level, FsError> {
        match self.calls.request(Request::Level { ino, wait }).await? {
            (Answer::Level(level), _) => Ok(level),
            _ => unexpected(),
        }
    }

    pub(super) async fn wait_for(
        &self,
        ino: Ino,
        level: Level,
        within: Duration,
    ) -> Result<bool, FsError> {
        if level == Level::Memory {
            return self.own_level(ino).map(|_| true);
        }
        if !matches!(self.own_level(ino), Ok(Level::Server)) {
            self.sync_inode(ino, false).await?;
        }
        if self.own_level(ino)? == Level::Memory {
            // The inode is durable; the server has not said up to which version.
            self.sync_all().await?;
        }
        if self.base.inodes.is_unsent(ino) {
            if level == Level::Server {
                return Ok(true);
            }
            self.sync_all().await?;
        }
        let start = self.base.env.now();
        loop {
            let left = within.saturating_sub(self.base.env.now().since(start));
            let millis = left.min(LONGEST_WAIT).as_millis() as u32;
            let come = self.level_at_server(ino, Some((level, millis))).await?;
            if come >= level {
                return Ok(true);
            }
            if left <= LONGEST_WAIT {
                return Ok(false);
            }
        }
    }

    pub(super) async fn sync_all(&self) -> Result<(), FsError> {
        self.writeback.sync(Request::SyncAll).await
    }

    /// Returns when all changes of an inode survive a crash of the server.
    pub(super) async fn sync_inode(&self, ino: Ino, content_only: bool) -> Result<(), FsError> {
        let synced = match self.size_records.sync(ino).await {
            Ok(false) => self.sync_at_server(ino, content_only).await,
            synced => synced.map(drop),
        };
        self.base.losses.tell(ino).map_or(synced, Err)
    }

    async fn sync_at_server(&self, ino: Ino, content_only: bool) -> Result<(), FsError> {
        let before = self.size_records.before_sync(ino);
        self.writeback.sync(Request::Sync { ino, content_only }).await?;
        if let Some(before) = before {
            self.size_records.after_sync(ino, before).await;
        }
        Ok(())
    }
}
