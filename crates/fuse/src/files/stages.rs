//! How long requests of the kernel take, from the time at which they left its queue.

use std::sync::Arc;
use std::time::Duration;

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

/// The histograms of a mount.
#[derive(Clone, Debug)]
pub(crate) struct Stages {
    env: Env,
    histograms: Arc<StageHistograms>,
}

impl Stages {
    pub(crate) fn new(env: &Env) -> Stages {
        Stages { env: env.clone(), histograms: Arc::new(StageHistograms::new(&NAMES)) }
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
