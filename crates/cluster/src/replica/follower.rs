//! The side of a volume that follows another one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Time};
use thalweg_net::channel::{CallError, Channel, Handler, Incoming, Limits, NoCalls, Side};
use thalweg_store::block::{
    BLOCK_SIZE, BlockStore, ByteRanges, Lba, Retention, StoreError, Version, Write, WriteList,
};
use thalweg_store::chain::{BEFORE_COPY, Chain, ChainError, Position};
use thalweg_store::checksum::crc32c;
use tokio::sync::{mpsc, watch};

use super::protocol::{
    Answer, Described, FromFollower, FromPrimary, HELLO, LONGEST, Refusal, State,
};
use super::record::{self, Changes, Part, Record};

/// Messages that wait to be applied.
const QUEUE: usize = 64;
/// A primary that says nothing for so long is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a follower stopped.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// Give up: the primary does not let it follow.
    #[error("the primary refuses this replica: {0}")]
    Refused(#[from] Refusal),
    /// Retry: the connection ended.
    #[error("the connection to the primary ended: {0}")]
    Lost(String),
    /// Stop: its own volume failed.
    #[error("the replica's volume failed: {0}")]
    Chain(#[from] ChainError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Stopped {
        Stopped::Chain(error.into())
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Stopped {
        Stopped::Lost(error.to_string())
    }
}

impl From<CallError> for Stopped {
    fn from(error: CallError) -> Stopped {
        Stopped::Lost(error.to_string())
    }
}

fn lost(why: impl Into<String>) -> Stopped {
    Stopped::Lost(why.into())
}

/// Asks the primary at the other end of `stream` what its volume is.
///
/// # Errors
/// [`Stopped::Lost`].
pub async fn describe(env: &Env, mut stream: impl Stream) -> Result<Described, Stopped> {
    HELLO.exchange(&mut stream).await?;
    let (reader, writer) = tokio::io::split(stream);
    let channel = Channel::new(env, Side::Connecting, Limits::default(), writer);
    let asking = channel.call_within(env, PATIENCE, &FromFollower::Describe, &[]);
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
    /// Whether there is a connection on which it follows.
    pub connected: bool,
    /// The newest version that it has.
    pub version: u64,
    /// The newest version that survives a crash.
    pub durable: u64,
    /// The primary's newest version, as far as it is known.
    pub primary: u64,
    /// Bytes of changes that were received and are not applied.
    pub waiting_bytes: u64,
    /// Milliseconds since the primary was last heard.
    pub silent_ms: Option<u64>,
    /// The version from which on it has a state of the primary, while it has none.
    pub copying_until: Option<u64>,
}

#[derive(Debug, Default)]
struct Seen {
    connected: bool,
    primary: Version,
    heard: Option<Time>,
    waiting_bytes: u64,
}

/// A chain that follows another one.
#[derive(Debug)]
pub struct Follower {
    env: Env,
    chain: Arc<Chain>,
    seen: Mutex<Seen>,
}

impl Follower {
    /// A follower with this chain, which was opened to follow.
    pub fn new(env: &Env, chain: Arc<Chain>) -> Follower {
        Follower { env: env.clone(), chain, seen: Mutex::default() }
    }

    /// Its state; `None` for one that has no name because it has followed nothing yet.
    pub fn position(&self) -> Option<Position> {
        self.chain.position(self.chain.now())
    }

    /// What it knows of itself and of the primary.
    pub fn status(&self) -> FollowerStatus {
        let chain = self.chain.status();
        let whole_from = self.chain.whole_from();
        let seen = self.seen.lock();
        let silent = seen.heard.map(|heard| self.env.now().since(heard).as_millis() as u64);
        FollowerStatus {
            connected: seen.connected,
            version: chain.version,
            durable: chain.durable_version,
            primary: seen.primary.0.max(chain.version),
            waiting_bytes: seen.waiting_bytes,
            silent_ms: silent,
            copying_until: (chain.version < whole_from.0).then_some(whole_from.0),
        }
    }

    /// Follows the primary at the other end of `stream` until the connection ends.
    ///
    /// # Errors
    /// [`Stopped`], always.
    pub async fn follow(&self, stream: impl Stream) -> Stopped {
        let stopped = self.run(stream).await;
        let mut seen = self.seen.lock();
        (seen.connected, seen.waiting_bytes) = (false, 0);
        stopped.err().unwrap_or_else(|| lost("it closed the connection"))
    }

    async fn run(&self, mut stream: impl Stream) -> Result<(), Stopped> {
        HELLO.exchange(&mut stream).await?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: LONGEST, ..Limits::default() };
        let channel = Channel::new(&self.env, Side::Connecting, limits, writer);
        let (queue, messages) = mpsc::channel(QUEUE);
        let input = Input { follower: self, queue };
        let following = async {
            let call = FromFollower::Follow(self.state());
            let (answer, _) = channel.call_within(&self.env, PATIENCE, &call, &[]).await?;
            match answer {
                Answer::Refused(refusal) => return Err(refusal.into()),
                Answer::Is(_) => return Err(lost("its answer does not fit the question")),
                Answer::Follows(history) => self.chain.adopt(&history).await?,
            }
            self.seen.lock().connected = true;
            let (applied, news) = watch::channel(self.chain.now());
            let mut applier = Applier::new(self, applied);
            tokio::select! {
                biased;
                stopped = applier.run(messages) => stopped,
                stopped = self.make_durable(&channel, news) => stopped,
            }
        };
        tokio::select! {
            biased;
            stopped = following => stopped,
            ended = channel.run(reader, &input) => Ok(ended?),
        }
    }

    fn state(&self) -> State {
        let label = self.chain.label();
        let version = self.chain.now();
        State {
            volume: label.volume,
            blocks: label.blocks,
            is_whole: version >= label.whole_from,
            history: label.history,
            version,
        }
    }

    /// Makes what was applied durable, and says so.
    async fn make_durable(
        &self,
        channel: &Channel,
        mut applied: watch::Receiver<Version>,
    ) -> Result<(), Stopped> {
        loop {
            let version = *applied.borrow_and_update();
            self.chain.sync(version).await?;
            if version >= self.chain.whole_from() && self.chain.snapshot(BEFORE_COPY).is_some() {
                self.chain.delete_snapshot(BEFORE_COPY).await?;
            }
            channel.tell(&FromFollower::Durable(version), &[])?;
            channel.flush();
            if applied.changed().await.is_err() {
                return Err(lost("the follower was stopped"));
            }
        }
    }
}

/// Queues what the primary says; that it is not read faster than it is applied is the backpressure.
struct Input<'a> {
    follower: &'a Follower,
    queue: mpsc::Sender<(FromPrimary, Bytes)>,
}

impl Handler for Input<'_> {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let message = call.decode().map_err(io::Error::other)?;
        {
            let mut seen = self.follower.seen.lock();
            seen.heard = Some(self.follower.env.now());
            seen.waiting_bytes += call.payload.len() as u64;
            if let FromPrimary::Beat { newest, .. } = message {
                seen.primary = seen.primary.max(newest);
            }
        }
        let stopped = |_| io::Error::other("the follower was stopped");
        self.queue.send((message, call.payload)).await.map_err(stopped)
    }
}

/// Applies changes in the order of versions, once they are durable at the primary.
struct Applier<'a> {
    follower: &'a Follower,
    chain: &'a Chain,
    /// Changes that are not applied yet.
    waiting: VecDeque<Record>,
    /// The last version received.
    received: Version,
    /// The newest version that is durable at the primary.
    durable: Version,
    applied: watch::Sender<Version>,
}

impl<'a> Applier<'a> {
    fn new(follower: &'a Follower, applied: watch::Sender<Version>) -> Applier<'a> {
        let chain = &*follower.chain;
        let (waiting, received, durable) = (VecDeque::new(), chain.now(), Version(0));
        Applier { follower, chain, waiting, received, durable, applied }
    }

    async fn run(
        &mut self,
        mut messages: mpsc::Receiver<(FromPrimary, Bytes)>,
    ) -> Result<(), Stopped> {
        loop {
            let message = self.follower.env.timeout(PATIENCE, messages.recv()).await;
            let Some((message, payload)) = message.ok_or_else(|| lost("it is silent"))? else {
                return Err(lost("it closed the connection"));
            };
            let bytes = payload.len() as u64;
            match message {
                FromPrimary::Changes { after, checksum } => self.take(after, checksum, payload)?,
                FromPrimary::Durable(version) => self.durable = self.durable.max(version),
                FromPrimary::Copy { until, .. } => self.begin_copy(until).await?,
                // The answer says that the follower lives.
                FromPrimary::Beat { .. } => drop(self.applied.send_replace(self.chain.now())),
            }
            self.note_received();
            self.apply().await?;
            let mut seen = self.follower.seen.lock();
            seen.waiting_bytes = seen.waiting_bytes.saturating_sub(bytes);
        }
    }

    fn note_received(&self) {
        let mut seen = self.follower.seen.lock();
        seen.primary = seen.primary.max(self.received);
    }

    /// Takes records that come after version `after`.
    fn take(&mut self, after: Version, checksum: u32, mut payload: Bytes) -> Result<(), Stopped> {
        if crc32c(&payload) != checksum {
            return Err(lost("changes were damaged on the way"));
        }
        if after > self.received {
            let received = self.received;
            return Err(lost(format!(
                "changes are missing between versions {received} and {after}"
            )));
        }
        let mut before = after;
        while !payload.is_empty() {
            let record = record::decode(before, &mut payload);
            let record = record.map_err(|error| lost(error.to_string()))?;
            before = record.version;
            if record.version > self.received {
                self.received = record.version;
                self.waiting.push_back(record);
            }
        }
        Ok(())
    }

    /// Notes that the volume has no state of the primary until version `until`. The state that it has stays readable
    /// as a snapshot.
    async fn begin_copy(&mut self, until: Version) -> Result<(), Stopped> {
        // It is durable at the primary, like everything that came before.
        self.durable = self.durable.max(until);
        self.apply().await?;
        let version = self.chain.now();
        let is_whole = version >= self.chain.whole_from() && version > Version(0);
        if is_whole && self.chain.snapshot(BEFORE_COPY).is_none() {
            self.chain.create_snapshot(BEFORE_COPY).await?;
        }
        self.chain.set_whole_from(until).await?;
        Ok(())
    }

    async fn apply(&mut self) -> Result<(), Stopped> {
        let durable = self.durable;
        while self.waiting.front().is_some_and(|record| record.version <= durable) {
            let Some(Record { version, changes }) = self.waiting.pop_front() else { break };
            match changes {
                Changes::Discard { lba, count } => {
                    self.chain.discard_at(version, lba, count).await?;
                }
                Changes::Blocks(blocks) => {
                    let mut writes = Vec::with_capacity(blocks.len());
                    for (lba, part) in blocks {
                        writes.push(self.write(lba, part).await?);
                    }
                    let writes = WriteList::new(writes)?;
                    let applied = self.chain.submit_at(version, writes, Retention::Newest).await?;
                    applied.settle().await;
                }
            }
            self.applied.send_replace(version);
        }
        Ok(())
    }

    /// The write of a changed block, merged with the content that it has.
    async fn write(&self, lba: Lba, part: Part) -> Result<Write, Stopped> {
        let whole = |content| Write { content, ..Write::block(lba, Bytes::new()) };
        let parts = match part {
            Part::Discard => return Ok(whole(None)),
            Part::Whole(content) => return Ok(whole(Some(content))),
            Part::Bytes(parts) => parts,
        };
        let old = self.chain.read(lba, 1, self.chain.now()).await?.pop().flatten();
        let mut content = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
        let mut changed = ByteRanges::none();
        for (start, bytes) in parts {
            let range = start..start + bytes.len();
            content[range.clone()].copy_from_slice(&bytes);
            changed.add(range);
        }
        Ok(Write { changed, ..whole(Some(Bytes::from(content))) })
    }
}
