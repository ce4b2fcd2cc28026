//! What of a client's changes is not durable at the server yet.

use std::time::Duration;

use serde::Serialize;
use thalweg_fs::Timestamp;
use thalweg_store::device::SideState;
use thalweg_store::pool::{DevicePair, SideReport};
use uuid::Uuid;

use super::copies::CopyReport;

/// Changes that this client has made by itself, and bytes of files among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Changes.
    pub changes: u64,
    /// Bytes of files that they write.
    pub bytes: u64,
}

/// How much of a journal is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct JournalUse {
    /// Bytes that its records can take.
    pub size: u64,
    /// Bytes that they take. One record stays while the journal is mounted.
    pub used: u64,
    /// Records that are not released: the server has not made everything in them durable, as far as this client knows.
    pub records: u64,
}

/// What of a client's changes is not durable at the server yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingReport {
    /// What the server does not have.
    #[serde(flatten)]
    pub unsent: Changes,
    /// Files and directories that these change.
    pub files: u64,
    /// Milliseconds since the oldest of these was made.
    pub oldest_ms: Option<u64>,
    /// Bytes of memory that they take.
    pub memory: u64,
    /// Those of them that are in the journal.
    pub in_journal: Changes,
    /// Calls that the server has answered, and that a crash of it would undo until it has synced; they would be made again.
    pub undurable: u64,
    /// Why the server does not take the oldest change, if it has refused that: it waits in the journal, with all behind it.
    pub refused: Option<String>,
    /// The journal, if the client has one that is used.
    pub journal: Option<MountedJournal>,
    /// The client has none any more, because it has failed: a sync waits for the server.
    pub journal_failed: bool,
}

/// A journal in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountedJournal {
    /// The session at the server that makes it.
    pub session: Uuid,
    /// Which mount of its session this is, as the server counts them.
    pub incarnation: Option<u64>,
    /// Its bytes, and those that are used.
    #[serde(flatten)]
    pub room: JournalUse,
    /// Its copies at keepers. Unless all are current, a sync waits for the server.
    pub copies: Vec<CopyReport>,
    /// The devices of a mirror; none of a journal on one device.
    pub sides: Vec<JournalSide>,
}

/// A device of a journal on two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JournalSide {
    /// The device.
    pub device: String,
    /// Whether it has everything.
    pub is_current: bool,
    /// Its state, in a few words.
    pub state: String,
}

impl JournalSide {
    pub(super) fn all(pair: &DevicePair) -> Vec<JournalSide> {
        let side = |SideReport { device, state }| JournalSide {
            device,
            is_current: state == SideState::InSync,
            state: match state {
                SideState::Rebuilding { done, total } => {
                    format!("{state}, {} %", done * 100 / total.max(1))
                }
                _ => state.to_string(),
            },
        };
        pair.sides().into_iter().map(side).collect()
    }
}

impl PendingReport {
    /// Whether everything is durable at the server.
    pub fn is_empty(&self) -> bool {
        self.unsent.changes == 0 && self.undurable == 0
    }
}

/// The time between two moments; none if the clock was set back between them.
pub(super) fn age(then: Timestamp, now: Timestamp) -> Duration {
    let nanos = |it: Timestamp| i128::from(it.seconds) * 1_000_000_000 + i128::from(it.nanos);
    let between = (nanos(now) - nanos(then)).clamp(0, i128::from(u64::MAX));
    Duration::from_nanos(between as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_as_old_as_the_clock_says() {
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        assert_eq!(age(at(5, 999_999_999), at(7, 1)), Duration::from_nanos(1_000_000_002));
        assert_eq!(age(at(7, 0), at(5, 0)), Duration::ZERO);
        assert_eq!(age(at(i64::MIN, 0), at(i64::MAX, 0)), Duration::from_nanos(u64::MAX));
    }
}
