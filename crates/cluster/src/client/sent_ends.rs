//! Where batches end that were sent: the server's position is one of these, unless its volume is of an earlier time, or another client has
//! gone on with the session.

use std::collections::VecDeque;

use parking_lot::Mutex;
use thalweg_fs::session_table::JournalPosition;

/// The ends of batches from the last one on that is known to be durable, in their order.
#[derive(Debug, Default)]
pub(super) struct SentEnds(Mutex<VecDeque<JournalPosition>>);

impl SentEnds {
    /// The server is at this position, and nothing was sent.
    pub(super) fn begin(&self, at: JournalPosition) {
        *self.0.lock() = VecDeque::from([at]);
    }

    /// A batch is about to be sent.
    pub(super) fn push(&self, end: JournalPosition) {
        let mut ends = self.0.lock();
        // A batch that was refused is divided: then others end before it.
        match ends.iter().rposition(|it| it.position <= end.position) {
            Some(at) if ends[at] == end => {}
            Some(at) => ends.insert(at + 1, end),
            None => ends.push_front(end),
        }
    }

    /// The server has made everything up to this position durable, and never goes back behind it.
    pub(super) fn release(&self, position: u64) {
        let mut ends = self.0.lock();
        while ends.get(1).is_some_and(|it| it.position <= position) {
            ends.pop_front();
        }
    }

    /// Whether the server may be at this position.
    pub(super) fn contains(&self, position: JournalPosition) -> bool {
        self.0.lock().contains(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> JournalPosition {
        JournalPosition { position, hash: position * 7 }
    }

    #[test]
    fn an_end_counts_until_a_later_one_is_durable() {
        let ends = SentEnds::default();
        ends.begin(at(3));
        // The batch up to 9 was divided.
        [9, 5, 9, 12].into_iter().for_each(|it| ends.push(at(it)));
        for it in [3, 5, 9, 12] {
            assert!(ends.contains(at(it)));
        }
        for wrong in [at(4), at(13), JournalPosition { hash: 1, ..at(9) }] {
            assert!(!ends.contains(wrong), "{wrong:?}");
        }
        ends.release(10);
        assert_eq!([3, 5, 9, 12].map(|it| ends.contains(at(it))), [false, false, true, true]);
        ends.release(12);
        assert_eq!([9, 12].map(|it| ends.contains(at(it))), [false, true]);
    }
}
