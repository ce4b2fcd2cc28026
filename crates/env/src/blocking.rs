//! Threads that may block.
//!
//! A thread of the runtime must not wait in a system call: other tasks wait for it. A thread that serves one
//! request at a time beside other threads may: for a short wait, a system call is cheaper than a sleep and a
//! wake-up by the runtime.

use std::cell::Cell;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; this thread may block in it.
pub fn allow_blocking<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(MAY_BLOCK.replace(true));
    work()
}

/// Whether this thread may block now.
pub fn may_block() -> bool {
    MAY_BLOCK.get()
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_BLOCK.set(self.0);
    }
}
