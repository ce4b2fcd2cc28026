//! The inodes that a client knows.
//!
//! Each inode is one [`Node`] behind one lock, which is that of its *stripe*: a part of the table with what its inodes have made and no
//! batch has taken. So a change of a delegated inode takes this one lock, once: it finds the inode, changes it, and leaves the
//! mutation there. Locks of several stripes are taken by [`Inodes::lock_all`] alone, and all others one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use thalweg_env::HashMap;
use thalweg_fs::Ino;
use thalweg_fs::mutation::ByteMutations;
use thalweg_net::keys::Squash;

use super::cached::CachedInode;
use super::delegated::{Delegation, Grant, GrantNumber};
use super::record::Waiting;

/// Stripes of the table: so many that threads on all processors of a machine rarely meet at one.
const STRIPES: usize = 64;

/// Mutations of a stripe for which there is always room once there was one: about those of a batch of writes.
const STAGED: usize = 128;

#[derive(Default)]
pub(super) struct Node {
    /// What may be used of it without a call.
    pub(super) cached: CachedInode,
    /// What may be done with it without a call, and was.
    pub(super) delegation: Delegation,
}

impl Node {
    /// Whether it is this client's alone, and no call changes it.
    pub(super) fn is_free(&self) -> bool {
        self.delegation.grant().is_some() && !self.cached.is_changing()
    }

    /// Whether an answer that says what names of the directory are is not older than what this client has made of them.
    pub(super) fn has_names_of_server(&self) -> bool {
        !self.cached.is_changing() && self.delegation.unsent() == 0
    }
}

/// What the server has said of local changes when it attached the session. Each stripe has a copy, which its lock guards.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LocalRules {
    /// The changes of bytes that a batch may have.
    pub(super) bytes: ByteMutations,
    /// This client may store bytes of files itself.
    pub(super) is_direct: bool,
    /// The users of this client that act as another one at the server.
    pub(super) squash: Squash,
}

#[derive(Default)]
pub(super) struct Stripe {
    nodes: HashMap<Ino, Box<Node>>,
    pub(super) rules: LocalRules,
    /// Mutations of its inodes that no batch has taken, in their order.
    staged: Vec<Waiting>,
}

impl Stripe {
    pub(super) fn node(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino).map(|node| &mut **node)
    }

    pub(super) fn nodes(&mut self) -> impl Iterator<Item = (Ino, &mut Node)> {
        self.nodes.iter_mut().map(|(ino, node)| (*ino, &mut **node))
    }

    pub(super) fn insert(&mut self, ino: Ino, node: Node) {
        let before = self.nodes.insert(ino, Box::new(node));
        assert!(before.is_none(), "an inode is made twice");
    }

    /// Forgets inodes, and what is delegated with them: no recall would find them. The caller waits at the [`Inodes::barrier`] before it
    /// tells the server.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(Ino, &mut Node) -> bool) {
        self.nodes.retain(|ino, node| {
            let stays = stays(*ino, node);
            if !stays {
                node.delegation.revoke(*ino, false);
            }
            stays
        });
    }

    /// Forgets an inode; whether a delegation ends with it.
    pub(super) fn remove(&mut self, ino: Ino) -> bool {
        let removed = self.nodes.remove(&ino);
        removed.is_some_and(|mut node| node.delegation.revoke(ino, false) == Some(ino))
    }

    /// A mutation of one of its inodes waits.
    pub(super) fn stage(&mut self, waiting: Waiting) {
        assert!(
            self.staged.last().is_none_or(|last| last.number < waiting.number),
            "mutations are staged in their order"
        );
        if self.staged.len() == self.staged.capacity() {
            // Twice as many, as it is usual, would often leave room for thousands unused.
            self.staged.reserve_exact((self.staged.len() / 4).max(STAGED));
        }
        self.staged.push(waiting);
    }

    /// Moves the mutations up to this one to a list.
    pub(super) fn drain_staged(&mut self, last: u64, to: &mut impl Extend<Waiting>) {
        let count = self.staged.partition_point(|waiting| waiting.number <= last);
        to.extend(self.staged.drain(..count));
        self.staged.shrink_to(STAGED);
    }
}

/// The stripes of some inodes, each locked once.
pub(super) struct LockedStripes<'a>(SmallVec<[(usize, MutexGuard<'a, Stripe>); 2]>);

impl LockedStripes<'_> {
    /// That of one of the inodes.
    pub(super) fn of(&mut self, ino: Ino) -> &mut Stripe {
        let found = self.0.iter_mut().find(|(at, _)| *at == Inodes::at(ino));
        &mut found.expect("the stripe of the inode is locked").1
    }

    pub(super) fn node(&mut self, ino: Ino) -> Option<&mut Node> {
        self.of(ino).node(ino)
    }
}

pub(super) struct Inodes {
    stripes: Box<[Mutex<Stripe>]>,
    grants: AtomicU64,
}

impl Inodes {
    pub(super) fn new() -> Inodes {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        Inodes { stripes, grants: AtomicU64::new(0) }
    }

    fn at(ino: Ino) -> usize {
        // Neighbours differ in the lowest bits.
        ino.0 as usize % STRIPES
    }

    pub(super) fn lock(&self, ino: Ino) -> MutexGuard<'_, Stripe> {
        self.stripes[Inodes::at(ino)].lock()
    }

    /// The stripes of these inodes, locked in their order in the table.
    pub(super) fn lock_all(&self, inodes: impl IntoIterator<Item = Ino>) -> LockedStripes<'_> {
        let mut stripes: SmallVec<[usize; 4]> = inodes.into_iter().map(Inodes::at).collect();
        stripes.sort_unstable();
        stripes.dedup();
        LockedStripes(stripes.into_iter().map(|at| (at, self.stripes[at].lock())).collect())
    }

    /// All stripes, each locked while it is looked at.
    pub(super) fn stripes(&self) -> impl Iterator<Item = MutexGuard<'_, Stripe>> {
        self.stripes.iter().map(Mutex::lock)
    }

    /// Looks at an inode, if it is known.
    pub(super) fn with<T>(&self, ino: Ino, look: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.lock(ino).node(ino).map(look)
    }

    /// Whether something holds of an inode; not of one that is not known.
    pub(super) fn is(&self, ino: Ino, look: impl FnOnce(&mut Node) -> bool) -> bool {
        self.with(ino, look).unwrap_or(false)
    }

    /// Looks at an inode, which is known from now on.
    pub(super) fn with_new<T>(&self, ino: Ino, look: impl FnOnce(&mut Node) -> T) -> T {
        look(self.lock(ino).nodes.entry(ino).or_default())
    }

    /// The server has granted a directory or file, which counts for this quota.
    pub(super) fn grant(&self, ino: Ino, quota: u64) {
        let grant = self.new_grant(ino, quota);
        self.with_new(ino, |node| {
            let is_empty = node.cached.attributes.is_some_and(|it| (it.size, it.stored) == (0, 0));
            node.delegation.set_grant(grant, is_empty);
        });
    }

    pub(super) fn new_grant(&self, root: Ino, quota: u64) -> Arc<Grant> {
        let number = self.grants.fetch_add(1, Ordering::Relaxed) + 1;
        let number = GrantNumber::new(number).expect("grants are counted from 1 on");
        Arc::new(Grant::new(number, root, quota))
    }

    /// Returns when no change is under way that has begun before.
    pub(super) fn barrier(&self) {
        self.stripes().for_each(drop);
    }

    pub(super) fn set_rules(&self, rules: LocalRules) {
        self.stripes().for_each(|mut stripe| stripe.rules = rules);
    }

    pub(super) fn len(&self) -> usize {
        self.stripes().map(|stripe| stripe.nodes.len()).sum()
    }

    /// Whether the server does not have everything of an inode.
    pub(super) fn is_unsent(&self, ino: Ino) -> bool {
        self.is(ino, |node| node.delegation.unsent() > 0)
    }

    /// Whether this client has made an inode, and the server does not have it.
    pub(super) fn is_new(&self, ino: Ino) -> bool {
        self.is(ino, |node| node.cached.stamp == 0 && node.delegation.unsent() > 0)
    }

    /// Inodes of which the server does not have everything.
    pub(super) fn unsent(&self) -> u64 {
        let of = |mut stripe: MutexGuard<'_, Stripe>| {
            stripe.nodes().filter(|(_, node)| node.delegation.unsent() > 0).count() as u64
        };
        self.stripes().map(of).sum()
    }

    pub(super) fn has_delegation(&self, ino: Ino) -> bool {
        self.is(ino, |node| node.delegation.grant().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_knows_many_inodes() {
        // The allocator's next size is a sixth more.
        assert!(size_of::<Node>() <= 192, "{}", size_of::<Node>());
    }
}
