//! Carries out calls, by their kind. The operations: one file for each group. They take the context of a call and the stages that
//! they need, and touch no lock of a stage.

mod attributes;
mod batch;
mod content;
mod delegations;
mod names;
mod opens;
mod reclaim;

use bytes::Bytes;
use thalweg_fs::{FsError, Ino};
use thalweg_net::keys::Access;

use super::context::{Answered, RequestContext, Response};
use super::stages::{Op, Stages};
use crate::protocol::{Request, session_request};
pub(super) use reclaim::reclaim;

/// Carries out a call, if the session may make it and its user may do it. Each kind is named: a new one does not compile
/// before it is carried out here.
pub(super) async fn carry_out(
    ctx: &RequestContext<'_>,
    stages: &Stages,
    request: &Request,
    payload: Bytes,
) -> Answered {
    let op = check(Op { ctx, stages })?;
    match &*stages.authorize.call(ctx, request).await? {
        session_request!() => Err(FsError::Invalid("the call is one of a session")),
        Request::RequestDelegation { ino } => delegations::request(op, *ino).await,
        Request::Reserve => delegations::reserve_numbers(ctx).await,
        Request::Room { quota } => Ok(Response { room_for: vec![*quota], ..Response::done() }),
        Request::Stage { part, replaces } => Ok(batch::stage(op, *part, (payload, *replaces))),
        batch @ Request::Batch { .. } => batch::apply(op, &payload, batch).await,
        Request::ReachContents { address } => content::reach_contents(op, address).await,
        Request::ExtendWriteBound { ino, end } => content::extend_write_bound(op, *ino, *end).await,
        Request::KeepSizeRecord { ino, instead_of } => {
            content::keep_size_record(op, *ino, *instead_of).await
        }
        Request::Lookup { parent, name } => names::look_up(op, *parent, name).await,
        Request::Parent { directory } => names::parent(op, *directory).await,
        Request::Path { ino } => names::path(op, *ino).await,
        Request::UsedMeanwhile => delegations::used_meanwhile(op).await,
        Request::Attributes { ino, .. } => attributes::attributes(op, *ino).await,
        Request::SetAttributes { ino, change } => attributes::set(op, *ino, change).await,
        Request::Create { parent, name, new } => {
            names::create(op, (*parent, name), new, payload).await
        }
        Request::Link { ino, parent, name } => names::link(op, *ino, (*parent, name)).await,
        Request::Unlink { parent, name, .. } => names::unlink(op, (*parent, name), false).await,
        Request::RemoveDirectory { parent, name, .. } => {
            names::unlink(op, (*parent, name), true).await
        }
        Request::Rename { from, to, how, .. } => names::rename(op, from, to, *how).await,
        Request::ReadLink { ino } => names::read_link(op, *ino).await,
        Request::ReadDirectory { ino, from, most, attributes } => {
            names::list(op, *ino, (*from, *most), *attributes).await
        }
        Request::Read { ino, offset, len, pages } => {
            content::read(op, *ino, *offset, *len, *pages).await
        }
        Request::Write { ino, at, how } => content::write(op, *ino, *at, payload, *how).await,
        Request::Allocate { ino, offset, len, how } => {
            content::allocate(op, *ino, *offset, *len, *how).await
        }
        Request::Seek { ino, offset, what } => content::seek(op, *ino, *offset, *what).await,
        Request::Copy { from, to, len } => content::copy(op, *from, *to, *len).await,
        Request::Sync { ino, content_only } => content::sync(op, *ino, *content_only).await,
        Request::SyncAll => content::sync_all(stages).await,
        Request::Level { ino, wait } => content::level(ctx, *ino, *wait).await,
        Request::Xattr { ino, name } => attributes::xattr(op, *ino, name).await,
        Request::SetXattr { ino, name, how } => {
            attributes::set_xattr(op, *ino, name, payload, *how).await
        }
        Request::Xattrs { ino } => attributes::xattrs(op, *ino).await,
        Request::RemoveXattr { ino, name } => attributes::remove_xattr(op, *ino, name).await,
        Request::Statistics => content::statistics(ctx).await,
        Request::Open { handle, caller, ino, flags, late, delegation } => {
            opens::open(op, (caller, *handle), (*ino, *flags), (*late, *delegation)).await
        }
        Request::Flush { ino, handle, owner } => opens::flush(ctx, *ino, *handle, *owner).await,
        Request::Release { ino, handle } => opens::release(op, *ino, *handle).await,
        Request::Lock { ino, lock, wait } => opens::lock(op, *ino, lock, *wait).await,
        Request::Unlock { ino, kind, owner, range } => {
            opens::unlock(ctx, *ino, (*kind, *owner), *range).await
        }
        Request::ConflictingLock { ino, lock } => opens::conflicting(ctx, *ino, lock).await,
    }
}

/// Whether the session may do this at all: its client knows the inodes, and may change what it changes.
fn check(op: Op<'_>) -> Result<Op<'_>, FsError> {
    let ctx = op.ctx;
    if ctx.footprint.writes && ctx.session.visitor.access == Access::Read {
        return Err(FsError::ReadOnly);
    }
    ctx.footprint.inodes.iter().try_for_each(|ino| ctx.session.knows(*ino)).map(|()| op)
}

/// The response to a call that the server before this one has carried out without answering it.
pub(super) async fn response_of(
    ctx: &RequestContext<'_>,
    stages: &Stages,
    request: &Request,
    payload: &Bytes,
    outcome: u64,
) -> Answered {
    let op = Op { ctx, stages };
    match request {
        Request::Batch { staged, .. } => batch::made_before(payload, *staged),
        Request::Create { .. } => {
            let made = attributes::attributes(op, Ino(outcome)).await?;
            Ok(Response { wants: Default::default(), ..made })
        }
        Request::SetAttributes { ino, .. } | Request::Link { ino, .. } => {
            attributes::attributes(op, *ino).await
        }
        Request::Write { .. } | Request::Copy { .. } => Ok(Response::number(outcome)),
        _ => Ok(Response::done()),
    }
}
