//! Durability: syncs, and how far inodes have come.

use std::time::Duration;

use thalweg_fs::{Ino, Level};

use super::super::context::RequestContext;
use super::super::response::{Answered, Response};
use super::super::stages::{Op, Stages};
use crate::protocol::Answer;

/// The server waits for replicas no longer than this in one call; the client asks again.
const MAX_WAIT: Duration = Duration::from_secs(1);

pub(super) async fn sync(op: Op<'_>, ino: Ino, content_only: bool) -> Answered {
    let commit_on_share = &op.stages.commit_on_share;
    if commit_on_share.has_changed(ino) {
        commit_on_share.make_durable().await?;
    } else {
        op.ctx.files.sync(ino, content_only).await?;
    }
    Ok(Response::done())
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
