//! The part of the ring in use.
//!
//! Offsets count bytes since the journal was created and never repeat; the offset modulo the ring's
//! size is the place on the device.

use std::collections::VecDeque;

use crate::journal::format::Tail;

/// Transactions that are not released, from tail to head.
#[derive(Debug)]
pub(super) struct Ring {
    /// Their offsets and stamps, oldest first.
    live: VecDeque<(u64, u64)>,
    head: u64,
    /// The number of the next transaction.
    next: u64,
    /// The stamp of the last released transaction.
    released: u64,
    /// Bytes and stamps of transactions that were sent and are not durable, oldest first.
    sent: VecDeque<(u64, u64)>,
}

/// The place of a transaction that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) sequence: u64,
    /// Transactions just before it that were not durable yet.
    pub(super) in_flight: u8,
}

impl Ring {
    /// An empty ring whose next transaction is `next`, at offset `head`.
    pub(super) fn new(head: u64, next: u64, released: u64) -> Ring {
        Ring { live: VecDeque::new(), head, next, released, sent: VecDeque::new() }
    }

    /// The place of the next transaction to be sent.
    pub(super) fn place(&self) -> Place {
        let in_flight = self.sent.len() as u8;
        let offset = self.head + self.in_flight();
        Place { offset, sequence: self.next + u64::from(in_flight), in_flight }
    }

    /// Bytes of transactions that are not durable yet.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent.iter().map(|(bytes, _)| bytes).sum()
    }

    /// A transaction of `bytes` is sent to [`Ring::place`].
    pub(super) fn send(&mut self, bytes: u64, stamp: u64) {
        self.sent.push_back((bytes, stamp));
    }

    /// The oldest transaction that was sent is durable.
    pub(super) fn sent(&mut self) {
        if let Some((bytes, stamp)) = self.sent.pop_front() {
            self.push(bytes, stamp);
        }
    }

    /// Where recovery would begin.
    pub(super) fn tail(&self) -> Tail {
        Tail {
            offset: self.live.front().map_or(self.head, |(offset, _)| *offset),
            sequence: self.next - self.live.len() as u64,
            stamp: self.released,
        }
    }

    /// The number of the first transaction that is not durable.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        (!self.live.is_empty()).then(|| self.tail().sequence)
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.head - self.tail().offset
    }

    /// Adds a durable transaction of `bytes`.
    fn push(&mut self, bytes: u64, stamp: u64) {
        self.live.push_back((self.head, stamp));
        self.head += bytes;
        self.next += 1;
    }

    /// Releases transactions before `sequence`.
    pub(super) fn release(&mut self, sequence: u64) {
        while self.oldest().is_some_and(|oldest| oldest < sequence) {
            if let Some((_, stamp)) = self.live.pop_front() {
                self.released = stamp;
            }
        }
    }

    /// Releases all transactions.
    pub(super) fn clear(&mut self) -> Tail {
        self.release(self.next);
        self.tail()
    }
}
