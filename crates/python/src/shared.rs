//! A volume and its handles, which closing the volume releases.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock};
use pyo3::prelude::*;
use thalweg_client::Volume;
use thalweg_env::process::{self, OfProcess};

use crate::failure::{invalid, txn_error};

/// A volume that may be closed while Python objects still refer to it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<OfProcess<Inner>>);

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
pub(crate) struct Held<T>(OfProcess<Mutex<Option<T>>>);

impl<T: Send> Release for Held<T> {
    fn release(&self) {
        if let Ok(handle) = self.0.get() {
            *handle.lock() = None;
        }
    }
}

impl<T> Held<T> {
    /// Exclusive access to the handle.
    ///
    /// # Errors
    /// `thalweg.Error` when the volume was closed.
    pub(crate) fn lock(&self) -> PyResult<parking_lot::MappedMutexGuard<'_, T>> {
        let handle = self.0.get().map_err(forked)?;
        MutexGuard::try_map(handle.lock(), Option::as_mut).map_err(|_| closed())
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

fn forked(forked: process::Forked) -> PyErr {
    txn_error(forked.into())
}

impl Shared {
    pub(crate) fn new(volume: Volume) -> Shared {
        let volume = RwLock::new(Some(Arc::new(volume)));
        Shared(Arc::new(OfProcess::new(Inner { volume, handles: Mutex::default() })))
    }

    /// Whether this process has opened the volume, and not a parent of it.
    pub(crate) fn is_here(&self) -> bool {
        self.0.is_here()
    }

    /// The volume.
    ///
    /// # Errors
    /// `thalweg.Error` when it was closed, `thalweg.Forked` in a child of the process that opened it.
    pub(crate) fn get(&self) -> PyResult<Arc<Volume>> {
        self.0.get().map_err(forked)?.volume.read().clone().ok_or_else(closed)
    }

    /// Has a new handle released when the volume is closed.
    ///
    /// # Errors
    /// As [`Shared::get`].
    pub(crate) fn hold<T: Send + 'static>(&self, handle: T) -> PyResult<Arc<Held<T>>> {
        let inner = self.0.get().map_err(forked)?;
        let held = Arc::new(Held(OfProcess::new(Mutex::new(Some(handle)))));
        // Under this lock the volume is not closed.
        let volume = inner.volume.read();
        if volume.is_none() {
            return Err(closed());
        }
        let weak: Weak<dyn Release> = Arc::downgrade(&(held.clone() as Arc<dyn Release>));
        let mut handles = inner.handles.lock();
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(weak);
        Ok(held)
    }

    /// Takes the volume out and releases its handles; `None` when it was closed before, and in a child of the process that
    /// opened it.
    pub(crate) fn take(&self) -> Option<Arc<Volume>> {
        let inner = self.0.get().ok()?;
        let taken = inner.volume.write().take();
        let handles = std::mem::take(&mut *inner.handles.lock());
        handles.iter().filter_map(Weak::upgrade).for_each(|handle| handle.release());
        taken
    }
}
