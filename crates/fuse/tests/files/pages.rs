//! Pages of a file in the kernels of two mounts: mappings, and what else reads through pages.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;
use thalweg_fuse::mounted::MountOptions;

use crate::mapping::Mapping;
use crate::rig::{Make, Rig, local, naive, shared};
use crate::shared::two;

const PAGE: usize = 4096;

fn open(path: &PathBuf, writable: bool) -> File {
    OpenOptions::new().read(true).write(writable).open(path).unwrap()
}

/// All ways to mix two sequences of three steps each: which one makes the next step.
fn orders() -> Vec<Vec<usize>> {
    let all = (0..64u32).filter(|bits| bits.count_ones() == 3);
    all.map(|bits| (0..6).map(|at| (bits >> at & 1) as usize).collect()).collect()
}

/// One mount opens a file, writes and writes; the other one opens it, maps it and looks at it: in every order, and whichever way
/// it is opened, mapped and written. The mapping and every read shows what was written last.
#[test]
fn a_mapping_shows_what_the_other_mount_writes() {
    let Some((rigs, server)) = two() else { return };
    let paths = [rigs[0].root().join("file"), rigs[1].root().join("file")];
    let mut last = 0u8;
    for (round, order) in orders().into_iter().cycle().take(80).enumerate() {
        let _ = fs::remove_file(&paths[0]);
        last = last.wrapping_add(1);
        fs::write(&paths[round / 20 % 2], [last; 2 * PAGE]).unwrap();
        let mut expected = last;
        let (by_mapping, reader_writes) = (round >= 40, round % 3 == 0);
        let (mut writer, mut reader, mut mapping) = (None, None, None);
        let mut steps = [0, 0];
        let mut write = |writer: &Option<File>| {
            last = last.wrapping_add(1);
            let writer = writer.as_ref().unwrap();
            match by_mapping {
                true => {
                    let mapping = Mapping::of(writer, 2 * PAGE, true);
                    mapping.store(0, &[last; 100]);
                    mapping.sync();
                }
                false => writer.write_all_at(&[last; 100], 0).unwrap(),
            }
            last
        };
        for side in order {
            match (side, steps[side]) {
                (0, 0) => writer = Some(open(&paths[0], true)),
                (0, _) => expected = write(&writer),
                (_, 0) => reader = Some(open(&paths[1], reader_writes)),
                (_, 1) => {
                    mapping = Some(Mapping::of(reader.as_ref().unwrap(), PAGE, reader_writes))
                }
                (..) => assert_eq!(mapping.as_ref().unwrap().load(0), expected, "round {round}"),
            }
            steps[side] += 1;
        }
        let (reader, mapping) = (reader.unwrap(), mapping.unwrap());
        for _ in 0..2 {
            let mut byte = [0];
            assert_eq!(mapping.load(50), expected, "round {round}");
            reader.read_exact_at(&mut byte, 50).unwrap();
            assert_eq!(byte[0], expected, "round {round}");
            assert_eq!(fs::read(&paths[1]).unwrap()[50], expected, "round {round}");
            expected = write(&writer);
        }
        assert_eq!(mapping.load(50), expected, "round {round}");
    }
    assert_eq!(server.status().evictions, 0);
}

/// Reads a page without read(2).
fn read_otherwise(file: &File, how: usize) {
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let (from, to) = (file.as_raw_fd(), null.as_raw_fd());
    // SAFETY: open descriptors, and places that live long enough.
    unsafe {
        match how {
            0 => assert!(libc::sendfile(to, from, &mut 0, PAGE) > 0),
            1 => {
                let mut ends = [0; 2];
                assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                let ends = ends.map(|end| OwnedFd::from_raw_fd(end));
                let (mut at, into) = (0, ends[1].as_raw_fd());
                assert!(libc::splice(from, &mut at, into, std::ptr::null_mut(), PAGE, 0) > 0);
            }
            2 => assert_eq!(libc::readahead(from, 0, PAGE), 0),
            _ => {
                assert_eq!(libc::posix_fadvise(from, 0, PAGE as i64, libc::POSIX_FADV_WILLNEED), 0)
            }
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods)]
fn what_fills_pages_without_a_read_leaves_no_old_ones() {
    let Some((rigs, _)) = two() else { return };
    let paths = [rigs[0].root().join("file"), rigs[1].root().join("file")];
    for how in 0..4 {
        fs::write(&paths[0], [1; PAGE]).unwrap();
        let (writer, reader) = (open(&paths[0], true), open(&paths[1], false));
        read_otherwise(&reader, how);
        // What is only asked for comes later.
        std::thread::sleep(std::time::Duration::from_millis(if how < 2 { 0 } else { 50 }));
        for byte in 2..5u8 {
            writer.write_all_at(&[byte; 10], 0).unwrap();
            let mut found = [0; 20];
            reader.read_exact_at(&mut found, 0).unwrap();
            assert_eq!((found[0], found[15]), (byte, 1), "{how}");
            read_otherwise(&reader, how);
        }
        drop((writer, reader));
        assert_eq!(fs::read(&paths[1]).unwrap()[0], 4, "{how}");
    }
}

#[test]
fn what_was_appended_is_mapped_without_asking_for_the_size() {
    let Some((rigs, _)) = two() else { return };
    let paths = [rigs[0].root().join("file"), rigs[1].root().join("file")];
    for (round, grow) in [PAGE, 1, 2 * PAGE + 1, 5000, PAGE + 1].into_iter().enumerate() {
        let _ = fs::remove_file(&paths[0]);
        let mut size = PAGE * (round % 2);
        fs::write(&paths[0], vec![1; size]).unwrap();
        let (writer, reader) = (open(&paths[0], true), open(&paths[1], false));
        assert_eq!(reader.metadata().unwrap().size(), size as u64);
        for byte in 2..6u8 {
            writer.write_all_at(&vec![byte; grow], size as u64).unwrap();
            size += grow;
            let mapping = Mapping::of(&reader, size, false);
            for at in [size - 1, size - grow, size - grow / 2 - 1] {
                assert_eq!(mapping.load(at), byte, "{at} of {size}");
            }
            assert_eq!(mapping.load(0), if round % 2 == 0 { 2 } else { 1 });
        }
        writer.set_len(size as u64 + 9000).unwrap();
        assert_eq!(Mapping::of(&reader, size + 9000, false).load(size + 8999), 0);
        writer.set_len(10).unwrap();
        assert_eq!(reader.metadata().unwrap().size(), 10);
        assert_eq!(Mapping::of(&reader, PAGE, false).load(10), 0);
    }
}

/// Both mounts keep the file mapped, and write to it through that, by writes and by truncation, one after the other.
#[test]
fn mappings_that_stay_agree_with_everything_else() {
    let Some((rigs, server)) = two() else { return };
    const PAGES: usize = 6;
    for seed in 0..3u64 {
        let mut random = Rng::seed_from_u64(seed);
        let paths = [rigs[0].root().join("file"), rigs[1].root().join("file")];
        let _ = fs::remove_file(&paths[0]);
        let mut model = vec![1; PAGES * PAGE];
        fs::write(&paths[0], &model).unwrap();
        let files = [open(&paths[0], true), open(&paths[1], true)];
        let mappings = [0, 1].map(|side| Mapping::of(&files[side], PAGES * PAGE, true));
        for round in 0..400u32 {
            let side = random.random_range(0..2usize);
            let at = random.random_range(0..model.len());
            let len = random.random_range(1..3000).min(model.len() - at);
            let bytes = vec![(round % 255) as u8 | 1; len];
            match random.random_range(0..10u32) {
                0..4 => {
                    mappings[side].store(at, &bytes);
                    // Other mounts see it when it was written.
                    mappings[side].sync();
                    model[at..at + len].copy_from_slice(&bytes);
                }
                4..8 => {
                    files[side].write_all_at(&bytes, at as u64).unwrap();
                    model[at..at + len].copy_from_slice(&bytes);
                }
                8 => {
                    let size = at / PAGE * PAGE + 1;
                    files[side].set_len(size as u64).unwrap();
                    files[1 - side].set_len(model.len() as u64).unwrap();
                    model[size..].fill(0);
                }
                _ => {
                    // A store that was not written yet is not lost to a write of other bytes of its page.
                    mappings[side].store(at, &bytes);
                    let next = (at + len) % model.len();
                    files[1 - side].write_all_at(&[7], next as u64).unwrap();
                    mappings[side].sync();
                    model[at..at + len].copy_from_slice(&bytes);
                    model[next] = 7;
                }
            }
            for looks in 0..2 {
                let at = random.random_range(0..model.len());
                for side in 0..2 {
                    let mut byte = [0];
                    files[side].read_exact_at(&mut byte, at as u64).unwrap();
                    let found = (mappings[side].load(at), byte[0]);
                    let expected = (model[at], model[at]);
                    assert_eq!(found, expected, "seed {seed}, round {round}.{looks}, {at}, {side}");
                }
            }
        }
    }
    assert_eq!(server.status().evictions, 0);
}

/// What the kernel has not written yet is data, takes blocks, and does not change the times that were set since.
#[test]
fn holes_blocks_and_times_are_those_of_what_was_stored() {
    let kinds: [Make; 3] = [local, naive, shared];
    for (make, writeback_cache) in kinds.into_iter().flat_map(|make| [(make, false), (make, true)])
    {
        let options = MountOptions { writeback_cache, ..MountOptions::default() };
        let Some(rig) = Rig::with(make, &options) else { return };
        let path = rig.path("file");
        fs::write(&path, "").unwrap();
        let file = open(&path, true);
        file.set_len(1 << 20).unwrap();
        let mapping = Mapping::of(&file, 1 << 20, true);
        mapping.store(300_000, &[1; 10_000]);
        if writeback_cache {
            file.write_all_at(&[2; 5000], 700_000).unwrap();
        } else {
            assert!(fs::metadata(&path).unwrap().blocks() >= 3 * 8);
            mapping.store(800_000, &[3; 10]);
            assert!(file.metadata().unwrap().blocks() >= 4 * 8);
        }
        let look = |at, whence| {
            let reader = File::open(&path).unwrap();
            // SAFETY: the descriptor is open.
            unsafe { libc::lseek(reader.as_raw_fd(), at, whence) }
        };
        mapping.store(500_000, &[4; 10]);
        let data = look(0, libc::SEEK_DATA);
        assert!((290_000..=300_000).contains(&data), "{data}, {writeback_cache}");
        mapping.store(560_000, &[5; 10]);
        assert!((550_000..=560_000).contains(&look(520_000, libc::SEEK_DATA)));
        mapping.store(900_000, &[6; 10]);
        let hole = look(890_000, libc::SEEK_HOLE);
        assert!(hole == 890_000 || hole > 900_000, "{hole}");
        if writeback_cache {
            assert!((690_000..=700_000).contains(&look(600_000, libc::SEEK_DATA)));
        }

        mapping.store(0, &[7; 10]);
        let then = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(then).unwrap();
        drop((mapping, file));
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), then, "{writeback_cache}");
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes[0], bytes[300_000], bytes[560_009]), (7, 1, 5));
    }
}

/// A program that adds rows to a database, which it has mapped, and looks whether all rows are there that it has added.
const SQLITE: &str = "
import sqlite3, sys
path, name, mapped = sys.argv[1:]
db = sqlite3.connect(path, timeout=60, isolation_level=None)
db.execute('PRAGMA mmap_size=' + mapped)
db.execute('PRAGMA cache_size=10')
seen = 0
for number in range(40):
    db.execute('BEGIN IMMEDIATE')
    db.execute('INSERT INTO log VALUES (?, ?, ?)', (name, number, name * (number % 9 * 100)))
    db.execute('UPDATE total SET rows = rows + 1')
    db.execute('COMMIT')
    own = db.execute('SELECT count(*) FROM log WHERE name = ?', (name,)).fetchone()[0]
    assert own == number + 1, (own, number)
    rows, total = db.execute('SELECT count(*), (SELECT rows FROM total) FROM log').fetchone()
    assert rows == total >= seen, (rows, total, seen)
    seen = rows
assert db.execute('PRAGMA integrity_check').fetchall() == [('ok',)]
";

/// Both mounts, or one of them, read a database through a mapping while both change it.
#[test]
fn a_database_that_two_mounts_map_loses_nothing() {
    let found = Command::new("python3").args(["-c", "import sqlite3"]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        return eprintln!("SKIPPED: python3 with sqlite3 is not here");
    }
    let Some((rigs, server)) = two() else { return };
    for (round, mapped) in [["1000000", "1000000"], ["1000000", "0"]].into_iter().enumerate() {
        let paths = [0, 1].map(|side| rigs[side].root().join(format!("db{round}")));
        let make = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript('CREATE TABLE log \
                    (name, number, text); CREATE TABLE total (rows); INSERT INTO total VALUES (0)')";
        let made = Command::new("python3").args(["-c", make]).arg(&paths[0]).status().unwrap();
        assert!(made.success());
        let worker = |number: usize| {
            let mut command = Command::new("python3");
            command.args(["-c", SQLITE]).arg(&paths[number % 2]);
            command.args([&format!("n{number}"), mapped[number % 2]]).spawn().unwrap()
        };
        let workers: Vec<_> = (0..4).map(worker).collect();
        for mut worker in workers {
            assert!(worker.wait().unwrap().success(), "{mapped:?}");
        }
    }
    assert_eq!(server.status().evictions, 0);
}

/// One program appends; two other programs take the size and read up to there.
fn reads_reach_sizes(appending: &PathBuf, reading: &[&PathBuf]) {
    const LINES: usize = 2500;
    let log = OpenOptions::new().append(true).create(true).open(appending).unwrap();
    std::thread::scope(|scope| {
        for path in reading {
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                loop {
                    let size = file.metadata().unwrap().len();
                    let at = size.saturating_sub(100);
                    let mut found = [0; 100];
                    let read = file.read_at(&mut found, at).unwrap() as u64;
                    assert!(at + read >= size, "a read ends at {}, before {size}", at + read);
                    assert!(found[..read as usize].iter().all(|byte| *byte != 0));
                    if size >= (LINES * 7) as u64 {
                        break;
                    }
                }
            });
        }
        for _ in 0..LINES {
            (&log).write_all(b"a line\n").unwrap();
        }
    });
}

#[test]
fn a_read_reaches_the_size_that_was_shown() {
    for make in [naive, local] {
        let Some(rig) = Rig::new(make) else { return };
        let path = rig.path("log");
        reads_reach_sizes(&path, &[&path, &path]);
    }
}

#[test]
fn a_read_reaches_the_size_that_another_mount_or_this_one_was_shown() {
    let Some((rigs, _)) = two() else { return };
    let paths = [rigs[0].root().join("log"), rigs[1].root().join("log")];
    fs::write(&paths[0], "").unwrap();
    reads_reach_sizes(&paths[0], &[&paths[0], &paths[1]]);
}

/// What a process of [`mappings_and_writes_do_not_wait_for_each_other`] is told: the path, and its number.
const WORK: &str = "THALWEG_TEST_PAGES";
const PAGES: usize = 8;

/// Mapped writers, writers and readers of the same pages at both mounts: none waits for another one for ever, and in the end all see
/// the same.
#[test]
fn mappings_and_writes_do_not_wait_for_each_other() {
    let Some((rigs, server)) = two() else { return };
    let paths = [rigs[0].root().join("file"), rigs[1].root().join("file")];
    fs::write(&paths[0], vec![1; PAGES * PAGE]).unwrap();
    // A thread that waits for a page keeps others of its process from changing their memory, those of the mounts, too.
    let worker = |number: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let work = format!("{number} {}", paths[number % 2].display());
        command.args(["--exact", "pages::works_on_a_file_that_it_is_told"]).env(WORK, work);
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let workers: Vec<_> = (0..6).map(worker).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(server.status().evictions, 0);
    let bytes = fs::read(&paths[0]).unwrap();
    for path in &paths {
        let file = open(path, false);
        let mapping = Mapping::of(&file, PAGES * PAGE, false);
        let mut read = vec![0; PAGES * PAGE];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes);
        assert!((0..PAGES * PAGE).all(|at| mapping.load(at) == bytes[at]));
    }
}

/// A process of that test.
#[test]
fn works_on_a_file_that_it_is_told() {
    let Ok(work) = std::env::var(WORK) else { return };
    let (number, path) = work.split_once(' ').unwrap();
    let number: u64 = number.parse().unwrap();
    let mut random = Rng::seed_from_u64(number);
    let file = open(&path.into(), true);
    let mapping = Mapping::of(&file, PAGES * PAGE, true);
    for _ in 0..150 {
        let at = random.random_range(0..PAGES * PAGE - 9000);
        match number / 2 {
            0 => {
                mapping.store(at, &[number as u8; 9000]);
                mapping.sync();
            }
            1 => file.write_all_at(&[number as u8; 9000], at as u64).unwrap(),
            _ => {
                let _ = mapping.load(at);
                file.read_exact_at(&mut [0; 100], at as u64).unwrap();
            }
        }
    }
}
