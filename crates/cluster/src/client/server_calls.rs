//! What the server calls: recalls and invalidations, and what it only tells.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use thalweg_fs::{Change, FsError, Invalidation};
use thalweg_net::channel::{Channel, Handler, Incoming};

use super::base::ClientBase;
use super::open_files::OpenFiles;
use super::refusals::PAUSE;
use super::writeback::Writeback;
use crate::protocol::{Changed, FromServer, Invalidated, RemovedInode};

/// What the caller's cache has not dropped after so long is held by a call that is under way.
const HELD: Duration = Duration::from_millis(2);

/// Carries out the calls of the server on a connection.
#[derive(Clone)]
pub(super) struct ServerCalls {
    pub(super) base: Arc<ClientBase>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) channel: Channel,
}

impl Handler for ServerCalls {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        match call.decode().map_err(io::Error::other)? {
            FromServer::Invalidate { recall, changes } => {
                self.invalidate(call.id, recall, &changes);
            }
            FromServer::InvalidateUnlessHeld(changes) => {
                let dropping =
                    join_all(self.drop_changed(&changes).into_iter().map(Invalidation::wait));
                let (base, env) = (self.base.clone(), self.base.env.clone());
                self.answer_after(call.id, async move {
                    base.links.released().await;
                    // What is held is dropped when it can be.
                    let _ = env.timeout(HELD, dropping).await;
                });
            }
            FromServer::ReturnRoom(recalls) => self.return_room(call.id, recalls),
            FromServer::Durable(version) => self.base.replay_log.set_durable(version),
            FromServer::Removed(inodes) => self.remove(inodes),
            FromServer::Release(max) => {
                self.base.cache.press(usize::try_from(max).unwrap_or(usize::MAX));
            }
        }
        Ok(())
    }
}

impl ServerCalls {
    /// Answers a call when something is done, in a task of its own: that may wait for calls that are answered on this connection.
    fn answer_after(&self, id: u64, done: impl Future<Output = ()> + Send + 'static) {
        let channel = self.channel.clone();
        let answering = async move {
            done.await;
            channel.answer(id, &Invalidated, &[]);
            channel.flush_soon();
        };
        self.base.env.spawn(answering).detach();
    }

    fn invalidate(&self, id: u64, recall: u64, changes: &[Changed]) {
        let dropped = self.drop_changed(changes);
        let releases = changes.iter().any(|it| matches!(it, Changed::Delegation(_)));
        if dropped.is_empty() && !releases && !self.base.links.is_held() {
            self.channel.answer(id, &Invalidated, &[]);
            return;
        }
        // The recall is done with the last batch, if the server need not hear of open files then.
        if releases && dropped.is_empty() && self.open_files.untold().is_empty() {
            self.base.queue.release(recall);
        }
        let calls = self.clone();
        self.answer_after(id, async move {
            // While the mount may move, the one that it moves to is to hear of it.
            calls.base.links.released().await;
            if releases && !calls.hand_over_all().await {
                return;
            }
            calls.base.queue.forget_release(recall);
            join_all(dropped.into_iter().map(Invalidation::wait)).await;
        });
    }

    /// Drops what the server is about to change; invalidations of the caller's cache that have begun.
    fn drop_changed(&self, changes: &[Changed]) -> Vec<Invalidation> {
        let known = changes.iter().filter(|change| {
            if let Changed::Delegation(ino) = change {
                self.base.revoke(*ino);
            }
            self.base.cache.drop_changed(change)
        });
        let ours = |ino| self.base.session.ours(ino);
        // All is dropped here before the caller hears of it.
        let told: Vec<Change> = known
            .filter_map(|change| match change {
                Changed::Attributes(ino) => Some(Change::Inode { ino: ours(*ino), content: None }),
                Changed::Pages(ino) => Some(Change::content(ours(*ino))),
                Changed::Content { ino, from, to } => {
                    Some(Change::Inode { ino: ours(*ino), content: Some(*from..*to) })
                }
                Changed::Size { ino, size } => Some(Change::Grown { ino: ours(*ino), size: *size }),
                // The caller never caches names.
                Changed::Delegation(_) | Changed::Names(_) | Changed::Name { .. } => None,
            })
            .collect();
        self.base.notify_caller(told)
    }

    /// Inodes have lost their last names: the caller drops them, and refers to them no longer than its programs use them.
    fn remove(&self, inodes: Vec<RemovedInode>) {
        for RemovedInode { parent, name, ino } in inodes {
            self.base.cache.remove(ino);
            // Nothing waits for it: a call under way may have locked the directory.
            drop(self.base.notify_caller([Change::Removed {
                parent: self.base.session.ours(parent),
                name,
                ino,
            }]));
        }
    }

    /// The client takes no more of what it was promised. The server gets every change that has taken some, and then the answer.
    fn return_room(&self, id: u64, recalls: u64) {
        self.base.room.recall(recalls);
        // A change that has taken some before has its number then, so that it is sent.
        self.base.inodes.barrier();
        let writeback = self.writeback.clone();
        self.answer_after(id, async move {
            if let Err(error) = writeback.send_all().await {
                tracing::error!(%error, "room was returned without all changes that had taken some");
            }
        });
    }

    /// The same, for as long as it takes; whether the recall is to be answered. Another client would miss what the server has refused, so it waits
    /// until that is taken, or until this session ends.
    async fn hand_over_all(&self) -> bool {
        loop {
            let Err(error) = self.hand_over().await else { return true };
            if self.base.refusals.current().is_none() {
                tracing::error!(%error, "a directory was given back without all changes in it");
                return true;
            }
            if !self.base.refusals.hurry(self.base.now()) {
                self.channel.close("the journal cannot be written back");
                return false;
            }
            tokio::select! {
                () = self.channel.closed() => return false,
                () = self.base.env.sleep(PAUSE) => {}
            }
        }
    }

    /// The server gets everything of what is not this client's alone any more, and hears of the files that are open there.
    async fn hand_over(&self) -> Result<(), FsError> {
        self.writeback.send_all().await?;
        self.open_files.notify_server(&self.open_files.untold()).await
    }
}
