//! The end of connections.
//!
//! Closing a connection waits for the threads of librados, and the last request to end is dropped by one of them: so
//! it is done on a thread of its own. The process must not end meanwhile, since librados would use its own data after
//! they are destroyed. A handler at the exit waits for the connections; when one stays open, the process ends
//! without destroying anything.

use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::sys;

/// How long the exit waits until nothing refers to a connection: a thread of librados may be about to drop a request that
/// was answered.
const PATIENCE: Duration = Duration::from_secs(1);

static STATE: Mutex<State> = Mutex::new(State { open: 0, closing: Vec::new() });
/// A connection begins to be closed.
static CLOSES: Condvar = Condvar::new();
static AT_EXIT: Once = Once::new();

struct State {
    /// Connections that something refers to.
    open: usize,
    closing: Vec<JoinHandle<()>>,
}

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

unsafe extern "C" {
    /// Of the C library: as `atexit`, and the handler gets the status with which the process exits.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// A connection has been made: [`close`] follows.
pub(super) fn opened() {
    STATE.lock().open += 1;
    AT_EXIT.call_once(|| {
        // librados was loaded before, so that its own handlers run after this one.
        // SAFETY: the handler may be called at any time, uses no argument, and does not unwind.
        unsafe { on_exit(wait, std::ptr::null_mut()) };
    });
}

/// Closes a connection that nothing refers to any more.
pub(super) fn close(handle: sys::rados_t) {
    let handle = Handle(handle);
    let thread = thread::Builder::new().name("rados-close".to_owned());
    match thread.spawn(move || handle.close()) {
        Ok(thread) => {
            let mut state = STATE.lock();
            state.open -= 1;
            state.closing.retain(|thread| !thread.is_finished());
            state.closing.push(thread);
            CLOSES.notify_all();
        }
        Err(error) => {
            tracing::warn!(%error, "a connection to a Ceph cluster stays open: no thread to close it");
        }
    }
}

/// Waits for the connections that are being closed, and for those that are about to be.
extern "C" fn wait(status: c_int, _: *mut c_void) {
    loop {
        let mut state = STATE.lock();
        if let Some(thread) = state.closing.pop() {
            drop(state);
            // A panic of it was reported already.
            drop(thread.join());
        } else if state.open == 0 {
            return;
        } else if CLOSES.wait_for(&mut state, PATIENCE).timed_out() {
            break;
        }
    }
    // SAFETY: without a stream it writes what all of them have buffered.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    // SAFETY: it may be called at any time. No other handler runs, and no destructor.
    unsafe { libc::_exit(status) };
}
