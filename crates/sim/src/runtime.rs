//! Runs a future in virtual time.

use std::future::Future;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use thalweg_env::Env;

/// The longest simulated time of a run: the range of tokio's timers in the environment's scale.
pub const MAX_RUN: Duration = Duration::from_secs(18 * 3600);

/// Runs `body` in virtual time to its end. Equal seeds give equal runs.
///
/// Tasks that `body` leaves behind end with it.
///
/// # Panics
/// When `body` has not ended after [`MAX_RUN`] of simulated time. A body that waits for an event that
/// never happens reaches that limit at once, because time jumps while no task is runnable.
pub fn run<F, Fut, T>(seed: u64, body: F) -> T
where
    F: FnOnce(Env) -> Fut,
    Fut: Future<Output = T>,
{
    match run_within(seed, MAX_RUN, body) {
        Some(output) => output,
        None => panic!("seed {seed}: the run waits for something that never happens"),
    }
}

/// Runs `body` in virtual time for at most `limit` of simulated time; returns `None` when `limit` ends
/// first. Equal seeds give equal runs.
///
/// # Panics
/// When tokio cannot build a runtime.
pub fn run_within<F, Fut, T>(seed: u64, limit: Duration, body: F) -> Option<T>
where
    F: FnOnce(Env) -> Fut,
    Fut: Future<Output = T>,
{
    let body = |env| -> LocalBoxFuture<T> { Box::pin(body(env)) };
    within(seed, limit, Box::new(body))
}

/// The runtime knows futures only by their results, so that it is compiled once for each type of a result.
fn within<'a, T: 'a>(
    seed: u64,
    limit: Duration,
    body: Box<dyn FnOnce(Env) -> LocalBoxFuture<'a, T> + 'a>,
) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| panic!("no runtime for a simulation: {error}"));
    let run: LocalBoxFuture<'a, Option<T>> = Box::pin(async move {
        let env = Env::simulated(seed);
        env.timeout(limit.min(MAX_RUN), body(env.clone())).await
    });
    runtime.block_on(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_passes_at_once_and_to_the_microsecond() {
        let slept = run(1, |env| async move {
            env.sleep(Duration::from_secs(3600)).await;
            env.sleep(Duration::from_nanos(1_500)).await;
            env.now()
        });
        assert_eq!(slept.as_nanos(), 3_600_000_002_000);
    }

    #[test]
    fn a_run_that_waits_in_vain_ends() {
        let limit = Duration::from_secs(5);
        assert_eq!(run_within(1, limit, |_| std::future::pending::<()>()), None);
    }

    #[test]
    fn chance_is_a_function_of_the_seed() {
        let draw = |seed| run(seed, |env| async move { rand::Rng::next_u64(&mut env.rng()) });
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
