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
}

impl Ring {
    /// An empty ring whose next transaction is `next`, at offset `head`.
    pub(super) fn new(head: u64, next: u64, released: u64) -> Ring {
        Ring { live: VecDeque::new(), head, next, released }
    }

    /// Where the next transaction begins.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Where recovery would begin.
    pub(super) fn tail(&self) -> Tail {
        Tail {
            offset: self.live.front().map_or(self.head, |(offset, _)| *offset),
            sequence: self.next - self.live.len() as u64,
            stamp: self.released,
        }
    }

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

    /// Adds a transaction of `bytes`.
    pub(super) fn push(&mut self, bytes: u64, stamp: u64) {
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
