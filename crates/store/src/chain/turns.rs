//! Scheduling at the tail's drive: reads that no cache could serve go there in batches (Gecko, 3.1.2).
//!
//! A read at the tail seeks away from the log. The two seeks cost more than the read, so one pair should
//! serve many reads: while the log writes without a pause, reads of the tail wait for each other and go
//! together, in whatever order suits the drive, and the log's next requests wait until they are done. Writers
//! then have the drive for at least as long as the reads had it. While the log pauses, a read goes at once.
//!
//! A chain of one link has no body: most of its reads go to the tail, and none of them waits.

use std::time::Duration;

use futures::future::select;
use thalweg_env::Time;

use super::Inner;
use super::stream::USERS;

/// Reads that fill a batch.
const GROUP: usize = 64;
/// A log that has written nothing for this long pauses.
const PAUSE: Duration = Duration::from_millis(2);

/// The waiting reads and those under way, without I/O.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Number of batches that were sent.
    left: u64,
    waiting: usize,
    reading: usize,
    /// When the oldest waiting read began to wait.
    since: Option<Time>,
    /// When the batch under way was sent.
    began: Option<Time>,
    /// The drive is reserved for writers until then.
    writers_until: Option<Time>,
    /// When the log last wrote.
    written: Option<Time>,
}

impl Turns {
    /// Records the end of a request of the log.
    pub(super) fn wrote(&mut self, now: Time) {
        self.written = Some(now);
    }

    /// Whether the log has to wait for a batch.
    pub(super) fn holds_writers(&self) -> bool {
        self.reading > 0
    }

    fn pauses(&self, now: Time) -> bool {
        self.written.is_none_or(|written| now.since(written) > PAUSE)
    }

    /// Adds a waiting read; returns the number of its batch.
    fn join(&mut self, now: Time) -> u64 {
        self.waiting += 1;
        self.since.get_or_insert(now);
        self.left
    }

    /// When the waiting reads may go; not before the batch under way has ended.
    fn due(&self, wait: Duration) -> Option<Time> {
        let since = self.since.filter(|_| self.reading == 0)?;
        let due = if self.waiting >= GROUP { since } else { since + wait };
        Some(self.writers_until.map_or(due, |until| until.max(due)))
    }

    fn leave(&mut self, now: Time) {
        self.left += 1;
        self.reading = std::mem::take(&mut self.waiting);
        self.since = None;
        self.began = Some(now);
    }

    /// Ends a read of the batch `number`, done or given up; returns whether it was the last one of a batch
    /// under way.
    fn end(&mut self, number: u64, now: Time) -> bool {
        if number == self.left {
            self.waiting -= 1;
            if self.waiting == 0 {
                self.since = None;
            }
            return false;
        }
        self.reading -= 1;
        if self.reading > 0 {
            return false;
        }
        if let Some(began) = self.began.take() {
            self.writers_until = Some(now + now.since(began));
        }
        true
    }
}

/// A read's permission to use the tail's drive, until it is dropped.
pub(super) struct Turn<'a> {
    inner: &'a Inner,
    group: Option<u64>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(group) = self.group else { return };
        let now = self.inner.env.now();
        if self.inner.state.lock().turns.end(group, now) {
            self.inner.turn.notify_waiters();
            self.inner.written.notify_waiters();
            self.inner.queue_kick[USERS].notify_one();
        }
    }
}

impl Inner {
    /// Waits for a batch at the tail's drive.
    pub(super) async fn turn_at_tail(&self) -> Turn<'_> {
        let wait = self.options.tail_read_wait;
        let mut turn = Turn { inner: self, group: None };
        loop {
            let changed = self.turn.notified();
            let due = {
                let mut state = self.state.lock();
                let now = self.env.now();
                let group = match turn.group {
                    Some(group) => group,
                    None => {
                        let pauses = state.turns.pauses(now) && !state.users.is_writing();
                        if wait.is_zero() || pauses || state.segments.links.len() == 1 {
                            return turn;
                        }
                        *turn.group.insert(state.turns.join(now))
                    }
                };
                if group != state.turns.left {
                    drop(state);
                    return turn;
                }
                let due = state.turns.due(wait);
                if due.is_some_and(|due| due <= now) {
                    state.turns.leave(now);
                    drop(state);
                    self.turn.notify_waiters();
                    return turn;
                }
                due
            };
            match due {
                Some(due) => {
                    let timer = std::pin::pin!(self.env.sleep_until(due));
                    select(std::pin::pin!(changed), timer).await;
                }
                None => changed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_group_goes_when_its_oldest_has_waited_or_when_it_is_full() {
        let mut turns = Turns::default();
        assert_eq!(turns.due(WAIT), None);
        turns.join(at(5));
        turns.join(at(50));
        assert_eq!(turns.due(WAIT), Some(at(105)));
        for _ in 2..GROUP {
            turns.join(at(60));
        }
        assert!(turns.due(WAIT).unwrap() <= at(60));
    }

    #[test]
    fn writers_have_the_drive_for_as_long_as_a_group_had_it() {
        let mut turns = Turns::default();
        let first = turns.join(at(0));
        let second = turns.join(at(0));
        turns.leave(at(100));
        assert!(turns.holds_writers());
        let late = turns.join(at(110));
        assert_eq!(turns.due(Duration::ZERO), None, "a group is still reading");
        assert!(!turns.end(first, at(120)));
        assert!(turns.end(second, at(130)));
        assert!(!turns.holds_writers());
        assert_eq!(turns.due(Duration::ZERO), Some(at(160)));
        turns.leave(at(160));
        assert!(turns.end(late, at(161)));
    }

    #[test]
    fn a_read_that_is_given_up_holds_nobody() {
        let mut turns = Turns::default();
        let first = turns.join(at(0));
        assert!(!turns.end(first, at(1)));
        assert_eq!(turns.due(WAIT), None);
        let second = turns.join(at(10));
        assert_eq!(turns.due(WAIT), Some(at(110)));
        turns.leave(at(110));
        assert!(turns.end(second, at(111)));
        assert!(!turns.holds_writers());
    }
}
