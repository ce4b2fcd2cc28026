//! Which session holds what of an inode, and which inodes change.

use std::ops::Range;

use smallvec::SmallVec;
use thalweg_env::{HashMap, HashSet, Time};
use thalweg_fs::Ino;

use super::pages::PageChanges;
use crate::protocol::{Changed, Grants};

/// What is to be dropped, for each session.
pub(in crate::server) type Drops = Vec<(u64, Vec<Changed>)>;

/// Inodes whose numbers have the same hash share a slot. Two in one slot cost each other a grant now and then.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;
/// Directories of which it is remembered that several sessions use them.
const MAX_SHARED: usize = 65536;

pub(super) const NOTHING: Grants =
    Grants { attributes: false, names: false, content: false, delegation: false };
pub(super) const ATTRIBUTES: Grants = Grants { attributes: true, ..NOTHING };
pub(super) const NAMES: Grants = Grants { names: true, ..NOTHING };
pub(super) const CONTENT: Grants = Grants { content: true, ..NOTHING };
const DELEGATION: Grants = Grants { delegation: true, ..NOTHING };

#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) session: u64,
    pub(super) held: Grants,
    pub(super) since: Time,
    /// The stamp when it last read pages.
    pub(super) read: u64,
}

type Holders = SmallVec<[Holder; 2]>;

#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// The sessions by their serial numbers, and since when each caches something of the inode.
    pub(super) holders: HashMap<Ino, Holders>,
    /// Directories and files that are or were taken back from a session, and when they may be one session's alone again.
    shared: HashMap<Ino, Time>,
    pub(super) quota_changes: u32,
    /// The stamp when the last one began or ended.
    pub(super) quotas_changed: u64,
    pub(super) pages: PageChanges,
    /// Sessions whose clients were away for too long.
    pub(super) absent: HashMap<u64, Absent>,
    /// Delegations of sessions that are known from records alone: a record has also those that were taken back.
    pub(super) recorded: HashSet<(Ino, u64)>,
}

/// What a client may have made that was away for too long: its journal may have changes of that.
#[derive(Debug)]
pub(super) struct Absent {
    /// Inode numbers that were reserved for it.
    numbers: Vec<Range<u64>>,
    /// Those of them that other clients use.
    released: HashSet<Ino>,
}

impl Absent {
    pub(super) fn new(numbers: Vec<Range<u64>>, released: HashSet<Ino>) -> Absent {
        Absent { numbers, released }
    }

    fn owns(&self, ino: Ino) -> bool {
        self.numbers.iter().any(|numbers| numbers.contains(&ino.0)) && !self.released.contains(&ino)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    running: u32,
    /// When the last one began or ended.
    last: u64,
}

/// Numbers are given away in ranges, so that those of a directory and of what is made in it may differ by a power of two: they are
/// hashed by the golden ratio (Knuth, volume 3, 6.4).
fn slot(ino: Ino) -> usize {
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            slots: vec![Slot::default(); SLOTS],
            holders: HashMap::default(),
            shared: HashMap::default(),
            quota_changes: 0,
            quotas_changed: 0,
            pages: PageChanges::default(),
            absent: HashMap::default(),
            recorded: HashSet::default(),
        }
    }

    /// The session that an inode belongs to whose client was away for too long, and that is not this one.
    fn absent_owner(&self, ino: Ino, session: u64) -> Option<u64> {
        let mut absent = self.absent.iter().filter(|(owner, _)| **owner != session);
        absent.find(|(_, absent)| absent.owns(ino)).map(|(owner, _)| *owner)
    }

    /// A session's inode is used by others from here on, if it was its own; whether it was.
    pub(super) fn release_absent(&mut self, ino: Ino, session: u64) -> bool {
        let absent = self.absent.get_mut(&session).filter(|absent| absent.owns(ino));
        absent.is_some_and(|absent| absent.released.insert(ino))
    }

    pub(super) fn end(&mut self, ino: Ino, stamp: u64) {
        let slot = &mut self.slots[slot(ino)];
        assert!(slot.running > 0, "a change ends that has not begun");
        slot.running -= 1;
        slot.last = stamp;
    }

    /// A session caches this of an inode no more, of which `keeps` says what is left of it.
    pub(super) fn reduce(&mut self, ino: Ino, session: u64, keeps: impl Fn(&mut Holder)) {
        let Some(holders) = self.holders.get_mut(&ino) else { return };
        holders.iter_mut().filter(|it| it.session == session).for_each(keeps);
        holders.retain(|it| it.held != NOTHING);
        if holders.is_empty() {
            self.holders.remove(&ino);
        }
    }

    pub(super) fn share(&mut self, ino: Ino, until: Time) {
        if self.shared.len() >= MAX_SHARED {
            self.shared.clear();
        }
        self.shared.insert(ino, until);
    }

    /// Directories or files are being taken back: an owner that has answered may ask for one again before the answer
    /// is noticed here.
    pub(super) fn share_recalled(&mut self, recalls: &[(u64, Vec<Changed>)], until: Time) {
        for change in recalls.iter().flat_map(|(_, changes)| changes) {
            if let Changed::Delegation(ino) = change {
                self.share(*ino, until);
            }
        }
    }

    /// Whether no change of an inode was under way since the stamp `since`.
    pub(super) fn is_steady(&self, ino: Ino, since: u64) -> bool {
        let slot = self.slots[slot(ino)];
        slot.running == 0 && slot.last <= since
    }

    /// Grants a session something of an inode that it has read since the stamp `since`; whether it did.
    pub(super) fn grant(
        &mut self,
        session: u64,
        ino: Ino,
        what: Grants,
        (since, now): (u64, Time),
    ) -> bool {
        let is_early = what.attributes && self.pages.has_outdated(session, ino);
        if is_early || !self.is_steady(ino, since) || self.delegation(ino, session).is_some() {
            return false;
        }
        self.add(session, ino, what, now);
        true
    }

    /// Makes a directory or file a session's alone, if no other one caches or changes something of it, and no quota has changed
    /// since the stamp `since`; whether it did. While a quota changes, none is: it is not recalled any more, and what was read of
    /// quotas may not count.
    pub(super) fn delegate(&mut self, session: u64, ino: Ino, (since, now): (u64, Time)) -> bool {
        let are_quotas_steady = self.quota_changes == 0 && self.quotas_changed <= since;
        if !are_quotas_steady || !self.is_free(ino, session, now) {
            return false;
        }
        let mut others = self.holders.get(&ino).into_iter().flatten();
        if self.slots[slot(ino)].running > 0 || others.any(|it| it.session != session) {
            return false;
        }
        self.add(session, ino, DELEGATION, now);
        true
    }

    pub(super) fn is_free(&mut self, ino: Ino, session: u64, now: Time) -> bool {
        if self.shared.get(&ino).is_some_and(|until| *until > now) {
            return false;
        }
        self.shared.remove(&ino);
        self.delegation(ino, session).is_none()
    }

    pub(super) fn delegation(&self, ino: Ino, session: u64) -> Option<u64> {
        let mut holders = self.holders.get(&ino).into_iter().flatten();
        let owner = holders.find(|it| it.held.delegation && it.session != session);
        owner.map(|it| it.session).or_else(|| self.absent_owner(ino, session))
    }

    pub(super) fn add(&mut self, session: u64, ino: Ino, what: Grants, since: Time) {
        let holders = self.holders.entry(ino).or_default();
        match holders.iter_mut().find(|it| it.session == session) {
            Some(Holder { held, .. }) => {
                held.attributes |= what.attributes;
                held.names |= what.names;
                held.content |= what.content;
                held.delegation |= what.delegation;
            }
            None => holders.push(Holder { session, held: what, since, read: 0 }),
        }
    }

    /// A record says that a session had a delegation.
    pub(super) fn add_recorded(&mut self, session: u64, ino: Ino, since: Time) {
        self.add(session, ino, DELEGATION, since);
        self.recorded.insert((ino, session));
    }

    /// A session has a delegation of an inode, if it has one, in fact and not only on record: then no other one has.
    pub(super) fn confirm(&mut self, session: u64, ino: Ino) {
        let all = || self.holders.get(&ino).into_iter().flatten();
        if !all().any(|it| it.session == session && it.held.delegation) {
            return;
        }
        let others: SmallVec<[u64; 2]> =
            all().map(|it| it.session).filter(|it| *it != session).collect();
        for other in others {
            if self.recorded.remove(&(ino, other)) {
                self.reduce(ino, other, |holder| holder.held.delegation = false);
            }
        }
    }

    /// Notes that some changes of an inode begin; adds what sessions have to drop for one of them.
    pub(super) fn begin(
        &mut self,
        (number, by): (u64, u64),
        change: &Changed,
        is_surprising: bool,
        invalid: &mut Drops,
    ) {
        let ino = change.ino();
        if let Some(owner) = self.absent_owner(ino, by) {
            add_change(invalid, owner, Changed::Delegation(ino));
        }
        let slot = &mut self.slots[slot(ino)];
        slot.running += 1;
        slot.last = number;
        let holders = self.holders.get(&ino).map(|it| &it[..]).unwrap_or_default();
        if let Changed::Content { from, to, .. } = change {
            let waits = holders.iter().any(|it| it.session != by && it.held.content);
            self.pages.begin((number, by), (ino, *from..*to), waits);
        }
        for Holder { session, held, .. } in holders {
            if *session == by && !is_surprising {
                continue;
            }
            let concerns = match change {
                Changed::Delegation(_) | Changed::Size { .. } => false,
                Changed::Attributes(_) => held.attributes,
                Changed::Names(_) | Changed::Name { .. } => held.names,
                Changed::Content { .. } | Changed::Pages(_) => held.content,
            };
            if held.delegation && *session != by {
                add_change(invalid, *session, Changed::Delegation(ino));
            }
            if concerns {
                add_change(invalid, *session, change.clone());
            }
        }
    }
}

pub(super) fn add_change(all: &mut Drops, session: u64, change: Changed) {
    match all.iter_mut().find(|(other, _)| *other == session) {
        Some((_, changes)) if changes.contains(&change) => {}
        Some((_, changes)) => changes.push(change),
        None => all.push((session, vec![change])),
    }
}
