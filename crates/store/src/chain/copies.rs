//! Copies of what changed at a primary, and the states of it that a follower has before, and afterwards.
//!
//! While a copy is under way, blocks are of several versions. Versions of that time are no states of the primary, and
//! stay none when the copy has ended, as long as they can be read.

use std::sync::Arc;

use parking_lot::Mutex;

use super::followed::BEFORE_COPY;
use super::{Chain, ChainError, Rescue};
use crate::block::Version;

/// What a follower knows of its primary while it is open.
#[derive(Debug)]
pub(super) struct OfPrimary {
    /// Where contents of damaged blocks are asked for.
    pub(super) rescue: Mutex<Option<Arc<dyn Rescue>>>,
    /// The version from which on the follower had states of it before the newest copy began.
    whole_before_from: Mutex<Version>,
}

impl Default for OfPrimary {
    fn default() -> OfPrimary {
        OfPrimary { rescue: Mutex::default(), whole_before_from: Mutex::new(Version(u64::MAX)) }
    }
}

/// Versions that follow each other, from `low` to `up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    low: Version,
    pub(super) up: Version,
}

/// The versions of a follower that are states of its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeStates {
    /// The first of those after all copies that have ended.
    from: Version,
    /// Those from before the copy that is under way.
    pub(super) before: Option<Run>,
}

impl WholeStates {
    pub(super) fn contains(&self, version: Version) -> bool {
        let is_before = |before: Run| (before.low..=before.up).contains(&version);
        version >= self.from || self.before.is_some_and(is_before)
    }

    /// Limits the versions in which a block has a content, from `oldest` to `newest`, to those that are certain: the next
    /// content, which a copy brought, has a later version here than at the primary. False when none is.
    pub(super) fn limit(&self, oldest: Version, newest: &mut Version) -> bool {
        if self.contains(*newest) {
            return true;
        }
        let up = self.before.map(|before| before.up).filter(|up| (oldest..*newest).contains(up));
        *newest = up.unwrap_or(*newest);
        up.is_some()
    }
}

impl Chain {
    /// Of a follower: the version from which on it has a state of the volume that it follows.
    pub fn whole_from(&self) -> Version {
        self.inner.state.lock().label.whole_from
    }

    /// Notes durably that a follower has a state of the other volume only from `version` on.
    ///
    /// # Errors
    /// Device errors.
    pub async fn set_whole_from(&self, version: Version) -> Result<(), ChainError> {
        let _label = self.inner.label_lock.lock().await;
        {
            let state = self.inner.state.lock();
            if state.version >= state.label.whole_from {
                *self.inner.of_primary.whole_before_from.lock() = state.label.whole_from;
            }
        }
        self.inner.change_label(|label| label.whole_from = version).await
    }

    /// The versions of a follower that are states of its primary.
    pub(super) fn whole_states(&self) -> WholeStates {
        let state = self.inner.state.lock();
        let from = state.label.whole_from;
        // It is made before the copy begins.
        let before = state.label.snapshot(BEFORE_COPY).filter(|it| it.version < from);
        let before = before.map(|snapshot| {
            // Of the versions from before this process, the snapshot alone can be read.
            let low = (*self.inner.of_primary.whole_before_from.lock()).min(snapshot.version);
            Run { low, up: snapshot.version }
        });
        WholeStates { from, before }
    }
}
