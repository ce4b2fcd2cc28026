//! Points in an environment's time, and how it relates to tokio's.

use std::fmt;
use std::time::Duration;

/// A point in the environment's time, in nanoseconds since the environment was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub(crate) u64);

impl Time {
    /// The moment at which the environment was made.
    pub const ZERO: Time = Time(0);

    /// The time `nanos` nanoseconds after the environment was made.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the environment was made.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the environment was made.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span from `earlier` to this time, zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}

/// How the environment's time relates to tokio's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// The same.
    Real,
    /// One microsecond here is one millisecond there.
    Simulated,
}

impl Scale {
    pub(crate) fn in_tokio(self, span: Duration) -> Duration {
        match self {
            Scale::Real => span,
            // Rounded up to a whole simulated microsecond: a sleeper never wakes early.
            Scale::Simulated => {
                let micros = span.as_nanos().div_ceil(1_000);
                Duration::from_millis(u64::try_from(micros).unwrap_or(u64::MAX))
            }
        }
    }

    pub(crate) fn of_tokio(self, span: Duration) -> u64 {
        let nanos = match self {
            Scale::Real => span.as_nanos(),
            Scale::Simulated => span.as_nanos() / 1_000,
        };
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_span_is_rounded_up_to_a_microsecond() {
        assert_eq!(Scale::Simulated.in_tokio(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(
            Scale::Simulated.in_tokio(Duration::from_nanos(1_000)),
            Duration::from_millis(1)
        );
        assert_eq!(
            Scale::Simulated.in_tokio(Duration::from_nanos(1_001)),
            Duration::from_millis(2)
        );
        assert_eq!(Scale::Simulated.of_tokio(Duration::from_millis(2)), 2_000);
    }
}
