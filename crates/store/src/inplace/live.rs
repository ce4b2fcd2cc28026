//! Which journal transactions still say something that is not home.

use std::collections::BTreeMap;

/// How many blocks and pages of the map wait for the sake of which transaction: the oldest one that
/// says something of them.
#[derive(Debug, Default)]
pub(super) struct Live(BTreeMap<u64, usize>);

impl Live {
    /// Has something wait for the sake of `sequence`, if it does not for an older one's.
    pub(super) fn keep(&mut self, first: &mut Option<u64>, sequence: u64) {
        if first.is_some_and(|first| first <= sequence) {
            return;
        }
        if let Some(later) = first.replace(sequence) {
            self.let_go(later);
        }
        *self.0.entry(sequence).or_default() += 1;
    }

    /// One less waits for the sake of `sequence`.
    pub(super) fn let_go(&mut self, sequence: u64) {
        if let Some(count) = self.0.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&sequence);
            }
        }
    }

    /// The oldest transaction that somebody waits for.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }
}
