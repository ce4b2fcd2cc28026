//! Holds that end when writers need the room that they take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::{Chain, Inner, Label};
use crate::block::{Hold, Version, Versions};

/// Why writers are refused, or room is asked for them.
#[derive(Debug, Default)]
pub(super) struct WriterGate {
    /// The term that has fenced the volume; 0 for none.
    pub(super) fenced: AtomicU32,
    /// Holds that end when writers need their room.
    yielding: AtomicUsize,
    /// How often they were asked to end.
    requests: AtomicU64,
    asked: Notify,
}

impl WriterGate {
    pub(super) fn new(label: &Label) -> WriterGate {
        let fenced = label.fence.map_or(0, |fence| fence.term).into();
        WriterGate { fenced, ..WriterGate::default() }
    }
}

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
            let asked = self.chain.gate.asked.notified();
            if self.chain.gate.requests.load(Ordering::Acquire) != self.requests {
                return;
            }
            asked.await;
        }
    }
}

impl Drop for YieldingHold {
    fn drop(&mut self) {
        self.hold = None;
        self.chain.gate.yielding.fetch_sub(1, Ordering::AcqRel);
        self.chain.room.notify_waiters();
    }
}

impl Chain {
    /// As [`Versions::hold`], for a reader that can begin again.
    pub fn hold_yielding(&self, version: Version) -> Option<YieldingHold> {
        let hold = Some(self.hold(version)?);
        let chain = self.inner.clone();
        let requests = chain.gate.requests.load(Ordering::Acquire);
        chain.gate.yielding.fetch_add(1, Ordering::AcqRel);
        Some(YieldingHold { chain, hold, version, requests })
    }
}

impl Inner {
    /// Asks the owners of yielding holds to end them; false if there are none.
    pub(super) fn ask_holds(&self) -> bool {
        let there_are = self.gate.yielding.load(Ordering::Acquire) > 0;
        if there_are {
            self.gate.requests.fetch_add(1, Ordering::AcqRel);
            self.gate.asked.notify_waiters();
        }
        there_are
    }
}
