//! The measured rate of a device: it bounds the bytes that background work has under way, so that a flush
//! does not wait long for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::block::BLOCK_SIZE;

/// Maximum delay of a flush by each kind of background work, on a drive that is not rotational.
const SOON: Duration = Duration::from_millis(1);
/// The same on a rotational disk, where short requests cost the most.
const SOON_ROTATIONAL: Duration = Duration::from_millis(100);
/// Minimum bytes: shorter requests would cost more than the delay that they spare others.
const LEAST: usize = 256 << 10;
/// Minimum bytes of a request that is measured: shorter ones measure a device's latency rather than its rate.
const TELLING: u64 = 16 * BLOCK_SIZE as u64;
/// The weight of the newest request in the mean, as a divisor.
const NEWEST: u64 = 8;

/// Bytes per second, as measured over the last requests.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    mean: AtomicU64,
    under_way: AtomicU64,
}

impl Rate {
    /// Begins a request of `bytes`.
    pub(crate) fn begin(&self, bytes: usize) -> UnderWay<'_> {
        let bytes = bytes as u64;
        let total = self.under_way.fetch_add(bytes, Ordering::Relaxed) + bytes;
        UnderWay { rate: self, bytes, total }
    }

    /// Bytes of background work that may be under way, at most `most`.
    pub(crate) fn background_bytes(&self, is_rotational: bool, most: usize) -> usize {
        let soon = if is_rotational { SOON_ROTATIONAL } else { SOON };
        self.bytes_in(soon).unwrap_or(LEAST).clamp(LEAST, most.max(LEAST))
    }

    /// Bytes that take about `span`; `None` before anything was measured.
    fn bytes_in(&self, span: Duration) -> Option<usize> {
        let mean = self.mean.load(Ordering::Relaxed);
        (mean > 0).then_some((mean as f64 * span.as_secs_f64()) as usize)
    }
}

/// A request under way, until it is dropped.
pub(crate) struct UnderWay<'a> {
    rate: &'a Rate,
    bytes: u64,
    /// All bytes under way when it began.
    total: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.rate.under_way.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl UnderWay<'_> {
    /// Ends the request.
    pub(crate) fn end(self, took: Duration) {
        let nanos = took.as_nanos();
        if self.bytes < TELLING || nanos == 0 {
            return;
        }
        let now = u64::try_from(u128::from(self.total) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
        let mean = self.rate.mean.load(Ordering::Relaxed);
        let next = if mean == 0 { now } else { mean - mean / NEWEST + now / NEWEST };
        self.rate.mean.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_what_devices_take() {
        let rate = Rate::default();
        assert_eq!(rate.bytes_in(SOON), None);
        let mib = 1 << 20;
        // Two requests at once: the second one waits for the first.
        let (first, second) = (rate.begin(mib), rate.begin(mib));
        first.end(Duration::from_millis(10));
        second.end(Duration::from_millis(20));
        assert_eq!(rate.bytes_in(Duration::from_millis(10)), Some(mib));
        for _ in 0..100 {
            rate.begin(mib).end(Duration::from_millis(100));
        }
        let now = rate.bytes_in(Duration::from_millis(100)).unwrap_or(0);
        assert!(now.abs_diff(mib) < mib / 100, "{now}");
        rate.begin(4096).end(Duration::from_secs(1));
        assert_eq!(rate.bytes_in(Duration::from_millis(100)), Some(now), "too short to tell");
    }
}
