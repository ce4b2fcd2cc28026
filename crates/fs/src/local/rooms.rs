//! Room that is promised to sessions, and that calls under way take.
//!
//! Blocks of data are free in `Space`, blocks of metadata are counted here. A free block serves a call only as far as it was
//! promised to no session, no other call under way takes it, and its release survives a crash: after a crash the clients make
//! their changes again, in any order, and each must find the room that it had.
//!
//! A call enters what it takes before it commits, and leaves after its effects were counted. A promise is entered before the
//! usage that it is measured against is read. So none of them misses the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::HashMap;

use crate::room::{Room, RoomShare};

/// Bytes of records in a block of metadata after it was split, at least.
const BYTES_AFTER_SPLIT: u64 = 1900;
/// Leaves below an inner node, at least.
const LEAVES_OF_A_NODE: u64 = 16;

/// The key of the volume among the quotas.
pub(super) const VOLUME: u64 = 0;

/// The most blocks of metadata that changes take, where so many are in use. A leaf that is in use may be full, and is split by the
/// first record that is inserted there; each half is split again only after as many bytes were inserted as a half takes.
fn pages(room: Room, in_use: u64) -> u64 {
    if room.places == 0 {
        return 0;
    }
    let leaves = room.places.min(in_use) + room.bytes.div_ceil(BYTES_AFTER_SPLIT);
    leaves + leaves.div_ceil(LEAVES_OF_A_NODE)
}

/// What calls take, or free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) blocks: u64,
    pub(super) inodes: u64,
    pub(super) pages: u64,
}

impl Taken {
    pub(super) fn add(&mut self, more: Taken) {
        self.blocks += more.blocks;
        self.inodes += more.inodes;
        self.pages += more.pages;
    }

    fn remove(&mut self, part: Taken) {
        assert!(
            part.blocks <= self.blocks && part.inodes <= self.inodes && part.pages <= self.pages,
            "calls give back more room than they have taken: {part:?} of {self:?}"
        );
        self.blocks -= part.blocks;
        self.inodes -= part.inodes;
        self.pages -= part.pages;
    }
}

/// The accounts, by quota.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    pub(super) accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Promises by quota and session.
    promised: BTreeMap<(u64, u64), Room>,
    /// Their sums by quota.
    sums: HashMap<u64, Room>,
    /// By quota; blocks of metadata are those of the volume.
    taken: HashMap<u64, Taken>,
    /// Blocks of metadata that are free, once sessions are served, and all of them.
    pub(super) free_pages: Option<i64>,
    pub(super) all_pages: u64,
    /// By quota, what was freed, and may be in use again after a crash.
    freed: HashMap<u64, Taken>,
}

/// What a call takes; it ends with the call.
#[derive(Debug)]
pub(super) struct Ticket {
    rooms: Arc<Rooms>,
    taken: Vec<(u64, Taken)>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut accounts = self.rooms.accounts.lock();
        for (quota, taken) in &self.taken {
            let sum = accounts.taken.entry(*quota).or_default();
            sum.remove(*taken);
            if *sum == Taken::default() {
                accounts.taken.remove(quota);
            }
        }
    }
}

impl Ticket {
    /// Of a call that has taken nothing yet.
    pub(super) fn new(rooms: &Arc<Rooms>) -> Ticket {
        Ticket { rooms: rooms.clone(), taken: Vec::new() }
    }

    /// What the call takes of a quota.
    pub(super) fn taken(&self, quota: u64) -> Taken {
        let own = self.taken.iter().find(|(of, _)| *of == quota);
        own.map_or(Taken::default(), |(_, taken)| *taken)
    }

    /// Ends with what a later call of the same transaction takes.
    pub(super) fn absorb(&mut self, mut later: Ticket) {
        std::mem::take(&mut later.taken)
            .into_iter()
            .for_each(|(quota, more)| self.add(quota, more));
    }

    fn add(&mut self, quota: u64, more: Taken) {
        match self.taken.iter_mut().find(|(of, _)| *of == quota) {
            Some((_, own)) => own.add(more),
            None => self.taken.push((quota, more)),
        }
    }

    /// Enters what the call takes. It leaves the promises of others if `fits` finds enough besides these and what calls under
    /// way take, this one's among them; else nothing is entered.
    pub(super) fn enter(
        &mut self,
        quota: u64,
        more: Taken,
        fits: impl FnOnce(&Accounts) -> bool,
    ) -> bool {
        let mut accounts = self.rooms.accounts.lock();
        accounts.taken.entry(quota).or_default().add(more);
        if !fits(&accounts) {
            accounts.taken.entry(quota).or_default().remove(more);
            return false;
        }
        drop(accounts);
        self.add(quota, more);
        true
    }
}

impl Accounts {
    /// Blocks of metadata that are free, and those in use.
    pub(super) fn metadata(&self) -> (u64, u64) {
        let free = u64::try_from(self.free_pages.unwrap_or(0)).unwrap_or(0);
        (free, self.all_pages.saturating_sub(free))
    }

    /// Blocks of metadata that are not for a session which is promised this: because of promises to others, of calls under way, and of
    /// what a crash may bring back.
    pub(super) fn pages_without(&self, own: Room) -> u64 {
        let (_, in_use) = self.metadata();
        let promised = pages(self.sum(VOLUME).checked_sub(own).unwrap_or_default(), in_use);
        promised + self.taken(VOLUME).pages + self.freed(VOLUME).pages
    }

    /// Blocks of metadata that are not for a call: because of promises, with `more`, of calls under way, and of what a crash may
    /// bring back.
    pub(super) fn pages_of_others(&self, more: Room) -> u64 {
        let (_, in_use) = self.metadata();
        let promised = pages(self.sum(VOLUME).plus(more), in_use);
        promised + self.taken(VOLUME).pages + self.freed(VOLUME).pages
    }

    pub(super) fn sum(&self, quota: u64) -> Room {
        self.sums.get(&quota).copied().unwrap_or_default()
    }

    pub(super) fn taken(&self, quota: u64) -> Taken {
        self.taken.get(&quota).copied().unwrap_or_default()
    }

    pub(super) fn freed(&self, quota: u64) -> Taken {
        self.freed.get(&quota).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, (quota, session): (u64, u64), room: Room) {
        if room.is_none() {
            return;
        }
        let own = self.promised.entry((quota, session)).or_default();
        *own = own.plus(room);
        let sum = self.sums.entry(quota).or_default();
        *sum = sum.plus(room);
    }

    pub(super) fn remove(&mut self, (quota, session): (u64, u64), room: Room) {
        let Some(own) = self.promised.get_mut(&(quota, session)) else { return };
        // A session that ends under way has been given nothing of it any more.
        let room = room.min(*own);
        *own = own.checked_sub(room).unwrap_or_default();
        if own.is_none() {
            self.promised.remove(&(quota, session));
        }
        if let Some(sum) = self.sums.get_mut(&quota) {
            let left = sum.checked_sub(room);
            assert!(left.is_some(), "sessions were promised more than all of them together");
            *sum = left.unwrap_or_default();
            if sum.is_none() {
                self.sums.remove(&quota);
            }
        }
    }
}

/// The part of a session's promise that a call may use, by quota. Nothing within it is refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Cover {
    shares: Vec<RoomShare>,
    /// It covers what their records take.
    pub(super) pages: bool,
}

impl Cover {
    /// Takes a part of what is covered; returns the rest, which is not.
    pub(super) fn take(&mut self, quota: u64, blocks: u64, inodes: u64) -> (u64, u64) {
        let Some(share) = self.shares.iter_mut().find(|share| share.quota == quota) else {
            return (blocks, inodes);
        };
        let room = &mut share.room;
        let (some, more) = (blocks.min(room.blocks), inodes.min(room.inodes));
        room.blocks -= some;
        room.inodes -= more;
        (blocks - some, inodes - more)
    }
}

impl Rooms {
    /// What is covered of a session's changes that it charged so.
    pub(super) fn cover(&self, session: u64, charged: &[RoomShare]) -> Cover {
        let accounts = self.accounts.lock();
        let mut cover = Cover::default();
        for RoomShare { quota, room } in charged {
            let own = accounts.promised.get(&(*quota, session)).copied().unwrap_or_default();
            let room = room.min(own);
            cover.pages |= *quota == VOLUME && !room.is_none();
            cover.shares.push(RoomShare { quota: *quota, room });
        }
        cover
    }

    /// Promises less to a session: it has used that, or does not want it.
    pub(super) fn spend(&self, session: u64, charged: &[RoomShare]) {
        let mut accounts = self.accounts.lock();
        for RoomShare { quota, room } in charged {
            accounts.remove((*quota, session), *room);
        }
    }

    /// A session is promised this still, as a server before this one did.
    pub(super) fn claim(&self, session: u64, shares: &[RoomShare]) {
        let mut accounts = self.accounts.lock();
        shares.iter().for_each(|share| accounts.add((share.quota, session), share.room));
    }

    /// A session is promised nothing any more.
    pub(super) fn release(&self, session: u64) {
        let mut accounts = self.accounts.lock();
        let own: Vec<(u64, u64)> =
            accounts.promised.keys().filter(|(_, whose)| *whose == session).copied().collect();
        for key in own {
            let room = accounts.promised.get(&key).copied().unwrap_or_default();
            accounts.remove(key, room);
        }
    }

    /// What a session is promised of a quota, or of the volume.
    pub(super) fn promised(&self, session: u64, quota: u64) -> Room {
        self.accounts.lock().promised.get(&(quota, session)).copied().unwrap_or_default()
    }

    /// The sessions that are promised something.
    pub(super) fn sessions(&self) -> Vec<u64> {
        let accounts = self.accounts.lock();
        let mut sessions: Vec<u64> =
            accounts.promised.keys().map(|(_, session)| *session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions
    }

    /// Whether sessions are served, so that what is free is counted.
    pub(super) fn are_counted(&self) -> bool {
        self.accounts.lock().free_pages.is_some()
    }

    /// A call has ended: blocks of metadata that it has allocated, less those that it has freed; blocks of data that it has freed;
    /// and what it has charged quotas with.
    pub(super) fn settle(
        &self,
        pages: i64,
        blocks: u64,
        charged: impl Iterator<Item = (u64, (i64, i64))>,
    ) {
        let mut accounts = self.accounts.lock();
        let Some(free) = &mut accounts.free_pages else { return };
        *free -= pages;
        let down = |by: i64| u64::try_from(-by).unwrap_or(0);
        let volume = Taken { blocks, inodes: 0, pages: down(pages) };
        let quotas = charged.map(|(quota, (blocks, inodes))| {
            (quota, Taken { blocks: down(blocks), inodes: down(inodes), pages: 0 })
        });
        for (quota, freed) in quotas.chain([(VOLUME, volume)]) {
            if freed != Taken::default() {
                accounts.freed.entry(quota).or_default().add(freed);
            }
        }
    }

    /// What was freed, and may be in use again after a crash.
    pub(super) fn freed(&self) -> HashMap<u64, Taken> {
        self.accounts.lock().freed.clone()
    }

    /// Whether something was freed that may be in use again after a crash.
    pub(super) fn has_freed(&self) -> bool {
        !self.accounts.lock().freed.is_empty()
    }

    /// This is free after a crash, too.
    pub(super) fn synced(&self, freed: &HashMap<u64, Taken>) {
        let mut accounts = self.accounts.lock();
        for (quota, freed) in freed {
            if let Some(left) = accounts.freed.get_mut(quota) {
                left.remove(*freed);
            }
        }
        accounts.freed.retain(|_, left| *left != Taken::default());
    }
}
