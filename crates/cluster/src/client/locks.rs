//! Calls about locks. Those of files that are this client's alone need none.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_fs::{FsError, Ino, Lock, LockKind, LockOwner, LockRange};
use tokio::sync::{Notify, oneshot};

use super::{LinkError, Shared, users};
use crate::protocol::{Answer, Reply, Request};

/// How far a caller has come that waits for a lock.
#[derive(Debug)]
enum Progress {
    /// It waits.
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
    shared: Arc<Shared>,
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
                let before = if lock.kind == LockKind::Bsd { Vec::new() } else { before };
                self.shared.reclaim_state.locks.restore(ino, &lock, &before);
                let shared = self.shared.clone();
                let taking = async move { shared.take_back((ino, lock), before).await };
                self.shared.env.spawn(taking).detach();
            }
            Progress::IsGone | Progress::IsOver => {}
        }
    }
}

/// What a call for a lock has come to.
fn answered(done: Result<(Reply, Bytes), FsError>) -> Result<(), FsError> {
    match done?.0.answer {
        Answer::Done => Ok(()),
        _ => Err(LinkError::Unexpected.into()),
    }
}

impl Shared {
    pub(super) async fn lock(
        self: &Arc<Self>,
        ino: Ino,
        lock: Lock,
        wait: bool,
    ) -> Result<(), FsError> {
        match self.alone(ino, |_, _| self.reclaim_state.locks.try_lock(ino, &lock)) {
            // The server knows which waits would wait for each other.
            Some(Err(FsError::Locked)) if wait => {}
            Some(locked) => return locked,
            None => {}
        }
        self.tell_opens(&[ino]).await?;
        match wait {
            true => self.wait_for_lock(ino, lock).await,
            false => {
                let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
                    shared.take_lock(ino, &lock, reply);
                };
                let request = Request::Lock { ino, lock, wait };
                answered(self.call(request, Vec::new(), take).await)
            }
        }
    }

    /// Waits for a lock. The call outlives its caller: only its answer says what is to be done when the caller is gone.
    async fn wait_for_lock(self: &Arc<Self>, ino: Ino, lock: Lock) -> Result<(), FsError> {
        let (progress, gone) = (Arc::new(Mutex::new(Progress::Waits)), Arc::new(Notify::new()));
        let waiter = Waiter { shared: self.clone(), at: (ino, lock), progress, gone };
        let (shared, progress, gone) = (self.clone(), waiter.progress.clone(), waiter.gone.clone());
        let (by, (sender, done)) = ((None, users::current()), oneshot::channel());
        let waiting = async move {
            let taking = progress.clone();
            let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
                let mut progress = taking.lock();
                let before = shared.reclaim_state.locks.owned(ino, lock.kind, lock.owner);
                let is_done = reply.answer == Answer::Done;
                let is_gone = matches!(*progress, Progress::IsGone);
                match is_done && is_gone {
                    true => shared.lose_changed(ino, &lock),
                    false => shared.take_lock(ino, &lock, reply),
                }
                if is_done && !is_gone {
                    *progress = Progress::Holds(before);
                }
            };
            let call = (Request::Lock { ino, lock, wait: true }, Vec::new());
            let done = shared.call_until(by, [ino].into(), call, take, gone.notified()).await;
            let is_unknown = matches!(&done, Err(FsError::Store(_)));
            let is_unwanted = done.is_ok() && matches!(*progress.lock(), Progress::IsGone);
            if is_unwanted || is_unknown {
                let before = shared.reclaim_state.locks.owned(ino, lock.kind, lock.owner);
                shared.take_back((ino, lock), before).await;
            }
            // The caller may be gone.
            let _ = sender.send(answered(done));
        };
        self.env.spawn(waiting).detach();
        let locked = done.await.unwrap_or(Err(LinkError::Closed.into()));
        *waiter.progress.lock() = Progress::IsOver;
        locked
    }

    /// The server has answered a call for a lock. The next server decides the same by a reclaim.
    fn take_lock(&self, ino: Ino, lock: &Lock, reply: &Reply) {
        let locks = &self.reclaim_state.locks;
        match reply.answer {
            Answer::Done => {
                if let Err(error) = locks.try_lock(ino, lock) {
                    tracing::warn!(%error, "a lock will not outlive the server");
                }
            }
            _ => self.lose_changed(ino, lock),
        }
    }

    /// A lock was not taken. As flock(2): its owner has lost the one that it wanted to change.
    fn lose_changed(&self, ino: Ino, lock: &Lock) {
        if lock.kind == LockKind::Bsd {
            self.reclaim_state.locks.unlock_owner(ino, lock.kind, lock.owner);
        }
    }

    /// Has the server forget a lock that it has given to a caller that was gone: the owner has the locks from before again.
    async fn take_back(self: &Arc<Self>, (ino, lock): (Ino, Lock), before: Vec<Lock>) {
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
            let call = (request, Vec::new());
            let done = self.call_in((None, None), [ino].into(), call, |_, _, _| {}).await;
            if let Err(error) = done {
                tracing::debug!(%error, "a lock that nothing waits for any more stays");
            }
        }
    }

    pub(super) async fn unlock(
        self: &Arc<Self>,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        let is_told = {
            let opens = self.reclaim_state.opens.lock();
            self.reclaim_state.locks.unlock(ino, kind, owner, range)?;
            opens.is_told(ino) || !opens.is_quiet(ino)
        };
        if !is_told {
            return Ok(());
        }
        self.tell_opens(&[ino]).await?;
        self.order(Request::Unlock { ino, kind, owner, range }).await
    }

    pub(super) async fn conflicting_lock(
        self: &Arc<Self>,
        ino: Ino,
        lock: Lock,
    ) -> Result<Option<Lock>, FsError> {
        if let Some(found) = self.alone(ino, |_, _| self.reclaim_state.locks.conflict(ino, &lock)) {
            return Ok(found);
        }
        self.tell_opens(&[ino]).await?;
        match self.ask(Request::ConflictingLock { ino, lock }).await? {
            (Answer::Lock(found), _) => Ok(found),
            _ => Err(LinkError::Unexpected.into()),
        }
    }
}
