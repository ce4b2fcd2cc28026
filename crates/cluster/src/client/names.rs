//! Calls about names and attributes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_fs::{
    Answer as FileAnswer, AttributeChange, Attributes, Cookie, Entry, FsError, Ino, Lookup,
    NewNode, Node, Rename, Validity,
};
use thalweg_net::keys::Squash;

use super::cache::ChangeGuard;
use super::dentries::NewName;
use super::{LinkError, Shared, users};
use crate::protocol::{Answer, ListedEntry, Reply, Request, decode_entries};

/// Whether a mode has set-user-id or set-group-id.
fn is_privileged(mode: u16) -> bool {
    mode & 0o6000 != 0
}

impl Shared {
    /// An answer that names an inode.
    fn learned(&self, reply: &Reply) -> Result<FileAnswer, FsError> {
        match reply.answer {
            Answer::Inode(attributes) => Ok(self.valid(attributes)),
            _ => Err(LinkError::Unexpected.into()),
        }
    }

    /// Attributes, and how long they may be used: if the cache has them still, or has newer ones that the server does not
    /// have.
    fn valid(&self, attributes: Attributes) -> FileAnswer {
        let cached = {
            let mut cache = self.cache.lock();
            let now = self.env.now();
            match cache.unsent(attributes.ino, now) {
                Some(own) => Some(own),
                None => {
                    let cached = cache.attributes(attributes.ino, now);
                    cached.filter(|cached| cached.attributes == attributes)
                }
            }
        };
        cached.unwrap_or(FileAnswer { attributes, valid: Validity::NONE })
    }

    /// Puts the inode of an answer into the cache, where answers are received.
    pub(super) fn take_inode(&self, reply: &Reply) {
        if let Answer::Inode(attributes) = &reply.answer {
            let keep = reply.grants.attributes;
            let told = (reply.stamp, reply.inode_token);
            self.cache.lock().learn(attributes, told, keep, self.env.now());
        }
    }

    pub(super) async fn look_up(
        self: &Arc<Self>,
        parent: Ino,
        name: &[u8],
    ) -> Result<Lookup, FsError> {
        // Where dots lead, a rename changes without a word about this name.
        let is_cached = !matches!(name, b"." | b"..");
        if let Some(found) =
            self.cache.lock().lookup(parent, name, self.env.now()).filter(|_| is_cached)
        {
            return Ok(found);
        }
        let name = Bytes::copy_from_slice(name);
        let request = Request::Lookup { parent, name: name.clone() };
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            shared.take_inode(reply);
            if !reply.grants.names {
                return;
            }
            let mut cache = shared.cache.lock();
            cache.hold_names(parent, false);
            match &reply.answer {
                Answer::Inode(found) => {
                    cache.learn_name(parent, &name, NewName::Present(found.ino));
                }
                Answer::Absent => cache.learn_name(parent, &name, NewName::Absent),
                _ => {}
            }
        };
        let (reply, _) = self.call(request, Vec::new(), take).await?;
        match reply.answer {
            Answer::Absent => Ok(Lookup::Absent(Duration::ZERO)),
            _ => self.learned(&reply).map(Lookup::Found),
        }
    }

    /// The attributes of an inode. With `shown`, the caller's cache shows them to programs.
    pub(super) async fn attributes(
        self: &Arc<Self>,
        ino: Ino,
        shown: bool,
    ) -> Result<FileAnswer, FsError> {
        if let Some(found) = self.cache.lock().attributes(ino, self.env.now()) {
            return Ok(found);
        }
        let take = |shared: &Shared, reply: &Reply, _: &Bytes| shared.take_inode(reply);
        let (reply, _) = self.call(Request::Attributes { ino, shown }, Vec::new(), take).await?;
        self.learned(&reply)
    }

    pub(super) async fn set_attributes(
        self: &Arc<Self>,
        ino: Ino,
        change: AttributeChange,
    ) -> Result<FileAnswer, FsError> {
        let squash = self.cache.lock().squash;
        let is_privileged =
            change.uid.is_some() || change.gid.is_some() || change.mode.is_some_and(is_privileged);
        // What a server that checks users makes of privileges is not foreseen.
        if (squash == Squash::None || !is_privileged)
            && let Some(set) = self.local_set_attributes(ino, &change).await?
        {
            return Ok(set);
        }
        let request = Request::SetAttributes { ino, change };
        let guard = ChangeGuard::begin(self, request.footprint(0).changed());
        if let Some(size) = change.size {
            self.cache.lock().call_for_size(ino, size, self.env.now());
        }
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            let _guard = &guard;
            if change.size == Some(0) && matches!(reply.answer, Answer::Inode(_)) {
                shared.cache.lock().queue.is_empty_again(ino);
            }
            shared.take_inode(reply);
        };
        let (reply, _) = self.call(request, Vec::new(), take).await?;
        self.learned(&reply)
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
    ) -> Result<FileAnswer, FsError> {
        let squash = self.cache.lock().squash;
        let new = &match users::seen_as(squash) {
            Some(user) => NewNode { uid: user.uid, gid: user.gid, ..new.clone() },
            None => new.clone(),
        };
        let is_device = matches!(new.node, Node::BlockDevice(_) | Node::CharDevice(_));
        if (squash == Squash::None || !is_device && !is_privileged(new.mode))
            && let Some(made) = self.local_create(parent, name, new).await?
        {
            return Ok(made);
        }
        let name = Bytes::copy_from_slice(name);
        let (new, payload) = match &new.node {
            Node::Symlink(target) => {
                let node = Node::Symlink(Bytes::new());
                (NewNode { node, ..new.clone() }, vec![target.clone()])
            }
            _ => (new.clone(), Vec::new()),
        };
        let request = Request::Create { parent, name: name.clone(), new };
        let guard = ChangeGuard::begin(self, request.footprint(0).changed());
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            let _guard = &guard;
            shared.take_inode(reply);
            if let Answer::Inode(made) = &reply.answer {
                let mut cache = shared.cache.lock();
                cache.changed_name(parent, &name, NewName::Present(made.ino));
                if reply.grants.names {
                    cache.hold_names(made.ino, true);
                }
            }
        };
        let (reply, _) = self.call(request, payload, take).await?;
        self.learned(&reply)
    }

    pub(super) async fn link(
        self: &Arc<Self>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<FileAnswer, FsError> {
        let request = Request::Link { ino, parent, name: Bytes::copy_from_slice(name) };
        let guard = ChangeGuard::begin(self, request.footprint(0).changed());
        self.cache.lock().share_all_of(ino);
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            let _guard = &guard;
            shared.take_inode(reply);
        };
        let (reply, _) = self.call(request, Vec::new(), take).await?;
        self.learned(&reply)
    }

    pub(super) async fn unlink(
        self: &Arc<Self>,
        parent: Ino,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), FsError> {
        // While the change is under way, new names in the directory would be calls, too.
        self.send_waiting().await?;
        let target = self.cache.lock().target(parent, name);
        let name = Bytes::copy_from_slice(name);
        let request = match is_directory {
            true => Request::RemoveDirectory { parent, name: name.clone(), target },
            false => Request::Unlink { parent, name: name.clone(), target },
        };
        let guard = ChangeGuard::begin(self, request.footprint(0).changed());
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            let _guard = &guard;
            if reply.answer == Answer::Done {
                shared.cache.lock().changed_name(parent, &name, NewName::Absent);
                shared.lost_name(target);
            }
        };
        self.call(request, Vec::new(), take).await.map(|_| ())
    }

    pub(super) async fn rename(
        self: &Arc<Self>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        self.send_waiting().await?;
        let targets = [from, to].map(|(parent, name)| self.cache.lock().target(parent, name));
        self.check_whole(from, targets[0]).await?;
        let owned = |(parent, name): (Ino, &[u8])| (parent, Bytes::copy_from_slice(name));
        let request = Request::Rename { from: owned(from), to: owned(to), how, targets };
        let guard = ChangeGuard::begin(self, request.footprint(0).changed());
        self.share_moved(from.0, to.0, &targets);
        let replaced = targets[1].filter(|it| how == Rename::Replace && targets[0] != Some(*it));
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            let _guard = &guard;
            if reply.answer == Answer::Done {
                shared.lost_name(replaced);
            }
        };
        self.call(request, Vec::new(), take).await.map(|_| ())
    }

    /// An inode has lost a name by a call. If that was the last one, the server hears soon that the caller does not refer to it.
    fn lost_name(&self, ino: Option<Ino>) {
        let mut cache = self.cache.lock();
        let is_gone = ino.is_some_and(|ino| cache.removed(ino));
        drop(cache);
        if is_gone {
            self.gone.notify_one();
        }
    }

    /// Fails if changes of the file of a name were lost: a program that replaces another file by it would lose both.
    async fn check_whole(
        self: &Arc<Self>,
        (parent, name): (Ino, &[u8]),
        target: Option<Ino>,
    ) -> Result<(), FsError> {
        if self.cache.lock().queue.failed.is_empty() {
            return Ok(());
        }
        let source = match target {
            Some(target) => target,
            None => match Box::pin(self.look_up(parent, name)).await? {
                Lookup::Found(found) => found.attributes.ino,
                Lookup::Absent(_) => return Ok(()),
            },
        };
        self.cache.lock().queue.failure(source).map_or(Ok(()), Err)
    }

    pub(super) async fn list(
        self: &Arc<Self>,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let request = Request::ReadDirectory { ino, from, most, attributes };
        let take = move |shared: &Shared, reply: &Reply, payload: &Bytes| {
            let Ok(entries) = decode_entries(payload) else { return };
            let mut cache = shared.cache.lock();
            let now = shared.env.now();
            if reply.grants.names {
                let listed: Vec<_> =
                    entries.iter().map(|(it, _)| (it.name.clone(), it.ino, it.cookie)).collect();
                cache.hold_listed(ino, from, &listed);
            }
            for (entry, keep) in entries {
                if let Some((attributes, inode_token)) = entry.attributes {
                    cache.learn(&attributes, (reply.stamp, inode_token), keep, now);
                }
            }
        };
        let (reply, payload) = self.call(request, Vec::new(), take).await?;
        if reply.answer != Answer::Entries {
            return Err(LinkError::Unexpected.into());
        }
        let entries = decode_entries(&payload).map_err(|_| LinkError::Unexpected)?;
        let shown = |(entry, _): (ListedEntry, bool)| Entry {
            name: entry.name,
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
            attributes: entry.attributes.map(|(attributes, ..)| self.valid(attributes)),
        };
        Ok(entries.into_iter().map(shown).collect())
    }

    pub(super) async fn parent(self: &Arc<Self>, directory: Ino) -> Result<Ino, FsError> {
        match self.ask(Request::Parent { directory }).await? {
            (Answer::Directory(parent), _) => Ok(parent),
            _ => Err(LinkError::Unexpected.into()),
        }
    }
}
