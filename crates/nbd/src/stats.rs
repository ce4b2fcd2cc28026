//! Counters of a server, readable at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_store::latency::{Histogram, StageStatus};

use crate::protocol::Command;

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
    /// Time from a request's arrival to its reply.
    pub latency: Histogram,
}

impl CommandStats {
    pub(crate) fn record(&self, bytes: u64, failed: bool, latency: Duration) {
        self.requests.add(1);
        if failed {
            self.errors.add(1);
        } else {
            self.bytes.add(bytes);
        }
        self.latency.add(latency);
    }
}

/// The names of the commands as stages, in the order of [`Command::index`].
const STAGES: [&str; Command::COUNT] = [
    "nbd_read",
    "nbd_write",
    "nbd_disconnect",
    "nbd_flush",
    "nbd_trim",
    "nbd_cache",
    "nbd_write_zeroes",
    "nbd_block_status",
    "nbd_unknown",
];

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
    /// Time from the oldest unsent reply until the client has accepted all replies.
    pub send: Histogram,
}

impl ServerStats {
    /// The counters of one command.
    pub fn command(&self, command: Command) -> &CommandStats {
        &self.commands[command.index()]
    }

    /// Histograms of the commands that clients have sent, and of [`ServerStats::send`], as stages.
    pub fn stages(&self) -> Vec<StageStatus> {
        let commands = STAGES.into_iter().zip(self.commands.iter().map(|stats| &stats.latency));
        let stages = commands.chain([("nbd_send", &self.send)]).map(|(stage, histogram)| {
            let (latency, cumulative) = (histogram.latency(), histogram.cumulative());
            StageStatus { stage, latency, cumulative }
        });
        stages.filter(|stage| stage.latency.count > 0).collect()
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
    fn a_stage_is_named_after_its_command() {
        let named = STAGES.map(|stage| stage.trim_start_matches("nbd_"));
        assert_eq!(named, Command::NAMES);
    }

    #[test]
    fn commands_that_were_sent_are_stages() {
        let stats = ServerStats::default();
        stats.command(Command::Trim).record(10, false, Duration::from_micros(3));
        stats.send.add(Duration::from_micros(5));
        let stages: Vec<_> =
            stats.stages().iter().map(|it| (it.stage, it.latency.max_us)).collect();
        assert_eq!(stages, [("nbd_trim", 3), ("nbd_send", 5)]);
    }
}
