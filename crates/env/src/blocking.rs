//! Threads of a runtime: how many, and which may block.
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

/// Threads for the runtime of a process that serves volumes: half of the processors. The other half is for
/// clients and the kernel. Two threads that share a few connections wake each other, which costs a lone small
/// write more than the second thread gains.
pub fn server_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).max(1))
}
