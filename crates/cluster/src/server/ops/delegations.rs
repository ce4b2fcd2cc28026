//! Delegations of directories, and what clients need to make something there by themselves.

use std::ops::Range;

use thalweg_fs::session_table::{Held, UsedByOthers};
use thalweg_fs::{FsError, Ino, Kind};
use thalweg_net::keys::Access;

use super::super::capabilities::GrantRequest;
use super::attributes::attributes;
use super::{Answered, Op, RequestContext, Response};
use crate::protocol::{
    Answer, Changed, MAX_CLAIMS, MAX_NUMBERS, MAX_PAYLOAD, UsedInode, encode_list,
};

/// Ranges of inode numbers that a client has at most.
const MAX_RANGES: usize = 4;
/// Of a client with a journal, where many new inodes wait.
const MAX_JOURNALED_RANGES: usize = 40;
/// Bytes of a used inode and of a range of it in a message, at most.
const USE_BYTES: usize = 40;
const RANGE_BYTES: usize = 20;
/// The list from which new inodes in a directory get theirs.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Makes a directory a client's alone, unless another one has used it lately.
pub(super) async fn request(op: Op<'_>, ino: Ino) -> Answered {
    let Op { ctx, stages } = op;
    // A client does not know the lists that what it makes would inherit. Without records its mutations could be lost or
    // applied twice.
    let may_be = stages.capabilities.is_free(ino, ctx.session.serial)
        && ctx.session.visitor.access == Access::Write
        && ctx.files.session_table().is_some()
        && !inherits(ctx, ino).await?;
    if !may_be {
        return attributes(op, ino).await;
    }
    // The other clients drop what they cache of it.
    let changes = vec![Changed::Attributes(ino), Changed::Names(ino)];
    drop(stages.recall.begin_with(ctx, changes, &[]).await?);
    let found = attributes(op, ino).await?;
    match &found.answer {
        Answer::Inode(it) if it.kind == Kind::Directory && it.links > 0 => {
            let wants = GrantRequest { delegation: Some(ino), ..found.wants };
            with_quota(ctx, ino, Response { wants, ..found }).await
        }
        _ => Ok(found),
    }
}

/// Whether new inodes in a directory inherit an access control list.
async fn inherits(ctx: &RequestContext<'_>, ino: Ino) -> Result<bool, FsError> {
    match ctx.files.xattr(ino, DEFAULT_ACL).await {
        Err(FsError::NoAttribute) => Ok(false),
        found => found.map(|_| true),
    }
}

/// A response that would delegate an inode: with room for what the client makes of it.
pub(super) async fn with_quota(ctx: &RequestContext<'_>, ino: Ino, response: Response) -> Answered {
    let Some(table) = ctx.files.session_table() else { return Ok(response) };
    let quota = table.quota_of(ino).await?;
    hold(ctx, Held { inodes: vec![ino], ..Held::default() }).await?;
    Ok(Response { quota, room_for: vec![quota], ..response })
}

/// Records what a client with a journal may change by itself, before it may: also after a crash of the server it is no other
/// client's before the journal is written back.
async fn hold(ctx: &RequestContext<'_>, held: Held) -> Result<(), FsError> {
    if !ctx.session.journal.is_kept() {
        return Ok(());
    }
    let table = ctx.files.session_table().ok_or(FsError::NotSupported)?;
    table.hold(ctx.session.serial, &held).await
}

pub(super) async fn reserve_numbers(ctx: &RequestContext<'_>) -> Answered {
    let table = ctx.files.session_table().ok_or(FsError::NotSupported)?;
    let most = if ctx.session.journal.is_kept() { MAX_JOURNALED_RANGES } else { MAX_RANGES };
    if ctx.session.ranges() >= most {
        return Err(FsError::Invalid("the client has many inode numbers"));
    }
    let Range { start: first, end } = table.reserve_numbers(MAX_NUMBERS).await?;
    let numbers = std::iter::once(first..end).collect();
    hold(ctx, Held { numbers, ..Held::default() }).await?;
    ctx.session.add_numbers(first..end, true);
    ctx.session.journal.reserve(first..end);
    let inode_token = table.inode_range_token(ctx.session.serial, first..end);
    Ok(Response::of(Answer::Numbers { first, count: end - first, inode_token }))
}

/// The client has these numbers still.
pub(super) fn reclaim_numbers(
    ctx: &RequestContext<'_>,
    (first, count): (u64, u64),
    inode_token: u64,
) -> Result<(), FsError> {
    let table = ctx.files.session_table().ok_or(FsError::NotSupported)?;
    let numbers = first..first.saturating_add(count);
    if table.inode_range_token(ctx.session.serial, numbers.clone()) != inode_token {
        return Err(FsError::Stale);
    }
    // Inodes that had some of them may be gone.
    ctx.session.add_numbers(numbers, false);
    Ok(())
}

/// What other clients have used that a client may have changed in its journal while it was away.
pub(super) async fn used_meanwhile(Op { ctx, stages }: Op<'_>) -> Answered {
    let journal = &ctx.session.journal;
    if !journal.has_returned() {
        return Ok(Response::with(Answer::Used(None), vec![encode_list::<UsedInode>(&[])]));
    }
    // What of it they have written by themselves is noted with the batch.
    let inodes: Vec<Ino> = journal.used().into_iter().map(|it| it.ino).collect();
    let recalls = stages.capabilities.recalls(ctx.session.serial, &inodes);
    stages.recall.invalidate(ctx, recalls).await;
    let mut bytes = 0;
    // Of the others the client learns when it is refused.
    let fits = |it: &UsedByOthers| {
        bytes += USE_BYTES + it.written.as_ref().map_or(0, |all| all.len() * RANGE_BYTES);
        bytes <= MAX_PAYLOAD
    };
    let used = journal.used().into_iter().take(MAX_CLAIMS).take_while(fits);
    let used =
        used.map(|UsedByOthers { ino, changed, written }| UsedInode { ino, changed, written });
    let answer = Answer::Used(journal.all_used());
    Ok(Response::with(answer, vec![encode_list(&used.collect::<Vec<_>>())]))
}
