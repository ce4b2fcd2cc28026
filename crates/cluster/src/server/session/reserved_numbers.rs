//! Inode numbers that are reserved for a client.

use std::collections::VecDeque;
use std::ops::Range;

/// Ranges that are kept when they are used up: of changes at the same time, one with a lower number may come later.
const KEPT: usize = 4;

/// A range of numbers, which a client uses from its start on.
#[derive(Debug)]
struct Reservation {
    numbers: Range<u64>,
    /// The lowest one that no inode has.
    next: u64,
    /// No inode ever had one of those from there on.
    is_new: bool,
}

/// Inode numbers of a client.
#[derive(Debug, Default)]
pub(in crate::server) struct ReservedNumbers {
    reservations: Vec<Reservation>,
    used_up: VecDeque<Range<u64>>,
}

impl ReservedNumbers {
    /// Ranges that are not used up.
    pub(super) fn len(&self) -> usize {
        self.reservations.len()
    }

    /// Numbers are the client's; with `is_new`, no inode ever had one.
    pub(super) fn add(&mut self, numbers: Range<u64>, is_new: bool) {
        assert!(numbers.start <= numbers.end, "a range of inode numbers ends before it begins");
        let next = numbers.start;
        self.reservations.push(Reservation { numbers, next, is_new });
    }

    /// Whether a new inode of the client may have this number.
    pub(super) fn has(&self, number: u64) -> bool {
        self.reservations.iter().any(|it| it.numbers.contains(&number))
            || self.used_up.iter().any(|numbers| numbers.contains(&number))
    }

    /// The client uses no higher number of a range before this one.
    pub(super) fn use_up_to(&mut self, number: u64) {
        let found = self.reservations.iter().position(|it| it.numbers.contains(&number));
        let Some(at) = found else { return };
        let reservation = &mut self.reservations[at];
        reservation.next = reservation.next.max(number + 1);
        if reservation.next == reservation.numbers.end {
            self.used_up.push_back(self.reservations.swap_remove(at).numbers);
            if self.used_up.len() > KEPT {
                self.used_up.pop_front();
            }
        }
    }

    /// Takes those that no inode ever had.
    pub(super) fn take_unused(&mut self) -> Vec<Range<u64>> {
        let reservations = std::mem::take(&mut self.reservations).into_iter();
        reservations.filter(|it| it.is_new).map(|it| it.next..it.numbers.end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_changes_at_the_same_time_come_in_any_order() {
        let mut numbers = ReservedNumbers::default();
        numbers.add(10..13, true);
        numbers.add(20..30, true);
        numbers.add(40..50, false);
        for used in [12, 21, 41] {
            numbers.use_up_to(used);
        }
        // A lower one comes later, also when its range has no further one.
        assert!(numbers.has(11) && numbers.has(20) && !numbers.has(13) && !numbers.has(9));
        numbers.use_up_to(20);
        assert_eq!(numbers.len(), 2);
        for range in 10..10 + KEPT as u64 {
            numbers.add(range * 10..range * 10 + 1, true);
            numbers.use_up_to(range * 10);
        }
        assert!(!numbers.has(11), "it is long ago");
        assert!(numbers.take_unused().into_iter().flatten().eq(22..30));
        assert_eq!(numbers.len(), 0);
    }
}
