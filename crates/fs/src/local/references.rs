//! References to inodes, and handles of open ones.

use std::sync::atomic::Ordering;

use super::fs_state::FsState;
use crate::handle::Handle;

impl FsState {
    pub(super) fn reference(&self, ino: u64) {
        *self.references.lock().entry(ino).or_default() += 1;
    }

    pub(super) fn unreference(&self, ino: u64, count: u64) {
        {
            let mut references = self.references.lock();
            let Some(there) = references.get_mut(&ino) else { return };
            *there = there.saturating_sub(count);
            if *there > 0 {
                return;
            }
            references.remove(&ino);
        }
        self.space.release(ino);
        let mut deferred_work = self.deferred_work.lock();
        if deferred_work.orphans.contains(&ino) {
            deferred_work.due.push(ino);
            drop(deferred_work);
            self.wake.notify_one();
        }
    }

    /// Whether an inode has references, or may get back those that it had in an earlier opening.
    pub(super) fn may_be_referenced(&self, ino: u64) -> bool {
        self.keeps_orphans.load(Ordering::Relaxed) || self.is_referenced(ino)
    }

    /// Whether an inode has references.
    pub(super) fn is_referenced(&self, ino: u64) -> bool {
        self.references.lock().contains_key(&ino)
    }

    /// A handle that was never used.
    pub(super) fn handle(&self) -> Handle {
        Handle(self.next_handle.fetch_add(1, Ordering::Relaxed))
    }
}
