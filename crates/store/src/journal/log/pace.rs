//! Backpressure: how fast writers proceed while writeback makes room in the journal.
//!
//! On a rotational disk a sweep of writeback takes seconds and releases the journal at its end.
//! Writers that used up the remaining room would all stop until then. So while a sweep is under
//! way, the remaining room is shared out over the time until there is more: each writer waits a
//! little, instead of all for the rest of the sweep. Room is granted in pieces, so that a few large
//! writers do not delay many small ones.

use std::time::Duration;

use thalweg_env::Time;

/// The longest that one piece delays the pieces behind it.
const LONGEST: Duration = Duration::from_secs(1);
/// Half-life of the measured speed, in seconds of making room.
const HALF: f64 = 20.0;

/// Shares out the journal's room among writers.
#[derive(Debug, Default)]
pub struct Pace {
    next: Time,
    /// Bytes that were written and not yet charged to a writer.
    owed: usize,
    /// Bytes released lately, and the seconds that took; both decay.
    bytes: f64,
    seconds: f64,
    /// The sweep under way.
    sweep: Option<Sweep>,
}

/// A sweep of writeback that makes room in the journal.
#[derive(Debug)]
struct Sweep {
    begun: Time,
    /// Bytes of room that it will make.
    bytes: u64,
    /// Cost of all of it, and of the part that is in place, in the user's unit.
    work: usize,
    home: usize,
}

impl Sweep {
    fn part(&self) -> f64 {
        (self.home as f64 / self.work.max(1) as f64).min(1.0)
    }
}

impl Pace {
    /// Whether a sweep is under way.
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// A sweep begins that will release `bytes`.
    pub fn begin(&mut self, bytes: u64, now: Time) {
        self.sweep = Some(Sweep { begun: now, bytes, work: 0, home: 0 });
    }

    /// The next batch has `blocks` blocks and costs `work`; `more` blocks follow in later batches.
    pub fn plan(&mut self, work: usize, blocks: usize, more: usize) {
        if let Some(sweep) = &mut self.sweep {
            let each = work as f64 / blocks.max(1) as f64;
            sweep.work = sweep.home + work + (each * more as f64) as usize;
        }
    }

    /// A part of the batch is in place.
    pub fn home(&mut self, work: usize) {
        if let Some(sweep) = &mut self.sweep {
            sweep.home += work;
        }
    }

    /// The sweep has ended and released `bytes`.
    pub fn made(&mut self, bytes: u64, now: Time) {
        let Some(sweep) = self.sweep.take() else { return };
        let seconds = now.since(sweep.begun).as_secs_f64();
        let kept = (-seconds / HALF).exp2();
        self.bytes = self.bytes * kept + bytes as f64;
        self.seconds = self.seconds * kept + seconds;
        self.next = now;
    }

    /// Estimated seconds until there is more room; `None` before anything was measured. `used`:
    /// bytes that a sweep from now would release. The higher of two estimates counts: blocks of
    /// this sweep may lie wider apart than recent ones, and a disk's cache takes the first of them
    /// at once.
    fn seconds_left(&self, used: u64, now: Time) -> Option<f64> {
        let lately = (self.bytes > 0.0).then(|| self.seconds / self.bytes);
        let Some(sweep) = &self.sweep else { return Some(lately? * used as f64) };
        let (part, gone) = (sweep.part(), now.since(sweep.begun).as_secs_f64());
        let lately = lately.map(|cost| cost * sweep.bytes as f64 * (1.0 - part));
        let under_way = (part > 0.0).then(|| gone / part * (1.0 - part));
        lately.into_iter().chain(under_way).max_by(f64::total_cmp)
    }

    /// Notes bytes written, which are charged when [`Pace::share`] charges their writer.
    pub fn owe(&mut self, bytes: usize) {
        self.owed += bytes;
    }

    /// Bytes to charge a writer of `bytes` for: at most what is owed, so that each pays for its
    /// own. Bytes that were written while there was room are charged to no writer.
    pub fn share(&mut self, bytes: usize, is_behind: bool) -> usize {
        if !is_behind {
            self.owed = 0;
        }
        let share = bytes.min(self.owed);
        self.owed -= share;
        share
    }

    /// Grants a piece of a journal of which `used` bytes are in use and `left` can be granted;
    /// returns when it is due.
    pub fn take(&mut self, piece: usize, used: u64, left: u64, now: Time) -> Time {
        let Some(seconds) = self.seconds_left(used, now) else { return now };
        let due = self.next.max(now);
        let span = seconds * piece as f64 / left.max(piece as u64) as f64;
        self.next = due + Duration::from_secs_f64(span).min(LONGEST);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 4096;

    const NOW: Time = Time::from_nanos(50_000_000_000);
    const MIB: u64 = 1 << 20;

    /// Releases `bytes` in the last `seconds` before [`NOW`].
    fn make(pace: &mut Pace, bytes: u64, seconds: u64) {
        let begun = Time::from_nanos(NOW.as_nanos() - seconds * 1_000_000_000);
        pace.begin(bytes, begun);
        pace.made(bytes, NOW);
    }

    /// Begins a sweep that will take one second per MiB.
    fn begun(mib: u64) -> Pace {
        let mut pace = Pace::default();
        make(&mut pace, MIB, 1);
        pace.begin(mib * MIB, NOW);
        pace.plan(1000, 1, 0);
        pace
    }

    fn near(seconds: f64, expected: f64) {
        assert!((seconds - expected).abs() < 1e-6, "{seconds} is not {expected}");
    }

    #[test]
    fn what_is_left_lasts_until_there_is_more() {
        let (mut pace, mut left, mut now) = (begun(8), MIB, NOW);
        let mut pieces = 0;
        while left > 0 && now.since(NOW) < Duration::from_secs(8) {
            // Blocks are written as fast as estimated.
            let home = (now.since(NOW).as_secs_f64() / 8.0 * 1000.0) as usize;
            pace.home(home - pace.sweep.as_ref().unwrap().home);
            let due = pace.take(PIECE, 0, left, now);
            assert!(due.since(now) < Duration::from_millis(100), "{pieces}: {due:?} at {now:?}");
            (left, now, pieces) = (left - PIECE as u64, now.max(due), pieces + 1);
        }
        assert!((240..=256).contains(&pieces), "{pieces} pieces until {now:?}");
        assert!(now.since(NOW) > Duration::from_millis(7500), "{now:?}");
    }

    #[test]
    fn a_turn_is_longer_the_less_is_left() {
        let span = |left| {
            let mut pace = begun(8);
            pace.take(PIECE, 0, left, NOW);
            pace.next.since(NOW).as_secs_f64()
        };
        near(span(MIB), 8.0 / 256.0);
        near(span(MIB / 4), 8.0 / 64.0);
        // A request beyond all room delays others no longer than that.
        assert_eq!(span(0), LONGEST.as_secs_f64());
    }

    #[test]
    fn nobody_waits_before_something_was_measured() {
        let mut pace = Pace::default();
        pace.begin(MIB, NOW);
        pace.plan(1000, 1, 0);
        assert_eq!(pace.take(PIECE, MIB, MIB, NOW), NOW);
        assert_eq!(pace.take(PIECE, MIB, MIB, NOW), NOW);
    }

    #[test]
    fn when_there_is_room_nobody_waits_for_those_before() {
        let mut pace = begun(8);
        for _ in 0..100 {
            pace.take(PIECE, 0, MIB, NOW);
        }
        assert!(pace.next > NOW + Duration::from_secs(3));
        pace.made(8 * MIB, NOW);
        assert_eq!(pace.take(PIECE, MIB, MIB, NOW), NOW);
    }

    #[test]
    fn each_pays_for_what_he_wrote_and_nobody_for_what_there_was_room_for() {
        let mut pace = Pace::default();
        pace.owe(100);
        assert_eq!(pace.share(30, true), 30);
        assert_eq!(pace.share(100, true), 70);
        pace.owe(100);
        assert_eq!(pace.share(100, false), 0);
        assert_eq!(pace.share(100, true), 0);
    }

    #[test]
    fn what_was_measured_lately_counts_more() {
        let mut pace = Pace::default();
        make(&mut pace, 100 * MIB, 10);
        (0..100).for_each(|_| make(&mut pace, MIB, 10));
        let seconds = pace.seconds_left(MIB, NOW).unwrap();
        assert!((seconds - 10.0).abs() < 0.01, "{seconds}");
    }

    #[test]
    fn what_is_under_way_counts_as_far_as_it_is() {
        let mut pace = Pace::default();
        pace.begin(MIB, NOW);
        pace.plan(250, 10, 30);
        assert_eq!(pace.seconds_left(0, NOW), None);
        pace.home(250);
        // At this rate the whole takes four seconds.
        let later = NOW + Duration::from_secs(1);
        near(pace.seconds_left(0, later).unwrap(), 3.0);
        // A higher recent speed does not count; a lower one does.
        (pace.bytes, pace.seconds) = (MIB as f64, 1.0);
        near(pace.seconds_left(0, later).unwrap(), 3.0);
        pace.seconds = 40.0;
        near(pace.seconds_left(0, later).unwrap(), 30.0);
        // More blocks than planned: the time left is never negative.
        pace.home(10_000);
        near(pace.seconds_left(0, later).unwrap(), 0.0);
    }
}
