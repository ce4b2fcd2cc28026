//! Group commit.
//!
//! A flush costs the same for one caller and for many. Callers that write and sync in a loop come
//! back soon after a commit: a commit that begins with the first of them leaves the others to the
//! next one. So a commit waits for about as many callers as shared the last one, but no longer than
//! a commit takes: that is the most that a caller loses by missing it. A lone caller's commit
//! begins at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::Notify;

use super::Inner;

/// The longest wait for the next caller, and for all callers, however long commits take.
const LONGEST: Duration = Duration::from_millis(1);
const LONGEST_ALL: Duration = Duration::from_millis(6);

/// Callers that want commits.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Callers that wait for a commit.
    waiting: AtomicUsize,
    /// Notified when a caller comes.
    came: Notify,
    /// Callers that shared recent commits.
    expected: AtomicUsize,
}

impl Callers {
    /// Counts a caller until the guard is dropped.
    pub(super) fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.came.notify_one();
        Waiting(&self.waiting)
    }

    /// Whether the next commit is likely to serve one caller, which may run the commit itself.
    pub(super) fn is_lone(&self) -> bool {
        self.expected.load(Ordering::Relaxed) <= 1
    }
}

/// A caller that waits for a commit.
#[derive(Debug)]
pub(super) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The commit task's view of recent commits.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Callers of the commit under way.
    came: usize,
    /// Moving average of a commit's duration.
    span: Duration,
}

impl Group {
    /// Waits for the callers that are likely to come.
    pub(super) async fn gather(&mut self, store: &Inner) {
        let count = || store.callers.waiting.load(Ordering::Relaxed);
        let expected = store.callers.expected.load(Ordering::Relaxed);
        if expected > 1 {
            // Callers that are ready to run come first.
            tokio::task::yield_now().await;
        }
        let patience = self.span.min(LONGEST);
        let begun = store.env.now();
        let (mut seen, mut last) = (count(), begun);
        while seen < expected {
            let until = (last + patience).min(begun + self.span.min(LONGEST_ALL));
            let now = store.env.now();
            if now >= until {
                break;
            }
            // Each arrival extends the deadline; one nap serves until it is over.
            let mut nap = std::pin::pin!(store.env.nap(until.since(now)));
            while seen < expected {
                let came = std::pin::pin!(store.callers.came.notified());
                if let Either::Right(_) = select(came, nap.as_mut()).await {
                    break;
                }
                let there = count();
                if there > seen {
                    last = store.env.now();
                }
                seen = there;
            }
        }
        self.came = count();
    }

    /// Learns from a commit that took `span`.
    pub(super) fn ended(&mut self, callers: &Callers, span: Duration) {
        // The expectation falls slowly after callers have gone, and rises at once.
        let expected = callers.expected.load(Ordering::Relaxed);
        let expected = self.came.max(expected - expected.div_ceil(8));
        callers.expected.store(expected, Ordering::Relaxed);
        self.came = 0;
        self.span = (self.span * 7 + span) / 8;
    }
}
