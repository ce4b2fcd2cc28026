//! What other clients have done while the client of a journal was away.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thalweg_fs::{Ino, Timestamp};

/// An inode that other clients have used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UsedInode {
    /// The inode.
    pub ino: Ino,
    /// The time of its last change before that.
    pub changed: Timestamp,
    /// If they have only written bytes of it: these. `None` if they have read some, or changed something else.
    pub written: Option<Vec<Range<u64>>>,
}

impl UsedInode {
    /// Whether a write to these bytes conflicts with the use.
    pub fn conflicts_with(&self, range: &Range<u64>) -> bool {
        let overlaps = |it: &Range<u64>| it.start < range.end && range.start < it.end;
        self.written.as_ref().is_none_or(|written| written.iter().any(overlaps))
    }
}
