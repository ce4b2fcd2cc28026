//! The calls of a session that are carried out once, with their answers until the client has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Time;
use thalweg_fs::{FsError, Ino, Lock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::protocol::{Grants, Reply};

/// Maximum number of unacknowledged calls of a session.
const MAX_CALLS: usize = 1 << 16;
/// Most calls of a session that wait for locks.
const MAX_LOCK_WAITS: usize = 1 << 12;

#[derive(Debug)]
enum CallState<W> {
    Running {
        /// Where it came last: there it is answered.
        waiter: W,
        /// The client does not want the answer any more, so that it is not kept.
        is_unwanted: bool,
        /// It is not to wait for a lock.
        is_cancelled: bool,
        /// In a box, since few calls wait.
        lock_wait: Option<Box<LockWait>>,
    },
    Done(Box<Reply>, Vec<Bytes>),
}

/// The wait of a call for a lock, which ends when this is dropped.
#[derive(Debug)]
struct LockWait {
    ino: Ino,
    lock: Lock,
    since: Time,
    _end: oneshot::Sender<()>,
    _permit: OwnedSemaphorePermit,
}

/// What is to be done with a call.
#[derive(Debug)]
pub(in crate::server) enum Admission {
    /// Carry it out.
    New,
    /// Answer this.
    Known(Box<Reply>, Vec<Bytes>),
    /// Nothing: it runs, or the client knows the answer.
    Ignored,
    /// End the connection: the client acknowledges no answers.
    TooMany,
}

/// The calls of a session, and their answers. Calls wait as `W`.
#[derive(Debug)]
pub(in crate::server) struct ReplyCache<W>(Mutex<Calls<W>>);

#[derive(Debug)]
struct Calls<W> {
    by_number: BTreeMap<u64, CallState<W>>,
    /// The client knows the answers to all calls before this one.
    oldest: u64,
    lock_waits: Arc<Semaphore>,
}

impl<W> Default for ReplyCache<W> {
    fn default() -> ReplyCache<W> {
        let lock_waits = Arc::new(Semaphore::new(MAX_LOCK_WAITS));
        ReplyCache(Mutex::new(Calls { by_number: BTreeMap::new(), oldest: 0, lock_waits }))
    }
}

impl<W> Calls<W> {
    /// The client does not want the answer of a call any more.
    fn drop_answer(&mut self, number: u64) {
        match self.by_number.get_mut(&number) {
            Some(CallState::Running { is_unwanted, is_cancelled, lock_wait, .. }) => {
                (*is_unwanted, *is_cancelled, *lock_wait) = (true, true, None);
            }
            Some(CallState::Done(..)) => drop(self.by_number.remove(&number)),
            None => {}
        }
    }
}

impl<W> ReplyCache<W> {
    /// The client knows the answers to all calls before `oldest`, and to these.
    pub(in crate::server) fn acknowledge(&self, oldest: u64, answered: &[u64]) {
        let mut calls = self.0.lock();
        calls.oldest = calls.oldest.max(oldest);
        let older: Vec<u64> = calls.by_number.range(..oldest).map(|(number, _)| *number).collect();
        older.iter().chain(answered).for_each(|number| calls.drop_answer(*number));
    }

    /// The client waits for the answers to these calls, in their order, and to no other one that it has made.
    pub(in crate::server) fn acknowledge_others(&self, pending: &[u64]) {
        let mut calls = self.0.lock();
        let is_other = |number: &u64| pending.binary_search(number).is_err();
        let others: Vec<u64> = calls.by_number.keys().copied().filter(is_other).collect();
        others.into_iter().for_each(|number| calls.drop_answer(number));
    }

    /// Admits call `number`, unless it runs or is answered. `waiter` gets the answer.
    pub(in crate::server) fn admit(&self, number: u64, waiter: W) -> Admission {
        let mut calls = self.0.lock();
        if number < calls.oldest {
            return Admission::Ignored;
        }
        let is_full = calls.by_number.len() >= MAX_CALLS;
        match calls.by_number.get_mut(&number) {
            None if is_full => Admission::TooMany,
            None => {
                let running = CallState::Running {
                    waiter,
                    is_unwanted: false,
                    is_cancelled: false,
                    lock_wait: None,
                };
                calls.by_number.insert(number, running);
                assert!(
                    calls.by_number.len() <= MAX_CALLS,
                    "more calls are admitted than a session may have"
                );
                Admission::New
            }
            Some(CallState::Running { waiter: last, .. }) => {
                *last = waiter;
                Admission::Ignored
            }
            Some(CallState::Done(reply, payload)) => {
                // What was granted with the lost answer may have been invalidated since.
                let reply = Reply { grants: Grants::default(), ..(**reply).clone() };
                Admission::Known(Box::new(reply), payload.clone())
            }
        }
    }

    /// A call has its answer. Returns what waits for it.
    pub(in crate::server) fn done(
        &self,
        number: u64,
        reply: &Reply,
        payload: &[Bytes],
    ) -> Option<W> {
        let mut calls = self.0.lock();
        let removed = calls.by_number.remove(&number)?;
        let CallState::Running { waiter, is_unwanted, .. } = removed else {
            panic!("a call is answered twice")
        };
        if !is_unwanted {
            let done = CallState::Done(Box::new(reply.clone()), payload.to_vec());
            calls.by_number.insert(number, done);
        }
        Some(waiter)
    }

    /// A call that runs waits for a lock from now on, until the receiver is told so.
    pub(in crate::server) fn begin_wait(
        &self,
        number: u64,
        (ino, lock): (Ino, Lock),
        since: Time,
    ) -> Result<oneshot::Receiver<()>, FsError> {
        let Calls { by_number, lock_waits, .. } = &mut *self.0.lock();
        let Some(CallState::Running { is_cancelled: false, lock_wait, .. }) =
            by_number.get_mut(&number)
        else {
            return Err(FsError::Locked);
        };
        let permit = lock_waits.clone().try_acquire_owned();
        let _permit = permit.map_err(|_| FsError::TooManyLocks)?;
        let (_end, receiver) = oneshot::channel();
        *lock_wait = Some(Box::new(LockWait { ino, lock, since, _end, _permit }));
        Ok(receiver)
    }

    /// A call does not wait for a lock any more; if it `cancels`, also if it has not begun to.
    pub(in crate::server) fn end_wait(&self, number: u64, cancels: bool) {
        let mut calls = self.0.lock();
        if let Some(CallState::Running { is_cancelled, lock_wait, .. }) =
            calls.by_number.get_mut(&number)
        {
            *is_cancelled |= cancels;
            *lock_wait = None;
        }
    }

    /// No call waits for a lock on this inode any more.
    pub(super) fn end_waits_of(&self, ino: Ino) {
        let mut calls = self.0.lock();
        if calls.lock_waits.available_permits() == MAX_LOCK_WAITS {
            return;
        }
        for call in calls.by_number.values_mut() {
            if let CallState::Running { lock_wait, .. } = call {
                lock_wait.take_if(|wait| wait.ino == ino);
            }
        }
    }

    /// The locks on an inode that calls wait for, and since when, in the order of the calls.
    pub(in crate::server) fn waits_of(&self, ino: Ino) -> Vec<(Lock, Time)> {
        let calls = self.0.lock();
        let waits = calls.by_number.values().filter_map(|call| match call {
            CallState::Running { lock_wait, .. } => lock_wait.as_deref(),
            CallState::Done(..) => None,
        });
        waits.filter(|wait| wait.ino == ino).map(|wait| (wait.lock, wait.since)).collect()
    }

    pub(in crate::server) fn runs(&self, number: u64) -> bool {
        matches!(self.0.lock().by_number.get(&number), Some(CallState::Running { .. }))
    }

    pub(in crate::server) fn running(&self) -> usize {
        let calls = self.0.lock();
        calls.by_number.values().filter(|call| matches!(call, CallState::Running { .. })).count()
    }

    pub(super) fn clear(&self) {
        self.0.lock().by_number.clear();
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::{Handle, LockKind, LockMode, LockOwner, LockRange};
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn one_call_without_an_answer_keeps_no_other_answers() {
        let calls = ReplyCache::default();
        assert!(matches!(calls.admit(1, 1), Admission::New));
        for number in 2..=3 * MAX_CALLS as u64 {
            assert!(matches!(calls.admit(number, number), Admission::New));
            assert_eq!(calls.done(number, &Reply::default(), &[]), Some(number));
            calls.acknowledge(1, &[number]);
        }
        assert_eq!((calls.running(), calls.0.lock().by_number.len()), (1, 1));
        // A peer that acknowledges nothing is stopped.
        let first = 4 * MAX_CALLS as u64;
        let full = (first..).find(|number| !matches!(calls.admit(*number, 1), Admission::New));
        assert_eq!(full, Some(first + MAX_CALLS as u64 - 1));
    }

    #[test]
    fn an_answer_is_kept_until_it_is_acknowledged() {
        let calls = ReplyCache::default();
        for number in [1, 2, 3, 4] {
            assert!(matches!(calls.admit(number, number), Admission::New));
        }
        for number in [2, 4] {
            assert_eq!(calls.done(number, &Reply::default(), &[]), Some(number));
        }
        // A new connection.
        assert!(matches!(calls.admit(2, 9), Admission::Known(..)));
        assert!(matches!(calls.admit(3, 8), Admission::Ignored));
        // The client does not wait for call 1, which runs, and has the answer of call 2.
        let lock = Lock {
            kind: LockKind::Bsd,
            owner: LockOwner { client: 1, number: 1 },
            handle: Handle(1),
            pid: 1,
            mode: LockMode::Shared,
            range: LockRange::ALL,
        };
        let wait = |number| calls.begin_wait(number, (Ino(5), lock), Time::default());
        let (mut first, mut third) = (wait(1).unwrap(), wait(3).unwrap());
        calls.acknowledge_others(&[3, 4]);
        assert_eq!(first.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(third.try_recv(), Err(TryRecvError::Empty));
        assert!(wait(1).is_err() && wait(4).is_err());
        assert_eq!(calls.waits_of(Ino(5)), [(lock, Time::default())]);
        assert_eq!(calls.done(1, &Reply::default(), &[]), Some(1));
        assert_eq!(calls.done(3, &Reply::default(), &[]), Some(8));
        assert_eq!(calls.0.lock().by_number.keys().copied().collect::<Vec<_>>(), [3, 4]);
        calls.acknowledge(5, &[]);
        assert!(calls.0.lock().by_number.is_empty());
        assert!(matches!(calls.admit(4, 1), Admission::Ignored));
    }
}
