//! The duration of each stage of a request: histograms that any task adds to, and the slowest requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Buckets for each doubling of the duration: a quantile is at most a quarter too high.
const PARTS: u64 = 4;
/// Doublings of a microsecond that have buckets of their own: up to about an hour.
const DOUBLINGS: usize = 32;
const BUCKETS: usize = DOUBLINGS * PARTS as usize;
/// Requests that [`Slowest`] keeps.
const KEPT: usize = 16;

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
    longest: AtomicU64,
}

/// A histogram in a few numbers; durations in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Latency {
    /// Durations counted.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Half of them are no longer than this.
    pub p50_us: u64,
    /// 99 % of them are no longer than this.
    pub p99_us: u64,
    /// 99.9 % of them are no longer than this.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }
}

fn bucket_of(micros: u64) -> usize {
    if micros < PARTS {
        return micros as usize;
    }
    let doubling = u64::from(micros.ilog2());
    let part = (micros >> (doubling - 2)) & (PARTS - 1);
    (((doubling - 1) * PARTS + part) as usize).min(BUCKETS - 1)
}

/// The longest duration in a bucket, in microseconds.
fn bound_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let (doubling, part) = (bucket / PARTS + 1, bucket % PARTS);
    ((PARTS + part + 1) << (doubling - 2)) - 1
}

impl Histogram {
    /// Counts one duration.
    pub fn add(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos / 1_000)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
    }

    /// The histogram in a few numbers.
    pub fn latency(&self) -> Latency {
        let counts: Vec<u64> =
            self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let longest = self.longest.load(Ordering::Relaxed) / 1_000;
        let quantile = |share: f64| {
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut below = 0;
            let reached = counts.iter().position(|bucket| {
                below += bucket;
                below >= rank
            });
            reached.map_or(0, |bucket| bound_of(bucket).min(longest))
        };
        Latency {
            count,
            mean_us: self.nanos.load(Ordering::Relaxed) as f64 / count.max(1) as f64 / 1e3,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: longest,
        }
    }

    /// Bounds for monitoring systems, in microseconds: powers of four.
    pub fn bounds() -> impl Iterator<Item = u64> {
        (0..BUCKETS).map(|bucket| bound_of(bucket) + 1).filter(|bound| is_shown(*bound))
    }

    /// How many durations are below each of [`Histogram::bounds`].
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut below = 0;
        let counts = self.buckets.iter().enumerate().map(|(bucket, count)| {
            below += count.load(Ordering::Relaxed);
            (bound_of(bucket) + 1, below)
        });
        counts.filter(|(bound, _)| is_shown(*bound)).collect()
    }
}

fn is_shown(bound: u64) -> bool {
    bound.is_power_of_two() && bound.ilog2().is_multiple_of(2)
}

/// One stage in numbers.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StageStatus {
    /// The stage's name.
    pub stage: &'static str,
    /// Its duration.
    #[serde(flatten)]
    pub latency: Latency,
    /// For each of [`Histogram::bounds`], how many were shorter.
    #[serde(skip)]
    pub cumulative: Vec<(u64, u64)>,
}

/// A histogram for each of some numbered stages.
#[derive(Debug)]
pub struct StageHistograms {
    names: &'static [&'static str],
    histograms: Vec<Histogram>,
}

impl StageHistograms {
    /// Histograms for stages with these names.
    pub fn new(names: &'static [&'static str]) -> StageHistograms {
        StageHistograms { names, histograms: names.iter().map(|_| Histogram::default()).collect() }
    }

    /// Counts one duration of the stage numbered `stage`.
    pub fn add(&self, stage: usize, span: Duration) {
        self.histograms[stage].add(span);
    }

    /// Every stage in numbers.
    pub fn status(&self) -> Vec<StageStatus> {
        let one = |(name, histogram): (&&'static str, &Histogram)| StageStatus {
            stage: name,
            latency: histogram.latency(),
            cumulative: histogram.cumulative(),
        };
        self.names.iter().zip(&self.histograms).map(one).collect()
    }
}

/// One slow request: when it ended, its duration, and its stages.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SlowRequest {
    /// When it ended, in seconds of the environment's clock.
    pub ended_s: f64,
    /// Its duration, in microseconds.
    pub took_us: u64,
    /// Its stages in order, in microseconds.
    pub stages: Vec<(&'static str, u64)>,
}

/// The slowest requests since the last call of [`Slowest::list`].
#[derive(Debug, Default)]
pub struct Slowest {
    kept: Mutex<Vec<SlowRequest>>,
    /// Requests of at most this duration are not kept; 0 while there is room.
    least_us: AtomicU64,
}

impl Slowest {
    /// Keeps a request if it is among the slowest; calls `stages` only then.
    pub fn add(
        &self,
        ended_s: f64,
        took: Duration,
        stages: impl FnOnce() -> Vec<(&'static str, u64)>,
    ) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if took_us <= self.least_us.load(Ordering::Relaxed) {
            return;
        }
        let mut kept = self.kept.lock();
        let at = kept.partition_point(|other| other.took_us >= took_us);
        kept.insert(at, SlowRequest { ended_s, took_us, stages: stages() });
        kept.truncate(KEPT);
        if let Some(last) = kept.get(KEPT - 1) {
            self.least_us.store(last.took_us, Ordering::Relaxed);
        }
    }

    /// The slowest requests, the slowest one first.
    pub fn list(&self) -> Vec<SlowRequest> {
        self.kept.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_has_a_bucket_whose_bound_is_at_most_a_quarter_higher() {
        let mut micros = 1;
        while micros < 1 << 30 {
            let bound = bound_of(bucket_of(micros));
            assert!(bound >= micros && bound - micros <= micros / 4 + 1, "{micros}: {bound}");
            micros += micros / 7 + 1;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_durations() {
        let histogram = Histogram::default();
        assert_eq!(histogram.latency(), Latency::default());
        (1..=1000).for_each(|millis| histogram.add(Duration::from_millis(millis)));
        let latency = histogram.latency();
        assert_eq!((latency.count, latency.max_us), (1000, 1_000_000));
        assert_eq!(latency.mean_us, 500_500.0);
        let near = |found: u64, wanted: u64| found >= wanted && found <= wanted + wanted / 4;
        assert!(near(latency.p50_us, 500_000) && near(latency.p99_us, 990_000), "{latency:?}");
    }

    #[test]
    fn cumulative_counts_end_with_all_of_them() {
        let histogram = Histogram::default();
        [1, 3, 5, 300, 70_000].iter().for_each(|us| histogram.add(Duration::from_micros(*us)));
        let counts = histogram.cumulative();
        assert!(Histogram::bounds().eq(counts.iter().map(|(bound, _)| *bound)));
        assert_eq!(counts.iter().find(|(bound, _)| *bound == 4), Some(&(4, 2)));
        assert_eq!(counts.iter().find(|(bound, _)| *bound == 1024), Some(&(1024, 4)));
        assert_eq!(counts.last().map(|(_, count)| *count), Some(5));
    }

    #[test]
    fn the_slowest_are_kept_in_order() {
        let slowest = Slowest::default();
        for micros in (0..100).map(|at| (at * 37) % 100 + 1) {
            slowest.add(0.0, Duration::from_micros(micros), || vec![("all", micros)]);
        }
        let found: Vec<u64> = slowest.list().iter().map(|slow| slow.took_us).collect();
        assert_eq!(found, (85..=100).rev().collect::<Vec<_>>());
    }
}
