//! Reads of several blocks that are of one state (5.3.1).

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;

use super::choose::one_request;
use super::{VersionRange, Versioned};
use crate::block::{Hold, Lba, Located, StoreError, Version};

/// Blocks that are chosen together.
const TOGETHER: u64 = 64;

/// Blocks of one state, which is chosen as they are read: each read takes the cheapest contents in the range of versions that
/// is left, and narrows the range to the versions that have it. So its reads are of each version that is left.
pub struct StaleView {
    versions: Versioned,
    range: Mutex<VersionRange>,
    /// Keeps the range readable.
    _hold: Hold,
}

impl fmt::Debug for StaleView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaleView").field("range", &self.range).finish_non_exhaustive()
    }
}

impl StaleView {
    fn new(versions: &Versioned, range: VersionRange, hold: Hold) -> StaleView {
        let range = Mutex::new(range);
        StaleView { versions: versions.clone(), range, _hold: hold }
    }

    /// A view of one version.
    ///
    /// # Errors
    /// [`StoreError::Gone`] when it is not kept; [`StoreError::Invalid`] for one of the future.
    pub fn at(versions: &Versioned, version: Version) -> Result<StaleView, StoreError> {
        let now = versions.store().now();
        if version > now {
            let why = format!("version {version} does not exist yet, but {now}");
            return Err(StoreError::Invalid(why));
        }
        let hold = versions.store().hold(version).ok_or(StoreError::Gone(version))?;
        Ok(StaleView::new(versions, VersionRange { low: version, up: version }, hold))
    }

    /// A view of a version in `range`; of a newer one where none of these is kept.
    ///
    /// # Errors
    /// [`StoreError::Gone`] from a store that keeps no versions while new ones come.
    pub fn within(versions: &Versioned, range: VersionRange) -> Result<StaleView, StoreError> {
        /// Attempts, between each two of which versions went.
        const ATTEMPTS: usize = 100;
        let store = versions.store();
        for _ in 0..ATTEMPTS {
            let low = range.low.max(store.oldest());
            if let Some(hold) = store.hold_since(low) {
                return Ok(StaleView::new(
                    versions,
                    VersionRange { low, up: range.up.max(low) },
                    hold,
                ));
            }
            // A store that holds no ranges of versions.
            let now = store.now();
            if let Some(hold) = store.hold(now) {
                return Ok(StaleView::new(versions, VersionRange { low: now, up: now }, hold));
            }
        }
        Err(StoreError::Gone(range.up))
    }

    /// The store.
    pub fn versions(&self) -> &Versioned {
        &self.versions
    }

    /// The versions whose state all reads so far are of.
    pub fn range(&self) -> VersionRange {
        *self.range.lock()
    }

    /// Chooses the contents of some blocks, and narrows the range to the versions that have all of them.
    fn choose(&self, lbas: Range<u64>) -> Result<(Version, Vec<Located>), StoreError> {
        let mut range = self.range.lock();
        let chosen = self.versions.cheapest(lbas, *range)?;
        for content in &chosen {
            let has = VersionRange { low: content.oldest, up: content.newest };
            *range = range.and(has).ok_or(StoreError::Gone(range.up))?;
        }
        Ok((range.up, chosen))
    }

    /// The content of a block; `None` where nothing is stored.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read(&self, lba: Lba) -> Result<Option<Bytes>, StoreError> {
        Ok(self.read_run(lba, 1).await?.pop().flatten())
    }

    /// `count` blocks from `lba` on, in the version in which they cost least together.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut reads = Vec::new();
        let mut first = lba.0;
        let end = lba.0.saturating_add(count);
        while first < end {
            let lbas = first..end.min(first + TOGETHER);
            first = lbas.end;
            let (version, chosen) = self.choose(lbas.clone())?;
            let mut lba = lbas.start;
            for run in chosen.chunk_by(one_request) {
                reads.push(self.versions.fetch(
                    Lba(lba),
                    run.len() as u64,
                    version,
                    run[0].residence,
                ));
                lba += run.len() as u64;
            }
        }
        Ok(try_join_all(reads).await?.concat())
    }
}
