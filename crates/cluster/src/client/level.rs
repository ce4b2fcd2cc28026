//! How far the changes of a file have come: from this client to the server's drives, and to the replicas of its volume.
//!
//! A change that the server has answered, and not made durable, is still a change in memory: it survives a crash of the server
//! or of this client, and not of both.

use std::sync::Arc;
use std::time::Duration;

use thalweg_fs::{FsError, Ino, Level};

use super::cache::Cache;
use super::{LinkError, Shared};
use crate::protocol::{Answer, Request};

/// The longest wait of one call.
const MOST: Duration = Duration::from_secs(1);

impl Cache {
    /// Changes of these may be lost: the next sync of each of them fails.
    pub(super) fn fail(&mut self, inodes: Vec<Ino>) {
        let error = LinkError::Lost.into();
        for ino in inodes {
            self.queue.fail(ino, &error, false);
        }
    }
}

impl Shared {
    /// How far the changes of this client have come: to its memory or to the server.
    fn own_level(&self, ino: Ino) -> Result<Level, FsError> {
        {
            let cache = self.cache.lock();
            if let Some(error) = cache.queue.untold(ino) {
                return Err(error);
            }
            if cache.is_unsent(ino) {
                let is_durable = cache.has_ended(ino);
                return Ok(if is_durable { Level::Server } else { Level::Memory });
            }
        }
        // What was sent is kept before it counts as sent.
        Ok(if self.reclaim_state.replay_log.lock().has(ino) {
            Level::Memory
        } else {
            Level::Server
        })
    }

    pub(super) async fn level(self: &Arc<Self>, ino: Ino) -> Result<Level, FsError> {
        match self.own_level(ino)? {
            Level::Server if !self.cache.lock().is_unsent(ino) => {
                self.level_at_server(ino, None).await
            }
            own => Ok(own),
        }
    }

    async fn level_at_server(
        self: &Arc<Self>,
        ino: Ino,
        wait: Option<(Level, u32)>,
    ) -> Result<Level, FsError> {
        match self.ask(Request::Level { ino, wait }).await? {
            (Answer::Level(level), _) => Ok(level),
            _ => Err(LinkError::Unexpected.into()),
        }
    }

    pub(super) async fn wait_for(
        self: &Arc<Self>,
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
            self.sync(Request::SyncAll).await?;
        }
        if self.cache.lock().is_unsent(ino) {
            if level == Level::Server {
                return Ok(true);
            }
            self.sync(Request::SyncAll).await?;
        }
        let start = self.env.now();
        loop {
            let left = within.saturating_sub(self.env.now().since(start));
            let millis = left.min(MOST).as_millis() as u32;
            let come = self.level_at_server(ino, Some((level, millis))).await?;
            if come >= level {
                return Ok(true);
            }
            if left <= MOST {
                return Ok(false);
            }
        }
    }

    /// Returns when all changes of an inode survive a crash of the server.
    pub(super) async fn sync_inode(
        self: &Arc<Self>,
        ino: Ino,
        content_only: bool,
    ) -> Result<(), FsError> {
        let synced = match self.sync_by_size_record(ino).await {
            Ok(false) => self.sync_at_server(ino, content_only).await,
            synced => synced.map(|_| ()),
        };
        match self.cache.lock().queue.tell_failure(ino) {
            Some(error) => Err(error),
            None => synced,
        }
    }

    async fn sync_at_server(self: &Arc<Self>, ino: Ino, content_only: bool) -> Result<(), FsError> {
        let before = self.before_sync(ino);
        self.sync(Request::Sync { ino, content_only }).await?;
        if let Some(before) = before {
            self.after_sync(ino, before).await;
        }
        Ok(())
    }
}
