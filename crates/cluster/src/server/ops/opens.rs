//! Open files, and locks that are taken through them.

use thalweg_fs::{
    Caller, FsError, Handle, Ino, Kind, Lock, LockKind, LockOwner, LockRange, OpenFlags, PageCache,
};
use thalweg_net::keys::Access;

use super::super::capabilities::GrantRequest;
use super::super::session::{OpenFile, Session};
use super::delegations::with_quota;
use super::{Answered, Op, RequestContext, Response, Stages};
use crate::protocol::{Answer, Changed};

/// Opens a file, with a delegation if the client would like one and it can be.
pub(super) async fn open(
    op: Op<'_>,
    opener: (&Caller, Handle),
    (ino, flags): (Ino, OpenFlags),
    (late, delegation): (bool, bool),
) -> Answered {
    let Op { ctx, stages } = op;
    let delegates = delegation && prepare_delegation(op, ino).await?;
    let mut opened = open_shared(op, opener, (ino, flags), late).await?;
    if !delegates {
        return Ok(opened);
    }
    if let Some(direct) = stages.sessions.direct()
        && let Answer::Opened { write_bound, .. } = &mut opened.answer
        // Bytes that the client had written again after a crash would replace those that it stores from now on.
        && !stages.commit_on_share.has_new_content(ino)
    {
        *write_bound = direct.write_bound(ino).await.unwrap_or_default();
    }
    opened.wants.delegation = Some(ino);
    let file = opened.opened.map(|(_, file)| file);
    let done = with_quota(ctx, ino, opened).await;
    if let (Err(_), Some(file)) = (&done, file) {
        // No answer has it.
        stages.open_files.close(ctx.session.serial, file).await;
    }
    done
}

async fn open_shared(
    Op { ctx, stages }: Op<'_>,
    (caller, handle): (&Caller, Handle),
    (ino, flags): (Ino, OpenFlags),
    late: bool,
) -> Answered {
    let Stages { env, capabilities, open_files, .. } = stages;
    if ctx.session.handles.contains(handle) {
        return Err(FsError::Invalid("the client has another file open under this handle"));
    }
    let since = capabilities.now();
    let others = open_files.open(ctx.session.serial, ino, flags);
    let opened = match ctx.files.open(caller, ino, flags).await {
        Ok(opened) => opened,
        Err(error) => {
            open_files.remove(ctx.session.serial, ino, flags);
            return Err(error);
        }
    };
    // A page that a client writes is locked in its kernel until the write is answered, and a write waits for other
    // clients to drop that page. So at most one client writes through its kernel's pages.
    let is_shared = others.writing || (flags.write && others.open);
    let pages = if is_shared { PageCache::Bypass } else { opened.pages };
    let wants = GrantRequest {
        since,
        content: (!is_shared).then_some(ino),
        cached: late.then_some(ino),
        ..GrantRequest::default()
    };
    let file = OpenFile { ino, flags, at: opened.handle, since: env.now(), locked: None };
    let answer = Answer::Opened { pages, flush: opened.flush, write_bound: 0 };
    Ok(Response { wants, opened: Some((handle, file)), ..Response::of(answer) })
}

/// Has other clients drop what they cache of a file that is to be one client's alone; whether it may be.
async fn prepare_delegation(Op { ctx, stages }: Op<'_>, ino: Ino) -> Result<bool, FsError> {
    let Stages { capabilities, open_files, recall, .. } = stages;
    let serial = ctx.session.serial;
    let is_free = capabilities.is_free(ino, serial)
        && !open_files.is_open_by_others(serial, ino)
        && ctx.session.visitor.access == Access::Write
        && ctx.files.session_table().is_some();
    if !is_free || ctx.files.attributes(ino).await?.attributes.kind != Kind::File {
        return Ok(false);
    }
    if capabilities.holders(ino).iter().any(|(holder, ..)| *holder != serial) {
        let changes = vec![Changed::Attributes(ino), Changed::Pages(ino)];
        drop(recall.begin_with(ctx, changes, &[]).await?);
    }
    Ok(true)
}

/// A file that the client had open is open again.
pub(super) async fn reclaim(
    Op { ctx, stages }: Op<'_>,
    (caller, handle): (&Caller, Handle),
    (ino, flags): (Ino, OpenFlags),
) -> Result<(), FsError> {
    let session = ctx.session;
    session.knows(ino)?;
    if session.handles.get(handle, ino).is_ok() {
        return Ok(());
    }
    if let Some(user) = stages.authorize.user(ctx) {
        match user.open(ino, flags).await {
            // The client itself makes it again, later: another one would not know of it.
            Ok(()) | Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    let opened = ctx.files.open(caller, ino, flags).await?;
    stages.open_files.open(session.serial, ino, flags);
    let since = stages.env.now();
    let file = OpenFile { ino, flags, at: opened.handle, since, locked: None };
    if let Some(displaced) = session.handles.open(handle, file) {
        stages.open_files.close(session.serial, displaced).await;
    }
    Ok(())
}

pub(super) async fn flush(
    ctx: &RequestContext<'_>,
    ino: Ino,
    handle: Handle,
    owner: LockOwner,
) -> Answered {
    let file = ctx.session.handles.get(handle, ino)?;
    ctx.files.flush(ino, file.at, ctx.session.owner_of(owner)).await?;
    Ok(Response::done())
}

pub(super) async fn release(Op { ctx, stages }: Op<'_>, ino: Ino, handle: Handle) -> Answered {
    ctx.session.handles.get(handle, ino)?;
    if let Some(file) = ctx.session.handles.close(handle) {
        stages.open_files.close(ctx.session.serial, file).await;
    }
    Ok(Response::done())
}

/// A lock of a client, as the filesystem knows it.
fn known_here(session: &Session, ino: Ino, lock: &Lock) -> Result<Lock, FsError> {
    let file = session.handles.get(lock.handle, ino)?;
    Ok(Lock { handle: file.at, owner: session.owner_of(lock.owner), ..*lock })
}

pub(super) async fn lock(
    Op { ctx, stages }: Op<'_>,
    ino: Ino,
    lock: &Lock,
    wait: bool,
) -> Answered {
    let (session, number) = (ctx.session, ctx.place.number);
    let lock = known_here(session, ino, lock)?;
    if wait {
        let cancelled = session.replies.begin_wait(number, (ino, lock), stages.env.now())?;
        let locked = tokio::select! {
            biased;
            locked = ctx.files.lock(ino, &lock, true) => locked,
            // By its caller, or since the file was moved out of the client's root.
            _ = cancelled => Err(session.knows(ino).err().unwrap_or(FsError::Locked)),
        };
        session.replies.end_wait(number, false);
        locked?;
    } else {
        ctx.files.lock(ino, &lock, false).await?;
    }
    let (is_open, goes_on) = session.handles.locked(lock.handle, stages.env.now());
    // The file may have been closed while the call waited; the session may have ended, and released its locks.
    if !goes_on || wait && !is_open {
        ctx.files.release(ino, lock.handle).await;
        return Err(FsError::Stale);
    }
    Ok(Response::done())
}

/// The client has a lock again that it had.
pub(super) async fn reclaim_lock(
    Op { ctx, stages }: Op<'_>,
    ino: Ino,
    lock: &Lock,
) -> Result<(), FsError> {
    let known = known_here(ctx.session, ino, lock)?;
    ctx.files.lock(ino, &known, false).await?;
    ctx.session.handles.locked(known.handle, stages.env.now());
    Ok(())
}

pub(super) async fn unlock(
    ctx: &RequestContext<'_>,
    ino: Ino,
    (kind, owner): (LockKind, LockOwner),
    range: LockRange,
) -> Answered {
    ctx.files.unlock(ino, kind, ctx.session.owner_of(owner), range).await?;
    Ok(Response::done())
}

pub(super) async fn conflicting(ctx: &RequestContext<'_>, ino: Ino, lock: &Lock) -> Answered {
    let lock = Lock { owner: ctx.session.owner_of(lock.owner), ..*lock };
    let found = ctx.files.conflicting_lock(ino, &lock).await?;
    Ok(Response::of(Answer::Lock(found)))
}
