//! What a client has made by itself under delegations.

use bytes::Bytes;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::RoomShare;
use thalweg_fs::{FsError, Node};

use super::super::counters::add;
use super::super::room::check_shares;
use super::super::session::BatchPosition;
use super::{Answered, Op, Response};
use crate::protocol::{Answer, MAX_MUTATIONS, changed_by_mutations, decode_list};

fn decode(payload: &[u8]) -> Result<Vec<Mutation>, FsError> {
    decode_list(payload, MAX_MUTATIONS)
}

/// What the client is told when its mutations count.
fn made_by(mutations: &[Mutation]) -> Response {
    let made = mutations.iter().filter_map(|mutation| match &mutation.kind {
        MutationKind::Create { number, new, .. } => Some((*number, new.node == Node::Directory)),
        MutationKind::SetAttributes { .. }
        | MutationKind::Write { .. }
        | MutationKind::Stored { .. } => None,
    });
    Response { made: made.collect(), ..Response::of(Answer::Made) }
}

/// The response to a batch that the server before this one has carried out without answering it.
pub(super) fn made_before(payload: &[u8]) -> Answered {
    Ok(made_by(&decode(payload)?))
}

/// Applies what a client has made. No name is locked: a call that has locked one may wait for this.
pub(super) async fn apply(
    op: Op<'_>,
    payload: &Bytes,
    sync: bool,
    charged: &[RoomShare],
    positions: Option<(u64, u64)>,
) -> Answered {
    let Op { ctx, stages } = op;
    check_shares(charged)?;
    let mutations = decode(payload)?;
    let position = match ctx.session.journal.begin(positions).await? {
        BatchPosition::Applied => {
            // It may not be durable yet.
            ctx.depend();
            return Ok(made_by(&mutations));
        }
        BatchPosition::Next(position) => position,
    };
    let changes = mutations.iter().map(|it| (it.kind.ino(), it.kind.made()));
    ctx.session.may_make(changes, ctx.is_replay())?;
    ctx.session.journal.check_unused(&mutations)?;
    if let Some(user) = stages.authorize.user(ctx) {
        user.make(&mutations).await?;
    }
    let table = ctx.files.session_table().ok_or(FsError::NotSupported)?;
    let change = stages.recall.begin_with(ctx, changed_by_mutations(&mutations), &[]).await?;
    let applied = table.apply(&mutations, charged, position.last()).await;
    drop(change);
    if let Err(error) = applied {
        // Its client sends each half again.
        if let [mutation] = &mutations[..] {
            report_lost(op, mutation, &error).await;
        }
        return Err(error);
    }
    position.applied();
    add(&ctx.session.counters.batches, 1);
    ctx.session.use_numbers(mutations.iter().filter_map(|it| it.kind.made()));
    // A client that was away does not make its batches again at another server: it has to come back there first.
    if sync || ctx.session.journal.has_returned() {
        ctx.depend();
    }
    let room_for = charged.iter().map(|share| share.quota).collect();
    Ok(Response { room_for, ..made_by(&mutations) })
}

/// A change that a client had made by itself is lost: counts it, and says in the log of which file.
async fn report_lost(Op { ctx, stages }: Op<'_>, mutation: &Mutation, error: &FsError) {
    add(&stages.counters.refused, 1);
    let client = &ctx.session.visitor.name;
    let path = match ctx.files.session_table() {
        Some(table) => table.path_of(mutation.kind.ino()).await.unwrap_or_default(),
        None => String::new(),
    };
    let path = match &mutation.kind {
        MutationKind::Create { name, .. } => {
            format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(name))
        }
        _ => path,
    };
    tracing::error!(client, path, %error, "a change that a client had made by itself is lost");
}
