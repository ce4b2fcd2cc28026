//! Calls about attributes, and all calls by their kind.

use bytes::Bytes;
use thalweg_fs::{AttributeChange, FsError, Ino, SetXattr};
use thalweg_net::keys::Access;

use super::Shared;
use super::job::Job;
use super::outcome::{Outcome, Wants};
use super::session::Session;
use crate::protocol::{Answer, Changed, MAX_PAYLOAD, Request};

impl Shared {
    pub(super) async fn attributes(&self, job: &Job<'_>, ino: Ino) -> Result<Outcome, FsError> {
        let since = self.capabilities.now();
        let found = self.filesystem.attributes(ino).await;
        job.sees_inodes(&self.undurable, &[ino]);
        let found = found?;
        let wants = Wants { since, attributes: Some(ino), ..Wants::default() };
        Ok(Outcome { wants, ..Outcome::of(Answer::Inode(found.attributes)) })
    }

    pub(super) async fn set_attributes(
        &self,
        job: &Job<'_>,
        ino: Ino,
        change: AttributeChange,
    ) -> Result<Outcome, FsError> {
        let mut changes = vec![Changed::Attributes(ino)];
        // Zeros may follow, and the last page has other bytes behind its end.
        changes.extend(change.size.map(|_| Changed::Content { ino, from: 0, to: u64::MAX }));
        let _change = self.begin(job, changes).await?;
        let before = match change.size {
            Some(_) => self.size_for_others(job, ino).await,
            None => None,
        };
        let behind = change.size.map(|size| size..u64::MAX);
        let mut turn = match &behind {
            Some(_) => self.turn(job, ino).await,
            None => None,
        };
        if let Some((turn, behind)) = turn.as_mut().zip(behind.clone()) {
            turn.replaces(behind);
        }
        let set = job.filesystem.set_attributes(ino, &change).await?;
        if let Some((turn, behind)) = turn.zip(behind) {
            turn.replaced(behind);
        }
        self.tell_size(job, ino, before).await;
        Ok(Outcome::of(Answer::Inode(set.attributes)))
    }

    async fn set_xattr(
        &self,
        job: &Job<'_>,
        (ino, name): (Ino, Bytes),
        value: Bytes,
        how: SetXattr,
    ) -> Result<Outcome, FsError> {
        let _change = self.begin(job, vec![Changed::Attributes(ino)]).await?;
        self.lose_group(job, ino, &name).await?;
        self.changing_quota(job, &name, job.filesystem.set_xattr(ino, &name, value, how)).await?;
        Ok(Outcome::done())
    }

    async fn remove_xattr(&self, job: &Job<'_>, ino: Ino, name: Bytes) -> Result<Outcome, FsError> {
        let _change = self.begin(job, vec![Changed::Attributes(ino)]).await?;
        self.changing_quota(job, &name, job.filesystem.remove_xattr(ino, &name)).await?;
        Ok(Outcome::done())
    }

    /// Changes an extended attribute. Before one that is a limit of a quota is changed, the clients send what they have made by
    /// themselves, and release all directories and files: with these they learn for which quota they count.
    async fn changing_quota(
        &self,
        job: &Job<'_>,
        name: &[u8],
        change: impl Future<Output = Result<(), FsError>>,
    ) -> Result<(), FsError> {
        if !thalweg_fs::is_quota_attribute(name) {
            return change.await;
        }
        let recalls = {
            let mut table = self.capabilities.lock();
            table.change_quotas();
            table.all_exclusive()
        };
        self.invalidate(job, recalls).await;
        let changed = change.await;
        self.capabilities.lock().change_quotas();
        changed
    }

    /// Carries out a call.
    pub(super) async fn carry_out(
        &self,
        job: &Job<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Outcome, FsError> {
        self.check(job.session, &request)?;
        let request = self.permit(job, request).await?;
        let filesystem = &self.filesystem;
        match request {
            Request::Lookup { parent, name } => self.look_up(job, parent, &name).await,
            Request::Parent { directory } => self.parent(job, directory).await,
            Request::Attributes { ino, .. } => self.attributes(job, ino).await,
            Request::SetAttributes { ino, change } => self.set_attributes(job, ino, change).await,
            Request::Create { parent, name, new } => {
                self.create(job, (parent, name), new, payload).await
            }
            Request::Link { ino, parent, name } => self.link(job, ino, (parent, name)).await,
            Request::Unlink { parent, name, target } => {
                self.unlink(job, (parent, name), target, false).await
            }
            Request::RemoveDirectory { parent, name, target } => {
                self.unlink(job, (parent, name), target, true).await
            }
            Request::Rename { from, to, how, targets } => {
                self.rename(job, from, to, how, targets).await
            }
            Request::ReadLink { ino } => {
                Ok(Outcome::with(Answer::Bytes, vec![filesystem.read_link(ino).await?]))
            }
            Request::ReadDirectory { ino, from, most, attributes } => {
                self.list(job, ino, from, most as usize, attributes).await
            }
            Request::Xattr { ino, name } => {
                let value = filesystem.xattr(ino, &name).await;
                job.sees_inodes(&self.undurable, &[ino]);
                Ok(Outcome::with(Answer::Bytes, vec![value?]))
            }
            Request::SetXattr { ino, name, how } => {
                self.set_xattr(job, (ino, name), payload, how).await
            }
            Request::Xattrs { ino } => {
                let names = filesystem.xattrs(ino).await;
                job.sees_inodes(&self.undurable, &[ino]);
                let names = postcard::to_allocvec(&self.known_names(job, names?));
                let names = Bytes::from(names.unwrap_or_default());
                match names.len() > MAX_PAYLOAD {
                    true => Err(FsError::AttributeTooLarge),
                    false => Ok(Outcome::with(Answer::Names, vec![names])),
                }
            }
            Request::RemoveXattr { ino, name } => self.remove_xattr(job, ino, name).await,
            Request::Acquire { ino } => self.acquire(job, ino).await,
            Request::Reserve => self.reserve(job.session).await,
            Request::Batch { sync, charged } => self.batch(job, &payload, (sync, &charged)).await,
            Request::Room { quota } => Ok(Outcome { room_for: vec![quota], ..Outcome::done() }),
            Request::Statistics => {
                Ok(Outcome::of(Answer::Statistics(filesystem.statistics().await?)))
            }
            request => self.use_content(job, request, payload).await,
        }
    }

    /// Whether the session may do this at all: its client knows the inodes, and may change what it changes.
    fn check(&self, session: &Session, request: &Request) -> Result<(), FsError> {
        let (inodes, changes) = request.touched();
        if changes && session.visitor.access == Access::Read {
            return Err(FsError::ReadOnly);
        }
        inodes.into_iter().flatten().try_for_each(|ino| session.knows(ino))
    }
}
