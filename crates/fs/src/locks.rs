//! Locks on files: BSD locks of whole files, and POSIX locks of byte ranges.
//!
//! A [`LockTable`] keeps those of one filesystem in memory. Both kinds are advisory, and do not conflict with
//! each other, as in the kernel. A blocked caller waits until the lock is free; it then competes with new
//! callers, as in the kernel, so that dropping the future of a wait never leaves a lock behind.

mod ranges;

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thalweg_env::HashMap;
use tokio::sync::Notify;

use crate::attributes::Ino;
use crate::error::FsError;
use crate::handle::Handle;
use ranges::Ranges;

/// Most locked ranges of an inode, over all owners and both kinds.
pub const MAX_LOCKS: usize = 8_192;

/// The kind of a lock. Locks of different kinds never conflict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// Of a whole file, owned by an open file (flock). A change between shared and exclusive first releases
    /// the old lock, and is lost when the new one cannot be had.
    Bsd,
    /// Of a range of bytes, owned by a process (fcntl). A change is atomic, and an owner's ranges merge and split.
    Posix,
}

/// The owner of locks: of a POSIX lock a process, of a BSD lock an open file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockOwner {
    /// The machine: 0 is the one with the filesystem.
    pub client: u64,
    /// A number of the caller's choice.
    pub number: u64,
}

impl LockOwner {
    /// An owner on the machine with the filesystem.
    pub fn local(number: u64) -> LockOwner {
        LockOwner { client: 0, number }
    }
}

/// How a lock excludes others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// Any number of owners may have it.
    Shared,
    /// No other owner may have it, nor a shared one.
    Exclusive,
}

/// Bytes of a file, both ends included: 0 to [`u64::MAX`] is all of it, however long it becomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockRange {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
}

impl LockRange {
    /// All of a file.
    pub const ALL: LockRange = LockRange { first: 0, last: u64::MAX };

    /// The bytes that both have.
    pub fn intersection(&self, other: &LockRange) -> Option<LockRange> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(LockRange { first, last })
    }

    /// The parts of it that none of these ranges has, which do not overlap.
    pub fn without(&self, others: impl IntoIterator<Item = LockRange>) -> Vec<LockRange> {
        let mut others: Vec<LockRange> =
            others.into_iter().filter_map(|it| self.intersection(&it)).collect();
        others.sort_unstable();
        let (mut parts, mut next) = (Vec::new(), Some(self.first));
        for LockRange { first, last } in others {
            let Some(from) = next else { break };
            if from < first {
                parts.push(LockRange { first: from, last: first - 1 });
            }
            next = last.checked_add(1).filter(|next| *next <= self.last);
        }
        parts.extend(next.map(|first| LockRange { first, last: self.last }));
        parts
    }

    fn overlaps(&self, other: &LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A lock that is wanted or held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Lock {
    /// The kind.
    pub kind: LockKind,
    /// The owner.
    pub owner: LockOwner,
    /// The open file through which it is taken: its release ends the lock.
    pub handle: Handle,
    /// The process, to be shown to others.
    pub pid: u32,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// The bytes; [`LockRange::ALL`] for a BSD lock.
    pub range: LockRange,
}

impl Lock {
    /// Whether a lock of another owner excludes this one.
    fn conflicts(&self, held: &Lock) -> bool {
        self.kind == held.kind
            && self.owner != held.owner
            && (self.mode == LockMode::Exclusive || held.mode == LockMode::Exclusive)
            && self.range.overlaps(&held.range)
    }
}

/// The locks of a filesystem.
#[derive(Debug, Default)]
pub struct LockTable(Mutex<Locks>);

#[derive(Debug, Default)]
struct Locks {
    held: HashMap<Ino, Ranges>,
    waits: HashMap<u64, Wait>,
    next_wait: u64,
}

/// A blocked caller.
#[derive(Debug)]
struct Wait {
    ino: Ino,
    lock: Lock,
    wake: Arc<Notify>,
}

impl Locks {
    /// The locks that keep `lock` from being taken.
    fn blockers(&self, ino: Ino, lock: &Lock) -> impl Iterator<Item = &Lock> {
        let held = self.held.get(&ino).into_iter().flat_map(Ranges::iter);
        held.filter(move |held| lock.conflicts(held))
    }

    /// Takes a lock that no other owner's excludes.
    ///
    /// # Errors
    /// [`FsError::Locked`], [`FsError::TooManyLocks`].
    fn take(&mut self, ino: Ino, lock: &Lock) -> Result<(), FsError> {
        if lock.kind == LockKind::Bsd {
            // As flock(2): a change of the mode is not atomic.
            let other = |held: &Lock| held.owner == lock.owner && held.mode != lock.mode;
            self.remove(ino, |held| held.kind == LockKind::Bsd && other(held));
        }
        if self.blockers(ino, lock).next().is_some() {
            return Err(FsError::Locked);
        }
        let ranges = self.held.entry(ino).or_default();
        if ranges.len() + 2 > MAX_LOCKS {
            return Err(FsError::TooManyLocks);
        }
        if ranges.set(lock) {
            self.wake(ino);
        }
        Ok(())
    }

    /// Removes whole locks of an inode; whether there were some.
    fn remove(&mut self, ino: Ino, remove: impl Fn(&Lock) -> bool) -> bool {
        let Some(ranges) = self.held.get_mut(&ino) else { return false };
        let removed = ranges.remove(remove);
        if ranges.is_empty() {
            self.held.remove(&ino);
        }
        if removed {
            self.wake(ino);
        }
        removed
    }

    /// Has the blocked callers of an inode try again.
    fn wake(&self, ino: Ino) {
        self.waits.values().filter(|wait| wait.ino == ino).for_each(|wait| wait.wake.notify_one());
    }

    /// Whether the owner of a POSIX lock would wait for itself: directly or over other owners that wait.
    fn is_deadlock(&self, ino: Ino, lock: &Lock) -> bool {
        if lock.kind != LockKind::Posix {
            return false;
        }
        let mut found: Vec<LockOwner> = Vec::new();
        let visit = |owner: LockOwner, found: &mut Vec<LockOwner>| {
            if !found.contains(&owner) {
                found.push(owner);
            }
        };
        self.blockers(ino, lock).for_each(|held| visit(held.owner, &mut found));
        let mut at = 0;
        while let Some(owner) = found.get(at).copied() {
            at += 1;
            if owner == lock.owner {
                return true;
            }
            let waits = self.waits.values();
            for wait in waits.filter(|it| it.lock.owner == owner && it.lock.kind == LockKind::Posix)
            {
                self.blockers(wait.ino, &wait.lock).for_each(|held| visit(held.owner, &mut found));
            }
        }
        false
    }
}

/// Removes a blocked caller when its wait ends, however it ends.
struct Waiting<'a> {
    table: &'a LockTable,
    number: u64,
    wake: Arc<Notify>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.table.0.lock().waits.remove(&self.number);
    }
}

impl LockTable {
    /// Takes a lock, or changes the owner's own; with `wait`, when it is free. To end the wait, drop the future.
    ///
    /// # Errors
    /// [`FsError::Locked`] without `wait`; [`FsError::Deadlock`] when POSIX owners would wait for each other;
    /// [`FsError::TooManyLocks`].
    pub async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<(), FsError> {
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            {
                let mut state = self.0.lock();
                match state.take(ino, lock) {
                    Err(FsError::Locked) if wait => {}
                    done => {
                        drop(state);
                        return done;
                    }
                }
                if state.is_deadlock(ino, lock) {
                    drop(state);
                    return Err(FsError::Deadlock);
                }
                if waiting.is_none() {
                    let (number, wake) = (state.next_wait, Arc::new(Notify::new()));
                    state.next_wait += 1;
                    state.waits.insert(number, Wait { ino, lock: *lock, wake: wake.clone() });
                    waiting = Some(Waiting { table: self, number, wake });
                }
            }
            if let Some(waiting) = &waiting {
                // A wake-up between the lock of the table and here is kept.
                waiting.wake.notified().await;
            }
        }
    }

    /// Takes a lock that is free.
    ///
    /// # Errors
    /// [`FsError::Locked`], [`FsError::TooManyLocks`].
    pub fn try_lock(&self, ino: Ino, lock: &Lock) -> Result<(), FsError> {
        self.0.lock().take(ino, lock)
    }

    /// All locks.
    pub fn held(&self) -> Vec<(Ino, Lock)> {
        let state = self.0.lock();
        let of = |(ino, ranges): (&Ino, &Ranges)| -> Vec<(Ino, Lock)> {
            ranges.iter().map(|lock| (*ino, *lock)).collect()
        };
        let mut held: Vec<_> = state.held.iter().flat_map(of).collect();
        held.sort_by_key(|(ino, lock)| (*ino, lock.range));
        held
    }

    /// The locks on one inode, by their ranges.
    pub fn held_on(&self, ino: Ino) -> Vec<Lock> {
        let state = self.0.lock();
        let mut held: Vec<Lock> =
            state.held.get(&ino).into_iter().flat_map(Ranges::iter).copied().collect();
        held.sort_by_key(|lock| (lock.range, lock.owner));
        held
    }

    /// An owner's locks of an inode, of one kind.
    pub fn owned(&self, ino: Ino, kind: LockKind, owner: LockOwner) -> Vec<Lock> {
        let mut held = self.held_on(ino);
        held.retain(|lock| lock.kind == kind && lock.owner == owner);
        held
    }

    /// An owner has in the range of `lock` the locks again that it had there `before`.
    pub fn restore(&self, ino: Ino, lock: &Lock, before: &[Lock]) {
        let mut state = self.0.lock();
        let ranges = state.held.entry(ino).or_default();
        ranges.clear(lock.kind, lock.owner, lock.range);
        for held in before {
            if let Some(range) = held.range.intersection(&lock.range) {
                ranges.set(&Lock { range, ..*held });
            }
        }
        if ranges.is_empty() {
            state.held.remove(&ino);
        }
        state.wake(ino);
    }

    /// Releases all locks.
    pub fn clear(&self) {
        let mut state = self.0.lock();
        state.held.clear();
        state.waits.values().for_each(|wait| wait.wake.notify_one());
    }

    /// Releases an owner's locks of a range of bytes: parts of POSIX locks, whole BSD locks.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`] when a lock would be split.
    pub fn unlock(
        &self,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        let mut state = self.0.lock();
        if kind == LockKind::Bsd {
            state.remove(ino, |held| held.kind == kind && held.owner == owner);
            return Ok(());
        }
        let Some(ranges) = state.held.get_mut(&ino) else { return Ok(()) };
        if ranges.len() + 1 > MAX_LOCKS {
            return Err(FsError::TooManyLocks);
        }
        let released = ranges.clear(kind, owner, range);
        if ranges.is_empty() {
            state.held.remove(&ino);
        }
        if released {
            state.wake(ino);
        }
        Ok(())
    }

    /// Releases all of an owner's locks of an inode, of one kind: as a close does with POSIX locks. Whether there were some.
    pub fn unlock_owner(&self, ino: Ino, kind: LockKind, owner: LockOwner) -> bool {
        self.0.lock().remove(ino, |held| held.kind == kind && held.owner == owner)
    }

    /// Releases all locks of an inode that were taken through an open file, which is closed.
    pub fn unlock_handle(&self, ino: Ino, handle: Handle) {
        self.0.lock().remove(ino, |held| held.handle == handle);
    }

    /// A lock of another owner that excludes this one, if there is one.
    pub fn conflict(&self, ino: Ino, lock: &Lock) -> Option<Lock> {
        self.0.lock().blockers(ino, lock).min_by_key(|held| held.range).copied()
    }

    /// Callers that wait.
    pub fn waiting(&self) -> usize {
        self.0.lock().waits.len()
    }

    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.0.lock().held.is_empty()
    }
}
