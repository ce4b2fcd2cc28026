//! Named parts of a volume, and the runs of blocks that they consist of.

use std::ops::Range;

use uuid::Uuid;

use super::format::{Kind, State};

/// A named part of a volume.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The first block of its first run.
    pub first: u64,
    /// The blocks of its first run.
    pub blocks: u64,
    /// The runs added by growth.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<Run>,
    /// Its identity, new for each partition that is created.
    pub uuid: Uuid,
    /// Whether it may be used.
    pub state: State,
}

/// A run of adjacent blocks of a volume.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Run {
    /// The first block.
    pub first: u64,
    /// Blocks.
    pub blocks: u64,
    /// [`State::Unfinished`]: reserved for a partition that does not use it yet.
    pub state: State,
}

impl Run {
    /// The block after its last one.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.blocks)
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.first..self.end()
    }
}

impl Partition {
    /// Its runs, reserved ones included.
    pub fn all_runs(&self) -> impl Iterator<Item = Run> {
        let first = Run { first: self.first, blocks: self.blocks, state: self.state };
        std::iter::once(first).chain(self.further.iter().cloned())
    }

    /// Its runs but the first.
    pub fn further_runs(&self) -> impl Iterator<Item = &Run> {
        self.further.iter().filter(|run| run.state == State::Ready)
    }

    /// The ranges of volume blocks that it covers, run after run.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let first = self.first..self.first.saturating_add(self.blocks);
        std::iter::once(first).chain(self.further_runs().map(Run::range))
    }

    /// Its blocks, in all runs.
    pub fn size(&self) -> u64 {
        self.blocks + self.further_runs().map(|run| run.blocks).sum::<u64>()
    }

    /// The end of its last run, reserved ones included.
    pub fn end(&self) -> u64 {
        self.all_runs().map(|run| run.end()).max().unwrap_or_default()
    }
}

/// A partition to be created.
#[derive(Clone, Debug)]
pub struct NewPartition {
    /// Its name: 1 to 47 bytes, none of them a control character or a slash.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its first block; `None` lets the catalogue choose.
    pub first: Option<u64>,
    /// Its size in blocks; `None` for all of the largest gap.
    pub blocks: Option<u64>,
}
