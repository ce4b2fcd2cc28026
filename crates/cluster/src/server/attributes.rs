//! Calls about attributes.

use bytes::Bytes;
use thalweg_fs::{AttributeChange, FsError, Ino, SetXattr};

use super::Shared;
use super::context::RequestContext;
use super::response::{GrantRequest, Response};
use crate::protocol::{Answer, Footprint, MAX_PAYLOAD, encode_list};

/// Bytes of the length of a name, or of a list of names, in a message at most.
const LENGTH_OF_NAME: usize = 10;

impl Shared {
    pub(super) async fn attributes(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
    ) -> Result<Response, FsError> {
        let since = self.capabilities.now();
        let found = self.filesystem.attributes(ino).await;
        ctx.sees_inodes(&self.commit_on_share, &[ino]);
        let found = found?;
        let wants = GrantRequest { since, attributes: Some(ino), ..GrantRequest::default() };
        Ok(Response { wants, ..Response::of(Answer::Inode(found.attributes)) })
    }

    pub(super) async fn set_attributes(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Response, FsError> {
        let _change = self.recall(ctx, print.changed()).await?;
        let before = match change.size {
            Some(_) => self.size_for_others(ctx, ino).await,
            None => None,
        };
        let behind = change.size.map(|size| size..u64::MAX);
        let mut turn = match &behind {
            Some(_) => self.turn(ctx, ino).await,
            None => None,
        };
        if let Some((turn, behind)) = turn.as_mut().zip(behind.clone()) {
            turn.replaces(behind);
        }
        let set = ctx.filesystem.set_attributes(ino, change).await?;
        if let Some((turn, behind)) = turn.zip(behind) {
            turn.replaced(behind);
        }
        self.tell_size(ctx, ino, before).await;
        Ok(Response::of(Answer::Inode(set.attributes)))
    }

    pub(super) async fn set_xattr(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        (ino, name): (Ino, &Bytes),
        value: Bytes,
        how: SetXattr,
    ) -> Result<Response, FsError> {
        let _change = self.recall(ctx, print.changed()).await?;
        self.lose_group(ctx, ino, name).await?;
        self.changing_quota(ctx, name, ctx.filesystem.set_xattr(ino, name, value, how)).await?;
        Ok(Response::done())
    }

    pub(super) async fn remove_xattr(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Response, FsError> {
        let _change = self.recall(ctx, print.changed()).await?;
        self.changing_quota(ctx, name, ctx.filesystem.remove_xattr(ino, name)).await?;
        Ok(Response::done())
    }

    /// Changes an extended attribute. Before one that is a limit of a quota is changed, the clients send what they have made by
    /// themselves, and release all directories and files: with these they learn for which quota they count.
    async fn changing_quota(
        &self,
        ctx: &RequestContext<'_>,
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
        self.invalidate(ctx, recalls).await;
        let changed = change.await;
        self.capabilities.lock().change_quotas();
        changed
    }

    pub(super) async fn read_link(&self, ino: Ino) -> Result<Response, FsError> {
        Ok(Response::with(Answer::Bytes, vec![self.filesystem.read_link(ino).await?]))
    }

    pub(super) async fn xattr(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Response, FsError> {
        let value = self.filesystem.xattr(ino, name).await;
        ctx.sees_inodes(&self.commit_on_share, &[ino]);
        Ok(Response::with(Answer::Bytes, vec![value?]))
    }

    pub(super) async fn xattrs(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
    ) -> Result<Response, FsError> {
        let names = self.filesystem.xattrs(ino).await;
        ctx.sees_inodes(&self.commit_on_share, &[ino]);
        let names = self.known_names(ctx, names?);
        let bytes: usize = names.iter().map(|name| name.len() + LENGTH_OF_NAME).sum();
        match bytes + LENGTH_OF_NAME > MAX_PAYLOAD {
            true => Err(FsError::AttributeTooLarge),
            false => Ok(Response::with(Answer::Names, vec![encode_list(&names)])),
        }
    }
}
