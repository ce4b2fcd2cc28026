//! Values of mount options.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::size::Size;

/// An option with a value `auto`, which resets it to the program's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Setting<T> {
    Auto,
    Is(T),
}

impl<T: Copy> Setting<T> {
    pub(super) fn parse(value: &str, read: impl FnOnce(&str) -> Outcome<T>) -> Outcome<Setting<T>> {
        match value {
            "auto" => Ok(Setting::Auto),
            value => read(value).map(Setting::Is),
        }
    }

    /// The value after this option was given, or `now` if it was not.
    pub(super) fn over(said: Option<Setting<T>>, now: Option<T>) -> Option<T> {
        match said {
            None => now,
            Some(Setting::Auto) => None,
            Some(Setting::Is(value)) => Some(value),
        }
    }

    pub(super) fn word<W: std::fmt::Display>(
        self,
        name: &str,
        show: impl FnOnce(T) -> W,
    ) -> String {
        match self {
            Setting::Auto => format!("{name}=auto"),
            Setting::Is(value) => format!("{name}={}", show(value)),
        }
    }
}

pub(super) fn size(name: &str, value: &str) -> Outcome<Size> {
    value.parse().map_err(|_| {
        Failure::new(format!("{name}={value} is not a size"))
            .help("write a number of bytes, or for example 64K")
    })
}

pub(super) fn bytes(name: &str, value: &str) -> Outcome<u32> {
    u32::try_from(size(name, value)?.0)
        .map_err(|_| Failure::new(format!("{name}={value} is too large")))
}

pub(super) fn yes_or_no(name: &str, value: &str) -> Outcome<bool> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Failure::new(format!("{name}={value} is neither 0 nor 1"))),
    }
}

pub(super) fn seconds(name: &str, value: &str) -> Outcome<Duration> {
    let seconds = value.parse().ok().filter(|seconds| *seconds < 1 << 32);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| Failure::new(format!("{name}={value} is not a number of seconds")))
}
