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
    /// If they have read no bytes, and changed nothing but bytes: these. `None`: all of it.
    pub written: Option<Vec<Range<u64>>>,
}

impl UsedInode {
    /// Whether a write to these bytes conflicts with the use.
    pub fn conflicts_with(&self, range: &Range<u64>) -> bool {
        conflicts_with(self.written.as_deref(), range)
    }
}

/// Whether a write to these bytes conflicts with the use of a file that other clients have used: they have only written some, or used
/// all of it. If they have written none, they have looked at its attributes.
pub fn conflicts_with(written: Option<&[Range<u64>]>, range: &Range<u64>) -> bool {
    let overlaps = |it: &Range<u64>| it.start < range.end && range.start < it.end;
    written.is_none_or(|written| written.is_empty() || written.iter().any(overlaps))
}
