//! Calls about bytes of files.

use bytes::Bytes;
use thalweg_fs::{Allocation, FsError, Ino, Seek, WriteAt, WriteHow};

use super::Shared;
use super::job::Job;
use super::outcome::Outcome;
use super::unanswered::Replacement;
use crate::protocol::{Answer, Footprint, MAX_PAYLOAD};

impl Shared {
    pub(super) async fn read(
        &self,
        job: &Job<'_>,
        ino: Ino,
        (offset, len): (u64, u32),
        pages: bool,
    ) -> Result<Outcome, FsError> {
        let len = (len as usize).min(MAX_PAYLOAD);
        if pages {
            let range = offset..offset.saturating_add(len as u64);
            self.hold_pages(job, ino, range).await;
        }
        let read = self.filesystem.read(ino, offset, len).await;
        job.sees_inodes(&self.undurable, &[ino]);
        Ok(Outcome::with(Answer::Bytes, read?))
    }

    pub(super) async fn seek(
        &self,
        job: &Job<'_>,
        ino: Ino,
        offset: u64,
        what: Seek,
    ) -> Result<Outcome, FsError> {
        let found = self.filesystem.seek(ino, offset, what).await;
        job.sees_inodes(&self.undurable, &[ino]);
        Ok(Outcome::of(Answer::Number(found?)))
    }

    pub(super) async fn sync(&self, ino: Ino, content_only: bool) -> Result<Outcome, FsError> {
        match self.undurable.has_changed(ino) {
            true => self.make_durable().await?,
            false => self.filesystem.sync(ino, content_only).await?,
        }
        Ok(Outcome::done())
    }

    pub(super) async fn reach_contents(
        &self,
        job: &Job<'_>,
        address: &str,
    ) -> Result<Outcome, FsError> {
        let direct = self.direct().ok_or(FsError::NotSupported)?;
        direct.admit(job.session.serial, address).await?;
        job.session.state.lock().is_direct = !address.is_empty();
        Ok(Outcome::done())
    }

    pub(super) async fn raise_reach(&self, ino: Ino, end: u64) -> Result<Outcome, FsError> {
        let direct = self.direct().ok_or(FsError::NotSupported)?;
        // As after an open.
        if self.undurable.has_new_content(ino) {
            self.make_durable().await?;
        }
        Ok(Outcome::of(Answer::Number(direct.raise_reach(ino, end).await?)))
    }

    pub(super) async fn keep_tail(
        &self,
        job: &Job<'_>,
        ino: Ino,
        instead_of: Option<Ino>,
    ) -> Result<Outcome, FsError> {
        let direct = self.direct().ok_or(FsError::NotSupported)?;
        let keeps = direct.keep_tail(job.session.serial, ino, instead_of).await?;
        Ok(Outcome::of(Answer::Number(keeps.into())))
    }

    pub(super) async fn copy(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<Outcome, FsError> {
        let end = to.1.saturating_add(len);
        let _change = self.begin(job, print.changed()).await?;
        let with = Replacement::Copy(from.0, from.1);
        let before = self.size_for_others(job, to.0).await;
        let copied = self.replace(job, (to.0, to.1..end), &with).await;
        self.tell_size(job, to.0, before).await;
        job.sees_inodes(&self.undurable, &[from.0]);
        Ok(Outcome::of(Answer::Number(copied?)))
    }

    pub(super) async fn write(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        (ino, at): (Ino, WriteAt),
        data: Bytes,
        how: WriteHow,
    ) -> Result<Outcome, FsError> {
        let _change = self.begin(job, print.changed()).await?;
        let before = self.size_for_others(job, ino).await;
        let WriteAt::Offset(offset) = at else {
            let turn = self.turn(job, ino).await;
            let len = data.len() as u64;
            let went = job.filesystem.write(ino, at, vec![data], how).await?;
            turn.into_iter().for_each(|turn| turn.replaced(went..went + len));
            self.tell_size(job, ino, before).await;
            return Ok(Outcome::of(Answer::Number(went)));
        };
        let range = offset..offset.saturating_add(data.len() as u64);
        self.replace(job, (ino, range), &Replacement::Bytes(data, how)).await?;
        self.tell_size(job, ino, before).await;
        Ok(Outcome::of(Answer::Number(offset)))
    }

    pub(super) async fn allocate(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        (ino, offset, len): (Ino, u64, u64),
        how: Allocation,
    ) -> Result<Outcome, FsError> {
        let _change = self.begin(job, print.changed()).await?;
        let range = offset..offset.saturating_add(len);
        let before = self.size_for_others(job, ino).await;
        self.replace(job, (ino, range), &Replacement::Space(how)).await?;
        self.tell_size(job, ino, before).await;
        Ok(Outcome::done())
    }
}
