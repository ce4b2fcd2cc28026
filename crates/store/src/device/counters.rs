//! Counters of the requests to a device, by purpose.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Purpose, QueueDepth};

const PURPOSES: usize = Purpose::ALL.len();

/// Reads, writes and flushes of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.flushes += other.flushes;
    }
}

impl std::ops::Sub for Tally {
    type Output = Tally;

    fn sub(self, earlier: Tally) -> Tally {
        Tally {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

/// One [`Tally`] for each purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies([Tally; PURPOSES]);

impl Tallies {
    /// The tally of one purpose.
    pub fn of(&self, purpose: Purpose) -> Tally {
        self.0[purpose as usize]
    }

    /// The sum over all purposes.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.0.iter().for_each(|tally| total += *tally);
        total
    }

    /// Every purpose with its tally.
    pub fn iter(&self) -> impl Iterator<Item = (Purpose, Tally)> + '_ {
        Purpose::ALL.into_iter().map(|purpose| (purpose, self.of(purpose)))
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: &Tallies) -> Tallies {
        Tallies(std::array::from_fn(|i| self.0[i] - earlier.0[i]))
    }
}

impl std::ops::AddAssign for Tallies {
    fn add_assign(&mut self, other: Tallies) {
        self.0.iter_mut().zip(other.0).for_each(|(tally, more)| *tally += more);
    }
}

impl serde::Serialize for Tallies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(purpose, tally)| (purpose.name(), tally)))
    }
}

/// The live counters of one device.
#[derive(Debug, Default)]
pub struct Counters {
    cells: [Cell; PURPOSES],
    reads_queued: AtomicUsize,
    writes_queued: AtomicUsize,
}

#[derive(Debug, Default)]
struct Cell {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
}

/// A request in flight: leaves the queue when dropped.
#[derive(Debug)]
pub struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counters {
    /// Counts a read of `bytes`, and queues it until the guard is dropped.
    pub fn read(&self, purpose: Purpose, bytes: u64) -> InFlight<'_> {
        let cell = &self.cells[purpose as usize];
        cell.reads.fetch_add(1, Ordering::Relaxed);
        cell.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        enter(&self.reads_queued)
    }

    /// Counts a write of `bytes`, and queues it until the guard is dropped.
    pub fn write(&self, purpose: Purpose, bytes: u64) -> InFlight<'_> {
        let cell = &self.cells[purpose as usize];
        cell.writes.fetch_add(1, Ordering::Relaxed);
        cell.write_bytes.fetch_add(bytes, Ordering::Relaxed);
        enter(&self.writes_queued)
    }

    /// Counts a flush, and queues it until the guard is dropped.
    pub fn flush(&self, purpose: Purpose) -> InFlight<'_> {
        self.cells[purpose as usize].flushes.fetch_add(1, Ordering::Relaxed);
        enter(&self.writes_queued)
    }

    /// The counts so far.
    pub fn tallies(&self) -> Tallies {
        Tallies(std::array::from_fn(|i| {
            let cell = &self.cells[i];
            Tally {
                reads: cell.reads.load(Ordering::Relaxed),
                read_bytes: cell.read_bytes.load(Ordering::Relaxed),
                writes: cell.writes.load(Ordering::Relaxed),
                write_bytes: cell.write_bytes.load(Ordering::Relaxed),
                flushes: cell.flushes.load(Ordering::Relaxed),
            }
        }))
    }

    /// Requests in flight.
    pub fn queue_depth(&self) -> QueueDepth {
        QueueDepth {
            reads: self.reads_queued.load(Ordering::Relaxed),
            writes: self.writes_queued.load(Ordering::Relaxed),
        }
    }
}

fn enter(queue: &AtomicUsize) -> InFlight<'_> {
    queue.fetch_add(1, Ordering::Relaxed);
    InFlight(queue)
}
