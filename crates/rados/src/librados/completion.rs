//! Requests in flight: the completion of librados, turned into a future.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::handles::{Handle, closed};
use super::sys;
use crate::ObjectError;

/// A request in flight. librados has its address from the start to the completion, and whatever the request refers to
/// lives in it.
struct Pending<T> {
    sender: oneshot::Sender<(i32, T)>,
    /// The buffers of the request.
    owned: T,
    /// Keeps the pool open.
    _pool: Arc<Handle>,
}

/// Starts a request by `start`, which is given the pool, the completion, and the buffers; awaits its end, and returns
/// what librados returned, with the buffers. A `start` that returns below zero has started nothing.
pub(super) fn request<T, F>(
    pool: &Arc<Handle>,
    owned: T,
    start: F,
) -> impl Future<Output = Result<(i32, T), ObjectError>> + Send + use<T, F>
where
    T: Send + 'static,
    F: FnOnce(sys::rados_ioctx_t, sys::rados_completion_t, &mut T) -> i32,
{
    let (sender, receiver) = oneshot::channel();
    let pending = Box::new(Pending { sender, owned, _pool: pool.clone() });
    let returned = submit(pool, pending, start);
    async move {
        match returned {
            Ok(()) => receiver.await.map_err(|_| closed()),
            Err(refused) => Ok(refused),
        }
    }
}

/// Starts the request; what librados returned and the buffers, if it refuses it.
fn submit<T, F>(pool: &Handle, pending: Box<Pending<T>>, start: F) -> Result<(), (i32, T)>
where
    T: Send + 'static,
    F: FnOnce(sys::rados_ioctx_t, sys::rados_completion_t, &mut T) -> i32,
{
    let pending = Box::into_raw(pending);
    let mut completion = ptr::null_mut();
    // SAFETY: the callback gets the box's address once, when a started request ends; `completion` is written.
    let created = unsafe {
        sys::rados_aio_create_completion2(
            pending.cast::<c_void>(),
            Some(completed::<T>),
            &mut completion,
        )
    };
    let mut returned = created;
    if created >= 0 {
        // SAFETY: the box is not freed before the request has started, and only `start` refers to the buffers until
        // then.
        returned = start(pool.ioctx(), completion, unsafe { &mut (*pending).owned });
        // The request keeps a reference of its own.
        // SAFETY: the completion was created above, and is not used afterwards.
        unsafe { sys::rados_aio_release(completion) };
    }
    if returned >= 0 {
        return Ok(());
    }
    // SAFETY: no request was started, so that the callback is never called, and the box is still this function's.
    let pending = unsafe { Box::from_raw(pending) };
    Err((returned, pending.owned))
}

/// Called by a thread of librados when a request has ended.
extern "C" fn completed<T>(completion: sys::rados_completion_t, pending: *mut c_void) {
    // SAFETY: the argument of the completion is the box that `submit` leaked, and this is the only call for it.
    let pending = unsafe { Box::from_raw(pending.cast::<Pending<T>>()) };
    // SAFETY: librados passes its own completion, which has ended.
    let returned = unsafe { sys::rados_aio_get_return_value(completion) };
    let Pending { sender, owned, _pool } = *pending;
    // The receiver may be gone with its future: the buffers are freed here then.
    drop(sender.send((returned, owned)));
}
