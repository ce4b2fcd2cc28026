//! Open files, and the calls about them. Those of files that are this client's alone need none.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashSet;
use thalweg_fs::locks::LockTable;
use thalweg_fs::{
    Caller, FsError, Handle, Ino, Kind, Lock, LockKind, LockOwner, LockRange, OpenFlags, Opened,
    PageCache,
};

use super::base::ClientBase;
use super::error::{LinkError, expect_answer, unexpected};
use super::inodes::Node;
use super::open_table::{Known, LockCall, OpenTable, Opening};
use super::rpc::{Outgoing, Rpc};
use super::user;
use super::writeback::Writeback;
use crate::protocol::{Answer, Reply, Request};

/// Passes a failure of the connection on. A refusal by the server is logged.
fn pass_failure(told: Result<(), FsError>, what: &str) -> Result<(), FsError> {
    match told {
        Err(error) if !matches!(error, FsError::Store(_)) => {
            tracing::error!(%error, what, "the server refuses what is open or locked here");
            Ok(())
        }
        told => told,
    }
}

pub(super) struct OpenFiles {
    pub(super) base: Arc<ClientBase>,
    pub(super) rpc: Arc<Rpc>,
    pub(super) writeback: Arc<Writeback>,
    /// The lock is taken under that of a stripe, and those of the lock table under it.
    table: Mutex<OpenTable>,
    /// The locks of programs, as far as this client knows.
    pub(super) locks: LockTable,
    /// The server is told of open files by one task at a time.
    telling: tokio::sync::Mutex<()>,
}

impl OpenFiles {
    pub(super) fn new(
        base: Arc<ClientBase>,
        rpc: Arc<Rpc>,
        writeback: Arc<Writeback>,
    ) -> OpenFiles {
        let (table, telling) = (Mutex::default(), tokio::sync::Mutex::default());
        OpenFiles { base, rpc, writeback, table, locks: LockTable::default(), telling }
    }

    /// Runs `then` if a file or directory is this client's alone, and the server knows of no open of it; nothing of that changes
    /// meanwhile.
    fn while_alone<T>(
        &self,
        ino: Ino,
        then: impl FnOnce(&mut Node, &mut OpenTable) -> T,
    ) -> Option<T> {
        self.base.while_delegated(ino, |node, _| {
            let mut table = self.table.lock();
            (!table.is_told(ino)).then(|| then(node, &mut table))
        })
    }

    /// Runs `then` if a file is this client's alone, and none of its locks is at the server; nothing of that changes meanwhile.
    pub(super) fn while_locked_here<T>(&self, ino: Ino, then: impl FnOnce() -> T) -> Option<T> {
        self.base.while_delegated(ino, |_, kind| {
            // Another client may have locked a directory before it was delegated.
            let mut table = self.table.lock();
            let none_is_held = || self.locks.held_on(ino).is_empty();
            (kind == Kind::File && table.locks_here(ino, none_is_held)).then(then)
        })
    }

    /// A call about the locks of an inode begins.
    pub(super) fn begin_lock_call(&self, ino: Ino) -> LockCall {
        self.table.lock().begin_lock_call(ino)
    }

    /// Releases locks.
    pub(super) async fn unlock(
        self: &Arc<Self>,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        let call = {
            let table = self.table.lock();
            self.locks.unlock(ino, kind, owner, range)?;
            if !table.has_locks_at_server(ino) {
                return Ok(());
            }
            table.begin_lock_call(ino)
        };
        self.notify_server(&[ino]).await?;
        self.order_about_locks(Request::Unlock { ino, kind, owner, range }, call).await
    }

    /// Makes a call about locks, which is answered with nothing but success.
    async fn order_about_locks(&self, request: Request, call: LockCall) -> Result<(), FsError> {
        let then = move |_: &Reply, _: &Bytes| {
            let _under_way = &call;
        };
        let (reply, _) = self.writeback.call(request, Vec::new(), then).await?;
        expect_answer!(reply.answer, Answer::Done => ())
    }

    pub(super) fn is_open(&self, ino: Ino) -> bool {
        self.table.lock().is_open(ino)
    }

    /// Files that are open for writing.
    pub(super) fn writing(&self) -> usize {
        self.table.lock().find(|opening, _| opening.flags.write).len()
    }

    pub(super) fn told(&self) -> Vec<(Handle, Opening)> {
        self.table.lock().find(|_, known| known == Known::Told)
    }

    pub(super) fn told_locks(&self) -> Vec<(Ino, Lock)> {
        let table = self.table.lock();
        let mut locks = self.locks.held();
        locks.retain(|(ino, _)| table.is_told(*ino) && table.has_locks_at_server(*ino));
        locks
    }

    /// The session has ended. Files that may go on in the next one are suspended, unless they have locks; handles of the others are not
    /// used again.
    pub(super) fn end_session(&self, may_go_on: impl Fn(Ino) -> bool) {
        let mut table = self.table.lock();
        table.suspend(|ino| may_go_on(ino) && self.locks.held_on(ino).is_empty());
        self.locks.clear();
    }

    /// The inodes that are open.
    pub(super) fn opened(&self) -> HashSet<Ino> {
        let all = self.table.lock().find(|_, _| true);
        all.into_iter().map(|(_, opening)| opening.ino).collect()
    }

    /// The open files that may go on.
    pub(super) fn suspended(&self) -> Vec<Ino> {
        self.table.lock().suspended()
    }

    /// Those of them that no other client has used, with their paths.
    pub(super) fn found(&self, paths: Vec<(Ino, Bytes)>) {
        self.table.lock().found(paths);
    }

    pub(super) fn next_suspended(&self) -> Option<(Handle, Opening, Bytes)> {
        self.table.lock().next_suspended()
    }

    /// The server has opened a suspended file again, or has not; whether it stays open.
    pub(super) fn go_on(&self, handle: Handle, is_open: bool) -> bool {
        self.table.lock().go_on(handle, is_open)
    }

    /// Opens a file. Appends do not go through the caller's cache: its kernel would put them where it thinks that the file
    /// ends, which may have changed, and could drop that page only after it has the answer.
    pub(super) async fn open(
        self: &Arc<Self>,
        caller: Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Opened, FsError> {
        let opening = Opening { ino, user: user::current(), caller, flags };
        let bypasses = flags.append;
        let quiet = self.while_alone(ino, |node, table| {
            if !bypasses {
                node.cached.cached_under_delegation |= !node.cached.content;
            }
            table.add(opening.clone(), Known::Quiet)
        });
        if let Some(handle) = quiet {
            let pages = if bypasses { PageCache::Bypass } else { PageCache::Keep };
            return Ok(Opened { handle, pages, flush: false });
        }
        self.notify_server(&[ino]).await?;
        let handle = self.table.lock().add(opening, Known::Asked);
        let delegation = flags.write && self.base.options.exclusive.is_some();
        let request = Request::Open { handle, caller, ino, flags, late: false, delegation };
        let asked = self.base.bounds.query(ino);
        let files = self.clone();
        let then = move |reply: &Reply, _: &Bytes| {
            let Answer::Opened { write_bound, .. } = &reply.answer else {
                files.table.lock().remove(handle);
                return;
            };
            files.table.lock().set(handle, Known::Told);
            if reply.grants.content {
                files.base.inodes.with_new(ino, |node| node.cached.content = true);
            }
            if reply.grants.delegation {
                files.base.inodes.grant(ino, reply.quota);
                files.base.bounds.set(ino, *write_bound, (asked, files.base.now()));
            }
        };
        let called = self.writeback.call(request, Vec::new(), then).await;
        if called.is_err() {
            self.table.lock().remove(handle);
        }
        let (reply, _) = called?;
        let Answer::Opened { pages, flush, .. } = reply.answer else {
            return unexpected();
        };
        if bypasses || !reply.grants.content || pages == PageCache::Bypass {
            return Ok(Opened { handle, pages: PageCache::Bypass, flush });
        }
        // The server has not invalidated what the caller cached without its knowledge.
        let was_alone = self.base.inodes.is(ino, |node| node.cached.record_content());
        let pages = if was_alone { PageCache::Renew } else { pages };
        Ok(Opened { handle, pages, flush })
    }

    /// Tells of a close of a descriptor, and releases POSIX locks, if there are some. A process that ends cannot be killed while it waits
    /// for this, so it waits for no longer than a lease: by then the server may have ended the session, with its locks. The call goes on
    /// by itself.
    pub(super) async fn flush(
        self: &Arc<Self>,
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
    ) -> Result<(), FsError> {
        let call = {
            let table = self.table.lock();
            let had_locks = self.locks.unlock_owner(ino, LockKind::Posix, owner);
            if !had_locks || !table.has_locks_at_server(ino) {
                return Ok(());
            }
            table.begin_lock_call(ino)
        };
        let (files, lease) = (self.clone(), self.base.session.lease());
        let mut flushing = self.base.env.spawn(async move {
            files.notify_server(&[ino]).await?;
            files.order_about_locks(Request::Flush { ino, handle, owner }, call).await
        });
        match self.base.env.timeout(lease, &mut flushing).await {
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
        let closed = {
            let mut table = self.table.lock();
            self.locks.unlock_handle(ino, handle);
            let is_asked = table.known(handle) == Some(Known::Asked);
            (!is_asked).then(|| table.remove(handle))
        };
        let known = match closed {
            Some(known) => known,
            // The server is being told that it is open.
            None => {
                let _turn = self.telling.lock().await;
                self.table.lock().remove(handle)
            }
        };
        if known.is_none_or(|known| known == Known::Quiet) {
            return;
        }
        if let Err(error) = self.writeback.order(Request::Release { ino, handle }).await {
            // A file of a session that has ended was closed with it.
            tracing::debug!(%error, "a file was not closed at the server");
        }
    }

    /// Tells the server of the quiet opens of these inodes and of the locks on them, after the mutations that made them.
    pub(super) async fn notify_server(&self, inodes: &[Ino]) -> Result<(), FsError> {
        let is_settled = {
            let table = self.table.lock();
            inodes.iter().all(|ino| table.is_settled(*ino))
        };
        if is_settled {
            return Ok(());
        }
        // Also of those of which the server is being told.
        let _turn = self.telling.lock().await;
        if inodes.iter().any(|ino| self.table.lock().is_quiet(*ino)) {
            Box::pin(self.writeback.send_all()).await?;
        }
        for ino in inodes {
            let is_untold = self.table.lock().is_untold(*ino);
            if is_untold {
                self.notify_server_of(*ino).await?;
            }
        }
        Ok(())
    }

    async fn notify_server_of(&self, ino: Ino) -> Result<(), FsError> {
        // From here on all locks of this inode are taken at the server, after those that follow here.
        let quiet = self.table.lock().begin_telling(ino);
        for (handle, Opening { user, caller, flags, .. }) in quiet {
            let request =
                Request::Open { handle, caller, ino, flags, late: true, delegation: false };
            let inodes = self.base.inodes.clone();
            let then = move |reply: &Reply, _: &Bytes| {
                if matches!(reply.answer, Answer::Opened { .. }) {
                    inodes.with(ino, |node| node.cached.record_content());
                }
            };
            let call = Outgoing::with(request, Vec::new(), user);
            let telling = self.rpc.make(call, then, std::future::pending());
            let told = Box::pin(telling).await;
            self.table.lock().set(handle, Known::Told);
            pass_failure(told.map(drop), "file")?;
        }
        for lock in self.locks.held_on(ino) {
            let told = Box::pin(self.rpc.own(Request::Lock { ino, lock, wait: false })).await;
            pass_failure(told.map(drop), "lock")?;
        }
        self.table.lock().end_telling(ino);
        Ok(())
    }

    /// What is open and not this client's alone any more: the server has to know of the opens, and of the locks.
    pub(super) fn untold(&self) -> Vec<Ino> {
        let mut untold = self.table.lock().untold();
        untold.retain(|ino| !self.base.inodes.has_delegation(*ino));
        untold
    }

    /// Tells the server of the open files that it has to know of before a call: those that the call removes names of, moves, or
    /// uses for another user.
    pub(super) async fn notify_before(&self, request: &Request) -> Result<(), FsError> {
        let untold = self.table.lock().untold();
        if untold.is_empty() {
            return Ok(());
        }
        let mut told = match request {
            Request::Unlink { target: Some(target), .. } => vec![*target],
            Request::Rename { targets: [Some(one), Some(two)], .. } => vec![*one, *two],
            // A name that is not known may be that of any of them.
            Request::Unlink { .. } | Request::Rename { .. } => untold,
            Request::Link { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. } => vec![*ino],
            // The server lets all users of this client use a file that one of them has open.
            Request::Read { ino, .. }
            | Request::Write { ino, .. }
            | Request::Seek { ino, .. }
            | Request::Allocate { ino, .. }
            | Request::SetAttributes { ino, .. }
                if user::current().is_some() =>
            {
                vec![*ino]
            }
            Request::Copy { from, to, .. } if user::current().is_some() => vec![from.0, to.0],
            _ => return Ok(()),
        };
        if matches!(request, Request::Rename { .. } | Request::Link { .. }) {
            told.extend(self.untold());
        }
        Box::pin(self.notify_server(&told)).await
    }
}
