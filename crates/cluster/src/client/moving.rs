//! A mount moves to another machine (Arion, 10.4): this is the client that it leaves.
//!
//! The other machine gets what the journal has, in its order, while programs go on. When little is left their calls wait: nothing is changed any more, and
//! nothing that is cached is used. The rest is sent, with what the client holds of its session. Once the other machine has that on its drive, the client
//! hands the session over at the server. Before the server has answered, the session is this client's, which may go on; afterwards it never is. Where the
//! answer was lost, attaching the session again tells.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesOrdered, StreamExt};
use serde::Serialize;
use thalweg_env::connection::Connector;
use thalweg_env::{Env, Task, Time};
use thalweg_fs::FsError;
use thalweg_fs::session_table::JournalPosition;
use thalweg_net::Traffic;
use thalweg_net::channel::{CallError, Channel, Limits, NoCalls, Side};
use thalweg_store::journal::JournalError;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::base::ClientBase;
use super::error::LinkError;
use super::filesystem::Client;
use super::journal::ClientJournal;
use super::moved_state::MovedState;
use super::stages::Stages;
use crate::protocol::moving::{
    HELLO, MAX_PAYLOAD, MoveAnswer, MoveCall, MoveRefusal, Offer, Sight,
};
use crate::protocol::{Answer, Call, Reply, Request};

/// Longest time for an answer of the other machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for calls that were under way when the others began to wait.
const UNDER_WAY: Duration = Duration::from_secs(2);
/// How often it is seen whether they have ended.
const LOOK: Duration = Duration::from_micros(500);
/// Bytes of changes that are sent together, about.
const CHUNK: usize = 512 << 10;
/// Chunks in flight at a time.
const AT_ONCE: usize = 4;
/// The rest is sent while calls wait when that takes no longer than this.
const SHORT: Duration = Duration::from_millis(100);
/// Bytes that are little in any case.
const LITTLE: u64 = 1 << 20;
/// Programs write faster than the link carries when that is not so after so many rounds.
const ROUNDS: u32 = 50;
/// Time for the other machine to mount what it has.
const MOUNTING: Duration = Duration::from_secs(60);

/// A machine that waits for a mount.
#[derive(Clone, Debug)]
pub struct MoveTarget {
    /// Its name, for people.
    pub name: String,
    /// Makes connections to it.
    pub connector: Arc<dyn Connector>,
}

/// How a mount has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MoveReport {
    /// Changes that were sent to the other machine.
    pub changes: u64,
    /// Bytes of files in them.
    pub dirty: u64,
    /// Bytes that were sent there.
    pub bytes: u64,
    /// Microseconds for which calls have waited at the switch.
    pub pause_us: u64,
    /// The other machine has the mount. Else it was not reached after the switch, and takes the mount by itself.
    pub has_arrived: bool,
}

/// Why a mount does not move. It stays where it is, unless that says something else.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// Only what has a journal moves.
    #[error("the mount has no journal that is used")]
    NoJournal,
    /// Another move is under way.
    #[error("a move of this mount is under way")]
    UnderWay,
    /// Programs have files open, for which this move would be a failure.
    #[error(
        "programs have {writing} files open for writing: end them first, or move with --force, which makes their files stale"
    )]
    Open {
        /// Files that are open for writing.
        writing: usize,
    },
    /// The other machine does not let this client in.
    #[error("{target} does not let this client in: {why}")]
    NotPermitted {
        /// The other machine.
        target: String,
        /// Why.
        why: io::Error,
    },
    /// The other machine was lost.
    #[error("{target} cannot be reached: {why}")]
    Lost {
        /// The other machine.
        target: String,
        /// Why.
        why: String,
    },
    /// The other machine does not take it.
    #[error("{target} does not take the mount: {why}")]
    Refused {
        /// The other machine.
        target: String,
        /// Why.
        why: MoveRefusal,
    },
    /// Calls do not end.
    #[error(
        "calls of programs are under way that do not end, as for a lock or at a server that is away"
    )]
    Busy,
    /// More is written than is sent.
    #[error("programs write faster than the link carries")]
    TooFast,
    /// The journal cannot be read, or written.
    #[error("the journal cannot be used: {0}")]
    Journal(#[from] JournalError),
    /// The server does not do its part.
    #[error("the server cannot be used: {0}")]
    Server(FsError),
    /// The session has ended meanwhile.
    #[error("the server has ended the session of this mount meanwhile")]
    Ended,
}

impl Client {
    /// Moves this mount to another machine, which waits for it ([`Receiver`](super::Receiver)). Programs go on until little is left; then their calls wait,
    /// and find that the mount is stale once it has moved. While files are open for writing it does not move, unless that is `forced`.
    ///
    /// # Errors
    /// [`MoveError`]. The mount stays.
    pub async fn move_to(&self, target: MoveTarget, forced: bool) -> Result<MoveReport, MoveError> {
        let stages = self.stages().clone();
        let (told, done) = oneshot::channel();
        let env = stages.base.env.clone();
        // It ends well or not, also when its caller has gone.
        let moving = async move { drop(told.send(move_mount(&stages, target, forced).await)) };
        env.spawn(moving).detach();
        done.await.unwrap_or(Err(MoveError::Ended))
    }
}

/// The connection with the other machine.
struct Link {
    env: Env,
    target: String,
    channel: Channel,
    traffic: Traffic,
    _running: Task<io::Result<()>>,
}

impl Link {
    async fn connect(env: &Env, target: MoveTarget) -> Result<Link, MoveError> {
        let MoveTarget { name, connector } = target;
        let lost = |why: io::Error| match why.kind() {
            io::ErrorKind::PermissionDenied => {
                MoveError::NotPermitted { target: name.clone(), why }
            }
            _ => MoveError::Lost { target: name.clone(), why: why.to_string() },
        };
        let connecting = async {
            let mut stream = connector.connect().await?;
            HELLO.exchange(&mut stream).await?;
            Ok(stream)
        };
        let late = || Err(io::ErrorKind::TimedOut.into());
        let connected = env.timeout(PATIENCE, connecting).await.unwrap_or_else(late);
        let stream = connected.map_err(lost)?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: MAX_PAYLOAD, ..Limits::default() };
        let traffic = Traffic::default();
        let channel = Channel::counted(env, Side::Connecting, limits, writer, traffic.clone());
        let receiving = channel.clone();
        let _running = env.spawn(async move { receiving.run(reader, &NoCalls).await });
        Ok(Link { env: env.clone(), target: name, channel, traffic, _running })
    }

    fn lost(&self, error: &CallError) -> MoveError {
        MoveError::Lost { target: self.target.clone(), why: error.to_string() }
    }

    async fn call(
        &self,
        call: &MoveCall,
        payload: Vec<Bytes>,
        patience: Duration,
    ) -> Result<(), MoveError> {
        let answered = self.channel.call_within(&self.env, patience, call, &payload).await;
        match answered.map_err(|error| self.lost(&error))?.0 {
            MoveAnswer::Done => Ok(()),
            MoveAnswer::Refused(why) => {
                Err(MoveError::Refused { target: self.target.clone(), why })
            }
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.traffic.sent().values().map(|sent| sent.bytes).sum()
    }
}

/// What was sent so far.
struct Sender<'a> {
    link: &'a Link,
    journal: &'a ClientJournal,
    /// The position of the last change that was sent.
    end: JournalPosition,
    changes: u64,
    dirty: u64,
}

impl Sender<'_> {
    /// Sends what the journal has now; its bytes.
    async fn send_round(&mut self) -> Result<u64, MoveError> {
        let (mut under_way, mut sent) = (FuturesOrdered::new(), 0);
        loop {
            let some = self.journal.read_behind(self.end.position, CHUNK).await?;
            let Some((after, end, runs)) = some else { break };
            let mutations = runs.iter().flat_map(|run| &run.mutations);
            self.dirty += mutations.map(|it| it.mutation.kind.data_len() as u64).sum::<u64>();
            self.changes += end.position - after.position;
            let runs = postcard::to_allocvec(&runs).expect("memory takes any mutation");
            sent += runs.len() as u64;
            let link = self.link;
            under_way.push_back(async move {
                let call = MoveCall::Changes { after };
                link.call(&call, vec![runs.into()], PATIENCE).await
            });
            self.end = end;
            while under_way.len() >= AT_ONCE {
                under_way.next().await.unwrap_or(Ok(()))?;
            }
        }
        while let Some(done) = under_way.next().await {
            done?;
        }
        Ok(sent)
    }

    /// Sends changes until few are left.
    async fn send_most(&mut self, base: &ClientBase) -> Result<(), MoveError> {
        for _ in 0..ROUNDS {
            let begun = base.now();
            let sent = self.send_round().await?;
            if sent <= LITTLE || base.now().since(begun) <= SHORT {
                return Ok(());
            }
        }
        Err(MoveError::TooFast)
    }
}

/// Programs wait, until this is dropped.
struct Pause<'a> {
    base: &'a ClientBase,
    since: Time,
}

impl<'a> Pause<'a> {
    /// Nothing is changed without a call when this returns, and no further call is sent.
    fn begin(base: &'a ClientBase) -> Pause<'a> {
        base.session.suspend_lease();
        base.links.hold(true);
        base.inodes.barrier();
        Pause { base, since: base.now() }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        // Once it has moved nothing may be used any more.
        if !matches!(self.base.links.current(), super::link::Link::Moved) {
            self.base.session.resume_lease();
        }
        self.base.links.hold(false);
    }
}

async fn move_mount(
    stages: &Stages,
    target: MoveTarget,
    forced: bool,
) -> Result<MoveReport, MoveError> {
    let _only = stages.moving.try_lock().map_err(|_| MoveError::UnderWay)?;
    let base = &*stages.base;
    let journal = base.journal.live().ok_or(MoveError::NoJournal)?;
    check_open(stages, forced)?;
    let settling = base.env.timeout(PATIENCE, stages.rpc.make_durable());
    settling.await.ok_or(MoveError::Busy)?.map_err(MoveError::Server)?;
    let link = Link::connect(&base.env, target).await?;
    let (session, after) = (base.session.info(), journal.after());
    let offer = Offer {
        from: journal.session,
        before: journal.session_before(),
        to: base.env.uuid(),
        after,
        used: journal.room().used,
        sight: Sight {
            server: session.server,
            root: base.session.theirs(thalweg_fs::Ino::ROOT),
            read_only: session.read_only,
            squash: session.squash,
        },
    };
    let to = offer.to;
    link.call(&MoveCall::Begin(offer), Vec::new(), PATIENCE).await?;
    let mut sender = Sender { link: &link, journal: &journal, end: after, changes: 0, dirty: 0 };
    let moved = switch(stages, &mut sender, to, forced).await;
    let pause = match moved {
        Ok(pause) => pause,
        Err(error) => {
            // It may have moved where that is not known: the other machine asks the server then.
            if !matches!(error, MoveError::Ended) {
                let _ = link.call(&MoveCall::Cancel, Vec::new(), PATIENCE).await;
            }
            link.channel.close("the mount does not move");
            return Err(error);
        }
    };
    let (changes, dirty) = (sender.changes, sender.dirty);
    let arriving = link.call(&MoveCall::Switched, Vec::new(), MOUNTING);
    let (arrived, cleared) = futures::future::join(arriving, journal.clear()).await;
    if let Err(error) = cleared {
        tracing::warn!(%error, "the journal keeps what the other machine has by now; nothing of it is needed");
    }
    let has_arrived = arrived.is_ok();
    if let Err(error) = arrived {
        tracing::warn!(%error, "the mount has moved, and was not seen to arrive");
    }
    tracing::info!(to = link.target, "the mount has moved to another machine");
    let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    Ok(MoveReport { changes, dirty, bytes: link.sent_bytes(), pause_us, has_arrived })
}

fn check_open(stages: &Stages, forced: bool) -> Result<(), MoveError> {
    let writing = stages.open_files.writing();
    if writing > 0 && !forced { Err(MoveError::Open { writing }) } else { Ok(()) }
}

/// Sends everything, and hands the session over; how long calls have waited.
async fn switch(
    stages: &Stages,
    sender: &mut Sender<'_>,
    to: Uuid,
    forced: bool,
) -> Result<Duration, MoveError> {
    let base = &*stages.base;
    sender.send_most(base).await?;
    // No batch is under way from here on.
    let _turn = stages.writeback.hold().await;
    let pause = Pause::begin(base);
    let ending = async {
        while stages.rpc.has_sent() {
            base.env.sleep(LOOK).await;
        }
    };
    base.env.timeout(UNDER_WAY, ending).await.ok_or(MoveError::Busy)?;
    check_open(stages, forced)?;
    make_calls_durable(base).await?;
    sender.journal.commit(&base.queue, base.queue.last()).await?;
    sender.send_round().await?;
    let link = sender.link;
    let state = Bytes::from(MovedState::export(base).encode());
    for start in (0..state.len()).step_by(CHUNK) {
        let part = state.slice(start..(start + CHUNK).min(state.len()));
        link.call(&MoveCall::State, vec![part], PATIENCE).await?;
    }
    link.call(&MoveCall::Prepare { end: sender.end }, Vec::new(), PATIENCE).await?;
    hand_over(base, to).await?;
    stages.connections.end_moved();
    Ok(base.now().since(pause.since))
}

/// Calls that were answered are in no journal, and changes may depend on them.
async fn make_calls_durable(base: &ClientBase) -> Result<(), MoveError> {
    if !base.replay_log.has_calls() {
        return Ok(());
    }
    let last = base.replay_log.last();
    let channel = base.links.channel().ok_or(MoveError::Busy)?;
    let call = Call::outside(Request::SyncAll);
    let answered = channel.call_within::<_, Reply>(&base.env, PATIENCE, &call, &[]).await;
    match answered.map_err(|_| MoveError::Busy)?.0.answer {
        Answer::Done => {}
        Answer::Failed(error) => return Err(MoveError::Server(error.into())),
        _ => return Err(MoveError::Server(LinkError::Unexpected.into())),
    }
    if let Some(version) = last {
        base.replay_log.are_durable(version);
    }
    Ok(())
}

/// Hands the session over at the server. Returns when it is known whether that was done: an error says that it was not.
async fn hand_over(base: &ClientBase, to: Uuid) -> Result<(), MoveError> {
    let generation = base.session.generation();
    let mut failed: Option<Channel> = None;
    let mut refused: Option<FsError> = None;
    loop {
        let channel = match base.links.next_channel(failed.as_ref()).await {
            Ok(channel) => channel,
            // The session was attached again, which says so.
            Err(LinkError::Moved) => return Ok(()),
            Err(error) => {
                tracing::error!(%error, "it is not known whether the mount has moved");
                return Err(MoveError::Ended);
            }
        };
        if base.session.generation() != generation {
            return Err(MoveError::Ended);
        }
        if let Some(error) = refused.take() {
            return Err(MoveError::Server(error));
        }
        let call = Call::outside(Request::HandOver { to });
        let answered = channel.call_within::<_, Reply>(&base.env, PATIENCE, &call, &[]).await;
        match answered.map(|(reply, _)| reply.answer) {
            Ok(Answer::Done) => return Ok(()),
            Ok(Answer::Failed(error)) => refused = Some(error.into()),
            Ok(_) => refused = Some(LinkError::Unexpected.into()),
            Err(_) => {}
        }
        channel.close("it is to be seen whose the session is");
        failed = Some(channel);
    }
}
