//! How far files may be written past the server: bytes below a file's write bound may be stored by this client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::Time;
use thalweg_fs::Ino;

use super::delegated::{Delegation, Extra};
use super::inodes::{Inodes, Node};
use super::queue::WritebackQueue;

/// How long the server takes to clear bytes, about.
const CLEARED: Duration = Duration::from_secs(2);

pub(super) struct WriteBounds {
    inodes: Arc<Inodes>,
    queue: Arc<WritebackQueue>,
    /// Changes so far for which the server stores or clears bytes.
    by_server: AtomicU64,
}

impl WriteBounds {
    pub(super) fn new(inodes: Arc<Inodes>, queue: Arc<WritebackQueue>) -> WriteBounds {
        WriteBounds { inodes, queue, by_server: AtomicU64::new(0) }
    }

    /// Bytes of a file below this one may be stored without the server.
    pub(super) fn of(&self, ino: Ino) -> u64 {
        self.inodes.with(ino, |node| node.delegation.extra().write_bound).unwrap_or(0)
    }

    /// Token for one query of the write bound. Pass it to [`WriteBounds::set`], which drops answers that a concurrent change made
    /// stale: the number of changes so far. `None` while a change of the file is under way: the answer will not count.
    pub(super) fn query(&self, ino: Ino) -> Option<u64> {
        let asked = || self.by_server.load(Ordering::Acquire);
        // Under the lock: a change that begins later is a later one.
        let look = |node: &mut Node| (!node.cached.is_changing()).then(asked);
        self.inodes.with(ino, look).unwrap_or_else(|| Some(asked()))
    }

    /// The server has said how far a file reaches. That does not count if it was asked before such a change.
    pub(super) fn set(&self, ino: Ino, bound: u64, (asked, now): (Option<u64>, Time)) {
        self.inodes.with(ino, |node| {
            let own = &mut node.delegation;
            if asked.is_none_or(|changes| own.extra().by_server > changes) {
                let cleared = own.extra().cleared.unwrap_or((now, 0));
                own.clear_write_bound(cleared);
            } else if bound == 0 {
                // A file that was made shorter just now has none for a while.
                own.clear_write_bound((now + CLEARED, 0));
            } else {
                let extra = own.extra_mut();
                (extra.write_bound, extra.cleared) = (bound, None);
            }
        });
    }

    /// Whether the server is to be asked for more, for bytes up to `end`.
    pub(super) fn are_short(&self, ino: Ino, end: u64, now: Time) -> bool {
        let look = |node: &mut Node| {
            let own = node.delegation.extra();
            (node.cached.stamp > 0).then_some((own.write_bound, own.cleared))
        };
        match self.inodes.with(ino, look).flatten() {
            None => false,
            Some((0, cleared)) => {
                cleared.is_some_and(|(at, mutation)| at <= now && self.queue.has(mutation))
            }
            Some((bound, _)) => bound < end,
        }
    }

    /// The server has to clear bytes of a file before they are stored here again.
    pub(super) fn clear(&self, ino: Ino, now: Time) {
        // A change by a call that is about to be made is the next mutation at the latest.
        self.if_direct(ino, |own| self.clear_in(own, now, self.queue.last() + 1));
    }

    /// As [`WriteBounds::clear`] for this mutation, under the lock of the file's stripe. The client stores bytes itself.
    pub(super) fn clear_in(&self, own: &mut Delegation, now: Time, mutation: u64) {
        self.change_by_server(own);
        let Extra { write_bound, cleared, .. } = own.extra();
        if write_bound > 0 || cleared.is_some() {
            own.clear_write_bound((now + CLEARED, mutation));
        }
    }

    /// The server stores bytes of a file. After a crash it would do that again: so nothing else is stored here until these bytes are
    /// durable, as they are when the server says how far the file reaches.
    pub(super) fn stored_by_server(&self, ino: Ino, now: Time) {
        self.if_direct(ino, |own| {
            self.change_by_server(own);
            if own.extra().write_bound > 0 {
                own.clear_write_bound((now, 0));
            }
        });
    }

    fn if_direct(&self, ino: Ino, change: impl FnOnce(&mut Delegation)) {
        let mut stripe = self.inodes.lock(ino);
        if stripe.rules.is_direct
            && let Some(node) = stripe.node(ino)
        {
            change(&mut node.delegation);
        }
    }

    fn change_by_server(&self, own: &mut Delegation) {
        own.extra_mut().by_server = self.by_server.fetch_add(1, Ordering::AcqRel) + 1;
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::mutation::ByteMutations;
    use thalweg_net::keys::Squash;

    use super::super::dirty_limit::DirtyLimit;
    use super::super::inodes::LocalRules;
    use super::*;

    #[test]
    fn a_bound_that_was_asked_for_before_a_change_does_not_count() {
        let (ino, now) = (Ino(5), Time::default());
        let inodes = Arc::new(Inodes::new());
        let queue =
            WritebackQueue::new(inodes.clone(), DirtyLimit::new((1 << 20, None), Duration::ZERO));
        let bounds = WriteBounds::new(inodes.clone(), Arc::new(queue));
        let bytes = ByteMutations::default();
        inodes.set_rules(LocalRules { bytes, is_direct: true, squash: Squash::None });
        inodes.with_new(ino, |_| ());
        for change in [WriteBounds::clear, WriteBounds::stored_by_server] {
            let asked = bounds.query(ino);
            change(&bounds, ino, now);
            bounds.set(ino, 4096, (asked, now));
            assert_eq!(bounds.of(ino), 0);
            bounds.set(ino, 4096, (bounds.query(ino), now));
            assert_eq!(bounds.of(ino), 4096);
        }
        inodes.with(ino, |node| node.cached.begin_change());
        bounds.set(ino, 4096, (bounds.query(ino), now));
        assert_eq!(bounds.of(ino), 0);
    }
}
