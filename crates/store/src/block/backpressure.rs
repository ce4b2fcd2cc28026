//! What a store returns for applied writes: their version, and the delay that their writer owes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Hold, Version};

/// Delays writers while a store is behind with its background work.
#[async_trait]
pub trait Throttle: Send + Sync + 'static {
    /// Waits as long as a writer of `blocks` blocks should before it writes more.
    async fn throttle(&self, blocks: usize);
}

/// The delay that a writer owes for one transaction.
///
/// Each writer waits for its own writes, outside of every lock and queue: a wait inside of
/// [`Blocks::submit`](super::Blocks::submit) would delay the writers queued behind it too.
#[must_use = "without `wait` the writer gets ahead of the store's background work"]
pub struct Backpressure(Option<(Arc<dyn Throttle>, usize)>);

impl Backpressure {
    /// Of a store that never delays writers.
    pub const NONE: Backpressure = Backpressure(None);

    /// For `blocks` blocks that were written.
    pub fn new(throttle: Arc<dyn Throttle>, blocks: usize) -> Backpressure {
        Backpressure(Some((throttle, blocks)))
    }

    /// Waits as long as the writer should before it writes more. Not while other writers wait for the caller.
    pub async fn wait(self) {
        if let Some((throttle, blocks)) = self.0 {
            throttle.throttle(blocks).await;
        }
    }
}

impl fmt::Debug for Backpressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.0.as_ref().map(|(_, blocks)| blocks);
        f.debug_tuple("Backpressure").field(&blocks).finish()
    }
}

/// A transaction that was applied. Its version comes with the delay that its writer owes.
#[derive(Debug)]
#[must_use = "the writer owes a delay: see `settle`"]
pub struct Applied {
    version: Version,
    hold: Option<Hold>,
    backpressure: Backpressure,
}

impl Applied {
    /// The transaction became `version`.
    pub fn new(version: Version, hold: Option<Hold>, backpressure: Backpressure) -> Applied {
        Applied { version, hold, backpressure }
    }

    /// Waits for the delay. Returns the version.
    pub async fn settle(self) -> Version {
        self.backpressure.wait().await;
        self.version
    }

    /// The version, its hold, and the delay, for a caller that has to do something else before the wait.
    pub fn into_parts(self) -> (Version, Option<Hold>, Backpressure) {
        (self.version, self.hold, self.backpressure)
    }
}
