//! What the clients cache.
//!
//! A client may cache what it was granted until the server has invalidated it. A change first invalidates what other
//! sessions cache of it ([`Capabilities::begin`]), and nothing of it is granted before it has ended. So that a read
//! does not have to keep changes away, it is granted only when none was under way since the read began: times are
//! stamps of one counter, and inodes share slots.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use thalweg_env::{Env, HashMap, Time};
use thalweg_fs::Ino;
use tokio::sync::Notify;

use super::pages::{Late, PageChanges, content_of};
use crate::protocol::Changed;

/// Inodes with equal numbers modulo this share a slot. Two in one slot cost each other a grant now and then.
const SLOTS: usize = 4096;
/// Directories of which it is remembered that several sessions use them.
const MAX_SHARED: usize = 65536;

/// What a session may cache of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Held {
    /// Its attributes.
    pub(super) attributes: bool,
    /// Names in the directory.
    pub(super) names: bool,
    /// Its pages.
    pub(super) content: bool,
    /// The directory is the session's alone.
    pub(super) delegation: bool,
}

impl Held {
    const NOTHING: Held =
        Held { attributes: false, names: false, content: false, delegation: false };
    pub(super) const ATTRIBUTES: Held = Held { attributes: true, ..Held::NOTHING };
    pub(super) const NAMES: Held = Held { names: true, ..Held::NOTHING };
    pub(super) const CONTENT: Held = Held { content: true, ..Held::NOTHING };
    pub(super) const EXCLUSIVE: Held = Held { delegation: true, ..Held::NOTHING };

    fn add(&mut self, more: Held) {
        self.attributes |= more.attributes;
        self.names |= more.names;
        self.content |= more.content;
        self.delegation |= more.delegation;
    }

    fn is_nothing(self) -> bool {
        self == Held::NOTHING
    }
}

/// What the sessions may cache.
#[derive(Debug)]
pub(super) struct Capabilities(Arc<Mutex<Table>>);

/// What a session may cache of an inode, and since when.
#[derive(Clone, Copy, Debug)]
struct Holder {
    session: u64,
    held: Held,
    since: Time,
    /// The stamp when it last read pages.
    read: u64,
}

type Holders = SmallVec<[Holder; 2]>;

/// What is to be dropped, for each session.
pub(super) type Drops = Vec<(u64, Vec<Changed>)>;

/// Changes that begin.
#[derive(Debug)]
pub(super) struct Begun {
    /// Grows from change to change.
    pub(super) number: u64,
    /// What is to be dropped first.
    pub(super) invalid: Drops,
    /// What is dropped as soon as earlier calls are answered that hold it.
    pub(super) held: Drops,
}

/// The locked table.
#[derive(Debug)]
pub(super) struct Table {
    env: Env,
    stamp: u64,
    slots: Vec<Slot>,
    /// The sessions by their serial numbers, and since when each caches something of the inode.
    holders: HashMap<Ino, Holders>,
    /// Directories and files that are or were taken back from a session, and when they may be one session's alone again.
    shared: HashMap<Ino, Time>,
    /// Longer than it takes to take one back.
    recall: Duration,
    /// Clients are promised no room before that time.
    no_room_until: Time,
    /// The stamp of the last change of a quota.
    quotas_changed: u64,
    /// Changes of bytes.
    pub(super) pages: PageChanges,
    /// Some of these have ended.
    pub(super) pages_ended: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Changes under way.
    running: u32,
    /// When the last one began or ended.
    last: u64,
}

impl Table {
    fn new(env: &Env, recall: Duration) -> Table {
        let (slots, (holders, shared)) = (vec![Slot::default(); SLOTS], Default::default());
        let (no_room_until, quotas_changed) = (Time::default(), 0);
        let env = env.clone();
        Table {
            env,
            stamp: 0,
            slots,
            holders,
            shared,
            recall,
            no_room_until,
            quotas_changed,
            pages: PageChanges::default(),
            pages_ended: Arc::default(),
        }
    }

    /// A directory or file is no session's alone before that time.
    fn share(&mut self, ino: Ino, until: Time) {
        if self.shared.len() >= MAX_SHARED {
            self.shared.clear();
        }
        self.shared.insert(ino, until);
    }

    /// Directories or files are being taken back: an owner that has answered may ask for one again before the answer
    /// is noticed here.
    fn share_recalled(&mut self, recalls: &[(u64, Vec<Changed>)]) {
        let until = self.env.now() + self.recall;
        for change in recalls.iter().flat_map(|(_, changes)| changes) {
            if let Changed::Delegation(ino) = change {
                self.share(*ino, until);
            }
        }
    }
}

impl Table {
    /// Clients are promised no room before that time.
    pub(super) fn refuse_room(&mut self, until: Time) {
        self.no_room_until = until;
    }

    /// Whether clients may be promised room.
    pub(super) fn grants_room(&self) -> bool {
        self.env.now() >= self.no_room_until
    }

    /// Quotas change: what was read of them before does not count any more.
    pub(super) fn change_quotas(&mut self) {
        self.stamp += 1;
        self.quotas_changed = self.stamp;
    }

    /// What is delegated to each session.
    pub(super) fn all_exclusive(&mut self) -> Vec<(u64, Vec<Changed>)> {
        let mut recalls = Vec::new();
        for (ino, holders) in &self.holders {
            for holder in holders.iter().filter(|it| it.held.delegation) {
                add_change(&mut recalls, holder.session, Changed::Delegation(*ino));
            }
        }
        self.share_recalled(&recalls);
        recalls
    }
}

fn slot(ino: Ino) -> usize {
    (ino.0 % SLOTS as u64) as usize
}

impl Table {
    /// Grants a session something of an inode that it has read since the stamp `since`; whether it did.
    pub(super) fn grant(&mut self, session: u64, ino: Ino, what: Held, since: u64) -> bool {
        let is_early = what.attributes && self.pages.has_outdated(session, ino);
        if is_early || !self.is_steady(ino, since) || self.delegation(ino, session).is_some() {
            return false;
        }
        self.add(session, ino, what);
        true
    }

    /// Whether no change of an inode was under way since the stamp `since`.
    pub(super) fn is_steady(&self, ino: Ino, since: u64) -> bool {
        let slot = self.slots[slot(ino)];
        slot.running == 0 && slot.last <= since
    }

    /// Makes a directory or file a session's alone, if no other one caches or changes something of it, and no quota has changed
    /// since the stamp `since`; whether it did.
    pub(super) fn acquire(&mut self, session: u64, ino: Ino, since: u64) -> bool {
        if self.quotas_changed > since || !self.is_free(ino, session) {
            return false;
        }
        let mut others = self.holders.get(&ino).into_iter().flatten();
        if self.slots[slot(ino)].running > 0 || others.any(|it| it.session != session) {
            return false;
        }
        self.add(session, ino, Held::EXCLUSIVE);
        true
    }

    /// Whether a directory or file may become a session's alone now: no other one has it so, or has asked for it lately.
    pub(super) fn is_free(&mut self, ino: Ino, session: u64) -> bool {
        let now = self.env.now();
        if self.shared.get(&ino).is_some_and(|until| *until > now) {
            return false;
        }
        self.shared.remove(&ino);
        self.delegation(ino, session).is_none()
    }

    /// The other session to which a directory or file is delegated.
    fn delegation(&self, ino: Ino, session: u64) -> Option<u64> {
        let mut holders = self.holders.get(&ino)?.iter();
        holders.find(|it| it.held.delegation && it.session != session).map(|it| it.session)
    }
}

impl Table {
    /// A session holds something of an inode still: nothing of it has changed since it was granted.
    pub(super) fn reclaim(&mut self, session: u64, ino: Ino, what: Held) {
        if !what.is_nothing() {
            self.add(session, ino, what);
        }
    }

    fn add(&mut self, session: u64, ino: Ino, what: Held) {
        let holders = self.holders.entry(ino).or_default();
        match holders.iter_mut().find(|it| it.session == session) {
            Some(holder) => holder.held.add(what),
            None => holders.push(Holder { session, held: what, since: self.env.now(), read: 0 }),
        }
    }
}

impl Table {
    /// A session is about to cache pages of a file, and is told of changes from here on. Whether it is, which is so unless the file
    /// is another session's alone.
    pub(super) fn read_pages(&mut self, session: u64, ino: Ino, range: &Range<u64>) -> bool {
        if self.delegation(ino, session).is_some() {
            return false;
        }
        self.add(session, ino, Held::CONTENT);
        let holders = self.holders.get_mut(&ino).into_iter().flatten();
        holders.filter(|it| it.session == session).for_each(|it| it.read = self.stamp);
        self.pages.read(session, ino, range);
        true
    }

    /// Divides what sessions have to drop or to hear of into what they can drop now, and what they may hold by changes that are
    /// answered later. A kernel takes a size at once, and then waits for the last page.
    pub(super) fn divide(&self, late: Vec<Late>) -> (Drops, Drops) {
        let (mut free, mut held) = (Vec::new(), Vec::new());
        for Late { number, session, change } in late {
            let (now, later) = match change {
                Changed::Size { ino, size } if self.pages.holds_end(session, ino, size) => {
                    (Vec::new(), vec![change])
                }
                change => self.pages.divide(number, session, vec![change]),
            };
            now.into_iter().for_each(|change| add_change(&mut free, session, change));
            later.into_iter().for_each(|change| add_change(&mut held, session, change));
        }
        (free, held)
    }
}

/// Adds to what a session has to drop.
fn add_change(all: &mut Vec<(u64, Vec<Changed>)>, session: u64, change: Changed) {
    match all.iter_mut().find(|(other, _)| *other == session) {
        Some((_, changes)) if changes.contains(&change) => {}
        Some((_, changes)) => changes.push(change),
        None => all.push((session, vec![change])),
    }
}

impl Capabilities {
    /// It takes less than `recall` to take something back from a session.
    pub(super) fn new(env: &Env, recall: Duration) -> Capabilities {
        Capabilities(Arc::new(Mutex::new(Table::new(env, recall))))
    }

    /// The table, to be locked later.
    pub(super) fn table(&self) -> &Arc<Mutex<Table>> {
        &self.0
    }

    /// The table. Nothing is granted and no change begins while it is locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }

    /// The present stamp: for a read that begins now.
    pub(super) fn now(&self) -> u64 {
        self.0.lock().stamp
    }

    /// Changes by a session begin: what each other session has to drop first, and what this one has to drop of
    /// `surprising` inodes. [`Capabilities::end`] must follow.
    pub(super) fn begin(&self, by: u64, changes: &[Changed], surprising: &[Ino]) -> Begun {
        let mut table = self.0.lock();
        let table = &mut *table;
        table.stamp += 1;
        let number = table.stamp;
        let mut invalid: Drops = Vec::new();
        for change in changes {
            let ino = change.ino();
            let slot = &mut table.slots[slot(ino)];
            slot.running += 1;
            slot.last = table.stamp;
            let holders = table.holders.get(&ino).map(|it| &it[..]).unwrap_or_default();
            if let Changed::Content { from, to, .. } = change {
                let waits = holders.iter().any(|it| it.session != by && it.held.content);
                table.pages.begin((number, by), (ino, *from..*to), waits);
            }
            let drops = |session: u64| session != by || surprising.contains(&ino);
            for Holder { session, held, .. } in holders.iter().filter(|it| drops(it.session)) {
                let concerns = match change {
                    Changed::Delegation(_) | Changed::Size { .. } => false,
                    Changed::Attributes(_) => held.attributes,
                    Changed::Names(_) | Changed::Name { .. } => held.names,
                    Changed::Content { .. } | Changed::Pages(_) => held.content,
                };
                let releases =
                    (held.delegation && *session != by).then_some(Changed::Delegation(ino));
                let all = releases.into_iter().chain(concerns.then(|| change.clone()));
                all.for_each(|change| add_change(&mut invalid, *session, change));
            }
        }
        table.share_recalled(&invalid);
        let mut held = Vec::new();
        for (session, changes) in &mut invalid {
            let later;
            (*changes, later) = table.pages.divide(number, *session, std::mem::take(changes));
            if !later.is_empty() {
                held.push((*session, later));
            }
        }
        invalid.retain(|(_, changes)| !changes.is_empty());
        Begun { number, invalid, held }
    }

    /// The ones of these inodes that other sessions have to release before a session uses them.
    pub(super) fn recalls(&self, by: u64, seen: &[Ino]) -> Vec<(u64, Vec<Changed>)> {
        let mut table = self.0.lock();
        let mut recalls = Vec::new();
        for ino in seen {
            if let Some(session) = table.delegation(*ino, by) {
                add_change(&mut recalls, session, Changed::Delegation(*ino));
            }
        }
        table.share_recalled(&recalls);
        recalls
    }

    /// A session has dropped what is about to change, which began with this number. It may still cache other names of a directory, and other pages. A
    /// directory that it has released stays shared until `until`.
    pub(super) fn dropped(&self, session: u64, number: u64, changes: &[Changed], until: Time) {
        let mut table = self.0.lock();
        let table = &mut *table;
        for change in changes {
            let ino = change.ino();
            let Some(holders) = table.holders.get_mut(&ino) else { continue };
            let own = holders.iter_mut().filter(|it| it.session == session);
            own.for_each(|Holder { held, read, .. }| match change {
                Changed::Delegation(_) => held.delegation = false,
                Changed::Attributes(_) => held.attributes = false,
                Changed::Names(_) => held.names = false,
                // It may have read some again.
                Changed::Pages(_) => held.content &= *read >= number,
                Changed::Name { .. } | Changed::Content { .. } | Changed::Size { .. } => {}
            });
            holders.retain(|it| !it.held.is_nothing());
            if holders.is_empty() {
                table.holders.remove(&ino);
            }
            if matches!(change, Changed::Delegation(_)) {
                table.share(ino, until);
            }
        }
    }

    /// The changes have ended: the pages that were read meanwhile.
    pub(super) fn end(&self, number: u64, changes: &[Changed]) -> Vec<Late> {
        let mut table = self.0.lock();
        let mut outdated = Vec::new();
        for ino in changes.iter().filter_map(content_of) {
            for (session, range) in table.pages.carried_out(number, ino) {
                let change = Changed::Content { ino, from: range.start, to: range.end };
                outdated.push(Late { number, session, change });
            }
        }
        table.stamp += 1;
        let stamp = table.stamp;
        for change in changes {
            let slot = &mut table.slots[slot(change.ino())];
            assert!(slot.running > 0, "a change ends that has not begun");
            slot.running -= 1;
            slot.last = stamp;
        }
        outdated
    }

    /// A session caches nothing of an inode.
    pub(super) fn forget(&self, session: u64, ino: Ino) {
        let mut table = self.0.lock();
        if let Some(holders) = table.holders.get_mut(&ino) {
            holders.retain(|it| it.session != session);
            if holders.is_empty() {
                table.holders.remove(&ino);
            }
        }
    }

    /// A session has ended.
    pub(super) fn drop_session(&self, session: u64) {
        self.0.lock().holders.retain(|_, holders| {
            holders.retain(|it| it.session != session);
            !holders.is_empty()
        });
    }

    /// Whether another session caches something of an inode.
    pub(super) fn is_held_by_others(&self, session: u64, ino: Ino) -> bool {
        let table = self.0.lock();
        table.holders.get(&ino).is_some_and(|it| it.iter().any(|it| it.session != session))
    }

    /// Whether a session caches something of an inode.
    pub(super) fn is_held(&self, session: u64, ino: Ino) -> bool {
        let table = self.0.lock();
        table.holders.get(&ino).is_some_and(|it| it.iter().any(|it| it.session == session))
    }

    /// What a session has to release so that nothing is its alone.
    pub(super) fn owned_by(&self, session: u64) -> Vec<Changed> {
        let mut table = self.0.lock();
        let is_owner = |it: &Holder| it.session == session && it.held.delegation;
        let owned = table.holders.iter().filter(|(_, holders)| holders.iter().any(is_owner));
        let mut owned: Vec<Ino> = owned.map(|(ino, _)| *ino).collect();
        owned.sort_unstable();
        let owned: Vec<Changed> = owned.into_iter().map(Changed::Delegation).collect();
        table.share_recalled(&[(session, owned.clone())]);
        owned
    }

    /// The sessions that cache something of an inode: what, and since when.
    pub(super) fn holders(&self, ino: Ino) -> Vec<(u64, Held, Time)> {
        let table = self.0.lock();
        let holders = table.holders.get(&ino).into_iter().flatten();
        holders.map(|it| (it.session, it.held, it.since)).collect()
    }

    /// Inodes of which the sessions cache something, counted for each session.
    pub(super) fn count(&self) -> HashMap<u64, u64> {
        let mut counts = HashMap::default();
        for holder in self.0.lock().holders.values().flatten() {
            *counts.entry(holder.session).or_default() += 1;
        }
        counts
    }
}
