//! What is this client's alone, and what it has made by itself and not sent.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use thalweg_env::{HashSet, Time};
use thalweg_fs::event::{Deed, Event};
use thalweg_fs::{Ino, Node};

use super::users::{self, User};
use crate::protocol::MAX_EVENTS;

/// Bytes of events in one call at most, about.
const BATCH_BYTES: usize = 512 << 10;
/// Bytes that an event takes beside names and data, about.
const EVENT_BYTES: usize = 128;
/// Events that wait when the next batch is sent.
const FULL: usize = 512;
/// Events that wait before their makers wait too, and their bytes.
const MOST: (usize, usize) = (16384, 8 << 20);
/// Numbers that are left when the client reserves further ones.
const FEW_NUMBERS: u64 = 1024;

/// Whether the tail of a file may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Keeping {
    /// The server was not asked, and no `fsync` counts.
    #[default]
    Unknown,
    /// The file had this size at its last `fsync`, and was longer than before at so many.
    Synced {
        size: u64,
        growths: u32,
    },
    /// It may, in the session of this generation, said the server then; all that it had of the file was durable once since this grant.
    Kept {
        generation: u64,
        grant: Option<u64>,
        asked: Time,
    },
    Refused,
}

/// Writes that make a file longer.
#[derive(Debug)]
pub(super) struct Growth {
    /// Offsets and buffers that are not stored yet.
    pub(super) writes: Vec<(u64, Vec<Bytes>)>,
    /// The number of events that wait, all of which are about these writes or stored ones.
    pub(super) events: usize,
}

/// What is known of an inode in this regard.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The directory or file is this client's alone since this grant.
    pub(super) granted: Option<u64>,
    /// The client has made it in a directory that was its alone since that grant, or in what it has made there.
    pub(super) within: Option<(Ino, u64)>,
    /// Events that concern it, and that the server does not have.
    pub(super) unsent: u32,
    /// Bytes below this one may be stored without the server; 0: none.
    pub(super) reach: u64,
    /// The reach is 0 because the server has to clear bytes first. It is asked again from this time on, when it has the events up to
    /// this one.
    pub(super) cleared: Option<(Time, u64)>,
    /// Whether its tail is stored.
    pub(super) keeping: Keeping,
    /// Its bytes follow one another from the start, without holes.
    pub(super) is_dense: bool,
    /// How much its attributes say that is stored is not exact.
    pub(super) is_estimate: bool,
    /// New names that were made in the directory with calls since it was refused to the client.
    pub(super) creates: u32,
    /// Before this time it is not asked for again.
    pub(super) refused_until: Time,
}

/// What the client has made by itself, and the server does not have.
#[derive(Debug, Default)]
pub(super) struct Pending {
    events: VecDeque<Waiting>,
    bytes: usize,
    /// Events made so far, and those of them that the server has, or that are lost.
    made: u64,
    pub(super) done: u64,
    /// Events up to this one are durable, or lost.
    synced: u64,
    /// When the first of the events that wait was made.
    since: Option<Time>,
    /// Numbers for new inodes, with the reservation of each range.
    numbers: VecDeque<(Range<u64>, Reservation)>,
    /// Ranges that are used up, with the number of the last event that uses one.
    pub(super) used_up: Vec<(Reservation, u64)>,
    pub(super) grants: u64,
    /// Changes so far for which the server stores or clears bytes.
    pub(super) by_server: u64,
    /// Inodes of which changes were lost, until a sync of them has failed.
    pub(super) failed: HashSet<Ino>,
    /// Files whose tails are stored, the oldest first.
    pub(super) tails: VecDeque<Ino>,
    /// Files with unsent changes, all of which are durable by a tail. Kept when the session ends.
    pub(super) ended: HashSet<Ino>,
}

/// An event that waits.
#[derive(Debug)]
struct Waiting {
    event: Event,
    user: User,
    /// It makes a file longer.
    grows: bool,
}

/// Events of one user that are sent together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) events: Vec<Event>,
    pub(super) user: User,
    /// No inode is made and no file becomes longer, so that bytes may be stored before or after.
    pub(super) only_replaces: bool,
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

    /// Whether events wait that are in no batch.
    pub(super) fn has_waiting(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether everything became durable with the batch of this event, or with a later one.
    pub(super) fn is_synced(&self, number: u64) -> bool {
        self.synced >= number
    }

    /// The events that the server has are durable.
    pub(super) fn synced(&mut self) {
        self.synced = self.done;
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

    pub(super) fn number(&mut self) -> Option<Ino> {
        loop {
            let (range, reserved) = self.numbers.front_mut()?;
            if let Some(number) = range.next() {
                return Some(Ino(number));
            }
            self.used_up.push((*reserved, self.made));
            self.numbers.pop_front();
        }
    }

    pub(super) fn push(&mut self, event: Event, grows: bool, now: Time) {
        self.bytes += bytes_of(&event);
        self.events.push_back(Waiting { event, user: users::current(), grows });
        self.made += 1;
        self.since.get_or_insert(now);
    }

    /// What waits, if all of it writes to this file, and makes it longer.
    pub(super) fn growth_of(&self, file: Ino) -> Option<Growth> {
        let mut writes: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let (mut grows, mut next) = (false, None);
        for waiting in &self.events {
            grows |= waiting.grows;
            match &waiting.event.deed {
                Deed::Write { ino, offset, data, clear_suid: false } if *ino == file => {
                    match writes.last_mut().filter(|_| next == Some(*offset)) {
                        Some((_, last)) => last.push(data.clone()),
                        None => writes.push((*offset, vec![data.clone()])),
                    }
                    next = Some(offset + data.len() as u64);
                }
                Deed::Stored { ino, clear_suid: false, .. } if *ino == file => {}
                _ => return None,
            }
        }
        grows.then_some(Growth { writes, events: self.events.len() })
    }

    /// The bytes of so many events that wait are stored.
    pub(super) fn are_stored(&mut self, events: usize) {
        for waiting in self.events.iter_mut().take(events) {
            let before = bytes_of(&waiting.event);
            if let Deed::Write { ino, offset, data, clear_suid } = &waiting.event.deed {
                let (ino, offset, len) = (*ino, *offset, data.len() as u64);
                let clear_suid = *clear_suid;
                waiting.event.deed = Deed::Stored { ino, offset, len, clear_suid, by_tail: true };
            }
            self.bytes -= before - bytes_of(&waiting.event);
        }
    }

    /// The next batch: changes of one user.
    pub(super) fn take_batch(&mut self) -> Batch {
        let (mut events, mut bytes, mut only_replaces) = (Vec::new(), 0, true);
        let user = self.events.front().and_then(|first| first.user.clone());
        let fits = |next: &Waiting, before: usize| {
            let is_more = before + bytes_of(&next.event) > BATCH_BYTES;
            next.user == user && (before == 0 || !is_more)
        };
        while events.len() < MAX_EVENTS
            && self.events.front().is_some_and(|next| fits(next, bytes))
            && let Some(next) = self.events.pop_front()
        {
            bytes += bytes_of(&next.event);
            only_replaces &= !next.grows && next.event.deed.made().is_none();
            events.push(next.event);
        }
        self.bytes -= bytes;
        if self.events.is_empty() {
            self.since = None;
        }
        Batch { events, user, only_replaces }
    }

    /// The session has ended; the events that are lost.
    pub(super) fn clear(&mut self) -> Vec<Event> {
        let waiting: Vec<Event> = self.events.drain(..).map(|it| it.event).collect();
        self.numbers.clear();
        self.used_up.clear();
        self.tails.clear();
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
            Deed::SetAttributes { .. } | Deed::Stored { .. } => 0,
        }
}
