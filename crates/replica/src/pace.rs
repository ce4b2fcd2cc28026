//! The pace of copies.

use std::num::NonZeroU64;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::{Env, Time};

/// Has all copies of a primary together send at most so many bytes in a second.
#[derive(Debug)]
pub(super) struct Pace {
    env: Env,
    rate: Option<NonZeroU64>,
    /// When the next one may send.
    next: Mutex<Time>,
}

impl Pace {
    pub(super) fn new(env: &Env, rate: Option<NonZeroU64>) -> Pace {
        Pace { env: env.clone(), rate, next: Mutex::new(env.now()) }
    }

    /// Waits until a copy may send so many bytes.
    pub(super) async fn take(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(rate.get());
        let span = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let turn = {
            let mut next = self.next.lock();
            let turn = self.env.now().max(*next);
            *next = turn + span;
            turn
        };
        self.env.sleep_until(turn).await;
    }
}
