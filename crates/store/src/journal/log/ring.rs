//! The part of the ring in use.
//!
//! Offsets count bytes since the journal was created and never repeat; the offset modulo the ring's
//! size is the place on the device.

use std::collections::VecDeque;

use super::place::{RecordPlace, SendPlace};
use crate::journal::format::Tail;

/// A transaction in the ring that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveRecord {
    pub(super) offset: u64,
    pub(super) stamp: u64,
    pub(super) epoch: u64,
}

/// Where a transaction lies that is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveExtent {
    pub(super) bytes: u64,
    pub(super) epoch: u64,
}

/// Transactions that are not released, from tail to head.
#[derive(Debug)]
pub(super) struct Ring {
    /// They are durable; oldest first.
    live: VecDeque<LiveRecord>,
    head: u64,
    /// The epoch of transactions that are sent.
    epoch: u64,
    /// The number of the next transaction.
    next: u64,
    /// The stamp of the last released transaction.
    released: u64,
    /// Bytes and stamps of transactions that were sent and are not durable, oldest first.
    sent: VecDeque<(u64, u64)>,
}

impl Ring {
    /// A ring that holds some transactions, before `next` at offset `head`. `released`: the stamp of the one before.
    pub(super) fn new(
        live: VecDeque<LiveRecord>,
        (head, next): (u64, u64),
        released: u64,
        epoch: u64,
    ) -> Ring {
        assert!(live.iter().all(|record| record.offset < head && record.epoch <= epoch));
        assert!(next >= live.len() as u64, "transactions have consecutive numbers");
        Ring { live, head, epoch, next, released, sent: VecDeque::new() }
    }

    /// The place of the next transaction to be sent.
    pub(super) fn place(&self) -> SendPlace {
        let in_flight = self.sent.len() as u8;
        let offset = self.head + self.in_flight();
        SendPlace { offset, sequence: self.next + u64::from(in_flight), in_flight }
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
        let oldest = self.live.front();
        Tail {
            offset: oldest.map_or(self.head, |record| record.offset),
            sequence: self.next - self.live.len() as u64,
            epoch: oldest.map_or(self.epoch, |record| record.epoch),
            stamp: self.released,
        }
    }

    /// Where a transaction lies, if it is durable and not released.
    pub(super) fn find(&self, place: RecordPlace) -> Option<LiveExtent> {
        let nth = usize::try_from(place.sequence.checked_sub(self.tail().sequence)?).ok()?;
        let record = self.live.get(nth).filter(|record| record.offset == place.offset)?;
        let end = self.live.get(nth + 1).map_or(self.head, |next| next.offset);
        Some(LiveExtent { bytes: end - record.offset, epoch: record.epoch })
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
        self.live.push_back(LiveRecord { offset: self.head, stamp, epoch: self.epoch });
        self.head += bytes;
        self.next += 1;
    }

    /// Releases transactions before `sequence`.
    pub(super) fn release(&mut self, sequence: u64) {
        while self.oldest().is_some_and(|oldest| oldest < sequence) {
            if let Some(record) = self.live.pop_front() {
                self.released = record.stamp;
            }
        }
    }

    /// An epoch begins; no transaction is in flight.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        assert!(self.sent.is_empty() && epoch > self.epoch, "an epoch begins between appends");
        self.epoch = epoch;
    }

    /// Releases all transactions.
    pub(super) fn clear(&mut self) -> Tail {
        self.release(self.next);
        self.tail()
    }
}
