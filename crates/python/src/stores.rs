//! Key-value stores, used like a dictionary.

use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_store::tree::{self, Iter, Kind};

use crate::failure::{invalid, tree_error};
use crate::sessions::{Got, Session, ends};
use crate::shared::{Held, Shared};
use crate::versions::{self, Version};

/// A store. Calls inside this thread's transaction are part of it; any other call is a transaction of its
/// own.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Store {
    shared: Shared,
    store: Arc<Held<tree::Store>>,
}

impl Store {
    pub(crate) fn open(py: Python<'_>, shared: &Shared, name: &str, kind: Kind) -> PyResult<Store> {
        let volume = shared.get()?;
        let store = py.detach(|| volume.open_store(name)).map_err(tree_error)?;
        match store.kind() == kind {
            true => Ok(Store { shared: shared.clone(), store: shared.hold(store)? }),
            false => Err(invalid(&format!("partition {name} is a {}", store.kind()))),
        }
    }

    fn value<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let value = py.detach(|| volume.get(&store, key)).map_err(tree_error)?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn delete(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        py.detach(|| volume.delete(&store, key)).map_err(tree_error)
    }
}

fn missing(key: &[u8]) -> PyErr {
    PyKeyError::new_err(key.to_vec())
}

#[pymethods]
impl Store {
    fn __getitem__<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        self.value(py, key)?.ok_or_else(|| missing(key))
    }

    fn __setitem__(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<()> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        py.detach(|| volume.put(&store, key, value)).map_err(tree_error)
    }

    fn __delitem__(&self, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        match self.delete(py, key)? {
            true => Ok(()),
            false => Err(missing(key)),
        }
    }

    fn __contains__(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        Ok(self.value(py, key)?.is_some())
    }

    /// The value of a key, or `default`.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.value(py, key)?.map(|value| value.into_any()).or(default))
    }

    /// The value of a key, or `default`, and the version that it is of, as `Volume.read_with_version`.
    #[pyo3(signature = (key, default = None))]
    fn get_with_version<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Option<Bound<'py, PyAny>>, Version)> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let read = py.detach(|| volume.get_with_version(&store, key)).map_err(tree_error)?;
        let (version, value) = read;
        let value = value.map(|value| PyBytes::new(py, &value).into_any());
        Ok((value.or(default), version.into()))
    }

    /// The value of a key at a version, or `default`. Raises as `Volume.snapshot`.
    #[pyo3(signature = (version, key, default = None))]
    fn get_at<'py>(
        &self,
        py: Python<'py>,
        version: &Bound<'_, PyAny>,
        key: &[u8],
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let version = versions::number(version)?;
        let value = py.detach(|| volume.get_at(version, &store, key)).map_err(tree_error)?;
        Ok(value.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// What it costs to read a key at a version, as `Volume.cost`: that of the dearest block on the way to its value, as
    /// far as this is in memory, or else of the first block that is not.
    fn cost(&self, py: Python<'_>, key: &[u8], version: &Bound<'_, PyAny>) -> PyResult<i64> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let version = versions::number(version)?;
        Ok(py.detach(|| volume.cost_of_key(&store, key, version)).map_err(tree_error)?.0)
    }

    /// The oldest and the newest version in which a key is known to have the value of a version. Raises as `Volume.cost`.
    fn version_range(
        &self,
        py: Python<'_>,
        key: &[u8],
        version: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, u64)> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let version = versions::number(version)?;
        let range = py.detach(|| volume.versions_of_key(&store, key, version));
        Ok(ends(range.map_err(tree_error)?))
    }

    /// Gets the value of a key, or `default`, for a session, as `Volume.read_for`.
    #[pyo3(signature = (session, key, default = None))]
    fn get_for(
        &self,
        py: Python<'_>,
        session: &Session,
        key: &[u8],
        default: Option<Py<PyAny>>,
    ) -> PyResult<Got> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let got = session.run(py, tree_error, |it| volume.get_for(it, &store, key))?;
        let value = got.value.as_ref().map(|value| PyBytes::new(py, value).into_any().unbind());
        Ok(session.got(got, value.or(default)))
    }

    /// Sets the value of a key for a session, as `Volume.write_for`. Returns the number of the version.
    fn put_for(
        &self,
        py: Python<'_>,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> PyResult<u64> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        Ok(session.run(py, tree_error, |it| volume.put_for(it, &store, key, value))?.0)
    }

    /// Keys and values; in a B-tree in order, from `start` (inclusive) to `stop` (exclusive).
    #[pyo3(signature = (start = None, stop = None))]
    fn scan(&self, py: Python<'_>, start: Option<&[u8]>, stop: Option<&[u8]>) -> PyResult<Scan> {
        let (volume, store) = (self.shared.get()?, self.store.get()?);
        let iter = py.detach(|| volume.scan(&store, start, stop)).map_err(tree_error)?;
        Ok(Scan { shared: self.shared.clone(), iter: self.shared.hold(iter)?, keys_only: false })
    }

    /// Keys and values.
    fn items(&self, py: Python<'_>) -> PyResult<Scan> {
        self.scan(py, None, None)
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Scan> {
        Ok(Scan { keys_only: true, ..self.scan(py, None, None)? })
    }
}

/// An iterator over a store.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Scan {
    shared: Shared,
    iter: Arc<Held<Iter>>,
    keys_only: bool,
}

#[pymethods]
impl Scan {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let volume = self.shared.get()?;
        let pair = py
            .detach(|| Ok::<_, PyErr>(volume.next(&mut *self.iter.lock()?)))?
            .map_err(tree_error)?;
        let Some((key, value)) = pair else { return Ok(None) };
        let key = PyBytes::new(py, &key);
        match self.keys_only {
            true => Ok(Some(key.into_any())),
            false => Ok(Some((key, PyBytes::new(py, &value)).into_pyobject(py)?.into_any())),
        }
    }
}
