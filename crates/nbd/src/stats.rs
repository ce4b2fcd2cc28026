//! Counters of a server, readable at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_store::latency::{StageHistograms, StageStatus};

use crate::protocol::Command;

/// Latency is counted in this many buckets: bucket `i` holds requests of at most 2^i µs that no
/// lower bucket holds, and the last one holds the rest.
pub const LATENCY_BUCKETS: usize = 28;

/// A counter that threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one command.
#[derive(Debug, Default)]
pub struct CommandStats {
    /// Requests answered, failed ones included.
    pub requests: Counter,
    /// Requests answered with an error.
    pub errors: Counter,
    /// Bytes that the requests without an error covered.
    pub bytes: Counter,
    /// Sum of latencies in nanoseconds.
    pub latency_nanos: Counter,
    latency: [Counter; LATENCY_BUCKETS],
}

impl CommandStats {
    pub(crate) fn record(&self, bytes: u64, failed: bool, latency: Duration) {
        self.requests.add(1);
        if failed {
            self.errors.add(1);
        } else {
            self.bytes.add(bytes);
        }
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_nanos.add(nanos);
        self.latency[bucket(nanos)].add(1);
    }

    /// The latency histogram: (upper bound in microseconds, requests in this bucket alone). The
    /// last bucket has no bound and says `u64::MAX`.
    pub fn latency(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.latency.iter().enumerate().map(|(index, counter)| {
            let last = index == LATENCY_BUCKETS - 1;
            (if last { u64::MAX } else { 1 << index }, counter.get())
        })
    }
}

fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1_000).max(1);
    (micros.next_power_of_two().trailing_zeros() as usize).min(LATENCY_BUCKETS - 1)
}

/// Stages with a histogram: whole requests by kind, and the sending of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Read,
    Write,
    Flush,
    /// Any other request.
    Other,
    /// From the oldest unsent reply until the client has accepted all replies.
    Send,
}

const STAGES: [&str; 5] = ["nbd_read", "nbd_write", "nbd_flush", "nbd_other", "nbd_send"];

impl Stage {
    /// The stage of a whole request.
    pub(crate) fn of(command: Command) -> Stage {
        match command {
            Command::Read => Stage::Read,
            Command::Write => Stage::Write,
            Command::Flush => Stage::Flush,
            _ => Stage::Other,
        }
    }
}

#[derive(Debug)]
struct Stages(StageHistograms);

impl Default for Stages {
    fn default() -> Stages {
        Stages(StageHistograms::new(&STAGES))
    }
}

/// Counters of a server.
#[derive(Debug, Default)]
pub struct ServerStats {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections open now.
    pub connections_open: Counter,
    /// Connections closed at once because too many were open.
    pub connections_refused: Counter,
    /// Connections that failed in the handshake.
    pub handshakes_failed: Counter,
    /// Connections that ended because the client violated the protocol.
    pub protocol_errors: Counter,
    commands: [CommandStats; Command::COUNT],
    stages: Stages,
}

impl ServerStats {
    /// The counters of one command.
    pub fn command(&self, command: Command) -> &CommandStats {
        &self.commands[command.index()]
    }

    /// Records the duration of a stage.
    pub(crate) fn stage(&self, stage: Stage, span: Duration) {
        self.stages.0.add(stage as usize, span);
    }

    /// Histograms of the time from a request's arrival to its reply, by kind, and of the time until clients
    /// accepted the replies.
    pub fn stages(&self) -> Vec<StageStatus> {
        self.stages.0.status()
    }

    /// The counters of all commands with their names in metrics.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, &CommandStats)> {
        Command::NAMES.into_iter().zip(&self.commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_lowest_bucket_that_holds_it() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(1_000), 0);
        assert_eq!(bucket(1_001), 1);
        assert_eq!(bucket(4_000), 2);
        assert_eq!(bucket(4_001), 3);
        assert_eq!(bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }
}
