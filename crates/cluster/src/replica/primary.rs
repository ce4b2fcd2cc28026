//! The side of a volume that others follow.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task, Time};
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_store::block::{BlockStore, Hold, Lba, StoreError, Version, Write, WriteList};
use thalweg_store::chain::{Chain, ChainError, Change, Changed, Relation};
use thalweg_store::checksum::crc32c;
use tokio::sync::{Notify, mpsc};

use super::backlog::{Backlog, Chunk, Next, Room};
use super::protocol::{Answer, Described, FromFollower, FromPrimary, HELLO, Refusal, State};
use super::record;

/// Blocks of a copy in one record, unless one version has more.
const COPY_BLOCKS: usize = 64;
/// Reads of a copy at a time.
const COPY_READS: usize = 16;
/// Unsent bytes above which no more are queued for a follower.
const WINDOW: usize = 1 << 20;

/// How a primary treats its followers.
#[derive(Clone, Copy, Debug)]
pub struct PrimaryOptions {
    /// The memory of the backlog.
    pub room: Room,
    /// A follower hears at least this often that the primary lives, and answers.
    pub beat: Duration,
}

impl Default for PrimaryOptions {
    fn default() -> PrimaryOptions {
        PrimaryOptions { room: Room::default(), beat: Duration::from_secs(1) }
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
    /// Blocks of a copy that were sent, and all of them, while one is under way.
    pub copy: Option<(u64, u64)>,
    /// Bytes of records that were sent to it.
    pub bytes: u64,
}

#[derive(Debug)]
struct Shared {
    env: Env,
    chain: Arc<Chain>,
    options: PrimaryOptions,
    backlog: Arc<Backlog>,
    followers: Mutex<BTreeMap<u64, ReplicaStatus>>,
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
        let backlog = Arc::new(Backlog::new(options.room));
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
        self.shared.followers.lock().values().cloned().collect()
    }

    /// Waits until `count` followers have made `version` durable.
    pub async fn acknowledged(&self, version: Version, count: usize) {
        loop {
            let news = self.shared.acknowledged.notified();
            let followers = self.followers();
            if followers.iter().filter(|status| status.durable >= version.0).count() >= count {
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
        followers.insert(number, ReplicaStatus { name, sent: 0, durable: 0, copy: None, bytes: 0 });
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
    fn note(&self, number: u64, change: impl FnOnce(&mut ReplicaStatus)) {
        if let Some(status) = self.followers.lock().get_mut(&number) {
            change(status);
        }
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
    /// Returns when the follower has said nothing for ten beats.
    async fn silence(&self) {
        let most = 10 * self.shared.options.beat;
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
            FromFollower::Durable(version) => {
                self.shared.note(self.number, |status| status.durable = version.0);
                self.shared.acknowledged.notify_waiters();
            }
        }
        Ok(())
    }
}

/// Sends changes to a follower.
struct Sender<'a> {
    shared: &'a Shared,
    channel: &'a Channel,
    number: u64,
}

impl Sender<'_> {
    /// Sends what comes after the follower's state, until the connection or the primary ends.
    async fn run(&self, from: State) -> io::Result<()> {
        let Shared { env, backlog, options, .. } = self.shared;
        let shape = backlog.news().reshaped;
        let (mut sent, mut told) = (from.version, Version(0));
        let mut partial = !from.is_whole;
        self.shared.note(self.number, |status| (status.sent, status.durable) = (sent.0, sent.0));
        loop {
            let told_more = backlog.told();
            let next = if partial { Next::Missing } else { backlog.next(sent) };
            let now = backlog.news();
            if now.reshaped != shape {
                // The follower connects again, and hears what has become of its state.
                return Ok(());
            }
            let idle = matches!(next, Next::Nothing);
            match next {
                Next::Chunk(chunk) => sent = self.chunk(chunk)?,
                Next::Missing => {
                    sent = self.copy(sent).await?;
                    partial = false;
                }
                Next::Nothing => {}
            }
            if now.durable > told {
                told = now.durable;
                self.tell(&FromPrimary::Durable(told), &[])?;
            }
            self.channel.flush_soon();
            self.channel.drained(WINDOW).await;
            if idle && env.timeout(options.beat, told_more).await.is_none() {
                self.beat()?;
            }
        }
    }

    fn tell(&self, message: &FromPrimary, payload: &[Bytes]) -> io::Result<()> {
        self.channel.tell(message, payload).map_err(io::Error::other)
    }

    fn beat(&self) -> io::Result<()> {
        let newest = self.shared.chain.now();
        let clock = 1000 * self.shared.env.wall_clock();
        self.tell(&FromPrimary::Beat { newest, clock }, &[])?;
        self.channel.flush_soon();
        Ok(())
    }

    fn chunk(&self, chunk: Chunk) -> io::Result<Version> {
        let Chunk { after, last, payload, checksum } = chunk;
        self.shared.note(self.number, |status| {
            status.sent = last.0;
            status.bytes += payload.len() as u64;
        });
        self.tell(&FromPrimary::Changes { after, checksum }, &[payload])?;
        Ok(last)
    }

    /// Sends the newest content of what changed since the follower's version; returns the version that it has then.
    async fn copy(&self, from: Version) -> io::Result<Version> {
        let chain = &self.shared.chain;
        let hold = hold_newest(chain).await.map_err(io::Error::other)?;
        let until = hold.version();
        let mut changed = chain.changed_since(from, until).await.map_err(io::Error::other)?;
        if changed.is_empty() {
            // The follower is to reach this version all the same: with a block as it is.
            let stored = chain.allocation(Lba(0), 1, Some(until)).iter().any(|(_, stored)| *stored);
            changed.push(Changed { version: until, lba: 0, stored });
        }
        let blocks = changed.len() as u64;
        self.tell(&FromPrimary::Copy { until, blocks }, &[])?;
        let (mut sent, mut done) = (from, 0);
        for part in parts(&changed) {
            done += part.len() as u64;
            let last = match done == blocks {
                true => until,
                false => part[part.len() - 1].version,
            };
            let record = self.copied(part, until, (sent, last)).await.map_err(io::Error::other)?;
            sent = self.chunk(record)?;
            self.shared.note(self.number, |status| status.copy = Some((done, blocks)));
            self.channel.flush_soon();
            self.channel.drained(WINDOW).await;
        }
        self.shared.note(self.number, |status| status.copy = None);
        Ok(sent)
    }

    /// The record of a part of a copy.
    async fn copied(
        &self,
        part: &[Changed],
        at: Version,
        (after, last): (Version, Version),
    ) -> Result<Chunk, StoreError> {
        let chain = &self.shared.chain;
        let read = |changed: Changed| async move {
            let lba = Lba(u64::from(changed.lba));
            let content = match changed.stored {
                true => chain.read(lba, 1, at).await?.pop().flatten(),
                false => None,
            };
            Ok(Write { content, ..Write::block(lba, Bytes::new()) })
        };
        let reads = stream::iter(part.iter().copied().map(read)).buffered(COPY_READS);
        let writes: Vec<Result<Write, StoreError>> = reads.collect().await;
        let writes = WriteList::new(writes.into_iter().collect::<Result<_, _>>()?)?;
        let mut payload = BytesMut::new();
        record::encode(after, last, Change::Writes(&writes), &mut payload);
        let payload = payload.freeze();
        Ok(Chunk { after, last, checksum: crc32c(&payload), payload })
    }
}

/// Holds the newest version, and makes it durable.
async fn hold_newest(chain: &Chain) -> Result<Hold, StoreError> {
    let hold = loop {
        if let Some(hold) = chain.hold(chain.now()) {
            break hold;
        }
    };
    chain.sync(hold.version()).await?;
    Ok(hold)
}

/// Groups blocks so that those of one version stay together.
fn parts(changed: &[Changed]) -> impl Iterator<Item = &[Changed]> {
    let mut rest = changed;
    std::iter::from_fn(move || {
        let least = rest.len().min(COPY_BLOCKS);
        let last = rest.get(least.checked_sub(1)?)?.version;
        let end = rest.partition_point(|changed| changed.version <= last);
        let (part, others) = rest.split_at(end);
        rest = others;
        Some(part)
    })
}
