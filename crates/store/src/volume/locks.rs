//! Who may change a block: changes of whole blocks among themselves need no order, but one that
//! reads a block, changes a part and writes it back must have the block to itself.
//!
//! While nobody changes a part of a block, a change of whole blocks counts itself in and out and
//! touches no lock. The first change of a part closes that way, waits for those who are on it, and
//! then everybody locks the ranges of blocks that they change.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::device::{RangeGuard, RangeLocks};

/// One change of a part of a block, in [`BlockLocks::gate`].
const PARTIAL: u64 = 1 << 32;
/// The changes of whole blocks that went without a lock, in [`BlockLocks::gate`].
const FREE: u64 = PARTIAL - 1;

/// Locks on ranges of blocks.
#[derive(Debug, Default)]
pub(super) struct BlockLocks {
    /// Low half: changes of whole blocks under way without a lock. High half: changes of parts.
    gate: AtomicU64,
    /// The low half became zero while the high half was not.
    drained: Notify,
    ranges: RangeLocks,
}

/// A right to change blocks; given back when dropped.
#[derive(Debug)]
pub(super) struct BlockGuard<'a> {
    locks: &'a BlockLocks,
    counted: u64,
    _range: Option<RangeGuard>,
}

impl BlockLocks {
    /// Waits until nobody changes a part of one of `blocks`.
    pub(super) async fn whole(&self, blocks: Range<u64>) -> BlockGuard<'_> {
        if self.gate.load(Ordering::SeqCst) < PARTIAL {
            let before = self.gate.fetch_add(1, Ordering::SeqCst);
            let guard = BlockGuard { locks: self, counted: 1, _range: None };
            if before < PARTIAL {
                return guard;
            }
        }
        let range = self.ranges.lock(blocks).await;
        BlockGuard { locks: self, counted: 0, _range: Some(range) }
    }

    /// Waits until nobody else changes any of `blocks`.
    pub(super) async fn partial(&self, blocks: Range<u64>) -> BlockGuard<'_> {
        self.gate.fetch_add(PARTIAL, Ordering::SeqCst);
        let mut guard = BlockGuard { locks: self, counted: PARTIAL, _range: None };
        loop {
            // Registered before the look, so that no wake-up is lost.
            let mut drained = std::pin::pin!(self.drained.notified());
            drained.as_mut().enable();
            if self.gate.load(Ordering::SeqCst) & FREE == 0 {
                break;
            }
            drained.await;
        }
        guard._range = Some(self.ranges.lock(blocks).await);
        guard
    }
}

impl Drop for BlockGuard<'_> {
    fn drop(&mut self) {
        if self.counted == 0 {
            return;
        }
        let before = self.locks.gate.fetch_sub(self.counted, Ordering::SeqCst);
        if before >= PARTIAL && (before - self.counted) & FREE == 0 {
            self.locks.drained.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn whole_blocks_pass_each_other_and_what_is_unrelated() {
        let locks = BlockLocks::default();
        let first = locks.whole(0..4).await;
        assert!(locks.whole(2..6).now_or_never().is_some());
        drop(first);
        let _part = locks.partial(9..10).await;
        assert!(locks.whole(0..9).now_or_never().is_some());
        assert!(locks.whole(9..11).now_or_never().is_none());
        assert!(locks.partial(8..9).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_part_waits_for_those_who_hold_no_lock() {
        let locks = BlockLocks::default();
        let whole = locks.whole(3..4).await;
        let mut part = Box::pin(locks.partial(3..4));
        assert!(part.as_mut().now_or_never().is_none());
        // From now on whole blocks take locks, so that the part's turn comes.
        let other = locks.whole(7..8).await;
        drop(whole);
        let part = part.as_mut().now_or_never().unwrap();
        assert!(locks.whole(3..4).now_or_never().is_none());
        drop((part, other));
        assert!(locks.whole(3..4).now_or_never().is_some());
        assert_eq!(locks.gate.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_part_that_gives_up_leaves_the_way_open() {
        let locks = BlockLocks::default();
        let whole = locks.whole(0..1).await;
        let mut part = Box::pin(locks.partial(0..1));
        assert!(part.as_mut().now_or_never().is_none());
        drop(part);
        drop(whole);
        assert_eq!(locks.gate.load(Ordering::SeqCst), 0);
        assert!(locks.whole(0..1).now_or_never().is_some());
    }
}
