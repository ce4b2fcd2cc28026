//! Changes: what clients cache of it is invalidated first.
//!
//! A change that is under way is a [`RecallGuard`]: nothing of what it changes is granted before that is dropped.

mod under_way;

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use futures::future::{join, join_all};
use smallvec::SmallVec;
use thalweg_env::FixedState;
use thalweg_fs::{FsError, Ino};
use thalweg_net::channel::Channel;
use tokio::sync::{MutexGuard, OwnedRwLockReadGuard};

use super::base::Base;
use super::capabilities::{Drops, Late};
use super::commit_on_share::{CommitOnShare, Undurable};
use super::context::{RequestContext, Response};
use super::counters::{add, value};
use super::foreign_use;
use super::options::Options;
use super::session::Session;
use super::sessions::{Ending, Sessions};
use crate::protocol::{Changed, FromServer, Invalidated};
pub(super) use under_way::RecallReport;
use under_way::{RecallsUnderWay, Releases};

/// Names with equal hashes modulo this share a lock.
const NAME_LOCKS: usize = 256;

/// The changes under way, and the calls of the server to its clients that these wait for.
#[derive(Debug)]
pub(super) struct Recall {
    base: Base,
    sessions: Arc<Sessions>,
    commit_on_share: Arc<CommitOnShare>,
    /// Changes of one name come one after the other, so that a change knows the inode that it is about.
    name_locks: Vec<tokio::sync::Mutex<()>>,
    hasher: FixedState,
    under_way: RecallsUnderWay,
    releases: Releases,
}

/// A change that is under way: nothing of it is granted.
#[derive(Debug)]
pub(super) struct RecallGuard<'a> {
    recall: &'a Recall,
    ctx: &'a RequestContext<'a>,
    changes: Vec<Changed>,
    number: u64,
    /// Taken when the guard is dropped.
    undurable: Option<Undurable>,
    /// What it changes is not moved out of its client's root meanwhile.
    _executing: Option<OwnedRwLockReadGuard<()>>,
}

impl Drop for RecallGuard<'_> {
    fn drop(&mut self) {
        let Recall { base, commit_on_share, .. } = self.recall;
        self.ctx.add_late(base.capabilities.end(self.number, &self.changes));
        if let Some(undurable) = self.undurable.take() {
            let parents = self.changes.iter().filter_map(|change| match change {
                Changed::Name { parent, .. } => Some(*parent),
                _ => None,
            });
            let mut parents: SmallVec<[Ino; 2]> = parents.collect();
            parents.dedup();
            commit_on_share.end(self.ctx, undurable, &parents);
        }
    }
}

impl Recall {
    pub(super) fn new(
        base: &Base,
        sessions: &Arc<Sessions>,
        commit_on_share: &Arc<CommitOnShare>,
    ) -> Recall {
        Recall {
            base: base.clone(),
            sessions: sessions.clone(),
            commit_on_share: commit_on_share.clone(),
            name_locks: (0..NAME_LOCKS).map(|_| Default::default()).collect(),
            hasher: FixedState::default(),
            under_way: RecallsUnderWay::default(),
            releases: Releases::new(&base.env),
        }
    }

    /// Has changes of these names come one after the other.
    pub(super) async fn lock_names(
        &self,
        names: &[(Ino, &[u8])],
    ) -> SmallVec<[MutexGuard<'_, ()>; 2]> {
        let number =
            |name: &(Ino, &[u8])| self.hasher.hash_one((name.0.0, name.1)) as usize % NAME_LOCKS;
        let mut numbers: SmallVec<[usize; 2]> = names.iter().map(number).collect();
        // In one order, so that two changes never wait for each other.
        numbers.sort_unstable();
        numbers.dedup();
        let mut guards = SmallVec::new();
        for number in numbers {
            guards.push(self.name_locks[number].lock().await);
        }
        guards
    }

    /// Begins the changes that the footprint of a call tells: returns when no other client caches what they change. Fails as
    /// [`Recall::begin_with`].
    pub(super) async fn begin<'a>(
        &'a self,
        ctx: &'a RequestContext<'a>,
    ) -> Result<RecallGuard<'a>, FsError> {
        self.begin_with(ctx, ctx.footprint.changed(), &[]).await
    }

    /// Begins changes by a call. Its own client has to drop what it caches of `surprising` inodes, too: it did not know that
    /// its call concerns these. [`FsError::Stale`] if something of that was moved out of the client's root.
    pub(super) async fn begin_with<'a>(
        &'a self,
        ctx: &'a RequestContext<'a>,
        changes: Vec<Changed>,
        surprising: &[Ino],
    ) -> Result<RecallGuard<'a>, FsError> {
        let serial = ctx.session.serial;
        let undurable = self.commit_on_share.begin(serial, &changes);
        let (number, invalid, held) = self.base.capabilities.begin(serial, &changes, surprising);
        ctx.hold(self.base.capabilities.page_turn(number, &changes));
        let mut guard =
            RecallGuard { recall: self, ctx, changes, number, undurable, _executing: None };
        // What is made again was invalidated the first time, and no client has seen it since.
        let is_free = invalid.is_empty() && held.is_empty();
        if !is_free && !ctx.is_replay() {
            for (session, changes) in &held {
                let late = |it: &Changed| Late { number, session: *session, change: it.clone() };
                ctx.add_late(changes.iter().map(late));
            }
            join(self.drop_unless_held(held), self.drop_first(ctx, number, invalid)).await;
        }
        self.sessions.note_uses(serial, || foreign_use::of_changes(&guard.changes)).await;
        // A call that only takes back what is another client's alone goes on to change something else.
        let is_change = |it: &Changed| !matches!(it, Changed::Delegation(_));
        if ctx.session.is_confined() && guard.changes.iter().any(is_change) {
            let inodes = guard.changes.iter().map(Changed::ino);
            guard._executing = Some(ctx.session.begin_change(inodes).await?);
        }
        Ok(guard)
    }

    /// Takes back these directories and files from the clients to which they are delegated.
    pub(super) async fn recall_delegations<'a>(
        &'a self,
        ctx: &'a RequestContext<'a>,
        inodes: &[Ino],
    ) -> Result<RecallGuard<'a>, FsError> {
        let changes = inodes.iter().map(|ino| Changed::Delegation(*ino));
        self.begin_with(ctx, changes.collect(), &[]).await
    }

    /// Returns when all this was dropped.
    pub(super) async fn invalidate(&self, ctx: &RequestContext<'_>, invalid: Drops) {
        self.drop_first(ctx, 0, invalid).await;
    }

    /// Returns when all this was dropped, for changes with this number.
    async fn drop_first(&self, ctx: &RequestContext<'_>, number: u64, invalid: Drops) {
        if invalid.is_empty() {
            return;
        }
        let recalling = &self.under_way.begin(ctx, self.base.env.now(), &invalid);
        let waits = invalid.iter().map(|(serial, changes)| async move {
            self.drop_from(*serial, changes, false).await;
            let until = self.base.env.now() + self.base.options.share;
            self.base.capabilities.dropped(*serial, number, changes, until);
            recalling.answered(*serial);
        });
        join_all(waits).await;
    }

    /// Has sessions drop what their calls may hold. Returns when each of them has, or holds some of it: that is dropped when its call
    /// is answered.
    async fn drop_unless_held(&self, held: Drops) {
        join_all(held.iter().map(|(serial, changes)| self.drop_from(*serial, changes, true))).await;
    }

    /// Returns when a client does not cache these things any more, or holds some of them if it may.
    async fn drop_from(&self, serial: u64, changes: &[Changed], unless_held: bool) {
        loop {
            let session = self.sessions.with_serial(serial).filter(|it| !it.is_deserted());
            if let Some(session) = session {
                self.ask(&session, changes, unless_held).await;
                if !session.is_deserted() {
                    // It may have set the rest of its journal aside.
                    if session.journal.has_returned() {
                        self.sessions.note_use(serial, changes).await;
                    }
                    return;
                }
            }
            self.sessions.left(serial).await;
            if self.sessions.note_use(serial, changes).await {
                return;
            }
            // Its client has come back meanwhile.
        }
    }

    /// Has the client of a session drop these things.
    async fn ask(&self, session: &Arc<Session>, changes: &[Changed], unless_held: bool) {
        let requests = Changed::messages_of(changes).map(|part| async move {
            let changes = part.to_vec();
            if unless_held {
                return self.request(session, &FromServer::InvalidateUnlessHeld(changes)).await;
            }
            if !changes.iter().any(|it| matches!(it, Changed::Delegation(_))) {
                return self.request(session, &FromServer::Invalidate { recall: 0, changes }).await;
            }
            let mut release = self.releases.expect(session.serial);
            let call = FromServer::Invalidate { recall: release.number(), changes };
            self.request_unless(session, &call, release.released()).await;
        });
        join_all(requests).await;
    }

    /// A client's kernel is about to cache pages of a file: from here on it is told of each change of them.
    pub(super) async fn hold_pages(&self, ctx: &RequestContext<'_>, ino: Ino, range: Range<u64>) {
        let serial = ctx.session.serial;
        while !self.base.capabilities.read_pages(serial, ino, &range) {
            // What the owner sends before it releases the file may concern pages of this client, which drops none before
            // its read is answered. So it is not told before.
            let recalls = self.base.capabilities.recalls(serial, &[ino]);
            self.invalidate(ctx, recalls).await;
        }
    }

    /// Returns when the other sessions have dropped what outlived the changes of a call, and know what they are to know of them; and
    /// its own one what is outdated of what its response shows.
    pub(super) async fn settle(&self, ctx: &RequestContext<'_>, shows: Option<&Response>) {
        let late = ctx.drain_late();
        if !late.is_empty() {
            let (free, held) = self.base.capabilities.divide(late);
            join(self.drop_unless_held(held), self.invalidate(ctx, free)).await;
        }
        if let Some(response) = shows {
            self.base.capabilities.pages_dropped(ctx.session.serial, &response.tells()).await;
        }
    }

    /// A batch of a session has been carried out that releases these.
    pub(super) fn released(&self, session: u64, recalls: &[u64]) {
        self.releases.released(session, recalls);
    }

    /// Has a client return something, or drop it. When this returns, it has done so, or its session has ended and it has left:
    /// one that does not answer is evicted.
    pub(super) async fn request(&self, session: &Arc<Session>, call: &FromServer) {
        self.request_unless(session, call, std::future::pending()).await;
    }

    /// As [`Recall::request`]; returns also when the client has `done` it before it answers.
    async fn request_unless(
        &self,
        session: &Arc<Session>,
        call: &FromServer,
        done: impl Future<Output = ()>,
    ) {
        if session.is_deserted() {
            return self.sessions.left(session.serial).await;
        }
        let counters = &self.base.counters;
        add(&counters.recalls_sent, 1);
        let delivering = async {
            tokio::select! {
                biased;
                delivered = deliver(session, call) => delivered,
                () = done => true,
            }
        };
        let delivered = self.within_patience(session, delivering).await;
        add(&counters.recalls_answered, u64::from(delivered == Some(true)));
        add(&counters.recalls_timed_out, u64::from(delivered.is_none()));
        if delivered.is_none() {
            let why = "its client did not answer an invalidation";
            self.sessions.end(session, Ending::Evicted(why));
        }
        if delivered != Some(true) {
            self.sessions.left(session.serial).await;
        }
    }

    /// Waits for a client: for a lease, and then for as long as it sends what it has made.
    async fn within_patience(
        &self,
        session: &Session,
        delivering: impl Future<Output = bool>,
    ) -> Option<bool> {
        let Options { lease, hold, recall, .. } = *self.base.options;
        let patience = if session.journal.is_kept() { lease + hold } else { lease };
        let until = self.base.env.now() + patience.max(recall);
        tokio::pin!(delivering);
        let mut batches = value(&session.counters.batches);
        loop {
            let left = until.since(self.base.env.now());
            let delivered = self.base.env.timeout(patience.min(left), &mut delivering).await;
            let before = std::mem::replace(&mut batches, value(&session.counters.batches));
            if delivered.is_some() || batches == before || self.base.env.now() >= until {
                return delivered;
            }
        }
    }

    pub(super) fn running(&self) -> Vec<RecallReport> {
        self.under_way.running()
    }
}

/// Sends a call on each connection of the client, until it is answered or the session has ended: whether it was answered.
async fn deliver(session: &Session, call: &FromServer) -> bool {
    let mut failed: Option<Channel> = None;
    while let Some(channel) = session.channel_behind_answers(failed.as_ref()).await {
        match channel.call::<_, Invalidated>(call, &[]).await {
            Ok(_) => return true,
            Err(_) => failed = Some(channel),
        }
    }
    false
}
