//! Versions: the names of a volume's states.

use pyo3::prelude::*;
use thalweg_client::Volume;
use thalweg_store::block::{Epoch, EpochVersion, Lba, Version as VersionNumber};
use thalweg_store::stale::VersionRange;
use thalweg_store::txn::TxnError;

use crate::failure::{invalid, txn_error};

/// The name of a state of a volume, written as in `7.1234`. Each opening of the volume for writing begins an epoch,
/// in which versions are counted; so no other state ever has the same name.
#[pyclass(frozen, eq, ord, hash, skip_from_py_object, module = "thalweg")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version(EpochVersion);

impl From<EpochVersion> for Version {
    fn from(version: EpochVersion) -> Version {
        Version(version)
    }
}

#[pymethods]
impl Version {
    /// The version of that name.
    #[new]
    fn new(text: &str) -> PyResult<Version> {
        Ok(Version(text.parse().map_err(|error| txn_error(TxnError::Store(error)))?))
    }

    /// The epoch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch.0
    }

    /// The version within the epoch.
    #[getter]
    fn version(&self) -> u64 {
        self.0.version.0
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("thalweg.Version('{}')", self.0)
    }
}

/// The version that a caller gives, also as text.
pub(crate) fn given(version: &Bound<'_, PyAny>) -> PyResult<EpochVersion> {
    if let Ok(version) = version.cast::<Version>() {
        return Ok(version.get().0);
    }
    match version.extract::<String>() {
        Ok(text) => Ok(Version::new(&text)?.0),
        Err(_) => Err(invalid("a version is a thalweg.Version, or text as in \"7.1234\"")),
    }
}

/// The number of a version that a caller gives, also as a `thalweg.Version`.
pub(crate) fn number(version: &Bound<'_, PyAny>) -> PyResult<VersionNumber> {
    if let Ok(version) = version.cast::<Version>() {
        return Ok(version.get().0.version);
    }
    let number = version.extract::<u64>().map(VersionNumber);
    number.map_err(|_| invalid("a version is a number, 0 or more, or a thalweg.Version"))
}

/// The contents of a block in a range of versions: the oldest and the newest version that have each of them, and its cost.
pub(crate) fn contents(
    py: Python<'_>,
    volume: &Volume,
    lba: u64,
    range: VersionRange,
) -> PyResult<Vec<(u64, u64, i64)>> {
    let contents = py.detach(|| volume.contents(Lba(lba), range)).map_err(txn_error)?;
    Ok(contents.iter().map(|(range, cost)| (range.low.0, range.up.0, cost.0)).collect())
}

/// The contents of a block that can be read: the oldest and the newest version of each, and whether something is
/// stored.
pub(crate) fn readable(
    py: Python<'_>,
    volume: &Volume,
    lba: u64,
) -> PyResult<Vec<(Version, Version, bool)>> {
    let (epoch, contents) = py.detach(|| volume.versions(Lba(lba))).map_err(txn_error)?;
    let named = |epoch: Epoch, version| Version(EpochVersion { epoch, version });
    let contents = contents.iter();
    Ok(contents.map(|it| (named(epoch, it.oldest), named(epoch, it.newest), it.stored)).collect())
}
