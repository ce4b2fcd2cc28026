//! Where to look first for free blocks.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of units, from the first one on, that are searched for free blocks before any others. A hint,
/// known to one process only.
#[derive(Debug)]
pub(super) struct Window(AtomicU32);

impl Window {
    /// Blocks of 128 MiB. Two transactions that allocate a block each meet in one of 256 cases.
    const LEAST: u32 = 256;

    pub(super) fn units(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Widens the window: its first `units` units are nearly full.
    pub(super) fn widen(&self, units: u32) {
        self.0.fetch_max(units.saturating_add(units / 2), Ordering::Relaxed);
    }
}

impl Default for Window {
    fn default() -> Window {
        Window(AtomicU32::new(Window::LEAST))
    }
}
