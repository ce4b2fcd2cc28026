//! How long each stage of a write, a flush and a checkpoint takes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_env::Time;

use super::Inner;
use crate::latency::{SlowRequest, Slowest, StageHistograms, StageStatus};

/// A stage that takes longer is logged.
const SLOW: Duration = Duration::from_secs(1);
/// Minimum time between two log lines about slow stages.
const QUIET: Duration = Duration::from_secs(10);

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A write waits for room in memory, in the log, or for cleaning.
    WriteWait,
    /// A write takes its place in log and index.
    WriteApply,
    /// A flush, from the call to its end.
    Sync,
    /// A flush waits for the previous round.
    SyncQueue,
    /// A round writes data; a short one writes map entries too.
    RoundData,
    /// A round flushes data; a short one flushes the map too.
    RoundFlush,
    /// A long round writes map entries.
    RoundMap,
    /// A long round flushes them.
    RoundMapFlush,
    /// One request writes blocks to a link.
    DeviceWrite,
    /// The cleaner waits for writers.
    CleanWait,
    /// Blocks of small writes get places of their own.
    Settle,
    /// The index is captured, under the lock.
    Capture,
    /// A checkpoint, from the end of settling to its own end.
    Checkpoint,
}

const NAMES: [&str; 13] = [
    "write_wait",
    "write_apply",
    "flush",
    "flush_queue",
    "round_data",
    "round_flush",
    "round_map",
    "round_map_flush",
    "device_write",
    "cleaning_wait",
    "settle",
    "checkpoint_capture",
    "checkpoint",
];

impl Stage {
    pub(super) fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// The log message when it takes long, if the devices are the cause.
    fn complaint(self) -> Option<&'static str> {
        match self {
            Stage::RoundFlush | Stage::RoundMapFlush => Some("a device takes long to flush"),
            Stage::RoundMap | Stage::DeviceWrite => Some("a device takes long to write"),
            _ => None,
        }
    }
}

/// The reasons for which writers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Devices take what was written.
    Device,
    /// Cleaning frees segments.
    Cleaning,
    /// A checkpoint frees segments, or settles small writes.
    Checkpoint,
    /// The volume is being changed.
    Change,
}

impl Cause {
    const ALL: [Cause; 4] = [Cause::Device, Cause::Cleaning, Cause::Checkpoint, Cause::Change];

    fn name(self) -> &'static str {
        match self {
            Cause::Device => "device",
            Cause::Cleaning => "cleaning",
            Cause::Checkpoint => "checkpoint",
            Cause::Change => "volume change",
        }
    }
}

/// The live numbers behind [`StageStatus`] and [`WaitStatus`].
#[derive(Debug)]
pub(super) struct Stages {
    histograms: StageHistograms,
    slow_syncs: Slowest,
    /// When a slow stage was last logged, in nanoseconds of the environment's clock.
    said: AtomicU64,
    waiting: [AtomicUsize; Cause::ALL.len()],
    waited_nanos: [AtomicU64; Cause::ALL.len()],
}

/// Waiting writers by reason.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct WaitStatus {
    /// The reason.
    pub cause: &'static str,
    /// Writers that wait for it now.
    pub writers: usize,
    /// Total seconds that writers have waited for it.
    pub seconds: f64,
}

impl Default for Stages {
    fn default() -> Stages {
        Stages {
            histograms: StageHistograms::new(&NAMES),
            slow_syncs: Slowest::default(),
            said: AtomicU64::default(),
            waiting: Default::default(),
            waited_nanos: Default::default(),
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

    pub(super) fn waits(&self) -> Vec<WaitStatus> {
        let one = |cause: Cause| WaitStatus {
            cause: cause.name(),
            writers: self.waiting[cause as usize].load(Ordering::Relaxed),
            seconds: self.waited_nanos[cause as usize].load(Ordering::Relaxed) as f64 / 1e9,
        };
        Cause::ALL.into_iter().map(one).collect()
    }
}

/// A writer that waits, until it is dropped.
pub(super) struct Waiting<'a> {
    inner: &'a Inner,
    cause: Cause,
    since: Time,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let span = self.inner.env.now().since(self.since);
        let stages = &self.inner.stages;
        stages.waiting[self.cause as usize].fetch_sub(1, Ordering::Relaxed);
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        stages.waited_nanos[self.cause as usize].fetch_add(nanos, Ordering::Relaxed);
        if span >= SLOW {
            self.inner.say_slow(span, self.cause.name(), "writers waited");
        }
    }
}

impl Inner {
    /// Counts a writer among those that wait for `cause`.
    pub(super) fn waiting_for(&self, cause: Cause) -> Waiting<'_> {
        self.stages.waiting[cause as usize].fetch_add(1, Ordering::Relaxed);
        Waiting { inner: self, cause, since: self.env.now() }
    }

    /// Records the end of a stage that began at `since`; returns the time now.
    pub(super) fn stage(&self, stage: Stage, since: Time) -> Time {
        let now = self.env.now();
        let span = now.since(since);
        self.stages.histograms.add(stage as usize, span);
        if span >= SLOW
            && let Some(complaint) = stage.complaint()
        {
            self.say_slow(span, stage.name(), complaint);
        }
        now
    }

    /// Records the end of a flush, with its stages.
    pub(super) fn synced(&self, since: Time, stages: impl FnOnce() -> Vec<(&'static str, u64)>) {
        let now = self.stage(Stage::Sync, since);
        self.stages.slow_syncs.add(now.as_secs_f64(), now.since(since), stages);
    }

    fn say_slow(&self, span: Duration, stage: &str, what: &str) {
        let now = self.env.now().as_nanos();
        let said = self.stages.said.load(Ordering::Relaxed);
        let is_due = said == 0 || now.saturating_sub(said) >= QUIET.as_nanos() as u64;
        let exchanged = |at| {
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            self.stages.said.compare_exchange(at, now.max(1), success, failure).is_ok()
        };
        if is_due && exchanged(said) {
            let millis = span.as_millis() as u64;
            tracing::warn!(volume = %self.volume, stage, millis, "{what}");
        }
    }
}
