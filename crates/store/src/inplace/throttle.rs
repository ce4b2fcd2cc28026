//! Backpressure on writers: each waits for the room that its blocks take in the journal ([`Pace`]).
//!
//! [`Pace`]: crate::journal::log::Pace

use std::time::Duration;

use async_trait::async_trait;
use thalweg_env::Time;

use super::Inner;
use super::stages::Stage;
use super::state::StoreState;
use crate::block::{BLOCK_SIZE, Throttle};

/// The part of the journal that is not shared out: the forecast may be a little wrong.
const RESERVE: f64 = 0.02;
/// Bytes of room that are granted at a time.
const PIECE: usize = BLOCK_SIZE;
/// Shorter waits add up first: timers have no finer resolution.
const LEAST: Duration = Duration::from_millis(1);
/// Grace period: a writer may proceed this long before its last piece is due. A writer of one piece
/// seldom waits then; a writer of many waits for all but the last.
const EARLY: Duration = Duration::from_millis(10);
/// Interval at which a waiting writer checks for room.
const LOOK: Duration = Duration::from_millis(20);

#[async_trait]
impl Throttle for Inner {
    /// Delays a writer of `blocks` blocks for the room that these take in the journal. Works piece by
    /// piece, so that small writers overtake large ones.
    async fn throttle(&self, blocks: usize) {
        let mut owed = {
            let mut state = self.medium.state.lock();
            let is_behind = self.is_behind(&state);
            state.pace.share(blocks * BLOCK_SIZE, is_behind)
        };
        let since = (owed > 0).then(|| self.env.now());
        while owed > 0 {
            let piece = owed.min(PIECE);
            owed -= piece;
            let due = {
                let mut state = self.medium.state.lock();
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
}

impl Inner {
    /// Waits until `early` before `due`, or until there is room.
    async fn wait_for_turn(&self, due: Time, early: Duration) {
        loop {
            let wait = due.since(self.env.now()).saturating_sub(early);
            if wait < LEAST || !self.is_behind(&self.medium.state.lock()) {
                return;
            }
            self.env.sleep(wait.min(LOOK)).await;
        }
    }

    /// Whether waiting leaves more room. A poisoned store makes none.
    fn is_behind(&self, state: &StoreState) -> bool {
        state.poison.is_none() && (state.pace.is_sweeping() || self.is_short())
    }

    /// Bytes of the journal that can be granted once the running transactions are in it.
    fn left(&self, state: &StoreState) -> u64 {
        let coming = state.running.bytes_to_come() as u64;
        let reserve = (self.journal.size() as f64 * RESERVE) as u64;
        self.journal.room().saturating_sub(coming + reserve)
    }
}
