//! Calls about bytes of files.

use bytes::Bytes;
use thalweg_fs::{Allocation, FsError, Ino, Seek, WriteAt, WriteHow};

use super::Shared;
use super::context::RequestContext;
use super::replay::Replacement;
use super::response::Response;
use crate::protocol::{Answer, Footprint, MAX_PAYLOAD};

impl Shared {
    pub(super) async fn read(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        (offset, len): (u64, u32),
        pages: bool,
    ) -> Result<Response, FsError> {
        let len = (len as usize).min(MAX_PAYLOAD);
        if pages {
            let range = offset..offset.saturating_add(len as u64);
            self.hold_pages(ctx, ino, range).await;
        }
        let read = self.filesystem.read(ino, offset, len).await;
        ctx.sees_inodes(&self.commit_on_share, &[ino]);
        Ok(Response::with(Answer::Bytes, read?))
    }

    pub(super) async fn seek(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        offset: u64,
        what: Seek,
    ) -> Result<Response, FsError> {
        let found = self.filesystem.seek(ino, offset, what).await;
        ctx.sees_inodes(&self.commit_on_share, &[ino]);
        Ok(Response::of(Answer::Number(found?)))
    }

    pub(super) async fn sync(&self, ino: Ino, content_only: bool) -> Result<Response, FsError> {
        match self.commit_on_share.has_changed(ino) {
            true => self.make_durable().await?,
            false => self.filesystem.sync(ino, content_only).await?,
        }
        Ok(Response::done())
    }

    pub(super) async fn reach_contents(
        &self,
        ctx: &RequestContext<'_>,
        address: &str,
    ) -> Result<Response, FsError> {
        let direct = self.direct().ok_or(FsError::NotSupported)?;
        direct.admit(ctx.session.serial, address).await?;
        ctx.session.state.lock().is_direct = !address.is_empty();
        Ok(Response::done())
    }

    pub(super) async fn extend_write_bound(&self, ino: Ino, end: u64) -> Result<Response, FsError> {
        let direct = self.direct().ok_or(FsError::NotSupported)?;
        // As after an open.
        if self.commit_on_share.has_new_content(ino) {
            self.make_durable().await?;
        }
        Ok(Response::of(Answer::Number(direct.extend_write_bound(ino, end).await?)))
    }

    pub(super) async fn keep_size_record(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        instead_of: Option<Ino>,
    ) -> Result<Response, FsError> {
        let direct = self.direct().ok_or(FsError::NotSupported)?;
        let keeps = direct.keep_size_record(ctx.session.serial, ino, instead_of).await?;
        Ok(Response::of(Answer::Number(keeps.into())))
    }

    pub(super) async fn copy(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<Response, FsError> {
        let end = to.1.saturating_add(len);
        let _change = self.recall(ctx, print.changed()).await?;
        let with = Replacement::Copy(from.0, from.1);
        let before = self.size_for_others(ctx, to.0).await;
        let copied = self.replace(ctx, (to.0, to.1..end), &with).await;
        self.tell_size(ctx, to.0, before).await;
        ctx.sees_inodes(&self.commit_on_share, &[from.0]);
        Ok(Response::of(Answer::Number(copied?)))
    }

    pub(super) async fn write(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        (ino, at): (Ino, WriteAt),
        data: Bytes,
        how: WriteHow,
    ) -> Result<Response, FsError> {
        let _change = self.recall(ctx, print.changed()).await?;
        let before = self.size_for_others(ctx, ino).await;
        let WriteAt::Offset(offset) = at else {
            let turn = self.turn(ctx, ino).await;
            let len = data.len() as u64;
            let went = ctx.filesystem.write(ino, at, vec![data], how).await?;
            turn.into_iter().for_each(|turn| turn.replaced(went..went + len));
            self.tell_size(ctx, ino, before).await;
            return Ok(Response::of(Answer::Number(went)));
        };
        let range = offset..offset.saturating_add(data.len() as u64);
        self.replace(ctx, (ino, range), &Replacement::Bytes(data, how)).await?;
        self.tell_size(ctx, ino, before).await;
        Ok(Response::of(Answer::Number(offset)))
    }

    pub(super) async fn allocate(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        (ino, offset, len): (Ino, u64, u64),
        how: Allocation,
    ) -> Result<Response, FsError> {
        let _change = self.recall(ctx, print.changed()).await?;
        let range = offset..offset.saturating_add(len);
        let before = self.size_for_others(ctx, ino).await;
        self.replace(ctx, (ino, range), &Replacement::Space(how)).await?;
        self.tell_size(ctx, ino, before).await;
        Ok(Response::done())
    }
}
