//! Names: looked up, listed, made, removed and renamed.

use bytes::Bytes;
use smallvec::smallvec;
use thalweg_fs::{Cookie, FsError, Ino, Kind, Lookup, NewNode, Node, Rename};

use super::super::capabilities::GrantRequest;
use super::super::context::{Answered, RequestContext, Response};
use super::super::stages::{Op, Stages};
use super::attributes::attributes;
use crate::protocol::{Answer, ListedEntry, MAX_ENTRIES, RemovedInode};

/// The inodes behind the names that a call writes of which its client does not know that.
fn surprising(ctx: &RequestContext<'_>, targets: &[Option<Ino>]) -> Vec<Ino> {
    let pairs = ctx.footprint.names.iter().flatten().zip(targets);
    pairs.filter_map(|((.., expected), target)| target.filter(|_| target != expected)).collect()
}

/// The inode of a name.
async fn target(
    ctx: &RequestContext<'_>,
    (parent, name): (Ino, &[u8]),
) -> Result<Option<Ino>, FsError> {
    match ctx.files.lookup(parent, name).await? {
        Lookup::Found(found) => Ok(Some(found.ino)),
        Lookup::Absent(_) => Ok(None),
    }
}

pub(super) async fn look_up(op: Op<'_>, parent: Ino, name: &Bytes) -> Answered {
    let Op { ctx, stages: Stages { capabilities, commit_on_share, .. } } = op;
    match &name[..] {
        b"." => return directory(op, parent).await,
        // No filesystem knows where the client's root is; and a rename does not invalidate this name.
        b".." => return directory(op, parent_of(op, parent).await?).await,
        _ => {}
    }
    let since = capabilities.now();
    let wants = GrantRequest { since, names: Some(parent), ..GrantRequest::default() };
    let looked_up = ctx.files.lookup(parent, name).await;
    commit_on_share.saw_name(ctx, parent, name);
    match looked_up? {
        Lookup::Found(found) => {
            ctx.files.reference(found.ino);
            commit_on_share.saw(ctx, [found.ino]);
            let wants = GrantRequest { attributes: Some(found.ino), ..wants };
            let answer = Answer::Inode(found.attributes);
            Ok(Response { wants, referenced: smallvec![found.ino], ..Response::of(answer) })
        }
        Lookup::Absent(_) => Ok(Response { wants, ..Response::of(Answer::Absent) }),
    }
}

/// The attributes of a directory that the client knows.
async fn directory(op: Op<'_>, ino: Ino) -> Answered {
    let response = attributes(op, ino).await?;
    match &response.answer {
        Answer::Inode(found) if found.kind != Kind::Directory => Err(FsError::NotDirectory),
        _ => Ok(response),
    }
}

/// The directory above one; its client sees nothing above its root.
async fn parent_of(
    Op { ctx, stages: Stages { commit_on_share, .. } }: Op<'_>,
    directory: Ino,
) -> Result<Ino, FsError> {
    if directory == ctx.session.root {
        return Ok(directory);
    }
    let parent = ctx.files.parent(directory).await?;
    commit_on_share.saw(ctx, [directory]);
    // It was moved out of what the client sees.
    ctx.session.knows(parent)?;
    Ok(parent)
}

pub(super) async fn parent(op: Op<'_>, directory: Ino) -> Answered {
    Ok(Response::of(Answer::Directory(parent_of(op, directory).await?)))
}

pub(super) async fn list(
    Op { ctx, stages: Stages { capabilities, commit_on_share, .. } }: Op<'_>,
    ino: Ino,
    (from, most): (Cookie, u32),
    attributes: bool,
) -> Answered {
    let since = capabilities.now();
    let most = MAX_ENTRIES.min(most as usize);
    let found = ctx.files.read_directory(ino, from, most, attributes).await;
    commit_on_share.saw(ctx, [ino]);
    let found = found?;
    let shown = found.iter().filter(|entry| entry.attributes.is_some());
    commit_on_share.saw(ctx, shown.map(|entry| entry.ino));
    let entries = found.into_iter().map(|entry| ListedEntry {
        name: entry.name,
        ino: entry.ino,
        kind: entry.kind,
        cookie: entry.cookie,
        attributes: entry.attributes.map(|answer| (answer.attributes, 0)),
    });
    let entries = Some(entries.collect());
    let wants = GrantRequest { since, names: Some(ino), ..GrantRequest::default() };
    Ok(Response { wants, entries, ..Response::of(Answer::Entries) })
}

/// The target of a symbolic link is the payload.
pub(super) async fn create(
    Op { ctx, stages: Stages { capabilities, recall, .. } }: Op<'_>,
    (parent, name): (Ino, &Bytes),
    new: &NewNode,
    payload: Bytes,
) -> Answered {
    let link;
    let new = if let Node::Symlink(_) = new.node {
        link = NewNode { node: Node::Symlink(payload), ..new.clone() };
        &link
    } else {
        new
    };
    let since = capabilities.now();
    let made = {
        let _names = recall.lock_names(&[(parent, name)]).await;
        let _change = recall.begin(ctx).await?;
        let made = ctx.files.create(parent, name, new).await?;
        ctx.files.reference(made.ino);
        made
    };
    let wants = GrantRequest {
        since,
        attributes: Some(made.ino),
        // The new directory is empty.
        names: (new.node == Node::Directory).then_some(made.ino),
        ..GrantRequest::default()
    };
    let answer = Answer::Inode(made.attributes);
    Ok(Response { wants, referenced: smallvec![made.ino], ..Response::of(answer) })
}

pub(super) async fn link(
    Op { ctx, stages: Stages { recall, .. } }: Op<'_>,
    ino: Ino,
    (parent, name): (Ino, &Bytes),
) -> Answered {
    let _names = recall.lock_names(&[(parent, name)]).await;
    let _change = recall.begin(ctx).await?;
    let linked = ctx.files.link(ino, parent, name).await?;
    Ok(Response::of(Answer::Inode(linked.attributes)))
}

/// A path of an inode that the client of a journal may have changed.
pub(super) async fn path(Op { ctx, .. }: Op<'_>, ino: Ino) -> Answered {
    let session = ctx.session;
    if !session.journal.is_kept() {
        return Err(FsError::NotSupported);
    }
    if !session.journal.has_made(ino) || session.lock().known.is_revoked(ino) {
        session.knows(ino)?;
    }
    let table = ctx.files.session_table().ok_or(FsError::NotSupported)?;
    let path = table.path_of(ino).await?;
    let root = session.visitor.path.trim_end_matches('/');
    let below = path.strip_prefix(root).filter(|it| it.is_empty() || it.starts_with('/'));
    let below = below.ok_or(FsError::NotFound)?.to_owned();
    Ok(Response::with(Answer::Bytes, vec![below.into()]))
}

pub(super) async fn unlink(
    Op { ctx, stages: Stages { authorize, recall, moves, room, .. } }: Op<'_>,
    (parent, name): (Ino, &Bytes),
    is_directory: bool,
) -> Answered {
    // What the name leads to is not known before the directory is no other client's alone.
    let _shared = recall.recall_delegations(ctx, &[parent]).await?;
    let _names = recall.lock_names(&[(parent, name)]).await;
    let target = target(ctx, (parent, name)).await?;
    if let Some(user) = authorize.user(ctx) {
        user.remove(parent, target, is_directory).await?;
    }
    let surprising = surprising(ctx, &[target]);
    let changes = ctx.footprint.changed_with([target]);
    let _change = recall.begin_with(ctx, changes, &surprising).await?;
    if is_directory {
        ctx.files.remove_directory(parent, name).await?;
        target.into_iter().for_each(|directory| moves.root_is_gone(ctx, directory));
    } else {
        ctx.files.unlink(parent, name).await?;
    }
    if let Some(ino) = target {
        room.notify_removed(ctx, RemovedInode { parent, name: name.clone(), ino }).await;
    }
    Ok(Response::done())
}

pub(super) async fn rename(
    Op { ctx, stages: Stages { authorize, recall, moves, room, .. } }: Op<'_>,
    from: &(Ino, Bytes),
    to: &(Ino, Bytes),
    how: Rename,
) -> Answered {
    let moving = moves.begin(ctx, [from.0, to.0], how).await?;
    let _shared = recall.recall_delegations(ctx, &[from.0, to.0]).await?;
    let _names = recall.lock_names(&[(from.0, &from.1), (to.0, &to.1)]).await;
    let targets = [target(ctx, (from.0, &from.1)).await?, target(ctx, (to.0, &to.1)).await?];
    if let Some(user) = authorize.user(ctx) {
        user.rename([from.0, to.0], targets, how).await?;
    }
    let surprising = surprising(ctx, &targets);
    let changes = ctx.footprint.changed_with(targets);
    let _change = recall.begin_with(ctx, changes, &surprising).await?;
    let moved = if how == Rename::Exchange { targets } else { [targets[0], None] };
    let rename = async || ctx.files.rename((from.0, &from.1), (to.0, &to.1), how).await;
    moves.carry_out(ctx, moving, moved, rename).await?;
    if let Some(ino) = targets[1].filter(|it| how == Rename::Replace && targets[0] != Some(*it)) {
        room.notify_removed(ctx, RemovedInode { parent: to.0, name: to.1.clone(), ino }).await;
    }
    Ok(Response::done())
}

pub(super) async fn read_link(Op { ctx, .. }: Op<'_>, ino: Ino) -> Answered {
    Ok(Response::with(Answer::Bytes, vec![ctx.files.read_link(ino).await?]))
}
