//! How fast writers go while the journal is short of room.
//!
//! Room comes as fast as blocks go home, whatever writers do, and some seconds' worth of it at a time on a
//! drive that moves an arm. Writers who took what there is would all stop for these seconds. So when most
//! of the journal is taken, who takes more is held back for about the time in which as much is made: less
//! while much is left, more when little is. Each waits a little for his turn, instead of all for a whole
//! sweep; and in pieces, so that a few who write much do not keep many waiting who write little.

use std::time::Duration;

use super::Inner;
use super::state::State;
use crate::block::BLOCK_SIZE;
use crate::env::Time;

/// From this part of the journal on.
const FREE: f64 = 0.8;
/// Bytes that one takes room for at a time.
const PIECE: usize = BLOCK_SIZE;
/// The most that one is held back, in times of what it takes to make as much room.
const MOST: f64 = 8.0;
/// The longest that one waits for the sake of those before.
const LONGEST: Duration = Duration::from_secs(1);
/// What is less adds up first: timers are not finer.
const LEAST: Duration = Duration::from_millis(1);
/// Seconds of making room after which what was measured before counts half.
const HALF: f64 = 20.0;

/// Whether writers are held back when this part of the journal is taken.
fn holds_back(taken: f64) -> bool {
    taken > FREE
}

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
    blocks: usize,
    /// How many are home.
    home: usize,
}

impl Sweep {
    fn part(&self) -> f64 {
        (self.home as f64 / self.blocks.max(1) as f64).min(1.0)
    }
}

impl Pace {
    /// Room for so many bytes will be there when so many blocks are home.
    pub(super) fn begin(&mut self, bytes: u64, blocks: usize, now: Time) {
        self.sweep = Some(Sweep { begun: now, bytes, blocks, home: 0 });
    }

    /// Some more are home.
    pub(super) fn home(&mut self, blocks: usize) {
        if let Some(sweep) = &mut self.sweep {
            sweep.home += blocks;
        }
    }

    /// What was begun has ended, and made room for so many bytes.
    pub(super) fn made(&mut self, bytes: u64, now: Time) {
        let Some(sweep) = self.sweep.take() else { return };
        let seconds = now.since(sweep.begun).as_secs_f64();
        let kept = (-seconds / HALF).exp2();
        self.bytes = self.bytes * kept + bytes as f64;
        self.seconds = self.seconds * kept + seconds;
    }

    /// Seconds that it takes to make room for a byte, as far as something is known of it. What goes home
    /// now may lie wider apart than what did lately; and a drive's cache takes the first of it at once.
    fn cost(&self, now: Time) -> Option<f64> {
        let cost = |bytes: f64, seconds: f64| (bytes > 0.0).then(|| seconds / bytes);
        let lately = cost(self.bytes, self.seconds);
        let under_way = self.sweep.as_ref().and_then(|sweep| {
            cost(sweep.bytes as f64 * sweep.part(), now.since(sweep.begun).as_secs_f64())
        });
        lately.into_iter().chain(under_way).max_by(f64::total_cmp)
    }

    /// Somebody took so many bytes, and is held back when he has done his writes.
    pub(super) fn owe(&mut self, bytes: usize) {
        self.owed += bytes;
    }

    /// For how many bytes one is held back who wrote so many: what others took meanwhile is theirs to pay,
    /// and what was taken while there was room is nobody's.
    fn share(&mut self, bytes: usize, taken: f64) -> usize {
        if !holds_back(taken) {
            self.owed = 0;
        }
        let share = bytes.min(self.owed);
        self.owed -= share;
        share
    }

    /// Somebody takes so many bytes of a journal of which this part is taken.
    fn take(&mut self, bytes: usize, taken: f64, now: Time) {
        let Some(cost) = self.cost(now).filter(|_| holds_back(taken)) else { return };
        let short = (taken - FREE) / (1.0 - FREE);
        let factor = if short < 1.0 { (short / (1.0 - short)).min(MOST) } else { MOST };
        let span = Duration::from_secs_f64(bytes as f64 * cost * factor);
        self.next = self.next.max(now) + span.min(LONGEST);
    }

    /// How long the next one has to wait.
    fn wait(&self, now: Time) -> Option<Duration> {
        let left = self.next.since(now);
        (left >= LEAST).then_some(left.min(LONGEST))
    }
}

impl Inner {
    /// Holds somebody back who wrote so many blocks, for the room that they take in a journal that is short
    /// of it. A piece at a time: who wrote little passes who wrote much.
    pub(super) async fn hold_back(&self, blocks: usize) {
        let mut owed = {
            let mut state = self.state.lock();
            let taken = self.taken(&state);
            state.pace.share(blocks * BLOCK_SIZE, taken)
        };
        while owed > 0 && self.is_behind() {
            self.pay(&mut owed).await;
        }
    }

    /// Whether waiting leaves more room. A store that failed makes none.
    fn is_behind(&self) -> bool {
        let state = self.state.lock();
        state.poison.is_none() && holds_back(self.taken(&state))
    }

    /// Waits for a piece of the room that somebody owes, after those who came before.
    async fn pay(&self, owed: &mut usize) {
        let _turn = self.pacing.lock().await;
        loop {
            let wait = {
                let mut state = self.state.lock();
                let now = self.env.now();
                let wait = state.pace.wait(now);
                if wait.is_none() {
                    let (piece, taken) = ((*owed).min(PIECE), self.taken(&state));
                    state.pace.take(piece, taken, now);
                    *owed -= piece;
                }
                wait
            };
            match wait {
                Some(wait) => self.env.sleep(wait).await,
                None => return,
            }
        }
    }

    /// The part of the journal that is taken, with what will be when all is committed.
    fn taken(&self, state: &State) -> f64 {
        let size = self.journal.size();
        let coming = state.running.bytes + state.closing;
        (size - self.journal.room() + coming as u64) as f64 / size as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(50_000_000_000);

    /// Room for `bytes` was made within some seconds before [`NOW`].
    fn make(pace: &mut Pace, bytes: u64, seconds: u64) {
        let begun = Time::from_nanos(NOW.as_nanos() - seconds * 1_000_000_000);
        pace.begin(bytes, 1, begun);
        pace.made(bytes, NOW);
    }

    fn held_back(bytes: usize, taken: f64) -> Duration {
        let mut pace = Pace::default();
        make(&mut pace, 1 << 20, 1);
        pace.take(bytes, taken, NOW);
        pace.wait(NOW).unwrap_or_default()
    }

    #[test]
    fn who_is_held_back_waits_longer_the_less_room_is_left() {
        assert_eq!(held_back(1 << 16, FREE), Duration::ZERO);
        let waits: Vec<_> = [0.82, 0.85, 0.9, 0.95].map(|taken| held_back(1 << 16, taken)).into();
        assert!(waits.is_sorted() && waits[0] > Duration::ZERO, "{waits:?}");
        // Half way to the end as much time as it takes to make the room.
        let wait = held_back(1 << 16, 0.9).as_secs_f64();
        assert!((wait - 1.0 / 16.0).abs() < 1e-6, "{wait}");
        // What is more than all is held back no longer than that.
        assert_eq!(held_back(1 << 16, 1.0), held_back(1 << 16, 1.5));
        assert_eq!(held_back(1 << 24, 1.0), LONGEST);
    }

    #[test]
    fn nobody_is_held_back_before_something_was_measured() {
        let mut pace = Pace::default();
        pace.take(1 << 20, 1.0, NOW);
        make(&mut pace, 0, 1);
        pace.take(1 << 20, 1.0, NOW);
        assert_eq!(pace.wait(NOW), None);
    }

    #[test]
    fn each_pays_for_what_he_wrote_and_nobody_for_what_there_was_room_for() {
        let mut pace = Pace::default();
        pace.owe(100);
        assert_eq!(pace.share(30, 0.9), 30);
        assert_eq!(pace.share(100, 0.9), 70);
        pace.owe(100);
        assert_eq!(pace.share(100, FREE), 0);
        assert_eq!(pace.share(100, 0.9), 0);
    }

    #[test]
    fn small_changes_add_up() {
        let mut pace = Pace::default();
        make(&mut pace, 1 << 20, 1);
        pace.take(512, 0.9, NOW);
        assert_eq!(pace.wait(NOW), None);
        (0..3).for_each(|_| pace.take(512, 0.9, NOW));
        let wait = pace.wait(NOW).unwrap();
        assert!(wait >= LEAST, "{wait:?}");
        assert_eq!(pace.wait(NOW + wait), None);
    }

    #[test]
    fn what_was_measured_lately_counts_more() {
        let mut pace = Pace::default();
        make(&mut pace, 100 << 20, 10);
        (0..100).for_each(|_| make(&mut pace, 1 << 20, 10));
        pace.take(1 << 10, 0.9, NOW);
        let wait = pace.wait(NOW).unwrap().as_secs_f64();
        assert!((wait - 10.0 / 1024.0).abs() < 1e-4, "{wait}");
    }

    #[test]
    fn what_is_under_way_counts_as_far_as_it_is() {
        let mut pace = Pace::default();
        pace.begin(1 << 20, 1000, NOW);
        pace.take(1 << 16, 0.9, NOW);
        assert_eq!(pace.wait(NOW), None);
        pace.home(250);
        let later = NOW + Duration::from_secs(1);
        pace.take(1 << 16, 0.9, later);
        // At this rate the whole takes four seconds.
        let wait = pace.wait(later).unwrap().as_secs_f64();
        assert!((wait - 4.0 / 16.0).abs() < 1e-6, "{wait}");
        // More than were meant to go home do not make more room.
        pace.home(10_000);
        assert!((pace.cost(later).unwrap() * f64::from(1 << 20) - 1.0).abs() < 1e-6);
    }
}
