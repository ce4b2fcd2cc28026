//! Bytes of files.

use bytes::Bytes;
use thalweg_fs::{Allocation, Ino, Seek, WriteAt, WriteHow};

use super::super::context::RequestContext;
use super::super::replay::Replacement;
use super::super::response::{Answered, Response};
use super::super::stages::Stages;
use super::growth::Growth;
use crate::protocol::{Answer, MAX_PAYLOAD};

pub(super) async fn read(
    ctx: &RequestContext<'_>,
    Stages { recall, commit_on_share, .. }: &Stages,
    ino: Ino,
    (offset, len): (u64, u32),
    pages: bool,
) -> Answered {
    let len = (len as usize).min(MAX_PAYLOAD);
    if pages {
        recall.hold_pages(ctx, ino, offset..offset.saturating_add(len as u64)).await;
    }
    let read = ctx.files.read(ino, offset, len).await;
    commit_on_share.saw(ctx, [ino]);
    Ok(Response::with(Answer::Bytes, read?))
}

pub(super) async fn seek(
    ctx: &RequestContext<'_>,
    Stages { commit_on_share, .. }: &Stages,
    ino: Ino,
    offset: u64,
    what: Seek,
) -> Answered {
    let found = ctx.files.seek(ino, offset, what).await;
    commit_on_share.saw(ctx, [ino]);
    Ok(Response::number(found?))
}

/// The bytes are the payload.
pub(super) async fn write(
    ctx: &RequestContext<'_>,
    Stages { recall, open_files, replay, .. }: &Stages,
    (ino, at): (Ino, WriteAt),
    data: Bytes,
    how: WriteHow,
) -> Answered {
    let _change = recall.begin(ctx).await?;
    let growth = Growth::watch(ctx, open_files, ino).await;
    let offset = match at {
        WriteAt::End => replay.append(ctx, ino, data, how).await?,
        WriteAt::Offset(offset) => {
            let range = offset..offset.saturating_add(data.len() as u64);
            replay.replace(ctx, (ino, range), &Replacement::Bytes(data, how)).await?;
            offset
        }
    };
    Growth::notify(growth).await;
    Ok(Response::number(offset))
}

pub(super) async fn allocate(
    ctx: &RequestContext<'_>,
    Stages { recall, open_files, replay, .. }: &Stages,
    (ino, offset, len): (Ino, u64, u64),
    how: Allocation,
) -> Answered {
    let _change = recall.begin(ctx).await?;
    let growth = Growth::watch(ctx, open_files, ino).await;
    let range = offset..offset.saturating_add(len);
    replay.replace(ctx, (ino, range), &Replacement::Space(how)).await?;
    Growth::notify(growth).await;
    Ok(Response::done())
}

pub(super) async fn copy(
    ctx: &RequestContext<'_>,
    Stages { recall, open_files, replay, commit_on_share, .. }: &Stages,
    from: (Ino, u64),
    (ino, offset): (Ino, u64),
    len: u64,
) -> Answered {
    let _change = recall.begin(ctx).await?;
    let growth = Growth::watch(ctx, open_files, ino).await;
    let range = offset..offset.saturating_add(len);
    let copied = replay.replace(ctx, (ino, range), &Replacement::Copy(from.0, from.1)).await;
    // Also a copy that has failed may be one in part.
    Growth::notify(growth).await;
    commit_on_share.saw(ctx, [from.0]);
    Ok(Response::number(copied?))
}
