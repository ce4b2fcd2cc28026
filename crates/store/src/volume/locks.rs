//! Locks on blocks. Writes of whole blocks need no order among each other, but a read-modify-write of a part
//! of a block must exclude all other writes of that block.
//!
//! As long as no partial write runs, a write of whole blocks only counts itself in and out, and takes no
//! lock. The first partial write closes that fast path, waits for the writes on it, and from then on all
//! writes lock their ranges of blocks.

use std::ops::Range;

use crate::device::{RangeGuard, RangeLocks};
use crate::gate::{Closed, Gate, Passage};

/// Locks on ranges of blocks.
#[derive(Debug, Default)]
pub(super) struct BlockLocks {
    /// The fast path: held shared by writes of whole blocks, closed by partial writes.
    gate: Gate,
    ranges: RangeLocks,
}

/// A right to change blocks; released when dropped.
#[derive(Debug)]
pub(super) struct BlockGuard<'a> {
    _passage: Option<Passage<'a>>,
    _closed: Option<Closed<'a>>,
    _range: Option<RangeGuard>,
}

impl BlockLocks {
    /// Waits until no partial write runs on any of `blocks`.
    pub(super) async fn whole(&self, blocks: Range<u64>) -> BlockGuard<'_> {
        if let Some(passage) = self.gate.pass() {
            return BlockGuard { _passage: Some(passage), _closed: None, _range: None };
        }
        let range = self.ranges.lock(blocks).await;
        BlockGuard { _passage: None, _closed: None, _range: Some(range) }
    }

    /// Waits until no other write runs on any of `blocks`.
    pub(super) async fn partial(&self, blocks: Range<u64>) -> BlockGuard<'_> {
        let closed = self.gate.close().await;
        let range = self.ranges.lock(blocks).await;
        BlockGuard { _passage: None, _closed: Some(closed), _range: Some(range) }
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
        // From now on writes of whole blocks take locks, so that the partial write gets its turn.
        let other = locks.whole(7..8).await;
        drop(whole);
        let part = part.as_mut().now_or_never().unwrap();
        assert!(locks.whole(3..4).now_or_never().is_none());
        drop((part, other));
        assert!(locks.whole(3..4).now_or_never().is_some());
        assert!(locks.gate.is_idle());
    }

    #[tokio::test]
    async fn a_part_that_gives_up_leaves_the_way_open() {
        let locks = BlockLocks::default();
        let whole = locks.whole(0..1).await;
        let mut part = Box::pin(locks.partial(0..1));
        assert!(part.as_mut().now_or_never().is_none());
        drop(part);
        drop(whole);
        assert!(locks.gate.is_idle());
        assert!(locks.whole(0..1).now_or_never().is_some());
    }
}
