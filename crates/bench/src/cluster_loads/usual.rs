//! Usual work of programs: on one client, and on a second one with the files of the first.
//!
//! A load ends when its names are durable: after an `fsync` of the directory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::stage::{Load, Stage, Timed, sync};
use crate::BenchError;
use crate::fs::loads::{self, SourceTree, noise};
use crate::rig::failed;

/// The loads.
pub(crate) const LOADS: [Load; 9] = [
    Load { name: "creates", unit: PER_S, run: creates },
    Load { name: "fsync", unit: PER_S, run: fsync },
    Load { name: "untar", unit: PER_S, run: untar },
    Load { name: "postmark", unit: PER_S, run: postmark },
    Load { name: "cached_random", unit: PER_S, run: |stage| random(stage, true) },
    Load { name: "cached_sequential", unit: MIB_PER_S, run: |stage| sequential(stage, true) },
    Load { name: "uncached_random", unit: PER_S, run: |stage| random(stage, false) },
    Load { name: "uncached_sequential", unit: MIB_PER_S, run: |stage| sequential(stage, false) },
    Load { name: "stat", unit: PER_S, run: stat },
];

pub(super) const PER_S: &str = "per_s";
const MIB_PER_S: &str = "mib_per_s";

/// Files made in one directory.
const CREATES: f64 = 8_000.0;
/// Durable writes.
const WRITES: f64 = 200.0;
/// Threads of postmark, and the files that each of them makes.
const THREADS: usize = 16;
const EACH: f64 = 20.0;
/// Files of which a client asks for the attributes.
const STATS: f64 = 10_000.0;
/// Random reads: of a file that the client caches, and of one that it has never read.
const CACHED_READS: f64 = 1_200_000.0;
const READS: f64 = 2_000.0;
const BLOCK: usize = 4096;
/// MiB of a file that is read, of one that is read in order and not cached, and of a read in order.
const FILE: f64 = 64.0;
const LONG_FILE: f64 = 256.0;
const PIECE: usize = 4;
/// How often a file that the client caches is read.
const PASSES: usize = 120;

/// Empty files in one directory.
fn creates(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    let count = stage.count(CREATES, 10);
    stage.time(count, || {
        loads::create(&stage.first, count)?;
        sync(&stage.first)
    })
}

/// Blocks at the end of a file, each synced.
fn fsync(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    synced_writes(stage, stage.count(WRITES, 4))
}

/// So many blocks at the end of a file, each synced.
pub(super) fn synced_writes(stage: &Stage<'_>, count: usize) -> Result<Timed, BenchError> {
    let block = noise(&mut stage.rng(0), BLOCK);
    let mut file = File::create(stage.first.join("log")).map_err(failed)?;
    stage.time(count, || {
        let write = |_| file.write_all(&block).and_then(|()| file.sync_all());
        (0..count).try_for_each(write).map_err(failed)
    })
}

/// An archive of sources is unpacked; in files per second.
fn untar(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    stage.time(SourceTree::FILES, || {
        stage.tree.extract(&stage.first)?;
        sync(&stage.first)
    })
}

/// See [`loads::postmark`]; in files per second.
fn postmark(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    let each = stage.count(EACH, 1);
    stage.time(each * THREADS, || {
        loads::postmark(&stage.first, THREADS, each, |thread| stage.rng(thread))
    })
}

/// The first client writes a file; its path for the client that reads it, and its MiB.
fn write_file(
    stage: &Stage<'_>,
    is_cached: bool,
    size: f64,
) -> Result<(PathBuf, usize), BenchError> {
    let size = stage.count(size, PIECE).next_multiple_of(PIECE);
    let written = stage.first.join("file");
    let write = || {
        let mut rng = stage.rng(0);
        let mut file = File::create(&written)?;
        for _ in 0..size {
            file.write_all(&noise(&mut rng, 1 << 20))?;
        }
        file.sync_all()
    };
    write().map_err(|source| BenchError::Io { path: written.clone(), source })?;
    if is_cached {
        fs::read(&written).map_err(failed)?;
        return Ok((written, size));
    }
    Ok((stage.second.join("file"), size))
}

/// Has the kernel forget what it caches of the file that was read, so that the next one finds the same memory free.
///
/// A virtual machine's host may give it memory only where something is first written, at 2 ms for each MiB where this was
/// seen: more than the reads themselves take. They would become slower as caches grow.
fn forget_pages(stage: &Stage<'_>) -> Result<(), BenchError> {
    for path in [&stage.first, &stage.second].map(|folder| folder.join("file")) {
        let forgotten = || {
            let file = File::open(&path)?;
            Ok(posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
        };
        forgotten().map_err(|source: io::Error| BenchError::Io { path: path.clone(), source })?;
    }
    Ok(())
}

/// Blocks of a file in a random order, none of them twice before all were read.
fn random(stage: &Stage<'_>, is_cached: bool) -> Result<Timed, BenchError> {
    let (path, size) = write_file(stage, is_cached, FILE)?;
    let blocks = (size << 20) / BLOCK;
    let count = stage.count(if is_cached { CACHED_READS } else { READS }, 16);
    let timed = stage.time(count, || {
        let read = || {
            let file = File::open(&path)?;
            let mut block = vec![0; BLOCK];
            // The factor is a prime, and the number of blocks a multiple of 2 and other small ones.
            (0..count).try_for_each(|nth| {
                let at = nth * 7919 % blocks * BLOCK;
                file.read_exact_at(&mut block, at as u64)
            })
        };
        read().map_err(|source: io::Error| BenchError::Io { path: path.clone(), source })
    })?;
    forget_pages(stage)?;
    Ok(timed)
}

fn sequential(stage: &Stage<'_>, is_cached: bool) -> Result<Timed, BenchError> {
    let (size, passes) = if is_cached { (FILE, PASSES) } else { (LONG_FILE, 1) };
    let (path, size) = write_file(stage, is_cached, size)?;
    let timed = stage.time(size * passes, || {
        (0..passes)
            .try_for_each(|_| read_through(&path, size << 20))
            .map_err(|source| BenchError::Io { path: path.clone(), source })
    })?;
    forget_pages(stage)?;
    Ok(timed)
}

fn read_through(path: &Path, size: usize) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE << 20];
    (0..size / piece.len()).try_for_each(|_| file.read_exact(&mut piece))
}

/// A client asks for the attributes of each file that another one has made.
fn stat(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    let count = stage.count(STATS, 10);
    loads::create(&stage.first, count)?;
    sync(&stage.first)?;
    stage.time(count, || {
        (0..count).try_for_each(|number| {
            let path = loads::created(&stage.second, number);
            fs::metadata(&path).map(drop).map_err(|source| BenchError::Io { path, source })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_stage;
    use super::*;

    #[test]
    fn every_load_works_on_a_plain_directory() {
        on_stage(|stage| {
            for load in LOADS {
                let first = stage.first.join(load.name);
                fs::create_dir(&first).unwrap();
                let Stage { env, tree, scale, seed, .. } = *stage;
                let second = first.clone();
                let timed = (load.run)(&Stage { env, first, second, tree, scale, seed }).unwrap();
                assert!(timed.operations >= 4.0 && timed.seconds > 0.0, "{}", load.name);
                assert_eq!(timed.lost, None, "{}", load.name);
            }
            let files = |folder: &str| fs::read_dir(stage.first.join(folder)).unwrap().count();
            assert_eq!((files("creates"), files("stat")), (40, 50));
            let log = fs::metadata(stage.first.join("fsync/log")).unwrap();
            assert_eq!(log.len(), 4 * BLOCK as u64);
            assert!(stage.first.join("untar/tree/part19/unit399.h").exists());
        });
    }

    #[test]
    fn a_second_client_without_the_files_is_an_error() {
        on_stage(|stage| {
            for load in LOADS {
                if !["uncached_random", "uncached_sequential", "stat"].contains(&load.name) {
                    continue;
                }
                let (first, second) = (stage.first.clone(), stage.first.join("elsewhere"));
                let Stage { env, tree, scale, seed, .. } = *stage;
                let missing = (load.run)(&Stage { env, first, second, tree, scale, seed });
                let missing = missing.unwrap_err().to_string();
                assert!(missing.contains("elsewhere"), "{}: {missing}", load.name);
            }
        });
    }
}
