//! Handles of librados: a connection, and a pool of it.

use std::sync::Arc;

use super::{closing, sys};
use crate::ObjectError;

/// A handle of librados.
#[derive(Debug)]
pub(super) struct Connection {
    handle: sys::rados_t,
}

// SAFETY: librados permits calls with one handle from several threads at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// Owns a handle that was created.
    pub(super) fn of(handle: sys::rados_t) -> Connection {
        closing::opened();
        Connection { handle }
    }

    pub(super) fn handle(&self) -> sys::rados_t {
        self.handle
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        closing::close(self.handle);
    }
}

/// An I/O context of librados.
#[derive(Debug)]
pub(super) struct Handle {
    ioctx: sys::rados_ioctx_t,
    connection: Arc<Connection>,
}

// SAFETY: librados permits requests through one context from several threads at once; it is configured before it is
// shared.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: no request refers to the context any more, since each keeps this handle.
        unsafe { sys::rados_ioctx_destroy(self.ioctx) };
    }
}

impl Handle {
    /// Owns a context that was created, of `connection`.
    pub(super) fn of(ioctx: sys::rados_ioctx_t, connection: Arc<Connection>) -> Handle {
        Handle { ioctx, connection }
    }

    pub(super) fn connection(&self) -> sys::rados_t {
        self.connection.handle()
    }

    pub(super) fn ioctx(&self) -> sys::rados_ioctx_t {
        self.ioctx
    }
}

/// The runtime ends.
pub(super) fn closed() -> ObjectError {
    ObjectError::NotConnected { reason: "this process is about to end".to_owned() }
}
