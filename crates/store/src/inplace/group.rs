//! Who shares a commit.
//!
//! A flush costs the same for one and for many. Of several who write and wait, again and again, those
//! who were in the last commit come back soon after it: a commit that begins with the first of them
//! leaves the others to the next one. So it waits for about as many as came last time, as long as they
//! keep coming: when nobody has come for the time that a commit takes, which is what each of them would
//! lose by missing it, it goes. One who is alone waits for nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Inner;

/// The longest wait for the next one, and for all of them.
const LONGEST: Duration = Duration::from_millis(1);
const LONGEST_ALL: Duration = Duration::from_millis(6);
/// Between two looks at who is there.
const LOOK: Duration = Duration::from_micros(40);

/// Those who want commits.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Who waits for a commit.
    waiting: AtomicUsize,
    /// How many came along lately.
    expected: AtomicUsize,
}

impl Callers {
    /// Counts one more, until that is dropped.
    pub(super) fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
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
    /// Waits for those who are likely to come.
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
            let now = store.env.now();
            if now.since(last) >= patience || now.since(begun) >= LONGEST_ALL {
                break;
            }
            store.env.nap(LOOK).await;
            let there = count();
            if there > seen {
                last = store.env.now();
            }
            seen = there;
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
