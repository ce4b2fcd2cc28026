//! Directories that are this client's alone: it changes names in them by itself, and attributes and bytes of what it has
//! made there, and sends that later, many changes at a time.
//!
//! The server grants it for a directory. What the client makes in such a directory is its own alone, too, since others can
//! come to it only through that directory; they wait there until the client has sent everything and given the directory
//! back.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use thalweg_env::{HashSet, Time};
use thalweg_fs::event::{Deed, Event};
use thalweg_fs::filesystem::{MAX_LINKS, MAX_NAME};
use thalweg_fs::{AttributeChange, Attributes, FsError, Ino, Kind, NewNode, Node, Timestamp};

use super::cache::{Cache, NewName};
use crate::protocol::MAX_EVENTS;

/// Bytes of events in one call at most, about.
const BATCH_BYTES: usize = 512 << 10;
/// Bytes that an event takes beside names and data, about.
const EVENT_BYTES: usize = 128;
/// Longest write that waits for others; longer ones are calls of their own.
pub(super) const MAX_WRITE: usize = 128 << 10;
/// Events that wait when the next batch is sent.
const FULL: usize = 512;
/// Events that wait before their makers wait too, and their bytes.
const MOST: (usize, usize) = (16384, 8 << 20);
/// Inodes at most of which is remembered that changes were lost.
const MAX_FAILED: usize = 65536;
/// Numbers that are left when the client reserves further ones.
const FEW_NUMBERS: u64 = 1024;

/// What is known of an inode in this regard.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The directory is this client's alone since this grant.
    granted: Option<u64>,
    /// The client has made it in a directory that was its alone since that grant, or in what it has made there.
    within: Option<(Ino, u64)>,
    /// Events that concern it, and that the server does not have.
    pub(super) unsent: u32,
    /// Its bytes follow one another from the start, without holes.
    is_dense: bool,
    /// New names that were made in the directory with calls since it was refused to the client.
    creates: u32,
    /// Before this time it is not asked for again.
    refused_until: Time,
}

/// What the client has made by itself, and the server does not have.
#[derive(Debug, Default)]
pub(super) struct Pending {
    events: VecDeque<Event>,
    bytes: usize,
    /// Events made so far, and those of them that the server has, or that are lost.
    made: u64,
    done: u64,
    /// When the first of the events that wait was made.
    since: Option<Time>,
    /// Numbers for new inodes, with the reservation of each range.
    numbers: VecDeque<(Range<u64>, Reservation)>,
    /// Ranges that are used up, with the number of the last event that uses one.
    used_up: Vec<(Reservation, u64)>,
    grants: u64,
    /// Inodes of which changes were lost, until a sync of them has failed.
    failed: HashSet<Ino>,
}

/// Inode numbers as they were reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reservation {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) proof: u64,
}

impl Pending {
    /// Events that the server does not have.
    pub(super) fn len(&self) -> usize {
        (self.made - self.done) as usize
    }

    /// The number of the last event.
    pub(super) fn last(&self) -> u64 {
        self.made
    }

    /// Whether the server has the events up to this one.
    pub(super) fn has(&self, number: u64) -> bool {
        self.done >= number
    }

    /// Whether a batch is to be sent.
    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= FULL || self.bytes >= BATCH_BYTES
    }

    /// Whether the makers of events have to wait.
    pub(super) fn is_over_full(&self) -> bool {
        self.events.len() >= MOST.0 || self.bytes >= MOST.1
    }

    /// Whether the oldest event waits since then or longer.
    pub(super) fn waits_since(&self, time: Time) -> bool {
        self.since.is_some_and(|since| since <= time)
    }

    pub(super) fn wants_numbers(&self) -> bool {
        let left: u64 = self.numbers.iter().map(|(range, _)| range.end - range.start).sum();
        left < FEW_NUMBERS
    }

    pub(super) fn add_numbers(&mut self, reserved: Reservation) {
        let range = reserved.first..reserved.first.saturating_add(reserved.count);
        self.numbers.push_back((range, reserved));
    }

    /// Reservations of numbers that inodes may get, also with events that the server does not have.
    pub(super) fn reservations(&self) -> Vec<Reservation> {
        let used_up = self.used_up.iter().map(|(it, _)| *it);
        used_up.chain(self.numbers.iter().map(|(_, it)| *it)).collect()
    }

    fn number(&mut self) -> Option<Ino> {
        loop {
            let (range, reserved) = self.numbers.front_mut()?;
            if let Some(number) = range.next() {
                return Some(Ino(number));
            }
            self.used_up.push((*reserved, self.made));
            self.numbers.pop_front();
        }
    }

    fn push(&mut self, event: Event, now: Time) {
        self.bytes += bytes_of(&event);
        self.events.push_back(event);
        self.made += 1;
        self.since.get_or_insert(now);
    }

    /// The next batch.
    pub(super) fn take_batch(&mut self) -> Vec<Event> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MAX_EVENTS
            && let Some(event) = self.events.front()
        {
            bytes += bytes_of(event);
            if bytes > BATCH_BYTES && !batch.is_empty() {
                break;
            }
            self.bytes -= bytes_of(event);
            batch.extend(self.events.pop_front());
        }
        if self.events.is_empty() {
            self.since = None;
        }
        batch
    }

    /// The session has ended; the events that are lost.
    pub(super) fn clear(&mut self) -> Vec<Event> {
        let waiting: Vec<Event> = self.events.drain(..).collect();
        self.numbers.clear();
        self.used_up.clear();
        (self.bytes, self.since) = (0, None);
        waiting
    }
}

fn bytes_of(event: &Event) -> usize {
    EVENT_BYTES
        + match &event.deed {
            Deed::Create { name, new, .. } => match &new.node {
                Node::Symlink(target) => name.len() + target.len(),
                _ => name.len(),
            },
            Deed::Write { data, .. } => data.len(),
            Deed::SetAttributes { .. } => 0,
        }
}

/// Whether a new name may be made without asking the server.
fn is_plain(name: &[u8], new: &NewNode) -> bool {
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && name != b"." && name != b"..";
    let is_empty = matches!(&new.node, Node::Symlink(target) if target.is_empty());
    is_name && !is_empty && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

impl Cache {
    /// Whether an inode is this client's alone.
    pub(super) fn is_own(&self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        let (root, grant) = match (node.own.granted, node.own.within) {
            (Some(grant), _) => (ino, grant),
            (None, Some(within)) => within,
            (None, None) => return false,
        };
        self.nodes.get(&root).is_some_and(|root| root.own.granted == Some(grant))
    }

    /// Whether the directory was granted to this client.
    pub(super) fn is_granted(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.own.granted.is_some())
    }

    /// The server has granted a directory.
    pub(super) fn hold_exclusively(&mut self, directory: Ino) {
        self.pending.grants += 1;
        let grant = self.pending.grants;
        self.nodes.entry(directory).or_default().own.granted = Some(grant);
    }

    /// A directory is not this client's alone any more, and nothing that was made in it.
    pub(super) fn share(&mut self, directory: Ino) {
        if let Some(node) = self.nodes.get_mut(&directory) {
            node.own.granted = None;
            node.own.creates = 0;
        }
    }

    /// An inode gets names elsewhere, or attributes that this client does not foresee: it is not this client's alone any more,
    /// nor what is below it.
    pub(super) fn share_all_of(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let within = node.own.within.take();
        let is_directory = node.attributes.is_none_or(|it| it.kind == Kind::Directory);
        self.share(ino);
        if let Some((root, _)) = within.filter(|_| is_directory) {
            self.share(root);
        }
    }

    /// Whether to ask for a directory that this client is about to make a name in, by calls so far: `after` so many.
    pub(super) fn wants(&mut self, directory: Ino, after: u32, now: Time) -> bool {
        let is_own = self.is_own(directory);
        let Some(node) = self.nodes.get_mut(&directory) else { return false };
        let is_complete = node.names.as_ref().is_some_and(|names| names.complete);
        if is_own || !is_complete || node.own.refused_until > now {
            return false;
        }
        node.own.creates += 1;
        node.own.creates > after
    }

    /// The directory was refused.
    pub(super) fn refuse(&mut self, directory: Ino, until: Time) {
        if let Some(node) = self.nodes.get_mut(&directory) {
            (node.own.refused_until, node.own.creates) = (until, 0);
        }
    }

    /// The attributes of an inode that this client may change by itself now.
    fn own_attributes(&self, ino: Ino, now: Time) -> Option<Attributes> {
        let node = self.nodes.get(&ino)?;
        (self.lease_end > now && node.changing == 0 && self.is_own(ino)).then_some(())?;
        node.attributes
    }

    /// An inode that this client may change by itself misses nothing for that but its attributes.
    pub(super) fn lacks_attributes(&self, ino: Ino) -> bool {
        let has_none = |node: &super::cache::Node| node.attributes.is_none() && node.changing == 0;
        self.nodes.get(&ino).is_some_and(has_none) && self.is_own(ino)
    }

    /// Makes an inode, if that is possible without the server.
    pub(super) fn make(
        &mut self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        (now, time): (Time, Timestamp),
    ) -> Option<Result<Attributes, FsError>> {
        let mut directory = self.own_attributes(parent, now)?;
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
        let within = node.own.granted.map(|grant| (parent, grant)).or(node.own.within);
        let number = self.pending.number()?;
        let made = Attributes::of_new(&directory, new, number, time);
        directory.got_name(made.kind, time);
        let name = Bytes::copy_from_slice(name);
        let deed = Deed::Create { parent, name: name.clone(), new: new.clone(), number };
        self.pending.push(Event { time, deed }, now);
        let node = self.nodes.entry(number).or_default();
        (node.attributes, node.used) = (Some(made), true);
        node.own = Own { within, unsent: 1, is_dense: true, ..Own::default() };
        if made.kind == Kind::Directory {
            self.hold_names(number, true);
        }
        self.note(parent, directory);
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.set_name(name, NewName::Present(number));
        }
        Some(Ok(made))
    }

    /// An event has given an inode these attributes.
    fn note(&mut self, ino: Ino, attributes: Attributes) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attributes = Some(attributes);
            node.used = true;
            node.own.unsent += 1;
        }
    }

    /// Whether this client has made it, so that nothing is unknown of it.
    fn is_made_here(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.own.within.is_some()) && self.is_own(ino)
    }

    /// Sets attributes, if that is possible without the server.
    pub(super) fn set(
        &mut self,
        ino: Ino,
        change: &AttributeChange,
        (now, time): (Time, Timestamp),
    ) -> Option<Attributes> {
        let mut attributes = self.own_attributes(ino, now)?;
        let is_cut = change.size.is_some_and(|size| size != 0 || attributes.size != 0);
        if is_cut || !self.is_made_here(ino) || attributes.kind == Kind::Symlink {
            return None;
        }
        if change.size.is_some() {
            if attributes.kind != Kind::File {
                return None;
            }
            attributes.modified = time;
        }
        attributes.set(change, time);
        self.pending.push(Event { time, deed: Deed::SetAttributes { ino, change: *change } }, now);
        self.note(ino, attributes);
        Some(attributes)
    }

    /// Writes bytes, if that is possible without the server; where they went.
    pub(super) fn write(
        &mut self,
        ino: Ino,
        at: Option<u64>,
        data: Bytes,
        clear_suid: bool,
        (now, time): (Time, Timestamp),
    ) -> Option<u64> {
        let mut attributes = self.own_attributes(ino, now)?;
        let is_dense = self.nodes.get(&ino).is_some_and(|node| node.own.is_dense);
        let offset = at.unwrap_or(attributes.size);
        let is_possible = is_dense
            && attributes.kind == Kind::File
            && offset <= attributes.size
            && !data.is_empty()
            && self.is_made_here(ino);
        if !is_possible {
            return None;
        }
        attributes.wrote(offset + data.len() as u64, clear_suid, time);
        attributes.stored = attributes.size.next_multiple_of(4096);
        self.pending.push(Event { time, deed: Deed::Write { ino, offset, data, clear_suid } }, now);
        self.note(ino, attributes);
        Some(offset)
    }

    /// The bytes of a file change by a call: where it has holes is not known any more.
    pub(super) fn call_for_bytes(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.own.is_dense = false;
        }
    }

    /// Whether the server does not have everything of an inode.
    pub(super) fn is_unsent(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.own.unsent > 0)
    }

    /// An inode of which nothing but what this client has made can be there: it has no extended attributes.
    pub(super) fn is_bare(&self, ino: Ino, now: Time) -> bool {
        self.lease_end > now && self.is_made_here(ino)
    }

    /// A batch is lost: what the client holds of its inodes is wrong. Which these are.
    pub(super) fn lose(&mut self, batch: &[Event]) -> Vec<Ino> {
        self.sent(batch, 0, &[]);
        let mut wrong = Vec::new();
        for Event { deed, .. } in batch {
            self.share_all_of(deed.ino());
            for ino in [Some(deed.ino()), deed.made()].into_iter().flatten() {
                let Some(node) = self.nodes.get_mut(&ino) else { continue };
                (node.attributes, node.names) = (None, None);
                node.own = Own { unsent: node.own.unsent, ..Own::default() };
                if self.pending.failed.len() < MAX_FAILED && self.pending.failed.insert(ino) {
                    wrong.push(ino);
                }
            }
        }
        wrong
    }

    /// Whether changes of an inode were lost, which is told once.
    pub(super) fn has_failed(&mut self, ino: Ino) -> bool {
        self.pending.failed.remove(&ino)
    }

    /// The server has a batch, with the proofs of the inodes that it made; or it is lost.
    pub(super) fn sent(&mut self, batch: &[Event], stamp: u64, proofs: &[u64]) {
        let mut proofs = proofs.iter();
        let pending = &mut self.pending;
        pending.done += batch.len() as u64;
        let done = pending.done;
        pending.used_up.retain(|(_, last)| *last > done);
        for Event { deed, .. } in batch {
            for ino in [Some(deed.ino()), deed.made()].into_iter().flatten() {
                if let Some(node) = self.nodes.get_mut(&ino) {
                    node.own.unsent = node.own.unsent.saturating_sub(1);
                }
            }
            let Some((ino, proof)) = deed.made().zip(proofs.next()) else { continue };
            let node = self.nodes.entry(ino).or_default();
            node.stamp = node.stamp.max(stamp);
            node.proof = *proof;
        }
    }
}
