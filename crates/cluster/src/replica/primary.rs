//! The side of a volume that others follow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task, Time};
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_store::block::{BlockStore, Version};
use thalweg_store::chain::{Chain, ChainError, Relation};
use tokio::sync::mpsc;

use super::backlog::{Backlog, Newest, Room};
use super::claim::{self, GiveWayError};
use super::protocol::{Answer, Described, FromFollower, FromPrimary, HELLO, Refusal, State};
use super::roster::{AckStatus, Known, Roster};
use super::sender::Sender;

/// How a primary treats its followers.
#[derive(Clone, Copy, Debug)]
pub struct PrimaryOptions {
    /// The memory of the backlog.
    pub room: Room,
    /// A follower that says nothing for so long is lost.
    pub patience: Duration,
    /// Followers at which a change is durable before a user's sync of it returns. Syncs wait while there are fewer.
    pub ack: usize,
}

impl Default for PrimaryOptions {
    fn default() -> PrimaryOptions {
        PrimaryOptions { room: Room::default(), patience: Duration::from_secs(10), ack: 0 }
    }
}

/// A connected follower.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ReplicaStatus {
    /// Its client's name.
    pub name: String,
    /// The version up to which changes were sent.
    pub sent: u64,
    /// The newest version that survives a crash of the follower.
    pub durable: u64,
    /// Versions of the primary that do not survive there.
    pub behind_versions: u64,
    /// Bytes that they change, if that is known.
    pub behind_bytes: Option<u64>,
    /// How long ago the state that survives there was the newest one, if that is known: at most so long.
    pub behind_ms: Option<u64>,
    /// Blocks of a copy that were sent, and all of them, while one is under way.
    pub copy: Option<(u64, u64)>,
    /// Bytes of records that were sent to it.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) chain: Arc<Chain>,
    options: PrimaryOptions,
    pub(super) backlog: Arc<Backlog>,
    pub(super) roster: Arc<Roster>,
}

/// Lets volumes follow a chain, from which it takes the tap. Dropping it ends that.
#[derive(Debug)]
pub struct Primary {
    shared: Arc<Shared>,
    _encoder: Task<()>,
}

impl Drop for Primary {
    fn drop(&mut self) {
        self.shared.chain.detach();
        self.shared.roster.end();
    }
}

impl Primary {
    /// Begins to keep the changes of `chain`, and its history if it has none.
    ///
    /// # Errors
    /// Errors of the chain.
    pub async fn new(
        env: &Env,
        chain: Arc<Chain>,
        options: PrimaryOptions,
    ) -> Result<Primary, ChainError> {
        chain.begin_history().await?;
        let roster = Arc::new(Roster::new(options.ack));
        let backlog = Arc::new(Backlog::new(env, options.room, roster.clone()));
        backlog.begin(chain.attach(backlog.clone()));
        let encoding = backlog.clone();
        let _encoder = env.spawn(async move { encoding.run().await });
        let env = env.clone();
        let shared = Arc::new(Shared { env, chain, options, backlog, roster });
        Ok(Primary { shared, _encoder })
    }

    /// Serves a follower until the connection ends. `name` is that of its client.
    ///
    /// # Errors
    /// Errors of the connection, and a follower that breaks the protocol.
    pub async fn serve(&self, mut stream: impl Stream, name: &str) -> io::Result<()> {
        HELLO.exchange(&mut stream).await?;
        let shared = self.shared.clone();
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: 0, ..Limits::default() };
        let channel = Channel::new(&shared.env, Side::Accepting, limits, writer);
        let seat = Seat::new(&self.shared, name);
        let (begin, mut begun) = mpsc::channel(1);
        let heard = Mutex::new(shared.env.now());
        let session =
            Session { shared: &shared, channel: &channel, number: seat.number, begin, heard };
        let sending = async {
            let Some(state) = begun.recv().await else { return Ok(()) };
            let sender = Sender { shared: &shared, channel: &channel, number: seat.number };
            sender.run(state).await
        };
        tokio::select! {
            biased;
            received = channel.run(reader, &session) => received,
            sent = sending => {
                channel.shutdown().await;
                sent
            }
            () = session.silence() => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The connected followers.
    pub fn followers(&self) -> Vec<ReplicaStatus> {
        let followers = self.shared.roster.followers();
        followers.iter().map(|known| self.shared.status_of(known)).collect()
    }

    /// The acknowledgements that users' syncs wait for; `None` if they wait for none.
    pub fn ack_status(&self) -> Option<AckStatus> {
        self.shared.roster.status()
    }

    /// Ends the waiting of users' syncs for followers, with an error: the server is about to end.
    pub fn end_acknowledging(&self) {
        self.shared.roster.end();
    }

    /// Waits until `count` followers have made `version` durable.
    pub async fn acknowledged(&self, version: Version, count: usize) {
        self.shared.roster.held_by(version, count).await;
    }
}

/// A follower in the list of the connected ones.
struct Seat<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Seat<'_> {
    fn new<'a>(shared: &'a Shared, name: &str) -> Seat<'a> {
        Seat { shared, number: shared.roster.enter(name) }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.shared.roster.leave(self.number);
    }
}

impl Shared {
    fn status_of(&self, known: &Known) -> ReplicaStatus {
        let backlog = &self.backlog;
        let state = known.durable_state();
        let version = state.map_or(Version(0), |state| state.version);
        let as_of = state.and_then(|state| backlog.current_as_of(state.version));
        let newest = backlog.newest();
        let behind_bytes = match version >= newest.version {
            true => Some(0),
            false => state.and_then(|it| it.total).map(|it| newest.total.saturating_sub(it)),
        };
        ReplicaStatus {
            name: known.name.clone(),
            sent: known.sent.0,
            durable: version.0,
            behind_versions: newest.version.0.saturating_sub(version.0),
            behind_bytes,
            behind_ms: as_of.map(|as_of| backlog.elapsed_ms(as_of)),
            copy: known.copy,
            bytes: known.bytes,
        }
    }

    fn described(&self, to: Option<&State>) -> Described {
        let label = self.chain.label();
        let Newest { version, total } = self.backlog.newest();
        Described {
            volume: label.volume,
            blocks: label.blocks,
            newest: version,
            total,
            term: label.term,
            fence: label.fence,
            behind: to.map(|state| self.backlog.behind(state.version)),
        }
    }

    /// Gives way to a primary with a higher term, of which `theirs` speaks; says whether it has one.
    async fn give_way(&self, theirs: &State) -> Result<bool, Refusal> {
        match claim::give_way(&self.chain, theirs).await {
            Ok(is_higher) => Ok(is_higher),
            Err(GiveWayError::Strange) => Err(Refusal::Strange),
            Err(GiveWayError::Chain(error)) => {
                // Its users write nothing any more; whether that survives a crash is not known.
                tracing::error!(%error, "the volume cannot be fenced durably");
                Err(Refusal::Fenced(theirs.term))
            }
        }
    }

    /// Whether a volume in this state may follow.
    async fn admit(&self, theirs: &State) -> Result<(), Refusal> {
        self.check_volume(theirs)?;
        self.give_way(theirs).await?;
        self.decide(theirs)
    }

    /// Answers a volume in this state that calls itself the primary.
    async fn hear_claim(&self, theirs: &State) -> Result<Described, Refusal> {
        self.check_volume(theirs)?;
        self.give_way(theirs).await?;
        let own = State::of(&self.chain);
        let described = self.described(Some(theirs));
        match described.fence {
            _ if self.chain.label().follows => Ok(described),
            Some(fence) if fence.term >= theirs.term => Ok(described),
            _ if theirs.term < own.term => Err(Refusal::Superseded(Box::new(own))),
            _ => Err(Refusal::SameTerm(own.term)),
        }
    }

    fn check_volume(&self, theirs: &State) -> Result<(), Refusal> {
        match (theirs.volume, self.chain.label().volume) {
            (theirs, ours) if theirs != ours => Err(Refusal::OtherVolume { theirs, ours }),
            _ => Ok(()),
        }
    }

    fn decide(&self, theirs: &State) -> Result<(), Refusal> {
        let label = self.chain.label();
        let newest = self.chain.now();
        if let Some(fence) = label.fence {
            return Err(Refusal::Fenced(fence.term));
        }
        if label.follows {
            return Err(Refusal::NotPrimary);
        }
        if theirs.blocks != label.blocks {
            return Err(Refusal::OtherSize { theirs: theirs.blocks, ours: label.blocks });
        }
        if theirs.history.is_empty() && theirs.version == Version(0) {
            return Ok(());
        }
        match label.history.relation_of(&theirs.history, theirs.version, newest) {
            Relation::Past => Ok(()),
            Relation::Future => Err(Refusal::Ahead { theirs: theirs.version, ours: newest }),
            Relation::Apart(since) => Err(Refusal::Apart(since)),
            Relation::Strange => Err(Refusal::Strange),
        }
    }
}

/// Receives what a follower says.
struct Session<'a> {
    shared: &'a Shared,
    channel: &'a Channel,
    number: u64,
    begin: mpsc::Sender<State>,
    heard: Mutex<Time>,
}

impl Session<'_> {
    /// Returns when the follower has said nothing for too long.
    async fn silence(&self) {
        let most = self.shared.options.patience;
        loop {
            let heard = *self.heard.lock();
            let silent = self.shared.env.now().since(heard);
            match most.checked_sub(silent).filter(|left| !left.is_zero()) {
                Some(left) => self.shared.env.sleep(left).await,
                None => return,
            }
        }
    }
}

impl Handler for Session<'_> {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        *self.heard.lock() = self.shared.env.now();
        match call.decode().map_err(io::Error::other)? {
            FromFollower::Describe(state) => {
                let described = self.shared.described(state.as_ref());
                self.channel.answer(call.id, &Answer::Is(described), &[]);
            }
            FromFollower::Announce(theirs) => {
                let answer = match self.shared.hear_claim(&theirs).await {
                    Ok(described) => Answer::Is(described),
                    Err(refusal) => Answer::Refused(refusal),
                };
                self.channel.answer(call.id, &answer, &[]);
            }
            FromFollower::Follow(state) => {
                let answer = match self.shared.admit(&state).await {
                    Ok(()) => {
                        let label = self.shared.chain.label();
                        Answer::Follows { history: label.history, term: label.term }
                    }
                    Err(refusal) => Answer::Refused(refusal),
                };
                let follows = matches!(answer, Answer::Follows { .. });
                self.channel.answer(call.id, &answer, &[]);
                if follows && self.begin.try_send(state).is_err() {
                    return Err(io::Error::other("it asked twice to follow"));
                }
            }
            FromFollower::Ask(number) => {
                let Newest { version, total } = self.shared.backlog.newest();
                let durable = self.shared.backlog.news().durable;
                let told = FromPrimary::Told { number, newest: version, durable, total };
                self.channel.tell(&told, &[]).map_err(io::Error::other)?;
            }
            FromFollower::Durable(durable) => {
                self.shared.roster.note_durable(self.number, durable);
            }
        }
        Ok(())
    }
}
