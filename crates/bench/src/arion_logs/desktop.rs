//! Programs of a desktop: traces with the numbers of table 8.3.
//!
//! The table has the accesses of a trace, which part of them are reads, and how many times a file is synced. The rest is a guess here:
//!
//! - reads and writes come in a random order, one after the other without pauses;
//! - a read is one of a whole file, of a library with half as many files as there are reads, so that about a third of them find the pages in memory;
//!   their sizes have a median of 16 KiB;
//! - every second write makes a file, the others append to one that was written before. Writes have a median of 4 KiB, as figure 8.18's text says that
//!   a sync is about small amounts of data;
//! - the syncs are spread over the writes; where there are more of them than writes, a write has several parts, each with a sync.

use std::time::Duration;

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, LogNormal};
use thalweg_env::{Env, Rng};
use thalweg_fs::Ino;

use crate::BenchError;
use crate::arion_machines::Machine;
use crate::rig::failed;

/// A row of table 8.3.
#[derive(Clone, Copy, Debug)]
pub(super) struct DesktopTrace {
    pub(super) name: &'static str,
    accesses: usize,
    /// Percent of them.
    reads: f64,
    syncs: usize,
}

pub(super) const TRACES: [DesktopTrace; 3] = [
    DesktopTrace { name: "itunes_m", accesses: 57, reads: 48.0, syncs: 32 },
    DesktopTrace { name: "itunes_s", accesses: 139, reads: 66.3, syncs: 95 },
    DesktopTrace { name: "imovie", accesses: 547, reads: 47.8, syncs: 185 },
];

/// Medians of sizes, and the spread of their logarithms.
const READ: f64 = 16_384.0;
const WRITTEN: f64 = 4_096.0;
const SPREAD: f64 = 1.2;
const MOST: f64 = 4_194_304.0;

/// A call of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    /// A file of the library.
    Read(usize),
    /// A write with so many syncs; whether it makes its file.
    Write { syncs: usize, makes: bool },
}

impl DesktopTrace {
    fn counts(&self) -> (usize, usize) {
        let reads = (self.accesses as f64 * self.reads / 100.0).round() as usize;
        (reads, self.accesses - reads)
    }

    /// The calls of one run.
    fn accesses(&self, rng: &mut Rng) -> Vec<Access> {
        let (reads, writes) = self.counts();
        let library = self.library();
        // The sync numbered so far behind the writes numbered so far.
        let syncs = |writes_done: usize| writes_done * self.syncs / writes;
        let mut calls: Vec<bool> = (0..self.accesses).map(|nth| nth < reads).collect();
        calls.shuffle(rng);
        let mut done = 0;
        let access = |is_read: bool| {
            if is_read {
                return Access::Read(rng.random_range(0..library));
            }
            done += 1;
            Access::Write { syncs: syncs(done) - syncs(done - 1), makes: done % 2 == 1 }
        };
        calls.into_iter().map(access).collect()
    }

    /// Files that are there.
    fn library(&self) -> usize {
        (self.counts().0 / 2).max(1)
    }

    /// Seconds of a run, on average over so many different ones.
    pub(super) async fn replay(
        &self,
        env: &Env,
        machine: &Machine,
        runs: u32,
    ) -> Result<f64, BenchError> {
        let mut rng = env.rng();
        let mut took = Duration::ZERO;
        for run in 0..runs {
            let (directory, library) = self.prepare(machine, run, &mut rng).await?;
            machine.subject.drain().await.map_err(failed)?;
            machine.subject.forget_pages();
            // Until the object servers have written their journals back.
            env.sleep(Duration::from_secs_f64(rng.random_range(10.0..11.0))).await;
            let calls = self.accesses(&mut rng);
            let begun = env.now();
            play(machine, directory, &library, &calls, &mut rng).await?;
            took += env.now().since(begun);
        }
        Ok(took.as_secs_f64() / f64::from(runs))
    }

    /// A directory, and the files in it with their sizes.
    async fn prepare(
        &self,
        machine: &Machine,
        run: u32,
        rng: &mut Rng,
    ) -> Result<(Ino, Vec<(Ino, u64)>), BenchError> {
        let subject = &machine.subject;
        let directory = subject.make_directory(&format!("run{run}")).await.map_err(failed)?;
        let mut library = Vec::new();
        for number in 0..self.library() {
            let file = subject.create(directory, &format!("there{number}")).await;
            let file = file.map_err(failed)?;
            let size = size(READ, rng);
            subject.write(file, 0, size as usize).await.map_err(failed)?;
            library.push((file, size));
        }
        Ok((directory, library))
    }
}

/// Bytes with this median.
fn size(median: f64, rng: &mut Rng) -> u64 {
    let size = LogNormal::new(median.ln(), SPREAD).map_or(median, |size| size.sample(rng));
    size.clamp(64.0, MOST) as u64
}

async fn play(
    machine: &Machine,
    directory: Ino,
    library: &[(Ino, u64)],
    calls: &[Access],
    rng: &mut Rng,
) -> Result<(), BenchError> {
    let subject = &machine.subject;
    let mut written: Vec<(Ino, u64)> = Vec::new();
    for call in calls {
        machine.operation().await;
        let (syncs, makes) = match *call {
            Access::Read(number) => {
                let (file, size) = library[number];
                subject.read(file, 0, size as usize).await.map_err(failed)?;
                continue;
            }
            Access::Write { syncs, makes } => (syncs, makes),
        };
        if makes || written.is_empty() {
            let name = format!("new{}", written.len());
            written.push((subject.create(directory, &name).await.map_err(failed)?, 0));
        }
        let nth = if makes { written.len() - 1 } else { rng.random_range(0..written.len()) };
        let (file, end) = &mut written[nth];
        for part in 0..syncs.max(1) {
            let len = size(WRITTEN, rng);
            machine.operation().await;
            subject.write(*file, *end, len as usize).await.map_err(failed)?;
            *end += len;
            if part < syncs {
                machine.operation().await;
                subject.sync(*file).await.map_err(failed)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn traces_have_the_counts_of_the_table() {
        for (trace, wanted) in TRACES.iter().zip([(27, 30, 32), (92, 47, 95), (261, 286, 185)]) {
            let calls = trace.accesses(&mut Rng::seed_from_u64(1));
            let reads = calls.iter().filter(|call| matches!(call, Access::Read(_))).count();
            let syncs: usize = calls
                .iter()
                .map(|call| if let Access::Write { syncs, .. } = call { *syncs } else { 0 })
                .sum();
            assert_eq!((reads, calls.len() - reads, syncs), wanted, "{}", trace.name);
        }
    }
}
