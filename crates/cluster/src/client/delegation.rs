//! Directories and files that are this client's alone: it changes names in the directories by itself, attributes and bytes of
//! what it has made there, and bytes, sizes and times of the files. It sends that later, many changes at a time.
//!
//! The server grants it for a directory. New inodes in such a directory are the client's alone, too, since other clients come
//! to them only through that directory; they wait there until the client has sent everything and released the directory.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::{HashMap, Time};
use thalweg_fs::filesystem::{MAX_FILE, MAX_LINKS, MAX_NAME};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::{Room, blocks_of};
use thalweg_fs::{
    AttributeChange, Attributes, Credentials, FsError, Ino, Kind, NewNode, Node as NewKind, WriteAt,
};
use thalweg_net::keys::Squash;

use super::base::ClientBase;
use super::cached::NewName;
use super::delegated::{Delegation, Grant, GrantNumber};
use super::inodes::{Node, Stripe};
use super::partial_pages::PartialPages;
use super::record::{Parts, Record};
use super::room::Charge;
use super::user;

/// Most bytes of a mutation.
pub(super) const MAX_WRITE: usize = 512 << 10;
/// What is stored of a file is a multiple of this.
pub(super) const BLOCK: u64 = 4096;

/// What has become of a change that was tried without the server.
pub(super) enum Local<T> {
    Made(T),
    /// Too little room is promised below the root of this quota.
    NoRoom(u64),
    NeedsCall,
}

/// Whether an inode is a user's own, so that the server will not refuse to that user what is made of it here.
pub(super) fn is_owned_by(it: &Attributes, user: &Credentials) -> bool {
    it.uid == user.uid && (it.kind != Kind::Directory || it.mode & 0o300 == 0o300)
}

/// Whether an entry of a directory may have this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    let is_one = !name.is_empty() && name.len() <= MAX_NAME && name != b"." && name != b"..";
    is_one && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Whether a new name may be made without asking the server.
fn is_plain(name: &[u8], new: &NewNode) -> bool {
    let is_empty = matches!(&new.node, NewKind::Symlink(target) if target.is_empty());
    is_name(name) && !is_empty
}

impl ClientBase {
    /// A directory or file is not this client's alone any more, and nothing that was made in it. When this returns, no change under
    /// the grant is under way: what was made has its number.
    pub(super) fn revoke(&self, ino: Ino) {
        self.inodes.with(ino, |node| node.delegation.revoke(ino, false));
        // A change of an inode of the directory may have seen the grant, also when another thread has just revoked it.
        self.inodes.barrier();
    }

    /// An inode gets names elsewhere, or attributes that this client does not foresee: it is not this client's alone any more,
    /// nor what is below it.
    pub(super) fn revoke_all_of(&self, ino: Ino) {
        self.begin_revoke_all_of(ino);
        self.inodes.barrier();
    }

    /// The same, without the barrier that has to follow.
    fn begin_revoke_all_of(&self, ino: Ino) {
        let revoke = |node: &mut Node| {
            let is_directory = node.cached.attributes.is_none_or(|it| it.kind == Kind::Directory);
            node.delegation.revoke(ino, is_directory)
        };
        if let Some(root) = self.inodes.with(ino, revoke).flatten() {
            self.inodes.with(root, |node| node.delegation.forget_creates());
        }
    }

    /// Names are about to move between directories by a call: what they lead to is not this client's alone, unless it stays
    /// below what is.
    pub(super) fn revoke_moved(&self, from: Ino, to: Ino, targets: &[Option<Ino>; 2]) {
        if from == to {
            return;
        }
        for (parent, target) in [from, to].into_iter().zip(targets) {
            // Of an unknown inode all of the directory is shared.
            self.revoke_all_of(target.unwrap_or(parent));
        }
    }

    /// Whether to ask for a directory that this client is about to make a name in, by calls so far: `after` so many.
    pub(super) fn wants_delegation(&self, directory: Ino, after: u32) -> bool {
        let now = self.now();
        self.inodes.is(directory, |node| {
            let is_complete = node.cached.names.as_ref().is_some_and(|names| names.is_complete);
            let own = &mut node.delegation;
            if own.grant().is_some() || !is_complete || own.extra().refused_until > now {
                return false;
            }
            let extra = own.extra_mut();
            extra.creates += 1;
            extra.creates > after
        })
    }

    pub(super) fn refuse_delegation(&self, directory: Ino, until: Time) {
        self.inodes.with(directory, |node| {
            let extra = node.delegation.extra_mut();
            (extra.creates, extra.refused_until) = (0, until);
        });
    }

    /// The grant by which an inode is this client's alone, and its size.
    pub(super) fn grant_of(&self, ino: Ino) -> Option<(Option<GrantNumber>, u64)> {
        let look =
            |node: &mut Node| Some((node.delegation.grant_number(), node.cached.attributes?.size));
        self.inodes.with(ino, look).flatten()
    }

    /// The attributes of an inode that this client may change by itself now.
    pub(super) fn changeable(&self, node: &Node, squash: Squash, now: Time) -> Option<Attributes> {
        let is_possible = node.is_free() && self.session.is_leased_at(now);
        let attributes = node.cached.attributes.filter(|_| is_possible)?;
        let seen_as = user::seen_as(squash);
        seen_as.is_none_or(|user| is_owned_by(&attributes, &user)).then_some(attributes)
    }

    /// Runs `then` if a file or directory may be opened without the server: it stays this client's alone meanwhile.
    pub(super) fn while_delegated<T>(
        &self,
        ino: Ino,
        then: impl FnOnce(&mut Node, Kind) -> Option<T>,
    ) -> Option<T> {
        let mut stripe = self.inodes.lock(ino);
        let squash = stripe.rules.squash;
        let node = stripe.node(ino)?;
        let kind = self.changeable(node, squash, self.now())?.kind;
        matches!(kind, Kind::File | Kind::Directory).then(|| then(node, kind)).flatten()
    }

    /// An inode that this client may change by itself misses nothing for that but its attributes.
    pub(super) fn lack_attributes(&self, ino: Ino) -> bool {
        self.inodes.is(ino, |node| node.is_free() && node.cached.attributes.is_none())
    }

    /// The grant of a file of which it is not known whether it has holes, so that how much its attributes say that is stored is not
    /// exact; `None` if the server was asked.
    pub(super) fn lack_holes(&self, ino: Ino) -> Option<GrantNumber> {
        self.inodes.with(ino, |node| {
            let own = &node.delegation;
            let grant = own.grant_number().filter(|_| own.is_estimate && !own.is_dense)?;
            (own.extra().holes_asked != Some(grant)).then_some(grant)
        })?
    }

    /// The server has the first hole of a file there, while that has these attributes under a grant.
    pub(super) fn learn_holes(&self, grant: GrantNumber, found: &Attributes, hole: u64) {
        self.inodes.with(found.ino, |node| {
            let is_same =
                node.cached.attributes.is_some_and(|it| it == *found) && !node.cached.is_changing();
            let own = &mut node.delegation;
            if own.grant_number() != Some(grant) || own.unsent() > 0 || !is_same {
                return;
            }
            own.extra_mut().holes_asked = Some(grant);
            // There may be room for more behind the end.
            own.is_dense = hole == found.size && found.stored == found.size.next_multiple_of(BLOCK);
        });
    }

    /// The directory that a directory is in, if this client has made that and moves it alone.
    pub(super) fn parent_of(&self, directory: Ino) -> Option<Ino> {
        let parent = self.inodes.with(directory, |node| node.delegation.parent(directory));
        parent.flatten().filter(|_| self.session.is_leased())
    }

    /// What the server would say to a new name in a directory of this client alone: the grant, if the name may be made.
    fn check_name(
        &self,
        stripe: &mut Stripe,
        parent: Ino,
        name: &[u8],
        now: Time,
    ) -> Option<Result<(Attributes, Arc<Grant>), FsError>> {
        let squash = stripe.rules.squash;
        let node = stripe.node(parent)?;
        let directory = self.changeable(node, squash, now)?;
        let names = node.cached.names.as_ref().filter(|names| names.is_complete)?;
        match names.known(name)? {
            NewName::Present(_) => return Some(Err(FsError::Exists)),
            NewName::Absent => {}
        }
        let is_possible = directory.links > 0 && directory.links < MAX_LINKS;
        let grant = node.delegation.grant().filter(|_| is_possible)?;
        Some(Ok((directory, grant.clone())))
    }

    /// Makes an inode, if that is possible without the server.
    pub(super) fn create_delegated(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
    ) -> Local<Result<Attributes, FsError>> {
        let (now, time) = self.session.clocks();
        let checked = self.check_name(&mut self.inodes.lock(parent), parent, name, now);
        let grant = match checked {
            Some(Err(error)) => return Local::Made(Err(error)),
            Some(Ok((_, grant))) if is_plain(name, new) => grant,
            Some(Ok(_)) | None => return Local::NeedsCall,
        };
        let Some(number) = self.numbers.acquire() else { return Local::NeedsCall };
        let charge = Charge { quota: grant.quota, room: Room::of_new(name, &new.node) };
        let name = Bytes::copy_from_slice(name);
        let kind = MutationKind::Create { parent, name: name.clone(), new: new.clone(), number };
        let record = Record::small(&Mutation { time, kind });
        let mut stripes = self.inodes.lock_all([parent, number]);
        // Another thread may have changed the directory meanwhile, and a server may have given a number twice.
        let is_free = stripes.of(number).node(number).is_none();
        let checked = self
            .check_name(stripes.of(parent), parent, &name, now)
            .filter(|it| is_free && matches!(it, Ok((_, still)) if Arc::ptr_eq(still, &grant)));
        let Some(Ok((mut directory, still))) = checked else {
            drop(stripes);
            self.numbers.used(number, None);
            return Local::NeedsCall;
        };
        // Under the locks: when room is recalled, what was taken before has its number behind a barrier.
        if !self.room.charge(charge) {
            drop(stripes);
            self.numbers.used(number, None);
            return Local::NoRoom(charge.quota);
        }
        let made = Attributes::of_new(&directory, new, number, time);
        directory.got_name(made.kind, time);
        let rules = stripes.of(number).rules;
        let write_bound = if rules.is_direct { rules.bytes.end } else { 0 };
        let mut node = Node::default();
        node.cached.set_attributes(made);
        let is_directory = made.kind == Kind::Directory;
        node.delegation = Delegation::of_new(still, write_bound, is_directory.then_some(parent));
        if is_directory {
            node.cached.names.get_or_insert_default().is_complete = true;
        }
        stripes.of(number).insert(number, node);
        let parent_node = stripes.of(parent).node(parent).expect("it was looked at");
        if let Some(names) = parent_node.cached.names.as_mut() {
            names.set(&name, NewName::Present(number));
        }
        parent_node.cached.set_attributes(directory);
        parent_node.delegation.changed();
        let mutation = self.queue.append(stripes.of(parent), record, charge.quota, now);
        drop(stripes);
        self.numbers.used(number, Some(mutation));
        Local::Made(Ok(made))
    }

    /// Sets attributes, if that is possible without the server.
    pub(super) fn set_delegated(&self, ino: Ino, change: &AttributeChange) -> Local<Attributes> {
        let (now, time) = self.session.clocks();
        let kind = MutationKind::SetAttributes { ino, change: *change };
        let record = Record::small(&Mutation { time, kind });
        let mut stripe = self.inodes.lock(ino);
        let squash = stripe.rules.squash;
        let Some(node) = stripe.node(ino) else { return Local::NeedsCall };
        let Some(mut attributes) = self.changeable(node, squash, now) else {
            return Local::NeedsCall;
        };
        // An access control list may say more.
        let is_plain = change.mode.is_none() && change.uid.is_none() && change.gid.is_none();
        let own = &mut node.delegation;
        let is_foreseen = is_plain || own.is_made_here(ino);
        let is_exact = match change.size {
            // The answer is to say what is stored.
            None => !own.is_estimate,
            Some(0) => attributes.kind == Kind::File,
            Some(size) => attributes.kind == Kind::File && own.is_dense && size <= attributes.size,
        };
        let Some(grant) = own.grant() else { return Local::NeedsCall };
        if !is_foreseen || !is_exact || attributes.kind == Kind::Symlink {
            return Local::NeedsCall;
        }
        let quota = grant.quota;
        if let Some(size) = change.size {
            (own.is_dense, own.is_estimate) = (true, false);
            attributes.stored = size.next_multiple_of(BLOCK);
            node.cached.partial_pages.iter_mut().for_each(|pages| pages.truncate(size));
        }
        attributes.set(change, time);
        own.changed();
        node.cached.set_attributes(attributes);
        let mutation = self.queue.append(&mut stripe, record, quota, now);
        if change.size.is_some() {
            self.queue.frees(mutation);
        }
        // Before another thread can write, and lose that.
        if change.size == Some(0) {
            self.losses.forget(ino);
        }
        Local::Made(attributes)
    }

    /// Writes bytes, if that is possible without the server, which takes such ones as mutations; where they went. The usual case
    /// takes the lock of the file's stripe, and no other one unless the file gets blocks.
    pub(super) fn write_delegated(
        &self,
        ino: Ino,
        at: WriteAt,
        data: impl FnOnce() -> Bytes,
        (len, clear_suid): (u64, bool),
    ) -> Local<u64> {
        let (now, time) = self.session.clocks();
        let mut stripe = self.inodes.lock(ino);
        let rules = stripe.rules;
        let Some(node) = stripe.node(ino) else { return Local::NeedsCall };
        let Some(mut attributes) = self.changeable(node, rules.squash, now) else {
            return Local::NeedsCall;
        };
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => attributes.size,
        };
        // A file that the server does not have yet has a bound of its own.
        let is_new = node.cached.stamp == 0;
        let most = if is_new { rules.bytes.end.min(MAX_FILE) } else { MAX_FILE };
        let end = offset.checked_add(len).filter(|end| *end <= most);
        let is_possible = rules.bytes.end > 0 && len > 0 && attributes.kind == Kind::File;
        let own = &mut node.delegation;
        let (Some(end), Some(grant), true) = (end, own.grant(), is_possible) else {
            return Local::NeedsCall;
        };
        let blocks = if rules.bytes.dense {
            // What a file takes follows from its size.
            blocks_of(0..end).saturating_sub(blocks_of(0..attributes.size))
        } else {
            let known = if own.is_dense { attributes.size.next_multiple_of(BLOCK) } else { 0 };
            blocks_of(offset..end).saturating_sub(blocks_of(offset..known.clamp(offset, end)))
        };
        let number = grant.number();
        let charge = Charge { quota: grant.quota, room: Room::of_bytes(blocks) };
        if !self.room.charge(charge) {
            return Local::NoRoom(charge.quota);
        }
        let leaves_hole = offset > attributes.size;
        own.is_dense = rules.bytes.dense || own.is_dense && offset <= attributes.size;
        own.is_estimate |= !own.is_dense;
        let grows = end > attributes.size;
        attributes.wrote(end, clear_suid, time);
        let most = attributes.size.next_multiple_of(BLOCK);
        let stored = most.min(attributes.stored + len.next_multiple_of(BLOCK));
        // Blocks may be reserved behind the end.
        attributes.stored = if own.is_dense { most } else { stored }.max(attributes.stored);
        own.changed();
        node.cached.set_attributes(attributes);
        let data = data();
        let pages = &mut node.cached.partial_pages;
        PartialPages::keep(pages, (number, &self.page_memory), (ino, offset), &data);
        let kind = MutationKind::Write { ino, offset, data, clear_suid };
        let parts = Parts { mutation: Mutation { time, kind }, blocks, grows };
        let record = Record::Bytes(Box::new(parts));
        let mutation = self.queue.append(&mut stripe, record, charge.quota, now);
        if leaves_hole && rules.is_direct {
            let node = stripe.node(ino).expect("it was looked at");
            self.bounds.clear_in(&mut node.delegation, now, mutation);
        }
        drop(stripe);
        self.page_memory.trim(|ino, number| {
            let drop_page = |node: &mut Node| {
                node.cached.partial_pages.iter_mut().for_each(|it| it.remove(number));
            };
            self.inodes.with(ino, drop_page);
        });
        Local::Made(offset)
    }

    /// The server has mutations of a batch, and answered with this stamp and the inode tokens of what they made.
    pub(super) fn complete(
        &self,
        (mutations, charges): (&[Mutation], &[Charge]),
        stamp: u64,
        inode_tokens: &HashMap<Ino, u64>,
    ) {
        let (last, removed) = self.queue.remove(mutations, stamp, inode_tokens);
        self.numbers.sent(last);
        self.room.discharge(charges, false);
        // The server hears soon of those that nothing uses.
        removed.into_iter().for_each(|ino| self.cache.unreference(ino, 0));
    }

    /// A batch is lost, because the server does not take it, or with the session: then that spares the files that are
    /// durable by size records. The others are held wrongly here. Returns these, and how many changes are lost. Without an error the
    /// journal keeps the batch, and nothing is lost.
    pub(super) fn lose(&self, batch: &[Mutation], error: Option<&FsError>) -> (Vec<Ino>, usize) {
        let is_refused = error.is_some_and(|error| !matches!(error, FsError::Store(_)));
        let was_ended = |ino| self.inodes.is(ino, |node| node.delegation.is_ended);
        let is_spared = |it: &&Mutation| !is_refused && was_ended(it.kind.ino());
        let (spared, lost): (Vec<&Mutation>, Vec<&Mutation>) = batch.iter().partition(is_spared);
        let mut wrong = Vec::new();
        // Before they stop to count as unsent: a caller that finds no unsent changes has to find the losses.
        for Mutation { kind, .. } in &lost {
            let bytes = matches!(kind, MutationKind::Write { .. } | MutationKind::Stored { .. });
            let is_news = |ino: &Ino| error.is_none_or(|it| self.losses.add(*ino, it, bytes));
            wrong.extend(kind.inodes().filter(is_news));
        }
        let (last, removed) = self.queue.remove(batch, 0, &HashMap::default());
        self.numbers.sent(last);
        let inodes = batch.iter().flat_map(|mutation| mutation.kind.inodes());
        inodes.for_each(|ino| self.begin_revoke_all_of(ino));
        for mutation in spared {
            self.inodes.with(mutation.kind.ino(), |node| node.delegation.is_ended = true);
        }
        for ino in lost.iter().flat_map(|mutation| mutation.kind.inodes()) {
            self.inodes.with(ino, |node| {
                node.cached.forget_contents();
                node.delegation.end_session();
            });
        }
        self.inodes.barrier();
        removed.into_iter().for_each(|ino| self.cache.unreference(ino, 0));
        (wrong, lost.len())
    }
}
