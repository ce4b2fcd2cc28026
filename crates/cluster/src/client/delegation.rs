//! Directories and files that are this client's alone: it changes names in the directories by itself, attributes and bytes of
//! what it has made there, and bytes, sizes and times of the files. It sends that later, many changes at a time.
//!
//! The server grants it for a directory. New inodes in such a directory are the client's alone, too, since other clients come
//! to them only through that directory; they wait there until the client has sent everything and released the directory.

use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Time;
use thalweg_fs::filesystem::{MAX_FILE, MAX_LINKS, MAX_NAME};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::{Room, blocks_of};
use thalweg_fs::{
    AttributeChange, Attributes, Credentials, FsError, Ino, Kind, NewNode, Node, Timestamp,
};

use super::cache::Cache;
use super::delegated::{Delegation, Grant};
use super::dentries::NewName;
use super::users;

/// How long the server takes to clear bytes, about.
const CLEARED: Duration = Duration::from_secs(2);
/// Most bytes of a mutation.
pub(super) const MAX_WRITE: usize = 512 << 10;
/// What is stored of a file is a multiple of this.
const BLOCK: u64 = 4096;

/// Whether an inode is a user's own, so that the server will not refuse to that user what is made of it here.
fn is_owned_by(it: &Attributes, user: &Credentials) -> bool {
    it.uid == user.uid && (it.kind != Kind::Directory || it.mode & 0o300 == 0o300)
}

/// Whether a new name may be made without asking the server.
fn is_plain(name: &[u8], new: &NewNode) -> bool {
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && name != b"." && name != b"..";
    let is_empty = matches!(&new.node, Node::Symlink(target) if target.is_empty());
    is_name && !is_empty && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// When the server was asked how far a file reaches: after so many changes for which it stores or clears bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

impl Cache {
    /// Whether an inode is this client's alone.
    pub(super) fn has_delegation(&self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        let (root, grant) = match (node.delegation.granted, node.delegation.within) {
            (Some(grant), _) => (ino, grant),
            (None, Some(within)) => within,
            (None, None) => return false,
        };
        self.has_grant(root, grant)
    }

    /// Whether a directory or file is this client's alone since that grant.
    fn has_grant(&self, ino: Ino, grant: Grant) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.delegation.granted == Some(grant))
    }

    /// Whether the directory was granted to this client.
    pub(super) fn is_granted(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.delegation.granted.is_some())
    }

    /// The server has granted a directory or file, which counts for this quota.
    pub(super) fn hold_delegation(&mut self, ino: Ino, quota: u64) {
        let grant = self.queue.next_grant();
        let own = &mut self.nodes.entry(ino).or_default().delegation;
        (own.granted, own.quota) = (Some(grant), quota);
    }

    /// Bytes of a file below this one may be stored without the server.
    pub(super) fn write_bound(&self, ino: Ino) -> u64 {
        self.nodes.get(&ino).map(|node| node.delegation.write_bound()).unwrap_or_default()
    }

    /// To be taken before the server is asked how far a file reaches, and given to [`Cache::set_write_bound`]. `None` while a change
    /// of the file is under way: the answer will not count.
    pub(super) fn query_write_bound(&self, ino: Ino) -> Option<Asked> {
        let is_changing = self.nodes.get(&ino).is_some_and(|node| node.changing > 0);
        (!is_changing).then_some(Asked(self.queue.by_server))
    }

    /// The server has said how far a file reaches. That does not count if it was asked before such a change.
    pub(super) fn set_write_bound(
        &mut self,
        ino: Ino,
        write_bound: u64,
        (asked, now): (Option<Asked>, Time),
    ) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let counts = asked.is_some_and(|Asked(changes)| node.delegation.by_server() <= changes);
        match (counts, write_bound) {
            (false, _) => {
                let cleared = node.delegation.cleared().unwrap_or((now, 0));
                node.delegation.clear_write_bound(cleared);
            }
            // A file that was made shorter just now has none for a while.
            (true, 0) => node.delegation.clear_write_bound((now + CLEARED, 0)),
            (true, write_bound) => node.delegation.set_write_bound(write_bound),
        }
    }

    /// Whether the server is to be asked for more, for bytes up to `end`.
    pub(super) fn wants_write_bound(&self, ino: Ino, end: u64, now: Time) -> bool {
        let Some(node) = self.nodes.get(&ino).filter(|node| node.stamp > 0) else { return false };
        match node.delegation.write_bound() {
            0 => {
                let cleared = node.delegation.cleared();
                cleared.is_some_and(|(at, mutation)| at <= now && self.queue.has(mutation))
            }
            write_bound => write_bound < end,
        }
    }

    /// The server has to clear bytes of a file before they are stored here again.
    pub(super) fn clear_bytes(&mut self, ino: Ino, now: Time) {
        // A change that is about to be made is the next mutation at the latest.
        let mutation = self.queue.last() + 1;
        if let Some(own) = self.changes_by_server(ino)
            && (own.write_bound() > 0 || own.cleared().is_some())
        {
            own.clear_write_bound((now + CLEARED, mutation));
        }
    }

    /// The server stores bytes of a file. After a crash it would do that again: so nothing else is stored here until these bytes are
    /// durable, as they are when the server says how far the file reaches.
    pub(super) fn stored_by_server(&mut self, ino: Ino, now: Time) {
        if let Some(own) = self.changes_by_server(ino)
            && own.write_bound() > 0
        {
            own.clear_write_bound((now, 0));
        }
    }

    /// The server stores or clears bytes of a file; nothing where this client stores none.
    fn changes_by_server(&mut self, ino: Ino) -> Option<&mut Delegation> {
        if !self.is_direct {
            return None;
        }
        self.queue.by_server += 1;
        let delegation = &mut self.nodes.get_mut(&ino)?.delegation;
        delegation.changed_by_server(self.queue.by_server);
        Some(delegation)
    }

    /// A directory is not this client's alone any more, and nothing that was made in it.
    pub(super) fn share(&mut self, directory: Ino) {
        if let Some(node) = self.nodes.get_mut(&directory) {
            node.delegation.granted = None;
            node.delegation.forget_creates();
        }
    }

    /// An inode gets names elsewhere, or attributes that this client does not foresee: it is not this client's alone any more,
    /// nor what is below it.
    pub(super) fn share_all_of(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let within = node.delegation.within.take();
        let is_directory = node.attributes.is_none_or(|it| it.kind == Kind::Directory);
        self.share(ino);
        if let Some((root, _)) = within.filter(|_| is_directory) {
            self.share(root);
        }
    }

    /// Whether to ask for a directory that this client is about to make a name in, by calls so far: `after` so many.
    pub(super) fn wants(&mut self, directory: Ino, after: u32, now: Time) -> bool {
        let has_delegation = self.has_delegation(directory);
        let Some(node) = self.nodes.get_mut(&directory) else { return false };
        let is_complete = node.names.as_ref().is_some_and(|names| names.complete);
        if has_delegation || !is_complete || node.delegation.refused_until() > now {
            return false;
        }
        node.delegation.count_create() > after
    }

    /// The directory was refused.
    pub(super) fn refuse(&mut self, directory: Ino, until: Time) {
        if let Some(node) = self.nodes.get_mut(&directory) {
            node.delegation.refuse(until);
        }
    }

    /// The attributes of an inode that this client may change by itself now.
    fn delegated_attributes(&self, ino: Ino, now: Time) -> Option<Attributes> {
        let node = self.nodes.get(&ino)?;
        (self.lease_end > now && node.changing == 0 && self.has_delegation(ino)).then_some(())?;
        let seen_as = users::seen_as(self.squash);
        node.attributes.filter(|it| seen_as.is_none_or(|user| is_owned_by(it, &user)))
    }

    /// Whether a file may be opened, and locked, without the server.
    pub(super) fn may_open(&self, ino: Ino, now: Time) -> bool {
        self.delegated_attributes(ino, now).is_some_and(|it| it.kind == Kind::File)
    }

    /// An inode that this client may change by itself misses nothing for that but its attributes.
    pub(super) fn lacks_attributes(&self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        node.attributes.is_none() && node.changing == 0 && self.has_delegation(ino)
    }

    /// Makes an inode, if that is possible without the server.
    pub(super) fn make(
        &mut self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        (now, time): (Time, Timestamp),
    ) -> Option<Result<Attributes, FsError>> {
        let mut directory = self.delegated_attributes(parent, now)?;
        let node = self.nodes.get(&parent)?;
        let names = node.names.as_ref().filter(|names| names.complete)?;
        match names.known(name) {
            Some(NewName::Present(_)) => return Some(Err(FsError::Exists)),
            Some(NewName::Absent) => {}
            None => return None,
        }
        let is_possible = directory.links > 0 && directory.links < MAX_LINKS;
        if !is_possible || !is_plain(name, new) {
            return None;
        }
        let within =
            node.delegation.granted.map(|grant| (parent, grant)).or(node.delegation.within);
        let quota = node.delegation.quota;
        if !self.queue.has_number() {
            return None;
        }
        let charge = self.queue.take_room(quota, Room::of_new(name, &new.node))?;
        let number = self.queue.number()?;
        let made = Attributes::of_new(&directory, new, number, time);
        directory.got_name(made.kind, time);
        let name = Bytes::copy_from_slice(name);
        let kind = MutationKind::Create { parent, name: name.clone(), new: new.clone(), number };
        self.queue.push(Mutation { time, kind }, charge, false, now);
        let write_bound = self.new_write_bound();
        let node = self.nodes.entry(number).or_default();
        (node.attributes, node.used) = (Some(made), true);
        node.delegation = Delegation::of_new(within, quota, write_bound);
        if made.kind == Kind::Directory {
            self.hold_names(number, true);
        }
        self.note(parent, directory);
        if let Some(names) = self.nodes.get_mut(&parent).and_then(|node| node.names.as_mut()) {
            names.set(&name, NewName::Present(number));
        }
        Some(Ok(made))
    }

    /// A mutation has given an inode these attributes.
    fn note(&mut self, ino: Ino, attributes: Attributes) {
        self.queue.ended.remove(&ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attributes = Some(attributes);
            node.used = true;
            node.delegation.unsent += 1;
        }
    }

    /// Whether this client has made it, so that nothing is unknown of it.
    fn is_made_here(&self, ino: Ino) -> bool {
        let within = self.nodes.get(&ino).and_then(|node| node.delegation.within);
        within.is_some_and(|(root, grant)| self.has_grant(root, grant))
    }

    /// Sets attributes, if that is possible without the server.
    pub(super) fn set(
        &mut self,
        ino: Ino,
        change: &AttributeChange,
        (now, time): (Time, Timestamp),
    ) -> Option<Attributes> {
        let mut attributes = self.delegated_attributes(ino, now)?;
        let is_made_here = self.is_made_here(ino);
        // An access control list may say more.
        let is_plain = change.mode.is_none() && change.uid.is_none() && change.gid.is_none();
        if !is_made_here && !is_plain || attributes.kind == Kind::Symlink {
            return None;
        }
        let own = &self.nodes.get(&ino)?.delegation;
        match change.size {
            // The answer is to say what is stored.
            None if own.is_estimate => return None,
            None => {}
            Some(size) => {
                let is_exact = size == 0 || own.is_dense && size <= attributes.size;
                if attributes.kind != Kind::File || !is_exact {
                    return None;
                }
            }
        }
        let charge = self.queue.take_room(own.quota, Room::NONE)?;
        let own = &mut self.nodes.get_mut(&ino)?.delegation;
        match change.size {
            None => {}
            Some(size) => {
                if size == 0 {
                    self.queue.is_empty_again(ino);
                }
                (own.is_dense, own.is_estimate) = (true, false);
                attributes.stored = size.next_multiple_of(BLOCK);
            }
        }
        attributes.set(change, time);
        let kind = MutationKind::SetAttributes { ino, change: *change };
        self.queue.push(Mutation { time, kind }, charge, false, now);
        self.note(ino, attributes);
        Some(attributes)
    }

    /// Writes bytes, if that is possible without the server, which takes such ones as mutations; where they went.
    pub(super) fn write(
        &mut self,
        ino: Ino,
        at: Option<u64>,
        data: Bytes,
        clear_suid: bool,
        (now, time): (Time, Timestamp),
    ) -> Option<u64> {
        let bytes = self.bytes;
        let mut attributes = self.delegated_attributes(ino, now)?;
        let offset = at.unwrap_or(attributes.size);
        let len = data.len() as u64;
        // A file that the server does not have yet has a bound of its own.
        let is_new = self.nodes.get(&ino).is_some_and(|node| node.stamp == 0);
        let most = if is_new { bytes.end.min(MAX_FILE) } else { MAX_FILE };
        let end = offset.checked_add(len).filter(|end| *end <= most)?;
        if attributes.kind != Kind::File || data.is_empty() {
            return None;
        }
        let own = &self.nodes.get(&ino)?.delegation;
        let blocks = match bytes.dense {
            // What a file takes follows from its size.
            true => blocks_of(0..end).saturating_sub(blocks_of(0..attributes.size)),
            false => {
                let known = if own.is_dense { attributes.size.next_multiple_of(BLOCK) } else { 0 };
                blocks_of(offset..end).saturating_sub(blocks_of(offset..known.clamp(offset, end)))
            }
        };
        let charge = self.queue.take_room(own.quota, Room::of_bytes(blocks))?;
        if offset > attributes.size {
            self.clear_bytes(ino, now);
        }
        let own = &mut self.nodes.get_mut(&ino)?.delegation;
        own.is_dense = bytes.dense || own.is_dense && offset <= attributes.size;
        own.is_estimate |= !own.is_dense;
        let grows = end > attributes.size;
        attributes.wrote(end, clear_suid, time);
        let most = attributes.size.next_multiple_of(BLOCK);
        attributes.stored = match own.is_dense {
            true => most,
            false => {
                most.min(attributes.stored + len.next_multiple_of(BLOCK)).max(attributes.stored)
            }
        };
        let kind = MutationKind::Write { ino, offset, data, clear_suid };
        self.queue.push(Mutation { time, kind }, charge, grows, now);
        self.note(ino, attributes);
        Some(offset)
    }

    /// The size of a file changes by a call: unless nothing is left, it may have a hole at its end.
    pub(super) fn call_for_size(&mut self, ino: Ino, size: u64, now: Time) {
        self.clear_bytes(ino, now);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.delegation.is_dense &= size == 0;
        }
    }

    /// The bytes of a file change by a call: where it has holes is not known any more.
    pub(super) fn call_for_bytes(&mut self, ino: Ino, now: Time) {
        self.stored_by_server(ino, now);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.delegation.is_dense = false;
        }
    }

    /// Whether the server does not have everything of an inode.
    pub(super) fn is_unsent(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.delegation.unsent > 0)
    }

    /// An inode of which nothing but what this client has made can be there: it has no extended attributes.
    pub(super) fn is_bare(&self, ino: Ino, now: Time) -> bool {
        self.lease_end > now && self.is_made_here(ino)
    }

    /// A batch is lost, because the server does not take it, or with the session: then that spares the files that are
    /// durable by size records. The others are held wrongly here. Returns these, and how many changes are lost.
    pub(super) fn lose(&mut self, batch: &[Mutation], error: &FsError) -> (Vec<Ino>, usize) {
        let is_refused = !matches!(error, FsError::Store(_));
        let ended = self.queue.ended.clone();
        self.sent(batch, 0, &[]);
        let (mut wrong, mut changes) = (Vec::new(), 0);
        for Mutation { kind, .. } in batch {
            self.share_all_of(kind.ino());
            if ended.contains(&kind.ino()) && !is_refused {
                self.queue.ended.insert(kind.ino());
                continue;
            }
            changes += 1;
            let bytes = matches!(kind, MutationKind::Write { .. } | MutationKind::Stored { .. });
            for ino in [Some(kind.ino()), kind.made()].into_iter().flatten() {
                let Some(node) = self.nodes.get_mut(&ino) else { continue };
                (node.attributes, node.names) = (None, None);
                node.delegation = node.delegation.ended();
                if self.queue.fail(ino, error, bytes) {
                    wrong.push(ino);
                }
            }
        }
        (wrong, changes)
    }

    /// The server has a batch, with the inode tokens of the inodes that it made; or it is lost.
    pub(super) fn sent(&mut self, batch: &[Mutation], stamp: u64, inode_tokens: &[u64]) {
        let mut inode_tokens = inode_tokens.iter();
        let pending = &mut self.queue;
        pending.done += batch.len() as u64;
        assert!(pending.done <= pending.last(), "the server has mutations that were not made");
        let done = pending.done;
        pending.used_up.retain(|(_, last)| *last > done);
        for Mutation { kind, .. } in batch {
            for ino in [Some(kind.ino()), kind.made()].into_iter().flatten() {
                // It is not forgotten before.
                let node = self.nodes.get_mut(&ino).expect("an inode with mutations is known");
                assert!(node.delegation.unsent > 0, "a mutation is sent that was not made");
                node.delegation.unsent -= 1;
                if node.delegation.unsent == 0 {
                    pending.ended.remove(&ino);
                }
            }
            let Some(ino) = kind.made() else { continue };
            let Some(inode_token) = inode_tokens.next() else { continue };
            let node = self.nodes.entry(ino).or_default();
            node.stamp = node.stamp.max(stamp);
            node.inode_token = *inode_token;
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::mutation::ByteMutations;

    use super::*;

    #[test]
    fn a_reach_that_was_asked_for_before_a_change_does_not_count() {
        let (ino, now) = (Ino(5), Time::default());
        let mut cache = Cache::default();
        cache.set_bytes(ByteMutations::default(), true);
        cache.nodes.entry(ino).or_default();
        for change in [Cache::clear_bytes, Cache::stored_by_server] {
            let asked = cache.query_write_bound(ino);
            change(&mut cache, ino, now);
            cache.set_write_bound(ino, 4096, (asked, now));
            assert_eq!(cache.write_bound(ino), 0);
            cache.set_write_bound(ino, 4096, (cache.query_write_bound(ino), now));
            assert_eq!(cache.write_bound(ino), 4096);
        }
        cache.nodes.entry(ino).or_default().changing = 1;
        cache.set_write_bound(ino, 4096, (cache.query_write_bound(ino), now));
        assert_eq!(cache.write_bound(ino), 0);
    }
}
