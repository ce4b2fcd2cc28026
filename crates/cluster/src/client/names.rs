//! Calls about names and attributes.

use std::time::Duration;

use bytes::Bytes;
use thalweg_fs::{
    Answer as FileAnswer, AttributeChange, Cookie, Entry, FsError, Ino, Lookup, NewNode, Node,
    Rename, Seek,
};
use thalweg_net::keys::Squash;

use super::cached::NewName;
use super::error::{LinkError, unexpected};
use super::listings::Wanted;
use super::stages::Stages;
use super::user;
use super::{listings, own_listing};
use crate::protocol::{Answer, ListedEntry, MAX_ENTRIES, Reply, Request, decode_entries};

/// Whether a mode has set-user-id or set-group-id.
fn is_privileged(mode: u16) -> bool {
    mode & 0o6000 != 0
}

pub(super) async fn look_up(stages: &Stages, parent: Ino, name: &[u8]) -> Result<Lookup, FsError> {
    // Where dots lead, a rename changes without a word about this name.
    let is_cached = !matches!(name, b"." | b"..");
    if is_cached && let Some(found) = stages.base.cache.lookup(parent, name) {
        return Ok(found);
    }
    let name = Bytes::copy_from_slice(name);
    let request = Request::Lookup { parent, name: name.clone() };
    let cache = stages.base.cache.clone();
    let then = move |reply: &Reply, _: &Bytes| {
        if !reply.grants.names {
            return;
        }
        match &reply.answer {
            Answer::Inode(found) => cache.learn_name(parent, &name, NewName::Present(found.ino)),
            Answer::Absent => cache.learn_name(parent, &name, NewName::Absent),
            _ => {}
        }
    };
    let (reply, _) = stages.call(request, Vec::new(), then).await?;
    match reply.answer {
        Answer::Absent => Ok(Lookup::Absent(Duration::ZERO)),
        _ => stages.learned(&reply).map(Lookup::Found),
    }
}

/// The attributes of an inode. With `shown`, the caller's cache shows them to programs.
pub(super) async fn attributes(
    stages: &Stages,
    ino: Ino,
    shown: bool,
) -> Result<FileAnswer, FsError> {
    let grant = match stages.base.cache.attributes(ino) {
        Some(found) => return Ok(found),
        None => stages.base.lack_holes(ino),
    };
    let found = stages.request_attributes(ino, shown).await?;
    if let Some(grant) = grant {
        let request = Request::Seek { ino, offset: 0, what: Seek::Hole };
        if let Ok((Answer::Number(hole), _)) = stages.request(request).await {
            stages.base.learn_holes(grant, &found.attributes, hole);
        }
    }
    Ok(found)
}

pub(super) async fn set_attributes(
    stages: &Stages,
    ino: Ino,
    change: AttributeChange,
) -> Result<FileAnswer, FsError> {
    let is_privileged =
        change.uid.is_some() || change.gid.is_some() || change.mode.is_some_and(is_privileged);
    let is_mutation = change.size.is_none() || stages.base.inodes.lock(ino).rules.bytes.sizes;
    let set = || stages.base.set_delegated(ino, &change);
    // What a server that checks users makes of privileges is not foreseen.
    if (!is_privileged || stages.base.session.squash() == Squash::None)
        && is_mutation
        && let Some(set) = stages.change_locally(ino, set).await?
    {
        stages.writeback.throttle().await?;
        return Ok(stages.shown(set));
    }
    let begin = || {
        if let Some(size) = change.size {
            stages.base.bounds.clear(ino, stages.base.now());
            // Unless nothing is left, it may have a hole at its end.
            stages.base.inodes.with(ino, |node| node.delegation.is_dense &= size == 0);
        }
    };
    let base = stages.base.clone();
    let then = move |reply: &Reply| {
        if change.size == Some(0) && matches!(reply.answer, Answer::Inode(_)) {
            base.losses.forget(ino);
        }
    };
    let request = Request::SetAttributes { ino, change };
    let reply = stages.change(request, Vec::new(), begin, then).await?;
    stages.learned(&reply)
}

pub(super) async fn create(
    stages: &Stages,
    parent: Ino,
    name: &[u8],
    new: &NewNode,
) -> Result<FileAnswer, FsError> {
    let squash = stages.base.session.squash();
    let mut new = new.clone();
    if let Some(user) = user::seen_as(squash) {
        (new.uid, new.gid) = (user.uid, user.gid);
    }
    let is_device = matches!(new.node, Node::BlockDevice(_) | Node::CharDevice(_));
    if (squash == Squash::None || !is_device && !is_privileged(new.mode))
        && let Some(after) = stages.base.options.exclusive
    {
        stages.prepare_names(parent, after).await?;
        let create = || stages.base.create_delegated(parent, name, &new);
        if let Some(made) = stages.change_locally(parent, create).await? {
            let made = made?;
            stages.writeback.throttle().await?;
            return Ok(stages.shown(made));
        }
    }
    let name = Bytes::copy_from_slice(name);
    let mut payload = Vec::new();
    if let Node::Symlink(target) = &mut new.node {
        payload.push(std::mem::take(target));
    }
    let request = Request::Create { parent, name: name.clone(), new };
    let cache = stages.base.cache.clone();
    let then = move |reply: &Reply| {
        if let Answer::Inode(made) = &reply.answer {
            cache.changed_name(parent, &name, NewName::Present(made.ino));
            if reply.grants.names {
                cache.hold_new(made.ino);
            }
        }
    };
    let reply = stages.change(request, payload, || {}, then).await?;
    stages.learned(&reply)
}

pub(super) async fn link(
    stages: &Stages,
    ino: Ino,
    (parent, name): (Ino, &[u8]),
) -> Result<FileAnswer, FsError> {
    stages.complete_attributes(ino).await?;
    let link = || stages.base.link_delegated(ino, (parent, name));
    if let Some(linked) = stages.change_locally(parent, link).await? {
        stages.writeback.throttle().await?;
        return Ok(stages.shown(linked));
    }
    let request = Request::Link { ino, parent, name: Bytes::copy_from_slice(name) };
    let begin = || stages.base.revoke_all_of(ino);
    let reply = stages.change(request, Vec::new(), begin, |_| {}).await?;
    stages.learned(&reply)
}

pub(super) async fn unlink(
    stages: &Stages,
    parent: Ino,
    name: &[u8],
    is_directory: bool,
) -> Result<(), FsError> {
    let target = stages.base.cache.target(parent, name);
    prepare_removal(stages, target).await?;
    let unlink = || stages.base.unlink_delegated((parent, name), is_directory);
    if let Some(done) = stages.change_locally(parent, unlink).await? {
        stages.writeback.throttle().await?;
        return done;
    }
    // While the change is under way, new names in the directory would be calls, too.
    stages.writeback.send_waiting().await?;
    let target = stages.base.cache.target(parent, name);
    let name = Bytes::copy_from_slice(name);
    let request = if is_directory {
        Request::RemoveDirectory { parent, name: name.clone(), target }
    } else {
        Request::Unlink { parent, name: name.clone(), target }
    };
    let cache = stages.base.cache.clone();
    let then = move |reply: &Reply| {
        if reply.answer == Answer::Done {
            cache.changed_name(parent, &name, NewName::Absent);
            target.inspect(|target| cache.remove(*target));
        }
    };
    stages.change(request, Vec::new(), || {}, then).await.map(drop)
}

pub(super) async fn rename(
    stages: &Stages,
    from: (Ino, &[u8]),
    to: (Ino, &[u8]),
    how: Rename,
) -> Result<(), FsError> {
    let target_of = |(parent, name): (Ino, &[u8])| stages.base.cache.target(parent, name);
    check_whole(stages, from, target_of(from)).await?;
    prepare_removal(stages, target_of(to)).await?;
    if let Some(moved) = target_of(from) {
        stages.complete_attributes(moved).await?;
    }
    stages.complete_attributes(to.0).await?;
    let rename = || stages.base.rename_delegated(from, to, how);
    if let Some(done) = stages.change_locally(from.0, rename).await? {
        stages.writeback.throttle().await?;
        return done;
    }
    stages.writeback.send_waiting().await?;
    let targets = [from, to].map(target_of);
    check_whole(stages, from, targets[0]).await?;
    let owned = |(parent, name): (Ino, &[u8])| (parent, Bytes::copy_from_slice(name));
    let request = Request::Rename { from: owned(from), to: owned(to), how, targets };
    let begin = || stages.base.revoke_moved(from.0, to.0, &targets);
    let replaced = targets[1].filter(|it| how == Rename::Replace && targets[0] != Some(*it));
    let cache = stages.base.cache.clone();
    let then = move |reply: &Reply| {
        if reply.answer == Answer::Done {
            replaced.inspect(|replaced| cache.remove(*replaced));
        }
    };
    stages.change(request, Vec::new(), begin, then).await.map(drop)
}

/// Has what is needed to remove a name of this inode without the server. The server is to know before that of an inode which programs
/// have open: so it keeps that also when it restarts, and gets the removal then.
async fn prepare_removal(stages: &Stages, target: Option<Ino>) -> Result<(), FsError> {
    let Some(target) = target else { return Ok(()) };
    let is_unknown = stages.base.inodes.is(target, |node| node.cached.stamp == 0);
    if is_unknown && stages.open_files.is_open(target) {
        stages.writeback.send_waiting().await?;
    }
    stages.complete_attributes(target).await
}

/// Fails if changes of the file of a name were lost: a program that replaces another file by it would lose both.
async fn check_whole(
    stages: &Stages,
    (parent, name): (Ino, &[u8]),
    target: Option<Ino>,
) -> Result<(), FsError> {
    if stages.base.losses.is_empty() {
        return Ok(());
    }
    let source = match target {
        Some(target) => target,
        None => match Box::pin(look_up(stages, parent, name)).await? {
            Lookup::Found(found) => found.attributes.ino,
            Lookup::Absent(_) => return Ok(()),
        },
    };
    stages.base.losses.of_bytes(source).map_or(Ok(()), Err)
}

pub(super) async fn list(stages: &Stages, wanted: Wanted) -> Result<Vec<Entry>, FsError> {
    if let Some(listed) = own_listing::list(&stages.base, wanted) {
        return Ok(listed);
    }
    if listings::is_own(wanted.from) {
        return list_rest(stages, wanted).await;
    }
    list_by_call(stages, wanted).await
}

/// The entries of a directory behind a place in a listing by this client, which cannot go on with that.
async fn list_rest(stages: &Stages, wanted: Wanted) -> Result<Vec<Entry>, FsError> {
    let Wanted { from, most, .. } = wanted;
    let mut next = Wanted { from: Cookie::START, most: MAX_ENTRIES, ..wanted };
    let mut rest = Vec::new();
    loop {
        let listed = list_by_call(stages, next).await?;
        let last = listed.last().map(|last| last.cookie);
        rest.extend(listed.into_iter().filter_map(|entry| {
            let cookie = listings::place_of(&entry.name);
            (cookie > from).then_some(Entry { cookie, ..entry })
        }));
        // A large directory is not kept as a whole.
        if last.is_none() || rest.len() >= 2 * most.max(MAX_ENTRIES) {
            rest.sort_unstable_by_key(|entry| entry.cookie);
            rest.truncate(most);
        }
        match last {
            Some(last) => next.from = last,
            None => return Ok(rest),
        }
    }
}

async fn list_by_call(stages: &Stages, wanted: Wanted) -> Result<Vec<Entry>, FsError> {
    let Wanted { directory: ino, from, most, attributes } = wanted;
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let request = Request::ReadDirectory { ino, from, most, attributes };
    let cache = stages.base.cache.clone();
    let then = move |reply: &Reply, payload: &Bytes| {
        let Ok(entries) = decode_entries(payload) else { return };
        if reply.grants.names {
            cache.hold_listed(ino, from, &entries);
        }
        for (entry, keep) in entries {
            if let Some((attributes, inode_token)) = entry.attributes {
                cache.learn(&attributes, (reply.stamp, inode_token), keep);
            }
        }
    };
    let (reply, payload) = stages.call(request, Vec::new(), then).await?;
    if reply.answer != Answer::Entries {
        return unexpected();
    }
    let entries = decode_entries(&payload).map_err(|_| LinkError::Unexpected)?;
    let shown = |(entry, _): (ListedEntry, bool)| Entry {
        name: entry.name,
        ino: entry.ino,
        kind: entry.kind,
        cookie: entry.cookie,
        attributes: entry.attributes.map(|(found, ..)| stages.base.cache.valid(found)),
    };
    Ok(entries.into_iter().map(shown).collect())
}
