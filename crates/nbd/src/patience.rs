//! How long a connection polls before it sleeps.
//!
//! The scheduler wakes a sleeping thread, on a virtual machine through the hypervisor: that costs more than a
//! small request. So the connection of a client that sends its next request right after the reply stays
//! awake: it yields to other tasks and polls again. It does so only while recent waits were short, so an idle
//! connection sleeps.

use std::future::Future;
use std::pin::pin;
use std::task::Context;
use std::time::Duration;

use thalweg_env::{Env, Time};

/// Longest wait that is spent awake.
const LONGEST: Duration = Duration::from_micros(100);
/// Maximum number of polls in one wait: simulated time may stand still.
const LOOKS: u32 = 200;
/// Number of long waits in a row after which a connection sleeps at once.
const PATIENCE: u32 = 4;
/// One wait in this many is spent awake nevertheless, to find out whether waits have become short again.
const RETRY: u32 = 64;

/// Decides whether to stay awake, for one kind of wait.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// The start of the current wait.
    since: Option<Time>,
    looks: u32,
    /// Long waits in a row.
    long: u32,
}

impl Patience {
    /// The connection has nothing to do: has the task polled again soon, if staying awake pays.
    pub(crate) fn goes_on(&mut self, env: &Env, cx: &mut Context<'_>) {
        let now = env.now();
        let since = *self.since.get_or_insert(now);
        let pays = self.long < PATIENCE || self.long.is_multiple_of(RETRY);
        if !pays || self.looks >= LOOKS || now.since(since) >= LONGEST {
            return;
        }
        self.looks += 1;
        // Dropped at once: its only purpose is that the runtime polls the task again after other tasks.
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    }

    /// The wait is over.
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
