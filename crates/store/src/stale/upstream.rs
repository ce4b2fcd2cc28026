//! What a store that follows another one knows of that one.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Time;

use crate::block::{Ages, Version};

/// Tells a time at which the store that is followed had no version that the follower does not have now.
pub type CurrentAsOf = Box<dyn Fn() -> Option<Time> + Send + Sync>;

/// The store that another one follows, as the follower's readers know it.
#[derive(Default)]
pub struct Upstream {
    current_as_of: Mutex<Option<CurrentAsOf>>,
    ages: Mutex<Ages>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").finish_non_exhaustive()
    }
}

impl Upstream {
    /// Begins to ask `current_as_of`. Before, the age of no version is known.
    pub fn set(&self, current_as_of: CurrentAsOf) {
        *self.current_as_of.lock() = Some(current_as_of);
    }

    /// Notes what is known now; `newest` tells the follower's newest version.
    fn note(&self, newest: impl FnOnce() -> Version) {
        let known = self.current_as_of.lock().as_ref().and_then(|current_as_of| current_as_of());
        if let Some(time) = known {
            // Asked for after the time: it has all that it had then.
            self.ages.lock().note(time, newest());
        }
    }

    /// See [`Ages::young_enough`].
    pub(super) fn young_enough(
        &self,
        now: Time,
        age: Duration,
        newest: impl FnOnce() -> Version,
    ) -> Option<Version> {
        self.note(newest);
        self.ages.lock().young_enough(now, age)
    }

    /// See [`Ages::age`].
    pub(super) fn age(
        &self,
        now: Time,
        version: Version,
        newest: impl FnOnce() -> Version,
    ) -> Option<Duration> {
        self.note(newest);
        self.ages.lock().age(now, version)
    }
}
