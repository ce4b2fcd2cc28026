//! What a node says of itself to clients that choose among nodes.

use std::time::Duration;

use uuid::Uuid;

use crate::block::{Position, Version};

/// What a node is, and how far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Standing {
    /// Its newest version.
    pub newest: Version,
    /// The name of that version; `None` for a volume that nothing has followed yet.
    pub position: Option<Position>,
    /// The timeline of its next version, which may be the first one of it.
    pub timeline: Option<Uuid>,
    /// The newest version that a crash cannot take back.
    pub durable: Version,
    /// Number of promotions up to the primary that it is, or follows.
    pub term: u32,
    /// Whether it takes writes.
    pub is_primary: bool,
    /// How long ago its newest version was the newest there is, at most; `None` when that is not known.
    pub age: Option<Duration>,
}
