//! Whether a store has lost blocks, also for later openings.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether reads or a scrub have found blocks of which no copy is right, since the last scrub that found none. The store records
/// it on its device, so that an administrator hears of it whichever process has the volume open.
#[derive(Debug, Default)]
pub(crate) struct DamageNote {
    found: AtomicBool,
    recorded: AtomicBool,
}

impl DamageNote {
    /// The note that a device has.
    pub(crate) fn new(recorded: bool) -> DamageNote {
        DamageNote { found: recorded.into(), recorded: recorded.into() }
    }

    /// Notes damage; returns whether the device does not say so yet.
    pub(crate) fn note(&self) -> bool {
        self.found.store(true, Ordering::Relaxed);
        !self.recorded.load(Ordering::Relaxed)
    }

    /// What a scrub of everything has found takes the place of what was known.
    pub(crate) fn scrubbed(&self, is_damaged: bool) {
        self.found.store(is_damaged, Ordering::Relaxed);
    }

    /// Whether there is damage.
    pub(crate) fn is_found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }

    /// What the device is to say, if it says something else.
    pub(crate) fn to_record(&self) -> Option<bool> {
        let found = self.is_found();
        (self.recorded.load(Ordering::Relaxed) != found).then_some(found)
    }

    /// The device says so now.
    pub(crate) fn recorded(&self, found: bool) {
        self.recorded.store(found, Ordering::Relaxed);
    }
}
