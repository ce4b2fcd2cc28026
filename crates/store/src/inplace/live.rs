//! Which journal transactions still hold changes that are not in place.

use std::collections::BTreeMap;

/// Counts, for each journal transaction, the blocks and map pages whose oldest change that is not
/// in place it holds. The journal must keep such transactions.
#[derive(Debug, Default)]
pub(super) struct Live(BTreeMap<u64, usize>);

impl Live {
    /// Notes that `sequence` holds a change, unless an older transaction is noted in `first`
    /// already.
    pub(super) fn keep(&mut self, first: &mut Option<u64>, sequence: u64) {
        if first.is_some_and(|first| first <= sequence) {
            return;
        }
        if let Some(later) = first.replace(sequence) {
            self.let_go(later);
        }
        *self.0.entry(sequence).or_default() += 1;
    }

    /// Takes one block or map page off the count of `sequence`.
    pub(super) fn let_go(&mut self, sequence: u64) {
        if let Some(count) = self.0.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&sequence);
            }
        }
    }

    /// The oldest transaction that the journal must keep.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }
}
