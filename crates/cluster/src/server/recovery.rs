//! The sessions of a server that stopped go on at the next one.
//!
//! Until each client has reclaimed what it held, or the time for that is up, no other call is carried out. So a reclaim meets
//! what the client left behind, and nothing that came after it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thalweg_env::{HashMap, HashSet, Time, watch};
use thalweg_fs::session_table::{Committed, SessionRecord};
use thalweg_fs::{Credentials, FsError, Ino};
use thalweg_net::keys::{Access, Squash};
use tokio::sync::Notify;
use uuid::Uuid;

use super::batch::{decode_mutations, made_by};
use super::capabilities::Held;
use super::context::{Place, RequestContext};
use super::response::Response;
use super::room::check_shares;
use super::session::Session;
use super::{Ending, Shared, Visitor};
use crate::protocol::{Answer, Grants, MAX_CLAIMS, Reclaim, Request, decode_list};

/// What the filesystem's record of a session says.
#[derive(Serialize, Deserialize)]
struct SessionInfo {
    id: Uuid,
    name: String,
    path: String,
    writes: bool,
    squash: Squash,
    /// Milliseconds for which its client may use what it caches.
    lease: u64,
}

/// The record of a session.
pub(super) fn info_of(id: Uuid, visitor: &Visitor, lease: Duration) -> Bytes {
    let Visitor { name, path, access, squash } = visitor.clone();
    let (writes, lease) = (access == Access::Write, lease.as_millis() as u64);
    let info = SessionInfo { id, name, path, writes, squash, lease };
    postcard::to_allocvec(&info).unwrap_or_default().into()
}

fn visitor_of(info: &[u8]) -> Option<(Uuid, Visitor, Duration)> {
    let SessionInfo { id, name, path, writes, squash, lease } = postcard::from_bytes(info).ok()?;
    let access = if writes { Access::Write } else { Access::Read };
    Some((id, Visitor { name, path, access, squash }, Duration::from_millis(lease)))
}

/// The clients that are expected back.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Their sessions.
    expected: Mutex<HashSet<u64>>,
    /// One is back.
    moved: Notify,
    is_over: watch::Sender<bool>,
}

impl Recovery {
    pub(super) fn new() -> Recovery {
        let (expected, moved, is_over) =
            (Mutex::default(), Notify::new(), watch::Sender::new(true));
        Recovery { expected, moved, is_over }
    }

    /// Whether a session has not reclaimed what it held yet.
    pub(super) fn expects(&self, session: u64) -> bool {
        self.expected.lock().contains(&session)
    }

    /// How many are expected.
    pub(super) fn missing(&self) -> usize {
        self.expected.lock().len()
    }

    /// A session has ended that may have been expected.
    pub(super) fn is_gone(&self, session: u64) {
        self.is_back(session);
    }

    fn is_back(&self, session: u64) {
        self.expected.lock().remove(&session);
        self.moved.notify_waiters();
    }

    /// Returns when ordinary calls may be carried out.
    pub(super) async fn over(&self) {
        if !*self.is_over.borrow() {
            let _ = self.is_over.subscribe().wait_for(|is_over| *is_over).await;
        }
    }

    async fn all_back(&self) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.expected.lock().is_empty() {
                return;
            }
            moved.await;
        }
    }
}

impl Shared {
    /// Expects the sessions that the filesystem has on record. Returns the time until which they may come back, if there are
    /// some.
    pub(super) async fn expect_sessions(&self) -> Result<Option<Time>, FsError> {
        let Some(session_table) = self.filesystem.session_table() else { return Ok(None) };
        let (mut invalid, mut lease) = (Vec::new(), self.options.lease);
        for SessionRecord { session: number, info, slots, revoked } in
            session_table.sessions().await?
        {
            let Some((id, visitor, granted)) = visitor_of(&info) else {
                invalid.push(number);
                continue;
            };
            lease = lease.max(granted);
            let path = match self.resolve(&visitor.path).await {
                Ok(path) => path,
                Err(FsError::NotFound | FsError::NotDirectory) => {
                    tracing::warn!(client = visitor.name, "the directory of a client is gone");
                    invalid.push(number);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let session =
                Session::new((id, number), visitor, path, self.env.now(), &self.inode_limit);
            session.state.lock().set_revoked(revoked);
            *session.recorded.lock() = slots.into_iter().map(|it| (it.slot, it)).collect();
            *session.again.lock() = Some(HashMap::default());
            self.filesystem.reference(session.root);
            self.recovery.expected.lock().insert(number);
            self.sessions.lock().insert(id, Arc::new(session));
        }
        if !invalid.is_empty() {
            self.shut_out(&invalid).await;
            session_table.end_sessions(&invalid).await?;
        }
        let expected = self.recovery.missing();
        if expected == 0 {
            session_table.release_orphans().await?;
            return Ok(None);
        }
        tracing::info!(sessions = expected, "clients of the server before this one are expected");
        self.recovery.is_over.send_replace(false);
        // Longer than any lease that the server before this one has granted.
        Ok(Some(self.env.now() + lease + lease / 2))
    }

    /// Waits for the clients, and ends the sessions of those that do not come.
    pub(super) async fn finish_recovery(&self, until: Time) {
        let patience = until.since(self.env.now());
        let _ = self.env.timeout(patience, self.recovery.all_back()).await;
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        let lost = sessions.into_iter().filter(|it| self.recovery.expects(it.serial));
        let lost: Vec<Arc<Session>> = lost.collect();
        if let Some(session_table) = self.filesystem.session_table() {
            let numbers: Vec<u64> = lost.iter().map(|it| it.serial).collect();
            self.shut_out(&numbers).await;
            if let Err(error) = session_table.end_sessions(&numbers).await {
                tracing::error!(%error, "the records of lost clients stay");
            }
            if let Err(error) = session_table.release_orphans().await {
                tracing::error!(%error, "files without names stay");
            }
        }
        for session in &lost {
            self.end(session, Ending::Evicted("its client did not come back to this server"));
        }
        self.recovery.expected.lock().clear();
        self.recovery.is_over.send_replace(true);
        tracing::info!(lost = lost.len(), "the server goes on");
    }

    /// Carries out a call by which a client reclaims what it held.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the client is not expected; those of the reclaim.
    pub(super) async fn reclaim(
        &self,
        session: &Session,
        user: Option<Credentials>,
        (request, payload): (Request, Bytes),
    ) -> Result<(Response, Option<Committed>), FsError> {
        let none = |()| (Response::done(), None);
        if self.has_reclaimed(session)? {
            return Ok(none(()));
        }
        match request {
            Request::Reclaim => self.reclaim_inodes(session, &payload).map(none),
            Request::ReclaimOpen { handle, caller, ino, flags } => {
                let ctx = RequestContext::plain(session, 0, &self.filesystem).made_for(user);
                self.reclaim_open(&ctx, handle, &caller, (ino, flags)).await.map(none)
            }
            Request::ReclaimLock { ino, lock } => {
                self.reclaim_lock(session, ino, &lock).await.map(none)
            }
            Request::ReclaimNumbers { first, count, inode_token } => self
                .reclaim_numbers(session, first..first.saturating_add(count), inode_token)
                .map(none),
            Request::ReclaimRoom { shares } => {
                check_shares(&shares)?;
                if let Some(session_table) = self.filesystem.session_table() {
                    session_table.reclaim_room(session.serial, &shares);
                }
                Ok(none(()))
            }
            _ => {
                self.reclaim_calls(session, &payload)?;
                self.recovery.is_back(session.serial);
                Ok(none(()))
            }
        }
    }

    /// Whether a client that reclaims something has reclaimed everything before, and may not know that.
    fn has_reclaimed(&self, session: &Session) -> Result<bool, FsError> {
        match (self.recovery.expects(session.serial), session.again.lock().is_some()) {
            (true, _) => Ok(false),
            (false, true) => Ok(true),
            (false, false) => Err(FsError::Invalid("nothing can be claimed now")),
        }
    }

    fn reclaim_inodes(&self, session: &Session, payload: &[u8]) -> Result<(), FsError> {
        let reclaims: Vec<Reclaim> = decode_list(payload, MAX_CLAIMS)?;
        let Some(session_table) = self.filesystem.session_table() else {
            return Err(FsError::NotSupported);
        };
        for Reclaim { ino, stamp, inode_token, held } in reclaims {
            if ino == session.root {
                self.grant_again(session, ino, held);
                continue;
            }
            let generation = session.state.lock().generation(ino);
            if session_table.inode_token(session.serial, ino, generation) != inode_token
                || stamp == u64::MAX
            {
                // It was told of the inode before that was moved out of its root, or lies.
                if generation > 0 {
                    continue;
                }
                return Err(FsError::Stale);
            }
            if session.state.lock().reclaim(ino, stamp) {
                self.filesystem.reference(ino);
            }
            self.grant_again(session, ino, held);
        }
        Ok(())
    }

    /// What a client caches has not changed since the server before this one stopped.
    fn grant_again(&self, session: &Session, ino: Ino, held: Grants) {
        let Grants { attributes, names, content, delegation } = held;
        let held = Held { attributes, names, content, delegation };
        self.capabilities.lock().reclaim(session.serial, ino, held);
    }

    /// Makes a change again that was answered, unless it has survived.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the client is not expected; those of the change.
    pub(super) async fn replay(
        &self,
        session: &Session,
        place: Place,
        (user, before): (Option<Credentials>, Committed),
        (request, payload): (Request, Bytes),
    ) -> Result<(Response, Option<Committed>), FsError> {
        let has_reclaimed = self.has_reclaimed(session)?;
        // An answer was lost with its connection.
        let made = session.again.lock().as_ref().and_then(|made| made.get(&place.number).copied());
        if has_reclaimed || made.is_some() {
            return Ok((Response::done(), made));
        }
        if !request.footprint(payload.len()).is_change() {
            return Err(FsError::Invalid("the call changes nothing"));
        }
        let last = session.recorded.lock().get(&place.slot).copied();
        if last.is_some_and(|last| last.number >= place.number) {
            return Ok((Response::done(), None));
        }
        let request = match request {
            // The end of the recovery makes it durable.
            Request::Batch { charged, .. } => {
                Request::Batch { sync: false, charged, releases: Vec::new() }
            }
            Request::Write { ino, how, .. } => {
                let at = thalweg_fs::WriteAt::Offset(before.outcome);
                Request::Write { ino, at, how }
            }
            request => request,
        };
        let ctx =
            RequestContext::recorded(session, place, &self.filesystem, Some(before)).made_for(user);
        let done = self.carry_out(&ctx, request, payload).await;
        let committed = ctx.committed();
        if let Some(committed) = committed {
            session.again.lock().get_or_insert_default().insert(place.number, committed);
        }
        let outcome = done?;
        // Its client has reclaimed the inode.
        if let Some(ino) = outcome.referenced {
            self.filesystem.unreference(ino, 1);
        }
        Ok((Response::done(), committed))
    }

    /// The answer to a call that the server before this one has carried out without answering it.
    pub(super) async fn answer_of(
        &self,
        ctx: &RequestContext<'_>,
        request: &Request,
        payload: &Bytes,
        outcome: u64,
    ) -> Result<Response, FsError> {
        match request {
            Request::Batch { charged, .. } => {
                self.return_room(ctx.session, charged);
                Ok(made_by(&decode_mutations(payload)?))
            }
            Request::Create { .. } => {
                let made = self.attributes(ctx, Ino(outcome)).await?;
                Ok(Response { wants: Default::default(), ..made })
            }
            Request::SetAttributes { ino, .. } | Request::Link { ino, .. } => {
                self.attributes(ctx, *ino).await
            }
            Request::Write { .. } | Request::Copy { .. } => {
                Ok(Response::of(Answer::Number(outcome)))
            }
            _ => Ok(Response::done()),
        }
    }
}
