//! Locks that are taken through open files.

use thalweg_fs::{FsError, Ino, Lock, LockKind, LockOwner, LockRange};

use super::super::context::RequestContext;
use super::super::response::{Answered, Response};
use super::super::session::Session;
use super::super::stages::Stages;
use crate::protocol::Answer;

/// A lock of a client, as the filesystem knows it.
fn known_here(session: &Session, ino: Ino, lock: &Lock) -> Result<Lock, FsError> {
    let file = session.handles.get(lock.handle, ino)?;
    Ok(Lock { handle: file.at, owner: session.owner_of(lock.owner), ..*lock })
}

pub(super) async fn lock(
    ctx: &RequestContext<'_>,
    Stages { env, .. }: &Stages,
    (ino, lock): (Ino, &Lock),
    wait: bool,
) -> Answered {
    let (session, number) = (ctx.session, ctx.place.number);
    let lock = known_here(session, ino, lock)?;
    if wait {
        let cancelled = session.wait(number, (ino, lock), env.now())?;
        let locked = tokio::select! {
            biased;
            locked = ctx.files.lock(ino, &lock, true) => locked,
            // By its caller, or since the file was moved out of the client's root.
            _ = cancelled => Err(session.knows(ino).err().unwrap_or(FsError::Locked)),
        };
        session.lock_waits.end(&[number]);
        locked?;
    } else {
        ctx.files.lock(ino, &lock, false).await?;
    }
    let (is_open, goes_on) = session.handles.locked(lock.handle, env.now());
    // The file may have been closed while the call waited; the session may have ended, and released its locks.
    if !goes_on || wait && !is_open {
        ctx.files.release(ino, lock.handle).await;
        return Err(FsError::Stale);
    }
    Ok(Response::done())
}

/// The client has a lock again that it had.
pub(super) async fn reclaim(
    ctx: &RequestContext<'_>,
    Stages { env, .. }: &Stages,
    ino: Ino,
    lock: &Lock,
) -> Result<(), FsError> {
    let known = known_here(ctx.session, ino, lock)?;
    ctx.files.lock(ino, &known, false).await?;
    ctx.session.handles.locked(known.handle, env.now());
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
