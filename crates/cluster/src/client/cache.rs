//! What a client may use without a call: attributes, names, and that names are absent.
//!
//! Everything in it was granted by the server, which invalidates it before it changes. It is used only while the lease
//! lasts; when the lease is renewed it is valid again, because the server would have ended the session before it changed
//! something that this client had not dropped.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::{HashMap, Time};
use thalweg_fs::mutation::ByteMutations;
use thalweg_fs::{Answer, Attributes, Cookie, Ino, Kind, Lookup, Timestamp, Validity};
use thalweg_net::keys::Squash;

use super::Shared;
use super::delegated::Delegation;
use super::dentries::{Names, NewName};
use super::queue::WritebackQueue;
use crate::protocol::{Changed, Grants, Reclaim};

/// The inodes that a client knows.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) nodes: HashMap<Ino, Box<Node>>,
    /// Inodes that were removed, and that the server has not been told of: each with its stamp.
    gone: Vec<(Ino, u64)>,
    /// The same, of which the server was told, and may not have heard.
    told_gone: Vec<(Ino, u64)>,
    /// Until when it may be used.
    pub(super) lease_end: Time,
    /// What this client has made by itself.
    pub(super) queue: WritebackQueue,
    /// The server has asked for no more inodes than this.
    most: Option<usize>,
    /// This client may store bytes of files itself.
    pub(super) is_direct: bool,
    /// The users of this client that act as another one at the server.
    pub(super) squash: Squash,
    /// The changes of bytes that a batch may have.
    pub(super) bytes: ByteMutations,
}

/// An inode.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// If they may be used.
    pub(super) attributes: Option<Attributes>,
    /// If names of the directory may be used.
    pub(super) names: Option<Box<Names>>,
    /// Changes of this client that are under way. Nothing that they concern is put into the cache.
    pub(super) changing: u32,
    /// The stamp of the last answer that named it.
    pub(super) stamp: u64,
    /// Shows to the next server that this one has named it.
    pub(super) inode_token: u64,
    /// The caller may cache its pages.
    content: bool,
    /// The caller may cache pages without the server's knowledge, since the file was this client's alone.
    cached_under_delegation: bool,
    /// It has lost its last name.
    removed: bool,
    /// References of the caller.
    references: u64,
    /// It was used since the last sweep.
    pub(super) used: bool,
    /// Whether it is this client's alone.
    pub(super) delegation: Delegation,
    /// The file as it was when the server was last told that it is read: its time of change, as a number.
    read_at: Option<NonZeroU64>,
}

impl Cache {
    /// What a server says of changes of bytes, and whether this client may store them itself.
    pub(super) fn set_bytes(&mut self, bytes: ByteMutations, is_direct: bool) {
        (self.bytes, self.is_direct) = (bytes, is_direct);
    }

    /// The write bound of a new file; 0 where this client stores no bytes.
    pub(super) fn new_write_bound(&self) -> u64 {
        if self.is_direct { self.bytes.end } else { 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A call that was sent at `sent` was answered.
    pub(super) fn renew(&mut self, sent: Time, lease: Duration) {
        self.lease_end = self.lease_end.max(sent + lease);
    }

    /// How long attributes may be used by a caller's own cache.
    pub(super) fn validity(&self, now: Time) -> Validity {
        let attributes = match self.lease_end > now {
            true => self.lease_end.since(now),
            false => Duration::ZERO,
        };
        // The caller's kernel would have to lock a directory to drop a name of it, which a call under way may have
        // locked. So the kernel asks for each name.
        Validity { entry: Duration::ZERO, attributes }
    }

    /// Cached attributes.
    pub(super) fn attributes(&mut self, ino: Ino, now: Time) -> Option<Answer> {
        if self.lease_end <= now {
            return None;
        }
        let valid = self.validity(now);
        let node = self.nodes.get_mut(&ino)?;
        node.used = true;
        let shown = node.attributes.filter(|_| !node.delegation.is_estimate);
        shown.map(|attributes| Answer { attributes, valid })
    }

    /// The attributes of a file whose bytes are all where contents are kept, and do not change as long as these stay valid.
    pub(super) fn steady(&self, ino: Ino, now: Time) -> Option<Attributes> {
        let node = self.nodes.get(&ino)?;
        let is_steady = self.lease_end > now && node.changing == 0 && node.delegation.unsent == 0;
        node.attributes.filter(|it| is_steady && it.kind == Kind::File)
    }

    /// The same for a read that begins, unless the server has to note its time.
    pub(super) fn before_read(&mut self, ino: Ino, now: Time, wall: u64) -> Option<Attributes> {
        let found = self.steady(ino, now)?;
        let node = self.nodes.get_mut(&ino)?;
        node.used = true;
        let changed = number_of(found.changed);
        let is_told = changed.is_some() && std::mem::replace(&mut node.read_at, changed) == changed;
        (is_told || !found.is_read_due(Timestamp::of_nanos(wall))).then_some(found)
    }

    /// The attributes that this client has given an inode, if the server does not have all of that.
    pub(super) fn unsent(&self, ino: Ino, now: Time) -> Option<Answer> {
        let node = self.nodes.get(&ino).filter(|node| node.delegation.unsent > 0)?;
        let valid = if node.delegation.is_estimate { Validity::NONE } else { self.validity(now) };
        node.attributes.map(|attributes| Answer { attributes, valid })
    }

    /// A cached name, or a name that is known to be absent.
    pub(super) fn lookup(&mut self, parent: Ino, name: &[u8], now: Time) -> Option<Lookup> {
        if self.lease_end <= now {
            return None;
        }
        let node = self.nodes.get_mut(&parent)?;
        node.used = true;
        match node.names.as_ref()?.known(name)? {
            NewName::Present(ino) => self.attributes(ino, now).map(Lookup::Found),
            NewName::Absent => Some(Lookup::Absent(Duration::ZERO)),
        }
    }

    /// The inode of a name, if it is known.
    pub(super) fn target(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        match self.nodes.get(&parent)?.names.as_ref()?.known(name)? {
            NewName::Present(ino) => Some(ino),
            NewName::Absent => None,
        }
    }

    /// An answer names an inode; with `keep`, its attributes may be used. How long the caller may use them.
    pub(super) fn learn(
        &mut self,
        attributes: &Attributes,
        (stamp, inode_token): (u64, u64),
        keep: bool,
        now: Time,
    ) -> Validity {
        let valid = self.validity(now);
        let node = self.nodes.entry(attributes.ino).or_default();
        node.stamp = node.stamp.max(stamp);
        node.inode_token = inode_token;
        node.used = true;
        match keep && node.changing == 0 && node.delegation.unsent == 0 {
            true => {
                node.attributes = Some(*attributes);
                node.delegation.is_estimate = false;
                valid
            }
            false => Validity::NONE,
        }
    }

    /// Names of a directory may be used from now on; with `complete`, it is a new one without any.
    pub(super) fn hold_names(&mut self, directory: Ino, complete: bool) {
        let node = self.nodes.entry(directory).or_default();
        let names = node.names.get_or_insert_default();
        names.complete |= complete;
    }

    /// These entries of a directory follow `from`, and their names may be used. When all were listed, all names are known.
    pub(super) fn hold_listed(
        &mut self,
        directory: Ino,
        from: Cookie,
        entries: &[(Bytes, Ino, Cookie)],
    ) {
        self.hold_names(directory, false);
        let Some(node) = self.nodes.get_mut(&directory) else { return };
        let is_steady = node.changing == 0;
        let Some(names) = node.names.as_mut() else { return };
        let follows = from == Cookie::START || names.listed == Some(from);
        names.listed = match entries.last() {
            _ if !follows || !is_steady => None,
            Some((.., last)) => Some(*last),
            None => {
                names.complete = true;
                None
            }
        };
        for (name, ino, _) in entries {
            self.learn_name(directory, name, NewName::Present(*ino));
        }
    }

    /// The caller may cache pages of a file.
    pub(super) fn hold_content(&mut self, ino: Ino) {
        self.nodes.entry(ino).or_default().content = true;
    }

    /// Whether the server knows that the caller caches pages of a file.
    pub(super) fn holds_content(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.content)
    }

    /// The caller may cache pages of a file that is this client's alone; the server does not know.
    pub(super) fn cache_under_delegation(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.cached_under_delegation |= !node.content;
        }
    }

    /// The server knows from now on that the caller caches pages of a file. Whether the caller may have cached some before.
    pub(super) fn tell_content(&mut self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        node.content = true;
        std::mem::take(&mut node.cached_under_delegation)
    }

    /// That the client knows an inode.
    pub(super) fn reclaim(&self, ino: Ino) -> Option<Reclaim> {
        let Node { stamp, inode_token, .. } = **self.nodes.get(&ino)?;
        (stamp > 0).then_some(Reclaim { ino, stamp, inode_token, held: Grants::default() })
    }

    /// What the client knows and caches, for the next server, and what is `needed` by changes that are made again: if the
    /// client has forgotten that, the server is told once more. It does not know anything else that was about to be
    /// forgotten.
    pub(super) fn reclaims(&mut self, needed: impl Iterator<Item = Reclaim>) -> Vec<Reclaim> {
        let mut forgotten: Vec<Reclaim> =
            needed.filter(|it| !self.nodes.contains_key(&it.ino)).collect();
        // The last answer that named it has the highest stamp.
        forgotten.sort_unstable_by_key(|it| (it.ino, std::cmp::Reverse(it.stamp)));
        forgotten.dedup_by_key(|it| it.ino);
        self.gone = forgotten.iter().map(|it| (it.ino, it.stamp)).collect();
        let reclaim = |(ino, node): (&Ino, &Node)| {
            let held = Grants {
                attributes: node.attributes.is_some(),
                names: node.names.is_some(),
                content: node.content,
                // Until the server has what this client has made, no other client may see the inode, also when it was released here.
                delegation: self.is_granted(*ino) || node.delegation.unsent > 0,
            };
            // The server does not know yet what this client has made by itself.
            let is_told = node.stamp > 0 || node.delegation.unsent == 0;
            let is_known = is_told && (node.stamp > 0 || held != Grants::default());
            let Node { stamp, inode_token, .. } = *node;
            is_known.then_some(Reclaim { ino: *ino, stamp, inode_token, held })
        };
        let mut reclaims: Vec<Reclaim> =
            self.nodes.iter().map(|(ino, node)| (ino, &**node)).filter_map(reclaim).collect();
        reclaims.extend(forgotten);
        reclaims.sort_unstable_by_key(|reclaim| reclaim.ino);
        reclaims
    }

    /// An answer says what a name is.
    pub(super) fn learn_name(&mut self, parent: Ino, name: &[u8], found: NewName) {
        let Some(node) = self.nodes.get_mut(&parent) else { return };
        if node.changing > 0 {
            return;
        }
        if let Some(names) = &mut node.names {
            names.set(name, found);
        }
    }

    /// A change of this client has made a name what it is, if no other change may have followed.
    pub(super) fn changed_name(&mut self, parent: Ino, name: &[u8], found: NewName) {
        let Some(node) = self.nodes.get_mut(&parent) else { return };
        if let Some(names) = node.names.as_mut().filter(|names| names.is_changing(name)) {
            names.set(name, found);
        }
    }

    /// A change of this client begins: what it concerns is dropped.
    fn begin(&mut self, changes: &[Changed]) {
        for change in changes {
            self.drop_changed(change);
            let Changed::Name { parent, name } = change else { continue };
            // Of two changes under way it is not known which comes last.
            if let Some(node) = self.nodes.get_mut(parent).filter(|node| node.changing == 0)
                && let Some(names) = &mut node.names
            {
                names.begin_change(name);
            }
        }
        for ino in inodes(changes) {
            self.nodes.entry(ino).or_default().changing += 1;
        }
    }

    fn end(&mut self, changes: &[Changed]) {
        for ino in inodes(changes) {
            // It is not forgotten meanwhile.
            let node = self.nodes.get_mut(&ino).expect("an inode that changes is known");
            assert!(node.changing > 0, "a change of an inode ends twice");
            node.changing -= 1;
        }
    }

    /// The server has invalidated something. Whether the caller may cache it.
    pub(super) fn drop_changed(&mut self, change: &Changed) -> bool {
        let Some(node) = self.nodes.get_mut(&change.ino()) else { return false };
        match change {
            Changed::Delegation(ino) => self.share(*ino),
            Changed::Attributes(_) => node.attributes = None,
            Changed::Names(_) => node.names = None,
            Changed::Pages(_) => (node.content, node.cached_under_delegation) = (false, false),
            Changed::Content { .. } | Changed::Size { .. } => {}
            Changed::Name { name, .. } => {
                if let Some(names) = &mut node.names {
                    names.forget(name);
                }
            }
        }
        true
    }

    pub(super) fn reference(&mut self, ino: Ino) {
        self.nodes.entry(ino).or_default().references += 1;
    }

    /// Returns whether the server is to be told at once that the inode is gone.
    pub(super) fn unreference(&mut self, ino: Ino, count: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        node.references = node.references.saturating_sub(count);
        // One that was removed is to be gone soon; the rest may be needed again.
        let has_names = node.attributes.is_some_and(|it| it.links > 0);
        let is_needed = node.changing > 0 || node.delegation.unsent > 0 || has_names;
        if node.references > 0 || is_needed {
            return false;
        }
        let removed = node.removed;
        self.gone.push((ino, node.stamp));
        self.nodes.remove(&ino);
        removed
    }

    /// An inode has lost its last name. Returns whether the server is to be told at once that it is gone.
    pub(super) fn removed(&mut self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        (node.removed, node.attributes) = (true, None);
        self.unreference(ino, 0)
    }

    /// Inodes that were removed, with their stamps.
    pub(super) fn take_gone(&mut self) -> Vec<(Ino, u64)> {
        std::mem::take(&mut self.gone)
    }

    /// The server was told of these.
    pub(super) fn told_gone(&mut self, gone: Vec<(Ino, u64)>) {
        self.told_gone.extend(gone);
    }

    /// Those of which the server was told; before its next answer it has heard that.
    pub(super) fn take_told_gone(&mut self) -> Vec<(Ino, u64)> {
        std::mem::take(&mut self.told_gone)
    }

    /// The server may not have been told of these.
    pub(super) fn put_back_gone(&mut self, gone: Vec<(Ino, u64)>) {
        self.gone.extend(gone);
    }

    /// The server asks for no more inodes than this.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = Some(most);
    }

    /// Whether there are more inodes than the server has asked for.
    pub(super) fn is_too_large(&mut self) -> bool {
        self.most = self.most.filter(|most| self.nodes.len() > *most);
        self.most.is_some()
    }

    /// Removes inodes that the caller does not refer to and that were not used since the last sweep.
    pub(super) fn sweep(&mut self) {
        let gone = &mut self.gone;
        self.nodes.retain(|ino, node| {
            let is_busy = node.changing > 0 || node.delegation.unsent > 0;
            let stays = node.references > 0 || is_busy || node.used;
            node.used = false;
            if !stays {
                gone.push((*ino, node.stamp));
            }
            stays
        });
    }

    /// The session has ended: nothing may be used. The inodes that the caller may cache.
    pub(super) fn clear(&mut self) -> Vec<Ino> {
        self.lease_end = Time::default();
        self.gone.clear();
        self.told_gone.clear();
        for node in self.nodes.values_mut() {
            node.attributes = None;
            node.names = None;
            (node.content, node.cached_under_delegation) = (false, false);
            node.stamp = 0;
            // Mutations of a batch that is under way: their outcome is still to come.
            node.delegation = node.delegation.ended();
        }
        let mut inodes: Vec<Ino> = self.nodes.keys().copied().collect();
        inodes.sort_unstable();
        inodes
    }
}

/// A number for a time: another one for each that filesystems store.
fn number_of(time: Timestamp) -> Option<NonZeroU64> {
    NonZeroU64::new((time.seconds as u64) << 30 | u64::from(time.nanos))
}

/// The inodes that a change concerns, each once.
fn inodes(changes: &[Changed]) -> impl Iterator<Item = Ino> {
    let is_first = |at: usize| !changes[..at].iter().any(|it| it.ino() == changes[at].ino());
    (0..changes.len()).filter(move |at| is_first(*at)).map(|at| changes[at].ino())
}

/// A change of this client that is under way: nothing that it concerns is used, or put into the cache. It ends with the
/// last clone.
pub(super) type Changing = Arc<ChangeGuard>;

pub(super) struct ChangeGuard {
    shared: Arc<Shared>,
    changes: Vec<Changed>,
}

impl ChangeGuard {
    pub(super) fn begin(shared: &Arc<Shared>, changes: Vec<Changed>) -> Changing {
        shared.cache.lock().begin(&changes);
        Arc::new(ChangeGuard { shared: shared.clone(), changes })
    }
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        self.shared.cache.lock().end(&self.changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_knows_many_inodes() {
        // The allocator's next size is a quarter more.
        assert!(size_of::<Node>() <= 224, "{}", size_of::<Node>());
    }
}
