//! What the clients cache.
//!
//! A client may cache what it was granted until the server has invalidated it. A change first invalidates what other
//! sessions cache of it ([`Capabilities::begin`]), and nothing of it is granted before it has ended. So that a read
//! does not have to keep changes away, it is granted only when none was under way since the read began: times are
//! stamps of one counter, and inodes share slots.

mod pages;
mod table;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_env::{Env, HashMap, Time};
use thalweg_fs::Ino;
use tokio::sync::Notify;

use crate::protocol::{Changed, Grants};
pub(super) use pages::Late;
use pages::content_of;
pub(super) use table::Drops;
use table::{ATTRIBUTES, Absent, CONTENT, Holder, NAMES, NOTHING, Table, add_change};

#[derive(Debug)]
pub(super) struct Capabilities {
    env: Env,
    /// Longer than it takes to take something back from a session.
    recall: Duration,
    table: Mutex<Table>,
    /// The stamp of the last change that began or ended. It grows under the table's lock.
    stamp: AtomicU64,
    /// Changes of bytes were answered.
    pages_ended: Notify,
}

/// What an answer would like to grant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantRequest {
    /// The stamp when its call began to read.
    pub(super) since: u64,
    pub(super) attributes: Option<Ino>,
    pub(super) names: Option<Ino>,
    pub(super) content: Option<Ino>,
    /// Pages of this file are cached already.
    pub(super) cached: Option<Ino>,
    pub(super) delegation: Option<Ino>,
}

#[derive(Debug, Default)]
pub(super) struct Granted {
    pub(super) grants: Grants,
    /// For each entry of a listing, whether its attributes may be cached.
    pub(super) listed: Vec<bool>,
    /// Nothing of what is delegated has changed since the call began to read.
    pub(super) is_steady: bool,
}

/// A change of bytes until its call is answered.
#[derive(Debug)]
pub(super) struct PageTurn {
    capabilities: Arc<Capabilities>,
    number: u64,
    inodes: SmallVec<[Ino; 2]>,
}

impl PageTurn {
    /// Its call is not answered before other sessions have heard of it: changes that begin from here on do not wait for pages that its
    /// session holds by it.
    pub(super) fn wait(&self) {
        let mut table = self.capabilities.table.lock();
        self.inodes.iter().for_each(|ino| table.pages.wait(self.number, *ino));
    }
}

impl Drop for PageTurn {
    fn drop(&mut self) {
        {
            let mut table = self.capabilities.table.lock();
            self.inodes.iter().for_each(|ino| table.pages.end(self.number, *ino));
        }
        self.capabilities.pages_ended.notify_waiters();
    }
}

impl Capabilities {
    /// It takes less than `recall` to take something back from a session.
    pub(super) fn new(env: &Env, recall: Duration) -> Capabilities {
        Capabilities {
            env: env.clone(),
            recall,
            table: Mutex::new(Table::new()),
            stamp: AtomicU64::new(0),
            pages_ended: Notify::new(),
        }
    }

    /// The present stamp: for a read that begins now, which sees each change that has ended by then.
    pub(super) fn now(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    /// The next stamp. Its caller has locked the table, so that stamps in the table grow.
    fn advance(&self, _table: &mut Table) -> u64 {
        1 + self.stamp.fetch_add(1, Ordering::AcqRel)
    }

    /// When something that is recalled now may be one session's alone again.
    fn recalled_until(&self) -> Time {
        self.env.now() + self.recall
    }

    /// Changes by a session begin. Returns their number, which grows from change to change; what each other session has to drop
    /// first, and this one of `surprising` inodes; and what is dropped as soon as earlier calls are answered that hold it.
    /// [`Capabilities::end`] must follow.
    pub(super) fn begin(
        &self,
        by: u64,
        changes: &[Changed],
        surprising: &[Ino],
    ) -> (u64, Drops, Drops) {
        let table = &mut *self.table.lock();
        let number = self.advance(table);
        let mut invalid: Drops = Vec::new();
        for change in changes {
            table.begin((number, by), change, surprising.contains(&change.ino()), &mut invalid);
        }
        let mut held = Vec::new();
        if !invalid.is_empty() {
            table.share_recalled(&invalid, self.recalled_until());
            for (session, changes) in &mut invalid {
                let later;
                (*changes, later) = table.pages.divide(number, *session, std::mem::take(changes));
                if !later.is_empty() {
                    held.push((*session, later));
                }
            }
            invalid.retain(|(_, changes)| !changes.is_empty());
        }
        (number, invalid, held)
    }

    /// The changes have ended: the pages that were read meanwhile.
    pub(super) fn end(&self, number: u64, changes: &[Changed]) -> Vec<Late> {
        let table = &mut *self.table.lock();
        let mut outdated = Vec::new();
        for ino in changes.iter().filter_map(content_of) {
            for (session, range) in table.pages.carried_out(number, ino) {
                let change = Changed::Content { ino, from: range.start, to: range.end };
                outdated.push(Late { number, session, change });
            }
        }
        let stamp = self.advance(table);
        for change in changes {
            table.end(change.ino(), stamp);
        }
        outdated
    }

    /// Changes of bytes that have begun with this number, if some have: until their call is answered.
    pub(super) fn page_turn(
        self: &Arc<Self>,
        number: u64,
        changes: &[Changed],
    ) -> Option<PageTurn> {
        let inodes: SmallVec<[Ino; 2]> = changes.iter().filter_map(content_of).collect();
        (!inodes.is_empty()).then(|| PageTurn { capabilities: self.clone(), number, inodes })
    }

    /// A session has dropped what is about to change, which began with this number. It may still cache other names of a directory,
    /// and other pages. A directory that it has released stays shared until `until`.
    pub(super) fn dropped(&self, session: u64, number: u64, changes: &[Changed], until: Time) {
        let table = &mut *self.table.lock();
        for change in changes {
            let ino = change.ino();
            let is_held = table.holders.contains_key(&ino);
            table.reduce(ino, session, |Holder { held, read, .. }| match change {
                Changed::Delegation(_) => held.delegation = false,
                Changed::Attributes(_) => held.attributes = false,
                Changed::Names(_) => held.names = false,
                // It may have read some again.
                Changed::Pages(_) => held.content &= *read >= number,
                Changed::Name { .. } | Changed::Content { .. } | Changed::Size { .. } => {}
            });
            if matches!(change, Changed::Delegation(_)) {
                table.recorded.remove(&(ino, session));
                let was_own = table.release_absent(ino, session);
                if is_held || was_own {
                    table.share(ino, until);
                }
            }
        }
    }

    /// Grants what an answer would like to grant, as far as no change came between. Its listing shows attributes of these inodes;
    /// `made` are new inodes, and whether each is a directory.
    pub(super) fn grant(
        &self,
        session: u64,
        wants: &GrantRequest,
        listed: &[Option<Ino>],
        made: &[(Ino, bool)],
    ) -> Granted {
        let GrantRequest { since, attributes, names, content, cached, delegation } = *wants;
        let all = [attributes, names, content, cached, delegation];
        if all.iter().all(Option::is_none) && listed.is_empty() && made.is_empty() {
            return Granted::default();
        }
        let at = (since, self.env.now());
        let mut table = self.table.lock();
        let mut grant =
            |ino: Option<Ino>, what| ino.is_some_and(|ino| table.grant(session, ino, what, at));
        let listed = listed.iter().map(|ino| grant(*ino, ATTRIBUTES)).collect();
        let grants = Grants {
            attributes: grant(attributes, ATTRIBUTES),
            names: grant(names, NAMES),
            content: grant(content, CONTENT),
            delegation: false,
        };
        if let Some(ino) = cached {
            table.add(session, ino, CONTENT, at.1);
        }
        for (ino, is_directory) in made {
            table.add(session, *ino, Grants { names: *is_directory, ..ATTRIBUTES }, at.1);
        }
        let delegated = delegation.filter(|ino| table.delegate(session, *ino, at));
        let is_steady = delegated.is_some_and(|ino| table.is_steady(ino, since));
        Granted { grants: Grants { delegation: delegated.is_some(), ..grants }, listed, is_steady }
    }

    /// A session holds something of an inode still: nothing of it has changed since it was granted.
    pub(super) fn reclaim(&self, session: u64, ino: Ino, what: Grants) {
        if what != NOTHING {
            self.table.lock().add(session, ino, what, self.env.now());
        }
    }

    /// A session has changed this by itself, under its delegations: it got these after every other session had released them, so what records say
    /// of others is outdated.
    pub(super) fn confirm_delegations(&self, session: u64, changes: &[Changed]) {
        let table = &mut *self.table.lock();
        if !table.recorded.is_empty() {
            changes.iter().for_each(|change| table.confirm(session, change.ino()));
        }
    }

    /// The record of a session says that it had a delegation. Its client may have rebooted meanwhile, and have changes in its journal.
    pub(super) fn resume_delegation(&self, session: u64, ino: Ino) {
        self.table.lock().add_recorded(session, ino, self.env.now());
    }

    /// A session is about to cache pages of a file, and is told of changes from here on. Whether it is, which is so unless the file
    /// is another session's alone.
    pub(super) fn read_pages(&self, session: u64, ino: Ino, range: &Range<u64>) -> bool {
        let table = &mut *self.table.lock();
        if table.delegation(ino, session).is_some() {
            return false;
        }
        table.add(session, ino, CONTENT, self.env.now());
        let (stamp, holders) = (self.now(), table.holders.get_mut(&ino).into_iter().flatten());
        holders.filter(|it| it.session == session).for_each(|it| it.read = stamp);
        table.pages.read(session, ino, range);
        true
    }

    /// Divides what sessions have to drop or to hear of into what they can drop now, and what they may hold by changes that are
    /// answered later. A kernel takes a size at once, and then waits for the last page.
    pub(super) fn divide(&self, late: Vec<Late>) -> (Drops, Drops) {
        let (mut free, mut held) = (Vec::new(), Vec::new());
        let table = self.table.lock();
        for Late { number, session, change } in late {
            let (now, later) = match change {
                Changed::Size { ino, size } if table.pages.holds_end(session, ino, size) => {
                    (Vec::new(), vec![change])
                }
                change => table.pages.divide(number, session, vec![change]),
            };
            now.into_iter().for_each(|change| add_change(&mut free, session, change));
            later.into_iter().for_each(|change| add_change(&mut held, session, change));
        }
        (free, held)
    }

    /// Returns when a client has dropped the pages of these files that it has read while they were changed. If it were told
    /// of a new size before, it would see zeros where the file goes on.
    pub(super) async fn pages_dropped(&self, session: u64, inodes: &[Ino]) {
        loop {
            let next = self.pages_ended.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            {
                let table = self.table.lock();
                if !inodes.iter().any(|ino| table.pages.has_outdated(session, *ino)) {
                    return;
                }
            }
            next.await;
        }
    }

    /// Whether a directory or file may become a session's alone now: no other one has it so, or has asked for it lately.
    pub(super) fn is_free(&self, ino: Ino, session: u64) -> bool {
        self.table.lock().is_free(ino, session, self.env.now())
    }

    /// The ones of these inodes that other sessions have to release before a session uses them.
    pub(super) fn recalls(&self, by: u64, seen: &[Ino]) -> Drops {
        let mut recalls = Drops::new();
        if seen.is_empty() {
            return recalls;
        }
        let mut table = self.table.lock();
        for ino in seen {
            if let Some(session) = table.delegation(*ino, by) {
                add_change(&mut recalls, session, Changed::Delegation(*ino));
            }
        }
        if !recalls.is_empty() {
            table.share_recalled(&recalls, self.recalled_until());
        }
        recalls
    }

    pub(super) fn recalls_from(&self, session: u64) -> Vec<Changed> {
        let mut table = self.table.lock();
        let is_owner = |it: &Holder| it.session == session && it.held.delegation;
        let owned = table.holders.iter().filter(|(_, holders)| holders.iter().any(is_owner));
        let mut owned: Vec<Ino> = owned.map(|(ino, _)| *ino).collect();
        owned.sort_unstable();
        let owned: Vec<Changed> = owned.into_iter().map(Changed::Delegation).collect();
        table.share_recalled(&[(session, owned.clone())], self.recalled_until());
        owned
    }

    /// A quota begins to change: what was read of quotas before does not count any more. Returns the delegations of each session.
    pub(super) fn begin_quota_change(&self) -> Drops {
        let table = &mut *self.table.lock();
        table.quota_changes += 1;
        table.quotas_changed = self.advance(table);
        let mut recalls = Drops::new();
        for (ino, holders) in &table.holders {
            for holder in holders.iter().filter(|it| it.held.delegation) {
                add_change(&mut recalls, holder.session, Changed::Delegation(*ino));
            }
        }
        table.share_recalled(&recalls, self.recalled_until());
        recalls
    }

    /// A quota has changed: what was read of quotas meanwhile does not count.
    pub(super) fn end_quota_change(&self) {
        let mut table = self.table.lock();
        assert!(table.quota_changes > 0, "a change of a quota ends that has not begun");
        table.quota_changes -= 1;
        table.quotas_changed = self.advance(&mut table);
    }

    pub(super) fn forget(&self, session: u64, ino: Ino) {
        self.table.lock().reduce(ino, session, |holder| holder.held = NOTHING);
    }

    pub(super) fn drop_session(&self, session: u64) {
        let mut table = self.table.lock();
        table.absent.remove(&session);
        table.recorded.retain(|it| it.1 != session);
        table.holders.retain(|_, holders| {
            holders.retain(|it| it.session != session);
            !holders.is_empty()
        });
    }

    /// Whether something is delegated to a session.
    pub(super) fn has_delegations(&self, session: u64) -> bool {
        let table = self.table.lock();
        table.holders.values().flatten().any(|it| it.session == session && it.held.delegation)
    }

    /// The client of a session was away for too long, and caches nothing any more. But its journal may have changes of what is
    /// delegated to it, and of the inodes with its numbers: these stay its own until other clients use them, but for those that
    /// are released.
    pub(super) fn lapse(
        &self,
        session: u64,
        numbers: Vec<Range<u64>>,
        released: impl Iterator<Item = Ino>,
    ) {
        let mut table = self.table.lock();
        table.absent.insert(session, Absent::new(numbers, released.collect()));
        table.holders.retain(|_, holders| {
            for holder in holders.iter_mut().filter(|it| it.session == session) {
                holder.held = Grants { delegation: holder.held.delegation, ..NOTHING };
            }
            holders.retain(|it| it.held != NOTHING);
            !holders.is_empty()
        });
    }

    pub(super) fn holders(&self, ino: Ino) -> SmallVec<[(u64, Grants, Time); 2]> {
        let table = self.table.lock();
        let holders = table.holders.get(&ino).into_iter().flatten();
        holders.map(|it| (it.session, it.held, it.since)).collect()
    }

    /// Inodes of which the sessions cache something, counted for each session.
    pub(super) fn count(&self) -> HashMap<u64, u64> {
        let mut counts = HashMap::default();
        for holder in self.table.lock().holders.values().flatten() {
            *counts.entry(holder.session).or_default() += 1;
        }
        counts
    }
}
