//! Reference counts of the versions that readers hold.

use super::{BlockVersion, StoreError, Version};
use crate::refcounts::RefCounts;

/// The versions that are held: single ones, each with the number of its holders, and all versions from some version on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    single: RefCounts<Version>,
    /// The beginnings of ranges without an end.
    since: RefCounts<Version>,
}

impl Holds {
    /// Adds a holder of `version`.
    pub(crate) fn take(&mut self, version: Version) {
        self.single.take(version);
    }

    /// Removes a holder of `version`; true when it was the last one.
    pub(crate) fn release(&mut self, version: Version) -> bool {
        self.single.release(version).unwrap_or(false)
    }

    /// Adds a holder of `version` and all that are newer.
    pub(crate) fn take_since(&mut self, version: Version) {
        self.since.take(version);
    }

    /// Removes a holder of `version` and all that are newer; true when fewer versions are held than before.
    pub(crate) fn release_since(&mut self, version: Version) -> bool {
        let before = self.floor();
        self.since.release(version);
        self.floor() != before
    }

    /// The version from which on all are held.
    pub(crate) fn floor(&self) -> Option<Version> {
        self.since.first()
    }

    /// The oldest version held.
    pub(crate) fn oldest(&self) -> Option<Version> {
        self.single.first().into_iter().chain(self.floor()).min()
    }

    /// Whether a held version sees content that was written as `from` and replaced as `until`.
    pub(crate) fn need(&self, from: Version, until: Version) -> bool {
        self.need_single(from, until) || self.floor().is_some_and(|floor| floor < until)
    }

    /// The same for versions that are held by themselves.
    pub(crate) fn need_single(&self, from: Version, until: Version) -> bool {
        self.single.range(from..until).next().is_some()
    }

    /// Whether a version newer than `version` is held.
    pub(crate) fn any_above(&self, version: Version) -> bool {
        self.single.last() > Some(version) || self.floor().is_some()
    }

    /// Checks that a reader may read at `at`: the newest version, which is `now`, or one that is held.
    ///
    /// # Errors
    /// [`StoreError::Gone`]; [`StoreError::Invalid`] for a version of the future.
    pub(crate) fn check_read(&self, at: Version, now: Version) -> Result<(), StoreError> {
        match at {
            _ if at > now => {
                Err(StoreError::Invalid(format!("version {at} does not exist yet, but {now}")))
            }
            _ if at == now || self.contains(at) => Ok(()),
            _ => Err(StoreError::Gone(at)),
        }
    }

    /// The first and the last of the versions from `from` to `to` that are held. `floor` is that of all holds.
    fn held_within(
        &self,
        floor: Option<Version>,
        from: Version,
        to: Version,
    ) -> Option<(Version, Version)> {
        let floor = floor.filter(|floor| *floor <= to).map(|floor| floor.max(from));
        if let Some(floor) = floor.filter(|floor| *floor == from) {
            return Some((floor, to));
        }
        let mut single = self.single.range(from..to.next());
        let first = single.next();
        let last = single.next_back().or(first);
        let Some(floor) = floor else { return first.zip(last) };
        Some((first.map_or(floor, |first| first.min(floor)), to))
    }

    /// Of the contents of a block, those that can be read in a version from `within.0` to `within.1`, each with the oldest
    /// and the newest version that has it and can be read. `contents` ascend by the version from which on each is valid;
    /// the first one's may be any that is not newer than the oldest version held. Before the first one the block is `empty`.
    pub(crate) fn readable<'a, T: Copy + 'a>(
        &'a self,
        contents: &'a [(Version, T)],
        empty: T,
        now: Version,
        within: (Version, Version),
    ) -> impl Iterator<Item = (Version, Version, T)> + 'a {
        // A newer content than the last one within shows nothing of it, and neither does an older one than the first.
        let end = contents.partition_point(|(since, _)| *since <= within.1);
        let start = contents[..end].partition_point(|(since, _)| *since <= within.0);
        let start = start.saturating_sub(1);
        let before = match contents.first() {
            Some((first, _)) if start > 0 || *first == Version(0) => None,
            Some((first, _)) => Some((Version(0), Version(first.0 - 1), empty)),
            None => Some((Version(0), now, empty)),
        };
        let last_of = move |nth: usize| match contents.get(nth + 1) {
            Some((next, _)) => Version(next.0 - 1),
            None => now,
        };
        let spans = (start..end).map(move |nth| (contents[nth].0, last_of(nth), contents[nth].1));
        let floor = self.floor();
        before.into_iter().chain(spans).filter_map(move |(since, end, of)| {
            let is_newest = end == now;
            let held = self.held_within(floor, since, end);
            let (oldest, newest) = held.or(is_newest.then_some((now, now)))?;
            let newest = if is_newest { now } else { newest };
            (newest >= within.0 && oldest <= within.1).then_some((oldest, newest, of))
        })
    }

    /// The contents of a block that can be read.
    pub(crate) fn versions(&self, contents: &[(Version, bool)], now: Version) -> Vec<BlockVersion> {
        let all = (Version(0), Version(u64::MAX));
        let readable = self.readable(contents, false, now, all);
        readable.map(|(oldest, newest, stored)| BlockVersion { oldest, newest, stored }).collect()
    }

    /// Whether `version` itself is held.
    pub(crate) fn contains(&self, version: Version) -> bool {
        self.single.contains(version) || self.floor().is_some_and(|floor| floor <= version)
    }
}
