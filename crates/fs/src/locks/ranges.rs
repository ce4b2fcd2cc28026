//! The locked ranges of one inode.

use super::{Lock, LockKind, LockOwner, LockRange};

/// Locks of one inode. Those of one owner and kind are apart, and merged where they touch and are alike.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Lock>);

impl Ranges {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Lock> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes whole locks; returns whether there were any.
    pub(super) fn remove(&mut self, remove: impl Fn(&Lock) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|held| !remove(held));
        self.0.len() < before
    }

    /// Removes a range from an owner's locks, which may split one; returns whether any byte was locked.
    pub(super) fn clear(&mut self, kind: LockKind, owner: LockOwner, range: LockRange) -> bool {
        assert!(range.first <= range.last, "{range:?} is no range");
        let is_own =
            |held: &Lock| held.kind == kind && held.owner == owner && held.range.overlaps(&range);
        let own: Vec<Lock> = self.0.extract_if(.., |held| is_own(held)).collect();
        for held in &own {
            if held.range.first < range.first {
                let before = LockRange { first: held.range.first, last: range.first - 1 };
                self.0.push(Lock { range: before, ..*held });
            }
            if held.range.last > range.last {
                let behind = LockRange { first: range.last + 1, last: held.range.last };
                self.0.push(Lock { range: behind, ..*held });
            }
        }
        !own.is_empty()
    }

    /// Sets a range to a lock of its owner; returns whether the owner had locked any byte of it before.
    pub(super) fn set(&mut self, lock: &Lock) -> bool {
        let had = self.clear(lock.kind, lock.owner, lock.range);
        let mut merged = *lock;
        let touches = |held: &Lock, merged: &Lock| {
            held.kind == lock.kind
                && held.owner == lock.owner
                && held.mode == lock.mode
                && held.handle == lock.handle
                && (held.range.last.checked_add(1) == Some(merged.range.first)
                    || merged.range.last.checked_add(1) == Some(held.range.first))
        };
        while let Some(at) = self.0.iter().position(|held| touches(held, &merged)) {
            let held = self.0.swap_remove(at);
            merged.range = LockRange {
                first: merged.range.first.min(held.range.first),
                last: merged.range.last.max(held.range.last),
            };
        }
        let is_apart = |held: &Lock| {
            held.kind != merged.kind
                || held.owner != merged.owner
                || !held.range.overlaps(&merged.range)
        };
        assert!(self.0.iter().all(is_apart), "an owner has locked bytes twice: {merged:?}");
        self.0.push(merged);
        had
    }
}
