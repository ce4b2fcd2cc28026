//! How long each stage of a write, a flush and the writeback takes.

use std::time::Duration;

use thalweg_env::Time;

use super::Inner;
use crate::latency::{SlowRequest, Slowest, StageHistograms, StageStatus};

/// A device operation that takes longer is logged.
const SLOW: Duration = Duration::from_secs(1);

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A write waits for memory or for room in the journal.
    WriteWait,
    /// A writer is slowed down while room is made in the journal.
    Backpressure,
    /// A flush, from the call to its end.
    Sync,
    /// A commit waits for callers that are likely to share it.
    Gather,
    /// A commit writes data in place, and flushes it where the mode asks for that.
    Direct,
    /// A commit waits for room in the journal.
    MakeRoom,
    /// A commit writes its record, and flushes it.
    Journal,
    /// Blocks are written back, and the map's sectors about them.
    WriteBack,
    /// What was written back is flushed.
    WriteBackFlush,
}

const NAMES: [&str; 9] = [
    "write_wait",
    "backpressure",
    "flush",
    "commit_gather",
    "commit_in_place",
    "commit_wait_for_room",
    "commit_journal",
    "writeback",
    "writeback_flush",
];

/// The stages of one commit, in microseconds.
type CommitTimes = Vec<(&'static str, u64)>;

/// Histograms behind the status.
#[derive(Debug)]
pub(super) struct Stages {
    histograms: StageHistograms,
    slow_syncs: Slowest,
    /// Stages of the last commit.
    commit: parking_lot::Mutex<CommitTimes>,
}

impl Default for Stages {
    fn default() -> Stages {
        Stages {
            histograms: StageHistograms::new(&NAMES),
            slow_syncs: Slowest::default(),
            commit: parking_lot::Mutex::default(),
        }
    }
}

impl Stages {
    pub(super) fn status(&self) -> Vec<StageStatus> {
        self.histograms.status()
    }

    pub(super) fn slow_syncs(&self) -> Vec<SlowRequest> {
        self.slow_syncs.list()
    }
}

impl Inner {
    /// Ends a stage that began at `since`; returns the time now.
    pub(super) fn stage(&self, stage: Stage, since: Time) -> Time {
        let now = self.env.now();
        let span = now.since(since);
        self.stages.histograms.add(stage as usize, span);
        if span >= SLOW && matches!(stage, Stage::Journal | Stage::WriteBackFlush) {
            let (millis, stage) = (span.as_millis() as u64, NAMES[stage as usize]);
            tracing::warn!(device = self.medium.data.name(), stage, millis, "a device takes long");
        }
        now
    }

    /// [`Inner::stage`] for a stage of a commit.
    pub(super) fn commit_stage(&self, stage: Stage, since: Time) -> Time {
        let now = self.stage(stage, since);
        let mut commit = self.stages.commit.lock();
        if stage == Stage::Gather {
            commit.clear();
        }
        commit.push((NAMES[stage as usize], now.since(since).as_micros() as u64));
        now
    }

    /// Ends a flush that began at `since`.
    pub(super) fn synced(&self, since: Time) {
        let now = self.stage(Stage::Sync, since);
        let stages = || self.stages.commit.lock().clone();
        self.stages.slow_syncs.add(now.as_secs_f64(), now.since(since), stages);
    }
}
