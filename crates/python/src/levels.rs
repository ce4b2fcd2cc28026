//! Waiting until a file has come to a level.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use thalweg_fs::Level;
use thalweg_fs::level::UnknownLevel;

use crate::failure::invalid;

/// How often a call that waits looks for signals.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Waits with `wait`, which waits for at most the time that it gets, for so many seconds. A signal ends it.
pub(crate) fn wait(
    py: Python<'_>,
    level: &str,
    timeout: Option<f64>,
    wait: impl Fn(Level, Duration) -> PyResult<bool>,
) -> PyResult<bool> {
    let level = level.parse();
    let level = level.map_err(|error: UnknownLevel| PyValueError::new_err(error.to_string()))?;
    let left = timeout.map(Duration::try_from_secs_f64).transpose();
    let mut left = left.map_err(|_| invalid("a timeout is a number of seconds, 0 or more"))?;
    loop {
        let some = left.map_or(LOOK, |left| left.min(LOOK));
        if wait(level, some)? {
            return Ok(true);
        }
        left = left.map(|left| left - some);
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        py.check_signals()?;
    }
}
