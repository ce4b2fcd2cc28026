//! The arm of a disk, as the reads that are sent to it show where it is.
//!
//! A disk with a queue serves what it reaches first, and says neither where its arm is nor what the angle of its platter is.
//! So the order in which it will serve reads is not known, but for the one that is under way.

use smallvec::SmallVec;
use thalweg_env::Time;

/// What is known of a disk's arm.
#[derive(Clone, Debug, Default)]
pub(super) struct Arm {
    /// Where the last read was that has ended.
    at: Option<u64>,
    /// When the disk began with the read that it serves.
    since: Time,
    /// Reads that have begun and have not ended.
    waiting: SmallVec<[u64; 8]>,
}

/// The way of the arm to a read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Way {
    /// The root of its length, which is a part of the device. Seek times grow with it.
    pub(super) root: f64,
    /// Nanoseconds for which another read has been served already.
    pub(super) served: f64,
}

impl Arm {
    /// A read begins.
    pub(super) fn begin(&mut self, offset: u64, now: Time) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.waiting.push(offset);
    }

    /// A read has ended, or was given up.
    pub(super) fn end(&mut self, offset: u64, now: Time) {
        if let Some(nth) = self.waiting.iter().position(|waiting| *waiting == offset) {
            self.waiting.swap_remove(nth);
            (self.at, self.since) = (Some(offset), now);
        }
    }

    /// The way to a read at `offset` that would begin now, on a device of `size` bytes.
    pub(super) fn way_to(&self, offset: u64, size: u64, now: Time) -> Way {
        let root = |from: &u64| (from.abs_diff(offset) as f64 / size.max(1) as f64).sqrt();
        if self.waiting.is_empty() {
            return Way { root: self.at.as_ref().map_or(0.0, root), served: 0.0 };
        }
        // It begins at one of those that wait, more often at one nearby.
        let (mut sum, mut least) = (0.0, f64::INFINITY);
        for root in self.waiting.iter().map(root) {
            (sum, least) = (sum + root, least.min(root));
        }
        let mean = sum / self.waiting.len() as f64;
        Way { root: (mean + least) / 2.0, served: now.since(self.since).as_nanos() as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_arm_is_where_the_last_read_ended_or_at_those_that_wait() {
        let mut arm = Arm::default();
        let way = |arm: &Arm, offset, ms| arm.way_to(offset, 100, at(ms));
        // Nothing is known yet.
        assert_eq!(way(&arm, 64, 0), Way::default());
        arm.begin(0, at(5));
        assert_eq!(way(&arm, 64, 7), Way { root: 0.8, served: 2e6 });
        arm.begin(48, at(8));
        let Way { root, served } = way(&arm, 64, 9);
        assert!((root - (0.6 + 0.4) / 2.0).abs() < 1e-9 && served == 4e6, "{root} {served}");
        // The first one ends, and the other one is served.
        arm.end(0, at(10));
        assert_eq!(way(&arm, 64, 11), Way { root: 0.4, served: 1e6 });
        arm.end(48, at(20));
        assert_eq!(way(&arm, 64, 90), Way { root: 0.4, served: 0.0 });
        // One that is not known changes nothing.
        arm.end(3, at(99));
        assert_eq!(way(&arm, 48, 99), Way { root: 0.0, served: 0.0 });
    }
}
