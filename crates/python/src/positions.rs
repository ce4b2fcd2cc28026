//! Positions: names of states on every machine, and waiting for them.

use std::time::Duration;

use pyo3::prelude::*;
use thalweg_client::Volume;
use thalweg_store::block::Position;

use crate::failure::{invalid, txn_error};

/// The position of a volume as text.
pub(crate) fn position(py: Python<'_>, volume: &Volume) -> PyResult<Option<String>> {
    let position = py.detach(|| volume.position()).map_err(txn_error)?;
    Ok(position.map(|position| position.to_string()))
}

/// Waits for a position that a caller gives as text, for at most so many seconds.
pub(crate) fn wait(
    py: Python<'_>,
    volume: &Volume,
    position: &str,
    timeout: Option<f64>,
) -> PyResult<bool> {
    let position: Position = position
        .parse()
        .map_err(|error: thalweg_store::block::NoPosition| invalid(&error.to_string()))?;
    let within = timeout.map(Duration::try_from_secs_f64).transpose();
    let within = within.map_err(|_| invalid("a timeout is a number of seconds, 0 or more"))?;
    py.detach(|| volume.reached(position, within)).map_err(txn_error)
}
