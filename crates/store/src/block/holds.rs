//! Reference counts of the versions that readers hold.

use std::collections::BTreeMap;

use super::{StoreError, Version};

/// The versions that are held, each with the number of its holders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(BTreeMap<Version, u32>);

impl Holds {
    /// Adds a holder of `version`.
    pub(crate) fn take(&mut self, version: Version) {
        *self.0.entry(version).or_default() += 1;
    }

    /// Removes a holder of `version`; true when it was the last one.
    pub(crate) fn release(&mut self, version: Version) -> bool {
        match self.0.get_mut(&version) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            Some(_) => {
                self.0.remove(&version);
                true
            }
            None => false,
        }
    }

    /// The oldest version held.
    pub(crate) fn oldest(&self) -> Option<Version> {
        self.0.keys().next().copied()
    }

    /// Whether a held version sees content that was written as `from` and replaced as `until`.
    pub(crate) fn need(&self, from: Version, until: Version) -> bool {
        self.0.range(from..until).next().is_some()
    }

    /// The newest version held.
    pub(crate) fn newest(&self) -> Option<Version> {
        self.0.keys().next_back().copied()
    }

    /// Checks that a reader may read at `at`: at the newest version, which is `now`, or above, or at one that is
    /// held.
    ///
    /// # Errors
    /// [`StoreError::Gone`].
    pub(crate) fn check_read(&self, at: Version, now: Version) -> Result<(), StoreError> {
        match at >= now || self.contains(at) {
            true => Ok(()),
            false => Err(StoreError::Gone(at)),
        }
    }

    /// Whether `version` itself is held.
    pub(crate) fn contains(&self, version: Version) -> bool {
        self.0.contains_key(&version)
    }
}
