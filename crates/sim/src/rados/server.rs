//! An object server: its disks, its journal, and what it writes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_store::device::{AlignedBuf, Purpose};
use tokio::sync::Notify;

use super::disk::Disk;
use super::port::Port;
use super::{RadosSpec, Shared};

/// The unit of the filesystem and of the journal, in bytes.
const PAGE: u64 = 4096;
/// The room that an object gets on the filesystem's disk; longer objects share rooms.
const ROOM: u64 = 4 << 20;
/// Maximum number of bytes of one request to the filesystem's disk.
const RUN: u64 = 1 << 20;

/// An object server.
pub(super) struct Server {
    pub(super) journal: Disk,
    pub(super) filesystem: Disk,
    pub(super) port: Port,
    state: Mutex<ServerState>,
    /// Wakes the task that writes back.
    dirtied: Notify,
    /// Wakes changes that wait for space in the journal.
    released: Notify,
}

struct ServerState {
    alive: bool,
    /// The cluster knows that it is dead.
    out: bool,
    deaths: u64,
    /// The newest map that it knows.
    map: u64,
    journal_at: u64,
    /// Bytes of the journal that are not written back.
    journal_used: u64,
    /// Those of them that are whole records.
    journaled: u64,
    rooms: BTreeMap<String, u64>,
    /// Pages of the filesystem's disk that only the journal and memory have.
    dirty: BTreeSet<u64>,
}

/// The state of a server, as the cluster sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    Alive,
    /// It is dead, and the cluster waits for it still.
    Missed,
    /// The cluster does without it.
    Out,
}

impl Server {
    pub(super) fn new(env: &Env, number: usize, spec: &RadosSpec) -> Server {
        let journal = Disk::new(env, &format!("journal {number}"), &spec.journal);
        let filesystem = Disk::new(env, &format!("filesystem {number}"), &spec.filesystem);
        let state = ServerState {
            alive: true,
            out: false,
            deaths: 0,
            map: 1,
            journal_at: 0,
            journal_used: 0,
            journaled: 0,
            rooms: BTreeMap::new(),
            dirty: BTreeSet::new(),
        };
        Server {
            journal,
            filesystem,
            port: Port::default(),
            state: Mutex::new(state),
            dirtied: Notify::new(),
            released: Notify::new(),
        }
    }

    pub(super) fn liveness(&self) -> Liveness {
        let state = self.state.lock();
        match (state.alive, state.out) {
            (true, _) => Liveness::Alive,
            (false, false) => Liveness::Missed,
            (false, true) => Liveness::Out,
        }
    }

    /// Kills it; which death this is.
    pub(super) fn kill(&self) -> u64 {
        let mut state = self.state.lock();
        state.alive = false;
        state.deaths += 1;
        state.deaths
    }

    /// The cluster does without it, if this is still the same death.
    pub(super) fn mark_out(&self, death: u64) {
        let mut state = self.state.lock();
        if !state.alive && state.deaths == death {
            state.out = true;
        }
    }

    pub(super) fn revive(&self) {
        let mut state = self.state.lock();
        (state.alive, state.out) = (true, false);
    }

    /// Learns a map; the newest that it knows.
    pub(super) fn learn_map(&self, map: u64) -> u64 {
        let mut state = self.state.lock();
        state.map = state.map.max(map);
        state.map
    }

    /// Makes a change durable: one record of the journal. Its pages are dirty from then on.
    pub(super) async fn commit(&self, object: &str, ranges: &[(u64, u64)]) {
        let size = self.journal.device().geometry().size;
        let data: u64 = ranges.iter().map(|(_, len)| len.next_multiple_of(PAGE)).sum();
        let record = (PAGE + data).min(size / 2);
        let at = loop {
            // Listens first, so that no release is missed.
            let released = self.released.notified();
            {
                let mut state = self.state.lock();
                if state.journal_used + record <= size {
                    state.journal_used += record;
                    if state.journal_at + record > size {
                        state.journal_at = 0;
                    }
                    state.journal_at += record;
                    break state.journal_at - record;
                }
            }
            self.dirtied.notify_one();
            released.await;
        };
        let written =
            self.journal.device().write_durably(at, zeros(record), Purpose::Journal).await;
        written.expect("a simulated journal does not fail");
        let mut state = self.state.lock();
        state.journaled += record;
        let room = state.room(object, self.filesystem.device().geometry().size);
        for (offset, len) in ranges.iter().filter(|(_, len)| *len > 0) {
            let first = (room + offset % ROOM) / PAGE;
            let last = (room + offset % ROOM + len - 1) / PAGE;
            state.dirty.extend(first..=last);
        }
        if state.journal_used >= size / 2 {
            self.dirtied.notify_one();
        }
    }

    /// Reads from the filesystem the pages of a range that are not in memory.
    pub(super) async fn read(&self, object: &str, offset: u64, len: u64) {
        let size = self.filesystem.device().geometry().size;
        let (at, end) = {
            let mut state = self.state.lock();
            let at = state.room(object, size) + offset % ROOM;
            let (first, end) = (at / PAGE, (at + len).div_ceil(PAGE).min(size / PAGE));
            let in_memory = (first..end).all(|page| state.dirty.contains(&page));
            if in_memory || first >= end {
                return;
            }
            (first * PAGE, end * PAGE)
        };
        let read = self.filesystem.device().read(at, (end - at) as usize, Purpose::UserData).await;
        read.expect("a simulated filesystem does not fail");
    }

    /// Writes everything that is dirty into the filesystem, and releases the space in the journal.
    async fn sync(&self) {
        let (dirty, used) = {
            let mut state = self.state.lock();
            let dirty = std::mem::take(&mut state.dirty);
            (dirty, std::mem::take(&mut state.journaled))
        };
        for (first, end) in runs(&dirty, self.filesystem.device().geometry().size / PAGE) {
            let data = zeros((end - first) * PAGE);
            let written =
                self.filesystem.device().write(first * PAGE, data, Purpose::UserData).await;
            written.expect("a simulated filesystem does not fail");
        }
        let flushed = self.filesystem.device().flush(Purpose::UserData).await;
        flushed.expect("a simulated filesystem does not fail");
        self.state.lock().journal_used -= used;
        self.released.notify_waiters();
    }
}

impl ServerState {
    /// First byte of an object's room.
    fn room(&mut self, object: &str, size: u64) -> u64 {
        let next = self.rooms.len() as u64 * ROOM % size.saturating_sub(ROOM).max(ROOM);
        *self.rooms.entry(object.to_owned()).or_insert(next)
    }
}

/// Runs of adjacent pages, as (first, end).
fn runs(pages: &BTreeSet<u64>, limit: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in pages.iter().copied().filter(|page| *page < limit) {
        match runs.last_mut() {
            Some((first, end)) if *end == page && page - *first < RUN / PAGE => *end += 1,
            _ => runs.push((page, page + 1)),
        }
    }
    runs
}

fn zeros(len: u64) -> Vec<Bytes> {
    vec![AlignedBuf::zeroed(len as usize).freeze()]
}

/// Writes back from time to time, and when the journal is half full.
pub(super) async fn write_back(shared: Arc<Shared>, number: usize) {
    let server = &shared.servers[number];
    loop {
        let woken = server.dirtied.notified();
        let _ = shared.env.timeout(shared.spec.sync_interval, woken).await;
        let is_clean = server.state.lock().journaled == 0;
        if !is_clean {
            server.sync().await;
        }
    }
}
