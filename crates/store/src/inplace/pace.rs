//! How fast writers go while room is made in the journal.
//!
//! On a drive that moves an arm room comes some seconds' worth of it at a time: when all that the journal
//! said is home. Writers who took what there is meanwhile would all stop until then. So while room is being
//! made, what is left of it is shared out over the time until there is more: each waits a little for his
//! turn, instead of all for the rest of a sweep; and in pieces, so that a few who write much do not keep
//! many waiting who write little.

use std::time::Duration;

use super::Inner;
use super::stages::Stage;
use super::state::State;
use crate::block::BLOCK_SIZE;
use crate::env::Time;

/// The part of the journal that nobody waits his turn for: a forecast may be a little wrong.
const RESERVE: f64 = 0.02;
/// Bytes that one takes room for at a time.
const PIECE: usize = BLOCK_SIZE;
/// The longest that one piece keeps those waiting who come after it.
const LONGEST: Duration = Duration::from_secs(1);
/// What is less adds up first: timers are not finer.
const LEAST: Duration = Duration::from_millis(1);
/// How long before his last piece is due one may go on. Who takes but one seldom waits then, and who takes
/// many waits for those before.
const EARLY: Duration = Duration::from_millis(10);
/// How often one who waits looks whether there is room by now.
const LOOK: Duration = Duration::from_millis(20);
/// Seconds of making room after which what was measured before counts half.
const HALF: f64 = 20.0;

/// When the next piece may be taken.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next: Time,
    /// Bytes that were taken and that nobody was held back for yet.
    owed: usize,
    /// Bytes that were released lately, and the seconds that it took.
    bytes: f64,
    seconds: f64,
    /// What is under way.
    sweep: Option<Sweep>,
}

/// Blocks that go home to make room.
#[derive(Debug)]
struct Sweep {
    begun: Time,
    /// The room that will be made.
    bytes: u64,
    /// What all of it takes, and what is home of it.
    work: usize,
    home: usize,
}

impl Sweep {
    fn part(&self) -> f64 {
        (self.home as f64 / self.work.max(1) as f64).min(1.0)
    }
}

/// What it takes to write so many neighbouring blocks, in times of what one block more takes: an arm has to
/// go there, and to wait for the platter.
pub(super) fn work(blocks: usize) -> usize {
    const POSITIONING: usize = 32;
    POSITIONING + blocks
}

impl Pace {
    /// Room for so many bytes is being made.
    pub(super) fn begin(&mut self, bytes: u64, now: Time) {
        self.sweep = Some(Sweep { begun: now, bytes, work: 0, home: 0 });
    }

    /// So many blocks go home next, which take so much [`work`], and so many more after them.
    pub(super) fn plan(&mut self, work: usize, blocks: usize, more: usize) {
        if let Some(sweep) = &mut self.sweep {
            let each = work as f64 / blocks.max(1) as f64;
            sweep.work = sweep.home + work + (each * more as f64) as usize;
        }
    }

    /// Some more of it is done.
    pub(super) fn home(&mut self, work: usize) {
        if let Some(sweep) = &mut self.sweep {
            sweep.home += work;
        }
    }

    /// What was begun has ended, and made room for so many bytes.
    pub(super) fn made(&mut self, bytes: u64, now: Time) {
        let Some(sweep) = self.sweep.take() else { return };
        let seconds = now.since(sweep.begun).as_secs_f64();
        let kept = (-seconds / HALF).exp2();
        self.bytes = self.bytes * kept + bytes as f64;
        self.seconds = self.seconds * kept + seconds;
        self.next = now;
    }

    /// Seconds until there is more room, as far as something is known of it. `used`: bytes that will be
    /// released. What goes home now may lie wider apart than what did lately; and a drive's cache takes the
    /// first of it at once.
    fn seconds_left(&self, used: u64, now: Time) -> Option<f64> {
        let lately = (self.bytes > 0.0).then(|| self.seconds / self.bytes);
        let Some(sweep) = &self.sweep else { return Some(lately? * used as f64) };
        let (part, gone) = (sweep.part(), now.since(sweep.begun).as_secs_f64());
        let lately = lately.map(|cost| cost * sweep.bytes as f64 * (1.0 - part));
        let under_way = (part > 0.0).then(|| gone / part * (1.0 - part));
        lately.into_iter().chain(under_way).max_by(f64::total_cmp)
    }

    /// Somebody took so many bytes, and is held back when he has done his writes.
    pub(super) fn owe(&mut self, bytes: usize) {
        self.owed += bytes;
    }

    /// For how many bytes one is held back who wrote so many: what others took meanwhile is theirs to pay,
    /// and what was taken while there was room is nobody's.
    fn share(&mut self, bytes: usize, is_behind: bool) -> usize {
        if !is_behind {
            self.owed = 0;
        }
        let share = bytes.min(self.owed);
        self.owed -= share;
        share
    }

    /// Somebody takes a piece of a journal of which so many bytes are used and so many can be taken. When
    /// his turn is.
    fn take(&mut self, piece: usize, used: u64, left: u64, now: Time) -> Time {
        let Some(seconds) = self.seconds_left(used, now) else { return now };
        let due = self.next.max(now);
        let span = seconds * piece as f64 / left.max(piece as u64) as f64;
        self.next = due + Duration::from_secs_f64(span).min(LONGEST);
        due
    }
}

impl Inner {
    /// Holds somebody back who wrote so many blocks, for the room that they take in a journal in which room
    /// is being made. A piece at a time: who wrote little passes who wrote much.
    pub(super) async fn hold_back(&self, blocks: usize) {
        let mut owed = {
            let mut state = self.state.lock();
            let is_behind = self.is_behind(&state);
            state.pace.share(blocks * BLOCK_SIZE, is_behind)
        };
        let since = (owed > 0).then(|| self.env.now());
        while owed > 0 {
            let piece = owed.min(PIECE);
            owed -= piece;
            let due = {
                let mut state = self.state.lock();
                if !self.is_behind(&state) {
                    return;
                }
                let used = self.journal.size() - self.journal.room();
                let left = self.left(&state);
                state.pace.take(piece, used, left, self.env.now())
            };
            let early = if owed == 0 { EARLY } else { Duration::ZERO };
            self.wait_for_turn(due, early).await;
        }
        since.map(|since| self.stage(Stage::Backpressure, since));
    }

    /// Waits until a turn, or `early`, unless there is room before.
    async fn wait_for_turn(&self, due: Time, early: Duration) {
        loop {
            let wait = due.since(self.env.now()).saturating_sub(early);
            if wait < LEAST || !self.is_behind(&self.state.lock()) {
                return;
            }
            self.env.sleep(wait.min(LOOK)).await;
        }
    }

    /// Whether waiting leaves more room. A store that failed makes none.
    fn is_behind(&self, state: &State) -> bool {
        state.poison.is_none() && (state.pace.sweep.is_some() || self.is_short())
    }

    /// Bytes of the journal that can be taken when all is committed.
    fn left(&self, state: &State) -> u64 {
        let coming = (state.running.bytes + state.closing) as u64;
        let reserve = (self.journal.size() as f64 * RESERVE) as u64;
        self.journal.room().saturating_sub(coming + reserve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(50_000_000_000);
    const MIB: u64 = 1 << 20;

    /// Room for `bytes` was made within some seconds before [`NOW`].
    fn make(pace: &mut Pace, bytes: u64, seconds: u64) {
        let begun = Time::from_nanos(NOW.as_nanos() - seconds * 1_000_000_000);
        pace.begin(bytes, begun);
        pace.made(bytes, NOW);
    }

    /// A sweep has begun that will take as many seconds as it makes MiB of room.
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
            // Blocks go home as fast as was thought.
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
        // What is more than all keeps others waiting no longer than that.
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
        // It went faster lately, which does not count; or slower, which does.
        (pace.bytes, pace.seconds) = (MIB as f64, 1.0);
        near(pace.seconds_left(0, later).unwrap(), 3.0);
        pace.seconds = 40.0;
        near(pace.seconds_left(0, later).unwrap(), 30.0);
        // More than were meant to go home do not take less than no time.
        pace.home(10_000);
        near(pace.seconds_left(0, later).unwrap(), 0.0);
    }
}
