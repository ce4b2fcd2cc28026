//! Segments with blocks of which no copy is right. Cleaning leaves them alone until they are repaired.

use super::super::index::is_slot;
use super::super::segments::SegmentState;
use super::super::{Counts, Inner};

/// Marks a segment that kept live blocks: no copy of them can be read, or the map does not name them.
pub(super) fn settle_rest(inner: &Inner, victim: u32) {
    let mut state = inner.state.lock();
    let damaged = state.segments.get(victim).state == SegmentState::Used;
    if damaged {
        state.segments.set_damaged(victim);
    }
    tracing::error!(
        volume = %inner.volume,
        segment = victim,
        "a segment holds blocks of which no copy is readable; it is not cleaned; run a scrub"
    );
}

impl Inner {
    /// Counts copies of a block that were overwritten with the right bytes.
    pub(in super::super) fn note_repaired(&self, block: u32, copies: u64) {
        Counts::add(&self.counts.repaired, copies);
        if copies > 0 && !is_slot(block) {
            let mut state = self.state.lock();
            let segment = state.segments.of(block);
            state.segments.set_repaired(segment);
        }
    }

    /// Lets the segments be cleaned that could not be: a scrub repaired what it could.
    pub(in super::super) fn clean_repaired(&self) {
        let mut state = self.state.lock();
        (0..state.segments.len()).for_each(|id| state.segments.set_repaired(id));
        drop(state);
        self.clean_kick.notify_one();
        self.room.notify_waiters();
    }
}
