//! Counts of references to a few ascending keys.

use std::collections::VecDeque;
use std::ops::Range;

/// Keys with the number of references to each.
///
/// New keys are nearly always the largest, and there are about as many keys as readers: so a sorted list, which
/// allocates nothing in the long run, does better than a tree.
#[derive(Clone, Debug)]
pub(crate) struct RefCounts<K>(VecDeque<(K, u32)>);

impl<K> Default for RefCounts<K> {
    fn default() -> RefCounts<K> {
        RefCounts(VecDeque::new())
    }
}

impl<K: Copy + Ord> RefCounts<K> {
    /// Adds a reference to `key`.
    pub(crate) fn take(&mut self, key: K) {
        let at = match self.0.back() {
            Some((last, _)) if *last < key => self.0.len(),
            _ => self.0.partition_point(|(known, _)| *known < key),
        };
        match self.0.get_mut(at) {
            Some((known, count)) if *known == key => *count += 1,
            _ => self.0.insert(at, (key, 1)),
        }
    }

    /// Removes a reference to `key`: whether it was the last one, or `None` when there was none.
    pub(crate) fn release(&mut self, key: K) -> Option<bool> {
        let at = self.0.binary_search_by_key(&key, |(known, _)| *known).ok()?;
        let (_, count) = self.0.get_mut(at)?;
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            self.0.remove(at);
        }
        Some(was_last)
    }

    /// The smallest key.
    pub(crate) fn first(&self) -> Option<K> {
        self.0.front().map(|(key, _)| *key)
    }

    /// The largest key.
    pub(crate) fn last(&self) -> Option<K> {
        self.0.back().map(|(key, _)| *key)
    }

    /// Whether there is no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a reference to `key`.
    pub(crate) fn contains(&self, key: K) -> bool {
        self.0.binary_search_by_key(&key, |(known, _)| *known).is_ok()
    }

    /// The keys of `range`, ascending.
    pub(crate) fn range(&self, range: Range<K>) -> impl DoubleEndedIterator<Item = K> + '_ {
        let first = self.0.partition_point(|(key, _)| *key < range.start);
        let end = self.0.partition_point(|(key, _)| *key < range.end);
        self.0.range(first..end.max(first)).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_count_as_a_tree_would(
            steps in proptest::collection::vec((any::<bool>(), 0..12u64), 0..200),
            (start, end) in (0..14u64, 0..14u64),
        ) {
            let mut counts = RefCounts::default();
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            for (takes, key) in steps {
                if takes {
                    counts.take(key);
                    *model.entry(key).or_default() += 1;
                } else {
                    let left = model.get_mut(&key).map(|count| { *count -= 1; *count });
                    if left == Some(0) {
                        model.remove(&key);
                    }
                    prop_assert_eq!(counts.release(key), left.map(|left| left == 0));
                }
                prop_assert_eq!(counts.first(), model.keys().next().copied());
                prop_assert_eq!(counts.last(), model.keys().next_back().copied());
                prop_assert_eq!(counts.contains(key), model.contains_key(&key));
                prop_assert_eq!(counts.is_empty(), model.is_empty());
            }
            let expected: Vec<u64> =
                model.keys().copied().filter(|key| (start..end).contains(key)).collect();
            prop_assert_eq!(counts.range(start..end).collect::<Vec<_>>(), expected);
        }
    }
}
