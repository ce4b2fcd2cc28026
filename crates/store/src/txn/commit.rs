//! Commits: decided by any task, applied in the order of their timestamps.
//!
//! 1. A transaction gets the next timestamp and enters the stream (4.2.1).
//! 2. Its own task decides it from its window, while other tasks decide theirs.
//! 3. The task that has the turn applies the decided transactions in order, and merges what concurrent
//!    commits changed in the same blocks (4.2.2). The other tasks wait for the outcome of their own.
//!
//! The turn is not bound to a task: dropping a commit halfway passes it on.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use super::counts::Counts;
use super::inner::Inner;
use super::intent::{Intent, Verdict};
use super::order::Step;
use super::window::Window;
use super::{Preempted, TxnError};
use crate::block::{Applied, Hold, Lba, Retention, StoreError, Version, WriteList};

/// Decides on a transaction, and applies it if it commits.
pub(super) async fn commit(inner: &Inner, intent: Intent) -> Result<Applied, TxnError> {
    let intent = Arc::new(intent);
    let (slot, window) = enter(inner, &intent)?;
    #[cfg(feature = "seeded-bugs")]
    let window = match inner.options.bug {
        Some(super::Bug::SkippedWindow) => window.without_first(u64::MAX),
        Some(super::Bug::LateWatermark) => window.without_first(1),
        _ => window,
    };
    let verdict = window.decide(&intent, &|start, end| inner.order.lock().window(start, end));
    if verdict == Verdict::Abort {
        Counts::add(&inner.counts.conflicts, 1);
        // Transactions decided after this one may wait for its slot to be passed.
        apply_decided(inner).await;
        // A retry that begins now would get a snapshot without some of the commits that it conflicts with,
        // and meet them again. So wait for them.
        let before = inner.order.lock().committing(slot);
        if let Some(before) = before {
            outcome(inner, &before).await.ok();
        }
        return Err(TxnError::Conflict);
    }
    Counts::add(&inner.counts.commits, 1);
    let version = outcome(inner, &intent).await?;
    Ok(intent.take_applied(version))
}

/// Gives a transaction its timestamp and its window.
///
/// # Errors
/// [`TxnError::Invalid`] when the fence may not be raised; the transaction has ended.
fn enter(inner: &Inner, intent: &Arc<Intent>) -> Result<(u64, Window), TxnError> {
    let refused = {
        let mut order = inner.order.lock();
        match order.fence.enter(intent) {
            Ok(()) => return Ok(order.push(intent.clone())),
            Err(refused) => {
                order.end(intent.since);
                refused
            }
        }
    };
    inner.settled.notify_waiters();
    Err(refused)
}

/// Waits for the outcome of a commit, or applies it.
pub(super) async fn outcome(inner: &Inner, intent: &Intent) -> Result<Version, StoreError> {
    loop {
        if let Some(outcome) = intent.outcome() {
            return outcome.clone();
        }
        apply_decided(inner).await;
        let mut changed = std::pin::pin!(intent.changed.notified());
        changed.as_mut().enable();
        if intent.outcome().is_none() {
            changed.await;
        }
    }
}

/// Waits until every commit has its outcome and, while a barrier is up, no transaction runs: also none that
/// has left the registry but not yet entered the stream.
pub(super) async fn drain(inner: &Inner) {
    loop {
        let mut settled = std::pin::pin!(inner.settled.notified());
        settled.as_mut().enable();
        let (last, quiet) = {
            let order = inner.order.lock();
            (order.pending().pop(), order.is_quiet())
        };
        match last {
            Some(last) => {
                outcome(inner, &last).await.ok();
            }
            None if quiet => return,
            None => settled.await,
        }
    }
}

/// The right to apply. When dropped before its end, the next waiting task takes it.
struct Turn<'a> {
    inner: &'a Inner,
    ended: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let pending = {
            let mut order = self.inner.order.lock();
            order.end_turn();
            order.pending()
        };
        pending.iter().for_each(|intent| intent.changed.notify_one());
        self.inner.settled.notify_waiters();
    }
}

/// Applies everything that is decided, in order, unless another task is doing so.
pub(super) async fn apply_decided(inner: &Inner) {
    let Some(mut step) = inner.order.lock().take_turn() else { return };
    let mut turn = Turn { inner, ended: false };
    while let Step::Apply(intent, window) = step {
        let (outcome, newest) = match apply(inner, &intent, &window).await {
            Ok((version, newest)) => (Ok(version), newest.map(Arc::new)),
            Err(error) => (Err(error), None),
        };
        let forgotten = {
            let mut order = inner.order.lock();
            order.finish(&intent, outcome.is_ok(), newest);
            // Known before another task can take the turn: it merges with what was applied.
            intent.set_outcome(outcome);
            step = order.next_step();
            order.take_forgotten()
        };
        intent.announce();
        drop(forgotten);
    }
    turn.ended = true;
    inner.settled.notify_waiters();
}

/// Applies one transaction that commits.
async fn apply(
    inner: &Inner,
    intent: &Intent,
    window: &Window,
) -> Result<(Version, Option<Hold>), StoreError> {
    let sharing = window.sharing(intent);
    #[cfg(feature = "seeded-bugs")]
    let sharing = match inner.options.has(super::Bug::MissingMerge) {
        true => Vec::new(),
        false => sharing,
    };
    if !sharing.is_empty() {
        Counts::add(&inner.counts.merged, 1);
        intent.merge(&sharing);
    }
    if intent.since == u64::MAX {
        intent.merge_onto(&latest(inner, intent).await?);
    }
    loop {
        let mut handing = std::pin::pin!(hand_over(inner, intent));
        // Most writes complete at once and need no timer.
        let applied = match futures::poll!(handing.as_mut()) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => inner.env.timeout(inner.options.patience, handing).await,
        };
        match applied {
            Some(Err(StoreError::NoSpace)) | None => {}
            Some(outcome) => return outcome,
        }
        if applied.is_none() && !inner.store.holds_take_room() {
            continue;
        }
        // The space may be taken by old versions that a transaction holds.
        if !inner.preempt_oldest(Preempted::Stuck) && applied.is_some() {
            return Err(StoreError::NoSpace);
        }
    }
}

async fn hand_over(inner: &Inner, intent: &Intent) -> Result<(Version, Option<Hold>), StoreError> {
    match intent.swath() {
        Some(swath) => {
            let count = swath.end - swath.start;
            let version = inner.store.discard(Lba(swath.start), count).await?;
            Ok((version, inner.store.hold(version)))
        }
        None => {
            let writes = WriteList::new(intent.to_writes())?;
            let applied = inner.store.submit(writes, Retention::Hold).await?;
            let (version, hold, backpressure) = applied.into_parts();
            // The version is held, so this finds it.
            let own = intent.wants_hold().then(|| inner.store.hold(version));
            intent.set_applied(Applied::new(version, own.flatten(), backpressure));
            Ok((version, hold))
        }
    }
}

/// The current content of the blocks that a write outside of transactions changes in part.
async fn latest(inner: &Inner, intent: &Intent) -> Result<Vec<Option<Bytes>>, StoreError> {
    let mut latest = Vec::new();
    for write in intent.writes.iter().filter(|write| write.is_partial()) {
        latest.extend(inner.store.read_newest(write.lba, 1).await?.1);
    }
    Ok(latest)
}
