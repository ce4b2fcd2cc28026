//! How long a connection looks for news before it goes to sleep.
//!
//! A sleeping thread is woken by way of the scheduler, and on a virtual machine by way of the
//! hypervisor: that costs more than a small request does. A client that sends the next request as
//! soon as it has the reply is therefore awaited awake: the connection yields to whatever else there
//! is to run, and looks again. It does so only where that paid lately, so an idle connection sleeps.

use std::future::Future;
use std::pin::pin;
use std::task::Context;
use std::time::Duration;

use thalweg_store::env::{Env, Time};

/// Waits no longer than this are spent awake.
const LONGEST: Duration = Duration::from_micros(100);
/// Looks in one wait at most, however long each takes: time may stand still.
const LOOKS: u32 = 200;
/// Waits in a row that were too long before the next ones are slept through.
const PATIENCE: u32 = 4;
/// Every so many waits that are slept through, one is spent awake to see whether it pays again.
const RETRY: u32 = 64;

/// Decides, for one kind of wait, whether to stay awake.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// When the wait that goes on began.
    since: Option<Time>,
    looks: u32,
    /// Long waits in a row.
    long: u32,
}

impl Patience {
    /// Nothing is to be done: has the task polled again soon, news or not, where staying awake pays.
    pub(crate) fn goes_on(&mut self, env: &Env, cx: &mut Context<'_>) {
        let now = env.now();
        let since = *self.since.get_or_insert(now);
        let pays = self.long < PATIENCE || self.long.is_multiple_of(RETRY);
        if !pays || self.looks >= LOOKS || now.since(since) >= LONGEST {
            return;
        }
        self.looks += 1;
        // Dropped at once: what counts is that the runtime polls the task after its other events.
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    }

    /// There is news.
    pub(crate) fn ends(&mut self, env: &Env) {
        let Some(since) = self.since.take() else { return };
        self.looks = 0;
        self.long = match env.now().since(since) < LONGEST {
            true => 0,
            false => self.long.saturating_add(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[test]
    fn a_wait_is_spent_awake_only_where_that_paid_and_not_for_ever() {
        thalweg_sim::runtime::run(1, |env| async move {
            let mut patience = Patience::default();
            let mut looks = Vec::new();
            for _ in 0..=PATIENCE {
                let mut count = 0;
                let wait = poll_fn(|cx| {
                    count += 1;
                    patience.goes_on(&env, cx);
                    Poll::<()>::Pending
                });
                assert!(env.timeout(2 * LONGEST, wait).await.is_none());
                patience.ends(&env);
                looks.push(count);
            }
            let (slept, awake) = looks.split_last().expect("there were waits");
            assert!(awake.iter().all(|count| (LOOKS..LOOKS + 3).contains(count)), "{looks:?}");
            assert!(*slept <= 2, "{looks:?}");
        });
    }
}
