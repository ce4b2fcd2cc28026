//! Thalweg for Python: the module `thalweg._thalweg`, which the package `thalweg` re-exports.
//!
//! Each method is one call of [`thalweg_client::Volume`] or of [`thalweg_client::Filesystem`], without the interpreter's lock.
//!
//! # Lock order
//!
//! 1. the state of a transaction, or the handle of a store, a raw partition or a scan, which is held during a call;
//! 2. the volume of a `Shared`;
//! 3. the list of its handles;
//! 4. the locks of `thalweg_client`.
//!
//! The interpreter's lock may be held while one of these is taken, so no holder of one waits for the interpreter's.

// The code that the bindings' macros generate has no docs.
#![allow(missing_docs)]

mod failure;
mod files;
mod levels;
mod positions;
mod raw;
mod sessions;
mod shared;
mod stores;
mod transaction;
mod versions;

use std::path::PathBuf;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_store::block::{BLOCK_SIZE, Lba, Version as VersionNumber};
use thalweg_store::open::Options;
use thalweg_store::stale::VersionRange;
use thalweg_store::tree::Kind;
use thalweg_store::txn::{Begin, Handle};

use failure::{Conflict, close_error, invalid, open_error, tree_error, txn_error};
use raw::Raw;
use sessions::{Got, Session};
use shared::Shared;
use stores::Store;
use transaction::{Start, Transaction};
use versions::Version;

/// An open volume. A context manager that closes it.
#[pyclass(frozen, module = "thalweg")]
struct Volume {
    shared: Shared,
}

/// Opens a volume, by the folder of a chained one, or by the device or file of one that is updated in place:
/// through the process that serves it, or in this one; or by the address of one on another machine,
/// `thalweg://HOST:PORT/NAME`; or by the addresses of several nodes of one, a primary and replicas of it, with commas
/// between them, each such an address or the folder of a volume that is served: reads for a session then go to the
/// cheapest node that may serve them. `journal_dev`: the device of the journal, if a volume that is updated in place
/// has an external journal.
#[pyfunction]
#[pyo3(signature = (path, journal_dev = None))]
fn open(py: Python<'_>, path: PathBuf, journal_dev: Option<PathBuf>) -> PyResult<Volume> {
    let options = Options { journal: journal_dev, ..Options::default() };
    let opened = py.detach(|| thalweg_client::Volume::open_with(&path, &options));
    let volume = opened.map_err(open_error)?;
    Ok(Volume { shared: Shared::new(volume) })
}

fn isolation(name: &str) -> PyResult<Begin> {
    match name {
        "strict" => Ok(Begin::STRICT),
        "snapshot" => Ok(Begin::SNAPSHOT),
        "read-only" => Ok(Begin::READ_ONLY),
        _ => Err(invalid("isolation is \"strict\", \"snapshot\" or \"read-only\"")),
    }
}

/// Blocks as one piece, and the version that they are of.
pub(crate) type Versioned<'py> = (Bound<'py, PyBytes>, Version);

/// Reads blocks, as one piece.
pub(crate) fn read<'py>(
    py: Python<'py>,
    volume: &thalweg_client::Volume,
    lba: u64,
    count: u64,
) -> PyResult<Versioned<'py>> {
    let read = py.detach(|| volume.read_with_version(Lba(lba), count));
    let (version, blocks) = read.map_err(txn_error)?;
    Ok((joined(py, &blocks)?, version.into()))
}

/// Buffers as one piece.
pub(crate) fn joined<'py>(py: Python<'py>, blocks: &[Bytes]) -> PyResult<Bound<'py, PyBytes>> {
    let len = blocks.iter().map(|block| block.len()).sum();
    PyBytes::new_with(py, len, |bytes| {
        let mut left = bytes;
        for block in blocks {
            let (to, rest) = left.split_at_mut(block.len());
            to.copy_from_slice(block);
            left = rest;
        }
        Ok(())
    })
}

#[pymethods]
impl Volume {
    /// The number of blocks.
    #[getter]
    fn blocks(&self) -> PyResult<u64> {
        Ok(self.shared.get()?.blocks())
    }

    /// Whether another process serves the volume.
    #[getter]
    fn is_served(&self) -> PyResult<bool> {
        Ok(self.shared.get()?.is_served())
    }

    /// A transaction of this thread, for a `with`: it commits at the end, and is aborted by an exception.
    /// Inside another transaction it changes nothing, except that its abort dooms the other. With `at`, a version
    /// that is kept, it is read-only and reads that version; `Gone` is raised at its begin when the version is not
    /// kept.
    #[pyo3(signature = (isolation = None, at = None))]
    fn transaction(
        &self,
        isolation: Option<&str>,
        at: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Transaction> {
        let begin = match (isolation, at) {
            (None | Some("read-only"), Some(at)) => Begin::at(versions::given(at)?),
            (Some(_), Some(_)) => {
                return Err(invalid("a transaction on a given version is \"read-only\""));
            }
            (isolation, None) => self::isolation(isolation.unwrap_or("strict"))?,
        };
        Ok(Transaction::new(self.shared.clone(), Start::Begin(begin)))
    }

    /// Begin, work, commit, retry: calls `work` with a transaction until one commits, and returns its result.
    /// Inside another transaction it is tried once, since the other must be retried as a whole.
    #[pyo3(signature = (work, isolation = "strict"))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        work: &Bound<'py, PyAny>,
        isolation: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let begin = self::isolation(isolation)?;
        let is_inner = self.shared.get()?.depth() > 0;
        loop {
            let txn = Py::new(py, Transaction::new(self.shared.clone(), Start::Begin(begin)))?;
            Transaction::__enter__(txn.clone_ref(py), py)?;
            let done = work.call1((txn.clone_ref(py),));
            let ended = txn.get().finish(py, done.is_ok());
            let error = match (done, ended) {
                (Ok(value), Ok(())) => return Ok(value),
                (Err(error), _) | (_, Err(error)) => error,
            };
            if is_inner || !error.is_instance_of::<Conflict>(py) {
                return Err(error);
            }
            py.check_signals()?;
        }
    }

    /// Takes over a released transaction, as this thread's.
    fn takeover(&self, py: Python<'_>, handle: [u8; 16]) -> PyResult<Transaction> {
        let volume = self.shared.get()?;
        let handle = Handle(u128::from_le_bytes(handle));
        py.detach(|| volume.takeover(handle)).map_err(txn_error)?;
        Ok(Transaction::taken_over(self.shared.clone()))
    }

    /// Reads blocks from `lba` on. Inside this thread's transaction it is part of that.
    #[pyo3(signature = (lba, count = 1))]
    fn read<'py>(&self, py: Python<'py>, lba: u64, count: u64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.read_with_version(py, lba, count)?.0)
    }

    /// As `read`: returns the blocks, and the version that they are of. Outside of a transaction a crash may still
    /// lose that version. Inside of one the blocks also have what the transaction itself wrote.
    #[pyo3(signature = (lba, count = 1))]
    fn read_with_version<'py>(
        &self,
        py: Python<'py>,
        lba: u64,
        count: u64,
    ) -> PyResult<Versioned<'py>> {
        read(py, &*self.shared.get()?, lba, count)
    }

    /// The contents of a block that can be read, oldest first: the oldest and the newest version of each, and
    /// whether something is stored. A transaction can begin on these versions.
    fn versions(&self, py: Python<'_>, lba: u64) -> PyResult<Vec<(Version, Version, bool)>> {
        versions::readable(py, &*self.shared.get()?, lba)
    }

    /// Opens a snapshot, for a `with`: until its end this thread's reads, of blocks and of keys, see this version, a number
    /// or a `Version`, and its writes raise `Invalid`. At the `with`, `Gone` is raised for a version that is not kept,
    /// `Behind` for one of the future, and `Invalid` inside of a transaction or another snapshot.
    fn snapshot(&self, version: &Bound<'_, PyAny>) -> PyResult<Transaction> {
        let start = Start::Snapshot(versions::number(version)?);
        Ok(Transaction::new(self.shared.clone(), start))
    }

    /// Reads blocks at a version. Raises as `snapshot`.
    #[pyo3(signature = (version, lba, count = 1))]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        version: &Bound<'_, PyAny>,
        lba: u64,
        count: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (volume, version) = (self.shared.get()?, versions::number(version)?);
        let read = py.detach(|| volume.read_at(version, Lba(lba), count));
        joined(py, &read.map_err(txn_error)?)
    }

    /// The contents of a block in the versions from `oldest` to `newest`, as far as they can be read, oldest first: the
    /// oldest and the newest version that have each of them, and its cost as `cost` says.
    #[pyo3(signature = (lba, oldest = 0, newest = u64::MAX))]
    fn contents(
        &self,
        py: Python<'_>,
        lba: u64,
        oldest: u64,
        newest: u64,
    ) -> PyResult<Vec<(u64, u64, i64)>> {
        let range = VersionRange { low: VersionNumber(oldest), up: VersionNumber(newest) };
        versions::contents(py, &*self.shared.get()?, lba, range)
    }

    /// What it costs to read a block at a version: the estimated time in nanoseconds, -1 when the content is in memory.
    /// `Gone` is raised for a version that is not kept, `Behind` for one of the future.
    fn cost(&self, py: Python<'_>, lba: u64, version: &Bound<'_, PyAny>) -> PyResult<i64> {
        let (volume, version) = (self.shared.get()?, versions::number(version)?);
        Ok(py.detach(|| volume.cost(Lba(lba), version)).map_err(txn_error)?.0)
    }

    /// The oldest and the newest version in which a block has the content of a version, as far as they can be read. Raises
    /// as `cost`.
    fn version_range(
        &self,
        py: Python<'_>,
        lba: u64,
        version: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, u64)> {
        let (volume, version) = (self.shared.get()?, versions::number(version)?);
        let range = py.detach(|| volume.version_range(Lba(lba), version)).map_err(txn_error)?;
        Ok(sessions::ends(range))
    }

    /// Reads a block for a session: the cheapest content that its guarantee allows. `Unserved` is raised when this volume
    /// cannot give it; `Invalid` inside of a transaction, as in all calls for sessions.
    fn read_for(&self, py: Python<'_>, session: &Session, lba: u64) -> PyResult<Got> {
        let volume = self.shared.get()?;
        let got = session.run(py, txn_error, |it| volume.read_for(it, Lba(lba)))?;
        let value = PyBytes::new(py, &got.value).into_any().unbind();
        Ok(session.got(got, Some(value)))
    }

    /// Writes a block for a session, or discards it with `None`, on a volume without partitions. It is durable when this
    /// returns. Returns the number of the version. `Behind` is raised when the guarantee orders it after something that the
    /// volume does not have yet.
    fn write_for(
        &self,
        py: Python<'_>,
        session: &Session,
        lba: u64,
        content: Option<&[u8]>,
    ) -> PyResult<u64> {
        let volume = self.shared.get()?;
        let written = session.run(py, tree_error, |it| volume.write_for(it, Lba(lba), content));
        Ok(written?.0)
    }

    /// The volume's position, as text: the name of its newest state, on this machine and on those of its replicas. `None`
    /// for a volume that has had no replica.
    fn position(&self, py: Python<'_>) -> PyResult<Option<String>> {
        positions::position(py, &*self.shared.get()?)
    }

    /// Waits until the volume, which may be a replica, has durably reached a position; returns whether it has within
    /// `timeout` seconds. `Invalid` is raised when it never will: the position is of another volume, or of one that has
    /// gone another way.
    #[pyo3(signature = (position, timeout = None))]
    fn wait(&self, py: Python<'_>, position: &str, timeout: Option<f64>) -> PyResult<bool> {
        positions::wait(py, &*self.shared.get()?, position, timeout)
    }

    /// Writes whole blocks of a volume without partitions; `Invalid` on a volume with partitions, where raw
    /// blocks are in raw partitions. Outside of a transaction it is durable when this returns.
    fn write(&self, py: Python<'_>, lba: u64, content: &[u8]) -> PyResult<()> {
        let volume = self.shared.get()?;
        py.detach(|| volume.write(Lba(lba), content)).map_err(tree_error)
    }

    /// Discards blocks of a volume without partitions.
    #[pyo3(signature = (lba, count = 1))]
    fn discard(&self, py: Python<'_>, lba: u64, count: u64) -> PyResult<()> {
        let volume = self.shared.get()?;
        py.detach(|| volume.discard(Lba(lba), count)).map_err(tree_error)
    }

    /// Makes a partition, "btree", "hash" or "raw", of `blocks` blocks; without a number, of the longest free
    /// run.
    #[pyo3(signature = (name, kind, blocks = None))]
    fn create(&self, py: Python<'_>, name: &str, kind: &str, blocks: Option<u64>) -> PyResult<()> {
        let volume = self.shared.get()?;
        let kind = match kind {
            "btree" => Kind::Btree,
            "hash" => Kind::Hash,
            "raw" => Kind::Raw,
            _ => return Err(invalid("kind is \"btree\", \"hash\" or \"raw\"")),
        };
        py.detach(|| volume.create_store(name, kind, blocks)).map_err(tree_error)
    }

    /// The B-tree in a partition.
    fn btree(&self, py: Python<'_>, name: &str) -> PyResult<Store> {
        Store::open(py, &self.shared, name, Kind::Btree)
    }

    /// The hash table in a partition.
    fn hash(&self, py: Python<'_>, name: &str) -> PyResult<Store> {
        Store::open(py, &self.shared, name, Kind::Hash)
    }

    /// The raw partition of that name.
    fn raw(&self, py: Python<'_>, name: &str) -> PyResult<Raw> {
        Raw::open(py, &self.shared, name)
    }

    /// Closes the volume: aborts its transactions, and invalidates its stores, raw partitions and scans.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(volume) = self.shared.take() else { return Ok(()) };
        py.detach(move || volume.close()).map_err(close_error)
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

#[pymodule]
fn _thalweg(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_class::<Volume>()?;
    module.add_class::<Transaction>()?;
    module.add_class::<Version>()?;
    module.add_class::<Session>()?;
    module.add_class::<Got>()?;
    module.add_class::<Store>()?;
    module.add_class::<Raw>()?;
    module.add_class::<stores::Scan>()?;
    module.add_function(wrap_pyfunction!(files::open_files, module)?)?;
    module.add_class::<files::Files>()?;
    module.add_class::<files::OpenFile>()?;
    module.add_class::<files::Listing>()?;
    module.add("BLOCK_SIZE", BLOCK_SIZE)?;
    failure::register(module)
}
