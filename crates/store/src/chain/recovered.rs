//! The counts that an opening reports.

use super::log::LogCounts;

/// Counts of an opening.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Recovered {
    /// Bytes of the checkpoint: a base and its deltas.
    pub checkpoint_bytes: u64,
    /// Bytes of map read after it.
    pub map_bytes: u64,
    /// Bytes of blocks read to verify by checksum that they were written.
    pub checked_bytes: u64,
    /// Entries of the logs after the checkpoint.
    pub replayed: u64,
    /// Entries beyond the end of the logs.
    pub dropped: u64,
    /// The version that was recovered.
    pub version: u64,
    /// The epoch that began.
    pub epoch: u64,
    /// Mini-log blocks read.
    pub minis: u64,
    /// Blocks that got a place of their own because of them.
    pub slots: u64,
}

impl Recovered {
    /// Adds the counts of one log.
    pub(super) fn add(&mut self, log: &LogCounts) {
        self.map_bytes += log.map_bytes;
        self.checked_bytes += log.checked_bytes;
        self.replayed += log.replayed;
        self.dropped += log.dropped;
    }
}
