//! Bytes of files, also of those that clients store themselves; syncs, and how far inodes have come.

use std::time::Duration;

use bytes::Bytes;
use thalweg_fs::{Allocation, DirectContents, FsError, Ino, Level, Seek, WriteAt, WriteHow};

use super::super::capabilities::Late;
use super::super::replay::Replacement;
use super::{Answered, Op, RequestContext, Response, Stages};
use crate::protocol::{Answer, Changed, MAX_PAYLOAD};

/// The server waits for replicas no longer than this in one call; the client asks again.
const MAX_WAIT: Duration = Duration::from_secs(1);

pub(super) async fn read(op: Op<'_>, ino: Ino, offset: u64, len: u32, pages: bool) -> Answered {
    let len = (len as usize).min(MAX_PAYLOAD);
    if pages {
        let range = offset..offset.saturating_add(len as u64);
        op.stages.recall.hold_pages(op.ctx, ino, range).await;
    }
    let read = op.ctx.files.read(ino, offset, len).await;
    op.stages.commit_on_share.saw(op.ctx, [ino]);
    Ok(Response::with(Answer::Bytes, read?))
}

pub(super) async fn seek(op: Op<'_>, ino: Ino, offset: u64, what: Seek) -> Answered {
    let found = op.ctx.files.seek(ino, offset, what).await;
    op.stages.commit_on_share.saw(op.ctx, [ino]);
    Ok(Response::number(found?))
}

/// The bytes are the payload.
pub(super) async fn write(
    op: Op<'_>,
    ino: Ino,
    at: WriteAt,
    data: Bytes,
    how: WriteHow,
) -> Answered {
    let Op { ctx, stages: Stages { recall, replay, .. } } = op;
    let _change = recall.begin(ctx).await?;
    let before = size_for_others(op, ino).await;
    let offset = match at {
        WriteAt::End => replay.append(ctx, ino, data, how).await?,
        WriteAt::Offset(offset) => {
            let range = offset..offset.saturating_add(data.len() as u64);
            replay.replace(ctx, (ino, range), &Replacement::Bytes(data, how)).await?;
            offset
        }
    };
    notify_growth(op, ino, before).await;
    Ok(Response::number(offset))
}

pub(super) async fn allocate(
    op: Op<'_>,
    ino: Ino,
    offset: u64,
    len: u64,
    how: Allocation,
) -> Answered {
    let Op { ctx, stages: Stages { recall, replay, .. } } = op;
    let _change = recall.begin(ctx).await?;
    let before = size_for_others(op, ino).await;
    let range = offset..offset.saturating_add(len);
    replay.replace(ctx, (ino, range), &Replacement::Space(how)).await?;
    notify_growth(op, ino, before).await;
    Ok(Response::done())
}

pub(super) async fn copy(
    op: Op<'_>,
    from: (Ino, u64),
    (ino, offset): (Ino, u64),
    len: u64,
) -> Answered {
    let Op { ctx, stages: Stages { recall, replay, commit_on_share, .. } } = op;
    let _change = recall.begin(ctx).await?;
    let before = size_for_others(op, ino).await;
    let range = offset..offset.saturating_add(len);
    let copied = replay.replace(ctx, (ino, range), &Replacement::Copy(from.0, from.1)).await;
    // Also a copy that has failed may be one in part.
    notify_growth(op, ino, before).await;
    commit_on_share.saw(ctx, [from.0]);
    Ok(Response::number(copied?))
}

/// The size of a file that other clients have open: their programs may map it without asking for its size, so they are told when
/// it has grown.
pub(super) async fn size_for_others(Op { ctx, stages }: Op<'_>, ino: Ino) -> Option<u64> {
    if !stages.open_files.is_open_by_others(ctx.session.serial, ino) {
        return None;
    }
    Some(ctx.files.attributes(ino).await.ok()?.attributes.size)
}

/// A change was carried out; `before` is what [`size_for_others`] was then.
pub(super) async fn notify_growth(op: Op<'_>, ino: Ino, before: Option<u64>) {
    let Some(before) = before else { return };
    let Some(size) = size_for_others(op, ino).await.filter(|size| *size > before) else { return };
    op.ctx.wait_for_others();
    let others = op.stages.open_files.others(op.ctx.session.serial, ino).into_iter();
    let late = |session| Late { number: 0, session, change: Changed::Size { ino, size } };
    op.ctx.add_late(others.map(late));
}

fn direct(stages: &Stages) -> Result<&dyn DirectContents, FsError> {
    stages.sessions.direct().ok_or(FsError::NotSupported)
}

pub(super) async fn reach_contents(Op { ctx, stages }: Op<'_>, address: &str) -> Answered {
    direct(stages)?.admit(ctx.session.serial, address).await?;
    ctx.session.set_direct(!address.is_empty());
    Ok(Response::done())
}

pub(super) async fn extend_write_bound(Op { stages, .. }: Op<'_>, ino: Ino, end: u64) -> Answered {
    let (direct, commit_on_share) = (direct(stages)?, &stages.commit_on_share);
    // As after an open: bytes that a client wrote again after a crash would replace those that it stores from now on.
    if commit_on_share.has_new_content(ino) {
        commit_on_share.make_durable().await?;
    }
    Ok(Response::number(direct.extend_write_bound(ino, end).await?))
}

pub(super) async fn keep_size_record(op: Op<'_>, ino: Ino, instead_of: Option<Ino>) -> Answered {
    let serial = op.ctx.session.serial;
    let keeps = direct(op.stages)?.keep_size_record(serial, ino, instead_of).await?;
    Ok(Response::number(keeps.into()))
}

pub(super) async fn sync(op: Op<'_>, ino: Ino, content_only: bool) -> Answered {
    let commit_on_share = &op.stages.commit_on_share;
    if commit_on_share.has_changed(ino) {
        commit_on_share.make_durable().await?;
    } else {
        op.ctx.files.sync(ino, content_only).await?;
    }
    Ok(Response::done())
}

pub(super) async fn statistics(ctx: &RequestContext<'_>) -> Answered {
    Ok(Response::of(Answer::Statistics(ctx.files.statistics().await?)))
}

pub(super) async fn sync_all(stages: &Stages) -> Answered {
    stages.commit_on_share.make_durable().await.map(|()| Response::done())
}

/// How far an inode has come, after a wait for a level of at most so many milliseconds.
pub(super) async fn level(
    ctx: &RequestContext<'_>,
    ino: Ino,
    wait: Option<(Level, u32)>,
) -> Answered {
    let mut reached = None;
    if let Some((level, millis)) = wait {
        let within = Duration::from_millis(u64::from(millis)).min(MAX_WAIT);
        reached = ctx.files.wait_for(ino, level, within).await?.then_some(level);
    }
    let level = match reached {
        Some(level) => level,
        None => ctx.files.level(ino).await?,
    };
    Ok(Response::of(Answer::Level(level)))
}
