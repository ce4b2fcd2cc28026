//! Which part of the ring is in use.
//!
//! Offsets count bytes from the journal's beginning on and never come back; where they lie on the
//! device is their remainder.

use std::collections::VecDeque;

/// The transactions that are not released, from tail to head.
#[derive(Debug)]
pub(super) struct Ring {
    /// Their offsets, the oldest first.
    live: VecDeque<u64>,
    head: u64,
    /// The number of the next transaction.
    next: u64,
}

impl Ring {
    /// No transactions; the next one is `next`, at `head`.
    pub(super) fn new(head: u64, next: u64) -> Ring {
        Ring { live: VecDeque::new(), head, next }
    }

    /// Where the next transaction begins.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Where the oldest transaction begins, and its number.
    pub(super) fn tail(&self) -> (u64, u64) {
        (self.live.front().copied().unwrap_or(self.head), self.next - self.live.len() as u64)
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.next
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        (!self.live.is_empty()).then_some(self.tail().1)
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.head - self.tail().0
    }

    /// Adds a transaction of `bytes`.
    pub(super) fn push(&mut self, bytes: u64) {
        self.live.push_back(self.head);
        self.head += bytes;
        self.next += 1;
    }

    /// Takes out those before `sequence`.
    pub(super) fn release(&mut self, sequence: u64) {
        while self.oldest().is_some_and(|oldest| oldest < sequence) {
            self.live.pop_front();
        }
    }

    /// Takes out all; where the next one begins, and its number.
    pub(super) fn clear(&mut self) -> (u64, u64) {
        self.live.clear();
        (self.head, self.next)
    }
}
