//! The way of a call through the stages: what it names is recalled, it is carried out, and its response waits until what it
//! depends on is durable.

use bytes::Bytes;
use thalweg_fs::session_table::{Committed, SlotRecord};
use thalweg_fs::{Credentials, FsError, WriteAt};

use super::context::{Answered, Place, RequestContext};
use super::foreign_use::of_reads;
use super::ops::{carry_out, response_of};
use super::reply::undo;
use super::session::Session;
use super::stages::Stages;
use crate::protocol::Request;

/// Bytes of the longest append that is one transaction: a longer one may have been made in part.
const WHOLE_APPEND: usize = thalweg_fs::local::MAX_ATOMIC_WRITE as usize;

/// Carries out a call, and waits until what its answer depends on is durable.
pub(super) async fn perform(
    stages: &Stages,
    session: &Session,
    place: Place,
    user: Option<&Credentials>,
    (request, payload): (&Request, Bytes),
) -> Answered {
    let Stages { files, recall, room, commit_on_share, .. } = stages;
    let ctx = &RequestContext::new(files, session, place, user, (request, payload.len()), None);
    let mut done = match recorded(ctx) {
        Some(record) => {
            // The record may be that of a later call, which is not durable yet.
            if stages.replay.has((session.serial, place.number)) {
                ctx.depend();
            }
            response_of(ctx, stages, request, &payload, record.outcome).await
        }
        None => recall_and_carry_out(ctx, stages, request, payload).await,
    };
    let uses = || of_reads(request, session.lock().is_direct);
    stages.sessions.note_uses(session.serial, uses).await;
    recall.settle(ctx, done.as_ref().ok().filter(|_| ctx.footprint.shows)).await;
    if let Ok(response) = &mut done {
        response.room = room.promise(session, std::mem::take(&mut response.room_for)).await;
        response.committed = ctx.committed();
    }
    if ctx.depends() {
        if let Err(error) = commit_on_share.make_durable().await {
            if let Ok(response) = done {
                undo(stages, session, response).await;
            }
            return Err(error);
        }
        // The client need not keep it.
        if let Ok(response) = &mut done {
            response.committed = None;
        }
    }
    done
}

/// The record of a change that the server before this one has carried out.
fn recorded(ctx: &RequestContext<'_>) -> Option<SlotRecord> {
    let record = ctx.session.lock().recorded.get(&ctx.place.slot).copied();
    record.filter(|it| it.number == ctx.place.number && ctx.footprint.is_change())
}

/// Carries out a call, after other clients have released what it names. A call that only reads is repeated when it has seen
/// something else that is another client's alone, after that one has released it.
async fn recall_and_carry_out(
    ctx: &RequestContext<'_>,
    stages: &Stages,
    request: &Request,
    payload: Bytes,
) -> Answered {
    let Stages { capabilities, recall, .. } = stages;
    if ctx.footprint.is_once() {
        // What its user may do is decided by what the owner has made.
        let recalls = capabilities.recalls(ctx.session.serial, &ctx.footprint.inodes);
        if !recalls.is_empty() {
            recall.invalidate(ctx, recalls).await;
        }
        return carry_out_in_room(ctx, stages, request, payload).await;
    }
    loop {
        let done = carry_out(ctx, stages, request, payload.clone()).await;
        let recalls = capabilities.recalls(ctx.session.serial, &ctx.drain_seen());
        if recalls.is_empty() {
            return done;
        }
        if let Ok(response) = done {
            undo(stages, ctx.session, response).await;
        }
        recall.invalidate(ctx, recalls).await;
    }
}

/// Carries out a call; when it finds no room, once more after the clients have returned what they were promised and do
/// not use.
async fn carry_out_in_room(
    ctx: &RequestContext<'_>,
    stages: &Stages,
    request: &Request,
    payload: Bytes,
) -> Answered {
    let may_repeat = may_repeat(ctx, request, payload.len());
    let mut done = carry_out(ctx, stages, request, payload.clone()).await;
    let is_refused = |done: &Answered| may_repeat && done.as_ref().is_err_and(lacks_room);
    if is_refused(&done) && stages.room.recall_all().await {
        done = carry_out(ctx, stages, request, payload.clone()).await;
    }
    while is_refused(&done) && stages.room.wait_for_forgotten().await {
        done = carry_out(ctx, stages, request, payload.clone()).await;
    }
    done
}

/// Whether an error says that there is no room.
fn lacks_room(error: &FsError) -> bool {
    matches!(error, FsError::NoSpace | FsError::QuotaExceeded)
}

/// Whether a call may be made again after it has found no room: it has changed nothing, or what it has copied it copies again.
fn may_repeat(ctx: &RequestContext<'_>, request: &Request, payload: usize) -> bool {
    let is_whole = match request {
        Request::Batch { .. } => false,
        Request::Write { at: WriteAt::End, .. } => payload <= WHOLE_APPEND,
        _ => true,
    };
    is_whole && ctx.footprint.is_change()
}

/// Makes a change again that the server before this one has answered, unless it has survived: what the client is to know of it.
///
/// # Errors
/// [`FsError::Invalid`] when the client is not expected; those of the change.
pub(super) async fn replay(
    stages: &Stages,
    session: &Session,
    place: Place,
    (user, before): (Option<&Credentials>, Committed),
    (request, payload): (Request, Bytes),
) -> Result<Option<Committed>, FsError> {
    let has_reclaimed = stages.grace_period.has_reclaimed(session)?;
    // An answer was lost with its connection.
    let replayed = session.lock().replayed.as_ref().and_then(|it| it.get(&place.number)).copied();
    if has_reclaimed || replayed.is_some() {
        return Ok(replayed);
    }
    if !request.footprint(payload.len()).is_change() {
        return Err(FsError::Invalid("the call changes nothing"));
    }
    let last = session.lock().recorded.get(&place.slot).copied();
    if last.is_some_and(|last| last.number >= place.number) {
        return Ok(None);
    }
    let request = &match request {
        // The end of the recovery makes it durable.
        Request::Batch { charged, positions, staged, spent, .. } => {
            let releases = Vec::new();
            Request::Batch { sync: false, charged, releases, positions, staged, spent }
        }
        Request::Write { ino, how, .. } => {
            Request::Write { ino, at: WriteAt::Offset(before.outcome), how }
        }
        request => request,
    };
    let call = (request, payload.len());
    let ctx = &RequestContext::new(&stages.files, session, place, user, call, Some(before));
    let done = carry_out(ctx, stages, request, payload).await;
    let committed = ctx.committed();
    if let Some(committed) = committed {
        session.lock().replayed.get_or_insert_default().insert(place.number, committed);
    }
    // Its client has reclaimed the inode.
    done?.referenced.into_iter().for_each(|ino| stages.files.unreference(ino, 1));
    Ok(committed)
}
