//! Calls about open files. Those of files that are this client's alone need none.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::{Caller, FsError, Handle, Ino, LockKind, LockOwner, OpenFlags, Opened, PageCache};

use super::cache::Cache;
use super::opening::{Known, Opening, Opens};
use super::{LinkError, Shared, users};
use crate::protocol::{Answer, Reply, Request};

impl Shared {
    /// Runs `then` if a file is this client's alone, and the server knows of no open of it: so none of its locks is at the
    /// server, and nothing of that changes meanwhile.
    pub(super) fn alone<T>(
        &self,
        ino: Ino,
        then: impl FnOnce(&mut Cache, &mut Opens) -> T,
    ) -> Option<T> {
        let mut cache = self.cache.lock();
        let mut opens = self.reclaim_state.opens.lock();
        let is_alone = cache.may_open(ino, self.env.now()) && !opens.is_told(ino);
        is_alone.then(|| then(&mut cache, &mut opens))
    }

    /// Opens a file. Appends do not go through the caller's cache: its kernel would put them where it thinks that the file
    /// ends, which may have changed, and could drop that page only after it has the answer.
    pub(super) async fn open(
        self: &Arc<Self>,
        caller: Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Opened, FsError> {
        let opening = Opening { ino, user: users::current(), caller, flags };
        let bypasses = flags.append;
        let quiet = self.alone(ino, |cache, opens| {
            if !bypasses {
                cache.cache_under_delegation(ino);
            }
            opens.add(opening.clone(), Known::Quiet)
        });
        if let Some(handle) = quiet {
            let pages = if bypasses { PageCache::Bypass } else { PageCache::Keep };
            return Ok(Opened { handle, pages, flush: false });
        }
        self.tell_opens(&[ino]).await?;
        let handle = self.reclaim_state.opens.lock().add(opening, Known::Asked);
        let delegation = flags.write && self.options.exclusive.is_some();
        let request = Request::Open { handle, caller, ino, flags, late: false, delegation };
        let asked = self.cache.lock().query_write_bound(ino);
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            let mut cache = shared.cache.lock();
            let mut opens = shared.reclaim_state.opens.lock();
            match &reply.answer {
                Answer::Opened { write_bound, .. } => {
                    opens.set(handle, Known::Told);
                    if reply.grants.content {
                        cache.hold_content(ino);
                    }
                    if reply.grants.delegation {
                        cache.hold_delegation(ino, reply.quota);
                        cache.set_write_bound(ino, *write_bound, (asked, shared.env.now()));
                    }
                }
                _ => drop(opens.remove(handle)),
            }
        };
        let reply = match self.call(request, Vec::new(), take).await {
            Ok((reply, _)) => reply,
            Err(error) => {
                self.reclaim_state.opens.lock().remove(handle);
                return Err(error);
            }
        };
        let Answer::Opened { pages, flush, .. } = reply.answer else {
            return Err(LinkError::Unexpected.into());
        };
        if bypasses || !reply.grants.content || pages == PageCache::Bypass {
            return Ok(Opened { handle, pages: PageCache::Bypass, flush });
        }
        // The server has not invalidated what the caller cached without its knowledge.
        let was_alone = self.cache.lock().tell_content(ino);
        let pages = if was_alone { PageCache::Renew } else { pages };
        Ok(Opened { handle, pages, flush })
    }

    /// Tells of a close of a descriptor, which fails if changes of the file were lost, and releases POSIX locks, if there are
    /// some. A process that ends cannot be killed while it waits for
    /// this, so it waits for no longer than a lease: by then the server may have ended the session, with its locks. The
    /// call goes on by itself.
    pub(super) async fn flush(
        self: &Arc<Self>,
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
    ) -> Result<(), FsError> {
        let failure = self.cache.lock().queue.tell_failure(ino);
        let flushed = self.flush_locks(ino, handle, owner).await;
        failure.map_or(flushed, Err)
    }

    async fn flush_locks(
        self: &Arc<Self>,
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
    ) -> Result<(), FsError> {
        let (had_locks, is_quiet) = {
            let opens = self.reclaim_state.opens.lock();
            let had_locks = self.reclaim_state.locks.unlock_owner(ino, LockKind::Posix, owner);
            (had_locks, opens.known(handle) == Some(Known::Quiet) && !opens.is_told(ino))
        };
        if !had_locks || is_quiet {
            return Ok(());
        }
        let (shared, lease) = (self.clone(), self.session.lock().lease);
        let mut flushing = self.env.spawn(async move {
            shared.tell_opens(&[ino]).await?;
            shared.order(Request::Flush { ino, handle, owner }).await
        });
        match self.env.timeout(lease, &mut flushing).await {
            Some(flushed) => flushed.unwrap_or(Err(LinkError::Closed.into())),
            None => {
                tracing::warn!(
                    "the server does not answer; locks of a closed file stay until it does"
                );
                flushing.detach();
                Ok(())
            }
        }
    }

    pub(super) async fn release(self: &Arc<Self>, ino: Ino, handle: Handle) {
        let close = || {
            let mut opens = self.reclaim_state.opens.lock();
            self.reclaim_state.locks.unlock_handle(ino, handle);
            match opens.known(handle) {
                Some(Known::Asked) => None,
                _ => Some(opens.remove(handle)),
            }
        };
        let known = match close() {
            Some(known) => known,
            // The server is being told that it is open.
            None => {
                let _turn = self.telling.lock().await;
                self.reclaim_state.opens.lock().remove(handle)
            }
        };
        if known.is_none_or(|known| known == Known::Quiet) {
            return;
        }
        if let Err(error) = self.order(Request::Release { ino, handle }).await {
            // A file of a session that has ended was closed with it.
            tracing::debug!(%error, "a file was not closed at the server");
        }
    }

    /// Tells the server of the quiet opens of these inodes and of the locks on them, after the mutations that made them.
    pub(super) async fn tell_opens(self: &Arc<Self>, inodes: &[Ino]) -> Result<(), FsError> {
        let is_settled = {
            let opens = self.reclaim_state.opens.lock();
            inodes.iter().all(|ino| opens.is_settled(*ino))
        };
        if is_settled {
            return Ok(());
        }
        // Also of those of which the server is being told.
        let _turn = self.telling.lock().await;
        let is_quiet = |ino: &&Ino| self.reclaim_state.opens.lock().is_quiet(**ino);
        if inodes.iter().any(|ino| is_quiet(&ino)) {
            Box::pin(self.send_mutations(true)).await?;
        }
        for ino in inodes.iter().filter(is_quiet) {
            self.tell_opens_of(*ino).await?;
        }
        Ok(())
    }

    async fn tell_opens_of(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        // From here on all locks of this inode are taken at the server, after those that follow here.
        let asked = self.reclaim_state.opens.lock().ask(ino);
        for (handle, Opening { user, caller, flags, .. }) in asked {
            let request =
                Request::Open { handle, caller, ino, flags, late: true, delegation: false };
            let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
                if matches!(reply.answer, Answer::Opened { .. }) {
                    shared.cache.lock().tell_content(ino);
                }
            };
            let call = (request, Vec::new());
            let told = Box::pin(self.call_in((None, user), [ino].into(), call, take)).await;
            self.reclaim_state.opens.lock().set(handle, Known::Told);
            match told {
                Err(error @ FsError::Store(_)) => return Err(error),
                Err(error) => tracing::error!(%error, "the server refuses a file that is open"),
                Ok(_) => {}
            }
        }
        for lock in self.reclaim_state.locks.held_on(ino) {
            let call = (Request::Lock { ino, lock, wait: false }, Vec::new());
            let told = Box::pin(self.call_in((None, None), [ino].into(), call, |_, _, _| {})).await;
            match told {
                Err(error @ FsError::Store(_)) => return Err(error),
                Err(error) => tracing::error!(%error, "the server refuses a lock that is held"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Tells the server of open files that are not this client's alone any more.
    pub(super) async fn tell_shared_opens(self: &Arc<Self>) -> Result<(), FsError> {
        let shared = self.shared_opens();
        self.tell_opens(&shared).await
    }

    /// A recall is done with the last batch, if the server need not hear of open files then.
    pub(super) fn release_with_batch(&self, recall: u64) {
        if self.shared_opens().is_empty() {
            self.cache.lock().queue.release(recall);
        }
    }

    fn shared_opens(&self) -> Vec<Ino> {
        let cache = self.cache.lock();
        let mut quiet = self.reclaim_state.opens.lock().quiet();
        quiet.retain(|ino| !cache.has_delegation(*ino));
        quiet
    }

    /// Tells the server of the open files that it has to know of before a call: those that the call removes names of, moves, or
    /// uses for another user.
    pub(super) async fn tell_before(self: &Arc<Self>, request: &Request) -> Result<(), FsError> {
        let quiet = self.reclaim_state.opens.lock().quiet();
        if quiet.is_empty() {
            return Ok(());
        }
        let mut told = match request {
            Request::Unlink { target: Some(target), .. } => vec![*target],
            Request::Rename { targets: [Some(one), Some(two)], .. } => vec![*one, *two],
            // A name that is not known may be that of any of them.
            Request::Unlink { .. } | Request::Rename { .. } => quiet,
            Request::Link { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. } => vec![*ino],
            // The server lets all users of this client use a file that one of them has open.
            Request::Read { ino, .. }
            | Request::Write { ino, .. }
            | Request::Seek { ino, .. }
            | Request::Allocate { ino, .. }
            | Request::SetAttributes { ino, .. }
                if users::current().is_some() =>
            {
                vec![*ino]
            }
            Request::Copy { from, to, .. } if users::current().is_some() => vec![from.0, to.0],
            _ => return Ok(()),
        };
        if matches!(request, Request::Rename { .. } | Request::Link { .. }) {
            told.extend(self.shared_opens());
        }
        Box::pin(self.tell_opens(&told)).await
    }
}
