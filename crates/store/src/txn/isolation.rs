//! What a transaction asks for when it begins.

use crate::block::{EpochVersion, Position};

/// What concurrent transactions may see of each other (B.1).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Reads see one snapshot; of two transactions that write the same bytes one commits. Permits write skew.
    Snapshot,
    /// As if transactions ran one after the other, in an order that agrees with real time.
    #[default]
    StrictSerializable,
}

/// How a transaction begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Begin {
    /// Its isolation.
    pub isolation: Isolation,
    /// It will not write: it sees the newest state that survives a crash, and always commits, at once.
    pub read_only: bool,
    /// It sees this version, which must be kept. Only for a read-only transaction.
    pub at: Option<EpochVersion>,
    /// A volume that has gone another way than this state will not do.
    pub after: Option<Position>,
    /// Only the primary of the volume will do: a replica may have an older state.
    pub at_primary: bool,
}

impl Begin {
    /// With snapshot isolation.
    pub const SNAPSHOT: Begin = Begin {
        isolation: Isolation::Snapshot,
        read_only: false,
        at: None,
        after: None,
        at_primary: false,
    };
    /// With strict serializability.
    pub const STRICT: Begin = Begin { isolation: Isolation::StrictSerializable, ..Begin::SNAPSHOT };
    /// Read-only.
    pub const READ_ONLY: Begin = Begin { read_only: true, ..Begin::SNAPSHOT };

    /// Read-only, at a version that is kept.
    pub const fn at(version: EpochVersion) -> Begin {
        Begin { at: Some(version), ..Begin::READ_ONLY }
    }

    /// Whether the commit decision ignores what was read.
    pub(super) fn is_untracked(self) -> bool {
        self.read_only || self.isolation == Isolation::Snapshot
    }
}
