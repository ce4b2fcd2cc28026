//! The log of calls that a new server may have to make again: changes that were answered, and may not survive a crash.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::Ino;
use thalweg_fs::session_table::Committed;

use super::user::User;
use crate::protocol::{BatchPositions, Reclaim, Request};

/// Bytes of changes that are kept before the server has to make them durable.
const MAX_KEPT: usize = 32 << 20;
/// Bytes that a kept change takes beside its payload, about.
const KEPT_CALL: usize = 256;

/// A change that was answered.
#[derive(Clone, Debug)]
pub(super) struct UncommittedCall {
    pub(super) number: u64,
    pub(super) slot: u16,
    pub(super) user: User,
    pub(super) request: Arc<Request>,
    pub(super) payload: Vec<Bytes>,
    pub(super) committed: Committed,
    /// The inodes that it names: the caller may have forgotten them.
    pub(super) inodes: Vec<Reclaim>,
    pub(super) changed: Vec<Ino>,
}

impl UncommittedCall {
    fn bytes(&self) -> usize {
        KEPT_CALL + self.payload.iter().map(Bytes::len).sum::<usize>()
    }
}

/// The positions of a batch in the journal.
fn positions_of(call: &UncommittedCall) -> Option<BatchPositions> {
    match &*call.request {
        Request::Batch { positions, .. } => *positions,
        _ => None,
    }
}

#[derive(Debug, Default)]
struct Kept {
    /// In the order of their versions.
    calls: BTreeMap<u64, UncommittedCall>,
    /// The newest one of each inode that they change.
    newest: HashMap<Ino, u64>,
    bytes: usize,
    /// The versions are those of a server that is gone, until all were made again.
    is_outdated: bool,
    /// What the present server has said meanwhile.
    durable: u64,
    /// Servers that are gone.
    gone: u64,
}

/// A version of one server. Another one counts its own from the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerVersion {
    /// Servers before it.
    before: u64,
    version: u64,
}

impl Kept {
    fn keep(&mut self, call: UncommittedCall) {
        // The server has said so before this answer was looked at.
        if call.committed.version <= self.durable && !self.is_outdated {
            return;
        }
        self.bytes += call.bytes();
        for ino in &call.changed {
            let newest = self.newest.entry(*ino).or_default();
            *newest = call.committed.version.max(*newest);
        }
        if let Some(old) = self.calls.insert(call.committed.version, call) {
            self.uncount(&old);
        }
    }

    fn uncount(&mut self, call: &UncommittedCall) {
        assert!(self.bytes >= call.bytes(), "a call is counted with other bytes than it has");
        self.bytes -= call.bytes();
    }

    fn set_durable(&mut self, version: u64) {
        self.durable = self.durable.max(version);
        if self.is_outdated {
            return;
        }
        let later = self.calls.split_off(&(version + 1));
        for call in std::mem::replace(&mut self.calls, later).into_values() {
            self.uncount(&call);
            for ino in &call.changed {
                if self.newest.get(ino).is_some_and(|newest| *newest <= version) {
                    self.newest.remove(ino);
                }
            }
        }
    }
}

/// Changes that may not survive a crash of the server. The lock is taken under no other one.
#[derive(Debug, Default)]
pub(super) struct ReplayLog(Mutex<Kept>);

impl ReplayLog {
    /// Keeps a change until the server has made it durable.
    pub(super) fn keep(&self, call: UncommittedCall) {
        self.0.lock().keep(call);
    }

    /// Changes up to this version survive a crash.
    pub(super) fn set_durable(&self, version: u64) {
        self.0.lock().set_durable(version);
    }

    /// The server has made durable what it had when this was its last version.
    pub(super) fn are_durable(&self, ServerVersion { before, version }: ServerVersion) {
        let mut kept = self.0.lock();
        if kept.gone == before {
            kept.set_durable(version);
        }
    }

    /// Whether changes of an inode are kept.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.0.lock().newest.contains_key(&ino)
    }

    /// There is another server: the changes that it may not have, in their order.
    pub(super) fn begin_replay(&self) -> Vec<UncommittedCall> {
        let mut kept = self.0.lock();
        (kept.is_outdated, kept.durable) = (true, 0);
        kept.gone += 1;
        kept.calls.values().cloned().collect()
    }

    /// The server has all of them; these were made again.
    pub(super) fn end_replay(&self, calls: Vec<UncommittedCall>) {
        let mut kept = self.0.lock();
        let Kept { durable, gone, .. } = *kept;
        *kept = Kept { gone, ..Kept::default() };
        calls.into_iter().for_each(|call| kept.keep(call));
        kept.set_durable(durable);
    }

    /// Drops all; how many, and the inodes that they changed.
    pub(super) fn clear(&self) -> (usize, Vec<Ino>) {
        let mut kept = self.0.lock();
        // Another session may be one at another server.
        let next = Kept { gone: kept.gone + 1, ..Kept::default() };
        let Kept { calls, newest, .. } = std::mem::replace(&mut *kept, next);
        (calls.len(), newest.into_keys().collect())
    }

    /// Whether so many changes are kept that the server is to make them durable.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.lock().bytes > MAX_KEPT
    }

    /// Whether calls of programs are kept: changes that no journal has.
    pub(super) fn has_calls(&self) -> bool {
        let kept = self.0.lock();
        kept.calls.values().any(|call| positions_of(call).is_none())
    }

    /// The highest version of a change, unless the versions are those of a server that is gone.
    pub(super) fn last(&self) -> Option<ServerVersion> {
        let kept = self.0.lock();
        let last = kept.calls.last_key_value().filter(|_| !kept.is_outdated);
        last.map(|(version, _)| ServerVersion { before: kept.gone, version: *version })
    }

    /// The first position of the batches that are kept.
    pub(super) fn first_position(&self) -> Option<u64> {
        let kept = self.0.lock();
        kept.calls.values().find_map(positions_of).map(|it| it.after.position + 1)
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().calls.len()
    }
}
