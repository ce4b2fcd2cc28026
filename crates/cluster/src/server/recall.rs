//! Changes: what clients cache of it is invalidated first.

use std::hash::BuildHasher;
use std::sync::Arc;

use futures::future::{join, join_all};
use smallvec::SmallVec;
use thalweg_env::FixedState;
use thalweg_fs::{FsError, Ino};
use thalweg_net::channel::Channel;
use tokio::sync::{Mutex, MutexGuard, OwnedRwLockReadGuard};

use super::capabilities::{Begun, Capabilities, Drops};
use super::commit_on_share::{CommitOnShare, Dependencies, dependencies};
use super::context::RequestContext;
use super::counters::add;
use super::page_turn::PageTurn;
use super::pages::Late;
use super::releases::Release;
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
pub(super) struct RecallGuard<'a> {
    capabilities: &'a Capabilities,
    changes: Vec<Changed>,
    /// The changes' number.
    number: u64,
    ctx: &'a RequestContext<'a>,
    /// If the filesystem keeps records.
    commit_on_share: Option<(&'a CommitOnShare, Dependencies)>,
    /// What it changes is not moved out of its client's root meanwhile.
    _executing: Option<OwnedRwLockReadGuard<()>>,
}

impl Drop for RecallGuard<'_> {
    fn drop(&mut self) {
        let outdated = self.capabilities.end(self.number, &self.changes);
        outdated.into_iter().for_each(|late| self.ctx.is_late(late));
        if let Some((commit_on_share, dependencies)) = &self.commit_on_share {
            let parents = self.changes.iter().filter_map(|change| match change {
                Changed::Name { parent, .. } => Some(*parent),
                _ => None,
            });
            let parents: SmallVec<[Ino; 2]> = parents.collect();
            let committed = self.ctx.committed().map(|it| it.version);
            let (by, waits) = (self.ctx.session.serial, self.ctx.is_answered_later());
            if commit_on_share.end(by, dependencies, &parents, committed, waits) {
                self.ctx.depend();
            }
        }
    }
}

impl Shared {
    /// Begins changes by a call: returns when no other client caches what they change.
    ///
    /// # Errors
    /// [`FsError::Stale`]: it was moved out of the client's root.
    pub(super) async fn recall<'a>(
        &'a self,
        by: &'a RequestContext<'a>,
        changes: Vec<Changed>,
    ) -> Result<RecallGuard<'a>, FsError> {
        self.recall_with(by, changes, &[]).await
    }

    /// As [`Shared::begin`]; the call's own client has to drop what it caches of `surprising` inodes, too: it did not
    /// know that its call concerns these.
    ///
    /// # Errors
    /// As [`Shared::begin`].
    pub(super) async fn recall_with<'a>(
        &'a self,
        by: &'a RequestContext<'a>,
        changes: Vec<Changed>,
        surprising: &[Ino],
    ) -> Result<RecallGuard<'a>, FsError> {
        let serial = by.session.serial;
        let commit_on_share = self
            .filesystem
            .session_table()
            .map(|_| (&self.commit_on_share, dependencies(&changes)));
        if let Some((commit_on_share, dependencies)) = &commit_on_share {
            commit_on_share.begin(serial, dependencies);
        }
        let Begun { number, invalid, held } = self.capabilities.begin(serial, &changes, surprising);
        by.holds(PageTurn::of(self.capabilities.table(), number, &changes));
        let (capabilities, _executing) = (&self.capabilities, None);
        let mut change =
            RecallGuard { capabilities, changes, number, ctx: by, commit_on_share, _executing };
        // What is made again was invalidated the first time, and no client has seen it since.
        if !by.is_replay() {
            for (session, change) in
                held.iter().flat_map(|(to, all)| all.iter().map(|it| (*to, it)))
            {
                by.is_late(Late { number, session, change: change.clone() });
            }
            join(self.drop_unless_held(held), self.drop_first(by, number, invalid)).await;
        }
        // A call that only takes back what is another client's alone goes on to change something else.
        let is_change = |it: &Changed| !matches!(it, Changed::Delegation(_));
        if by.session.is_confined() && change.changes.iter().any(is_change) {
            change._executing = Some(by.session.executing.clone().read_owned().await);
            let inodes: SmallVec<[Option<Ino>; 4]> =
                change.changes.iter().map(|it| Some(it.ino())).collect();
            if by.session.has_lost(&inodes) {
                return Err(FsError::Stale);
            }
        }
        Ok(change)
    }

    /// Returns when all this was dropped.
    pub(super) async fn invalidate(&self, by: &RequestContext<'_>, invalid: Drops) {
        self.drop_first(by, 0, invalid).await;
    }

    /// Returns when all this was dropped, for changes with this number.
    async fn drop_first(&self, by: &RequestContext<'_>, number: u64, invalid: Drops) {
        if invalid.is_empty() {
            return;
        }
        let recalling = &self.recalls.begin(by, self.env.now(), &invalid);
        let waits = invalid.iter().map(|(serial, changes)| async move {
            let session = self.sessions.lock().values().find(|it| it.serial == *serial).cloned();
            match session {
                Some(session) => self.drop_from(&session, changes).await,
                None => self.leave(*serial).await,
            }
            let until = self.env.now() + self.options.share;
            self.capabilities.dropped(*serial, number, changes, until);
            recalling.answered(*serial);
        });
        join_all(waits).await;
    }

    /// Waits until an ended session has left: its client uses nothing of its cache, and the records do not have it.
    async fn leave(&self, serial: u64) {
        let left = self.leaving.lock().get(&serial).map(|leaving| leaving.left.clone());
        if let Some(mut left) = left {
            let _ = left.changed().await;
        }
    }

    /// Returns when a client does not cache these things any more.
    async fn drop_from(&self, session: &Arc<Session>, changes: &[Changed]) {
        let orders = Changed::messages_of(changes).map(|part| async move {
            let is_delegation = |it: &Changed| matches!(it, Changed::Delegation(_));
            let has_delegation = part.iter().any(is_delegation);
            let mut release = has_delegation.then(|| self.releases.expect(session.serial));
            let recall = release.as_ref().map_or(0, Release::number);
            let order = FromServer::Invalidate { recall, changes: part.to_vec() };
            let released = async {
                match &mut release {
                    Some(release) => release.released().await,
                    None => std::future::pending().await,
                }
            };
            self.order_unless(session, &order, released).await;
        });
        join_all(orders).await;
    }

    /// Has sessions drop what their calls may hold. Returns when each of them has, or holds some of it: that is dropped when its call
    /// is answered.
    pub(super) async fn drop_unless_held(&self, held: Drops) {
        let waits = held.into_iter().map(|(serial, changes)| async move {
            let session = self.sessions.lock().values().find(|it| it.serial == serial).cloned();
            let Some(session) = session else { return self.leave(serial).await };
            let orders: Vec<FromServer> = Changed::messages_of(&changes)
                .map(|part| FromServer::InvalidateUnlessHeld(part.to_vec()))
                .collect();
            join_all(orders.iter().map(|order| self.order(&session, order))).await;
        });
        join_all(waits).await;
    }

    /// Has a client return something, or drop it. When this returns, it has done so, or its session has ended and it has left:
    /// one that does not answer is evicted.
    pub(super) async fn order(&self, session: &Arc<Session>, call: &FromServer) {
        self.order_unless(session, call, std::future::pending()).await;
    }

    /// As [`Shared::order`]; returns also when the client has `done` it before it answers.
    async fn order_unless(
        &self,
        session: &Arc<Session>,
        call: &FromServer,
        done: impl Future<Output = ()>,
    ) {
        let counts = &self.recalls.counts;
        add(&counts.sent, 1);
        let delivering = async {
            tokio::select! {
                biased;
                delivered = self.deliver(session, call) => delivered,
                () = done => true,
            }
        };
        let delivered = self.env.timeout(self.options.lease, delivering).await;
        add(&counts.answered, u64::from(delivered == Some(true)));
        add(&counts.timed_out, u64::from(delivered.is_none()));
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
