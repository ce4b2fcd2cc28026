//! Locks on byte ranges: overlapping ones wait.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Locks on byte ranges; overlapping ones are granted in the order of the requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeLocks {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Held ranges, start to end. They never overlap.
    held: BTreeMap<u64, u64>,
    /// Waiters, oldest first. A closed sender means that the waiter was dropped.
    waiting: VecDeque<(Range<u64>, oneshot::Sender<RangeGuard>)>,
}

/// A range held until this is dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    state: Arc<Mutex<State>>,
    range: Range<u64>,
}

impl RangeLocks {
    /// Waits until no part of `range` is held, or was requested earlier.
    pub(crate) async fn lock(&self, range: Range<u64>) -> RangeGuard {
        let granted = {
            let mut state = self.state.lock();
            if state.is_free(&range, state.waiting.len()) {
                return self.hold(&mut state, range);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back((range.clone(), grant));
            granted
        };
        match granted.await {
            Ok(guard) => guard,
            // A waiter is removed from the queue only to be granted.
            Err(_) => unreachable!("a waiting range lock was dropped"),
        }
    }

    fn hold(&self, state: &mut State, range: Range<u64>) -> RangeGuard {
        state.held.insert(range.start, range.end);
        RangeGuard { state: self.state.clone(), range }
    }
}

impl State {
    /// Whether `range` overlaps no held range and none of the first `ahead` waiters.
    fn is_free(&self, range: &Range<u64>, ahead: usize) -> bool {
        let below = self.held.range(..range.end).next_back();
        below.is_none_or(|(_, end)| *end <= range.start)
            && !self.waiting.iter().take(ahead).any(|(other, grant)| {
                !grant.is_closed() && other.start < range.end && range.start < other.end
            })
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut granted = Vec::new();
        let mut state = self.state.lock();
        state.held.remove(&self.range.start);
        state.waiting.retain(|(_, grant)| !grant.is_closed());
        let mut at = 0;
        while at < state.waiting.len() {
            let range = state.waiting[at].0.clone();
            if !state.is_free(&range, at) {
                at += 1;
                continue;
            }
            if let Some((range, grant)) = state.waiting.remove(at) {
                state.held.insert(range.start, range.end);
                granted.push((grant, RangeGuard { state: self.state.clone(), range }));
            }
        }
        drop(state);
        for (grant, guard) in granted {
            // If the waiter was dropped just now, this returns its guard, and dropping that releases the
            // range again.
            let _ = grant.send(guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn overlapping_ranges_wait_in_order_and_others_do_not() {
        let locks = RangeLocks::default();
        let first = locks.lock(0..10).await;
        let mut second = Box::pin(locks.lock(5..20));
        assert!(second.as_mut().now_or_never().is_none());
        // It overlaps no held range, but a waiter before it.
        let mut third = Box::pin(locks.lock(15..30));
        assert!(third.as_mut().now_or_never().is_none());
        let apart = locks.lock(30..40).now_or_never();
        assert!(apart.is_some());
        drop(first);
        let second = second.now_or_never().unwrap();
        assert!(third.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_waiter_that_goes_away_blocks_nobody() {
        let locks = RangeLocks::default();
        let held = locks.lock(0..10).await;
        let mut gone = Box::pin(locks.lock(0..30));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut behind = Box::pin(locks.lock(20..30));
        assert!(behind.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        assert!(behind.now_or_never().is_some());
        assert!(locks.state.lock().held.is_empty());
    }
}
