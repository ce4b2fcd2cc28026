//! The calls of a connection.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_fs::Ino;
use thalweg_net::channel::{Channel, Handler, Incoming, UNANSWERED};
use thalweg_net::keys::Access;
use thalweg_net::serving::Serving;
use thalweg_net::traffic::name_of;
use uuid::Uuid;

use super::context::{Place, Response};
use super::counters::add;
use super::journaled::{hand_over, take_over};
use super::ops::reclaim;
use super::options::Visitor;
use super::pipeline::{perform, replay};
use super::reply::{Recipient, Sight, answer, plain, undo};
use super::session::{Admission, JournalInfo, LevelWait, Presence, Session};
use super::sessions::Ending;
use super::stages::Stages;
use crate::protocol::{
    Answer, Call, JournalMount, JournalState, MAX_ANSWERED, MAX_FORGOTTEN, MAX_PAYLOAD,
    MAX_RELEASES, Reply, Request, SLOTS, decode_list,
};

/// The part of a connection's budget that a call takes.
const CALL_COST: u64 = 1;
/// Bytes that cost as much as a call.
const BYTES_OF_A_CALL: u64 = 16 << 10;

/// A connection of a client.
pub(super) struct Connection {
    stages: Arc<Stages>,
    channel: Channel,
    serving: Serving,
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
fn released_by(request: &Request) -> &[u64] {
    match request {
        Request::Batch { releases, .. } if releases.len() <= MAX_RELEASES => releases,
        _ => &[],
    }
}

/// What a call takes of the budget of its connection.
fn cost_of(request: &Request, payload: usize, level_wait: Option<&LevelWait>) -> u64 {
    match request {
        // Calls that may wait without bound hold up no others.
        Request::Lock { wait: true, .. } => 0,
        _ if level_wait.is_some() => 0,
        Request::Read { len, .. } => CALL_COST + u64::from(*len) / BYTES_OF_A_CALL,
        _ => CALL_COST + payload as u64 / BYTES_OF_A_CALL,
    }
}

impl Handler for Connection {
    async fn handle(&self, incoming: Incoming) -> io::Result<()> {
        let call: Call = incoming.decode().map_err(io::Error::other)?;
        let Incoming { id, payload, .. } = incoming;
        if let Request::Attach { session, resumes, journal } = call.request {
            let pending = pending_of(&payload)?;
            let answer = match self.attach(session, resumes, journal, pending).await {
                Ok(session) => self.attached(&session),
                Err(refused) => refused,
            };
            self.channel.answer(id, &plain(answer), &[]);
            return Ok(());
        }
        let session = self.session.lock().clone();
        let session =
            session.ok_or_else(|| io::Error::other("its first call attaches no session"))?;
        session.hear(&self.channel, self.stages.env.now()).map_err(io::Error::other)?;
        match call.request {
            Request::Renew => self.channel.answer(id, &plain(Answer::Done), &[]),
            Request::Detach => {
                self.channel.answer(id, &plain(Answer::Done), &[]);
                self.channel.flush();
                self.stages.sessions.end(&session, Ending::Detached);
            }
            Request::HandOver { to } => {
                let handed_over = hand_over(&self.stages, &session, to).await;
                let has_moved = handed_over.is_ok();
                let answer =
                    handed_over.map_or_else(|it| Answer::Failed(it.into()), |()| Answer::Done);
                self.channel.answer(id, &plain(answer), &[]);
                self.channel.flush();
                if has_moved {
                    session.disconnect(&self.channel);
                    self.channel.close("the client has handed its session over");
                }
            }
            Request::Cancel(number) => session.replies.end_wait(number, true),
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
    pub(super) fn new(stages: &Arc<Stages>, channel: &Channel, visitor: Visitor) -> Connection {
        let serving = Serving::new(&stages.env, channel.clone(), stages.options.budget);
        let (stages, channel) = (stages.clone(), channel.clone());
        Connection { stages, channel, serving, visitor, session: Mutex::new(None) }
    }

    async fn attach(
        &self,
        id: Uuid,
        resumes: bool,
        journal: Option<JournalMount>,
        pending: Option<Vec<u64>>,
    ) -> Result<Arc<Session>, Answer> {
        let Stages { env, sessions, .. } = &*self.stages;
        let session = match sessions.get(id) {
            // Another client cannot know the number.
            Some(session) => {
                match take_over(&self.stages, &session, &self.visitor, journal).await {
                    Ok(true) => session,
                    Ok(false) if session.journal.has_lapsed_for(journal) => {
                        return Err(Answer::Lapsed);
                    }
                    Ok(false) => return Err(Answer::Evicted),
                    Err(error) => return Err(Answer::Failed(error.into())),
                }
            }
            None if resumes && sessions.was_handed_over(id) => {
                // Not before a crash can undo it no more.
                let durable = self.stages.files.sync_all().await;
                return Err(durable.map_or_else(|it| Answer::Failed(it.into()), |()| Answer::Moved));
            }
            None if resumes => return Err(Answer::Evicted),
            None => {
                let first = JournalInfo { incarnation: 1, presence: Presence::Present };
                let begun = sessions.begin(id, &self.visitor, journal.map(|_| first)).await;
                begun.map_err(|error| Answer::Failed(error.into()))?
            }
        };
        session.connect(self.channel.clone(), env.now());
        pending.into_iter().for_each(|pending| session.replies.acknowledge_others(&pending));
        let old = self.session.lock().replace(session.clone());
        drop(old);
        Ok(session)
    }

    fn attached(&self, session: &Session) -> Answer {
        let Stages { files, options, sessions, commit_on_share, .. } = &*self.stages;
        let root = session.root;
        let journal = JournalState {
            incarnation: session.journal.info().map_or(0, |info| info.incarnation),
            applied: session.journal.applied(),
            expected: self.stages.grace_period.expects(session.serial),
            returned: session.journal.has_returned(),
        };
        let table = files.session_table();
        Answer::Attached {
            root,
            lease: u32::try_from(options.lease.as_millis()).unwrap_or(u32::MAX),
            squash: self.visitor.squash,
            server: self.stages.incarnation,
            server_number: self.stages.grace_period.server_number(),
            durable: commit_on_share.durable(),
            journal,
            contents: sessions.direct().map(|it| it.location()).unwrap_or_default(),
            bytes: table.map(|it| it.byte_mutations()).unwrap_or_default(),
            read_only: self.visitor.access == Access::Read || files.is_read_only(),
        }
    }

    /// One after the other: calls that are made again have an order.
    async fn reclaim(&self, id: u64, session: &Arc<Session>, call: Call, payload: Bytes) {
        let Call { number, slot, user, before, request, .. } = call;
        let (stages, user) = (&*self.stages, user.as_ref());
        let reclaimed = match before {
            Some(before) => {
                let place = Place { number, slot };
                replay(stages, session, place, (user, before), (request, payload)).await
            }
            None => reclaim(session, stages, user, &request, &payload).await.map(|()| None),
        };
        let reply = match reclaimed {
            Ok(committed) => Reply { committed, ..plain(Answer::Done) },
            Err(error) => plain(Answer::Failed(error.into())),
        };
        if let Some(committed) = reply.committed {
            session.lock().keep(committed.version);
        }
        self.channel.answer(id, &reply, &[]);
    }

    fn forget(&self, session: &Session, payload: &[u8]) -> io::Result<()> {
        let forgotten = decode_list::<(Ino, u64)>(payload, MAX_FORGOTTEN);
        let forgotten = forgotten.map_err(|error| {
            io::Error::other(format!("invalid request: inodes that it forgets: {error}"))
        })?;
        let Stages { files, capabilities, room, .. } = &*self.stages;
        for (ino, stamp) in forgotten {
            let is_forgotten = {
                let mut state = session.lock();
                let is_forgotten = state.known.forget(ino, stamp);
                if is_forgotten {
                    // With the session locked: an answer that tells of the inode again also grants something of it again.
                    capabilities.forget(session.serial, ino);
                }
                is_forgotten
            };
            if is_forgotten {
                files.unreference(ino, 1);
                room.forgot(ino);
            }
        }
        Ok(())
    }

    /// What is to be done with a call that is carried out once.
    ///
    /// # Errors
    /// Why it is refused, with its connection.
    fn admit(&self, session: &Session, number: u64, id: u64) -> Result<Admission, &'static str> {
        // With the session locked: a client that has connected again may have sent the call again, and its answer would go to
        // this connection.
        let state = session.lock();
        state.check_connection(&self.channel)?;
        Ok(session.replies.admit(number, (self.channel.clone(), id)))
    }

    /// Carries out a call, unless that was done before.
    async fn start(
        &self,
        id: u64,
        session: Arc<Session>,
        call: Call,
        payload: Bytes,
    ) -> io::Result<()> {
        if call.slot >= SLOTS {
            return Err(io::Error::other("invalid request: there is no such slot"));
        }
        if call.answered.len() > MAX_ANSWERED {
            return Err(io::Error::other("invalid request: it acknowledges too many answers"));
        }
        session.lock().replayed = None;
        self.stages.replay.sends_no_more(&session, call.oldest, &call.answered);
        session.replies.acknowledge(call.oldest, &call.answered);
        let level_wait = match &call.request {
            Request::Level { wait: Some(_), .. } => session.begin_level_wait(),
            _ => None,
        };
        let cost = cost_of(&call.request, payload.len(), level_wait.as_ref());
        // Before the call is admitted: the connection may end meanwhile, and a call that is admitted has to run.
        let permit = self.serving.afford(cost).await;
        let is_once = call.request.footprint(payload.len()).is_once();
        if is_once {
            match self.admit(&session, call.number, id).map_err(io::Error::other)? {
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
        for counter in [&session.counters.received, &self.stages.counters.received] {
            add(counter, payload.len() as u64);
        }
        add(&session.counters.calls, 1);
        let (channel, number) = (self.channel.clone(), is_once.then_some(call.number));
        let recipient = Recipient { channel, id, number };
        let work = carry_out(self.stages.clone(), session, call, payload, (recipient, level_wait));
        self.serving.run(permit, Box::pin(work)).await;
        Ok(())
    }
}

/// Carries out a call and answers it.
async fn carry_out(
    stages: Arc<Stages>,
    session: Arc<Session>,
    call: Call,
    payload: Bytes,
    (recipient, level_wait): (Recipient, Option<LevelWait>),
) {
    let Call { number, slot, user, request, .. } = call;
    let began = stages.env.now();
    stages.grace_period.over().await;
    let (sight, place) = (Sight::of(&session, &request), Place { number, slot });
    let done = perform(&stages, &session, place, user.as_ref(), (&request, payload)).await;
    let response = done.unwrap_or_else(|error| Response::of(Answer::Failed(error.into())));
    let failed = matches!(response.answer, Answer::Failed(_));
    if let Err(response) = answer(&stages, &session, sight, &recipient, response) {
        undo(&stages, &session, *response).await;
    } else if !failed {
        // What follows is sent behind the answer, which grants what the client has made.
        stages.recall.released(session.serial, released_by(&request));
    }
    if recipient.number.is_some() {
        stages.replay.has_answer(session.serial, number);
    }
    let took = stages.env.now().since(began);
    stages.counters.answered(name_of(&request), took, failed);
    drop(level_wait);
}
