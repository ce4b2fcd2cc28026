//! Raw partitions.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_store::{stale, tree};

use crate::failure::tree_error;
use crate::sessions::{Got, Session};
use crate::shared::{Held, Shared};
use crate::{Versioned, joined, versions};

/// A raw partition: blocks numbered from 0. Calls inside this thread's transaction are part of it; any other
/// call is a transaction of its own.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Raw {
    shared: Shared,
    raw: Arc<Held<tree::Raw>>,
}

impl Raw {
    pub(crate) fn open(py: Python<'_>, shared: &Shared, name: &str) -> PyResult<Raw> {
        let volume = shared.get()?;
        let raw = py.detach(|| volume.raw(name)).map_err(tree_error)?;
        Ok(Raw { shared: shared.clone(), raw: shared.hold(raw)? })
    }
}

#[pymethods]
impl Raw {
    /// The number of blocks.
    #[getter]
    fn blocks(&self) -> PyResult<u64> {
        Ok(self.raw.get()?.blocks())
    }

    /// Reads blocks from `block` on.
    #[pyo3(signature = (block, count = 1))]
    fn read<'py>(&self, py: Python<'py>, block: u64, count: u64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.read_with_version(py, block, count)?.0)
    }

    /// As `read`: returns the blocks, and the version that they are of, as `Volume.read_with_version`.
    #[pyo3(signature = (block, count = 1))]
    fn read_with_version<'py>(
        &self,
        py: Python<'py>,
        block: u64,
        count: u64,
    ) -> PyResult<Versioned<'py>> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        let read = py.detach(|| volume.read_raw_with_version(&raw, block, count));
        let (version, blocks) = read.map_err(tree_error)?;
        Ok((joined(py, &blocks)?, version.into()))
    }

    /// Reads blocks at a version, as `Volume.read_at`. `Invalid` is raised when the version does not have the partition.
    #[pyo3(signature = (version, block, count = 1))]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        version: &Bound<'_, PyAny>,
        block: u64,
        count: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        let version = versions::number(version)?;
        let read = py.detach(|| volume.read_raw_at(version, &raw, block, count));
        joined(py, &read.map_err(tree_error)?)
    }

    /// Reads a block for a session, as `Volume.read_for`.
    fn read_for(&self, py: Python<'_>, session: &Session, block: u64) -> PyResult<Got> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        let got = session.run(py, tree_error, |it| volume.read_raw_for(it, &raw, block))?;
        let value = PyBytes::new(py, &got.value).into_any().unbind();
        Ok(session.got(got, Some(value)))
    }

    /// Writes a block for a session, or discards it with `None`, as `Volume.write_for`.
    fn write_for(
        &self,
        py: Python<'_>,
        session: &Session,
        block: u64,
        content: Option<&[u8]>,
    ) -> PyResult<u64> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        let write = |it: &mut stale::Session| volume.write_raw_for(it, &raw, block, content);
        Ok(session.run(py, tree_error, write)?.0)
    }

    /// The block of the volume that is a block here, for `Volume.cost`, `version_range` and `contents`.
    fn place(&self, block: u64) -> PyResult<u64> {
        Ok(self.raw.get()?.place(block).map_err(tree_error)?.0)
    }

    /// Writes whole blocks. Outside of a transaction it is durable when this returns.
    fn write(&self, py: Python<'_>, block: u64, content: &[u8]) -> PyResult<()> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        py.detach(|| volume.write_raw(&raw, block, content)).map_err(tree_error)
    }

    /// Discards blocks.
    #[pyo3(signature = (block, count = 1))]
    fn discard(&self, py: Python<'_>, block: u64, count: u64) -> PyResult<()> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        py.detach(|| volume.discard_raw(&raw, block, count)).map_err(tree_error)
    }

    /// Narrows the last read or write of a block to `size` bytes from `start` on.
    fn mark_accessed(&self, py: Python<'_>, block: u64, start: usize, size: usize) -> PyResult<()> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        let range = start..start.saturating_add(size);
        py.detach(|| volume.mark_raw(&raw, block, range)).map_err(tree_error)
    }

    /// Asks for a block to be kept in memory.
    fn please_cache(&self, py: Python<'_>, block: u64) -> PyResult<()> {
        let (volume, raw) = (self.shared.get()?, self.raw.get()?);
        py.detach(|| volume.please_cache_raw(&raw, block)).map_err(tree_error)
    }
}
