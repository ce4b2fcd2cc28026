//! Mutations that this client has made under its delegations, and that the server does not have.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;
use thalweg_env::{HashMap, HashSet, Time};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::{Room, RoomShare, add_share};
use thalweg_fs::{FsError, Ino};

use super::delegated::Grant;
use super::record::{Parts, Record, room_of};
use super::users::{self, User};
use crate::protocol::{MAX_MUTATIONS, MAX_RELEASES, MAX_SHARES, RoomGrant};

/// Bytes of mutations in one call at most, about.
const BATCH_BYTES: usize = 512 << 10;
/// Mutations that wait when the next batch is sent.
const FULL: usize = 512;
/// Mutations that wait before their makers wait too, and their bytes.
const MOST: (usize, usize) = (16384, 8 << 20);
/// Inodes at most of which is remembered that changes were lost.
const MAX_FAILED: usize = 65536;
/// Numbers that are left when the client reserves further ones.
const FEW_NUMBERS: u64 = 1024;

/// Writes that make a file longer.
#[derive(Debug)]
pub(super) struct Growth {
    /// Offsets and buffers that are not stored yet.
    pub(super) writes: Vec<(u64, Vec<Bytes>)>,
    /// The number of mutations that wait, all of which are about these writes or stored ones.
    pub(super) mutations: usize,
}

/// What the client has made by itself, and the server does not have.
#[derive(Debug, Default)]
pub(super) struct WritebackQueue {
    mutations: VecDeque<Waiting>,
    bytes: usize,
    /// Mutations made so far, and those of them that the server has, or that are lost.
    made: u64,
    pub(super) done: u64,
    /// Mutations up to this one are durable, or lost.
    synced: u64,
    /// When the first of the mutations that wait was made.
    since: Option<Time>,
    /// Numbers for new inodes, with the reservation of each range.
    numbers: VecDeque<(Range<u64>, Reservation)>,
    /// Ranges that are used up, with the number of the last mutation that uses one.
    pub(super) used_up: Vec<(Reservation, u64)>,
    grants: u64,
    /// What the server has promised, less what the mutations have taken of it.
    room: Vec<RoomShare>,
    /// What the mutations have taken that the server does not have.
    charged: Vec<RoomShare>,
    /// Room that was promised before this recall does not count.
    recalls: u64,
    /// The last change found no room below the root of this quota.
    lacks: Option<u64>,
    /// Recalls of delegations that are released when the server has the mutations up to these.
    releases: Vec<(u64, u64)>,
    /// Before this time the server is not asked for more room.
    pub(super) no_room_until: Time,
    /// Changes so far for which the server stores or clears bytes.
    pub(super) by_server: u64,
    /// Inodes of which changes were lost.
    pub(super) failed: HashMap<Ino, Failure>,
    /// Files whose size records are stored, the oldest first.
    pub(super) size_records: VecDeque<Ino>,
    /// Files with unsent changes, all of which are durable by a size record. Kept when the session ends.
    pub(super) ended: HashSet<Ino>,
}

/// Changes of an inode were lost.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Why.
    error: FsError,
    /// A sync or a close has told that.
    is_told: bool,
    /// Bytes of it are lost.
    lacks_bytes: bool,
}

/// What a mutation takes of what was promised, and the root of the quota that it counts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Charge {
    pub(super) quota: u64,
    pub(super) room: Room,
}

impl Charge {
    fn shares(self) -> impl Iterator<Item = RoomShare> {
        let volume = RoomShare { quota: 0, room: self.room };
        let quota = RoomShare { quota: self.quota, room: self.room.of_quota() };
        [Some(volume), (self.quota != 0).then_some(quota)].into_iter().flatten()
    }
}

/// What mutations take together.
pub(super) fn shares_of(charges: &[Charge]) -> Vec<RoomShare> {
    let mut shares = Vec::new();
    for share in charges.iter().flat_map(|charge| charge.shares()) {
        add_share(&mut shares, share.quota, share.room);
    }
    shares
}

/// A mutation that waits.
#[derive(Debug)]
struct Waiting {
    record: Record,
    user: User,
}

/// Mutations of one user that are sent together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) mutations: Vec<Mutation>,
    /// What each of them takes.
    pub(super) charges: Vec<Charge>,
    pub(super) user: User,
    /// No inode is made and no file becomes longer, so that bytes may be stored before or after.
    pub(super) only_replaces: bool,
}

/// Inode numbers as they were reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reservation {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) inode_token: u64,
}

impl WritebackQueue {
    /// Changes of an inode were lost, for this reason, with `bytes` of it. Returns whether that is remembered, and was not before.
    pub(super) fn fail(&mut self, ino: Ino, error: &FsError, bytes: bool) -> bool {
        let before = self.failed.get(&ino);
        let (is_new, lacks_bytes) =
            (before.is_none(), bytes || before.is_some_and(|it| it.lacks_bytes));
        let has_room = self.failed.len() < MAX_FAILED;
        if is_new && !has_room {
            return false;
        }
        self.failed.insert(ino, Failure { error: error.clone(), is_told: false, lacks_bytes });
        is_new
    }

    /// Why changes of an inode were lost, if no sync or close has told that.
    pub(super) fn untold(&self, ino: Ino) -> Option<FsError> {
        self.failed.get(&ino).filter(|it| !it.is_told).map(|it| it.error.clone())
    }

    /// The same; it is told now.
    pub(super) fn tell_failure(&mut self, ino: Ino) -> Option<FsError> {
        let failure = self.failed.get_mut(&ino).filter(|it| !it.is_told)?;
        failure.is_told = true;
        Some(failure.error.clone())
    }

    /// Why a file does not have all of what was written to it.
    pub(super) fn failure(&self, ino: Ino) -> Option<FsError> {
        self.failed.get(&ino).filter(|it| it.lacks_bytes).map(|it| it.error.clone())
    }

    /// Nothing is left of what was written to an inode.
    pub(super) fn is_empty_again(&mut self, ino: Ino) {
        self.failed.remove(&ino);
    }

    /// Mutations that the server does not have.
    pub(super) fn len(&self) -> usize {
        assert!(self.done <= self.made, "the server has mutations that were not made");
        (self.made - self.done) as usize
    }

    /// The number of the last mutation.
    pub(super) fn last(&self) -> u64 {
        self.made
    }

    /// Whether the server has the mutations up to this one.
    pub(super) fn has(&self, number: u64) -> bool {
        self.done >= number
    }

    /// Whether mutations wait that are in no batch.
    pub(super) fn has_waiting(&self) -> bool {
        !self.mutations.is_empty()
    }

    /// Whether everything became durable with the batch of this mutation, or with a later one.
    pub(super) fn is_synced(&self, number: u64) -> bool {
        self.synced >= number
    }

    /// The mutations that the server has are durable.
    pub(super) fn synced(&mut self) {
        self.synced = self.done;
    }

    /// Whether a batch is to be sent.
    pub(super) fn is_full(&self) -> bool {
        self.mutations.len() >= FULL || self.bytes >= BATCH_BYTES
    }

    /// Whether the makers of mutations have to wait.
    pub(super) fn is_over_full(&self) -> bool {
        self.mutations.len() >= MOST.0 || self.bytes >= MOST.1
    }

    /// Whether the oldest mutation waits since then or longer.
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

    /// Reservations of numbers that inodes may get, also with mutations that the server does not have.
    pub(super) fn reservations(&self) -> Vec<Reservation> {
        let used_up = self.used_up.iter().map(|(it, _)| *it);
        used_up.chain(self.numbers.iter().map(|(_, it)| *it)).collect()
    }

    /// A recall, which has this number, is done when the server has all mutations so far.
    pub(super) fn release(&mut self, recall: u64) {
        if self.has_waiting() && self.releases.len() < MAX_RELEASES {
            self.releases.push((recall, self.made));
        }
    }

    /// A recall was answered.
    pub(super) fn forget_release(&mut self, recall: u64) {
        self.releases.retain(|(number, _)| *number != recall);
    }

    /// The recalls that are done when the server has the mutations up to this one.
    pub(super) fn released_by(&self, end: u64) -> Vec<u64> {
        let done = self.releases.iter().filter(|(_, last)| *last <= end);
        done.map(|(recall, _)| *recall).collect()
    }

    /// The number of a new grant of a delegation.
    pub(super) fn next_grant(&mut self) -> Grant {
        self.grants += 1;
        Grant::new(self.grants).expect("grants are counted from 1 on")
    }

    /// Whether a new inode can have a number.
    pub(super) fn has_number(&self) -> bool {
        self.numbers.iter().any(|(range, _)| !range.is_empty())
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

    /// Takes room for a change, if there is enough.
    pub(super) fn take_room(&mut self, quota: u64, room: Room) -> Option<Charge> {
        let charge = Charge { quota, room };
        let find = |room: &[RoomShare], quota| room.iter().position(|it| it.quota == quota);
        let mut left: [Option<(usize, Room)>; 2] = [None; 2];
        for (share, left) in charge.shares().zip(&mut left) {
            let at = find(&self.room, share.quota);
            let rest = at.and_then(|at| Some((at, self.room[at].room.checked_sub(share.room)?)));
            if rest.is_none() && !share.room.is_none() {
                self.lacks = Some(quota);
                return None;
            }
            *left = rest;
        }
        left.into_iter().flatten().for_each(|(at, rest)| self.room[at].room = rest);
        charge.shares().for_each(|it| add_share(&mut self.charged, it.quota, it.room));
        Some(charge)
    }

    /// The quota that the last change found no room for, if there was one.
    pub(super) fn take_lack(&mut self) -> Option<u64> {
        self.lacks.take()
    }

    /// The server promises more.
    pub(super) fn add_room(&mut self, grant: &RoomGrant) {
        if grant.recalls >= self.recalls {
            grant.shares.iter().for_each(|it| add_share(&mut self.room, it.quota, it.room));
        }
    }

    /// The server has taken back what it has promised before this recall, beside what the mutations have taken.
    pub(super) fn return_room(&mut self, recalls: u64) {
        if recalls > self.recalls {
            self.recalls = recalls;
            self.room.clear();
        }
    }

    /// A new server promises nothing but what the mutations have taken.
    pub(super) fn reclaim_room(&mut self) -> Vec<RoomShare> {
        self.recalls = 0;
        self.room.clear();
        self.charged.iter().filter(|it| !it.room.is_none()).copied().collect()
    }

    /// Mutations that have taken this are at the server. If they are lost, other mutations may take it.
    pub(super) fn discharge(&mut self, charges: &[Charge], lost: bool) {
        for share in shares_of(charges) {
            let own = self.charged.iter_mut().find(|own| own.quota == share.quota);
            // None after the session has ended.
            let Some(own) = own else { continue };
            own.room = own.room.checked_sub(share.room).unwrap_or_default();
            if lost {
                add_share(&mut self.room, share.quota, share.room);
            }
        }
        self.charged.retain(|own| !own.room.is_none());
    }

    pub(super) fn push(&mut self, mutation: Mutation, charge: Charge, grows: bool, now: Time) {
        let Charge { quota, room } = charge;
        assert_eq!(
            room,
            room_of(&mutation.kind, room.blocks),
            "a charge follows from its mutation"
        );
        let record = Record::of(mutation, quota, room.blocks, grows);
        self.bytes += record.bytes();
        if self.mutations.len() == self.mutations.capacity() {
            // Twice as many, as it is usual, would often leave room for thousands unused.
            self.mutations.reserve_exact(1 + self.mutations.len() / 4);
        }
        self.mutations.push_back(Waiting { record, user: users::current() });
        self.made += 1;
        self.since.get_or_insert(now);
    }

    /// What waits, if all of it writes to this file, and makes it longer.
    pub(super) fn growth_of(&self, file: Ino) -> Option<Growth> {
        let mut writes: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let (mut grows, mut next) = (false, None);
        for waiting in &self.mutations {
            let Record::Bytes(record) = &waiting.record else { return None };
            grows |= record.grows;
            match &record.mutation.kind {
                MutationKind::Write { ino, offset, data, clear_suid: false } if *ino == file => {
                    match writes.last_mut().filter(|_| next == Some(*offset)) {
                        Some((_, last)) => last.push(data.clone()),
                        None => writes.push((*offset, vec![data.clone()])),
                    }
                    next = Some(offset + data.len() as u64);
                }
                MutationKind::Stored { ino, clear_suid: false, .. } if *ino == file => {}
                _ => return None,
            }
        }
        grows.then_some(Growth { writes, mutations: self.mutations.len() })
    }

    /// The bytes of so many mutations that wait are stored.
    pub(super) fn are_stored(&mut self, mutations: usize) {
        for waiting in self.mutations.iter_mut().take(mutations) {
            let before = waiting.record.bytes();
            if let Record::Bytes(record) = &mut waiting.record
                && let MutationKind::Write { ino, offset, data, clear_suid } = &record.mutation.kind
            {
                let (ino, offset, len) = (*ino, *offset, data.len() as u64);
                let clear_suid = *clear_suid;
                record.mutation.kind =
                    MutationKind::Stored { ino, offset, len, clear_suid, by_size_record: true };
            }
            let stored = before - waiting.record.bytes();
            assert!(self.bytes >= stored, "more bytes are stored than were queued");
            self.bytes -= stored;
        }
    }

    /// The next batch: changes of one user.
    pub(super) fn take_batch(&mut self) -> Batch {
        let (mut mutations, mut bytes, mut only_replaces) = (Vec::new(), 0, true);
        let (mut charges, mut quotas) = (Vec::new(), SmallVec::<[u64; MAX_SHARES]>::new());
        let user = self.mutations.front().and_then(|first| first.user.clone());
        let fits = |next: &Waiting, before: usize| {
            let is_more = before + next.record.bytes() > BATCH_BYTES;
            next.user == user && (before == 0 || !is_more)
        };
        while mutations.len() < MAX_MUTATIONS
            && self.mutations.front().is_some_and(|next| fits(next, bytes))
            // One share is the volume's.
            && (quotas.len() < MAX_SHARES - 1
                || self.mutations.front().is_some_and(|next| quotas.contains(&next.record.quota())))
            && let Some(next) = self.mutations.pop_front()
        {
            bytes += next.record.bytes();
            let Parts { mutation, quota, blocks, grows } = next.record.into_parts();
            if !quotas.contains(&quota) {
                quotas.push(quota);
            }
            charges.push(Charge { quota, room: room_of(&mutation.kind, blocks) });
            only_replaces &= !grows && mutation.kind.made().is_none();
            mutations.push(mutation);
        }
        assert!(self.bytes >= bytes, "more bytes leave the queue than were queued");
        assert!(quotas.len() < MAX_SHARES, "one share is the volume's");
        assert_eq!(mutations.len(), charges.len(), "each mutation has a charge");
        self.bytes -= bytes;
        if self.mutations.is_empty() {
            self.since = None;
        }
        Batch { mutations, charges, user, only_replaces }
    }

    /// The session has ended; the mutations that are lost.
    pub(super) fn clear(&mut self) -> Vec<Mutation> {
        let waiting: Vec<Mutation> =
            self.mutations.drain(..).map(|it| it.record.into_parts().mutation).collect();
        self.numbers.clear();
        self.used_up.clear();
        self.size_records.clear();
        (self.room, self.charged, self.recalls) = (Vec::new(), Vec::new(), 0);
        (self.bytes, self.since) = (0, None);
        waiting
    }
}
