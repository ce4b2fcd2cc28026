//! Open files.

use thalweg_fs::{Caller, FsError, Handle, Ino, Kind, LockOwner, OpenFlags, PageCache};
use thalweg_net::keys::Access;

use super::super::capabilities::GrantRequest;
use super::super::context::RequestContext;
use super::super::response::{Answered, Response};
use super::super::session::OpenFile;
use super::super::stages::Stages;
use super::delegations::with_quota;
use crate::protocol::{Answer, Changed};

/// Opens a file, with a delegation if the client would like one and it can be.
pub(super) async fn open(
    ctx: &RequestContext<'_>,
    stages: &Stages,
    (caller, handle): (&Caller, Handle),
    (ino, flags): (Ino, OpenFlags),
    (late, delegation): (bool, bool),
) -> Answered {
    let delegates = delegation && prepare_delegation(ctx, stages, ino).await?;
    let mut opened = open_shared(ctx, stages, (caller, handle), (ino, flags), late).await?;
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
    ctx: &RequestContext<'_>,
    Stages { env, capabilities, open_files, .. }: &Stages,
    (caller, handle): (&Caller, Handle),
    (ino, flags): (Ino, OpenFlags),
    late: bool,
) -> Answered {
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
async fn prepare_delegation(
    ctx: &RequestContext<'_>,
    Stages { capabilities, open_files, recall, .. }: &Stages,
    ino: Ino,
) -> Result<bool, FsError> {
    let serial = ctx.session.serial;
    let is_free = capabilities.is_free(ino, serial)
        && !open_files.is_open_by_others(serial, ino)
        && ctx.session.visitor.access == Access::Write
        && ctx.files.session_table().is_some();
    if !is_free || ctx.files.attributes(ino).await?.attributes.kind != Kind::File {
        return Ok(false);
    }
    if capabilities.is_held_by_others(serial, ino) {
        let changes = vec![Changed::Attributes(ino), Changed::Pages(ino)];
        drop(recall.begin_with(ctx, changes, &[]).await?);
    }
    Ok(true)
}

/// A file that the client had open is open again.
pub(super) async fn reclaim(
    ctx: &RequestContext<'_>,
    Stages { env, authorize, open_files, .. }: &Stages,
    handle: Handle,
    caller: &Caller,
    (ino, flags): (Ino, OpenFlags),
) -> Result<(), FsError> {
    let session = ctx.session;
    session.knows(ino)?;
    if session.handles.get(handle, ino).is_ok() {
        return Ok(());
    }
    match authorize.open(ctx, ino, flags).await {
        // The client itself makes it again, later: another one would not know of it.
        Ok(()) | Err(FsError::Stale) => {}
        Err(error) => return Err(error),
    }
    let opened = ctx.files.open(caller, ino, flags).await?;
    open_files.open(session.serial, ino, flags);
    let file = OpenFile { ino, flags, at: opened.handle, since: env.now(), locked: None };
    let displaced = session.handles.open(handle, file);
    if let Some(file) = displaced {
        open_files.close(session.serial, file).await;
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

pub(super) async fn release(
    ctx: &RequestContext<'_>,
    Stages { open_files, .. }: &Stages,
    ino: Ino,
    handle: Handle,
) -> Answered {
    ctx.session.handles.get(handle, ino)?;
    if let Some(file) = ctx.session.handles.close(handle) {
        open_files.close(ctx.session.serial, file).await;
    }
    Ok(Response::done())
}
