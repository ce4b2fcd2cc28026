//! Sizes of a volume and its filesystem, in answers to requests that change them.

use serde::{Deserialize, Serialize};
use thalweg_fs::local;

use crate::size::Size;

/// A size in bytes, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grown {
    /// Before.
    pub(crate) before: u64,
    /// Now.
    pub(crate) size: u64,
}

impl From<local::Growth> for Grown {
    fn from(growth: local::Growth) -> Grown {
        Grown { before: growth.before, size: growth.size }
    }
}

/// The result of a resize.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Resized {
    /// The volume.
    pub(crate) volume: Grown,
    /// Its filesystem, if it has one.
    pub(crate) filesystem: Option<Grown>,
}

/// The size that a volume's filesystem has, and could have.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Room {
    /// Bytes of the volume that the filesystem takes.
    pub(crate) filesystem: u64,
    /// Bytes that it could take.
    pub(crate) most: u64,
}

impl Room {
    /// The next step, if the filesystem could become larger.
    pub(crate) fn advice(&self, volume: &str) -> Option<String> {
        let advice = format!(
            "its filesystem has {}, and may have {}: thalweg resize {volume}",
            Size(self.filesystem),
            Size(self.most)
        );
        (self.most > self.filesystem).then_some(advice)
    }
}
