//! Room that clients are promised for what they make by themselves, and the recall of that room.
//!
//! A session gets more room with the answers to its calls, so that this costs no call. A call that finds no room has all
//! clients send what they have made and return the rest; then it is made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashSet;
use thalweg_fs::room::RoomShare;
use thalweg_fs::{FsError, Ino};
use tokio::sync::Notify;

use super::Shared;
use super::context::RequestContext;
use super::response::Response;
use super::session::Session;
use crate::protocol::{FromServer, MAX_SHARES, RemovedInode, Request, RoomGrant};

/// Bytes of the longest append that is one transaction: a longer one may have been made in part.
const WHOLE_APPEND: usize = thalweg_fs::local::MAX_ATOMIC_WRITE as usize;

/// How long a call that finds no room waits for a client to forget an inode that was removed.
const FORGET: Duration = Duration::from_millis(250);

/// Whether an error says that there is no room.
fn lacks_room(error: &FsError) -> bool {
    matches!(error, FsError::NoSpace | FsError::QuotaExceeded)
}

/// Whether a call may be made again after it has found no room: it has changed nothing.
fn may_repeat(request: &Request, payload: &Bytes) -> bool {
    let is_whole = match request {
        Request::Batch { .. } | Request::Copy { .. } => false,
        Request::Write { at: thalweg_fs::WriteAt::End, .. } => payload.len() <= WHOLE_APPEND,
        _ => true,
    };
    is_whole && request.footprint(payload.len()).is_change()
}

/// Checks what a client says that it has taken of its promise.
///
/// # Errors
/// [`FsError::Invalid`]
pub(super) fn check_shares(shares: &[RoomShare]) -> Result<(), FsError> {
    let is_twice = |at: usize| shares[..at].iter().any(|share| share.quota == shares[at].quota);
    match shares.len() > MAX_SHARES || (0..shares.len()).any(is_twice) {
        true => Err(FsError::Invalid("too many quotas, or one of them twice")),
        false => Ok(()),
    }
}

impl Shared {
    /// Carries out a call; when it finds no room, once more after the clients have returned what they were promised and do
    /// not use.
    pub(super) async fn carry_out_in_room(
        &self,
        ctx: &RequestContext<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Response, FsError> {
        let again = may_repeat(&request, &payload).then(|| (request.clone(), payload.clone()));
        let mut done = self.carry_out(ctx, request, payload).await;
        let Some((request, payload)) = again else { return done };
        let is_refused = |done: &Result<Response, FsError>| done.as_ref().is_err_and(lacks_room);
        if is_refused(&done) && self.recall_room().await {
            done = self.carry_out(ctx, request.clone(), payload.clone()).await;
        }
        while is_refused(&done) && self.wait_for_removed().await {
            done = self.carry_out(ctx, request.clone(), payload.clone()).await;
        }
        done
    }

    /// Has all clients send what they have made by themselves and return the room that they were promised. Whether some was
    /// promised.
    async fn recall_room(&self) -> bool {
        let Some(session_table) = self.filesystem.session_table() else { return false };
        let before = self.room.count();
        let _one = self.room.recalling.lock().await;
        if self.room.count() > before + 1 {
            // Another call's recall began after this one had failed.
            return true;
        }
        if session_table.sessions_with_room().is_empty() {
            return false;
        }
        self.room.recalls.fetch_add(1, Ordering::Relaxed);
        // Longer than the recall takes.
        let until = self.env.now() + 2 * self.options.lease + self.options.share;
        self.capabilities.lock().refuse_room(until);
        let holders = session_table.sessions_with_room();
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let returning = sessions
            .iter()
            .filter(|session| holders.contains(&session.serial))
            .map(|session| self.recall_room_of(session));
        futures::future::join_all(returning).await;
        self.capabilities.lock().refuse_room(self.env.now() + self.options.share);
        true
    }

    async fn recall_room_of(&self, session: &Arc<Session>) {
        let number = {
            let mut state = session.state.lock();
            state.room_recalls += 1;
            state.room_recalls
        };
        let call = FromServer::ReturnRoom(number);
        self.order(session, &call).await;
        if let Some(session_table) = self.filesystem.session_table() {
            session_table.release_room(session.serial);
        }
    }

    /// Tells the other clients that know an inode when it has lost its last name, so that its room is free as soon as none of
    /// their programs uses it.
    pub(super) async fn tell_removed(&self, ctx: &RequestContext<'_>, removed: RemovedInode) {
        let (ino, serial) = (removed.ino, ctx.session.serial);
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let knows = |session: &&Arc<Session>| session.knows(ino).is_ok();
        let holders: Vec<&Arc<Session>> = sessions.iter().filter(knows).collect();
        if holders.is_empty() {
            return;
        }
        let has_names = match self.filesystem.attributes(ino).await {
            Ok(found) => found.attributes.links > 0,
            Err(_) => return,
        };
        if has_names {
            return;
        }
        self.room.unused.lock().insert(ino);
        let call = FromServer::Removed(vec![removed]);
        for session in holders.into_iter().filter(|session| session.serial != serial) {
            let channel = session.state.lock().channel.clone();
            if let Some(channel) = channel {
                // A client without a connection forgets it with its next sweep.
                let _ = channel.tell_for("Removed", &call, &[]);
                channel.flush_soon();
            }
        }
    }

    /// A client has forgotten an inode.
    pub(super) fn forgot(&self, ino: Ino) {
        if self.room.unused.lock().contains(&ino) && !self.is_known(ino) {
            self.room.unused.lock().remove(&ino);
            self.room.forgotten.notify_waiters();
        }
    }

    fn is_known(&self, ino: Ino) -> bool {
        self.sessions.lock().values().any(|session| session.knows(ino).is_ok())
    }

    /// Waits a moment for clients to forget inodes that were removed; whether some did. Not those that programs have open.
    async fn wait_for_removed(&self) -> bool {
        let forgotten = self.room.forgotten.notified();
        tokio::pin!(forgotten);
        forgotten.as_mut().enable();
        let waits = {
            let mut unused = self.room.unused.lock();
            // Sessions end without a word about each inode.
            unused.retain(|ino| self.is_known(*ino));
            unused.iter().any(|ino| !self.open_files.is_open(*ino))
        };
        waits && self.env.timeout(FORGET, forgotten).await.is_some()
    }

    /// Promises a client more room, with the outcome of its call.
    pub(super) async fn promise_room(&self, session: &Session, outcome: &mut Response) {
        let Some(session_table) = self.filesystem.session_table() else { return };
        if !self.capabilities.lock().grants_room() {
            return;
        }
        for quota in std::mem::take(&mut outcome.room_for) {
            match session_table.promise(session.serial, quota).await {
                Ok(more) => more.iter().for_each(|share| {
                    thalweg_fs::room::add_share(&mut outcome.room, share.quota, share.room)
                }),
                Err(error) => tracing::debug!(%error, "a client is promised no more room"),
            }
        }
    }

    /// The room that an outcome promises, if it counts: not after a recall. To be called while the
    /// capabilities are locked.
    pub(super) fn grant_room(
        &self,
        session: &Session,
        grants: bool,
        recalls: u64,
        shares: Vec<RoomShare>,
    ) -> RoomGrant {
        if grants || shares.is_empty() {
            return RoomGrant { recalls, shares };
        }
        self.return_room(session, &shares);
        RoomGrant::default()
    }

    /// A client uses this of its promise for nothing.
    pub(super) fn return_room(&self, session: &Session, shares: &[RoomShare]) {
        if let Some(session_table) = self.filesystem.session_table() {
            session_table.return_room(session.serial, shares);
        }
    }
}

/// Recalls of room.
#[derive(Debug, Default)]
pub(super) struct RoomRecalls {
    /// So far.
    recalls: AtomicU64,
    /// One is under way.
    recalling: tokio::sync::Mutex<()>,
    /// Inodes without names that clients know.
    unused: Mutex<HashSet<Ino>>,
    /// One of them is known to none any more.
    forgotten: Notify,
}

impl RoomRecalls {
    /// Recalls so far.
    pub(super) fn count(&self) -> u64 {
        self.recalls.load(Ordering::Relaxed)
    }
}
