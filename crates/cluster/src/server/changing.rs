//! Changes: what clients cache of it is invalidated first.

use std::hash::BuildHasher;
use std::sync::Arc;

use futures::future::join_all;
use thalweg_env::FixedState;
use thalweg_fs::{FsError, Ino};
use thalweg_net::channel::Channel;
use tokio::sync::{Mutex, MutexGuard};

use super::capabilities::Capabilities;
use super::session::Session;
use super::{Ending, Shared};
use crate::protocol::{Changed, FromServer, Invalidated};

/// Names with equal hashes modulo this share a lock.
const LOCKS: usize = 256;

/// Changes of one name come one after the other, so that a change knows the inode that it is about.
#[derive(Debug)]
pub(super) struct NameLocks {
    locks: Vec<Mutex<()>>,
    hasher: FixedState,
}

impl Default for NameLocks {
    fn default() -> NameLocks {
        let locks = (0..LOCKS).map(|_| Mutex::default()).collect();
        NameLocks { locks, hasher: Default::default() }
    }
}

impl NameLocks {
    /// Locks one name, or two.
    pub(super) async fn lock(&self, names: &[(Ino, &[u8])]) -> Vec<MutexGuard<'_, ()>> {
        let number =
            |name: &(Ino, &[u8])| self.hasher.hash_one((name.0.0, name.1)) as usize % LOCKS;
        let mut numbers: Vec<usize> = names.iter().map(number).collect();
        // In one order, so that two changes never wait for each other.
        numbers.sort_unstable();
        numbers.dedup();
        let mut guards = Vec::with_capacity(numbers.len());
        for number in numbers {
            guards.push(self.locks[number].lock().await);
        }
        guards
    }
}

/// A change that is under way: nothing of it is granted.
pub(super) struct Change<'a> {
    capabilities: &'a Capabilities,
    changes: Vec<Changed>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.capabilities.end(&self.changes);
    }
}

impl Shared {
    /// Begins changes by a session: returns when no other client caches what they change.
    pub(super) async fn begin(&self, by: &Session, changes: Vec<Changed>) -> Change<'_> {
        self.begin_with(by, changes, &[]).await
    }

    /// As [`Shared::begin`]; the session's own client has to drop what it caches of `surprising` inodes, too: it did not
    /// know that its call concerns these.
    pub(super) async fn begin_with(
        &self,
        by: &Session,
        changes: Vec<Changed>,
        surprising: &[Ino],
    ) -> Change<'_> {
        let invalid = self.capabilities.begin(by.serial, &changes, surprising);
        let change = Change { capabilities: &self.capabilities, changes };
        if !invalid.is_empty() {
            self.invalidate(invalid).await;
        }
        change
    }

    async fn invalidate(&self, invalid: Vec<(u64, Vec<Changed>)>) {
        let waits = invalid.iter().map(|(serial, changes)| async move {
            let session = self.sessions.lock().values().find(|it| it.serial == *serial).cloned();
            match session {
                Some(session) => self.drop_from(&session, changes).await,
                None => self.leave(*serial).await,
            }
            self.capabilities.dropped(*serial, changes);
        });
        join_all(waits).await;
    }

    /// Waits for the lease of an ended session: from then on its client uses nothing of its cache.
    async fn leave(&self, serial: u64) {
        let until = self.leaving.lock().get(&serial).copied();
        if let Some(until) = until {
            self.env.sleep_until(until).await;
        }
    }

    /// Returns when a client does not cache these things any more. One that does not answer is evicted.
    async fn drop_from(&self, session: &Arc<Session>, changes: &[Changed]) {
        let call = FromServer::Invalidate(changes.to_vec());
        let delivered = self.env.timeout(self.options.lease, self.deliver(session, &call)).await;
        if delivered.is_none() {
            self.end(session, Ending::Evicted("its client did not answer an invalidation"));
        }
        if delivered != Some(true) {
            self.leave(session.serial).await;
        }
    }

    /// Sends an invalidation on each connection of the client, until it is answered or the session has ended: whether it
    /// was answered.
    async fn deliver(&self, session: &Session, call: &FromServer) -> bool {
        let mut failed: Option<Channel> = None;
        loop {
            let moved = session.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let (channel, has_ended) = {
                let state = session.state.lock();
                (state.channel.clone(), state.has_ended)
            };
            if has_ended {
                return false;
            }
            let channel = channel.filter(|it| !failed.as_ref().is_some_and(|old| old.is_same(it)));
            match channel {
                None => moved.await,
                Some(channel) => match channel.call::<_, Invalidated>(call, &[]).await {
                    Ok(_) => return true,
                    Err(_) => failed = Some(channel),
                },
            }
        }
    }

    /// The inode of a name.
    pub(super) async fn target(&self, parent: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
        match self.filesystem.lookup(parent, name).await? {
            thalweg_fs::Lookup::Found(found) => Ok(Some(found.ino)),
            thalweg_fs::Lookup::Absent(_) => Ok(None),
        }
    }
}
