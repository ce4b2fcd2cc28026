//! What the clients cache.
//!
//! A client may cache what it was granted until the server has invalidated it. A change first invalidates what other
//! sessions cache of it ([`Capabilities::begin`]), and nothing of it is granted before it has ended. So that a read
//! does not have to keep changes away, it is granted only when none was under way since the read began: times are
//! stamps of one counter, and inodes share slots.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use thalweg_env::{Env, HashMap, Time};
use thalweg_fs::Ino;

use crate::protocol::Changed;

/// Inodes with equal numbers modulo this share a slot. Two in one slot cost each other a grant now and then.
const SLOTS: usize = 4096;

/// What a session may cache of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Held {
    /// Its attributes.
    pub(super) attributes: bool,
    /// Names in the directory.
    pub(super) names: bool,
    /// Its pages.
    pub(super) content: bool,
}

impl Held {
    pub(super) const ATTRIBUTES: Held = Held { attributes: true, names: false, content: false };
    pub(super) const NAMES: Held = Held { attributes: false, names: true, content: false };
    pub(super) const CONTENT: Held = Held { attributes: false, names: false, content: true };

    fn add(&mut self, more: Held) {
        self.attributes |= more.attributes;
        self.names |= more.names;
        self.content |= more.content;
    }

    fn is_nothing(self) -> bool {
        self == Held::default()
    }
}

/// What the sessions may cache.
#[derive(Debug)]
pub(super) struct Capabilities(Mutex<Table>);

type Holders = SmallVec<[(u64, Held, Time); 2]>;

/// The locked table.
#[derive(Debug)]
pub(super) struct Table {
    env: Env,
    stamp: u64,
    slots: Vec<Slot>,
    /// The sessions by their serial numbers, and since when each caches something of the inode.
    holders: HashMap<Ino, Holders>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Changes under way.
    running: u32,
    /// When the last one began or ended.
    last: u64,
}

impl Table {
    fn new(env: &Env) -> Table {
        let (slots, holders) = (vec![Slot::default(); SLOTS], HashMap::default());
        Table { env: env.clone(), stamp: 0, slots, holders }
    }
}

fn slot(ino: Ino) -> usize {
    (ino.0 % SLOTS as u64) as usize
}

impl Table {
    /// Grants a session something of an inode that it has read since the stamp `since`; whether it did.
    pub(super) fn grant(&mut self, session: u64, ino: Ino, what: Held, since: u64) -> bool {
        let slot = self.slots[slot(ino)];
        if slot.running > 0 || slot.last > since {
            return false;
        }
        self.add(session, ino, what);
        true
    }
}

impl Table {
    /// A session holds something of an inode still: nothing of it has changed since it was granted.
    pub(super) fn claim(&mut self, session: u64, ino: Ino, what: Held) {
        if !what.is_nothing() {
            self.add(session, ino, what);
        }
    }

    fn add(&mut self, session: u64, ino: Ino, what: Held) {
        let holders = self.holders.entry(ino).or_default();
        match holders.iter_mut().find(|(holder, ..)| *holder == session) {
            Some((_, held, _)) => held.add(what),
            None => holders.push((session, what, self.env.now())),
        }
    }
}

impl Capabilities {
    pub(super) fn new(env: &Env) -> Capabilities {
        Capabilities(Mutex::new(Table::new(env)))
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
    pub(super) fn begin(
        &self,
        by: u64,
        changes: &[Changed],
        surprising: &[Ino],
    ) -> Vec<(u64, Vec<Changed>)> {
        let mut table = self.0.lock();
        let table = &mut *table;
        table.stamp += 1;
        let mut invalid: Vec<(u64, Vec<Changed>)> = Vec::new();
        for change in changes {
            let ino = change.ino();
            let slot = &mut table.slots[slot(ino)];
            slot.running += 1;
            slot.last = table.stamp;
            let Some(holders) = table.holders.get(&ino) else { continue };
            let drops = |session: &u64| *session != by || surprising.contains(&ino);
            for (session, held, _) in holders.iter().filter(|(session, ..)| drops(session)) {
                let concerns = match change {
                    Changed::Attributes(_) => held.attributes,
                    Changed::Name { .. } => held.names,
                    Changed::Content { .. } => held.content,
                };
                if !concerns {
                    continue;
                }
                match invalid.iter_mut().find(|(other, _)| other == session) {
                    Some((_, all)) => all.push(change.clone()),
                    None => invalid.push((*session, vec![change.clone()])),
                }
            }
        }
        invalid
    }

    /// A session has dropped what is about to change. It may still cache other names of a directory, and other pages.
    pub(super) fn dropped(&self, session: u64, changes: &[Changed]) {
        let mut table = self.0.lock();
        for change in changes {
            let Changed::Attributes(ino) = change else { continue };
            let Some(holders) = table.holders.get_mut(ino) else { continue };
            holders
                .iter_mut()
                .filter(|(holder, ..)| *holder == session)
                .for_each(|(_, held, _)| held.attributes = false);
            holders.retain(|(_, held, _)| !held.is_nothing());
            if holders.is_empty() {
                table.holders.remove(ino);
            }
        }
    }

    /// The changes have ended.
    pub(super) fn end(&self, changes: &[Changed]) {
        let mut table = self.0.lock();
        table.stamp += 1;
        let stamp = table.stamp;
        for change in changes {
            let slot = &mut table.slots[slot(change.ino())];
            slot.running -= 1;
            slot.last = stamp;
        }
    }

    /// A session caches nothing of an inode.
    pub(super) fn forget(&self, session: u64, ino: Ino) {
        let mut table = self.0.lock();
        if let Some(holders) = table.holders.get_mut(&ino) {
            holders.retain(|(holder, ..)| *holder != session);
            if holders.is_empty() {
                table.holders.remove(&ino);
            }
        }
    }

    /// A session has ended.
    pub(super) fn drop_session(&self, session: u64) {
        self.0.lock().holders.retain(|_, holders| {
            holders.retain(|(holder, ..)| *holder != session);
            !holders.is_empty()
        });
    }

    /// The sessions that cache something of an inode: what, and since when.
    pub(super) fn holders(&self, ino: Ino) -> Vec<(u64, Held, Time)> {
        self.0.lock().holders.get(&ino).map(|holders| holders.to_vec()).unwrap_or_default()
    }

    /// Inodes of which the sessions cache something, counted for each session.
    pub(super) fn count(&self) -> HashMap<u64, u64> {
        let mut counts = HashMap::default();
        for (session, ..) in self.0.lock().holders.values().flatten() {
            *counts.entry(*session).or_default() += 1;
        }
        counts
    }
}
