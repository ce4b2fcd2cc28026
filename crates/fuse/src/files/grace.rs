//! Waits for answers under way.
//!
//! A task that answers the kernel asks the filesystem how long something may be cached, and tells the kernel, without
//! waiting in between. An invalidation that the kernel gets between the two has no effect if the kernel does not know the
//! inode yet. So before the kernel is notified, all tasks that run have to return once; they are never kept waiting.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The pause between two looks at the tasks that run.
const PAUSE: Duration = Duration::from_micros(20);

/// Counts tasks that run, in two phases: those that began before a wait, and those that began after it.
#[derive(Debug, Default)]
pub(super) struct Grace {
    phase: AtomicU64,
    running: [AtomicUsize; 2],
    /// Locked by one that waits.
    turn: Mutex<()>,
}

/// A task that runs.
pub(super) struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Grace {
    /// A task runs until the result is dropped.
    pub(super) fn enter(&self) -> Running<'_> {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let count = &self.running[(phase & 1) as usize];
            count.fetch_add(1, Ordering::SeqCst);
            let running = Running(count);
            if self.phase.load(Ordering::SeqCst) == phase {
                return running;
            }
        }
    }

    /// Returns when all tasks that run now have returned.
    pub(super) fn wait(&self) {
        let _turn = self.turn.lock();
        let phase = self.phase.fetch_add(1, Ordering::SeqCst);
        let count = &self.running[(phase & 1) as usize];
        while count.load(Ordering::SeqCst) > 0 {
            std::thread::park_timeout(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_wait_ends_after_the_tasks_that_ran_before_it() {
        let grace = Grace::default();
        let (started, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let first = grace.enter();
            scope.spawn(|| {
                started.store(true, Ordering::SeqCst);
                grace.wait();
                over.store(true, Ordering::SeqCst);
            });
            while grace.phase.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // A task that begins later is not waited for.
            let later = grace.enter();
            assert!(started.load(Ordering::SeqCst) && !over.load(Ordering::SeqCst));
            drop(first);
            while !over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            drop(later);
        });
        grace.wait();
        assert!(grace.running.iter().all(|count| count.load(Ordering::SeqCst) == 0));
    }
}
