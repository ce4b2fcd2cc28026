//! A mutex for critical sections that are shorter than putting a thread to sleep.

use parking_lot::{Mutex, MutexGuard};

/// Looks at a locked mutex, some tens of nanoseconds apart, before the thread sleeps: a few microseconds
/// together. Sleeping and waking takes longer, of the waker's time too.
const LOOKS: usize = 100;

/// A mutex that is held for a microsecond or so, by many threads.
#[derive(Debug, Default)]
pub(crate) struct BriefMutex<T>(Mutex<T>);

impl<T> BriefMutex<T> {
    pub(crate) const fn new(value: T) -> BriefMutex<T> {
        BriefMutex(Mutex::new(value))
    }

    /// Locks it, spinning first.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        for _ in 0..LOOKS {
            // Reading leaves the cache line with the holder; trying to lock takes it away.
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
            std::hint::spin_loop();
        }
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nobody_is_lost_and_nobody_meets_another() {
        let shared = Arc::new(BriefMutex::new((0_u64, 0_u64)));
        let add = |shared: Arc<BriefMutex<(u64, u64)>>| {
            move || {
                for round in 0..20_000 {
                    let mut both = shared.lock();
                    both.0 += 1;
                    if round % 5_000 == 0 {
                        // Long enough for the other threads to fall asleep.
                        (0..100_000).for_each(|_| std::hint::spin_loop());
                    }
                    both.1 += 1;
                    assert_eq!(both.0, both.1);
                }
            }
        };
        let threads: Vec<_> =
            (0..4).map(|_| tokio::task::spawn_blocking(add(shared.clone()))).collect();
        for thread in threads {
            thread.await.unwrap();
        }
        assert_eq!(*shared.lock(), (80_000, 80_000));
    }
}
