//! Clock, randomness and tasks: the only way to them.
//!
//! A program that reaches time and chance through [`Env`] alone can be run in virtual time: the
//! simulator pauses tokio's clock, which then jumps to the next event as soon as nothing is
//! runnable, and a run is a function of its seed. Tokio's timers round up to a millisecond, so a
//! simulated environment is scaled: one simulated microsecond is one tokio millisecond.

mod blocking;
mod push;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rand::rngs::SysRng;
use rand::{SeedableRng, TryRng};
pub use rand_xoshiro::Xoshiro256PlusPlus as Rng;

pub use self::blocking::{allow_blocking, may_block};

pub use self::push::Push;

/// A hash map whose order depends on nothing but its contents and history.
pub type HashMap<K, V> = fixed_order::Map<K, V>;
/// A hash set whose order depends on nothing but its contents and history.
pub type HashSet<K> = fixed_order::Set<K>;

mod fixed_order {
    #![allow(clippy::disallowed_types)]
    pub(super) type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;
    pub(super) type Set<K> = std::collections::HashSet<K, foldhash::fast::FixedState>;
}

/// Threads for the runtime of a process that serves volumes: half of the processors. The other half is for
/// clients and the kernel. Two threads that share a few connections wake each other, which costs a lone small
/// write more than the second thread gains.
pub fn server_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).max(1))
}

/// A point in the environment's time, in nanoseconds since the environment was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The moment at which the environment was made.
    pub const ZERO: Time = Time(0);

    /// The time `nanos` nanoseconds after the environment was made.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the environment was made.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the environment was made.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span from `earlier` to this time, zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}

/// How the environment's time relates to tokio's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// The same.
    Real,
    /// One microsecond here is one millisecond there.
    Simulated,
}

impl Scale {
    fn in_tokio(self, span: Duration) -> Duration {
        match self {
            Scale::Real => span,
            // Rounded up to a whole simulated microsecond: a sleeper never wakes early.
            Scale::Simulated => {
                let micros = span.as_nanos().div_ceil(1_000);
                Duration::from_millis(u64::try_from(micros).unwrap_or(u64::MAX))
            }
        }
    }

    fn of_tokio(self, span: Duration) -> u64 {
        let nanos = match self {
            Scale::Real => span.as_nanos(),
            Scale::Simulated => span.as_nanos() / 1_000,
        };
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// A handle to the clock, to chance and to tasks. Clones share the same environment.
#[derive(Clone)]
pub struct Env {
    shared: Arc<Shared>,
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
        Env { shared: Arc::new(Shared { scale, start, seed, streams: AtomicU64::new(0) }) }
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
    #[allow(clippy::disallowed_methods)]
    pub fn wall_clock(&self) -> u64 {
        match self.shared.scale {
            Scale::Simulated => self.now().as_nanos() / 1_000_000_000,
            Scale::Real => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |span| span.as_secs()),
        }
    }

    /// The wall clock, as nanoseconds since 1970: for display, never for ordering. In virtual time it counts
    /// from the start of 1970.
    #[allow(clippy::disallowed_methods)]
    pub fn wall_nanos(&self) -> u64 {
        match self.shared.scale {
            Scale::Simulated => self.now().as_nanos(),
            Scale::Real => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |span| span.as_nanos() as u64),
        }
    }

    /// Sleeps for `span`, rounded up to the timer's grain (1 ms in real time, 1 µs in virtual time).
    #[allow(clippy::disallowed_methods)]
    pub async fn sleep(&self, span: Duration) {
        tokio::time::sleep(self.shared.scale.in_tokio(span)).await;
    }

    /// Sleeps for a span below the timer's grain, as precisely as the system allows.
    #[allow(clippy::disallowed_methods)]
    pub async fn nap(&self, span: Duration) {
        match self.shared.scale {
            Scale::Simulated => self.sleep(span).await,
            // The runtime's timers know whole milliseconds only: a thread that sleeps wakes in time.
            Scale::Real => {
                drop(tokio::task::spawn_blocking(move || std::thread::sleep(span)).await)
            }
        }
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

    /// Starts a task. Dropping the returned handle aborts it; [`Task::detach`] lets it run on.
    #[allow(clippy::disallowed_methods)]
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Task { handle: Some(tokio::spawn(future)) }
    }

    /// An independent generator: each call returns the next stream of the environment's seed.
    pub fn rng(&self) -> Rng {
        let stream = self.shared.streams.fetch_add(1, Ordering::Relaxed);
        Rng::seed_from_u64(self.shared.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// 128 bits that cannot be guessed, from the system's generator. In virtual time they are a function of
    /// the seed.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn secret(&self) -> std::io::Result<u128> {
        let mut bytes = [0; 16];
        match self.shared.scale {
            Scale::Simulated => rand::Rng::fill_bytes(&mut self.rng(), &mut bytes),
            Scale::Real => SysRng.try_fill_bytes(&mut bytes).map_err(std::io::Error::other)?,
        }
        Ok(u128::from_le_bytes(bytes))
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

/// A running task; aborted when dropped. Awaiting it gives its result, `None` when it panicked.
#[derive(Debug)]
pub struct Task<T> {
    handle: Option<tokio::task::JoinHandle<T>>,
}

impl<T> Task<T> {
    /// Lets the task run to its end without a handle.
    pub fn detach(mut self) {
        self.handle = None;
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(|handle| handle.is_finished())
    }
}

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut self.handle {
            Some(handle) => Pin::new(handle).poll(cx).map(Result::ok),
            None => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dropping_a_task_aborts_it() {
        let env = Env::real();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let task = env.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(task);
        assert!(receiver.await.is_err());
    }

    #[tokio::test]
    async fn a_secret_is_no_function_of_the_seed_but_in_virtual_time() {
        let secret = |scale| Env::new(scale, 7).secret().unwrap();
        assert_ne!(secret(Scale::Real), secret(Scale::Real));
        assert_eq!(secret(Scale::Simulated), secret(Scale::Simulated));
    }

    #[test]
    fn a_simulated_span_is_rounded_up_to_a_microsecond() {
        assert_eq!(Scale::Simulated.in_tokio(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(
            Scale::Simulated.in_tokio(Duration::from_nanos(1_000)),
            Duration::from_millis(1)
        );
        assert_eq!(
            Scale::Simulated.in_tokio(Duration::from_nanos(1_001)),
            Duration::from_millis(2)
        );
        assert_eq!(Scale::Simulated.of_tokio(Duration::from_millis(2)), 2_000);
    }
}
