//! Calls about attributes.

use bytes::Bytes;
use thalweg_fs::{AttributeChange, FsError, Ino, SetXattr};

use super::Shared;
use super::job::Job;
use super::outcome::{Outcome, Wants};
use crate::protocol::{Answer, Footprint, MAX_PAYLOAD, encode_list};

/// Bytes of the length of a name, or of a list of names, in a message at most.
const LENGTH_OF_NAME: usize = 10;

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
        print: &Footprint<'_>,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Outcome, FsError> {
        let _change = self.begin(job, print.changed()).await?;
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
        let set = job.filesystem.set_attributes(ino, change).await?;
        if let Some((turn, behind)) = turn.zip(behind) {
            turn.replaced(behind);
        }
        self.tell_size(job, ino, before).await;
        Ok(Outcome::of(Answer::Inode(set.attributes)))
    }

    pub(super) async fn set_xattr(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        (ino, name): (Ino, &Bytes),
        value: Bytes,
        how: SetXattr,
    ) -> Result<Outcome, FsError> {
        let _change = self.begin(job, print.changed()).await?;
        self.lose_group(job, ino, name).await?;
        self.changing_quota(job, name, job.filesystem.set_xattr(ino, name, value, how)).await?;
        Ok(Outcome::done())
    }

    pub(super) async fn remove_xattr(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Outcome, FsError> {
        let _change = self.begin(job, print.changed()).await?;
        self.changing_quota(job, name, job.filesystem.remove_xattr(ino, name)).await?;
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

    pub(super) async fn read_link(&self, ino: Ino) -> Result<Outcome, FsError> {
        Ok(Outcome::with(Answer::Bytes, vec![self.filesystem.read_link(ino).await?]))
    }

    pub(super) async fn xattr(
        &self,
        job: &Job<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Outcome, FsError> {
        let value = self.filesystem.xattr(ino, name).await;
        job.sees_inodes(&self.undurable, &[ino]);
        Ok(Outcome::with(Answer::Bytes, vec![value?]))
    }

    pub(super) async fn xattrs(&self, job: &Job<'_>, ino: Ino) -> Result<Outcome, FsError> {
        let names = self.filesystem.xattrs(ino).await;
        job.sees_inodes(&self.undurable, &[ino]);
        let names = self.known_names(job, names?);
        let bytes: usize = names.iter().map(|name| name.len() + LENGTH_OF_NAME).sum();
        match bytes + LENGTH_OF_NAME > MAX_PAYLOAD {
            true => Err(FsError::AttributeTooLarge),
            false => Ok(Outcome::with(Answer::Names, vec![encode_list(&names)])),
        }
    }
}
