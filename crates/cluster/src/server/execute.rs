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
        context: &RequestContext<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Response, FsError> {
        check(context.session, &request.footprint(payload.len()))?;
        let request = &self.authorize(context, request).await?;
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
            Request::RequestDelegation { ino } => self.acquire(context, *ino).await,
            Request::Reserve => self.reserve(context.session).await,
            Request::Room { quota } => Ok(Response { room_for: vec![*quota], ..Response::done() }),
            Request::Batch { sync, charged } => {
                self.batch(context, &payload, (*sync, charged)).await
            }
            Request::ReachContents { address } => self.reach_contents(context, address).await,
            Request::RaiseReach { ino, end } => self.extend_write_bound(*ino, *end).await,
            Request::KeepSizeRecord { ino, instead_of } => {
                self.keep_size_record(context, *ino, *instead_of).await
            }
            Request::Lookup { parent, name } => self.look_up(context, *parent, name).await,
            Request::Parent { directory } => self.parent(context, *directory).await,
            Request::Attributes { ino, .. } => self.attributes(context, *ino).await,
            Request::SetAttributes { ino, change } => {
                self.set_attributes(context, print, *ino, change).await
            }
            Request::Create { parent, name, new } => {
                self.create(context, print, (*parent, name), new, payload).await
            }
            Request::Link { ino, parent, name } => {
                self.link(context, print, *ino, (*parent, name)).await
            }
            Request::Unlink { parent, name, .. } => {
                self.unlink(context, print, (*parent, name), false).await
            }
            Request::RemoveDirectory { parent, name, .. } => {
                self.unlink(context, print, (*parent, name), true).await
            }
            Request::Rename { from, to, how, .. } => {
                self.rename(context, print, from, to, *how).await
            }
            Request::ReadLink { ino } => self.read_link(*ino).await,
            Request::ReadDirectory { ino, from, most, attributes } => {
                self.list(context, *ino, *from, *most as usize, *attributes).await
            }
            Request::Read { ino, offset, len, pages } => {
                self.read(context, *ino, (*offset, *len), *pages).await
            }
            Request::Write { ino, at, how } => {
                self.write(context, print, (*ino, *at), payload, *how).await
            }
            Request::Allocate { ino, offset, len, how } => {
                self.allocate(context, print, (*ino, *offset, *len), *how).await
            }
            Request::Seek { ino, offset, what } => self.seek(context, *ino, *offset, *what).await,
            Request::Copy { from, to, len } => self.copy(context, print, *from, *to, *len).await,
            Request::Sync { ino, content_only } => self.sync(*ino, *content_only).await,
            Request::SyncAll => self.make_durable().await.map(|()| Response::done()),
            Request::Level { ino, wait } => {
                Ok(Response::of(Answer::Level(self.level(*ino, *wait).await?)))
            }
            Request::Xattr { ino, name } => self.xattr(context, *ino, name).await,
            Request::SetXattr { ino, name, how } => {
                self.set_xattr(context, print, (*ino, name), payload, *how).await
            }
            Request::Xattrs { ino } => self.xattrs(context, *ino).await,
            Request::RemoveXattr { ino, name } => {
                self.remove_xattr(context, print, *ino, name).await
            }
            Request::Statistics => {
                Ok(Response::of(Answer::Statistics(self.filesystem.statistics().await?)))
            }
            Request::Open { handle, caller, ino, flags, late, delegation } => {
                self.open(context, (caller, *handle), (*ino, *flags), (*late, *delegation)).await
            }
            Request::Flush { ino, handle, owner } => {
                self.flush(context, *ino, *handle, *owner).await
            }
            Request::Release { ino, handle } => self.release_handle(context, *ino, *handle).await,
            Request::Lock { ino, lock, wait } => self.lock(context, (*ino, lock), *wait).await,
            Request::Unlock { ino, kind, owner, range } => {
                self.unlock(context, *ino, (*kind, *owner), *range).await
            }
            Request::ConflictingLock { ino, lock } => self.conflicting(context, *ino, lock).await,
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
