//! The calls of a connection.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_fs::{Credentials, FsError, Ino};
use thalweg_net::channel::{Channel, Handler, Incoming, UNANSWERED};
use thalweg_net::keys::Access;
use thalweg_net::serving::Serving;
use thalweg_net::traffic::name_of;
use uuid::Uuid;

use super::calls::Admission;
use super::context::{Place, RequestContext};
use super::counters::add;
use super::response::{Response, grant};
use super::session::{Session, SessionState};
use super::{Ending, Shared, Visitor};
use crate::protocol::{
    Answer, Call, Grants, MAX_ANSWERED, MAX_FORGOTTEN, MAX_PAYLOAD, MAX_RELEASES, Reply, Request,
    RoomGrant, SLOTS, decode_list,
};

/// The part of a connection's budget that a call takes.
const CALL_COST: u64 = 1;
/// Bytes that cost as much as a call.
const BYTES_OF_A_CALL: u64 = 16 << 10;

/// A connection of a client.
pub(super) struct Connection {
    shared: Arc<Shared>,
    channel: Channel,
    serving: Arc<Serving>,
    visitor: Visitor,
    session: Mutex<Option<Arc<Session>>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.session.lock().take() {
            session.disconnect(&self.channel);
        }
    }
}

/// What a client sees of what its call is about.
#[derive(Clone, Debug)]
struct Sight {
    named: SmallVec<[Ino; 2]>,
    /// How many inodes the client had lost when the call began.
    lost: u64,
}

impl Sight {
    fn of(session: &Session, request: &Request) -> Sight {
        let lost = if session.is_confined() { session.state.lock().lost() } else { 0 };
        Sight { named: request.footprint(0).inodes, lost }
    }

    /// Whether some of that was moved out of the client's root since the call began.
    fn is_lost(&self, state: &SessionState, outcome: &Response) -> bool {
        let has_lost = state.lost() > self.lost;
        // Where a batch has made inodes is not known here.
        let is_named = |ino: &Ino| state.is_revoked(*ino);
        has_lost && (self.named.iter().any(is_named) || !outcome.made.is_empty())
    }
}

/// The calls for whose answers a client waits that resumes its session, if it says so.
fn pending_of(payload: &[u8]) -> io::Result<Option<Vec<u64>>> {
    if payload.is_empty() {
        return Ok(None);
    }
    let mut pending: Vec<u64> = decode_list(payload, MAX_PAYLOAD).map_err(io::Error::other)?;
    pending.sort_unstable();
    Ok(Some(pending))
}

/// The recalls that a call releases once it has been carried out.
fn released_by(request: &Request) -> Vec<u64> {
    match request {
        Request::Batch { releases, .. } if releases.len() <= MAX_RELEASES => releases.clone(),
        _ => Vec::new(),
    }
}

/// An answer that allows nothing.
fn plain(answer: Answer) -> Reply {
    Reply {
        stamp: 0,
        grants: Grants::default(),
        committed: None,
        room: RoomGrant::default(),
        quota: 0,
        inode_token: 0,
        answer,
    }
}

impl Handler for Connection {
    async fn handle(&self, incoming: Incoming) -> io::Result<()> {
        let call: Call = incoming.decode().map_err(io::Error::other)?;
        let Incoming { id, payload, .. } = incoming;
        if let Request::Attach { session, resumes } = call.request {
            let pending = pending_of(&payload)?;
            let answer = self.attach(session, resumes, pending).await;
            self.channel.answer(id, &plain(answer), &[]);
            return Ok(());
        }
        let session = self.session.lock().clone();
        let session =
            session.ok_or_else(|| io::Error::other("its first call attaches no session"))?;
        {
            let mut state = session.state.lock();
            if state.has_ended {
                return Err(io::Error::other("its session has ended"));
            }
            // What comes late over an old connection was sent again.
            if !state.channel.as_ref().is_some_and(|present| present.is_same(&self.channel)) {
                return Err(io::Error::other("the client has connected again"));
            }
            state.heard = self.shared.env.now();
        }
        match call.request {
            Request::Renew => self.channel.answer(id, &plain(Answer::Done), &[]),
            Request::Detach => {
                self.channel.answer(id, &plain(Answer::Done), &[]);
                self.channel.flush();
                self.shared.end(&session, Ending::Detached);
            }
            Request::Cancel(number) => session.cancel_wait(number),
            Request::Forget => self.forget(&session, &payload)?,
            _ if id == UNANSWERED => {
                return Err(io::Error::other("invalid request: its kind wants an answer"));
            }
            _ if call.before.is_some() => self.reclaim(id, &session, call, payload).await,
            Request::Reclaim
            | Request::ReclaimOpen { .. }
            | Request::ReclaimLock { .. }
            | Request::ReclaimNumbers { .. }
            | Request::ReclaimRoom { .. }
            | Request::Reclaimed => self.reclaim(id, &session, call, payload).await,
            _ => self.start(id, session, call, payload).await?,
        }
        Ok(())
    }
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        channel: Channel,
        serving: Arc<Serving>,
        visitor: Visitor,
    ) -> Connection {
        Connection { shared, channel, serving, visitor, session: Mutex::new(None) }
    }

    async fn attach(&self, id: Uuid, resumes: bool, pending: Option<Vec<u64>>) -> Answer {
        let shared = &self.shared;
        let found = shared.sessions.lock().get(&id).cloned();
        let session = match found {
            // Another client cannot know the number.
            Some(session) if session.visitor == self.visitor => session,
            Some(_) => return Answer::Evicted,
            None if resumes => return Answer::Evicted,
            None => match self.begin(id).await {
                Ok(session) => session,
                Err(error) => return Answer::Failed(error.into()),
            },
        };
        session.state.lock().heard = shared.env.now();
        session.connect(self.channel.clone());
        pending.into_iter().for_each(|pending| session.acknowledge_others(&pending));
        let old = self.session.lock().replace(session.clone());
        drop(old);
        Answer::Attached {
            root: session.root,
            lease: u32::try_from(shared.options.lease.as_millis()).unwrap_or(u32::MAX),
            squash: self.visitor.squash,
            server: shared.incarnation,
            durable: shared.commit_on_share.durable(),
            contents: shared.direct().map(|it| it.location()).unwrap_or_default(),
            bytes: shared
                .filesystem
                .session_table()
                .map(|it| it.byte_mutations())
                .unwrap_or_default(),
            read_only: self.visitor.access == Access::Read || shared.filesystem.is_read_only(),
        }
    }

    async fn begin(&self, id: Uuid) -> Result<Arc<Session>, FsError> {
        let shared = &self.shared;
        let path = shared.resolve(&self.visitor.path).await?;
        if shared.sessions.lock().len() >= shared.options.sessions {
            return Err(FsError::Invalid("the server has its maximum of sessions"));
        }
        let serial = shared.record_session(id, &self.visitor).await?;
        let session = Session::new(
            (id, serial),
            self.visitor.clone(),
            path,
            shared.env.now(),
            &shared.inode_limit,
        );
        let session = Arc::new(session);
        {
            let mut sessions = shared.sessions.lock();
            shared.filesystem.reference(session.root);
            sessions.insert(id, session.clone());
        }
        // A rename may have come between that did not know of the session.
        match shared.resolve(&self.visitor.path).await {
            Ok(path) if path == session.path => {}
            found => {
                shared.end(&session, Ending::Detached);
                return Err(found.err().unwrap_or(FsError::NotFound));
            }
        }
        tracing::info!(client = self.visitor.name, path = self.visitor.path, "a session began");
        Ok(session)
    }

    /// One after the other: calls that are made again have an order.
    async fn reclaim(&self, id: u64, session: &Session, call: Call, payload: Bytes) {
        let place = Place { number: call.number, slot: call.slot };
        let reclaimed = match call.before {
            Some(before) => {
                let change = (call.request, payload);
                self.shared.replay(session, place, (call.user, before), change).await
            }
            None => self.shared.reclaim(session, call.user, (call.request, payload)).await,
        };
        let reply = match reclaimed {
            Ok((outcome, committed)) => Reply { committed, ..plain(outcome.answer) },
            Err(error) => plain(Answer::Failed(error.into())),
        };
        if let Some(committed) = reply.committed {
            session.state.lock().keep(committed.version);
        }
        self.channel.answer(id, &reply, &[]);
    }

    fn forget(&self, session: &Session, payload: &[u8]) -> io::Result<()> {
        let forgotten = decode_list::<(Ino, u64)>(payload, MAX_FORGOTTEN);
        let forgotten = forgotten.map_err(|error| {
            io::Error::other(format!("invalid request: inodes that it forgets: {error}"))
        })?;
        for (ino, stamp) in forgotten {
            let is_forgotten = session.state.lock().forget(ino, stamp);
            if is_forgotten {
                self.shared.capabilities.forget(session.serial, ino);
                self.shared.filesystem.unreference(ino, 1);
                self.shared.forgot(ino);
            }
        }
        Ok(())
    }

    /// Carries out a call, unless that was done before.
    async fn start(
        &self,
        id: u64,
        session: Arc<Session>,
        call: Call,
        payload: Bytes,
    ) -> io::Result<()> {
        let Call { number, oldest, answered, slot, user, request, .. } = call;
        if slot >= SLOTS {
            return Err(io::Error::other("invalid request: there is no such slot"));
        }
        if answered.len() > MAX_ANSWERED {
            return Err(io::Error::other("invalid request: it acknowledges too many answers"));
        }
        drop(session.again.lock().take());
        self.shared.sends_no_more(&session, oldest, &answered);
        session.acknowledge(oldest, &answered);
        let is_once = request.footprint(payload.len()).is_once();
        if is_once {
            let admission = session.state.lock().calls.admit(number, id);
            match admission {
                Admission::New => {}
                Admission::Known(reply, payload) => {
                    self.channel.answer(id, &reply, &payload);
                    return Ok(());
                }
                Admission::Ignored => return Ok(()),
                Admission::TooMany => {
                    return Err(io::Error::other("it does not acknowledge its answers"));
                }
            }
        }
        let level_wait = match &request {
            Request::Level { wait: Some(_), .. } => session.begin_level_wait(),
            _ => None,
        };
        let cost = match &request {
            Request::Lock { wait: true, .. } => 0,
            _ if level_wait.is_some() => 0,
            Request::Read { len, .. } => CALL_COST + u64::from(*len) / BYTES_OF_A_CALL,
            _ => CALL_COST + payload.len() as u64 / BYTES_OF_A_CALL,
        };
        let (shared, channel) = (self.shared.clone(), self.channel.clone());
        let (kind, began) = (name_of(&request), shared.env.now());
        shared.begins(&session, &payload);
        let work = async move {
            let _waits = level_wait;
            shared.recovery.over().await;
            let releases = released_by(&request);
            let work = (user, request, payload);
            let sight = Sight::of(&session, &work.1);
            let result = shared.perform(&session, Place { number, slot }, work).await;
            let outcome = result.unwrap_or_else(|error| Response::of(Answer::Failed(error.into())));
            let (number, failed) =
                (is_once.then_some(number), matches!(outcome.answer, Answer::Failed(_)));
            if let Err(outcome) = shared.finish(&session, (number, sight), (&channel, id), outcome)
            {
                shared.undo(&session, *outcome).await;
            } else if !failed {
                // What follows is sent behind the answer, which grants what the client has made.
                shared.releases.released(session.serial, &releases);
            }
            number.into_iter().for_each(|number| shared.has_answer(session.serial, number));
            shared.counters.answered(kind, shared.env.now().since(began), failed);
        };
        self.serving.run(cost, Box::pin(work)).await;
        Ok(())
    }
}

impl Shared {
    /// Counts a call.
    fn begins(&self, session: &Session, payload: &Bytes) {
        add(&session.counters.calls, 1);
        add(&session.counters.received, payload.len() as u64);
        add(&self.counters.received, payload.len() as u64);
    }

    /// Carries out a call, and waits until what its answer depends on is durable.
    async fn perform(
        &self,
        session: &Session,
        place: Place,
        (user, request, payload): (Option<Credentials>, Request, Bytes),
    ) -> Result<Response, FsError> {
        let (number, filesystem) = (place.number, &self.filesystem);
        let (shows, changes) = {
            let print = request.footprint(payload.len());
            (print.shows, print.is_change())
        };
        let (ctx, before) = match changes {
            true => (
                RequestContext::recorded(session, place, filesystem, None),
                session.recorded.lock().get(&place.slot).filter(|it| it.number == number).copied(),
            ),
            false => (RequestContext::plain(session, number, filesystem), None),
        };
        let ctx = ctx.named(name_of(&request)).made_for(user);
        let mut done = match before {
            Some(before) => {
                // Its record may be that of a later call, which is not durable yet.
                if self.replay.has((session.serial, number)) {
                    ctx.depend();
                }
                self.answer_of(&ctx, &request, &payload, before.outcome).await
            }
            None => self.carry_out_alone(&ctx, request, payload).await,
        };
        self.settle(&ctx, done.as_ref().ok().filter(|_| shows)).await;
        if let Ok(outcome) = &mut done {
            self.promise_room(session, outcome).await;
            outcome.committed = ctx.committed();
        }
        if ctx.depends() {
            self.make_durable().await?;
            // The client need not keep it.
            if let Ok(outcome) = &mut done {
                outcome.committed = None;
            }
        }
        done
    }

    /// Carries out a call, after other clients have released what it names. A call that only reads is repeated when it has seen
    /// something else that is another client's alone, after that one has released it.
    async fn carry_out_alone(
        &self,
        ctx: &RequestContext<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Response, FsError> {
        let (is_once, inodes) = {
            let print = request.footprint(payload.len());
            (print.is_once(), print.inodes)
        };
        if is_once {
            // What its user may do is decided by what the owner has made.
            let recalls = self.capabilities.recalls(ctx.session.serial, &inodes);
            if !recalls.is_empty() {
                self.invalidate(ctx, recalls).await;
            }
            return self.carry_out_in_room(ctx, request, payload).await;
        }
        loop {
            let done = self.carry_out(ctx, request.clone(), payload.clone()).await;
            let recalls = self.capabilities.recalls(ctx.session.serial, &ctx.take_seen());
            if recalls.is_empty() {
                return done;
            }
            if let Ok(outcome) = done {
                self.undo(ctx.session, outcome).await;
            }
            self.invalidate(ctx, recalls).await;
        }
    }

    /// Grants what may be cached of an outcome, and answers. Both happen while no change can begin, so that an
    /// invalidation follows the answer in flight to the client. The outcome comes back, to be undone, if the session has ended, or
    /// what the call is about was moved out of the client's sight.
    fn finish(
        &self,
        session: &Session,
        (number, sight): (Option<u64>, Sight),
        (channel, id): (&Channel, u64),
        mut outcome: Response,
    ) -> Result<(), Box<Response>> {
        let (mut table, mut state, inode_token) = self.lock_proved(session, &mut outcome);
        if state.has_ended {
            return Err(Box::new(outcome));
        }
        let stale = Response::of(Answer::Failed(FsError::Stale.into()));
        let lost = sight.is_lost(&state, &outcome);
        let lost = lost.then(|| Box::new(std::mem::replace(&mut outcome, stale)));
        let inode_token = if lost.is_some() { 0 } else { inode_token };
        let grants = match self.is_refused(state.asked) {
            true => Grants::default(),
            false => {
                let wanted = outcome.wants.delegation;
                let others = |ino| self.open_files.is_open_by_others(session.serial, ino);
                let is_free = |ino: &Ino| !others(*ino) && !self.replay.has_file(*ino);
                outcome.wants.delegation = wanted.filter(is_free);
                grant(&mut table, session.serial, &mut outcome)
            }
        };
        // Two calls have opened files under one handle: the first one is closed.
        let displaced = outcome.opened.and_then(|(handle, file)| state.open(handle, file));
        let (stamp, new) = state.tell(&outcome.tells());
        for ino in new.iter().filter(|ino| outcome.referenced != Some(**ino)) {
            self.filesystem.reference(*ino);
        }
        let extra = outcome.referenced.filter(|ino| !new.contains(ino));
        let bytes: usize = outcome.payload.iter().map(Bytes::len).sum();
        add(&session.counters.sent, bytes as u64);
        add(&self.counters.sent, bytes as u64);
        let room = std::mem::take(&mut outcome.room);
        let room = self.grant_room(session, table.grants_room(), state.room_recalls, room);
        let quota = outcome.quota;
        let committed = outcome.committed;
        committed.into_iter().for_each(|it| state.keep(it.version));
        let reply =
            Reply { stamp, grants, committed, room, quota, inode_token, answer: outcome.answer };
        match number {
            None => channel.answer(id, &reply, &outcome.payload),
            Some(number) => {
                if let Some((id, present)) =
                    state.calls.done(number, &reply, &outcome.payload).zip(state.channel.clone())
                {
                    present.answer(id, &reply, &outcome.payload);
                    present.flush_soon();
                }
            }
        }
        drop(state);
        drop(table);
        self.request_release();
        if let Some(ino) = extra {
            self.filesystem.unreference(ino, 1);
        }
        if let (Some(file), Some(shared)) = (displaced, self.me.upgrade()) {
            let serial = session.serial;
            self.env.spawn(async move { shared.close(serial, file).await }).detach();
        }
        lost.map_or(Ok(()), Err)
    }

    /// The session has ended: no client is told of what the call has got.
    async fn undo(&self, session: &Session, outcome: Response) {
        if let Some(ino) = outcome.referenced {
            self.filesystem.unreference(ino, 1);
        }
        self.return_room(session, &outcome.room);
        if let Some((_, file)) = outcome.opened {
            self.close(session.serial, file).await;
        }
    }
}
