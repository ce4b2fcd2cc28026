//! Open files, and locks that are taken through them.

use thalweg_fs::{
    Caller, FsError, Handle, Ino, Kind, Lock, LockKind, LockOwner, LockRange, OpenFlags, PageCache,
};
use thalweg_net::keys::Access;

use super::Shared;
use super::context::RequestContext;
use super::response::{GrantRequest, Response};
use super::session::{OpenFile, Session};
use crate::protocol::{Answer, Changed};

impl Shared {
    /// Opens a file, with a delegation if the client would like one and it can be.
    pub(super) async fn open(
        &self,
        ctx: &RequestContext<'_>,
        (caller, handle): (&Caller, Handle),
        (ino, flags): (Ino, OpenFlags),
        (late, delegation): (bool, bool),
    ) -> Result<Response, FsError> {
        let alone = delegation && self.prepare_alone(ctx, ino).await?;
        let mut opened =
            self.open_shared(ctx.session, (caller, handle), (ino, flags), late).await?;
        if !alone {
            return Ok(opened);
        }
        if let Some(direct) = self.direct()
            && let Answer::Opened { write_bound, .. } = &mut opened.answer
        {
            // Bytes that the client had written again after a crash would replace those that it stores from now on.
            *write_bound = match self.commit_on_share.has_new_content(ino) {
                true => 0,
                false => direct.write_bound(ino).await.unwrap_or_default(),
            };
        }
        opened.wants.delegation = Some(ino);
        self.with_quota(ino, opened).await
    }

    pub(super) async fn flush(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
    ) -> Result<Response, FsError> {
        let file = ctx.session.opened(handle, ino)?;
        self.filesystem.flush(ino, file.at, ctx.session.owner_of(owner)).await?;
        Ok(Response::done())
    }

    pub(super) async fn release_handle(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        handle: Handle,
    ) -> Result<Response, FsError> {
        ctx.session.opened(handle, ino)?;
        let closed = ctx.session.state.lock().close(handle);
        if let Some(file) = closed {
            self.close(ctx.session.serial, file).await;
        }
        Ok(Response::done())
    }

    pub(super) async fn unlock(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        (kind, owner): (LockKind, LockOwner),
        range: LockRange,
    ) -> Result<Response, FsError> {
        self.filesystem.unlock(ino, kind, ctx.session.owner_of(owner), range).await?;
        Ok(Response::done())
    }

    pub(super) async fn conflicting(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        lock: &Lock,
    ) -> Result<Response, FsError> {
        let lock = Lock { owner: ctx.session.owner_of(lock.owner), ..*lock };
        let found = self.filesystem.conflicting_lock(ino, &lock).await?;
        Ok(Response::of(Answer::Lock(found)))
    }

    async fn open_shared(
        &self,
        session: &Session,
        (caller, handle): (&Caller, Handle),
        (ino, flags): (Ino, OpenFlags),
        late: bool,
    ) -> Result<Response, FsError> {
        if session.state.lock().has_handle(handle) {
            return Err(FsError::Invalid("the client has another file open under this handle"));
        }
        let since = self.capabilities.now();
        let others = self.open_files.open(session.serial, ino, flags);
        let opened = match self.filesystem.open(caller, ino, flags).await {
            Ok(opened) => opened,
            Err(error) => {
                self.open_files.close(session.serial, ino, flags);
                return Err(error);
            }
        };
        // A page that a client writes is locked in its kernel until the write is answered, and a write waits for other
        // clients to drop that page. So at most one client writes through its kernel's pages.
        let is_shared = others.writing || (flags.write && others.open);
        let pages = if is_shared { PageCache::Bypass } else { opened.pages };
        let content = (!is_shared).then_some(ino);
        let wants =
            GrantRequest { since, content, cached: late.then_some(ino), ..GrantRequest::default() };
        let file = self.opened(ino, flags, opened.handle);
        let answer = Answer::Opened { pages, flush: opened.flush, write_bound: 0 };
        Ok(Response { wants, opened: Some((handle, file)), ..Response::of(answer) })
    }

    /// Has other clients drop what they cache of a file that is to be one client's alone; whether it may be.
    async fn prepare_alone(&self, ctx: &RequestContext<'_>, ino: Ino) -> Result<bool, FsError> {
        let serial = ctx.session.serial;
        let is_free = self.capabilities.lock().is_free(ino, serial)
            && !self.open_files.is_open_by_others(serial, ino)
            && ctx.session.visitor.access == Access::Write
            && self.filesystem.session_table().is_some();
        if !is_free || self.filesystem.attributes(ino).await?.attributes.kind != Kind::File {
            return Ok(false);
        }
        if self.capabilities.is_held_by_others(serial, ino) {
            drop(self.recall(ctx, vec![Changed::Attributes(ino), Changed::Pages(ino)]).await?);
        }
        Ok(true)
    }

    /// A file that is open from now on.
    fn opened(&self, ino: Ino, flags: OpenFlags, at: Handle) -> OpenFile {
        OpenFile { ino, flags, at, since: self.env.now(), locked: None }
    }

    /// A file that the client had open is open again.
    pub(super) async fn reclaim_open(
        &self,
        ctx: &RequestContext<'_>,
        handle: Handle,
        caller: &Caller,
        (ino, flags): (Ino, OpenFlags),
    ) -> Result<(), FsError> {
        let session = ctx.session;
        session.knows(ino)?;
        if session.opened(handle, ino).is_ok() {
            return Ok(());
        }
        match self.authorize_open(ctx, ino, flags).await {
            // The client itself makes it again, later: another one would not know of it.
            Ok(()) | Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
        let opened = self.filesystem.open(caller, ino, flags).await?;
        self.open_files.open(session.serial, ino, flags);
        let file = self.opened(ino, flags, opened.handle);
        let displaced = session.state.lock().open(handle, file);
        if let Some(file) = displaced {
            self.close(session.serial, file).await;
        }
        Ok(())
    }

    /// The client has a lock again that it had.
    pub(super) async fn reclaim_lock(
        &self,
        session: &Session,
        ino: Ino,
        lock: &Lock,
    ) -> Result<(), FsError> {
        let file = session.opened(lock.handle, ino)?;
        let lock = Lock { handle: file.at, owner: session.owner_of(lock.owner), ..*lock };
        self.filesystem.lock(ino, &lock, false).await?;
        session.state.lock().locked(lock.handle, self.env.now());
        Ok(())
    }

    /// Closes a file of a session.
    pub(super) async fn close(&self, session: u64, file: OpenFile) {
        self.open_files.close(session, file.ino, file.flags);
        self.filesystem.release(file.ino, file.at).await;
    }

    pub(super) async fn lock(
        &self,
        ctx: &RequestContext<'_>,
        (ino, lock): (Ino, &Lock),
        wait: bool,
    ) -> Result<Response, FsError> {
        let (session, number) = (ctx.session, ctx.number);
        let file = session.opened(lock.handle, ino)?;
        let lock = Lock { handle: file.at, owner: session.owner_of(lock.owner), ..*lock };
        if wait {
            let cancelled = session.wait(number, (ino, lock), self.env.now())?;
            let locked = tokio::select! {
                biased;
                locked = self.filesystem.lock(ino, &lock, true) => locked,
                // By its caller, or since the file was moved out of the client's root.
                _ = cancelled => Err(session.knows(ino).err().unwrap_or(FsError::Locked)),
            };
            session.end_wait(number);
            locked?;
        } else {
            self.filesystem.lock(ino, &lock, false).await?;
        }
        let (is_open, has_ended) = {
            let mut state = session.state.lock();
            (state.locked(lock.handle, self.env.now()), state.has_ended)
        };
        // The file may have been closed while the call waited; the session may have ended, and released its locks.
        if has_ended || wait && !is_open {
            self.filesystem.release(ino, lock.handle).await;
            return Err(FsError::Stale);
        }
        Ok(Response::done())
    }
}
