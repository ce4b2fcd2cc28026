//! Reference counts of the versions that readers hold.

use super::{BlockVersion, StoreError, Version};
use crate::refcounts::RefCounts;

/// The versions that are held, each with the number of its holders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(RefCounts<Version>);

impl Holds {
    /// Adds a holder of `version`.
    pub(crate) fn take(&mut self, version: Version) {
        self.0.take(version);
    }

    /// Removes a holder of `version`; true when it was the last one.
    pub(crate) fn release(&mut self, version: Version) -> bool {
        self.0.release(version).unwrap_or(false)
    }

    /// The oldest version held.
    pub(crate) fn oldest(&self) -> Option<Version> {
        self.0.first()
    }

    /// Whether a held version sees content that was written as `from` and replaced as `until`.
    pub(crate) fn need(&self, from: Version, until: Version) -> bool {
        self.0.range(from..until).next().is_some()
    }

    /// The newest version held.
    pub(crate) fn newest(&self) -> Option<Version> {
        self.0.last()
    }

    /// Checks that a reader may read at `at`: the newest version, which is `now`, or one that is held.
    ///
    /// # Errors
    /// [`StoreError::Gone`]; [`StoreError::Invalid`] for a version of the future.
    pub(crate) fn check_read(&self, at: Version, now: Version) -> Result<(), StoreError> {
        match at {
            _ if at == now || self.contains(at) => Ok(()),
            _ if at < now => Err(StoreError::Gone(at)),
            _ => Err(StoreError::Invalid(format!("version {at} does not exist yet, but {now}"))),
        }
    }

    /// Of the contents of a block, ascending by the version of each, those that can be read. The first one's
    /// version may be any that is not newer than the oldest version held.
    pub(crate) fn readable(&self, contents: &[(Version, bool)], now: Version) -> Vec<BlockVersion> {
        // Where the first content is newer than version 0, the block was empty before.
        let empty = contents.first().is_some_and(|(since, _)| *since > Version(0));
        let before = empty.then_some((Version(0), false));
        let contents: Vec<_> = before.into_iter().chain(contents.iter().copied()).collect();
        let ends = contents.iter().skip(1).map(|(since, _)| Version(since.0 - 1)).chain([now]);
        let readable = contents.iter().zip(ends).filter_map(|((since, stored), newest)| {
            let mut held = self.0.range(*since..newest.next());
            let is_newest = newest == now;
            let oldest = held.next().or(is_newest.then_some(now))?;
            let newest = if is_newest { now } else { held.next_back().unwrap_or(oldest) };
            Some(BlockVersion { oldest, newest, stored: *stored })
        });
        readable.collect()
    }

    /// Whether `version` itself is held.
    pub(crate) fn contains(&self, version: Version) -> bool {
        self.0.contains(version)
    }
}
