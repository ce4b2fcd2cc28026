//! Inode numbers that are reserved for this client, for what it makes by itself.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thalweg_fs::Ino;

use crate::protocol::MAX_SPENT;

/// Numbers that are left when the client reserves further ones.
const FEW_NUMBERS: u64 = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Reservation {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) inode_token: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ReservedNumbers {
    reservation: Reservation,
    left: Range<u64>,
    /// Numbers that were taken, and of which it is not told yet whether an inode has them.
    taken: u32,
    /// The last mutation that uses one of them.
    last: u64,
}

/// Inode numbers that are reserved for this client. The lock is taken under no other one.
#[derive(Default)]
pub(super) struct InodeNumbers {
    ranges: Mutex<VecDeque<ReservedNumbers>>,
    /// One reservation at a time: the right to reserve more.
    pub(super) reserving: tokio::sync::Mutex<()>,
}

impl InodeNumbers {
    pub(super) fn are_few(&self) -> bool {
        let ranges = self.ranges.lock();
        ranges.iter().map(|it| it.left.end - it.left.start).sum::<u64>() < FEW_NUMBERS
    }

    pub(super) fn add(&self, reservation: Reservation) {
        let Reservation { first, count, .. } = reservation;
        let left = first..first.saturating_add(count);
        self.ranges.lock().push_back(ReservedNumbers { reservation, left, taken: 0, last: 0 });
    }

    /// A number for an inode that is about to be made: [`InodeNumbers::used`] follows.
    pub(super) fn acquire(&self) -> Option<Ino> {
        let mut ranges = self.ranges.lock();
        let range = ranges.iter_mut().find(|it| !it.left.is_empty())?;
        range.taken += 1;
        range.left.next().map(Ino)
    }

    /// An inode has this number since that mutation, or none has: then another one gets it.
    pub(super) fn used(&self, number: Ino, mutation: Option<u64>) {
        let mut ranges = self.ranges.lock();
        let is_of = |it: &&mut ReservedNumbers| {
            it.taken > 0 && (it.reservation.first..it.left.start).contains(&number.0)
        };
        // None after the session has ended.
        let Some(range) = ranges.iter_mut().find(is_of) else { return };
        range.taken -= 1;
        match mutation {
            Some(mutation) => range.last = range.last.max(mutation),
            None if number.0 + 1 == range.left.start => range.left.start -= 1,
            // A later one is in use: no inode gets this one.
            None => {}
        }
    }

    /// Of numbers that no inode gets, the highest ones of their reservations.
    pub(super) fn highest_of(&self, gone: impl Iterator<Item = Ino>) -> Vec<Ino> {
        let ranges = self.ranges.lock();
        let mut highest = vec![0; ranges.len()];
        for Ino(number) in gone {
            let is_of =
                |it: &ReservedNumbers| (it.reservation.first..it.left.start).contains(&number);
            if let Some(at) = ranges.iter().position(is_of) {
                highest[at] = number.max(highest[at]);
            }
        }
        highest.into_iter().filter(|number| *number > 0).take(MAX_SPENT).map(Ino).collect()
    }

    /// The server has the mutations up to this one.
    pub(super) fn sent(&self, last: u64) {
        self.ranges.lock().retain(|it| !it.left.is_empty() || it.taken > 0 || it.last > last);
    }

    /// Reservations of numbers that inodes may get, also with mutations that the server does not have.
    pub(super) fn reservations(&self) -> Vec<Reservation> {
        self.ranges.lock().iter().map(|it| it.reservation).collect()
    }

    /// All of them, for the client that goes on with the session on another machine.
    pub(super) fn export(&self) -> Vec<ReservedNumbers> {
        self.ranges.lock().iter().cloned().collect()
    }

    /// The session goes on here with these.
    pub(super) fn import(&self, numbers: Vec<ReservedNumbers>) {
        let ranges = numbers.into_iter().filter(|it| it.left.start <= it.left.end);
        *self.ranges.lock() = ranges.map(|it| ReservedNumbers { taken: 0, ..it }).collect();
    }

    pub(super) fn end_session(&self) {
        self.ranges.lock().clear();
    }
}
