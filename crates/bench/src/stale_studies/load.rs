//! The load of all three studies: threads that read and write random items, and the cost of their reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng};

use super::choice::Place;
use crate::{BenchError, rig};

const THREADS: u64 = 8;
/// Reads among ten operations; the others are writes.
const READS_OF_TEN: u32 = 9;
/// Bytes of a disk. The blocks of a study are at its outer edge.
pub(super) const DISK_BYTES: u64 = 600_000_000_000;
/// Time of a read from memory.
const MEMORY_READ: Duration = Duration::from_micros(1);

/// The emulation of a system that keeps old versions of its items.
pub(super) trait Emulator: Send + Sync + 'static {
    /// Number of items.
    fn items(&self) -> u32;

    /// Reads a version of an item that at most `staleness` updates had replaced when the call began.
    fn read(
        &self,
        item: u32,
        staleness: u32,
    ) -> impl Future<Output = Result<Answer, BenchError>> + Send;

    /// Updates an item; returns when the system acknowledges the update.
    fn write(&self, item: u32) -> impl Future<Output = Result<(), BenchError>> + Send;
}

/// The answer to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) place: Place,
    /// Updates of the item that the answer lacks.
    pub(super) behind: u32,
}

/// Waits as long as a read from memory takes.
pub(super) async fn read_memory(env: &Env) {
    env.sleep(MEMORY_READ).await;
}

/// A stream of operations.
#[derive(Clone, Debug)]
pub(super) struct Operations {
    rng: Rng,
    items: u32,
}

/// One operation on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read(u32),
    Write(u32),
}

impl Operations {
    pub(super) fn new(items: u32, seed: u64, stream: u64) -> Operations {
        let rng = Rng::seed_from_u64(seed.wrapping_mul(1 << 20).wrapping_add(stream));
        Operations { rng, items }
    }

    /// A random item.
    pub(super) fn item(&mut self) -> u32 {
        self.rng.random_range(0..self.items)
    }

    pub(super) fn draw(&mut self) -> Operation {
        let item = self.item();
        match self.rng.random_range(0..10) < READS_OF_TEN {
            true => Operation::Read(item),
            false => Operation::Write(item),
        }
    }
}

/// The reads of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    reads: u64,
    time: Duration,
    /// Number of reads by [`Place`].
    places: [u64; Place::ALL.len()],
    /// Reads whose answer is not the newest version.
    old: u64,
    /// The most updates that an answer lacked.
    pub(super) most_behind: u32,
}

impl Tally {
    fn add(&mut self, answer: Answer, time: Duration) {
        self.reads += 1;
        self.time += time;
        self.places[answer.place as usize] += 1;
        self.old += u64::from(answer.behind > 0);
        self.most_behind = self.most_behind.max(answer.behind);
    }

    fn join(&mut self, other: Tally) {
        self.reads += other.reads;
        self.time += other.time;
        self.places.iter_mut().zip(other.places).for_each(|(sum, more)| *sum += more);
        self.old += other.old;
        self.most_behind = self.most_behind.max(other.most_behind);
    }

    /// Mean time of a read in milliseconds.
    pub(super) fn latency_ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3 / (self.reads as f64).max(1.0)
    }

    /// Share of the reads that a place answered.
    pub(super) fn share(&self, place: Place) -> f64 {
        self.places[place as usize] as f64 / (self.reads as f64).max(1.0)
    }

    /// Share of the reads whose answer is not the newest version.
    pub(super) fn old_share(&self) -> f64 {
        self.old as f64 / (self.reads as f64).max(1.0)
    }
}

/// Runs `count` operations of all threads in a closed loop.
pub(super) async fn play<E: Emulator>(
    env: &Env,
    emulator: &Arc<E>,
    seed: u64,
    count: u64,
    staleness: u32,
) -> Result<Tally, BenchError> {
    let left = Arc::new(AtomicU64::new(count));
    let thread = |number: u64| {
        let operations = Operations::new(emulator.items(), seed, 1 + number);
        env.spawn(work(env.clone(), emulator.clone(), operations, left.clone(), staleness))
    };
    let mut all = Tally::default();
    rig::all((0..THREADS).map(thread).collect()).await?.into_iter().for_each(|it| all.join(it));
    Ok(all)
}

async fn work<E: Emulator>(
    env: Env,
    emulator: Arc<E>,
    mut operations: Operations,
    left: Arc<AtomicU64>,
    staleness: u32,
) -> Result<Tally, BenchError> {
    let mut tally = Tally::default();
    let take = |left: u64| left.checked_sub(1);
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        match operations.draw() {
            Operation::Read(item) => {
                let begun = env.now();
                let answer = emulator.read(item, staleness).await?;
                if answer.behind > staleness {
                    return Err(wrong(format!("{} updates of {item} were omitted", answer.behind)));
                }
                tally.add(answer, env.now().since(begun));
            }
            Operation::Write(item) => emulator.write(item).await?,
        }
    }
    Ok(tally)
}

/// An emulator broke its own promise.
pub(super) fn wrong(what: String) -> BenchError {
    BenchError::Failed(what.into())
}

/// The two numbers of a block that [`rig::content`] made.
pub(super) fn marks(block: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| {
        let bytes = block.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    Some((number(0)?, number(8)?.checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_those_of_the_content() {
        assert_eq!(marks(&rig::content(7, 3)), Some((7, 3)));
        assert_eq!(marks(&[0; 4096]), None);
        assert_eq!(marks(&[1; 8]), None);
    }

    #[test]
    fn nine_of_ten_operations_read_and_items_are_equally_likely() {
        let mut operations = Operations::new(10, 1, 0);
        let (mut reads, mut items) = (0_u32, [0_u32; 10]);
        for _ in 0..100_000 {
            let (Operation::Read(item) | Operation::Write(item)) = match operations.draw() {
                read @ Operation::Read(_) => {
                    reads += 1;
                    read
                }
                write => write,
            };
            items[item as usize] += 1;
        }
        assert!((89_000..91_000).contains(&reads), "{reads}");
        assert!(items.iter().all(|count| (9_500..10_500).contains(count)), "{items:?}");
    }
}
