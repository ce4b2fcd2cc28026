//! A volume and its handles, which closing the volume releases.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock};
use pyo3::prelude::*;
use thalweg_client::Volume;

use crate::failure::invalid;

/// A volume that may be closed while Python objects still refer to it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Inner>);

struct Inner {
    volume: RwLock<Option<Arc<Volume>>>,
    handles: Mutex<Vec<Weak<dyn Release>>>,
}

/// A handle that closing the volume releases.
trait Release: Send + Sync {
    fn release(&self);
}

/// A handle of a volume: a store, a raw partition, a scan. It keeps the volume's devices open, so closing the
/// volume drops it, although Python may still refer to the object around it.
pub(crate) struct Held<T>(Mutex<Option<T>>);

impl<T: Send> Release for Held<T> {
    fn release(&self) {
        *self.0.lock() = None;
    }
}

impl<T> Held<T> {
    /// Exclusive access to the handle.
    ///
    /// # Errors
    /// `thalweg.Error` when the volume was closed.
    pub(crate) fn lock(&self) -> PyResult<parking_lot::MappedMutexGuard<'_, T>> {
        MutexGuard::try_map(self.0.lock(), Option::as_mut).map_err(|_| closed())
    }
}

impl<T: Clone> Held<T> {
    /// A copy of the handle, for one call.
    ///
    /// # Errors
    /// As [`Held::lock`].
    pub(crate) fn get(&self) -> PyResult<T> {
        Ok(self.lock()?.clone())
    }
}

fn closed() -> PyErr {
    invalid("the volume is closed")
}

impl Shared {
    pub(crate) fn new(volume: Volume) -> Shared {
        let volume = RwLock::new(Some(Arc::new(volume)));
        Shared(Arc::new(Inner { volume, handles: Mutex::default() }))
    }

    /// The volume.
    ///
    /// # Errors
    /// `thalweg.Error` when it was closed.
    pub(crate) fn get(&self) -> PyResult<Arc<Volume>> {
        self.0.volume.read().clone().ok_or_else(closed)
    }

    /// Has a new handle released when the volume is closed.
    ///
    /// # Errors
    /// `thalweg.Error` when it was closed.
    pub(crate) fn hold<T: Send + 'static>(&self, handle: T) -> PyResult<Arc<Held<T>>> {
        let held = Arc::new(Held(Mutex::new(Some(handle))));
        // Under this lock the volume is not closed.
        let volume = self.0.volume.read();
        if volume.is_none() {
            return Err(closed());
        }
        let weak: Weak<dyn Release> = Arc::downgrade(&(held.clone() as Arc<dyn Release>));
        let mut handles = self.0.handles.lock();
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(weak);
        Ok(held)
    }

    /// Takes the volume out and releases its handles; `None` when it was closed before.
    pub(crate) fn take(&self) -> Option<Arc<Volume>> {
        let taken = self.0.volume.write().take();
        let handles = std::mem::take(&mut *self.0.handles.lock());
        handles.iter().filter_map(Weak::upgrade).for_each(|handle| handle.release());
        taken
    }
}
