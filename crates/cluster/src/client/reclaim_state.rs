//! What a client would reclaim from the next server: open files, locks, and changes that may not survive a crash.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::Ino;
use thalweg_fs::locks::LockTable;
use thalweg_fs::session_table::Committed;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::opening::Opens;
use super::users::User;
use crate::protocol::{Reclaim, Request, SLOTS};

/// Bytes of changes that are kept before the server has to make them durable.
pub(super) const MAX_KEPT: usize = 32 << 20;
/// The slot of batches. Changes that use all other slots may wait for a batch.
pub(super) const BATCH_SLOT: u16 = SLOTS - 1;
/// Bytes that a kept change takes beside its payload, about.
const KEPT_CALL: usize = 256;

/// A change that was answered.
#[derive(Clone, Debug)]
pub(super) struct UncommittedCall {
    pub(super) number: u64,
    pub(super) slot: u16,
    /// The user that it was made for.
    pub(super) user: User,
    pub(super) request: Arc<Request>,
    pub(super) payload: Vec<Bytes>,
    pub(super) committed: Committed,
    /// The inodes that it names: the caller may have forgotten them.
    pub(super) inodes: Vec<Reclaim>,
    /// The inodes that it changes.
    pub(super) changed: Vec<Ino>,
}

impl UncommittedCall {
    fn bytes(&self) -> usize {
        KEPT_CALL + self.payload.iter().map(Bytes::len).sum::<usize>()
    }
}

/// Changes that may not survive a crash of the server, in the order of their versions.
#[derive(Debug, Default)]
pub(super) struct ReplayLog {
    calls: BTreeMap<u64, UncommittedCall>,
    /// The newest one of each inode that they change.
    newest: HashMap<Ino, u64>,
    bytes: usize,
    /// The versions are those of a server that is gone, until all were made again.
    is_outdated: bool,
    /// What the present server has said meanwhile.
    durable: u64,
}

impl ReplayLog {
    pub(super) fn keep(&mut self, call: UncommittedCall) {
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
            assert!(self.bytes >= old.bytes(), "a call is counted with other bytes than it has");
            self.bytes -= old.bytes();
        }
    }

    /// Changes up to this version survive a crash.
    pub(super) fn durable(&mut self, version: u64) {
        self.durable = self.durable.max(version);
        if self.is_outdated {
            return;
        }
        let later = self.calls.split_off(&(version + 1));
        for call in std::mem::replace(&mut self.calls, later).into_values() {
            assert!(self.bytes >= call.bytes(), "a call is counted with other bytes than it has");
            self.bytes -= call.bytes();
            for ino in &call.changed {
                if self.newest.get(ino).is_some_and(|newest| *newest <= version) {
                    self.newest.remove(ino);
                }
            }
        }
    }

    /// Whether changes of an inode are kept.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.newest.contains_key(&ino)
    }

    /// There is another server: the changes that it may not have, in their order.
    pub(super) fn outdate(&mut self) -> Vec<UncommittedCall> {
        (self.is_outdated, self.durable) = (true, 0);
        self.calls.values().cloned().collect()
    }

    /// The server has all of them; these were made again.
    pub(super) fn renew(&mut self, calls: Vec<UncommittedCall>) {
        let durable = self.durable;
        self.clear();
        calls.into_iter().for_each(|call| self.keep(call));
        self.durable(durable);
    }

    /// Drops all; how many, and the inodes that they changed.
    pub(super) fn clear(&mut self) -> (usize, Vec<Ino>) {
        let ReplayLog { calls, newest, .. } = std::mem::take(self);
        (calls.len(), newest.into_keys().collect())
    }

    /// The highest version of a change that is kept.
    pub(super) fn last(&self) -> Option<u64> {
        self.calls.last_key_value().map(|(version, _)| *version).filter(|_| !self.is_outdated)
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes > MAX_KEPT
    }
}

/// What a client would reclaim.
#[derive(Debug, Default)]
pub(super) struct ReclaimState {
    pub(super) opens: Mutex<Opens>,
    pub(super) locks: LockTable,
    pub(super) replay_log: Mutex<ReplayLog>,
    pub(super) slots: Slots,
    /// Changes that were acknowledged, and lost.
    pub(super) lost: AtomicU64,
}

impl ReclaimState {
    /// The session has ended; how many changes may be lost with it, and of which inodes.
    pub(super) fn clear(&self) -> (usize, Vec<Ino>) {
        self.opens.lock().clear();
        self.locks.clear();
        let (changes, inodes) = self.replay_log.lock().clear();
        self.lose(changes);
        (changes, inodes)
    }

    /// So many changes are, or may be, lost.
    pub(super) fn lose(&self, changes: usize) {
        self.lost.fetch_add(changes as u64, Ordering::Relaxed);
    }
}

/// The slots of the session that no call uses.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    free: Arc<Mutex<Vec<u16>>>,
    permits: Arc<Semaphore>,
}

impl Default for Slots {
    fn default() -> Slots {
        // The lowest first: servers keep a record of each one that was used.
        let free = Arc::new(Mutex::new((0..BATCH_SLOT).rev().collect()));
        Slots { free, permits: Arc::new(Semaphore::new(usize::from(BATCH_SLOT))) }
    }
}

/// A slot that a call uses, until its last clone is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: u16,
    /// Where it goes back to; not that of batches, of which one is under way at a time.
    from: Option<(Arc<Mutex<Vec<u16>>>, OwnedSemaphorePermit)>,
}

impl Slot {
    /// That of a batch.
    pub(super) fn of_batch() -> Arc<Slot> {
        Arc::new(Slot { number: BATCH_SLOT, from: None })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((free, _)) = &self.from {
            free.lock().push(self.number);
        }
    }
}

impl Slots {
    /// A slot, as soon as one is free.
    pub(super) async fn take(&self) -> Option<Arc<Slot>> {
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        let number = self.free.lock().pop()?;
        Some(Arc::new(Slot { number, from: Some((self.free.clone(), permit)) }))
    }
}
