//! Carries out calls, by their kind.

use bytes::Bytes;
use thalweg_fs::FsError;
use thalweg_net::keys::Access;

use super::Shared;
use super::job::Job;
use super::outcome::Outcome;
use super::session::Session;
use crate::protocol::{Answer, Footprint, Request};

impl Shared {
    /// Carries out a call, if the session may make it and its user may do it. Each kind is named: a new one does not compile
    /// before it is carried out here.
    pub(super) async fn carry_out(
        &self,
        job: &Job<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Outcome, FsError> {
        check(job.session, &request.footprint(payload.len()))?;
        let request = &self.permit(job, request).await?;
        let print = &request.footprint(payload.len());
        match request {
            Request::Attach { .. }
            | Request::Claim
            | Request::ClaimOpen { .. }
            | Request::ClaimLock { .. }
            | Request::ClaimNumbers { .. }
            | Request::ClaimRoom { .. }
            | Request::Claimed
            | Request::Renew
            | Request::Detach
            | Request::Forget
            | Request::Cancel(_) => Err(FsError::Invalid("the call is one of a session")),
            Request::Acquire { ino } => self.acquire(job, *ino).await,
            Request::Reserve => self.reserve(job.session).await,
            Request::Room { quota } => Ok(Outcome { room_for: vec![*quota], ..Outcome::done() }),
            Request::Batch { sync, charged } => self.batch(job, &payload, (*sync, charged)).await,
            Request::ReachContents { address } => self.reach_contents(job, address).await,
            Request::RaiseReach { ino, end } => self.raise_reach(*ino, *end).await,
            Request::KeepTail { ino, instead_of } => self.keep_tail(job, *ino, *instead_of).await,
            Request::Lookup { parent, name } => self.look_up(job, *parent, name).await,
            Request::Parent { directory } => self.parent(job, *directory).await,
            Request::Attributes { ino, .. } => self.attributes(job, *ino).await,
            Request::SetAttributes { ino, change } => {
                self.set_attributes(job, print, *ino, change).await
            }
            Request::Create { parent, name, new } => {
                self.create(job, print, (*parent, name), new, payload).await
            }
            Request::Link { ino, parent, name } => {
                self.link(job, print, *ino, (*parent, name)).await
            }
            Request::Unlink { parent, name, .. } => {
                self.unlink(job, print, (*parent, name), false).await
            }
            Request::RemoveDirectory { parent, name, .. } => {
                self.unlink(job, print, (*parent, name), true).await
            }
            Request::Rename { from, to, how, .. } => self.rename(job, print, from, to, *how).await,
            Request::ReadLink { ino } => self.read_link(*ino).await,
            Request::ReadDirectory { ino, from, most, attributes } => {
                self.list(job, *ino, *from, *most as usize, *attributes).await
            }
            Request::Read { ino, offset, len, pages } => {
                self.read(job, *ino, (*offset, *len), *pages).await
            }
            Request::Write { ino, at, how } => {
                self.write(job, print, (*ino, *at), payload, *how).await
            }
            Request::Allocate { ino, offset, len, how } => {
                self.allocate(job, print, (*ino, *offset, *len), *how).await
            }
            Request::Seek { ino, offset, what } => self.seek(job, *ino, *offset, *what).await,
            Request::Copy { from, to, len } => self.copy(job, print, *from, *to, *len).await,
            Request::Sync { ino, content_only } => self.sync(*ino, *content_only).await,
            Request::SyncAll => self.make_durable().await.map(|()| Outcome::done()),
            Request::Level { ino, wait } => {
                Ok(Outcome::of(Answer::Level(self.level(*ino, *wait).await?)))
            }
            Request::Xattr { ino, name } => self.xattr(job, *ino, name).await,
            Request::SetXattr { ino, name, how } => {
                self.set_xattr(job, print, (*ino, name), payload, *how).await
            }
            Request::Xattrs { ino } => self.xattrs(job, *ino).await,
            Request::RemoveXattr { ino, name } => self.remove_xattr(job, print, *ino, name).await,
            Request::Statistics => {
                Ok(Outcome::of(Answer::Statistics(self.filesystem.statistics().await?)))
            }
            Request::Open { handle, caller, ino, flags, late, exclusive } => {
                self.open(job, (caller, *handle), (*ino, *flags), (*late, *exclusive)).await
            }
            Request::Flush { ino, handle, owner } => self.flush(job, *ino, *handle, *owner).await,
            Request::Release { ino, handle } => self.release_handle(job, *ino, *handle).await,
            Request::Lock { ino, lock, wait } => self.lock(job, (*ino, lock), *wait).await,
            Request::Unlock { ino, kind, owner, range } => {
                self.unlock(job, *ino, (*kind, *owner), *range).await
            }
            Request::ConflictingLock { ino, lock } => self.conflicting(job, *ino, lock).await,
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
