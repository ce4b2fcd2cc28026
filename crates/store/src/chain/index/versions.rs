//! The versions of one block.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::Versioned;

/// The versions of a block, ascending. The oldest ones leave in constant time on average: a block that is written again and
/// again has many, and loses one with each write.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Versions {
    list: SmallVec<[Versioned; 2]>,
    /// How many at the front of `list` have left.
    left: usize,
}

impl Versions {
    pub(in super::super) fn new() -> Versions {
        Versions::default()
    }

    /// Adds a version, which is newer than all.
    pub(in super::super) fn push(&mut self, versioned: Versioned) {
        self.list.push(versioned);
    }

    /// Removes the version at `index`.
    pub(super) fn remove(&mut self, index: usize) -> Versioned {
        self.list.remove(self.left + index)
    }

    /// Removes the `count` oldest versions, of at least so many.
    pub(super) fn drop_oldest(&mut self, count: usize) {
        self.left += count;
        if self.left * 2 > self.list.len() {
            self.list.drain(..self.left);
            self.left = 0;
        }
    }
}

impl Deref for Versions {
    type Target = [Versioned];

    fn deref(&self) -> &[Versioned] {
        self.list.get(self.left..).unwrap_or_default()
    }
}

impl DerefMut for Versions {
    fn deref_mut(&mut self) -> &mut [Versioned] {
        self.list.get_mut(self.left..).unwrap_or_default()
    }
}

impl PartialEq for Versions {
    fn eq(&self, other: &Versions) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Versions {}

impl Extend<Versioned> for Versions {
    fn extend<I: IntoIterator<Item = Versioned>>(&mut self, more: I) {
        self.list.extend(more);
    }
}

impl FromIterator<Versioned> for Versions {
    fn from_iter<I: IntoIterator<Item = Versioned>>(versions: I) -> Versions {
        Versions { list: versions.into_iter().collect(), left: 0 }
    }
}
