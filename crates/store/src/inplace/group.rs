//! Who shares a commit.
//!
//! A flush costs the same for one and for many. Of several who write and wait, again and again, those
//! who were in the last commit come back soon after it: a commit that begins with the first of them
//! leaves the others to the next one. So it waits for about as many as came last time, but no longer than
//! a commit takes: that is the most that each of them loses by missing it. A lone caller's commit begins
//! at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::Notify;

use super::Inner;

/// The longest wait for the next one, and for all of them, however long commits take.
const LONGEST: Duration = Duration::from_millis(1);
const LONGEST_ALL: Duration = Duration::from_millis(6);

/// Callers that want commits.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Callers that wait for a commit.
    waiting: AtomicUsize,
    /// One more waits.
    came: Notify,
    /// How many came along lately.
    expected: AtomicUsize,
}

impl Callers {
    /// Counts one more, until that is dropped.
    pub(super) fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.came.notify_one();
        Waiting(&self.waiting)
    }

    /// Whether a commit is likely to be one caller's, who may as well do it.
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

/// What is known of the commits so far.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// How many came along this time.
    came: usize,
    /// How long commits take.
    span: Duration,
}

impl Group {
    /// Waits for the callers that are likely to come.
    pub(super) async fn gather(&mut self, store: &Inner) {
        let count = || store.callers.waiting.load(Ordering::Relaxed);
        let expected = store.callers.expected.load(Ordering::Relaxed);
        if expected > 1 {
            // Those who are about to run anyway come first.
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
            // Each that comes puts the end off: one nap serves until it is over.
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

    /// A commit has ended after so long.
    pub(super) fn ended(&mut self, callers: &Callers, span: Duration) {
        // A crowd that has gone is forgotten after some commits, and a new one is known at once.
        let expected = callers.expected.load(Ordering::Relaxed);
        let expected = self.came.max(expected - expected.div_ceil(8));
        callers.expected.store(expected, Ordering::Relaxed);
        self.came = 0;
        self.span = (self.span * 7 + span) / 8;
    }
}
