//! Calls about bytes of files.

use bytes::Bytes;
use thalweg_fs::{Allocation, FsError, Ino, WriteAt, WriteHow};

use super::Shared;
use super::job::Job;
use super::outcome::Outcome;
use super::unanswered::Replacement;
use crate::protocol::{Answer, Changed, MAX_PAYLOAD, Request};

/// What a change of bytes changes.
fn bytes_change(ino: Ino, from: u64, to: u64) -> Vec<Changed> {
    vec![Changed::Attributes(ino), Changed::Content { ino, from, to }]
}

impl Shared {
    /// Carries out a call about bytes, or about open files.
    pub(super) async fn use_content(
        &self,
        job: &Job<'_>,
        request: Request,
        payload: Bytes,
    ) -> Result<Outcome, FsError> {
        let filesystem = &self.filesystem;
        match request {
            Request::Read { ino, offset, len, pages } => {
                let len = (len as usize).min(MAX_PAYLOAD);
                if pages {
                    let range = offset..offset.saturating_add(len as u64);
                    self.hold_pages(job, ino, range).await;
                }
                let read = filesystem.read(ino, offset, len).await;
                job.sees_inodes(&self.undurable, &[ino]);
                Ok(Outcome::with(Answer::Bytes, read?))
            }
            Request::Write { ino, at, how } => self.write(job, ino, at, payload, how).await,
            Request::Allocate { ino, offset, len, how } => {
                self.allocate(job, ino, (offset, len), how).await
            }
            Request::Seek { ino, offset, what } => {
                let found = filesystem.seek(ino, offset, what).await;
                job.sees_inodes(&self.undurable, &[ino]);
                Ok(Outcome::of(Answer::Number(found?)))
            }
            Request::Copy { from, to, len } => self.copy(job, from, to, len).await,
            Request::Sync { ino, content_only } => {
                match self.undurable.has_changed(ino) {
                    true => self.make_durable().await?,
                    false => filesystem.sync(ino, content_only).await?,
                }
                Ok(Outcome::done())
            }
            Request::SyncAll => {
                self.make_durable().await?;
                Ok(Outcome::done())
            }
            Request::ReachContents { address } => {
                let direct = self.direct().ok_or(FsError::NotSupported)?;
                direct.admit(job.session.serial, &address).await?;
                job.session.state.lock().is_direct = !address.is_empty();
                Ok(Outcome::done())
            }
            Request::RaiseReach { ino, end } => {
                let direct = self.direct().ok_or(FsError::NotSupported)?;
                // As after an open.
                if self.undurable.has_new_content(ino) {
                    self.make_durable().await?;
                }
                Ok(Outcome::of(Answer::Number(direct.raise_reach(ino, end).await?)))
            }
            Request::KeepTail { ino, instead_of } => {
                let direct = self.direct().ok_or(FsError::NotSupported)?;
                let keeps = direct.keep_tail(job.session.serial, ino, instead_of).await?;
                Ok(Outcome::of(Answer::Number(keeps.into())))
            }
            Request::Level { ino, wait } => {
                let level = self.level(ino, wait).await?;
                Ok(Outcome::of(Answer::Level(level)))
            }
            request => self.use_handle(job, request).await,
        }
    }

    async fn copy(
        &self,
        job: &Job<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<Outcome, FsError> {
        let end = to.1.saturating_add(len);
        let _change = self.begin(job, bytes_change(to.0, to.1, end)).await?;
        let with = Replacement::Copy(from.0, from.1);
        let before = self.size_for_others(job, to.0).await;
        let copied = self.replace(job, (to.0, to.1..end), &with).await;
        self.tell_size(job, to.0, before).await;
        job.sees_inodes(&self.undurable, &[from.0]);
        Ok(Outcome::of(Answer::Number(copied?)))
    }

    async fn write(
        &self,
        job: &Job<'_>,
        ino: Ino,
        at: WriteAt,
        data: Bytes,
        how: WriteHow,
    ) -> Result<Outcome, FsError> {
        let (from, to) = match at {
            WriteAt::Offset(offset) => (offset, offset.saturating_add(data.len() as u64)),
            // Where the end is, is not known before; pages behind it hold zeros.
            WriteAt::End => (0, u64::MAX),
        };
        let _change = self.begin(job, bytes_change(ino, from, to)).await?;
        let before = self.size_for_others(job, ino).await;
        let WriteAt::Offset(offset) = at else {
            let turn = self.turn(job, ino).await;
            let len = data.len() as u64;
            let went = job.filesystem.write(ino, at, vec![data], how).await?;
            turn.into_iter().for_each(|turn| turn.replaced(went..went + len));
            self.tell_size(job, ino, before).await;
            return Ok(Outcome::of(Answer::Number(went)));
        };
        self.replace(job, (ino, from..to), &Replacement::Bytes(data, how)).await?;
        self.tell_size(job, ino, before).await;
        Ok(Outcome::of(Answer::Number(offset)))
    }

    async fn allocate(
        &self,
        job: &Job<'_>,
        ino: Ino,
        (offset, len): (u64, u64),
        how: Allocation,
    ) -> Result<Outcome, FsError> {
        let changes = bytes_change(ino, offset, offset.saturating_add(len));
        let _change = self.begin(job, changes).await?;
        let range = offset..offset.saturating_add(len);
        let before = self.size_for_others(job, ino).await;
        self.replace(job, (ino, range), &Replacement::Space(how)).await?;
        self.tell_size(job, ino, before).await;
        Ok(Outcome::done())
    }
}
