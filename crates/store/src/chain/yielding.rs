//! Holds that end when writers need the room that they take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Chain, Inner};
use crate::block::{BlockStore, Hold, Version};

/// Keeps a version readable until it is dropped. Its owner drops it when it is asked to: meanwhile writers wait that would
/// else fail for lack of room.
pub struct YieldingHold {
    chain: Arc<Inner>,
    hold: Option<Hold>,
    version: Version,
    /// Requests before this hold began.
    requests: u64,
}

impl fmt::Debug for YieldingHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("YieldingHold").field(&self.version).finish()
    }
}

impl YieldingHold {
    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Ends when a writer needs the room.
    pub async fn asked(&self) {
        loop {
            let asked = self.chain.yields.notified();
            if self.chain.yield_requests.load(Ordering::Acquire) != self.requests {
                return;
            }
            asked.await;
        }
    }
}

impl Drop for YieldingHold {
    fn drop(&mut self) {
        self.hold = None;
        self.chain.yielding.fetch_sub(1, Ordering::AcqRel);
        self.chain.room.notify_waiters();
    }
}

impl Chain {
    /// As [`BlockStore::hold`], for a reader that can begin again.
    pub fn hold_yielding(&self, version: Version) -> Option<YieldingHold> {
        let hold = Some(self.hold(version)?);
        let chain = self.inner.clone();
        let requests = chain.yield_requests.load(Ordering::Acquire);
        chain.yielding.fetch_add(1, Ordering::AcqRel);
        Some(YieldingHold { chain, hold, version, requests })
    }
}

impl Inner {
    /// Asks the owners of yielding holds to end them; false if there are none.
    pub(super) fn ask_holds(&self) -> bool {
        let there_are = self.yielding.load(Ordering::Acquire) > 0;
        if there_are {
            self.yield_requests.fetch_add(1, Ordering::AcqRel);
            self.yields.notify_waiters();
        }
        there_are
    }
}
