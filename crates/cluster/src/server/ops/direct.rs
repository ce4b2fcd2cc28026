//! Contents that clients store themselves.

use thalweg_fs::{FsError, Ino};

use super::super::context::RequestContext;
use super::super::response::{Answered, Response};
use super::super::stages::Stages;

pub(super) async fn reach_contents(
    ctx: &RequestContext<'_>,
    Stages { sessions, .. }: &Stages,
    address: &str,
) -> Answered {
    let direct = sessions.direct().ok_or(FsError::NotSupported)?;
    direct.admit(ctx.session.serial, address).await?;
    ctx.session.set_direct(!address.is_empty());
    Ok(Response::done())
}

pub(super) async fn extend_write_bound(
    Stages { sessions, commit_on_share, .. }: &Stages,
    ino: Ino,
    end: u64,
) -> Answered {
    let direct = sessions.direct().ok_or(FsError::NotSupported)?;
    // As after an open: bytes that a client wrote again after a crash would replace those that it stores from now on.
    if commit_on_share.has_new_content(ino) {
        commit_on_share.make_durable().await?;
    }
    Ok(Response::number(direct.extend_write_bound(ino, end).await?))
}

pub(super) async fn keep_size_record(
    ctx: &RequestContext<'_>,
    Stages { sessions, .. }: &Stages,
    ino: Ino,
    instead_of: Option<Ino>,
) -> Answered {
    let direct = sessions.direct().ok_or(FsError::NotSupported)?;
    let keeps = direct.keep_size_record(ctx.session.serial, ino, instead_of).await?;
    Ok(Response::number(keeps.into()))
}
