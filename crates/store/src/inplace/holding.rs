//! Versions that readers hold.

use std::sync::Arc;

use super::Inner;
use super::state::StoreState;
use crate::block::{Hold, Holds, Version};

impl Inner {
    /// Holds a version that is held already, or the newest.
    pub(super) fn hold(self: &Arc<Inner>, state: &mut StoreState, version: Version) -> Hold {
        state.pages.holds.take(version);
        self.release_by(version, Holds::release)
    }

    /// Holds a version and all that are newer.
    pub(super) fn hold_since(self: &Arc<Inner>, state: &mut StoreState, version: Version) -> Hold {
        state.pages.holds.take_since(version);
        self.release_by(version, Holds::release_since)
    }

    /// The guard of a hold that `release` ends.
    fn release_by(
        self: &Arc<Inner>,
        version: Version,
        release: fn(&mut Holds, Version) -> bool,
    ) -> Hold {
        let inner = Arc::downgrade(self);
        Hold::new(version, move |version| {
            let Some(inner) = inner.upgrade() else { return };
            let mut state = inner.medium.state.lock();
            let pages = &mut state.pages;
            let released = release(&mut pages.holds, version);
            if released && (pages.wants_purge() || pages.holds.oldest().is_none()) {
                pages.purge();
            }
        })
    }
}
