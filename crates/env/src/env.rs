//! The handle to clock, chance and tasks.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SysRng;
use rand::{SeedableRng, TryRng};

use crate::group::{Boxed, Group};
use crate::time::Scale;
use crate::{Rng, Task, Time};

/// A handle to the clock, to chance and to tasks. Clones share the same environment, and the same [`Node`](crate::Node).
#[derive(Clone)]
pub struct Env {
    shared: Arc<Shared>,
    /// The node that tasks are started on.
    group: Option<Arc<Group>>,
}

struct Shared {
    scale: Scale,
    start: tokio::time::Instant,
    seed: u64,
    streams: AtomicU64,
}

impl Env {
    /// The machine's clock and the system's randomness. Must be called inside a tokio runtime.
    pub fn real() -> Env {
        let mut rng = match Rng::try_from_rng(&mut SysRng) {
            Ok(rng) => rng,
            // Chance only spreads load here; it never guards a secret.
            Err(_) => Rng::seed_from_u64(u64::from(std::process::id())),
        };
        Env::new(Scale::Real, rand::Rng::next_u64(&mut rng))
    }

    /// Scaled virtual time, and chance that is a function of `seed`. Must be called inside a
    /// single-threaded tokio runtime whose clock is paused; `thalweg-sim` makes one.
    pub fn simulated(seed: u64) -> Env {
        Env::new(Scale::Simulated, seed)
    }

    #[allow(clippy::disallowed_methods)]
    fn new(scale: Scale, seed: u64) -> Env {
        let start = tokio::time::Instant::now();
        let shared = Shared { scale, start, seed, streams: AtomicU64::new(0) };
        Env { shared: Arc::new(shared), group: None }
    }

    /// Whether time is virtual.
    pub fn is_simulated(&self) -> bool {
        self.shared.scale == Scale::Simulated
    }

    /// The time now.
    #[allow(clippy::disallowed_methods)]
    pub fn now(&self) -> Time {
        let elapsed = tokio::time::Instant::now().duration_since(self.shared.start);
        Time(self.shared.scale.of_tokio(elapsed))
    }

    /// The wall clock, as seconds since 1970: for labels and messages, never for ordering.
    /// In virtual time it counts from the start of 1970.
    pub fn wall_clock(&self) -> u64 {
        self.wall_nanos() / 1_000_000_000
    }

    /// The wall clock, as nanoseconds since 1970: for display, never for ordering. In virtual time it counts
    /// from the start of 1970, and may be set on a [`Node`](crate::Node).
    #[allow(clippy::disallowed_methods)]
    pub fn wall_nanos(&self) -> u64 {
        let outside = match self.shared.scale {
            Scale::Simulated => self.now().as_nanos(),
            Scale::Real => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |span| span.as_nanos() as u64),
        };
        self.group.as_ref().map_or(outside, |group| group.wall(outside))
    }

    /// Sleeps for `span`, rounded up to the timer's grain (1 ms in real time, 1 µs in virtual time);
    /// [`Env::alarm`] is finer.
    #[allow(clippy::disallowed_methods)]
    pub async fn sleep(&self, span: Duration) {
        tokio::time::sleep(self.shared.scale.in_tokio(span)).await;
    }

    /// Sleeps until `time`; returns at once when it has passed.
    #[allow(clippy::disallowed_methods)]
    pub async fn sleep_until(&self, time: Time) {
        let span = self.shared.scale.in_tokio(Duration::from_nanos(time.0));
        tokio::time::sleep_until(self.shared.start + span).await;
    }

    /// Runs `future` for at most `span`; `None` when the time runs out first.
    #[allow(clippy::disallowed_methods)]
    pub async fn timeout<F: Future>(&self, span: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(self.shared.scale.in_tokio(span), future).await.ok()
    }

    /// The same environment, with its tasks in `group`.
    pub(crate) fn in_group(&self, group: Arc<Group>) -> Env {
        Env { shared: self.shared.clone(), group: Some(group) }
    }

    /// The node that tasks are started on.
    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        self.group.as_ref()
    }

    /// Starts a task, on this handle's node if it has one. Dropping the returned [`Task`] aborts it;
    /// [`Task::detach`] lets it run on.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_boxed(Box::pin(future))
    }

    #[allow(clippy::disallowed_methods)]
    fn spawn_boxed<T: Send + 'static>(&self, future: Boxed<T>) -> Task<T> {
        match &self.group {
            None => Task::new(tokio::spawn(future)),
            Some(group) => {
                let (member, ticket) = group.member(future);
                let handle = tokio::spawn(member);
                ticket.attach(&handle.abort_handle());
                Task::new(handle)
            }
        }
    }

    /// An independent generator: each call returns the next stream of the environment's seed.
    pub fn rng(&self) -> Rng {
        let stream = self.shared.streams.fetch_add(1, Ordering::Relaxed);
        Rng::seed_from_u64(self.shared.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// `N` bytes that cannot be guessed, from the system's generator: for keys, tokens and handles. In
    /// virtual time they are a function of the seed.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn secret<const N: usize>(&self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        match self.shared.scale {
            Scale::Simulated => rand::Rng::fill_bytes(&mut self.rng(), &mut bytes),
            Scale::Real => SysRng.try_fill_bytes(&mut bytes).map_err(std::io::Error::other)?,
        }
        Ok(bytes)
    }

    /// A new random identity. It is unique, but can be guessed: see [`Env::secret`].
    pub fn uuid(&self) -> uuid::Uuid {
        let mut bytes = [0; 16];
        rand::Rng::fill_bytes(&mut self.rng(), &mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").field("scale", &self.shared.scale).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_is_no_function_of_the_seed_but_in_virtual_time() {
        let secret = |scale| Env::new(scale, 7).secret::<16>().unwrap();
        assert_ne!(secret(Scale::Real), secret(Scale::Real));
        assert_eq!(secret(Scale::Simulated), secret(Scale::Simulated));
    }
}
