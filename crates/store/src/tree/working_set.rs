//! Several calls on one store in one transaction, which share the pages that they read and change.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;

use super::error::TreeError;
use super::format::{Kind, MAX_KEY, MAX_VALUE};
use super::scan::Scan;
use super::value::{Pair, Stored};
use super::work::Work;
use super::{btree, hash};

/// Pages that a working set keeps: a scan drops those that it has only read.
const KEPT: usize = 64;

/// The pages of a store that several calls in one transaction read and change.
///
/// It reads each page once. Its calls see its own changes at once; the transaction gets them with
/// [`WorkingSet::finish`], each page once, and nothing without that. Until then the transaction must not change
/// records by other means, because the pages here would be outdated. The transaction depends on the same bytes
/// as if each call had a set of its own.
pub struct WorkingSet<'a> {
    work: Work<'a>,
}

impl fmt::Debug for WorkingSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkingSet").field("store", &self.work.area.name).finish_non_exhaustive()
    }
}

impl<'a> WorkingSet<'a> {
    pub(super) fn new(work: Work<'a>) -> WorkingSet<'a> {
        WorkingSet { work }
    }

    fn kind(&self) -> Kind {
        self.work.area.kind
    }

    /// The value of a key.
    ///
    /// # Errors
    /// Those of the transaction, and [`TreeError::Damaged`].
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, TreeError> {
        match self.find(key).await? {
            Some(stored) => Ok(Some(self.work.fetch(stored).await?)),
            None => Ok(None),
        }
    }

    async fn find(&mut self, key: &[u8]) -> Result<Option<Stored>, TreeError> {
        check_key(key)?;
        self.work.trim(KEPT);
        match self.kind() {
            Kind::Hash => hash::find(&mut self.work, key).await,
            Kind::Btree | Kind::Raw => btree::find(&mut self.work, key).await,
        }
    }

    /// The greatest key at or below `key`, and its value. The transaction depends on that key alone: a key added
    /// in between is not noticed, so the caller has to exclude it by other means.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`] unless it is a B-tree, and those of [`WorkingSet::get`].
    pub async fn floor(&mut self, key: &[u8]) -> Result<Option<Pair>, TreeError> {
        check_key(key)?;
        self.require_order()?;
        self.work.trim(KEPT);
        match btree::floor(&mut self.work, key).await? {
            Some((key, stored)) => Ok(Some((key, self.work.fetch(stored).await?))),
            None => Ok(None),
        }
    }

    fn require_order(&self) -> Result<(), TreeError> {
        match self.kind() == Kind::Btree {
            true => Ok(()),
            false => Err(TreeError::WrongKind {
                name: self.work.area.name.clone(),
                is: self.kind(),
                wanted: "b-tree, and without one there is no order of keys",
            }),
        }
    }

    /// Gives a key a value. After an error the set must not be finished.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLarge`], [`TreeError::ValueTooLarge`], [`TreeError::Full`], and those of
    /// [`WorkingSet::get`].
    pub async fn put(&mut self, key: &[u8], value: Bytes) -> Result<(), TreeError> {
        check(key, Some(&value))?;
        match self.kind() {
            Kind::Hash => hash::put(&mut self.work, key, value).await,
            Kind::Btree | Kind::Raw => btree::put(&mut self.work, key, value).await,
        }
    }

    /// Overwrites a part of a key's value, from byte `offset` on. The length of the value stays, and of a value that is
    /// stored in blocks of its own only those are written in which the part lies: two transactions that overwrite parts in
    /// different blocks do not conflict. Returns whether the key has a value that is long enough; otherwise nothing changes.
    /// After an error the set must not be finished.
    ///
    /// # Errors
    /// As [`WorkingSet::put`].
    pub async fn overwrite(
        &mut self,
        key: &[u8],
        offset: usize,
        part: Bytes,
    ) -> Result<bool, TreeError> {
        let Some(stored) = self.find(key).await? else { return Ok(false) };
        let end = offset.checked_add(part.len()).filter(|end| *end <= stored.len());
        let Some(end) = end else { return Ok(false) };
        match stored {
            Stored::Large(large) => self.work.patch(&large, offset, &part).await?,
            Stored::Inline(value) => {
                let mut value = value.to_vec();
                value[offset..end].copy_from_slice(&part);
                self.put(key, value.into()).await?;
            }
        }
        Ok(true)
    }

    /// Removes a key. Returns whether it was present. After an error the set must not be finished.
    ///
    /// # Errors
    /// As [`WorkingSet::put`].
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, TreeError> {
        check_key(key)?;
        match self.kind() {
            Kind::Hash => hash::delete(&mut self.work, key).await,
            Kind::Btree | Kind::Raw => btree::delete(&mut self.work, key).await,
        }
    }

    /// All keys and values; in the order of keys if the store has one.
    pub fn all(&self) -> Scan {
        match self.kind() {
            Kind::Hash => Scan::table(),
            Kind::Btree | Kind::Raw => Scan::keys(Bound::Unbounded, Bound::Unbounded),
        }
    }

    /// The keys in a range, in order.
    ///
    /// # Errors
    /// [`TreeError::WrongKind`] unless it is a B-tree; [`TreeError::KeyTooLarge`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Scan, TreeError> {
        self.require_order()?;
        let bound = |bound: Bound<&K>| bound.map(|key| Bytes::copy_from_slice(key.as_ref()));
        let (from, to) = (bound(range.start_bound()), bound(range.end_bound()));
        for key in [&from, &to] {
            if let Bound::Included(key) | Bound::Excluded(key) = key {
                check_key(key)?;
            }
        }
        Ok(Scan::keys(from, to))
    }

    /// The next key of a scan, and its value. A scan may or may not show changes that were made after it began;
    /// each other key it shows once.
    ///
    /// # Errors
    /// As [`WorkingSet::get`].
    pub async fn next(&mut self, scan: &mut Scan) -> Result<Option<Pair>, TreeError> {
        self.work.trim(KEPT);
        scan.next(&mut self.work).await
    }

    /// Blocks of the store that the set has allocated, less those that it has freed.
    pub fn allocated(&self) -> i64 {
        self.work.allocated
    }

    /// Hands all changes to the transaction, and forgets all pages.
    ///
    /// # Errors
    /// Those of the transaction.
    pub fn finish(&mut self) -> Result<(), TreeError> {
        self.work.finish()
    }
}

/// Checks the lengths of a key and of its value.
///
/// # Errors
/// [`TreeError::KeyTooLarge`], [`TreeError::ValueTooLarge`].
pub(super) fn check(key: &[u8], value: Option<&[u8]>) -> Result<(), TreeError> {
    check_key(key)?;
    match value {
        Some(value) if value.len() > MAX_VALUE => Err(TreeError::ValueTooLarge(value.len())),
        _ => Ok(()),
    }
}

fn check_key(key: &[u8]) -> Result<(), TreeError> {
    match key.len() <= MAX_KEY {
        true => Ok(()),
        false => Err(TreeError::KeyTooLarge(key.len())),
    }
}
