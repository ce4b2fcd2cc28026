//! What the server calls: recalls and invalidations, and what it only tells.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use thalweg_fs::{Change, FsError, Invalidation};
use thalweg_net::channel::{Channel, Handler, Incoming};

use super::Shared;
use crate::protocol::{Changed, FromServer, Invalidated, RemovedInode};

/// What the caller's cache has not dropped after so long is held by a call that is under way.
const HELD: Duration = Duration::from_millis(2);

/// Carries out the calls of the server.
pub(super) struct Invalidator(pub(super) Arc<Shared>, pub(super) Channel);

impl Handler for Invalidator {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let (recall, changes) = match call.decode().map_err(io::Error::other)? {
            FromServer::Invalidate { recall, changes } => (recall, changes),
            FromServer::InvalidateUnlessHeld(changes) => {
                let dropped = self.0.invalidate(&changes);
                let (channel, id, env) = (self.1.clone(), call.id, self.0.env.clone());
                let answering = async move {
                    let dropping = join_all(dropped.into_iter().map(Invalidation::wait));
                    let _ = env.timeout(HELD, dropping).await;
                    channel.answer(id, &Invalidated, &[]);
                    channel.flush_soon();
                };
                self.0.env.spawn(answering).detach();
                return Ok(());
            }
            FromServer::ReturnRoom(recalls) => {
                self.0.return_room(recalls, self.1.clone(), call.id);
                return Ok(());
            }
            FromServer::Durable(version) => {
                self.0.reclaim_state.replay_log.lock().durable(version);
                return Ok(());
            }
            FromServer::Removed(inodes) => {
                self.0.removed(inodes);
                return Ok(());
            }
            FromServer::Release(most) => {
                self.0.cache.lock().set_most(usize::try_from(most).unwrap_or(usize::MAX));
                self.0.pressed.notify_one();
                return Ok(());
            }
        };
        let dropped = self.0.invalidate(&changes);
        let (channel, id, shared) = (self.1.clone(), call.id, self.0.clone());
        let gives_back = changes.iter().any(|it| matches!(it, Changed::Delegation(_)));
        if dropped.is_empty() && !gives_back {
            channel.answer(id, &Invalidated, &[]);
            return Ok(());
        }
        if gives_back && dropped.is_empty() {
            shared.release_with_batch(recall);
        }
        // The caller's cache may wait for calls that are answered on this connection.
        let answering = async move {
            if gives_back && let Err(error) = shared.hand_over().await {
                tracing::error!(%error, "a directory was given back without all changes in it");
            }
            shared.cache.lock().queue.forget_release(recall);
            join_all(dropped.into_iter().map(Invalidation::wait)).await;
            channel.answer(id, &Invalidated, &[]);
            channel.flush_soon();
        };
        self.0.env.spawn(answering).detach();
        Ok(())
    }
}

impl Shared {
    /// Drops what the server is about to change; invalidations of the caller's cache that have begun.
    fn invalidate(&self, changes: &[Changed]) -> Vec<Invalidation> {
        let mut told = Vec::new();
        {
            let mut cache = self.cache.lock();
            for change in changes {
                if !cache.drop_changed(change) {
                    continue;
                }
                match change {
                    Changed::Attributes(ino) => {
                        told.push(Change::Inode { ino: self.ours(*ino), content: None })
                    }
                    Changed::Pages(ino) => told.push(Change::content(self.ours(*ino))),
                    Changed::Content { ino, from, to } => {
                        told.push(Change::Inode {
                            ino: self.ours(*ino),
                            content: Some(*from..*to),
                        });
                    }
                    Changed::Size { ino, size } => {
                        told.push(Change::Grown { ino: self.ours(*ino), size: *size });
                    }
                    // The caller never caches names.
                    Changed::Delegation(_) | Changed::Names(_) | Changed::Name { .. } => {}
                }
            }
        }
        let watcher = self.watcher.read();
        watcher.as_ref().map(|watcher| told.into_iter().map(watcher).collect()).unwrap_or_default()
    }

    /// Inodes have lost their last names: the caller drops them, and refers to them no longer than its programs use them.
    fn removed(&self, inodes: Vec<RemovedInode>) {
        for RemovedInode { parent, name, ino } in inodes {
            let is_gone = self.cache.lock().removed(ino);
            if is_gone {
                self.gone.notify_one();
            }
            if let Some(watcher) = &*self.watcher.read() {
                // Nothing waits for it: a call under way may have locked the directory.
                drop(watcher(Change::Removed { parent: self.ours(parent), name, ino }));
            }
        }
    }

    /// The server gets everything of what is not this client's alone any more.
    async fn hand_over(self: &Arc<Self>) -> Result<(), FsError> {
        self.send_mutations(true).await?;
        self.tell_shared_opens().await
    }
}
