//! Calls about locks. Those of files that are this client's alone need none.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_fs::{FsError, Ino, Lock, LockKind};
use tokio::sync::Notify;

use super::error::expect_answer;
use super::open_files::OpenFiles;
use super::open_table::LockCall;
use super::rpc::Outgoing;
use super::user;
use crate::protocol::{Answer, Reply, Request};

/// How far a caller has come that waits for a lock.
enum Progress {
    Waits,
    /// The server has given it the lock, which the caller does not know yet. Before, the owner had these of the file.
    Holds(Vec<Lock>),
    /// It does not want the lock any more.
    IsGone,
    /// It knows the answer.
    IsOver,
}

/// A caller that waits for a lock. It may be dropped at any time, as when its process is killed.
struct Waiter {
    files: Arc<OpenFiles>,
    at: (Ino, Lock),
    progress: Arc<Mutex<Progress>>,
    gone: Arc<Notify>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::IsGone) {
            Progress::Waits => self.gone.notify_one(),
            Progress::Holds(before) => {
                let (ino, lock) = self.at;
                let under_way = self.files.begin_lock_call(ino);
                let before = if lock.kind == LockKind::Bsd { Vec::new() } else { before };
                self.files.locks.restore(ino, &lock, &before);
                let files = self.files.clone();
                let reverting = async move {
                    files.revert(ino, lock, before).await;
                    drop(under_way);
                };
                self.files.base.env.spawn(reverting).detach();
            }
            Progress::IsGone | Progress::IsOver => {}
        }
    }
}

impl OpenFiles {
    pub(super) async fn lock(
        self: &Arc<Self>,
        ino: Ino,
        lock: Lock,
        wait: bool,
    ) -> Result<(), FsError> {
        match self.while_locked_here(ino, || self.locks.try_lock(ino, &lock)) {
            // The server knows which waits would wait for each other.
            Some(Err(FsError::Locked)) if wait => {}
            Some(locked) => return locked,
            None => {}
        }
        let under_way = self.begin_lock_call(ino);
        self.notify_server(&[ino]).await?;
        if wait {
            return self.wait_for(ino, lock, under_way).await;
        }
        let locks = self.clone();
        let then = move |reply: &Reply, _: &Bytes| {
            let _under_way = &under_way;
            locks.record(ino, &lock, reply);
        };
        let request = Request::Lock { ino, lock, wait };
        let (reply, _) = self.writeback.call(request, Vec::new(), then).await?;
        expect_answer!(reply.answer, Answer::Done => ())
    }

    /// Waits for a lock. The call outlives its caller: only its answer says what is to be done when the caller is gone.
    async fn wait_for(
        self: &Arc<Self>,
        ino: Ino,
        lock: Lock,
        under_way: LockCall,
    ) -> Result<(), FsError> {
        let (progress, gone) = (Arc::new(Mutex::new(Progress::Waits)), Arc::new(Notify::new()));
        let waiter = Waiter { files: self.clone(), at: (ino, lock), progress, gone };
        let (files, progress, gone) = (self.clone(), waiter.progress.clone(), waiter.gone.clone());
        let user = user::current();
        let waiting = async move {
            let (taking, recorder) = (progress.clone(), files.clone());
            let then = move |reply: &Reply, _: &Bytes| {
                let mut progress = taking.lock();
                let before = recorder.locks.owned(ino, lock.kind, lock.owner);
                let is_done = reply.answer == Answer::Done;
                if is_done && matches!(*progress, Progress::IsGone) {
                    recorder.lose_changed(ino, &lock);
                    return;
                }
                recorder.record(ino, &lock, reply);
                if is_done {
                    *progress = Progress::Holds(before);
                }
            };
            let request = Request::Lock { ino, lock, wait: true };
            let call = Outgoing::with(request, Vec::new(), user);
            let answered = files.rpc.make(call, then, gone.notified()).await;
            let is_unknown = matches!(&answered, Err(FsError::Store(_)));
            let is_unwanted = answered.is_ok() && matches!(*progress.lock(), Progress::IsGone);
            if is_unwanted || is_unknown {
                let before = files.locks.owned(ino, lock.kind, lock.owner);
                files.revert(ino, lock, before).await;
            }
            drop(under_way);
            expect_answer!(answered?.0.answer, Answer::Done => ())
        };
        let locked = self.base.run_apart(waiting).await;
        *waiter.progress.lock() = Progress::IsOver;
        locked
    }

    /// The server has answered a call for a lock. The next server decides the same by a reclaim.
    fn record(&self, ino: Ino, lock: &Lock, reply: &Reply) {
        if reply.answer != Answer::Done {
            self.lose_changed(ino, lock);
        } else if let Err(error) = self.locks.try_lock(ino, lock) {
            tracing::warn!(%error, "a lock will not outlive the server");
        }
    }

    /// A lock was not taken. As flock(2): its owner has lost the one that it wanted to change.
    fn lose_changed(&self, ino: Ino, lock: &Lock) {
        if lock.kind == LockKind::Bsd {
            self.locks.unlock_owner(ino, lock.kind, lock.owner);
        }
    }

    /// Has the server forget a lock that it has given to a caller that was gone: the owner has the locks from before again.
    async fn revert(&self, ino: Ino, lock: Lock, before: Vec<Lock>) {
        let Lock { kind, owner, range, .. } = lock;
        let held = before.iter().filter_map(|held| {
            let range = held.range.intersection(&range)?;
            Some(Lock { range, ..*held })
        });
        let held: Vec<Lock> = held.collect();
        let free = range.without(held.iter().map(|held| held.range));
        let unlocks = free.into_iter().map(|range| Request::Unlock { ino, kind, owner, range });
        let locks = held.into_iter().map(|lock| Request::Lock { ino, lock, wait: false });
        for request in unlocks.chain(locks) {
            if let Err(error) = self.rpc.own(request).await {
                tracing::debug!(%error, "a lock that nothing waits for any more stays");
            }
        }
    }

    pub(super) async fn conflict(&self, ino: Ino, lock: Lock) -> Result<Option<Lock>, FsError> {
        if let Some(found) = self.while_locked_here(ino, || self.locks.conflict(ino, &lock)) {
            return Ok(found);
        }
        self.notify_server(&[ino]).await?;
        let request = Request::ConflictingLock { ino, lock };
        let (reply, _) = self.writeback.call(request, Vec::new(), |_, _| {}).await?;
        expect_answer!(reply.answer, Answer::Lock(found) => found)
    }
}
