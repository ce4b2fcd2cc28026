//! A transaction as a context manager.

use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_client::{Outcome, Volume};
use thalweg_store::block::{Lba, Version as VersionNumber};
use thalweg_store::txn::{Begin, TxnError};

use crate::Shared;
use crate::failure::{invalid, tree_error, txn_error};
use crate::versions::Version;

/// A transaction of one thread.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Transaction {
    shared: Shared,
    is_snapshot: bool,
    state: Mutex<State>,
}

/// How a transaction begins.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    /// As any other.
    Begin(Begin),
    /// As a snapshot.
    Snapshot(VersionNumber),
}

#[derive(Clone, Copy)]
enum State {
    /// Not begun: it begins with its `with` statement.
    New(Start),
    /// Taken over, and its `with` statement has not begun.
    TakenOver(ThreadId),
    /// Running, in the thread that began it.
    Running(ThreadId),
    /// Ended: with the version of its commit, if it committed as an outermost pair.
    Ended(Option<Version>),
}

impl Transaction {
    pub(crate) fn new(shared: Shared, start: Start) -> Transaction {
        let is_snapshot = matches!(start, Start::Snapshot(_));
        Transaction { shared, is_snapshot, state: Mutex::new(State::New(start)) }
    }

    pub(crate) fn taken_over(shared: Shared) -> Transaction {
        let state = Mutex::new(State::TakenOver(thread::current().id()));
        Transaction { shared, is_snapshot: false, state }
    }

    /// Commits or aborts, unless it has ended already.
    pub(crate) fn finish(&self, py: Python<'_>, commit: bool) -> PyResult<()> {
        let has_ended = matches!(*self.state.lock(), State::Ended(_));
        match (has_ended, commit) {
            (true, _) => Ok(()),
            (false, true) => self.commit(py).map(|_| ()),
            // A child's copy is no transaction; the exception, which may be that of its exit, is raised.
            (false, false) if !self.shared.is_here() => Ok(()),
            (false, false) => self.abort(py),
        }
    }

    /// The volume, for a call of the transaction's own thread. In any other thread the call would be a
    /// transaction of its own.
    fn running(&self) -> PyResult<std::sync::Arc<Volume>> {
        match *self.state.lock() {
            State::Running(owner) | State::TakenOver(owner) if owner == thread::current().id() => {
                self.shared.get()
            }
            State::Running(_) | State::TakenOver(_) => Err(invalid(
                "the transaction belongs to another thread: release it there, and take it over here",
            )),
            State::New(_) => Err(invalid("the transaction begins with its `with`")),
            State::Ended(_) => Err(txn_error(TxnError::Ended)),
        }
    }
}

#[pymethods]
impl Transaction {
    pub(crate) fn __enter__(this: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let txn = this.get();
        let here = thread::current().id();
        let state = *txn.state.lock();
        match state {
            State::New(start) => {
                let volume = txn.shared.get()?;
                let begin = || match start {
                    Start::Begin(begin) => volume.begin(begin),
                    Start::Snapshot(version) => volume.open_snapshot(version),
                };
                py.detach(begin).map_err(txn_error)?;
            }
            State::TakenOver(owner) if owner == here => {}
            _ => return Err(invalid("a transaction is entered once, by its own thread")),
        }
        *txn.state.lock() = State::Running(here);
        Ok(this)
    }

    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // With an exception, the transaction is aborted and the exception is raised.
        self.finish(py, kind.is_none())
    }

    /// Commits, or raises `Conflict` or `Doomed`. The end of the `with` commits otherwise. Returns the version of
    /// the commit, the one that was read if nothing was written; `None` inside another transaction.
    fn commit(&self, py: Python<'_>) -> PyResult<Option<Version>> {
        let volume = self.running()?;
        *self.state.lock() = State::Ended(None);
        match py.detach(|| volume.end()).map_err(txn_error)? {
            Outcome::Committed(version) => {
                let version = version.map(Version::from);
                *self.state.lock() = State::Ended(version);
                Ok(version)
            }
            Outcome::Aborted(why) => Err(txn_error(why)),
        }
    }

    /// The version that the transaction reads.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<Version> {
        let volume = self.running()?;
        Ok(py.detach(|| volume.version()).map_err(txn_error)?.into())
    }

    /// The version of the commit, after it; `None` before, after an abort, and inside another transaction.
    #[getter]
    fn committed(&self) -> Option<Version> {
        match *self.state.lock() {
            State::Ended(version) => version,
            _ => None,
        }
    }

    /// Aborts, without any effect.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.running()?;
        *self.state.lock() = State::Ended(None);
        py.detach(|| volume.abort()).map_err(txn_error)
    }

    /// Closes a snapshot before the end of its `with`. `Invalid` is raised when it is closed already, or a transaction is
    /// open inside of it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match (self.is_snapshot, *self.state.lock()) {
            (false, _) => return Err(invalid("a transaction is committed or aborted, not closed")),
            (true, State::Ended(_)) => return Err(invalid("the snapshot is closed already")),
            (true, _) => {}
        }
        let volume = self.running()?;
        let closed = py.detach(|| volume.close_snapshot()).map_err(txn_error);
        if volume.depth() == 0 {
            *self.state.lock() = State::Ended(None);
        }
        closed
    }

    /// Releases it, for `Volume.takeover` in another thread or process. Returns the handle: 16 bytes.
    fn release<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let volume = self.running()?;
        let handle = py.detach(|| volume.release()).map_err(txn_error)?;
        *self.state.lock() = State::Ended(None);
        Ok(PyBytes::new(py, &handle.0.to_le_bytes()))
    }

    /// Reads blocks from `lba` on, of `version` and what the transaction itself wrote.
    #[pyo3(signature = (lba, count = 1))]
    fn read<'py>(&self, py: Python<'py>, lba: u64, count: u64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(crate::read(py, &*self.running()?, lba, count)?.0)
    }

    /// Writes whole blocks of a volume without partitions.
    fn write(&self, py: Python<'_>, lba: u64, content: &[u8]) -> PyResult<()> {
        let volume = self.running()?;
        py.detach(|| volume.write(Lba(lba), content)).map_err(tree_error)
    }

    /// Discards blocks of a volume without partitions.
    #[pyo3(signature = (lba, count = 1))]
    fn discard(&self, py: Python<'_>, lba: u64, count: u64) -> PyResult<()> {
        let volume = self.running()?;
        py.detach(|| volume.discard(Lba(lba), count)).map_err(tree_error)
    }

    /// Narrows the last read or write of a block to `size` bytes from `start` on.
    fn mark_accessed(&self, py: Python<'_>, lba: u64, start: usize, size: usize) -> PyResult<()> {
        let volume = self.running()?;
        let range = start..start.saturating_add(size);
        py.detach(|| volume.mark_accessed(Lba(lba), range)).map_err(tree_error)
    }

    /// Asks for a block to be kept in memory.
    fn please_cache(&self, py: Python<'_>, lba: u64) -> PyResult<()> {
        let volume = self.running()?;
        py.detach(|| volume.please_cache(Lba(lba))).map_err(txn_error)
    }
}
