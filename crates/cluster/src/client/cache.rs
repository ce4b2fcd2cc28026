//! What a client may use without a call: attributes, names, and that names are absent.
//!
//! Everything in it was granted by the server, which invalidates it before it changes. It is used only while the lease
//! lasts; when the lease is renewed it is valid again, because the server would have ended the session before it changed
//! something that this client had not dropped.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::HashSet;
use thalweg_fs::{Answer, Attributes, Cookie, Ino, Kind, Lookup, Validity};
use tokio::sync::Notify;

use super::cached::NewName;
use super::inodes::{Inodes, Node};
use super::partial_pages::PageRead;
use super::session::Session;
use crate::protocol::{Changed, Grants, ListedEntry, Reclaim};

/// An inode with the stamp of the last answer that named it.
type Stamped = (Ino, u64);

/// Inodes that this client does not know any more.
#[derive(Default)]
struct Forgotten {
    /// Those of which the server was not told.
    untold: Vec<Stamped>,
    /// Those of which the server was told, and may not have heard.
    told: Vec<Stamped>,
    /// The server has asked for no more inodes than this.
    max: Option<usize>,
}

pub(super) struct Cache {
    inodes: Arc<Inodes>,
    session: Arc<Session>,
    /// The lock is taken under no other one.
    forgotten: Mutex<Forgotten>,
    /// The server is to be told of removed inodes.
    pub(super) gone: Notify,
    /// The server asks for inodes that are not used.
    pub(super) pressed: Notify,
    /// A change by a call has ended.
    changed: Notify,
}

impl Cache {
    pub(super) fn new(inodes: Arc<Inodes>, session: Arc<Session>) -> Cache {
        Cache {
            inodes,
            session,
            forgotten: Mutex::default(),
            gone: Notify::new(),
            pressed: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Waits for the call that changes an inode of this client alone; whether there was one.
    pub(super) async fn wait_for_change(&self, ino: Ino) -> bool {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let has_one = self
            .inodes
            .is(ino, |node| node.delegation.grant().is_some() && node.cached.is_changing());
        if has_one {
            changed.await;
        }
        has_one
    }

    pub(super) fn attributes(&self, ino: Ino) -> Option<Answer> {
        self.attributes_within(ino, self.session.leased()?)
    }

    fn attributes_within(&self, ino: Ino, valid: Validity) -> Option<Answer> {
        let look = |node: &mut Node| {
            node.cached.used = true;
            node.cached.attributes.filter(|_| !node.delegation.is_estimate)
        };
        let shown = self.inodes.with(ino, look).flatten();
        shown.map(|attributes| Answer { attributes, valid })
    }

    /// Owner, mode and the like of an inode, which are no estimates also where size and times are.
    pub(super) fn rights(&self, ino: Ino) -> Option<Attributes> {
        let is_leased = self.session.is_leased();
        self.inodes.with(ino, |node| node.cached.attributes.filter(|_| is_leased)).flatten()
    }

    /// The attributes of a file whose bytes are all where contents are kept, and do not change as long as these stay valid.
    pub(super) fn steady(&self, ino: Ino) -> Option<Attributes> {
        let steady = |node: &mut Node| {
            let is_steady = !node.cached.is_changing() && node.delegation.unsent() == 0;
            node.cached.attributes.filter(|it| is_steady && it.kind == Kind::File)
        };
        self.session.is_leased().then(|| self.inodes.with(ino, steady)).flatten().flatten()
    }

    /// The same for a read that begins, unless the server has to note its time.
    pub(super) fn before_read(&self, ino: Ino) -> Option<Attributes> {
        let found = self.steady(ino)?;
        let is_told = self.inodes.with(ino, |node| node.cached.read_again(found.changed))?;
        (is_told || !found.is_read_due(self.session.clocks().1)).then_some(found)
    }

    /// Reads bytes of a file that are all in pages which this client has written in parts. With `pages`, they are for the caller's cache.
    pub(super) fn read_partial_pages(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        pages: bool,
    ) -> PageRead {
        let look = |node: &mut Node| {
            // Under the lock: a recall waits for that at the barrier, and so does a move.
            let (now, time) = self.session.clocks();
            let is_usable = node.is_free() && self.session.is_leased_at(now);
            let found = node.cached.attributes.filter(|_| is_usable)?;
            // As of pages of a file that was opened without the server: that is told before another client may change them.
            let is_known = node.cached.content || node.cached.cached_under_delegation;
            let kept = node.cached.partial_pages.as_ref().filter(|_| is_known || !pages)?;
            let kept = kept.as_ref();
            if Some(kept.grant()) != node.delegation.grant_number() {
                return None;
            }
            let end = offset.saturating_add(len as u64).min(found.size);
            let read = kept.read(offset..end)?;
            // What the server does not have will be newer than any read.
            let is_noted = node.delegation.unsent() > 0
                || node.cached.read_again(found.changed)
                || !found.is_read_due(time);
            Some(if is_noted { PageRead::Found(read.into()) } else { PageRead::Due })
        };
        self.inodes.with(ino, look).flatten().unwrap_or(PageRead::Missing)
    }

    /// Attributes of an answer, and how long they may be used: if the cache has them still, or has newer ones that the
    /// server does not have.
    pub(super) fn valid(&self, attributes: Attributes) -> Answer {
        let valid = self.session.validity();
        let look = |node: &mut Node| {
            let own = node.cached.attributes?;
            let is_estimate = node.delegation.is_estimate;
            if node.delegation.unsent() > 0 {
                let valid = if is_estimate { Validity::NONE } else { valid };
                return Some(Answer { attributes: own, valid });
            }
            (own == attributes && !is_estimate).then_some(Answer { attributes, valid })
        };
        let cached = self.inodes.with(attributes.ino, look).flatten();
        cached.unwrap_or(Answer { attributes, valid: Validity::NONE })
    }

    /// A cached name, or a name that is known to be absent.
    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Option<Lookup> {
        let valid = self.session.leased()?;
        let look = |node: &mut Node| {
            node.cached.used = true;
            node.cached.names.as_ref()?.known(name)
        };
        match self.inodes.with(parent, look).flatten()? {
            NewName::Present(ino) => self.attributes_within(ino, valid).map(Lookup::Found),
            NewName::Absent => Some(Lookup::Absent(Duration::ZERO)),
        }
    }

    /// The inode of a name, if it is known.
    pub(super) fn target(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        match self.inodes.with(parent, |node| node.cached.names.as_ref()?.known(name)).flatten()? {
            NewName::Present(ino) => Some(ino),
            NewName::Absent => None,
        }
    }

    /// An answer names an inode; with `keep`, its attributes may be used.
    pub(super) fn learn(
        &self,
        attributes: &Attributes,
        (stamp, inode_token): (u64, u64),
        keep: bool,
    ) {
        self.inodes.with_new(attributes.ino, |node| {
            node.cached.named(stamp, inode_token);
            node.cached.used = true;
            // What this client has made is newer, and what it is changing may be.
            if keep && !node.cached.is_changing() && node.delegation.unsent() == 0 {
                node.cached.set_attributes(*attributes);
                node.delegation.is_estimate = false;
            }
        });
    }

    /// Names of a new directory may be used from now on.
    pub(super) fn hold_new(&self, directory: Ino) {
        self.inodes.with_new(directory, |node| {
            node.cached.names.get_or_insert_default().is_complete = true;
        });
    }

    /// These entries of a directory follow `from`, and their names may be used. When all were listed, all names are known.
    pub(super) fn hold_listed(
        &self,
        directory: Ino,
        from: Cookie,
        entries: &[(ListedEntry, bool)],
    ) {
        self.inodes.with_new(directory, |node| {
            let is_steady = node.has_names_of_server();
            let names = node.cached.names.get_or_insert_default();
            names.list(from, entries.last().map(|(last, _)| last.cookie), is_steady);
            if is_steady {
                for (entry, _) in entries {
                    names.set(&entry.name, NewName::Present(entry.ino));
                }
            }
        });
    }

    /// An answer says what a name is. Names of the directory may be used from now on.
    pub(super) fn learn_name(&self, parent: Ino, name: &[u8], found: NewName) {
        self.inodes.with_new(parent, |node| {
            let is_steady = node.has_names_of_server();
            let names = node.cached.names.get_or_insert_default();
            if is_steady {
                names.set(name, found);
            }
        });
    }

    /// A change of this client has made a name what it is, if no other change may have followed.
    pub(super) fn changed_name(&self, parent: Ino, name: &[u8], found: NewName) {
        self.inodes.with(parent, |node| {
            if let Some(names) = node.cached.names.as_mut().filter(|names| names.is_changing(name))
            {
                names.set(name, found);
            }
        });
    }

    /// That the client knows an inode.
    pub(super) fn reclaim(&self, ino: Ino) -> Option<Reclaim> {
        let told = |node: &mut Node| (node.cached.stamp, node.cached.inode_token);
        let (stamp, inode_token) = self.inodes.with(ino, told).filter(|(stamp, _)| *stamp > 0)?;
        Some(Reclaim { ino, stamp, inode_token, held: Grants::default() })
    }

    /// What the client knows and caches, for the next server, and what is `needed` by changes that are made again: if the
    /// client has forgotten that, the server is told once more. It does not know anything else that was about to be
    /// forgotten.
    pub(super) fn reclaims(&self, needed: impl Iterator<Item = Reclaim>) -> Vec<Reclaim> {
        self.forgotten.lock().untold.clear();
        let reclaim = |(ino, node): (Ino, &mut Node)| {
            let (own, stamp) = (&node.delegation, node.cached.stamp);
            // Until the server has what this client has made, no other client may see the inode, also when it was released here.
            let delegation = own.is_granted(ino) || own.unsent() > 0;
            let held = Grants {
                attributes: node.cached.attributes.is_some(),
                names: node.cached.names.is_some(),
                content: node.cached.content,
                delegation,
            };
            // The server does not know yet what this client has made by itself, and never knows what was gone before it was sent.
            let is_told = stamp > 0 || own.unsent() == 0 && !node.cached.is_removed;
            let is_known = is_told && (stamp > 0 || held != Grants::default());
            let inode_token = node.cached.inode_token;
            is_known.then_some(Reclaim { ino, stamp, inode_token, held })
        };
        let (mut reclaims, mut known) = (Vec::new(), HashSet::default());
        for mut stripe in self.inodes.stripes() {
            known.extend(stripe.nodes().map(|(ino, _)| ino));
            reclaims.extend(stripe.nodes().filter_map(reclaim));
        }
        // Behind that: an inode that the caller has forgotten meanwhile is in one of both lists.
        let mut forgotten: Vec<Reclaim> = needed.filter(|it| !known.contains(&it.ino)).collect();
        // The last answer that named it has the highest stamp.
        forgotten.sort_unstable_by_key(|it| (it.ino, std::cmp::Reverse(it.stamp)));
        forgotten.dedup_by_key(|it| it.ino);
        self.forgotten.lock().untold.extend(forgotten.iter().map(|it| (it.ino, it.stamp)));
        reclaims.extend(forgotten);
        reclaims.sort_unstable_by_key(|reclaim| reclaim.ino);
        reclaims
    }

    /// Something that is no delegation is about to change, and may not be used any more. Whether the caller may cache it.
    pub(super) fn drop_changed(&self, change: &Changed) -> bool {
        self.inodes.with(change.ino(), |node| node.cached.invalidate(change)).is_some()
    }

    /// The caller refers to an inode so many times less.
    pub(super) fn unreference(&self, ino: Ino, count: u64) {
        let mut stripe = self.inodes.lock(ino);
        let Some(node) = stripe.node(ino) else { return };
        node.cached.references = node.cached.references.saturating_sub(count);
        // One that was removed is to be gone soon; the rest may be needed again.
        let has_names = node.cached.attributes.is_some_and(|it| it.links > 0);
        let is_needed = node.delegation.unsent() > 0 || has_names;
        if is_needed || !node.cached.is_unreferenced() {
            return;
        }
        let (is_removed, stamp) = (node.cached.is_removed, node.cached.stamp);
        let had_delegation = stripe.remove(ino);
        drop(stripe);
        if had_delegation {
            self.inodes.barrier();
        }
        self.forgotten.lock().untold.push((ino, stamp));
        if is_removed {
            self.gone.notify_one();
        }
    }

    /// An inode has lost its last name: the server hears soon if the caller does not refer to it.
    pub(super) fn remove(&self, ino: Ino) {
        self.inodes.with(ino, |node| {
            (node.cached.is_removed, node.cached.attributes) = (true, None);
        });
        self.unreference(ino, 0);
    }

    /// Takes the inodes of which the server is told now.
    pub(super) fn tell(&self) -> Vec<Stamped> {
        let Forgotten { untold, told, .. } = &mut *self.forgotten.lock();
        told.extend(&*untold);
        std::mem::take(untold)
    }

    /// The server has heard of all that it was told, or is told again.
    pub(super) fn told(&self, is_heard: bool) {
        let Forgotten { untold, told, .. } = &mut *self.forgotten.lock();
        if is_heard {
            told.clear();
        } else {
            untold.append(told);
        }
    }

    /// The server asks for no more inodes than this.
    pub(super) fn press(&self, max: usize) {
        self.forgotten.lock().max = Some(max);
        self.pressed.notify_one();
    }

    /// Whether there are more inodes than the server has asked for.
    pub(super) fn is_too_large(&self) -> bool {
        let len = self.inodes.len();
        let mut forgotten = self.forgotten.lock();
        forgotten.max = forgotten.max.filter(|max| len > *max);
        forgotten.max.is_some()
    }

    /// Removes inodes that the caller does not refer to and that were not used since the last sweep.
    pub(super) fn sweep(&self) {
        let mut gone = Vec::new();
        for mut stripe in self.inodes.stripes() {
            stripe.retain(|ino, node| {
                let is_idle =
                    !std::mem::take(&mut node.cached.used) && node.cached.is_unreferenced();
                let goes = is_idle && node.delegation.unsent() == 0;
                if goes {
                    gone.push((ino, node.cached.stamp));
                }
                !goes
            });
        }
        self.inodes.barrier();
        self.forgotten.lock().untold.extend(gone);
    }

    /// The session has ended: nothing may be used, and nothing is delegated. The inodes that the caller may cache.
    pub(super) fn end_session(&self) -> Vec<Ino> {
        let mut inodes = Vec::new();
        for mut stripe in self.inodes.stripes() {
            for (ino, node) in stripe.nodes() {
                node.cached.end_session();
                // Mutations of a batch that is under way: their outcome is still to come.
                node.delegation.end_session();
                inodes.push(ino);
            }
        }
        let mut forgotten = self.forgotten.lock();
        forgotten.untold.clear();
        forgotten.told.clear();
        inodes.sort_unstable();
        inodes
    }
}

/// The inodes that a change concerns, each once.
fn inodes_of(changes: &[Changed]) -> impl Iterator<Item = Ino> {
    let is_first = |at: usize| !changes[..at].iter().any(|it| it.ino() == changes[at].ino());
    (0..changes.len()).filter(move |at| is_first(*at)).map(|at| changes[at].ino())
}

/// A change of this client that is under way: nothing that it concerns is used, or put into the cache. It ends with the
/// last clone.
pub(super) struct ChangeGuard {
    cache: Arc<Cache>,
    changes: Vec<Changed>,
}

impl ChangeGuard {
    pub(super) fn begin(cache: &Arc<Cache>, changes: Vec<Changed>) -> Arc<ChangeGuard> {
        for ino in inodes_of(&changes) {
            // Under one lock: an older answer that came between would bring back what is dropped.
            cache.inodes.with_new(ino, |node| {
                let cached = &mut node.cached;
                // Of two changes under way it is not known which comes last.
                let is_first = !cached.is_changing();
                for change in changes.iter().filter(|change| change.ino() == ino) {
                    cached.invalidate(change);
                    if let Changed::Name { name, .. } = change
                        && let Some(names) = cached.names.as_mut().filter(|_| is_first)
                    {
                        names.begin_change(name);
                    }
                }
                cached.begin_change();
            });
        }
        Arc::new(ChangeGuard { cache: cache.clone(), changes })
    }
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        for ino in inodes_of(&self.changes) {
            // It is not forgotten meanwhile.
            let known = self.cache.inodes.with(ino, |node| node.cached.end_change());
            assert!(known.is_some(), "an inode that changes is known");
        }
        self.cache.changed.notify_waiters();
    }
}
