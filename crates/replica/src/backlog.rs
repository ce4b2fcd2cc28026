//! The changes of late, encoded once for all followers.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use thalweg_env::{Env, Time};
use thalweg_store::block::{BLOCK_SIZE, Lba, StoreError, Version, WriteList};
use thalweg_store::chain::{Attached, Change, Tap};
use thalweg_store::checksum::crc32c;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::protocol::{Behind, CHUNK};
use super::record;
use super::roster::Roster;
use super::staleness::Marks;

/// Bytes that the bookkeeping of a change takes, about.
const OVERHEAD: usize = 128;

/// How much memory the backlog takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of changes that are not encoded yet. More drop them all.
    pub raw: usize,
    /// Bytes of encoded changes. More drop the oldest.
    pub encoded: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room { raw: 64 << 20, encoded: 64 << 20 }
    }
}

/// Encoded changes.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// The version before the first change.
    pub(super) after: Version,
    /// That of the last change.
    pub(super) last: Version,
    pub(super) payload: Bytes,
    pub(super) checksum: u32,
    /// The count of changed bytes at the last change; `None` within a copy.
    pub(super) total: Option<u64>,
}

/// What a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// The last encoded version.
    pub(super) end: Version,
    /// The newest version that survives a crash.
    pub(super) durable: Version,
    /// How often the volume changed outside of versions.
    pub(super) reshaped: u64,
}

/// What follows a version.
#[derive(Debug)]
pub(super) enum Next {
    Chunk(Chunk),
    /// Nothing yet.
    Nothing,
    /// Changes that the backlog has no more.
    Missing,
}

#[derive(Debug)]
enum Owned {
    Writes(WriteList),
    Discard { lba: Lba, count: u32 },
}

/// The newest version, and the count of bytes that changed up to it since the backlog began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) version: Version,
    pub(super) total: u64,
}

#[derive(Debug)]
struct RawChange {
    at: Newest,
    change: Owned,
}

#[derive(Debug)]
struct Raw {
    changes: Vec<RawChange>,
    bytes: usize,
    newest: Newest,
    /// Changes up to `newest` were dropped.
    lost: bool,
}

#[derive(Debug)]
struct Encoded {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// The chunks have the changes after `start`, up to `end`.
    start: Version,
    end: Version,
    /// The count of changed bytes at `start`, if it is known.
    start_total: Option<u64>,
}

/// See the [module](self). Locks: `encoded` before `raw`; `raw`, `news` and the roster's are taken under the chain's lock, one
/// after the other.
#[derive(Debug)]
pub(super) struct Backlog {
    env: Env,
    room: Room,
    roster: Arc<Roster>,
    /// When which version was the newest one.
    marks: Mutex<Marks>,
    raw: Mutex<Raw>,
    encoded: Mutex<Encoded>,
    /// Changes wait to be encoded.
    wake: Notify,
    news: Mutex<News>,
    /// There is news. Waiters wake in the order in which they came.
    told: Notify,
}

impl Backlog {
    pub(super) fn new(env: &Env, room: Room, roster: Arc<Roster>) -> Backlog {
        let zero = Version(0);
        let newest = Newest { version: zero, total: 0 };
        Backlog {
            env: env.clone(),
            room,
            roster,
            marks: Mutex::default(),
            raw: Mutex::new(Raw { changes: Vec::new(), bytes: 0, newest, lost: true }),
            encoded: Mutex::new(Encoded {
                chunks: VecDeque::new(),
                bytes: 0,
                start: zero,
                end: zero,
                start_total: None,
            }),
            wake: Notify::new(),
            news: Mutex::new(News { end: zero, durable: zero, reshaped: 0 }),
            told: Notify::new(),
        }
    }

    /// Begins with the version after which the tap shows changes.
    pub(super) fn begin(&self, at: Attached) {
        {
            let mut raw = self.raw.lock();
            // Changes may have come already.
            raw.newest.version = raw.newest.version.max(at.version);
        }
        self.tell(|news| news.durable = news.durable.max(at.durable));
        self.wake.notify_one();
    }

    /// The newest version.
    pub(super) fn newest(&self) -> Newest {
        self.raw.lock().newest
    }

    /// How far a state with `version` is behind the newest one.
    pub(super) fn behind(&self, version: Version) -> Behind {
        let newest = self.newest();
        let bytes = match version >= newest.version {
            true => Some(0),
            false => self.total_before(version).map(|total| newest.total.saturating_sub(total)),
        };
        let ms = self.current_as_of(version).map(|as_of| self.elapsed_ms(as_of));
        Behind { versions: newest.version.0.saturating_sub(version.0), bytes, ms }
    }

    /// The count of changed bytes at `version`, or at one shortly before it.
    fn total_before(&self, version: Version) -> Option<u64> {
        let encoded = self.encoded.lock();
        if version < encoded.start {
            return None;
        }
        let after = encoded.chunks.partition_point(|chunk| chunk.last <= version);
        match after.checked_sub(1) {
            Some(place) => encoded.chunks.get(place)?.total,
            None => encoded.start_total,
        }
    }

    /// A time at which a state with `version` was the newest one, if it is known.
    pub(super) fn current_as_of(&self, version: Version) -> Option<Time> {
        let now = self.env.now();
        match version >= self.newest().version {
            true => Some(now),
            false => self.marks.lock().current_as_of(version),
        }
    }

    /// Milliseconds since a time.
    pub(super) fn elapsed_ms(&self, time: Time) -> u64 {
        self.env.now().since(time).as_millis() as u64
    }

    /// What a sender waits for.
    pub(super) fn news(&self) -> News {
        *self.news.lock()
    }

    /// Ends at the next news after this call.
    pub(super) fn told(&self) -> Notified<'_> {
        self.told.notified()
    }

    fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock());
        self.told.notify_waiters();
    }

    /// Encodes changes as they come.
    pub(super) async fn run(&self) {
        loop {
            self.wake.notified().await;
            self.encode();
        }
    }

    fn encode(&self) {
        let mut encoded = self.encoded.lock();
        // Before the newest version is looked at.
        let now = self.env.now();
        let (changes, newest, lost) = {
            let mut raw = self.raw.lock();
            raw.bytes = 0;
            let lost = std::mem::take(&mut raw.lost);
            (std::mem::take(&mut raw.changes), raw.newest, lost)
        };
        if lost {
            // What was dropped comes before what was kept.
            let before = |first: &RawChange| Version(first.at.version.0 - 1);
            let start = changes.first().map_or(newest.version, before);
            let start_total = changes.is_empty().then_some(newest.total);
            let chunks = VecDeque::new();
            *encoded = Encoded { chunks, bytes: 0, start, end: start, start_total };
        }
        let mut bytes = BytesMut::new();
        let mut after = encoded.end;
        let mut total = newest.total;
        for RawChange { at, change } in &changes {
            let change = match change {
                Owned::Writes(writes) => Change::Writes(writes),
                Owned::Discard { lba, count } => Change::Discard { lba: *lba, count: *count },
            };
            record::encode(encoded.end, at.version, change, &mut bytes);
            (encoded.end, total) = (at.version, at.total);
            if bytes.len() >= CHUNK {
                encoded.push(after, bytes.split().freeze(), total);
                after = encoded.end;
            }
        }
        if !bytes.is_empty() {
            encoded.push(after, bytes.freeze(), total);
        }
        encoded.shrink_to(self.room.encoded);
        let end = encoded.end;
        drop(encoded);
        self.marks.lock().note(now, newest.version);
        self.tell(|news| news.end = end);
    }

    /// What comes after version `after`, which has been sent.
    pub(super) fn next(&self, after: Version) -> Next {
        let encoded = self.encoded.lock();
        if after < encoded.start {
            return Next::Missing;
        }
        let place = encoded.chunks.partition_point(|chunk| chunk.last <= after);
        match encoded.chunks.get(place) {
            Some(chunk) => Next::Chunk(chunk.clone()),
            None => Next::Nothing,
        }
    }
}

impl Encoded {
    fn push(&mut self, after: Version, payload: Bytes, total: u64) {
        self.bytes += payload.len() + OVERHEAD;
        let checksum = crc32c(&payload);
        let total = Some(total);
        self.chunks.push_back(Chunk { after, last: self.end, payload, checksum, total });
    }

    fn shrink_to(&mut self, most: usize) {
        while self.bytes > most {
            let Some(oldest) = self.chunks.pop_front() else { return };
            self.bytes -= oldest.payload.len() + OVERHEAD;
            (self.start, self.start_total) = (oldest.last, oldest.total);
        }
    }
}

impl Raw {
    fn drop_all(&mut self) {
        self.changes.clear();
        self.bytes = 0;
        self.lost = true;
    }
}

/// Bytes that change. Those of a discard have no content.
fn changed_bytes(writes: &WriteList) -> u64 {
    let written = writes.iter().filter(|write| write.content.is_some());
    written.map(|write| write.changed.bytes() as u64).sum()
}

impl Tap for Backlog {
    fn changed(&self, version: Version, change: Change<'_>) {
        let (change, bytes, changed) = match change {
            Change::Writes(writes) => {
                let bytes = writes.len() * (BLOCK_SIZE + OVERHEAD);
                (Owned::Writes(writes.clone()), bytes, changed_bytes(writes))
            }
            Change::Discard { lba, count } => (Owned::Discard { lba, count }, OVERHEAD, 0),
        };
        {
            let mut raw = self.raw.lock();
            let at = Newest { version, total: raw.newest.total + changed };
            raw.newest = at;
            raw.bytes += bytes;
            raw.changes.push(RawChange { at, change });
            if raw.bytes > self.room.raw {
                raw.drop_all();
            }
        }
        self.wake.notify_one();
    }

    fn durable(&self, version: Version) {
        self.tell(|news| news.durable = version);
    }

    fn reshaped(&self, version: Version) {
        {
            let mut raw = self.raw.lock();
            raw.newest.version = version;
            raw.drop_all();
        }
        self.roster.reshape(version);
        self.wake.notify_one();
        self.tell(|news| news.reshaped += 1);
    }

    fn fenced(&self) {
        self.roster.end();
    }

    fn acknowledged(&self, version: Version) -> Option<BoxFuture<'static, Result<(), StoreError>>> {
        self.roster.acknowledged(version)
    }

    fn replicated(&self, version: Version) -> BoxFuture<'static, bool> {
        let roster = self.roster.clone();
        async move { roster.replicated(version).await }.boxed()
    }
}
