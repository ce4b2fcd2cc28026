//! How long requests of the kernel take, from the time at which they left its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::Errno;
use thalweg_env::{Env, Time};
use thalweg_store::latency::{StageHistograms, StageStatus};

/// A timed stage: a wait, or the whole of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A request that could not be answered at once waits for a thread of the runtime.
    Queue,
    Read,
    Write,
    Fsync,
    /// Any other request.
    Other,
}

const NAMES: [&str; 5] = ["fuse_queue", "fuse_read", "fuse_write", "fuse_fsync", "fuse_other"];

impl Stage {
    /// The stage that a whole request of this name is.
    pub(crate) fn of(operation: &str) -> Stage {
        match operation {
            "read" => Stage::Read,
            "write" => Stage::Write,
            "fsync" => Stage::Fsync,
            _ => Stage::Other,
        }
    }
}

/// The histograms of a mount, and the requests that failed because of it.
#[derive(Clone, Debug)]
pub(crate) struct Stages {
    env: Env,
    histograms: Arc<StageHistograms>,
    failures: Failures,
}

/// A count of requests that were answered with an error that is no answer to the caller: data cannot be read or written, or
/// structures are damaged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<AtomicU64>);

impl Failures {
    /// The same errno, counted if it is such an error.
    pub(crate) fn counted(&self, errno: Errno) -> Errno {
        if matches!(errno.code(), libc::EIO | libc::EUCLEAN) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        errno
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stages {
    pub(crate) fn new(env: &Env) -> Stages {
        let histograms = Arc::new(StageHistograms::new(&NAMES));
        Stages { env: env.clone(), histograms, failures: Failures::default() }
    }

    pub(crate) fn failures(&self) -> Failures {
        self.failures.clone()
    }

    pub(crate) fn now(&self) -> Time {
        self.env.now()
    }

    /// Notes that a stage which began at `since` is over.
    pub(crate) fn end(&self, stage: Stage, since: Time) {
        self.add(stage, self.now().since(since));
    }

    fn add(&self, stage: Stage, span: Duration) {
        self.histograms.add(stage as usize, span);
    }

    /// Every stage in numbers.
    pub(crate) fn status(&self) -> Vec<StageStatus> {
        self.histograms.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_request_has_a_histogram_of_its_own() {
        let stages = Stages::new(&Env::real());
        for operation in ["read", "write", "fsync", "lookup", "readdir"] {
            stages.add(Stage::of(operation), Duration::from_micros(5));
        }
        stages.add(Stage::Queue, Duration::from_micros(7));
        let counts: Vec<_> =
            stages.status().iter().map(|it| (it.stage, it.latency.count)).collect();
        let wanted = [1, 1, 1, 1, 2];
        assert_eq!(counts, NAMES.into_iter().zip(wanted).collect::<Vec<_>>());
    }
}
