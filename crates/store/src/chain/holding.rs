//! Versions that readers hold, and what becomes of them afterwards.

use super::State;
use crate::block::Version;

/// Blocks with several versions that are examined when a hold ends.
const AGE_AT_ONCE: usize = 64;

impl State {
    /// Whether a reader may still ask for `version`.
    pub(super) fn can_hold(&self, version: Version) -> bool {
        version == self.version || (version < self.version && self.holds.contains(version))
    }

    /// Whether a reader may ask for `version` and all that are newer.
    pub(super) fn can_hold_since(&self, version: Version) -> bool {
        let is_kept = |floor| (floor..self.version).contains(&version);
        version == self.version || self.holds.floor().is_some_and(is_kept)
    }

    /// Ends a short hold. The versions that it kept are dropped little by little: some now, the rest when
    /// their blocks are written, when the cleaner comes by, and when as many holds have ended as there are
    /// blocks to examine, so that no release costs more than a few blocks. Returns whether the cleaner should
    /// come by.
    pub(super) fn release(&mut self, version: Version) -> bool {
        let was_oldest = self.holds.oldest() == Some(version);
        if !self.holds.release(version) {
            return false;
        }
        let more = match was_oldest {
            true => self.index.age(&self.holds, AGE_AT_ONCE),
            false => {
                self.ended_within += 1;
                false
            }
        };
        if self.ended_within > self.index.tabled().max(AGE_AT_ONCE) {
            self.settle_holds();
        }
        self.reap();
        more
    }

    /// Ends a hold on `version` and all that are newer. The versions that it kept are dropped little by little, as in
    /// [`State::release`]. Returns whether the cleaner should come by.
    pub(super) fn release_since(&mut self, version: Version) -> bool {
        if !self.holds.release_since(version) {
            return false;
        }
        let more = self.index.lapse(&self.holds, AGE_AT_ONCE);
        let older = self.index.age(&self.holds, AGE_AT_ONCE);
        self.reap();
        more || older
    }

    /// Drops all content that has left the range of held versions.
    pub(super) fn lapse_all(&mut self) {
        while self.index.lapse(&self.holds, AGE_AT_ONCE) {}
    }

    /// Drops every version that no hold needs.
    pub(super) fn settle_holds(&mut self) {
        self.ended_within = 0;
        self.index.settle_all(&self.holds);
    }

    /// Drops versions of at most `most` blocks that no hold needs.
    pub(super) fn settle_some(&mut self, most: usize) {
        self.index.age(&self.holds, most);
        self.index.lapse(&self.holds, most);
    }

    /// Blocks that can become live. `None` without snapshots: then all logical blocks can, since writers get the room of
    /// other old versions before they fail.
    pub(super) fn room_beside_snapshots(&self) -> Option<u64> {
        let capacity = self.capacity();
        if self.label.snapshots.is_empty() && capacity >= self.index.blocks() {
            return None;
        }
        Some(capacity.saturating_sub(self.segments.live() + self.slots.len() as u64))
    }
}
