//! The calls of a session that wait for locks.

use parking_lot::Mutex;
use thalweg_env::{HashMap, Time};
use thalweg_fs::{FsError, Ino, Lock};
use tokio::sync::oneshot;

/// Most calls of a session that wait for locks.
const MAX_WAITS: usize = 1 << 12;

/// The calls that wait, by their numbers.
#[derive(Debug, Default)]
pub(in crate::server) struct LockWaits(Mutex<HashMap<u64, LockWait>>);

#[derive(Debug)]
struct LockWait {
    ino: Ino,
    lock: Lock,
    since: Time,
    /// Dropped, it ends the wait.
    _end: oneshot::Sender<()>,
}

impl LockWaits {
    /// A call waits from now on; the wait is over when the receiver is told so.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`]
    pub(super) fn begin(
        &self,
        number: u64,
        (ino, lock): (Ino, Lock),
        since: Time,
    ) -> Result<oneshot::Receiver<()>, FsError> {
        let (_end, receiver) = oneshot::channel();
        let mut waits = self.0.lock();
        if waits.len() >= MAX_WAITS {
            return Err(FsError::TooManyLocks);
        }
        waits.insert(number, LockWait { ino, lock, since, _end });
        Ok(receiver)
    }

    /// These calls do not wait any more.
    pub(in crate::server) fn end(&self, numbers: &[u64]) {
        if !numbers.is_empty() {
            let mut waits = self.0.lock();
            numbers.iter().for_each(|number| drop(waits.remove(number)));
        }
    }

    /// No call waits for a lock on this inode any more.
    pub(super) fn end_of(&self, ino: Ino) {
        self.0.lock().retain(|_, wait| wait.ino != ino);
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    /// The locks on an inode that calls wait for, and since when, in the order of the calls.
    pub(in crate::server) fn of(&self, ino: Ino) -> Vec<(Lock, Time)> {
        let waits = self.0.lock();
        let mut of: Vec<_> = waits.iter().filter(|(_, wait)| wait.ino == ino).collect();
        of.sort_by_key(|(number, _)| **number);
        of.into_iter().map(|(_, wait)| (wait.lock, wait.since)).collect()
    }
}
