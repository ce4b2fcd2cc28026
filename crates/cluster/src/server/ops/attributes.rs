//! Attributes, and extended attributes.

use bytes::Bytes;
use thalweg_fs::access::ACCESS_LIST;
use thalweg_fs::{AttributeChange, FsError, Ino, SetXattr};

use super::super::capabilities::GrantRequest;
use super::content::{notify_growth, size_for_others};
use super::{Answered, Op, Response, Stages};
use crate::protocol::{Answer, MAX_PAYLOAD, encode_list};

/// Bytes of the length of a name, or of a list of names, in a message at most.
const LENGTH_OF_NAME: usize = 10;

pub(super) async fn attributes(Op { ctx, stages }: Op<'_>, ino: Ino) -> Answered {
    let since = stages.capabilities.now();
    let found = ctx.files.attributes(ino).await;
    stages.commit_on_share.saw(ctx, [ino]);
    let wants = GrantRequest { since, attributes: Some(ino), ..GrantRequest::default() };
    Ok(Response { wants, ..Response::of(Answer::Inode(found?.attributes)) })
}

pub(super) async fn set(op: Op<'_>, ino: Ino, change: &AttributeChange) -> Answered {
    let Op { ctx, stages: Stages { recall, replay, .. } } = op;
    let _change = recall.begin(ctx).await?;
    let before = match change.size {
        Some(_) => size_for_others(op, ino).await,
        None => None,
    };
    let set = replay.set_attributes(ctx, ino, change).await?;
    notify_growth(op, ino, before).await;
    Ok(Response::of(Answer::Inode(set.attributes)))
}

pub(super) async fn xattr(Op { ctx, stages }: Op<'_>, ino: Ino, name: &[u8]) -> Answered {
    let value = ctx.files.xattr(ino, name).await;
    stages.commit_on_share.saw(ctx, [ino]);
    Ok(Response::with(Answer::Bytes, vec![value?]))
}

pub(super) async fn xattrs(Op { ctx, stages }: Op<'_>, ino: Ino) -> Answered {
    let names = ctx.files.xattrs(ino).await;
    stages.commit_on_share.saw(ctx, [ino]);
    let mut names = names?;
    if let Some(user) = stages.authorize.user(ctx) {
        names.retain(|name| user.rules.may_know(name));
    }
    let bytes: usize = names.iter().map(|name| name.len() + LENGTH_OF_NAME).sum();
    if bytes + LENGTH_OF_NAME > MAX_PAYLOAD {
        return Err(FsError::AttributeTooLarge);
    }
    Ok(Response::with(Answer::Names, vec![encode_list(&names)]))
}

/// The value is the payload.
pub(super) async fn set_xattr(
    op: Op<'_>,
    ino: Ino,
    name: &[u8],
    value: Bytes,
    how: SetXattr,
) -> Answered {
    let Op { ctx, stages } = op;
    let _change = stages.recall.begin(ctx).await?;
    if let Some(user) = stages.authorize.user(ctx).filter(|_| name == ACCESS_LIST) {
        user.lose_group(ino).await?;
    }
    changing_quota(op, name, ctx.files.set_xattr(ino, name, value, how)).await
}

pub(super) async fn remove_xattr(op: Op<'_>, ino: Ino, name: &[u8]) -> Answered {
    let _change = op.stages.recall.begin(op.ctx).await?;
    changing_quota(op, name, op.ctx.files.remove_xattr(ino, name)).await
}

/// Changes an extended attribute. Before one that is a limit of a quota is changed, the clients send what they have made by
/// themselves, and release all directories and files: with these they learn for which quota they count.
async fn changing_quota(
    op: Op<'_>,
    name: &[u8],
    change: impl Future<Output = Result<(), FsError>>,
) -> Answered {
    let Op { ctx, stages: Stages { capabilities, recall, .. } } = op;
    let changed = if thalweg_fs::is_quota_attribute(name) {
        recall.invalidate(ctx, capabilities.begin_quota_change()).await;
        let changed = change.await;
        capabilities.end_quota_change();
        changed
    } else {
        change.await
    };
    changed.map(|()| Response::done())
}
