//! Sessions: reads that may be old, with guarantees.

use pyo3::prelude::*;
use thalweg_client::{SessionCell, SessionError};
use thalweg_store::stale::{self, VersionRange};

use crate::Volume;
use crate::failure::{invalid, txn_error};

/// What a client has read and written, and what it needs of its next reads: a guarantee, as in
/// `read-my-writes,bounded=5s`. With `saved`, the text of another session, it goes on where that was. It belongs to one
/// thread at a time: in another one `Invalid` is raised while a call uses it. It is of no volume, and can be used with a
/// replica too.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Session {
    cell: SessionCell,
    guarantee: String,
}

/// What a read for a session has got.
#[pyclass(frozen, get_all, module = "thalweg")]
pub(crate) struct Got {
    /// The content of the block, or the value of the key.
    value: Option<Py<PyAny>>,
    /// The oldest and the newest version that are known to have it.
    versions: (u64, u64),
    /// How long ago it was replaced, in seconds, at most: 0 when it is the newest, `None` when that is not known.
    age: Option<f64>,
    /// The guarantee that it meets.
    guarantee: String,
    /// The node that had it, of a volume that was opened at several nodes; `None` otherwise.
    node: Option<String>,
}

#[pymethods]
impl Got {
    fn __repr__(&self) -> String {
        let age = self.age.map_or("None".to_owned(), |age| age.to_string());
        let (oldest, newest) = self.versions;
        format!("<thalweg.Got of versions ({oldest}, {newest}), age {age}, {}>", self.guarantee)
    }
}

/// A range of versions as a caller sees it.
pub(crate) fn ends(range: VersionRange) -> (u64, u64) {
    (range.low.0, range.up.0)
}

fn session_error(error: SessionError) -> PyErr {
    invalid(&error.to_string())
}

impl Session {
    /// Runs a call for the session, without the interpreter's lock.
    pub(crate) fn run<T: Send, E: Send>(
        &self,
        py: Python<'_>,
        error: fn(E) -> PyErr,
        call: impl FnOnce(&mut stale::Session) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        let run = || self.cell.lock().map(|mut session| call(&mut session));
        py.detach(run).map_err(session_error)?.map_err(error)
    }

    /// What a read has got, with the value as Python sees it.
    pub(crate) fn got<T>(&self, got: stale::Got<T>, value: Option<Py<PyAny>>) -> Got {
        let (versions, age) = (ends(got.range), got.age.map(|age| age.as_secs_f64()));
        let node = got.node.map(|node| node.to_string());
        Got { value, versions, age, guarantee: self.guarantee.clone(), node }
    }
}

#[pymethods]
impl Session {
    /// A session. `Invalid` is raised for a guarantee that does not exist or contradicts itself, and for a text of no
    /// session.
    #[new]
    #[pyo3(signature = (guarantee, saved = None))]
    fn new(guarantee: &str, saved: Option<&str>) -> PyResult<Session> {
        let cell = match saved {
            None => SessionCell::new(guarantee),
            Some(saved) => SessionCell::resumed(guarantee, saved),
        };
        let cell = cell.map_err(session_error)?;
        let guarantee = cell.lock().map_err(session_error)?.guarantee().to_string();
        Ok(Session { cell, guarantee })
    }

    /// What it needs of its reads.
    #[getter]
    fn guarantee(&self) -> &str {
        &self.guarantee
    }

    /// Saves it as text, for another process or a later one: `thalweg.Session(guarantee, saved)`. The volume makes
    /// durable what the session has seen of it: a crash does not take that back.
    fn save(&self, py: Python<'_>, volume: &Volume) -> PyResult<String> {
        let volume = volume.shared.get()?;
        let saved = self.run(py, txn_error, |session| volume.save_session(session))?;
        Ok(saved.to_string())
    }

    fn __repr__(&self) -> String {
        format!("<thalweg.Session of {}>", self.guarantee)
    }
}
