//! Room that clients are promised for what they make by themselves, and the recall of that room.
//!
//! A session gets more room with the answers to its calls, so that this costs no call. A call that finds no room has all
//! clients send what they have made and return the rest; then it is made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_env::{HashSet, Time};
use thalweg_fs::room::{Refill, RoomShare, add_share};
use thalweg_fs::{FsError, Ino};
use tokio::sync::Notify;

use super::base::Base;
use super::context::RequestContext;
use super::recall::Recall;
use super::session::Session;
use super::sessions::Sessions;
use crate::protocol::{FromServer, MAX_SHARES, RemovedInode};

/// How long a call that finds no room waits for a client to forget an inode that was removed.
const FORGET: Duration = Duration::from_millis(250);

/// Checks what a client says that it has taken of its promise.
pub(super) fn check_shares(shares: &[RoomShare]) -> Result<(), FsError> {
    let is_twice = |at: usize| shares[..at].iter().any(|share| share.quota == shares[at].quota);
    if shares.len() > MAX_SHARES || (0..shares.len()).any(is_twice) {
        return Err(FsError::Invalid("too many quotas, or one of them twice"));
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct Room {
    base: Base,
    sessions: Arc<Sessions>,
    recall: Arc<Recall>,
    recalls: AtomicU64,
    recalling: tokio::sync::Mutex<()>,
    refused_until: Mutex<Time>,
    /// Inodes without names that clients know.
    unused: Mutex<HashSet<Ino>>,
    /// One of them is known to none any more.
    forgotten: Notify,
}

impl Room {
    pub(super) fn new(base: &Base, sessions: &Arc<Sessions>, recall: &Arc<Recall>) -> Room {
        Room {
            base: base.clone(),
            sessions: sessions.clone(),
            recall: recall.clone(),
            recalls: AtomicU64::new(0),
            recalling: tokio::sync::Mutex::default(),
            refused_until: Mutex::default(),
            unused: Mutex::default(),
            forgotten: Notify::new(),
        }
    }

    pub(super) fn recalls(&self) -> u64 {
        self.recalls.load(Ordering::Relaxed)
    }

    /// Whether clients may be promised room: not while it is recalled.
    fn is_granted(&self) -> bool {
        self.base.env.now() >= *self.refused_until.lock()
    }

    /// Clients are promised no room for so long.
    fn refuse_for(&self, time: Duration) {
        *self.refused_until.lock() = self.base.env.now() + time;
    }

    /// Has all clients send what they have made by themselves and return the room that they were promised. Whether some was
    /// promised.
    pub(super) async fn recall_all(&self) -> bool {
        let Some(table) = self.base.files.session_table() else { return false };
        let before = self.recalls();
        let _one = self.recalling.lock().await;
        if self.recalls() > before + 1 {
            // Another call's recall began after this one had failed.
            return true;
        }
        if table.sessions_with_room().is_empty() {
            return false;
        }
        self.recalls.fetch_add(1, Ordering::Relaxed);
        // Longer than the recall takes. Before a session counts this recall: an answer reads both in the other order.
        self.refuse_for(2 * self.base.options.lease + self.base.options.share);
        let holders = table.sessions_with_room();
        let sessions = self.sessions.matching(|it| holders.contains(&it.serial));
        let returning = sessions.iter().map(async |session| {
            let recalls = {
                let mut state = session.lock();
                state.room_recalls += 1;
                state.room_recalls
            };
            self.recall.request(session, &FromServer::ReturnRoom(recalls)).await;
            table.release_room(session.serial);
        });
        join_all(returning).await;
        self.refuse_for(self.base.options.share);
        true
    }

    /// Tells the other clients that know an inode when it has lost its last name, so that its room is free as soon as none of
    /// their programs uses it.
    pub(super) async fn notify_removed(&self, ctx: &RequestContext<'_>, removed: RemovedInode) {
        let ino = removed.ino;
        let holders = self.sessions.matching(|session| session.knows(ino).is_ok());
        if holders.is_empty() {
            return;
        }
        let found = self.base.files.attributes(ino).await;
        if found.is_err() || found.is_ok_and(|it| it.attributes.links > 0) {
            return;
        }
        self.unused.lock().insert(ino);
        let call = FromServer::Removed(vec![removed]);
        // A client without a connection forgets it with its next sweep.
        for session in holders.iter().filter(|it| it.serial != ctx.session.serial) {
            // It knows the inode by an answer that may not be queued yet. A client that hears first that an inode is removed, and
            // then of it, would keep it.
            let _ordered = session.answer_order.lock();
            session.notify("Removed", &call);
        }
    }

    pub(super) fn forgot(&self, ino: Ino) {
        if self.unused.lock().contains(&ino) && !self.sessions.know(ino) {
            self.unused.lock().remove(&ino);
            self.forgotten.notify_waiters();
        }
    }

    /// Waits a moment for clients to forget inodes that were removed; whether some did. Not those that programs have open.
    pub(super) async fn wait_for_forgotten(&self) -> bool {
        let forgotten = self.forgotten.notified();
        tokio::pin!(forgotten);
        forgotten.as_mut().enable();
        let waits = {
            let mut unused = self.unused.lock();
            // Sessions end without a word about each inode.
            unused.retain(|ino| self.sessions.know(*ino));
            unused.iter().any(|ino| !self.base.open_files.is_open(*ino))
        };
        waits && self.base.env.timeout(FORGET, forgotten).await.is_some()
    }

    /// Promises a client more room below the roots of these quotas.
    pub(super) async fn promise(&self, session: &Session, quotas: Vec<u64>) -> Vec<RoomShare> {
        let mut room = Vec::new();
        let Some(table) = self.base.files.session_table() else { return room };
        if quotas.is_empty() || !self.is_granted() {
            return room;
        }
        let refill = if session.journal.is_kept() { Refill::Some } else { Refill::Half };
        for quota in quotas {
            match table.promise(session.serial, quota, refill).await {
                Ok(more) => more.iter().for_each(|it| add_share(&mut room, it.quota, it.room)),
                Err(error) => tracing::debug!(%error, "a client is promised no more room"),
            }
        }
        room
    }

    /// Whether room that was promised counts in an answer, which no recall has come before: otherwise it is returned. Its caller
    /// has locked the session that counts the recalls.
    pub(super) fn grants(&self, session: &Session, shares: &[RoomShare]) -> bool {
        let grants = shares.is_empty() || self.is_granted();
        if !grants {
            self.give_back(session, shares);
        }
        grants
    }

    /// A client uses this of its promise for nothing.
    pub(super) fn give_back(&self, session: &Session, shares: &[RoomShare]) {
        if let Some(table) = self.base.files.session_table() {
            table.return_room(session.serial, shares);
        }
    }
}
