//! What a client has made by itself under delegations.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use thalweg_env::HashSet;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::stored_ahead::StoredWrites;
use thalweg_fs::{Filesystem, FsError, Ino, Rename};

use super::super::context::RequestContext;
use super::super::counters::add;
use super::super::foreign_use::of_mutations;
use super::super::recall::RecallGuard;
use super::super::room::check_shares;
use super::super::session::{BatchPosition, Session, StoringPart};
use super::{Answered, Op, Response};
use crate::protocol::{
    Answer, MAX_MUTATIONS, MAX_PAYLOAD, MAX_SPENT, MAX_STAGED_INODES, MAX_STAGED_MUTATIONS,
    RemovedInode, Request, changed_by_mutations, decode_list, decode_list_with_ends,
};

/// Inodes that are made, each with whether it is a directory.
type Made = Vec<(Ino, bool)>;

fn decode(payload: &[u8]) -> Result<Vec<Mutation>, FsError> {
    decode_list(payload, MAX_MUTATIONS)
}

fn made_by(mutations: &[Mutation]) -> Made {
    mutations.iter().filter_map(|mutation| mutation.kind.made_node()).collect()
}

/// What the client is told when its mutations count.
fn response_of(made: Made) -> Response {
    Response { made, ..Response::of(Answer::Made) }
}

/// What a batch makes, from its payload.
fn made_of(payload: &[u8], staged: u32) -> Result<Made, FsError> {
    match staged {
        0 => Ok(made_by(&decode(payload)?)),
        _ => decode_list(payload, MAX_STAGED_INODES),
    }
}

/// The response to a batch that the server before this one has carried out without answering it.
pub(super) fn made_before(payload: &[u8], staged: u32) -> Answered {
    Ok(response_of(made_of(payload, staged)?))
}

/// Keeps a part of a batch that is to come.
pub(super) fn stage(
    Op { ctx, stages }: Op<'_>,
    part: (u64, u32),
    (payload, replaces): (Bytes, bool),
) -> Response {
    let staged = &ctx.session.staged;
    let is_kept =
        ctx.session.journal.is_kept() && staged.put(part, payload.clone(), &stages.staging_room);
    let has_ahead = || ctx.files.session_table().is_some_and(|table| table.ahead().is_some());
    if is_kept && replaces && has_ahead() {
        let (files, session) = (ctx.files.clone(), ctx.session.serial);
        let storing = async move {
            let stored = files.session_table()?.ahead()?.store_ahead(session, payload).await;
            // The batch stores it then, or fails as this did.
            stored
                .inspect_err(|error| tracing::debug!(%error, "a part is not stored ahead"))
                .ok()?
        };
        staged.set_stored(part, stages.env.spawn(storing));
    }
    Response::of(if is_kept { Answer::Done } else { Answer::Unstaged })
}

/// The mutations of a staged batch, which make these inodes, and what is stored of them; `None` if the server lacks parts of it.
async fn unstage(
    session: &Session,
    (first, staged): (u64, u32),
    made: &Made,
) -> Result<Option<(Vec<Mutation>, StoredWrites)>, FsError> {
    let Some((bytes, storing)) = session.staged.take(first, staged) else { return Ok(None) };
    let (mutations, ends): (Vec<Mutation>, Vec<usize>) =
        decode_list_with_ends(&bytes, MAX_STAGED_MUTATIONS)?.into_iter().unzip();
    if made_by(&mutations) != *made {
        return Err(FsError::Invalid("a batch makes other inodes than it says"));
    }
    let stored = stored_of(&mutations, &ends, (&bytes, storing)).await;
    Ok(Some((mutations, stored)))
}

/// The writes that are stored with the parts of the encoding of a batch, in which each mutation ends where it is said to.
async fn stored_of(
    mutations: &[Mutation],
    ends: &[usize],
    (encoded, storing): (&[u8], Vec<Option<StoringPart>>),
) -> StoredWrites {
    let mut parts = Vec::with_capacity(storing.len());
    for storing in storing {
        parts.push(match storing {
            Some(storing) => storing.await.flatten(),
            None => None,
        });
    }
    let mut stored = StoredWrites::new(parts);
    if stored.has_none() {
        return stored;
    }
    for (mutation, end) in mutations.iter().zip(ends) {
        let MutationKind::Write { ino, offset, data, .. } = &mutation.kind else { continue };
        // The last field of a write is a byte behind its data.
        let Some(start) = (end - 1).checked_sub(data.len()) else { continue };
        if encoded.get(start..end - 1) == Some(&data[..]) {
            let bytes = start as u64..*end as u64 - 1;
            stored.add((*ino, *offset), bytes, MAX_PAYLOAD as u64);
        }
    }
    stored
}

/// Applies what a client has made. No name is locked: a call that has locked one may wait for this.
pub(super) async fn apply(op: Op<'_>, payload: &Bytes, request: &Request) -> Answered {
    let Request::Batch { sync, charged, positions, staged, spent, .. } = request else {
        return Err(FsError::Invalid("the call has no mutations"));
    };
    let (sync, positions, staged) = (*sync, *positions, *staged);
    let Op { ctx, stages } = op;
    check_shares(charged)?;
    if spent.len() > MAX_SPENT {
        return Err(FsError::Invalid("too many inode numbers"));
    }
    let made = made_of(payload, staged)?;
    let position = match ctx.session.journal.begin(positions).await? {
        BatchPosition::Applied => {
            // It may not be durable yet.
            ctx.depend();
            return Ok(response_of(made));
        }
        BatchPosition::Next(position) => position,
    };
    let (mutations, stored) = match positions.filter(|_| staged > 0) {
        None => (decode(payload)?, StoredWrites::default()),
        Some(it) => match unstage(ctx.session, (it.after.position + 1, staged), &made).await? {
            Some(unstaged) => unstaged,
            None => return Ok(Response::of(Answer::Unstaged)),
        },
    };
    ctx.session.may_make(&mutations, ctx.is_replay())?;
    ctx.session.journal.check_unused(&mutations)?;
    stages.moves.check_mutations(ctx, &mutations)?;
    let kept = without_gone(ctx, &mutations).await?;
    if let Some(user) = stages.authorize.user(ctx) {
        user.make(&kept).await?;
    }
    stages.sessions.note_made(ctx.session, &kept).await?;
    let table = ctx.files.session_table().ok_or(FsError::NotSupported)?;
    let unlinked = Unlinked::reference(ctx, &mutations);
    let change = begin(op, &kept).await?;
    stages.sessions.note_uses(ctx.session.serial, || of_mutations(&kept)).await;
    // A client that had to release something has sent what it has written.
    ctx.session.journal.check_unused(&mutations)?;
    let applied = match table.ahead() {
        Some(ahead) => ahead.apply_stored(&kept, charged, position.end(), &stored).await,
        None => table.apply(&kept, charged, position.end()).await,
    };
    drop(change);
    if let Err(error) = applied {
        // Its client sends each half again.
        if let [mutation] = &mutations[..] {
            report_refused(op, mutation, &error).await;
        }
        return Err(error);
    }
    position.applied();
    add(&ctx.session.counters.batches, 1);
    let used = mutations.iter().filter_map(|it| it.kind.made());
    ctx.session.use_numbers(used.chain(spent.iter().copied()));
    // A client does not keep a staged batch for the next server. One that was away does not make its batches again at another server: it has to come back there first.
    if sync || staged > 0 || ctx.session.journal.has_returned() {
        ctx.depend();
    }
    notify_of_names(op, &mutations).await;
    let room_for = charged.iter().map(|share| share.quota).collect();
    Ok(Response { room_for, referenced: unlinked.release(), ..response_of(made) })
}

/// The changes of a batch begin: no other client has what they concern.
async fn begin<'a>(
    Op { ctx, stages }: Op<'a>,
    mutations: &[Mutation],
) -> Result<RecallGuard<'a>, FsError> {
    let changes = changed_by_mutations(mutations);
    stages.capabilities.confirm_delegations(ctx.session.serial, &changes);
    tokio::select! {
        biased;
        change = stages.recall.begin_with(ctx, changes, &[]) => change,
        // The session lapses when its batches have ended: this one may wait for a session that lapses when a batch has ended that waits
        // for this one.
        () = ctx.session.deserted() => Err(FsError::Stale),
    }
}

/// The mutations that are about something. A client with a journal may have changed bytes or attributes of an open file after it has
/// removed that; when it has rebooted, or was away, no program has the file open any more, and it may be gone. The record of a session that was
/// away may name such a file.
async fn without_gone<'a>(
    ctx: &RequestContext<'_>,
    mutations: &'a [Mutation],
) -> Result<Cow<'a, [Mutation]>, FsError> {
    if !ctx.session.journal.is_kept() {
        return Ok(Cow::Borrowed(mutations));
    }
    let made: HashSet<Ino> = mutations.iter().filter_map(|it| it.kind.made()).collect();
    let mut gone = HashSet::default();
    for kind in mutations.iter().map(|mutation| &mutation.kind) {
        let ino = kind.ino();
        let is_there = !ctx.session.journal.has_returned() && ctx.session.knows(ino).is_ok();
        let is_known = made.contains(&ino) || is_there;
        if kind.names().next().is_some() || is_known || gone.contains(&ino) {
            continue;
        }
        match ctx.files.attributes(ino).await {
            Err(FsError::Stale) => drop(gone.insert(ino)),
            found => drop(found?),
        }
    }
    if gone.is_empty() {
        return Ok(Cow::Borrowed(mutations));
    }
    let is_kept = |mutation: &&Mutation| {
        mutation.kind.names().next().is_some() || !gone.contains(&mutation.kind.ino())
    };
    Ok(mutations.iter().filter(is_kept).cloned().collect())
}

/// References to the inodes that lose names by a batch, and that the client was not told of: its programs may use these until
/// it has been.
struct Unlinked<'a> {
    files: &'a Arc<dyn Filesystem>,
    inodes: SmallVec<[Ino; 1]>,
}

impl<'a> Unlinked<'a> {
    fn reference(ctx: &'a RequestContext<'_>, mutations: &[Mutation]) -> Unlinked<'a> {
        let unlinked = mutations.iter().filter_map(|mutation| mutation.kind.unlinked());
        let distinct: HashSet<Ino> =
            unlinked.filter(|ino| ctx.session.knows(*ino).is_err()).collect();
        distinct.iter().for_each(|ino| ctx.files.reference(*ino));
        Unlinked { files: &ctx.files, inodes: distinct.into_iter().collect() }
    }

    /// The inodes, whose references are the caller's now.
    fn release(mut self) -> SmallVec<[Ino; 1]> {
        std::mem::take(&mut self.inodes)
    }
}

impl Drop for Unlinked<'_> {
    fn drop(&mut self) {
        self.inodes.iter().for_each(|ino| self.files.unreference(*ino, 1));
    }
}

/// What else other clients hear of names that have moved, or are gone.
async fn notify_of_names(Op { ctx, stages }: Op<'_>, mutations: &[Mutation]) {
    let made: HashSet<Ino> = mutations.iter().filter_map(|it| it.kind.made()).collect();
    for Mutation { kind, .. } in mutations {
        let (parent, name) = match kind {
            MutationKind::Unlink { parent, name, .. } => (parent, name),
            MutationKind::RemoveDirectory { parent, name, ino } => {
                stages.moves.root_is_gone(ctx, *ino);
                (parent, name)
            }
            MutationKind::Rename { to, how, ino, there, .. } => {
                let exchanged = there.filter(|_| *how == Rename::Exchange);
                stages.moves.root_is_moved(ctx, [Some(*ino), exchanged]);
                (&to.0, &to.1)
            }
            MutationKind::Create { .. }
            | MutationKind::SetAttributes { .. }
            | MutationKind::Write { .. }
            | MutationKind::Stored { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. }
            | MutationKind::Link { .. } => continue,
        };
        // No other client was told of what the batch has made itself.
        if let Some(ino) = kind.unlinked().filter(|ino| !made.contains(ino)) {
            let removed = RemovedInode { parent: *parent, name: name.clone(), ino };
            stages.room.notify_removed(ctx, removed).await;
        }
    }
}

/// A change that a client had made by itself is lost: counts it, and says in the log of which file. A client with a journal keeps it, and sends
/// it again.
async fn report_refused(Op { ctx, stages }: Op<'_>, mutation: &Mutation, error: &FsError) {
    let client = &ctx.session.client();
    let path = match ctx.files.session_table() {
        Some(table) => table.path_of(mutation.kind.ino()).await.unwrap_or_default(),
        None => String::new(),
    };
    let path = match mutation.kind.names().next() {
        Some((_, name)) => {
            format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(name))
        }
        None => path,
    };
    if ctx.session.journal.is_kept() {
        let why = "a change of a client is refused, which stays in its journal with all behind it";
        return tracing::warn!(client, path, %error, "{why}");
    }
    add(&stages.counters.refused, 1);
    tracing::error!(client, path, %error, "a change that a client had made by itself is lost");
}
