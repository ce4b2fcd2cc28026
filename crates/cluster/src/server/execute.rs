//! Carries out calls, by their kind.

use bytes::Bytes;
use thalweg_fs::FsError;
use thalweg_net::keys::Access;

use super::Shared;
use super::context::RequestContext;
use super::response::Response;
use super::session::Session;
use crate::protocol::{Answer, Footprint, Request};

impl Shared {
    /// Carries out a call, if the session may make it and its user may do it. Each kind is named: a new one does not compile
    /// before it is carried out here.
    pub(super) async fn carry_out(
        &self,
        ctx: &RequestContext<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Response, FsError> {
        check(ctx.session, &request.footprint(payload.len()))?;
        let request = &self.authorize(ctx, request).await?;
        let print = &request.footprint(payload.len());
        match request {
            Request::Attach { .. }
            | Request::Reclaim
            | Request::ReclaimOpen { .. }
            | Request::ReclaimLock { .. }
            | Request::ReclaimNumbers { .. }
            | Request::ReclaimRoom { .. }
            | Request::Reclaimed
            | Request::Renew
            | Request::Detach
            | Request::Forget
            | Request::Cancel(_) => Err(FsError::Invalid("the call is one of a session")),
            Request::RequestDelegation { ino } => self.acquire(ctx, *ino).await,
            Request::Reserve => self.reserve(ctx.session).await,
            Request::Room { quota } => Ok(Response { room_for: vec![*quota], ..Response::done() }),
            Request::Batch { sync, charged, .. } => self.batch(ctx, &payload, *sync, charged).await,
            Request::ReachContents { address } => self.reach_contents(ctx, address).await,
            Request::ExtendWriteBound { ino, end } => self.extend_write_bound(*ino, *end).await,
            Request::KeepSizeRecord { ino, instead_of } => {
                self.keep_size_record(ctx, *ino, *instead_of).await
            }
            Request::Lookup { parent, name } => self.look_up(ctx, *parent, name).await,
            Request::Parent { directory } => self.parent(ctx, *directory).await,
            Request::Attributes { ino, .. } => self.attributes(ctx, *ino).await,
            Request::SetAttributes { ino, change } => {
                self.set_attributes(ctx, print, *ino, change).await
            }
            Request::Create { parent, name, new } => {
                self.create(ctx, print, (*parent, name), new, payload).await
            }
            Request::Link { ino, parent, name } => {
                self.link(ctx, print, *ino, (*parent, name)).await
            }
            Request::Unlink { parent, name, .. } => {
                self.unlink(ctx, print, (*parent, name), false).await
            }
            Request::RemoveDirectory { parent, name, .. } => {
                self.unlink(ctx, print, (*parent, name), true).await
            }
            Request::Rename { from, to, how, .. } => self.rename(ctx, print, from, to, *how).await,
            Request::ReadLink { ino } => self.read_link(*ino).await,
            Request::ReadDirectory { ino, from, most, attributes } => {
                self.list(ctx, *ino, *from, *most as usize, *attributes).await
            }
            Request::Read { ino, offset, len, pages } => {
                self.read(ctx, *ino, (*offset, *len), *pages).await
            }
            Request::Write { ino, at, how } => {
                self.write(ctx, print, (*ino, *at), payload, *how).await
            }
            Request::Allocate { ino, offset, len, how } => {
                self.allocate(ctx, print, (*ino, *offset, *len), *how).await
            }
            Request::Seek { ino, offset, what } => self.seek(ctx, *ino, *offset, *what).await,
            Request::Copy { from, to, len } => self.copy(ctx, print, *from, *to, *len).await,
            Request::Sync { ino, content_only } => self.sync(*ino, *content_only).await,
            Request::SyncAll => self.make_durable().await.map(|()| Response::done()),
            Request::Level { ino, wait } => {
                Ok(Response::of(Answer::Level(self.level(*ino, *wait).await?)))
            }
            Request::Xattr { ino, name } => self.xattr(ctx, *ino, name).await,
            Request::SetXattr { ino, name, how } => {
                self.set_xattr(ctx, print, (*ino, name), payload, *how).await
            }
            Request::Xattrs { ino } => self.xattrs(ctx, *ino).await,
            Request::RemoveXattr { ino, name } => self.remove_xattr(ctx, print, *ino, name).await,
            Request::Statistics => {
                Ok(Response::of(Answer::Statistics(self.filesystem.statistics().await?)))
            }
            Request::Open { handle, caller, ino, flags, late, delegation } => {
                self.open(ctx, (caller, *handle), (*ino, *flags), (*late, *delegation)).await
            }
            Request::Flush { ino, handle, owner } => self.flush(ctx, *ino, *handle, *owner).await,
            Request::Release { ino, handle } => self.release_handle(ctx, *ino, *handle).await,
            Request::Lock { ino, lock, wait } => self.lock(ctx, (*ino, lock), *wait).await,
            Request::Unlock { ino, kind, owner, range } => {
                self.unlock(ctx, *ino, (*kind, *owner), *range).await
            }
            Request::ConflictingLock { ino, lock } => self.conflicting(ctx, *ino, lock).await,
        }
    }
}

/// Whether the session may do this at all: its client knows the inodes, and may change what it changes.
fn check(session: &Session, print: &Footprint<'_>) -> Result<(), FsError> {
    if print.writes && session.visitor.access == Access::Read {
        return Err(FsError::ReadOnly);
    }
    print.inodes.iter().try_for_each(|ino| session.knows(*ino))
}
