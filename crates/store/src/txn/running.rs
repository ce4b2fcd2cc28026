//! Running transactions and their owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::HashMap;

use super::access::Accesses;
use super::order::Snapshot;
use super::{Begin, Handle, Preempted, TxnError};
use crate::block::Version;

/// The phase of a transaction.
#[derive(Debug)]
pub(super) enum Phase {
    /// It runs, on this snapshot.
    Active(Snapshot),
    /// It was aborted from outside.
    Preempted(Preempted),
    /// It has committed, aborted, or tried to.
    Ended,
}

/// A transaction's phase and accesses.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) phase: Phase,
    pub(super) accesses: Accesses,
}

impl Work {
    /// The snapshot.
    ///
    /// # Errors
    /// Why it does not run any more.
    pub(super) fn snapshot(&self) -> Result<&Snapshot, TxnError> {
        match &self.phase {
            Phase::Active(snapshot) => Ok(snapshot),
            Phase::Preempted(why) => Err(TxnError::Preempted(*why)),
            Phase::Ended => Err(TxnError::Ended),
        }
    }
}

/// A transaction.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: u64,
    pub(super) begin: Begin,
    /// The version of its snapshot.
    pub(super) version: Version,
    pub(super) work: Mutex<Work>,
    /// The time of the last call, in ticks of the reaper.
    used: AtomicU64,
    /// Bytes of memory charged to it.
    pub(super) charged: AtomicU64,
    /// It may write as many blocks as a large transaction.
    pub(super) is_large: AtomicBool,
}

impl Running {
    /// Records a call of its owner.
    pub(super) fn touch(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// The time of its owner's last call.
    pub(super) fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A process, or a connection of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct OwnerId(pub(super) u64);

/// A running transaction and its owner.
#[derive(Debug)]
struct Registered {
    id: u64,
    running: Arc<Running>,
    owner: OwnerId,
}

/// Every running transaction.
#[derive(Debug, Default)]
pub(super) struct Registry {
    next: u64,
    /// Ascending by number: a new one has the highest.
    running: Vec<Registered>,
    counts: HashMap<OwnerId, usize>,
    released: HashMap<Handle, u64>,
}

impl Registry {
    /// A new owner.
    pub(super) fn owner(&mut self) -> OwnerId {
        self.next += 1;
        OwnerId(self.next)
    }

    /// Counts one more transaction of an owner.
    ///
    /// # Errors
    /// [`TxnError::TooMany`].
    fn admit(&mut self, owner: OwnerId, most: usize) -> Result<(), TxnError> {
        let count = self.counts.entry(owner).or_default();
        if *count >= most {
            return Err(TxnError::TooMany(most));
        }
        *count += 1;
        Ok(())
    }

    /// Counts one transaction less.
    fn expel(&mut self, owner: OwnerId) {
        if let Some(count) = self.counts.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&owner);
            }
        }
    }

    /// Adds a transaction of a process that may run `most`.
    ///
    /// # Errors
    /// [`TxnError::TooMany`], with the snapshot.
    pub(super) fn add(
        &mut self,
        owner: OwnerId,
        begin: Begin,
        snapshot: Snapshot,
        (now, most): (u64, usize),
    ) -> Result<Arc<Running>, (TxnError, Snapshot)> {
        if let Err(error) = self.admit(owner, most) {
            return Err((error, snapshot));
        }
        self.next += 1;
        let version = snapshot.hold.version();
        let work = Work { phase: Phase::Active(snapshot), accesses: Accesses::default() };
        let running = Arc::new(Running {
            id: self.next,
            begin,
            version,
            work: Mutex::new(work),
            used: AtomicU64::new(now),
            charged: AtomicU64::new(0),
            is_large: AtomicBool::new(false),
        });
        self.running.push(Registered { id: self.next, running: running.clone(), owner });
        Ok(running)
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.running.binary_search_by_key(&id, |registered| registered.id).ok()
    }

    /// Removes a transaction that has ended.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(place) = self.place(id) {
            let owner = self.running.remove(place).owner;
            self.expel(owner);
        }
    }

    /// Records a transaction as released.
    pub(super) fn release(&mut self, id: u64, handle: Handle) {
        self.released.insert(handle, id);
    }

    /// Gives a released transaction a new owner.
    ///
    /// # Errors
    /// [`TxnError::UnknownHandle`], [`TxnError::TooMany`]; it stays released then.
    pub(super) fn takeover(
        &mut self,
        handle: Handle,
        owner: OwnerId,
        most: usize,
    ) -> Result<Arc<Running>, TxnError> {
        let id = *self.released.get(&handle).ok_or(TxnError::UnknownHandle)?;
        let place = self.place(id).ok_or(TxnError::UnknownHandle)?;
        let before = self.running[place].owner;
        if before != owner {
            self.admit(owner, most)?;
            self.expel(before);
        }
        self.released.remove(&handle);
        self.running[place].owner = owner;
        Ok(self.running[place].running.clone())
    }

    /// Forgets the handle of a released transaction that was ended from outside.
    pub(super) fn forget_released(&mut self, id: u64) -> bool {
        let before = self.released.len();
        self.released.retain(|_, there| *there != id);
        self.released.len() < before
    }

    /// The transactions of an owner, except for those that it released.
    pub(super) fn of(&self, owner: OwnerId) -> Vec<Arc<Running>> {
        let released = |id: u64| self.released.values().any(|there| *there == id);
        let owned = self.running.iter().filter(|it| it.owner == owner && !released(it.id));
        owned.map(|registered| registered.running.clone()).collect()
    }

    /// Every transaction, the oldest first.
    pub(super) fn all(&self) -> Vec<Arc<Running>> {
        self.running.iter().map(|registered| registered.running.clone()).collect()
    }

    /// The number of transactions.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }
}
