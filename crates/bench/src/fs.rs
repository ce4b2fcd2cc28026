//! Filesystems on the same disk, in real time: ours through FUSE, in two modes; the kernel's ext4 on loop
//! devices, with `data=ordered` and `data=journal`; and a folder on ext4 behind a plain FUSE
//! pass-through.
//!
//! Each has a loop device of its own over a file that was written once; the device's counters tell
//! which bytes and flushes reached it. The filesystems are measured in turns; a figure is the median
//! over the rounds. Apart from these, calls are timed without kernel and disk (`in_process`).

mod in_process;
pub(crate) mod loads;
pub(crate) mod made;
mod passthrough;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use thalweg_env::{Env, Rng, server_threads};
use thalweg_fs::Filesystem;
use thalweg_fuse::mounted;
use thalweg_store::device::{FileDevice, FileOptions};
use thalweg_store::inplace::{InPlace, Mode};

use crate::loops::{LoopDevice, Mounted, Reached};
use crate::rig::{self, median, rounded};
use crate::{BenchEntry, BenchError, Options, Report};
use loads::{SourceTree, command, noise, threads};
use made::make;
use passthrough::Passthrough;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "fs",
    about: "small synchronous writes, trees of files and fio, beside ext4 and a FUSE pass-through (real time)",
    clock: crate::Clock::Real,
    loads,
    traces: false,
    run,
};

/// Bytes of a device.
const SIZE: u64 = 2 << 30;
const ROUNDS: usize = 3;
const DEFAULT_SCALE: f64 = 0.1;
/// Files made in one directory, at scale 1.
const CREATES: f64 = 100_000.0;
/// Writes of each load of small ones, at scale 1.
const WRITES: f64 = 20_000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Ours(Mode),
    Ext4(&'static str),
    Passthrough,
}

const SYSTEMS: [(System, &str); 5] = [
    (System::Ours(Mode::Wasteless), "wasteless"),
    (System::Ours(Mode::Ordered), "ordered"),
    (System::Ext4("ordered"), "ext4_ordered"),
    (System::Ext4("journal"), "ext4_journal"),
    (System::Passthrough, "passthrough"),
];

/// The result of a load.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Operations per second; for a load of one operation, 1 over its seconds.
    rate: f64,
    /// For small writes: their bytes, and the number of synced ones.
    written: Option<(u64, u64)>,
    reached: Reached,
}

fn failed(what: impl Into<String>) -> BenchError {
    BenchError::Failed(what.into().into())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> BenchError {
    BenchError::Failed(Box::new(error))
}

/// A mounted filesystem; dropping it unmounts and deletes it.
struct Subject {
    name: &'static str,
    point: PathBuf,
    // In the order in which they have to be dropped.
    ours: Option<(mounted::Mounted, Option<Arc<InPlace>>, tokio::runtime::Runtime)>,
    _ext4: Option<Mounted>,
    device: LoopDevice,
    _folder: TempDir,
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some((mounted, store, runtime)) = self.ours.take() {
            mounted.unmount(true).ok();
            mounted.join().ok();
            if let Some(store) = store {
                runtime.block_on(store.close()).ok();
            }
        }
    }
}

impl Subject {
    fn start(system: System, name: &'static str, parent: &Path) -> Result<Subject, BenchError> {
        let io = |source| BenchError::Io { path: parent.to_owned(), source };
        let folder = tempfile::tempdir_in(parent).map_err(io)?;
        let device = LoopDevice::create_written(folder.path(), SIZE)?;
        let (mut ext4, mut ours) = (None, None);
        let point = match system {
            System::Ext4(data) => {
                let mounted =
                    Mounted::create_with(&device, folder.path(), &format!("data={data}"))?;
                let point = mounted.path().to_owned();
                ext4 = Some(mounted);
                point
            }
            System::Passthrough => {
                let mounted = Mounted::create_with(&device, folder.path(), "data=ordered")?;
                let point = folder.path().join("passed");
                fs::create_dir(&point).map_err(io)?;
                let runtime = runtime()?;
                let files = Arc::new(Passthrough::new(mounted.path().to_owned()).map_err(io)?);
                ours = Some((serve(&runtime, files, &point)?, None, runtime));
                ext4 = Some(mounted);
                point
            }
            System::Ours(mode) => {
                let point = folder.path().join("ours");
                fs::create_dir(&point).map_err(io)?;
                let runtime = runtime()?;
                let (files, store) = runtime.block_on(async {
                    let options = FileOptions::default();
                    let opened = FileDevice::open(device.path(), &options).await.map_err(other)?;
                    make(Arc::new(opened), mode).await
                })?;
                ours = Some((serve(&runtime, files, &point)?, Some(store), runtime));
                point
            }
        };
        Ok(Subject { name, point, ours, _ext4: ext4, device, _folder: folder })
    }

    /// Times a load, which returns its number of operations, until all of it is on the device.
    fn measure(&self, clock: &Env, load: impl FnOnce() -> Outcome) -> Result<Measured, BenchError> {
        settle()?;
        let (before, begun) = (self.device.reached()?, clock.now());
        let (operations, written) = load()?;
        let seconds = clock.now().since(begun).as_secs_f64();
        let reached = self.device.reached()?.since(before);
        Ok(Measured { rate: operations / seconds.max(1e-9), written, reached })
    }
}

/// Waits until no writes are in flight to any disk.
fn settle() -> Result<(), BenchError> {
    let synced = Command::new("sync").status().map_err(other)?;
    if synced.success() { Ok(()) } else { Err(failed("sync failed")) }
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(server_threads()).enable_all().build().map_err(other)
}

fn serve(
    runtime: &tokio::runtime::Runtime,
    files: Arc<dyn Filesystem>,
    point: &Path,
) -> Result<mounted::Mounted, BenchError> {
    let _entered = runtime.enter();
    let options = mounted::MountOptions::default();
    mounted::mount(&Env::real(), runtime.handle().clone(), files, point, &options).map_err(other)
}

fn loads() -> Vec<String> {
    [in_process::NAME].into_iter().chain(LOADS.map(|load| load.name)).map(str::to_owned).collect()
}

/// See [`ENTRY`].
///
/// # Errors
/// [`BenchError::Failed`] when a program is missing or a load fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    if options.runs(in_process::NAME) {
        in_process::measure(&mut report, scale)?;
    }
    if !LOADS.iter().any(|load| options.runs(load.name)) {
        return Ok(report);
    }
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let timer = runtime()?;
    let _entered = timer.enter();
    let clock = Env::real();
    let mut subjects = Vec::new();
    for (system, name) in SYSTEMS {
        subjects.push(Subject::start(system, name, &parent)?);
    }
    let tree = SourceTree::make(&parent)?;
    for load in LOADS.into_iter().filter(|load| options.runs(load.name)) {
        let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); subjects.len()];
        for round in 0..ROUNDS {
            let turn = Turn { round, seed: options.seed, scale, tree: &tree };
            for (subject, row) in subjects.iter().zip(&mut measured) {
                let folder = subject.point.join(format!("{}{round}", load.name));
                fs::create_dir(&folder)
                    .map_err(|source| BenchError::Io { path: folder.clone(), source })?;
                (load.prepare)(&folder, &turn)?;
                row.push(subject.measure(&clock, || (load.run)(&folder, &turn))?);
            }
        }
        tell(&mut report, load.name, &subjects, &measured);
    }
    Ok(report)
}

fn tell(report: &mut Report, load: &str, subjects: &[Subject], measured: &[Vec<Measured>]) {
    let of = |rows: &[Measured], value: &dyn Fn(&Measured) -> f64| {
        median(rows.iter().map(value).collect())
    };
    let ours = &measured[0];
    for (subject, rows) in subjects.iter().zip(measured) {
        let name = |figure: &str| format!("{}_{load}_{figure}", subject.name);
        report.figure(&name("per_s"), rounded(of(rows, &|row| row.rate)));
        if rows.iter().all(|row| row.written.is_some()) {
            let per_byte = |row: &Measured| {
                row.reached.bytes as f64 / row.written.map_or(1.0, |(bytes, _)| bytes as f64)
            };
            let per_sync = |row: &Measured| {
                row.reached.flushes as f64 / row.written.map_or(1.0, |(_, syncs)| syncs as f64)
            };
            report.figure(&name("bytes_per_user_byte"), rounded(of(rows, &per_byte)));
            report.figure(&name("flushes_per_fsync"), rounded(of(rows, &per_sync)));
        }
        let ratios = ours.iter().zip(rows).map(|(our, their)| our.rate / their.rate.max(1e-12));
        if subject.name == subjects[0].name {
            continue;
        }
        let figure = format!("wasteless_over_{}_{load}", subject.name);
        report.figure(&figure, rounded(median(ratios.collect())));
    }
}

/// One run of a load.
struct Turn<'a> {
    round: usize,
    seed: u64,
    scale: f64,
    tree: &'a SourceTree,
}

type Outcome = Result<(f64, Option<(u64, u64)>), BenchError>;

struct Load {
    name: &'static str,
    /// Preparation, which is not measured.
    prepare: fn(&Path, &Turn<'_>) -> Result<(), BenchError>,
    run: fn(&Path, &Turn<'_>) -> Outcome,
}

fn nothing(_: &Path, _: &Turn<'_>) -> Result<(), BenchError> {
    Ok(())
}

const LOADS: [Load; 9] = [
    Load {
        name: "1x128",
        prepare: |folder, turn| prepare_blocks(folder, turn, 1),
        run: |folder, turn| overwrite(folder, turn, 1),
    },
    Load {
        name: "64x128",
        prepare: |folder, turn| prepare_blocks(folder, turn, 64),
        run: |folder, turn| overwrite(folder, turn, 64),
    },
    Load { name: "appends", prepare: nothing, run: append },
    Load { name: "creates", prepare: nothing, run: create },
    Load { name: "postmark", prepare: nothing, run: postmark },
    Load { name: "untar", prepare: nothing, run: untar },
    Load { name: "compile", prepare: extract, run: compile },
    Load {
        name: "fio_sequential",
        prepare: nothing,
        run: |folder, turn| fio(folder, turn, "write", "128k"),
    },
    Load {
        name: "fio_random",
        prepare: nothing,
        run: |folder, turn| fio(folder, turn, "randrw", "4k"),
    },
];

fn rng(turn: &Turn<'_>, thread: usize) -> Rng {
    Rng::seed_from_u64(turn.seed ^ (turn.round as u64) << 32 ^ thread as u64)
}

fn synchronous(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).read(true).write(true).custom_flags(libc::O_SYNC).open(path)
}

/// A file of one block for each writer.
fn prepare_blocks(folder: &Path, turn: &Turn<'_>, writers: usize) -> Result<(), BenchError> {
    for writer in 0..writers {
        let mut file = File::create(folder.join(format!("{writer}"))).map_err(other)?;
        file.write_all(&noise(&mut rng(turn, 1000 + writer), 4096)).map_err(other)?;
        file.sync_all().map_err(other)?;
    }
    Ok(())
}

/// Each thread overwrites 128 bytes at a random offset of its block, synchronously.
fn overwrite(folder: &Path, turn: &Turn<'_>, writers: usize) -> Outcome {
    let each = ((WRITES * turn.scale) as usize / writers).max(1);
    let count = each * writers;
    threads(writers, |writer| {
        let file = synchronous(&folder.join(format!("{writer}")))?;
        let mut rng = rng(turn, writer);
        (0..each).try_for_each(|_| {
            let at = rng.random_range(0..=4096 - 128);
            file.write_all_at(&noise(&mut rng, 128), at)
        })
    })?;
    Ok((count as f64, Some((count as u64 * 128, count as u64))))
}

/// A hundred threads append 125 bytes at a time, synchronously.
fn append(folder: &Path, turn: &Turn<'_>) -> Outcome {
    const WRITERS: usize = 100;
    let each = ((WRITES * turn.scale) as usize / WRITERS).max(1);
    threads(WRITERS, |writer| {
        let file = synchronous(&folder.join(format!("{writer}")))?;
        let mut rng = rng(turn, writer);
        (0..each).try_for_each(|nth| file.write_all_at(&noise(&mut rng, 125), nth as u64 * 125))
    })?;
    let count = (each * WRITERS) as u64;
    Ok((count as f64, Some((count * 125, count))))
}

/// Empty files in one directory.
fn create(folder: &Path, turn: &Turn<'_>) -> Outcome {
    let count = (CREATES * turn.scale) as usize;
    loads::create(folder, count)?;
    Ok((count as f64, None))
}

fn postmark(folder: &Path, turn: &Turn<'_>) -> Outcome {
    const THREADS: usize = 16;
    let each = (WRITES * turn.scale) as usize / 4 / THREADS;
    loads::postmark(folder, THREADS, each, |thread| rng(turn, thread))?;
    Ok(((each * THREADS) as f64, None))
}

fn extract(folder: &Path, turn: &Turn<'_>) -> Result<(), BenchError> {
    turn.tree.extract(folder)
}

fn untar(folder: &Path, turn: &Turn<'_>) -> Outcome {
    extract(folder, turn)?;
    command("sync", &["--file-system".as_ref(), folder])?;
    Ok((1.0, None))
}

/// Compiles a share of the tree, two at a time.
fn compile(folder: &Path, turn: &Turn<'_>) -> Outcome {
    let parts = ((20.0 * turn.scale) as usize).clamp(1, 20);
    let done = threads(2, |half| {
        for unit in (0..parts * 20).filter(|unit| unit % 2 == half) {
            let source = folder.join(format!("tree/part{}/unit{unit}.c", unit / 20));
            let object = source.with_extension("o");
            let arguments =
                ["-O0".as_ref(), "-c".as_ref(), source.as_path(), "-o".as_ref(), &object];
            command("cc", &arguments).map_err(std::io::Error::other)?;
        }
        Ok(())
    });
    done.map(|()| (1.0, None))
}

fn fio(folder: &Path, turn: &Turn<'_>, pattern: &str, block: &str) -> Outcome {
    let size = ((512.0 * turn.scale) as u64).max(16);
    let words = [
        "--name=load".to_owned(),
        format!("--directory={}", folder.display()),
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--size={size}m"),
        "--ioengine=psync".to_owned(),
        "--end_fsync=1".to_owned(),
        format!("--randseed={}", turn.seed),
    ];
    let words: Vec<&Path> = words.iter().map(Path::new).collect();
    command("fio", &words)?;
    Ok((size as f64, None))
}
