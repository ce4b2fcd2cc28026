//! The end of connections.
//!
//! Closing a connection waits for the threads of librados, and the last request to end is dropped by one of them: so
//! it is done on a thread of its own. The process must not end meanwhile, since librados would use its own data after
//! they are destroyed; a handler at the exit waits for these threads.

use std::sync::Once;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::sys;

static CLOSING: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());
static AT_EXIT: Once = Once::new();

/// A handle that is about to be closed.
struct Handle(sys::rados_t);

// SAFETY: the handle is moved to the thread that closes it, and no other one uses it.
unsafe impl Send for Handle {}

impl Handle {
    fn close(self) {
        // SAFETY: the handle was created, and nothing refers to it any more.
        unsafe { sys::rados_shutdown(self.0) };
    }
}

/// Closes a connection that nothing refers to any more.
pub(super) fn close(handle: sys::rados_t) {
    AT_EXIT.call_once(|| {
        // librados was loaded before, so that its own handlers run after this one.
        // SAFETY: the handler may be called at any time, and does not unwind.
        unsafe { libc::atexit(wait) };
    });
    let handle = Handle(handle);
    let thread = thread::Builder::new().name("rados-close".to_owned());
    match thread.spawn(move || handle.close()) {
        Ok(thread) => {
            let mut closing = CLOSING.lock();
            closing.retain(|thread| !thread.is_finished());
            closing.push(thread);
        }
        Err(error) => {
            tracing::warn!(%error, "a connection to a Ceph cluster stays open: no thread to close it");
        }
    }
}

/// Waits for the connections that are being closed.
extern "C" fn wait() {
    loop {
        let Some(thread) = CLOSING.lock().pop() else { return };
        // A panic of it was reported already.
        drop(thread.join());
    }
}
