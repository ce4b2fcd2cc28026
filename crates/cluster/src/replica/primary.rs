//! The side of a volume that others follow.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task, Time};
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_store::block::{BlockStore, Version};
use thalweg_store::chain::{Chain, ChainError, Relation};
use tokio::sync::{Notify, mpsc};

use super::backlog::{Backlog, Newest, Room};
use super::protocol::{
    Answer, Described, Durable, FromFollower, FromPrimary, HELLO, Refusal, State,
};
use super::sender::Sender;

/// How a primary treats its followers.
#[derive(Clone, Copy, Debug)]
pub struct PrimaryOptions {
    /// The memory of the backlog.
    pub room: Room,
    /// A follower that says nothing for so long is lost.
    pub patience: Duration,
}

impl Default for PrimaryOptions {
    fn default() -> PrimaryOptions {
        PrimaryOptions { room: Room::default(), patience: Duration::from_secs(10) }
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

/// What a primary knows of a connected follower.
#[derive(Clone, Debug)]
pub(super) struct Known {
    name: String,
    pub(super) sent: Version,
    /// What survives a crash of the follower, once it has said so.
    durable: Option<Durable>,
    pub(super) copy: Option<(u64, u64)>,
    pub(super) bytes: u64,
}

impl Known {
    /// The newest state of the volume that survives a crash of the follower.
    fn durable_state(&self) -> Option<Durable> {
        self.durable.filter(|durable| durable.is_whole)
    }

    fn status(&self, backlog: &Backlog) -> ReplicaStatus {
        let state = self.durable_state();
        let version = state.map_or(Version(0), |state| state.version);
        let as_of = state.and_then(|state| backlog.current_as_of(state.version));
        let newest = backlog.newest();
        let behind_bytes = match version >= newest.version {
            true => Some(0),
            false => state.and_then(|it| it.total).map(|it| newest.total.saturating_sub(it)),
        };
        ReplicaStatus {
            name: self.name.clone(),
            sent: self.sent.0,
            durable: version.0,
            behind_versions: newest.version.0.saturating_sub(version.0),
            behind_bytes,
            behind_ms: as_of.map(|as_of| backlog.elapsed_ms(as_of)),
            copy: self.copy,
            bytes: self.bytes,
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) chain: Arc<Chain>,
    options: PrimaryOptions,
    pub(super) backlog: Arc<Backlog>,
    followers: Mutex<BTreeMap<u64, Known>>,
    /// A follower has made versions durable, or came or went.
    acknowledged: Notify,
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
        let backlog = Arc::new(Backlog::new(env, options.room));
        backlog.begin(chain.attach(backlog.clone()));
        let encoding = backlog.clone();
        let _encoder = env.spawn(async move { encoding.run().await });
        let (followers, acknowledged) = Default::default();
        let env = env.clone();
        let shared = Arc::new(Shared { env, chain, options, backlog, followers, acknowledged });
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
        let followers = self.shared.followers.lock();
        followers.values().map(|known| known.status(&self.shared.backlog)).collect()
    }

    /// Waits until `count` followers have made `version` durable.
    pub async fn acknowledged(&self, version: Version, count: usize) {
        loop {
            let news = self.shared.acknowledged.notified();
            if self.shared.holders(version) >= count {
                return;
            }
            news.await;
        }
    }
}

/// A follower in the list of the connected ones.
struct Seat<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Seat<'_> {
    fn new<'a>(shared: &'a Shared, name: &str) -> Seat<'a> {
        let mut followers = shared.followers.lock();
        let number = followers.last_key_value().map_or(0, |(last, _)| last + 1);
        let name = name.to_owned();
        let sent = Version(0);
        followers.insert(number, Known { name, sent, durable: None, copy: None, bytes: 0 });
        Seat { shared, number }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.shared.followers.lock().remove(&self.number);
        self.shared.acknowledged.notify_waiters();
    }
}

impl Shared {
    /// Changes what is known of a follower.
    pub(super) fn note(&self, number: u64, change: impl FnOnce(&mut Known)) {
        if let Some(status) = self.followers.lock().get_mut(&number) {
            change(status);
        }
    }

    /// The number of followers at which a state with `version` survives a crash.
    fn holders(&self, version: Version) -> usize {
        let followers = self.followers.lock();
        let states = followers.values().filter_map(Known::durable_state);
        states.filter(|state| state.version >= version).count()
    }

    /// Whether a volume in this state may follow.
    fn decide(&self, theirs: &State) -> Result<(), Refusal> {
        let label = self.chain.label();
        let (ours, newest) = (label.volume, self.chain.now());
        if theirs.volume != ours {
            return Err(Refusal::OtherVolume { theirs: theirs.volume, ours });
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
            FromFollower::Describe => {
                let label = self.shared.chain.label();
                let (volume, blocks) = (label.volume, label.blocks);
                let newest = self.shared.chain.now();
                self.channel.answer(
                    call.id,
                    &Answer::Is(Described { volume, blocks, newest }),
                    &[],
                );
            }
            FromFollower::Follow(state) => {
                let answer = match self.shared.decide(&state) {
                    Ok(()) => Answer::Follows(self.shared.chain.history()),
                    Err(refusal) => Answer::Refused(refusal),
                };
                let follows = matches!(answer, Answer::Follows(_));
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
                self.shared.note(self.number, |known| known.durable = Some(durable));
                self.shared.acknowledged.notify_waiters();
            }
        }
        Ok(())
    }
}
