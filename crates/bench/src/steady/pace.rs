//! Threads that overwrite a few bytes and make them durable, at a pace or at full speed.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng, Time};

use crate::BenchError;
use crate::peer::pause;
use crate::rig::failed;

/// Bytes of an overwrite.
const BYTES: usize = 128;
const BLOCK: u64 = 4096;

/// A load of overwrites, each followed by `fsync`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Writers, each with a file of its own.
    pub(super) threads: usize,
    /// Bytes of each file.
    pub(super) file_bytes: u64,
    /// Overwrites a second of all writers together; unlimited when absent.
    pub(super) per_s: Option<f64>,
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

/// The result of a load, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// From write to return of `fsync`, ascending.
    latencies: Vec<f64>,
    /// The longest time in which no `fsync` returned.
    pub(super) stall: f64,
    pub(super) per_s: f64,
}

impl Outcome {
    /// The latency that this share of the overwrites stays below.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let nth = (self.latencies.len() as f64 * share) as usize;
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(nth.min(last)).copied().unwrap_or_default()
    }

    /// From the completion time and latency of each overwrite, in seconds since the start.
    fn new(mut completions: Vec<(f64, f64)>, seconds: f64) -> Outcome {
        completions.sort_by(|a, b| a.0.total_cmp(&b.0));
        let times = completions.iter().map(|(time, _)| *time);
        let stall = longest_gap(times, seconds);
        let per_s = completions.len() as f64 / seconds;
        let mut latencies: Vec<f64> = completions.into_iter().map(|(_, latency)| latency).collect();
        latencies.sort_by(f64::total_cmp);
        Outcome { latencies, stall, per_s }
    }
}

/// The longest time without a completion from 0 to `end`; completions are in order.
pub(super) fn longest_gap(completions: impl Iterator<Item = f64>, end: f64) -> f64 {
    let (mut longest, mut before) = (0.0, 0.0);
    for time in completions.chain([end]) {
        longest = f64::max(longest, time - before);
        before = f64::max(before, time);
    }
    longest
}

impl Load {
    fn path(&self, folder: &Path, writer: usize) -> PathBuf {
        folder.join(format!("writer{writer}"))
    }

    /// Writes the files once.
    pub(super) fn prepare(&self, folder: &Path) -> Result<(), BenchError> {
        for writer in 0..self.threads {
            let path = self.path(folder, writer);
            write_file(&path, self.file_bytes).map_err(|source| BenchError::Io { path, source })?;
        }
        Ok(())
    }

    /// Runs the writers.
    pub(super) fn run(&self, folder: &Path) -> Result<Outcome, BenchError> {
        let clock = Env::real();
        let start = clock.now();
        std::thread::scope(|scope| {
            let clock = &clock;
            let work = |writer| move || self.write(folder, writer, clock, start);
            let running: Vec<_> =
                (0..self.threads).map(|writer| scope.spawn(work(writer))).collect();
            let died = |_| BenchError::Failed("a writer thread panicked".into());
            let joined = running.into_iter().map(|thread| thread.join().map_err(died)?);
            let completions = joined.collect::<Result<Vec<_>, _>>()?.concat();
            Ok(Outcome::new(completions, clock.now().since(start).as_secs_f64()))
        })
    }

    /// One writer; returns the completion time and latency of each overwrite. A writer that falls behind
    /// its pace by a whole period does not catch up.
    fn write(
        &self,
        folder: &Path,
        writer: usize,
        clock: &Env,
        start: Time,
    ) -> Result<Vec<(f64, f64)>, BenchError> {
        let file =
            OpenOptions::new().write(true).open(self.path(folder, writer)).map_err(failed)?;
        let mut rng = Rng::seed_from_u64(self.seed.wrapping_mul(1 << 20) + writer as u64);
        let period = self.per_s.map_or(0.0, |per_s| self.threads as f64 / per_s);
        let mut due = period * writer as f64 / self.threads as f64;
        let mut completions = Vec::new();
        let now = || clock.now().since(start).as_secs_f64();
        loop {
            let begun = now().max(due);
            if begun >= self.seconds {
                return Ok(completions);
            }
            pause(Duration::from_secs_f64((due - now()).max(0.0)));
            let begun = now();
            due = if begun > due + period { begun } else { due } + period;
            let block = rng.random_range(0..self.file_bytes / BLOCK) * BLOCK;
            let at = block + rng.random_range(0..=BLOCK - BYTES as u64);
            file.write_all_at(&rng.random::<[u8; BYTES]>(), at).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            completions.push((now(), now() - begun));
        }
    }
}

/// Writes a new file of random bytes that repeat after 1 MiB, durably.
pub(super) fn write_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    Rng::seed_from_u64(bytes).fill(&mut piece[..]);
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let take = left.min(piece.len() as u64);
        file.write_all(&piece[..take as usize])?;
        left -= take;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_gaps_are_those_of_the_completions() {
        let completions = (1..=100).rev().map(|at| (f64::from(at) / 10.0, f64::from(at)));
        let outcome = Outcome::new(completions.collect(), 10.5);
        assert_eq!((outcome.quantile(0.5), outcome.quantile(0.99)), (51.0, 100.0));
        assert_eq!(outcome.quantile(1.0), 100.0);
        assert!((outcome.stall - 0.5).abs() < 1e-9, "{}", outcome.stall);
        assert!((outcome.per_s - 100.0 / 10.5).abs() < 1e-9);
        let none = Outcome::new(Vec::new(), 3.0);
        assert_eq!((none.quantile(0.99), none.stall), (0.0, 3.0));
    }

    #[test]
    fn writers_keep_their_pace() {
        let folder = tempfile::tempdir().unwrap();
        let load =
            Load { threads: 4, file_bytes: 64 << 10, per_s: Some(100.0), seconds: 1.0, seed: 1 };
        load.prepare(folder.path()).unwrap();
        let outcome = load.run(folder.path()).unwrap();
        // A slow machine completes fewer.
        assert!(outcome.per_s < 105.0, "{}", outcome.per_s);
        assert!(!outcome.latencies.is_empty() && outcome.quantile(0.5) > 0.0);
        assert!(outcome.stall >= 0.009, "{}", outcome.stall);
        let sizes = std::fs::read_dir(folder.path()).unwrap();
        assert!(
            sizes.map(|file| file.unwrap().metadata().unwrap().len()).all(|len| len == 64 << 10)
        );
        let hasty = Load { per_s: None, seconds: 0.1, ..load };
        assert!(hasty.run(folder.path()).unwrap().per_s > 0.0);
    }
}
