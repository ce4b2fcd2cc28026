//! `fs-many`: a filesystem with ten million files, a million of them in one directory (real time).
//!
//! Times of creating, finding and opening with all of the files, beside those with a tenth of them, and
//! the time of a check of the whole filesystem. Compare times within a run only.

use std::path::Path;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use tempfile::NamedTempFile;
use thalweg_env::{Env, Rng, Time, server_threads};
use thalweg_fs::local::{self, Format, LocalFs, check};
use thalweg_fs::{Filesystem, Ino, NewNode, Node};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{DeviceRef, FileDevice, FileOptions};
use thalweg_store::inplace::{InPlace, NewInPlace, Options as StoreOptions, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "fs-many",
    about: "ten million files, a million in one directory: create, find, open, check (real time)",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

const DEFAULT_SCALE: f64 = 0.03;
/// Files at scale 1. Every tenth is in one directory.
const FILES: f64 = 1e7;
const IN_ONE: u64 = 10;
/// Files in each of the other directories.
const IN_OTHERS: u64 = 1000;
/// Number of lookups.
const FOUND: u64 = 20_000;
/// Bytes of memory for blocks at scale 1: too few to cache all names.
const CACHE: f64 = 256e6;
/// Bytes of the volume for each file's metadata.
const PER_FILE: u64 = 1 << 10;
/// Bytes of the volume besides those.
const BASE: u64 = 1 << 30;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut report = Report::new(ENTRY.name, options.seed);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(server_threads()).enable_all().build().map_err(failed)?;
    runtime.block_on(measure(&mut report, &dir, options.seed, scale))?;
    Ok(report)
}

async fn measure(report: &mut Report, dir: &Path, seed: u64, scale: f64) -> Result<(), BenchError> {
    let tenth = ((FILES * scale) as u64 / 10).max(2 * IN_OTHERS);
    let files = tenth * 10;
    let io = |source| BenchError::Io { path: dir.to_owned(), source };
    let file = NamedTempFile::new_in(dir).map_err(io)?;
    file.as_file().set_len(BASE + files * PER_FILE).map_err(io)?;
    let device = FileDevice::open(file.path(), &FileOptions::default()).await.map_err(failed)?;
    let (env, device) = (Env::real(), Arc::new(device) as DeviceRef);
    let cache = ((CACHE * scale) as usize).max(4 << 20);
    let mut rng = Rng::seed_from_u64(seed);
    report.figure("files", files).figure("in_one_directory", files / IN_ONE);
    Many::make(&env, &device, cache, files).await?.close().await?;
    // Each time the last tenth of the files is timed.
    for (name, made, last) in [("few", 0, tenth), ("all", tenth, files)] {
        let mut figure = |what: &str, value: f64| {
            report.figure(&format!("{name}_{what}"), rounded(value));
        };
        let many = Many::open(&env, &device, cache).await?;
        many.create(made..last - tenth).await?;
        let begun = env.now();
        many.create(last - tenth..last).await?;
        figure("create_us", micros(&env, begun) / tenth as f64);
        many.close().await?;

        let (reads, begun) = (device.tallies().total().reads, env.now());
        let many = Many::open(&env, &device, cache).await?;
        figure("open_ms", micros(&env, begun) / 1e3);
        figure("open_reads", (device.tallies().total().reads - reads) as f64);

        let (reads, begun) = (device.tallies().total().reads, env.now());
        for _ in 0..FOUND {
            many.find(rng.random_range(0..last)).await?;
        }
        figure("lookup_us", micros(&env, begun) / FOUND as f64);
        let reads = device.tallies().total().reads - reads;
        figure("lookup_reads", reads as f64 / FOUND as f64);
        if last == files {
            let memory = rig::forget_peak()?;
            let (seconds, report) = many.check().await?;
            figure("check_s", seconds);
            figure("check_mb", rig::peak()?.saturating_sub(memory) as f64 / 1e6);
            figure("checked_names", report.names as f64);
        } else {
            many.close().await?;
        }
    }
    let of = |name: &str| report.number(&format!("{name}_create_us")).unwrap_or(f64::NAN);
    let ratio = rounded(of("all") / of("few"));
    report.figure("create_all_over_few", ratio);
    Ok(())
}

/// The filesystem with the files.
struct Many {
    env: Env,
    store: Arc<InPlace>,
    volume: Arc<dyn Transact>,
    fs: LocalFs,
}

impl Many {
    async fn store(
        env: &Env,
        device: &DeviceRef,
        cache: usize,
    ) -> Result<(Arc<InPlace>, Arc<dyn Transact>), BenchError> {
        let parts = Parts { data: device.clone(), journal: None };
        let options = StoreOptions { cache, ..StoreOptions::default() };
        let store = Arc::new(InPlace::open(env, parts, options).await.map_err(failed)?.0);
        let volume = TransactionManager::new(env, store.clone(), txn::Options::default());
        Ok((store, Arc::new(volume)))
    }

    /// Makes an empty filesystem with space for `files` files.
    async fn make(
        env: &Env,
        device: &DeviceRef,
        cache: usize,
        files: u64,
    ) -> Result<Many, BenchError> {
        let parts = Parts { data: device.clone(), journal: None };
        let new = NewInPlace { name: "many".to_owned(), ..NewInPlace::default() };
        InPlace::create(env, &parts, &new).await.map_err(failed)?;
        let (store, volume) = Many::store(env, device, cache).await?;
        let blocks = (files * PER_FILE + BASE / 4) / BLOCK_SIZE as u64;
        let format = Format { metadata_blocks: Some(blocks), ..Format::default() };
        local::make(env, &volume, &format).await.map_err(failed)?;
        Many::mount(env, store, volume).await
    }

    async fn open(env: &Env, device: &DeviceRef, cache: usize) -> Result<Many, BenchError> {
        let (store, volume) = Many::store(env, device, cache).await?;
        Many::mount(env, store, volume).await
    }

    async fn mount(
        env: &Env,
        store: Arc<InPlace>,
        volume: Arc<dyn Transact>,
    ) -> Result<Many, BenchError> {
        let fs = LocalFs::open(env, volume.clone(), "fs", local::Options::default());
        Ok(Many { env: env.clone(), store, volume, fs: fs.await.map_err(failed)? })
    }

    async fn close(self) -> Result<(), BenchError> {
        drop(self.fs);
        self.store.close().await.map_err(failed)
    }

    /// Creates files, and the directories whose first file is among them.
    async fn create(&self, files: std::ops::Range<u64>) -> Result<(), BenchError> {
        let mut folders = [None, None];
        for file in files {
            let (folder, name) = place(file);
            let known = &mut folders[usize::from(folder == 0)];
            let ino = match known.filter(|(number, _)| *number == folder) {
                Some((_, ino)) => ino,
                None => self.folder(folder).await?,
            };
            *known = Some((folder, ino));
            self.fs.create(ino, name.as_bytes(), &node(Node::File)).await.map_err(failed)?;
        }
        Ok(())
    }

    /// A directory, created if it does not exist.
    async fn folder(&self, number: u64) -> Result<Ino, BenchError> {
        let name = folder_name(number);
        if let Ok(found) = self.fs.find(Ino::ROOT, name.as_bytes()).await {
            return Ok(found.ino);
        }
        let made = self.fs.create(Ino::ROOT, name.as_bytes(), &node(Node::Directory)).await;
        Ok(made.map_err(failed)?.ino)
    }

    async fn find(&self, file: u64) -> Result<(), BenchError> {
        let (folder, name) = place(file);
        let found = self.fs.find(Ino::ROOT, folder_name(folder).as_bytes()).await;
        let found = self.fs.find(found.map_err(failed)?.ino, name.as_bytes()).await;
        found.map(drop).map_err(failed)
    }

    /// Checks the filesystem, and closes it; returns the seconds of the check.
    async fn check(self) -> Result<(f64, check::Report), BenchError> {
        let Many { env, store, volume, fs } = self;
        drop(fs);
        let begun = env.now();
        let how = check::How::default();
        let report = check::check(&env, volume, "fs", how).await.map_err(failed)?;
        let seconds = micros(&env, begun) / 1e6;
        if !report.is_clean() {
            return Err(failed(std::io::Error::other(format!("{:?}", report.findings))));
        }
        store.close().await.map_err(failed)?;
        Ok((seconds, report))
    }
}

/// The number of a file's directory, 0 for the large one, and the file's name.
fn place(file: u64) -> (u64, String) {
    let folder = if file.is_multiple_of(IN_ONE) { 0 } else { 1 + file / IN_OTHERS };
    (folder, format!("file-{file:08}"))
}

fn folder_name(number: u64) -> String {
    format!("folder-{number}")
}

fn node(node: Node) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0, uid: 0, gid: 0 }
}

fn micros(env: &Env, begun: Time) -> f64 {
    env.now().since(begun).as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_found_and_checked() {
        let report = run(&Options { scale: Some(0.002), ..Options::default() }).unwrap();
        let figure = |name: &str| report.number(name).unwrap();
        assert_eq!(figure("files"), 20_000.0);
        // One name for each file, one for the large directory, and one for each of the others.
        assert_eq!(figure("all_checked_names"), 20_000.0 + 1.0 + 20.0);
        assert!(figure("all_lookup_reads") > 0.0, "memory had room for everything");
    }
}
