//! How much of what a client has made may wait in its journal.
//!
//! Another client that wants it waits until the server has it. So no more waits than the link carries in a bearable time, and than
//! half of the journal takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a link is taken to carry in a second before something was sent.
const FIRST_RATE: u64 = 16 << 20;
/// A batch of fewer bytes says nothing of the link.
const LEAST_MEASURED: usize = 64 << 10;
/// Bytes that a batch sends of a thousand, if none is replaced meanwhile.
const WHOLE: u64 = 1000;
/// So much may wait on any link.
const LEAST: u64 = 8 << 20;

pub(super) struct DirtyLimit {
    /// Bytes that may wait in memory.
    memory: usize,
    background: Option<usize>,
    /// Time within which the rest can be sent.
    recall: Duration,
    /// Bytes of the journal; how many its records take; and those of these with mutations that the server does not have.
    journal: AtomicU64,
    used: AtomicU64,
    unsent: AtomicU64,
    /// What the link has carried in a second, lately.
    rate: AtomicU64,
    /// Bytes that the last batch has sent of a thousand that were written.
    kept: AtomicU64,
}

impl DirtyLimit {
    /// Of so much memory, of which this much is in use when sending begins.
    pub(super) fn new(
        (memory, background): (usize, Option<usize>),
        recall: Duration,
    ) -> DirtyLimit {
        let (journal, used, unsent) = Default::default();
        let (rate, kept) = (AtomicU64::new(FIRST_RATE), AtomicU64::new(WHOLE));
        DirtyLimit { memory, background, recall, journal, used, unsent, rate, kept }
    }

    /// The journal takes so many bytes.
    pub(super) fn begin_journal(&self, size: u64) {
        self.journal.store(size, Ordering::Relaxed);
        self.note_journal(0, 0);
    }

    /// Bytes of the journal.
    pub(super) fn journal(&self) -> u64 {
        self.journal.load(Ordering::Relaxed)
    }

    /// Its records take so many bytes of the journal, and those of mutations that the server does not have, so many of these.
    pub(super) fn note_journal(&self, used: u64, unsent: u64) {
        self.used.store(used, Ordering::Relaxed);
        self.unsent.store(unsent, Ordering::Relaxed);
    }

    /// Whether what the server does not have takes half of the journal, or the journal is tight.
    pub(super) fn is_journal_short(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > self.journal() / 2 || self.is_journal_tight()
    }

    /// Whether less than a quarter of the journal is free: records are to be released that the server has.
    pub(super) fn is_journal_tight(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.journal() / 4 * 3
    }

    /// Whether mutations with so many bytes in memory are to be sent (table 7.1: in the background). Bytes that later mutations mostly
    /// replace wait on, since the last ones alone are sent; the journal keeps them.
    pub(super) fn is_memory_short(&self, bytes: usize) -> bool {
        self.background.is_some_and(|most| bytes >= most)
            && self.kept.load(Ordering::Relaxed) > WHOLE / 2
    }

    /// Whether bytes of mutations that the journal has are to stay there alone, where so many are in memory.
    pub(super) fn is_to_spill(&self, bytes: usize) -> bool {
        // Behind what is sent in the background: that is not read back.
        bytes >= self.memory / 2 + self.background.unwrap_or(0).min(self.memory) / 2
    }

    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Bytes of memory for pages that were written in parts, also when the server has them: more than what waits in memory, since
    /// programs read them again later.
    pub(super) fn page_memory(&self) -> usize {
        self.memory.saturating_mul(2)
    }

    pub(super) fn bytes(&self) -> u64 {
        let carried = self.rate.load(Ordering::Relaxed) as f64 * self.recall.as_secs_f64();
        (carried as u64).max(LEAST).min(self.journal() / 2)
    }

    /// With so many, makers wait. A server waits for a recall twice as long as [`Options::recall`](super::options::Options::recall), and
    /// batches may be slower than the last ones were.
    pub(super) fn most_bytes(&self) -> u64 {
        self.bytes() / 2 * 3
    }

    /// What the link carries in a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// A batch with so many bytes of files was sent as so many.
    pub(super) fn coalesced(&self, bytes: usize, sent: usize) {
        if bytes < LEAST_MEASURED {
            return;
        }
        let kept = (sent.min(bytes) as u64 * WHOLE) / bytes as u64;
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// A batch with so many bytes took so long.
    pub(super) fn sent(&self, bytes: usize, took: Duration) {
        if bytes < LEAST_MEASURED {
            return;
        }
        let now = (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64;
        let before = self.rate.load(Ordering::Relaxed);
        // One batch is sent at a time.
        self.rate.store(before - before / 8 + now / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_wait_follows_the_link_and_the_journal() {
        let limit = DirtyLimit::new((1 << 20, None), Duration::from_secs(30));
        limit.begin_journal(1 << 40);
        assert_eq!(limit.bytes(), 30 * FIRST_RATE);
        for _ in 0..100 {
            limit.sent(1 << 20, Duration::from_secs(1));
        }
        assert!(limit.bytes().abs_diff(30 << 20) < 1 << 20, "{}", limit.bytes());
        for _ in 0..100 {
            limit.sent(1 << 20, Duration::from_secs(100));
        }
        assert_eq!(limit.bytes(), LEAST);
        limit.begin_journal(4 << 20);
        assert_eq!(limit.bytes(), 2 << 20);
    }

    #[test]
    fn what_is_replaced_mostly_waits_when_memory_is_short() {
        let limit = DirtyLimit::new((1 << 20, Some(1 << 19)), Duration::from_secs(30));
        assert!(!limit.is_memory_short((1 << 19) - 1) && limit.is_memory_short(1 << 19));
        limit.coalesced(1 << 20, 1 << 17);
        assert!(!limit.is_memory_short(1 << 20));
        limit.coalesced(1 << 20, 1 << 20);
        assert!(limit.is_memory_short(1 << 19));
    }

    #[test]
    fn what_waits_is_sent_before_a_server_gives_up() {
        let recall = Duration::from_secs(30);
        let limit = DirtyLimit::new((1 << 20, None), recall);
        limit.begin_journal(1 << 40);
        for rate in [1 << 20, 100 << 20] {
            for _ in 0..100 {
                limit.sent(rate, Duration::from_secs(1));
            }
            // On a link that gets a quarter slower.
            let slow = rate as f64 * 0.75;
            let took = Duration::from_secs_f64(limit.most_bytes() as f64 / slow);
            let waits = crate::server::Options::default().recall;
            assert!(took <= waits + Duration::from_secs(1), "{took:?}");
        }
    }
}
