//! A store's figures.

use super::{Counts, InPlace, Mode};
use crate::latency::{SlowRequest, StageStatus};

/// Status figures of a store.
#[derive(Clone, Debug, serde::Serialize)]
pub struct InPlaceStatus {
    /// Number of blocks.
    pub blocks: u64,
    /// Journaling mode.
    pub mode: Mode,
    /// The newest version.
    pub version: u64,
    /// The newest version that survives a crash.
    pub durable: u64,
    /// Blocks in memory.
    pub cached: u64,
    /// Blocks that are not in place.
    pub dirty: u64,
    /// Bytes of the journal.
    pub journal_size: u64,
    /// Free bytes of the journal.
    pub journal_room: u64,
    /// Why the store refuses writes, if it does.
    pub poisoned: Option<String>,
    /// Whether blocks of which no copy is right were found, and no scrub has found none since.
    pub damaged: bool,
    /// Counters since the store was opened.
    pub counts: Counts,
    /// How long the stages of writes, flushes and writeback took.
    pub stages: Vec<StageStatus>,
    /// The slowest flushes, slowest first, each with the stages of the commit that ended it.
    pub slow_flushes: Vec<SlowRequest>,
}

impl InPlace {
    /// Status figures.
    pub fn status(&self) -> InPlaceStatus {
        let state = self.inner.medium.state.lock();
        InPlaceStatus {
            blocks: self.inner.medium.blocks(),
            poisoned: state.poison.as_ref().map(ToString::to_string),
            damaged: self.inner.medium.damage.is_found(),
            mode: state.options.mode,
            version: state.now.0,
            durable: self.inner.callers.durable(),
            cached: state.pages.len() as u64,
            dirty: state.pages.unclean() as u64,
            journal_size: self.inner.journal.size(),
            journal_room: self.inner.journal.room(),
            counts: state.counts,
            stages: self.inner.stages.status(),
            slow_flushes: self.inner.stages.slow_syncs(),
        }
    }
}
