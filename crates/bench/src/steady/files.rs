//! Small durable overwrites of files: our filesystem and ext4.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use thalweg_env::Rng;
use thalweg_store::device::AlignedBuf;

use super::pace::{Load, Outcome, write_file};
use super::{ROUNDS, maximum, millis, ratio};
use crate::loops::{LoopDevice, Mounted};
use crate::machine::{Machine, Mount, execute};
use crate::peer::pause;
use crate::rig::{failed, median, rounded};
use crate::{BenchError, Report};

const THREADS: usize = 16;
/// Bytes of each writer's file.
const FILE: u64 = 1 << 20;
/// Bytes of a filesystem at scale 1.
const SIZE: u64 = 1 << 30;
const LEAST: u64 = 192 << 20;
/// How full the filesystem on a chained volume is.
const FILL: f64 = 0.94;
/// Maximum bytes of the files that fill it.
const FILLER: u64 = 16 << 20;
/// Overwrites a second of all threads on the chained volume.
const PACE: f64 = 1600.0;
/// Seconds of one measurement at scale 1.
const CHAIN_SECONDS: f64 = 20.0;
const IN_PLACE_SECONDS: f64 = 10.0;
/// Bytes of the neighbours' files at scale 1.
const NEIGHBOUR: u64 = 256 << 20;
/// The neighbouring writer writes 1 MiB in this time.
const WRITER_PERIOD: Duration = Duration::from_millis(10);
const READ: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    /// Ours on a chained volume in a folder.
    Chain,
    /// Ours on a loop device, updated in place in mode wasteless.
    InPlace,
    /// ext4 on a loop device with this mode of `data=`.
    Ext4(&'static str),
}

impl System {
    fn name(self) -> String {
        match self {
            System::Chain => "chain".to_owned(),
            System::InPlace => "wasteless".to_owned(),
            System::Ext4(data) => format!("ext4_{data}"),
        }
    }
}

/// A mounted filesystem. Fields are dropped in order.
struct Subject {
    name: String,
    point: PathBuf,
    _ours: Option<Mount>,
    _ext4: Option<Mounted>,
    _device: Option<LoopDevice>,
    _folder: TempDir,
}

impl Subject {
    fn start(machine: &Machine, system: System, size: u64) -> Result<Subject, BenchError> {
        let parent = machine.folder.path();
        let io = |source| BenchError::Io { path: parent.to_owned(), source };
        let folder = tempfile::tempdir_in(parent).map_err(io)?;
        let point = folder.path().join("ours");
        fs::create_dir(&point).map_err(io)?;
        let (mut ours, mut ext4, mut device) = (None, None, None);
        match system {
            System::Chain => {
                let volume = folder.path().join("volume");
                let bytes = size.to_string();
                machine.thalweg(&["mkfs".as_ref(), volume.as_os_str(), OsStr::new(&bytes)])?;
                ours = Some(Mount::new(machine, &volume, &point, None)?);
            }
            System::InPlace => {
                let written = LoopDevice::create_written(folder.path(), size)?;
                machine.thalweg(&["mkfs".as_ref(), written.path().as_os_str()])?;
                let options = Some("data=wasteless");
                ours = Some(Mount::new(machine, written.path(), &point, options)?);
                device = Some(written);
            }
            System::Ext4(data) => {
                let written = LoopDevice::create_written(folder.path(), size)?;
                let options = format!("data={data}");
                ext4 = Some(Mounted::create_with(&written, folder.path(), &options)?);
                device = Some(written);
            }
        }
        let point = ext4.as_ref().map_or(point, |mounted| mounted.path().to_owned());
        let name = system.name();
        Ok(Subject { name, point, _ours: ours, _ext4: ext4, _device: device, _folder: folder })
    }

    /// Fills the filesystem with files, and overwrites as many blocks of them at random as they have.
    fn fill(&self, seed: u64) -> Result<(), BenchError> {
        let io = |source| BenchError::Io { path: self.point.clone(), source };
        let mut files = Vec::new();
        loop {
            let (total, free) = space(&self.point)?;
            let used = total - free;
            let left = ((total as f64 * FILL) as u64).saturating_sub(used) / (1 << 20) * (1 << 20);
            if left == 0 {
                break;
            }
            let path = self.point.join(format!("filler{}", files.len()));
            let bytes = left.min(FILLER);
            write_file(&path, bytes).map_err(io)?;
            files.push((path, bytes));
        }
        overwrite(&files, seed).map_err(io)?;
        settle()
    }
}

/// Bytes of the filesystem at `point`, and how many of them are free.
fn space(point: &Path) -> Result<(u64, u64), BenchError> {
    let path = CString::new(point.as_os_str().as_bytes()).map_err(failed)?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero, and the call fills the place when it returns 0.
    let stat = unsafe {
        match libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) {
            0 => stat.assume_init(),
            _ => return Err(failed(std::io::Error::last_os_error())),
        }
    };
    Ok((stat.f_blocks * stat.f_frsize, stat.f_bfree * stat.f_frsize))
}

/// Overwrites random blocks of files, as many as they have.
fn overwrite(files: &[(PathBuf, u64)], seed: u64) -> std::io::Result<()> {
    let mut rng = Rng::seed_from_u64(seed);
    let mut block = vec![0; 4096];
    rng.fill(&mut block[..]);
    let mut open = Vec::new();
    for (path, bytes) in files {
        open.push((OpenOptions::new().write(true).open(path)?, bytes / 4096));
    }
    let blocks: u64 = open.iter().map(|(_, blocks)| blocks).sum();
    for _ in 0..blocks {
        let (file, blocks) = &open[rng.random_range(0..open.len())];
        file.write_all_at(&block, rng.random_range(0..*blocks) * 4096)?;
    }
    open.iter().try_for_each(|(file, _)| file.sync_all())
}

/// Waits until all writes are on the disks.
fn settle() -> Result<(), BenchError> {
    execute::<&str>(Path::new("sync"), &[])
}

/// The results of each subject, one for each round.
type Rows = Vec<Vec<Outcome>>;

/// Measures the subjects in turns.
fn rounds(
    subjects: &[Subject],
    measure: impl Fn(&Subject, usize) -> Result<Outcome, BenchError>,
) -> Result<Rows, BenchError> {
    let mut rows: Rows = vec![Vec::new(); subjects.len()];
    for round in 0..ROUNDS {
        for turn in 0..subjects.len() {
            // Each round begins with another one.
            let nth = (round + turn) % subjects.len();
            settle()?;
            let outcome = measure(&subjects[nth], round)?;
            let (p99, stall) = (outcome.quantile(0.99) * 1e3, outcome.stall * 1e3);
            let name = &subjects[nth].name;
            eprintln!("{name}: {:.0} per s, p99 {p99:.2} ms, stall {stall:.0} ms", outcome.per_s);
            rows[nth].push(outcome);
        }
    }
    Ok(rows)
}

fn tell(report: &mut Report, name: &str, rows: &[Outcome]) {
    let of = |value: &dyn Fn(&Outcome) -> f64| median(rows.iter().map(value).collect());
    let mut row = |figure: &str, value: f64| {
        report.figure(&format!("{name}_{figure}"), value);
    };
    row("per_s", rounded(of(&|row| row.per_s)));
    for (figure, share) in [("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)] {
        row(figure, millis(of(&|row| row.quantile(share))));
    }
    row("max_ms", millis(maximum(rows.iter().map(|row| row.quantile(1.0)))));
    row("stall_ms", millis(maximum(rows.iter().map(|row| row.stall))));
}

fn p99(row: &Outcome) -> f64 {
    row.quantile(0.99)
}

/// The part `fs-chain`.
pub(super) fn measure_chain(machine: &Machine, report: &mut Report) -> Result<(), BenchError> {
    let systems = [System::Chain, System::Ext4("ordered"), System::Ext4("journal")];
    let load = |round: usize| Load {
        threads: THREADS,
        file_bytes: FILE,
        per_s: Some(PACE),
        seconds: machine.seconds(CHAIN_SECONDS),
        seed: machine.seed + round as u64,
    };
    let mut subjects = Vec::new();
    for system in systems {
        let subject = Subject::start(machine, system, machine.size(SIZE, LEAST))?;
        load(0).prepare(&subject.point)?;
        subject.fill(machine.seed)?;
        subjects.push(subject);
    }
    let rows = rounds(&subjects, |subject, round| load(round).run(&subject.point))?;
    report.figure("fs_chain_stall_ms", millis(maximum(rows[0].iter().map(|row| row.stall))));
    for (subject, peers) in subjects.iter().zip(&rows).skip(1) {
        let over = ratio(&rows[0], peers, p99);
        report.figure(&format!("fs_chain_p99_over_{}", subject.name), rounded(over));
    }
    for (subject, rows) in subjects.iter().zip(&rows) {
        tell(report, &format!("fs_{}", subject.name), rows);
    }
    Ok(())
}

/// The part `in-place`.
pub(super) fn measure_in_place(machine: &Machine, report: &mut Report) -> Result<(), BenchError> {
    let bytes = machine.size(NEIGHBOUR, 32 << 20);
    let mut subjects = Vec::new();
    let load = |round: usize| Load {
        threads: THREADS,
        file_bytes: FILE,
        per_s: None,
        seconds: machine.seconds(IN_PLACE_SECONDS),
        seed: machine.seed + round as u64,
    };
    for system in [System::InPlace, System::Ext4("ordered"), System::Ext4("journal")] {
        let subject = Subject::start(machine, system, machine.size(2 * SIZE, LEAST))?;
        load(0).prepare(&subject.point)?;
        for name in [WRITTEN, READ_FILE] {
            let path = subject.point.join(name);
            write_file(&path, bytes).map_err(|source| BenchError::Io { path, source })?;
        }
        subjects.push(subject);
    }
    let alone = rounds(&subjects, |subject, round| load(round).run(&subject.point))?;
    let beside = rounds(&subjects, |subject, round| {
        with_neighbours(&subject.point, bytes, || load(round).run(&subject.point))
    })?;
    for (kind, rows) in [("in_place", &alone), ("in_place_neighbours", &beside)] {
        for (subject, peers) in subjects.iter().zip(rows).skip(1) {
            let over = ratio(&rows[0], peers, p99);
            report.figure(&format!("{kind}_p99_over_{}", subject.name), rounded(over));
        }
    }
    for (kind, rows) in [("in_place", &alone), ("in_place_neighbours", &beside)] {
        for (subject, rows) in subjects.iter().zip(rows) {
            tell(report, &format!("{kind}_{}", subject.name), rows);
        }
    }
    Ok(())
}

/// The files of the neighbours.
const WRITTEN: &str = "neighbour-writes";
const READ_FILE: &str = "neighbour-reads";

/// Runs `load` while one thread writes 100 MiB/s and another one reads past all caches.
fn with_neighbours<T>(
    folder: &Path,
    bytes: u64,
    load: impl FnOnce() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&folder.join(WRITTEN), bytes, &stop));
        let reader = scope.spawn(|| read_on(&folder.join(READ_FILE), bytes, &stop));
        let outcome = load();
        stop.store(true, Ordering::Relaxed);
        for neighbour in [writer, reader] {
            let died = |_| BenchError::Failed("a neighbour thread panicked".into());
            neighbour.join().map_err(died)?.map_err(failed)?;
        }
        outcome
    })
}

/// Overwrites a file from start to end again and again, 1 MiB at a time.
fn write_on(path: &Path, bytes: u64, stop: &AtomicBool) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let piece = vec![7; 1 << 20];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        file.write_all_at(&piece, at)?;
        at = (at + piece.len() as u64) % bytes;
        pause(WRITER_PERIOD);
    }
    Ok(())
}

/// Reads random blocks of a file with direct I/O.
fn read_on(path: &Path, bytes: u64, stop: &AtomicBool) -> std::io::Result<()> {
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut rng = Rng::seed_from_u64(bytes);
    let mut buffer = AlignedBuf::zeroed(READ);
    while !stop.load(Ordering::Relaxed) {
        let at = rng.random_range(0..bytes / READ as u64) * READ as u64;
        file.read_exact_at(&mut buffer, at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_end_with_the_load() {
        let folder = tempfile::tempdir().unwrap();
        for name in [WRITTEN, READ_FILE] {
            write_file(&folder.path().join(name), 2 << 20).unwrap();
        }
        let load = || {
            pause(Duration::from_millis(50));
            Ok(5)
        };
        assert_eq!(with_neighbours(folder.path(), 2 << 20, load).unwrap(), 5);
        let written = fs::read(folder.path().join(WRITTEN)).unwrap();
        assert_eq!(written[..1 << 20], vec![7; 1 << 20]);
        assert!(with_neighbours(&folder.path().join("none"), 2 << 20, load).is_err());
    }

    #[test]
    fn blocks_are_overwritten_and_space_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_file(&path, 1 << 20).unwrap();
        let before = fs::read(&path).unwrap();
        overwrite(&[(path.clone(), 1 << 20)], 1).unwrap();
        let after = fs::read(&path).unwrap();
        assert_eq!(before.len(), after.len());
        assert_ne!(before, after);
        let (total, free) = space(folder.path()).unwrap();
        assert!(free <= total && total > 0);
    }
}
