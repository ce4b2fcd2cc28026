//! Answers: what is granted with them, and in which order they are sent.

use bytes::Bytes;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use thalweg_fs::{FsError, Ino};
use thalweg_net::channel::Channel;

use super::context::Response;
use super::counters::add;
use super::session::{OpenFile, Session, SessionState};
use super::stages::Stages;
use crate::protocol::{Answer, Grants, ListedEntry, Reply, Request, RoomGrant, encode_list};

/// What a client sees of what its call is about.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    named: SmallVec<[Ino; 2]>,
    /// How many inodes the client had lost when the call began.
    lost: u64,
    /// How many moves out of its root had begun or ended by then.
    moves: u64,
}

impl Sight {
    /// Of a call that begins; `None` for a client that sees everything: nothing is moved out of its sight.
    pub(super) fn of(session: &Session, request: &Request) -> Option<Sight> {
        session.is_confined().then(|| {
            let named = request.footprint(0).inodes;
            let known = &session.lock().known;
            Sight { named, lost: known.lost, moves: known.moves }
        })
    }

    /// Whether some of that, or of what the response tells, was moved out of the client's root since the call began.
    fn is_lost(&self, state: &SessionState, response: &Response, tells: &[Ino]) -> bool {
        let is_leaving = |ino: &Ino| state.known.is_leaving(*ino, self.moves);
        if tells.iter().any(is_leaving) {
            return true;
        }
        let has_lost = state.known.lost > self.lost;
        // Where a batch has made inodes is not known here.
        let is_named = |ino: &Ino| state.known.is_revoked(*ino);
        has_lost && (self.named.iter().any(is_named) || !response.made.is_empty())
    }

    /// A listing does not fail by an entry that is being moved away: it shows no attributes of that, which tells nothing. How many
    /// moves had begun or ended by then.
    fn hide_leaving(&self, session: &Session, entries: &mut [ListedEntry]) -> u64 {
        let state = session.lock();
        let leaving = entries.iter_mut().filter(|it| state.known.is_leaving(it.ino, self.moves));
        leaving.for_each(|entry| entry.attributes = None);
        state.known.moves
    }
}

/// Where an answer goes: to a call on the connection that carries it out.
#[derive(Debug)]
pub(super) struct Recipient {
    pub(super) channel: Channel,
    pub(super) id: u64,
    /// The number of a call that is carried out once: it is answered on the connection on which it came last.
    pub(super) number: Option<u64>,
}

impl Recipient {
    fn answer(&self, session: &Session, reply: &Reply, payload: &[Bytes]) {
        let Some(number) = self.number else {
            return self.channel.answer(self.id, reply, payload);
        };
        let Some((channel, id)) = session.replies.done(number, reply, payload) else { return };
        channel.answer(id, reply, payload);
        // The connection that carries out the call writes its own answers.
        if !channel.is_same(&self.channel) {
            channel.flush_soon();
        }
    }
}

/// An answer that allows nothing.
pub(super) fn plain(answer: Answer) -> Reply {
    Reply { answer, ..Reply::default() }
}

/// What an answer has come to when nothing of it changes any more.
struct Settled {
    reply: Reply,
    /// The response that the client is not told of, since it has lost sight of what it is about.
    lost: Option<Box<Response>>,
    /// Two calls have opened files under one handle: the first one is closed.
    displaced: Option<OpenFile>,
    /// Inodes that the call has taken references to, and that the client knew before, or does not get to know.
    known: SmallVec<[Ino; 1]>,
}

/// Grants what may be cached of a response, and answers. Both happen in one order for all answers of a session, so that an
/// invalidation follows the answer in flight to the client. The response comes back, to be undone, if the session has ended, or
/// what the call is about was moved out of the client's sight.
pub(super) fn answer(
    stages: &Stages,
    session: &Session,
    sight: Option<Sight>,
    recipient: &Recipient,
    mut response: Response,
) -> Result<(), Box<Response>> {
    let (ordered, state, told) = loop {
        let listed = sight.as_ref().zip(response.entries.as_mut());
        let moves = listed.map(|(sight, entries)| sight.hide_leaving(session, entries));
        let tells = response.tells();
        // Tokens are hashed and encoded before the locks, of which each is taken by every call of the client.
        let (inode_token, lost) = seal(stages, session, &tells, &mut response);
        let ordered = session.answer_order.lock();
        let state = session.lock();
        let is_hidden = moves.is_none_or(|moves| moves == state.known.moves);
        if is_hidden && lost == state.known.lost {
            break (ordered, state, (tells, inode_token));
        }
    };
    if state.has_ended {
        return Err(Box::new(response));
    }
    let settled = settle(stages, session, state, sight, told, &mut response);
    let Settled { reply, lost, displaced, known } = settled;
    let bytes: usize = response.payload.iter().map(Bytes::len).sum();
    add(&session.counters.sent, bytes as u64);
    add(&stages.counters.sent, bytes as u64);
    recipient.answer(session, &reply, &response.payload);
    drop(ordered);
    stages.sessions.request_release();
    known.into_iter().for_each(|ino| stages.files.unreference(ino, 1));
    if let Some(file) = displaced {
        let (open_files, serial) = (stages.open_files.clone(), session.serial);
        stages.env.spawn(async move { open_files.close(serial, file).await }).detach();
    }
    lost.map_or(Ok(()), Err)
}

/// Decides what an answer grants and tells, under the lock of its session.
fn settle(
    stages: &Stages,
    session: &Session,
    mut state: MutexGuard<'_, SessionState>,
    sight: Option<Sight>,
    (mut tells, mut inode_token): (SmallVec<[Ino; 2]>, u64),
    response: &mut Response,
) -> Settled {
    let mut lost = None;
    if sight.is_some_and(|sight| sight.is_lost(&state, response, &tells)) {
        let stale = Response::of(Answer::Failed(FsError::Stale.into()));
        lost = Some(Box::new(std::mem::replace(response, stale)));
        inode_token = 0;
        tells.clear();
    }
    let grants = if stages.limit.refuses(state.known.asked, stages.env.now()) {
        Grants::default()
    } else {
        grant(stages, session, response)
    };
    let displaced = response.opened.and_then(|(handle, file)| session.handles.open(handle, file));
    let (stamp, new) = state.known.tell(&tells);
    for ino in new.iter().filter(|ino| !response.referenced.contains(ino)) {
        stages.files.reference(*ino);
    }
    let mut room = RoomGrant::default();
    if stages.room.grants(session, &response.room) {
        let shares = std::mem::take(&mut response.room);
        room = RoomGrant { recalls: state.room_recalls, shares };
    }
    if let Some(committed) = response.committed {
        state.keep(committed.version);
    }
    let reply = Reply {
        stamp,
        grants,
        committed: response.committed,
        room,
        quota: response.quota,
        inode_token,
        answer: std::mem::take(&mut response.answer),
    };
    let mut known = std::mem::take(&mut response.referenced);
    known.retain(|ino| !new.contains(ino));
    Settled { reply, lost, displaced, known }
}

/// Grants what a response would like to grant, as far as no change came between.
fn grant(stages: &Stages, session: &Session, response: &mut Response) -> Grants {
    let Stages { capabilities, open_files, replay, .. } = stages;
    let mut wants = response.wants;
    wants.delegation = wants.delegation.filter(|ino| {
        !open_files.is_open_by_others(session.serial, *ino) && !replay.has_file(*ino)
    });
    let entries = response.entries.iter().flatten();
    let listed: Vec<Option<Ino>> =
        entries.map(|it| it.attributes.is_some().then_some(it.ino)).collect();
    let granted = capabilities.grant(session.serial, &wants, &listed, &response.made);
    assert!(granted.listed.len() == listed.len(), "each entry of a listing has its byte");
    if response.entries.is_some() {
        response.payload.push(granted.listed.into_iter().map(u8::from).collect());
    }
    // A change that came between may have made the file shorter.
    if let Answer::Opened { write_bound, .. } = &mut response.answer
        && !granted.is_steady
    {
        *write_bound = 0;
    }
    granted.grants
}

/// Makes the tokens of what a response tells, and encodes those of a list. Returns that of the inode that the answer names, 0 for
/// none; and how many inodes the client had lost by then: when it has lost more, the tokens are to be made anew.
fn seal(stages: &Stages, session: &Session, tells: &[Ino], response: &mut Response) -> (u64, u64) {
    let (lost, told) = {
        let state = session.lock();
        let told = tells.iter().map(|ino| (*ino, state.known.generation(*ino)));
        (state.known.lost, told.collect::<SmallVec<[(Ino, u64); 2]>>())
    };
    let table = stages.files.session_table();
    let token_of = |(ino, generation): (Ino, u64)| {
        table.map_or(0, |table| table.inode_token(session.serial, ino, generation))
    };
    let mut inode_token = 0;
    if let Some(entries) = &mut response.entries {
        let mut told = told.into_iter();
        for (_, token) in entries.iter_mut().filter_map(|entry| entry.attributes.as_mut()) {
            *token = token_of(told.next().expect("what a listing shows is told"));
        }
        response.payload = vec![encode_list(entries)];
    } else {
        match &response.answer {
            Answer::Inode(_) => inode_token = told.first().map_or(0, |told| token_of(*told)),
            Answer::Made => {
                let tokens: Vec<u64> = told.into_iter().map(token_of).collect();
                response.payload = vec![encode_list(&tokens)];
            }
            _ => {}
        }
    }
    (inode_token, lost)
}

/// No client is told of what a call has got.
pub(super) async fn undo(stages: &Stages, session: &Session, response: Response) {
    response.referenced.into_iter().for_each(|ino| stages.files.unreference(ino, 1));
    stages.room.give_back(session, &response.room);
    if let Some((_, file)) = response.opened {
        stages.open_files.close(session.serial, file).await;
    }
}
