//! Threads that may block.
//!
//! A thread of the runtime must not wait in a system call, since others wait for it. One that serves
//! a single request at a time, and has others beside it, may: for a short wait that is cheaper than to
//! be put to sleep and woken by way of the runtime.

use std::cell::Cell;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, in which this thread may block.
pub fn allow_blocking<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(MAY_BLOCK.replace(true));
    work()
}

/// Whether this thread may block now.
pub(crate) fn may_block() -> bool {
    MAY_BLOCK.get()
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_BLOCK.set(self.0);
    }
}
