//! The side of a volume that follows another one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Time, watch};
use thalweg_net::Traffic;
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, NoCalls, Side};
use thalweg_store::block::{Blocks, Version};
use thalweg_store::chain::{BEFORE_COPY, Chain, Position};
use tokio::sync::{Notify, mpsc};

use super::applier::{Applied, Applier};
use super::following::{FollowerOptions, Following, PATIENCE, Stopped, lost};
use super::protocol::{
    Answer, Described, Durable, FromFollower, FromPrimary, HELLO, LONGEST, Refusal, State,
};
use super::rescuer::Rescuer;

/// Messages that wait to be applied.
const QUEUE: usize = 64;
/// A copy that is under way becomes durable so often: what a crash loses of it is sent again.
const COPY_SYNC: Duration = Duration::from_millis(500);

/// Asks the primary at the other end of `stream` what its volume is, and how far it is ahead of a follower's state.
///
/// # Errors
/// [`Stopped::Lost`].
pub async fn describe(
    env: &Env,
    mut stream: impl Stream,
    state: Option<State>,
) -> Result<Described, Stopped> {
    HELLO.exchange(&mut stream).await?;
    let (reader, writer) = tokio::io::split(stream);
    let channel = Channel::new(env, Side::Connecting, Limits::default(), writer);
    let call = FromFollower::Describe(state);
    let asking = channel.call_within(env, PATIENCE, &call, &[]);
    tokio::select! {
        biased;
        answered = asking => match answered? {
            (Answer::Is(described), _) => Ok(described),
            _ => Err(lost("its answer does not fit the question")),
        },
        ended = channel.run(reader, &NoCalls) => {
            ended?;
            Err(lost("it closed the connection"))
        }
    }
}

/// What is known of the primary, and of the way to it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FollowerStatus {
    /// Whether there is a connection on which it follows. Without one the primary may be further ahead than is known.
    pub connected: bool,
    /// The newest version that it has.
    pub version: u64,
    /// The newest version that survives a crash.
    pub durable: u64,
    /// The primary's newest version when it was last heard; `None` before that.
    pub primary: Option<u64>,
    /// Versions that the primary has and this one does not have.
    pub behind_versions: Option<u64>,
    /// Bytes that they change.
    pub behind_bytes: Option<u64>,
    /// How long ago its state was the primary's newest one: at most so long. See [`Follower::current_as_of`].
    pub behind_ms: Option<u64>,
    /// Bytes of changes that were received and are not applied.
    pub waiting_bytes: u64,
    /// Milliseconds since the primary was last heard.
    pub silent_ms: Option<u64>,
    /// The version from which on it has a state of the primary, while it has none.
    pub copying_until: Option<u64>,
}

/// A chain that follows another one.
#[derive(Debug)]
pub struct Follower {
    own: Following,
    /// Ask the primary now.
    ask: Notify,
}

impl Follower {
    /// A follower with this chain, which was opened to follow.
    pub fn new(env: &Env, chain: Arc<Chain>) -> Follower {
        Follower::with(env, chain, FollowerOptions::default())
    }

    /// As [`Follower::new`], with options.
    pub fn with(env: &Env, chain: Arc<Chain>, options: FollowerOptions) -> Follower {
        let env = env.clone();
        let rescuer = Arc::new(Rescuer::new(&env));
        chain.rescue_from(Some(rescuer.clone()));
        let size = AtomicU64::new(chain.blocks());
        let (seen, traffic, wants_copy, resizing, before_copy) = Default::default();
        let own = Following {
            env,
            chain,
            options,
            seen,
            traffic,
            rescuer,
            wants_copy,
            size,
            resizing,
            before_copy,
        };
        Follower { own, ask: Notify::new() }
    }

    /// Its state; `None` for one that has no name because it has followed nothing yet.
    pub fn position(&self) -> Option<Position> {
        self.own.chain.position_of(self.own.chain.now())
    }

    /// A time, by the clock of this process, as of which the state that readers see from now on was the primary's newest
    /// one; `None` while that is not known. A version that was visible at the primary by then is in that state.
    pub fn current_as_of(&self) -> Option<Time> {
        self.own.seen.lock().staleness.current_as_of()
    }

    /// What it has sent to its primaries, by purpose: the names of [messages](super::protocol::FromFollower).
    pub fn traffic(&self) -> &Traffic {
        &self.own.traffic
    }

    /// Asks the primary how far it is, now and not only with the next beat.
    pub fn ask(&self) {
        self.ask.notify_one();
    }

    /// What it knows of itself and of the primary.
    pub fn status(&self) -> FollowerStatus {
        let chain = self.own.chain.status();
        let whole_from = self.own.chain.whole_from();
        let elapsed = |time: Time| self.own.env.now().since(time).as_millis() as u64;
        let seen = self.own.seen.lock();
        FollowerStatus {
            connected: seen.connected,
            version: chain.version,
            durable: chain.durable_version,
            primary: seen.primary.map(|primary| primary.0.max(chain.version)),
            behind_versions: seen.primary.map(|primary| primary.0.saturating_sub(chain.version)),
            behind_bytes: seen.behind_bytes(Version(chain.version)),
            behind_ms: seen.staleness.current_as_of().map(elapsed),
            waiting_bytes: seen.waiting_bytes,
            silent_ms: seen.heard.map(elapsed),
            copying_until: (chain.version < whole_from.0).then_some(whole_from.0),
        }
    }

    /// Follows the primary at the other end of `stream` until the connection ends.
    ///
    /// # Errors
    /// [`Stopped`], always.
    pub async fn follow(&self, stream: impl Stream) -> Stopped {
        let stopped = self.run(stream).await;
        self.own.seen.lock().disconnect();
        self.own.rescuer.disconnect();
        stopped.err().unwrap_or_else(|| lost("it closed the connection"))
    }

    async fn run(&self, mut stream: impl Stream) -> Result<(), Stopped> {
        HELLO.exchange(&mut stream).await?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: LONGEST, ..Limits::default() };
        let traffic = self.own.traffic.clone();
        let channel = Channel::counted(&self.own.env, Side::Connecting, limits, writer, traffic);
        let (queue, messages) = mpsc::channel(QUEUE);
        let input = Input { follower: &self.own, queue };
        let following = async {
            // What an earlier connection began goes on to its end.
            drop(self.own.before_copy.lock().await);
            drop(self.own.resizing.lock().await);
            let chain = self.own.chain.clone();
            self.own.to_the_end(async move { chain.replica_number().await }).await?;
            let mut state = State::of(&self.own.chain);
            state.is_whole &= !self.own.wants_copy.load(Ordering::Acquire);
            let call = FromFollower::Follow(state);
            let (answer, _) = channel.call_within(&self.own.env, PATIENCE, &call, &[]).await?;
            match answer {
                Answer::Refused(refusal) => return Err(refusal.into()),
                Answer::Is(_) | Answer::Content | Answer::NoContent => {
                    return Err(lost("its answer does not fit the question"));
                }
                Answer::Follows { history, term, blocks, shrink } => {
                    let ours = self.own.chain.term();
                    if term < ours {
                        return Err(Refusal::Outdated { ours, theirs: term }.into());
                    }
                    let chain = self.own.chain.clone();
                    let adopt = async move { chain.adopt(&history, term, shrink).await };
                    self.own.to_the_end(adopt).await?;
                    // One that is smaller comes with a copy, which discards the end that the primary was told of. Until then
                    // the volume keeps it, also if an earlier connection has left a smaller size.
                    let size = blocks.max(self.own.chain.blocks());
                    self.own.size.store(size, Ordering::Release);
                }
            }
            self.own.seen.lock().connect();
            let (applied, news) =
                watch::channel(Applied { version: self.own.chain.now(), total: None });
            let mut applier = Applier::new(&self.own, applied);
            tokio::select! {
                biased;
                stopped = applier.run(messages) => stopped,
                stopped = self.make_durable(&channel, news) => stopped,
                stopped = self.ask_often(&channel) => stopped,
                stopped = self.shrink_in_time() => stopped,
                () = self.own.rescuer.run(&channel) => Err(lost("another connection began")),
            }
        };
        tokio::select! {
            biased;
            stopped = following => stopped,
            ended = channel.run(reader, &input) => Ok(ended?),
        }
    }

    /// Makes what was applied durable, and says so.
    async fn make_durable(
        &self,
        channel: &Channel,
        mut applied: watch::Receiver<Applied>,
    ) -> Result<(), Stopped> {
        let ended = || lost("the follower was stopped");
        loop {
            let is_whole = |applied: &Applied| applied.version >= self.own.chain.whole_from();
            let whole = applied.wait_for(is_whole);
            if let Some(Err(_)) = self.own.env.timeout(COPY_SYNC, whole).await {
                return Err(ended());
            }
            let Applied { version, total } = *applied.borrow_and_update();
            self.own.chain.sync(version).await?;
            let is_whole = self.forget_before_copy(version).await?;
            let durable = Durable { version, is_whole, total };
            channel.tell(&FromFollower::Durable(durable), &[])?;
            channel.flush();
            if applied.changed().await.is_err() {
                return Err(ended());
            }
        }
    }

    /// Deletes the state from before a copy if `version`, which is durable, is a state of the primary; returns whether
    /// it is.
    async fn forget_before_copy(&self, version: Version) -> Result<bool, Stopped> {
        let mut alone = self.own.before_copy.clone().lock_owned().await;
        let is_whole = version >= self.own.chain.whole_from();
        if is_whole && self.own.chain.snapshot(BEFORE_COPY).is_some() {
            let chain = self.own.chain.clone();
            let forget = async move { chain.delete_snapshot(BEFORE_COPY).await.map(|()| alone) };
            alone = self.own.to_the_end(forget).await?;
        }
        if is_whole {
            self.own.shrink().await?;
        }
        drop(alone);
        Ok(is_whole)
    }

    /// Makes the volume as small as the primary's when the readers that kept it from that have gone, which is not told.
    async fn shrink_in_time(&self) -> Result<(), Stopped> {
        loop {
            self.own.env.sleep(self.own.options.beat).await;
            if self.own.is_too_large() {
                let durable = self.own.chain.status().durable_version;
                self.forget_before_copy(Version(durable)).await?;
            }
        }
    }

    /// Asks how far the primary is, with every beat and at once when [`Follower::ask`] wants it.
    async fn ask_often(&self, channel: &Channel) -> Result<(), Stopped> {
        loop {
            let number = self.own.seen.lock().staleness.ask(self.own.env.now());
            channel.tell(&FromFollower::Ask(number), &[])?;
            channel.flush();
            self.own.env.timeout(self.own.options.beat, self.ask.notified()).await;
        }
    }
}

/// Queues what the primary says; that it is not read faster than it is applied is the backpressure.
struct Input<'a> {
    follower: &'a Following,
    queue: mpsc::Sender<(FromPrimary, Bytes)>,
}

impl Handler for Input<'_> {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let message = call.decode().map_err(io::Error::other)?;
        let now = self.follower.env.now();
        self.follower.seen.lock().hear(now, &message, call.payload.len() as u64);
        self.follower.reach(None);
        let stopped = |_| io::Error::other("the follower was stopped");
        self.queue.send((message, call.payload)).await.map_err(stopped)
    }
}
