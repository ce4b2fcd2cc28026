//! What a label keeps of roll-backs, recoveries and changes of the size.

use super::super::format::{CutRecord, ShrinkRecord, VoidRecord};
use crate::block::Version;

/// The last time that a volume with followers became smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shrink {
    /// The last version in which blocks were discarded for that.
    pub version: Version,
    /// The number of these versions. They change nothing else.
    pub versions: u64,
    /// The fewest blocks that the volume ever had.
    pub blocks: u64,
}

/// Void versions: above `from` and up to `to`, of blocks from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Void {
    /// The version that was restored; 0 when the volume became smaller.
    pub from: Version,
    /// The newest version when that happened.
    pub to: Version,
    /// The next segment sequence then: no later segment holds an entry of these versions.
    pub seq: u64,
    /// The first logical block concerned: 0 for a roll-back.
    pub first: u64,
}

impl Void {
    pub(super) fn encode(&self) -> VoidRecord {
        VoidRecord {
            from: self.from.0.into(),
            to: self.to.0.into(),
            seq: self.seq.into(),
            first: self.first.into(),
        }
    }

    pub(super) fn decode(record: &VoidRecord) -> Void {
        Void {
            from: Version(record.from.get()),
            to: Version(record.to.get()),
            seq: record.seq.get(),
            first: record.first.get(),
        }
    }

    /// Whether it records a roll-back.
    pub(in super::super) fn is_rollback(&self) -> bool {
        self.first == 0
    }
}

/// The end of the logs at a recovery: see [`CutRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Sequences of the segments in which the users' log and that of compaction ended.
    pub ends: [u64; 2],
    /// The lowest sequence of a segment opened since; 0 when nothing was left behind.
    pub first: u64,
    /// The version that was recovered.
    pub version: Version,
}

impl Cut {
    pub(super) fn encode(&self) -> CutRecord {
        let [users, body] = self.ends.map(Into::into);
        CutRecord { users, body, first: self.first.into(), version: self.version.0.into() }
    }

    pub(super) fn decode(record: &CutRecord) -> Cut {
        Cut {
            ends: [record.users.get(), record.body.get()],
            first: record.first.get(),
            version: Version(record.version.get()),
        }
    }
}

impl Shrink {
    pub(super) fn encode(&self) -> ShrinkRecord {
        ShrinkRecord {
            version: self.version.0.into(),
            versions: self.versions.into(),
            blocks: self.blocks.into(),
        }
    }

    pub(super) fn decode(record: &ShrinkRecord) -> Shrink {
        Shrink {
            version: Version(record.version.get()),
            versions: record.versions.get(),
            blocks: record.blocks.get(),
        }
    }
}
