//! Two mounts of a filesystem behind a server, each of a client of its own: every process sees what every other one has
//! done, whichever mount it uses.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use thalweg_cluster::server::Server;
use thalweg_fuse::files::Locks;
use thalweg_fuse::mounted::MountOptions;

use crate::mapping::Mapping;
use crate::rig::{Rig, client, local, server};

/// Two mounts of what a server serves.
pub(crate) fn two() -> Option<([Rig; 2], Server)> {
    let options = MountOptions { locks: Locks::Both, ..MountOptions::default() };
    let mut served = None;
    let first = Rig::with(
        |env| {
            let server = server(env, local(env));
            let first = client(env, &server);
            served = Some(server);
            first
        },
        &options,
    )?;
    let server = served.unwrap();
    let second = Rig::with(|env| client(env, &server), &options)?;
    Some(([first, second], server))
}

/// What a process does on one of the mounts.
#[derive(Clone, Debug)]
enum Step {
    Write(u16, Vec<u8>, How),
    Append(u8),
    Read(u16, u16, How),
    Resize(u16),
    Size,
    Reopen,
    Make(u8),
    Remove(u8),
    Rename(u8, u8),
    Look(u8),
    List,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Buffered,
    Direct,
    Mapped,
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![4 => Just(How::Buffered), 1 => Just(How::Direct), 1 => Just(How::Mapped)]
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..20_000u16;
    let bytes = prop::collection::vec(1..255u8, 1..300);
    prop_oneof![
        6 => (at(), bytes, how()).prop_map(|(at, bytes, how)| Step::Write(at, bytes, how)),
        2 => any::<u8>().prop_map(Step::Append),
        6 => (at(), 1..9000u16, how()).prop_map(|(at, len, how)| Step::Read(at, len, how)),
        1 => at().prop_map(Step::Resize),
        2 => Just(Step::Size),
        2 => Just(Step::Reopen),
        2 => (0..5u8).prop_map(Step::Make),
        2 => (0..5u8).prop_map(Step::Remove),
        1 => (0..5u8, 0..5u8).prop_map(|(a, b)| Step::Rename(a, b)),
        3 => (0..5u8).prop_map(Step::Look),
        1 => Just(Step::List),
    ]
}

/// The file and the directory as they should be.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    names: std::collections::BTreeSet<String>,
}

/// One mount, with the file open.
struct Side {
    root: PathBuf,
    file: File,
    appending: File,
}

impl Side {
    fn new(root: PathBuf) -> Side {
        let (file, appending) = Side::open(&root);
        Side { root, file, appending }
    }

    fn open(root: &std::path::Path) -> (File, File) {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(root.join("file")).unwrap();
        (file, OpenOptions::new().append(true).open(root.join("file")).unwrap())
    }

    fn path(&self, name: u8) -> PathBuf {
        self.root.join("d").join(format!("n{name}"))
    }

    /// Writes bytes by a mapping of so many bytes of the file.
    fn write_mapped(&self, whole: usize, at: usize, bytes: &[u8]) {
        let mapping = Mapping::of(&self.file, whole, true);
        mapping.store(at, bytes);
        mapping.sync();
    }

    fn take(&mut self, step: &Step, model: &mut Model) {
        match step {
            Step::Write(at, bytes, how) => self.write(usize::from(*at), bytes, *how, model),
            Step::Append(byte) => {
                self.appending.write_all(&[*byte; 5]).unwrap();
                model.bytes.extend([*byte; 5]);
            }
            Step::Read(at, len, how) => self.read(usize::from(*at), usize::from(*len), *how, model),
            Step::Resize(len) => {
                self.file.set_len(u64::from(*len)).unwrap();
                model.bytes.resize(usize::from(*len), 0);
            }
            Step::Size => {
                assert_eq!(self.file.metadata().unwrap().len(), model.bytes.len() as u64);
                let found = fs::metadata(self.root.join("file")).unwrap();
                assert_eq!(found.len(), model.bytes.len() as u64);
            }
            Step::Reopen => (self.file, self.appending) = Side::open(&self.root),
            Step::Make(name) => {
                let made = OpenOptions::new().write(true).create_new(true).open(self.path(*name));
                assert_eq!(made.is_ok(), model.names.insert(format!("n{name}")));
            }
            Step::Remove(name) => {
                let removed = fs::remove_file(self.path(*name));
                assert_eq!(removed.is_ok(), model.names.remove(&format!("n{name}")));
            }
            Step::Rename(from, to) => {
                let renamed = fs::rename(self.path(*from), self.path(*to));
                let (from, to) = (format!("n{from}"), format!("n{to}"));
                assert_eq!(renamed.is_ok(), model.names.contains(&from));
                if model.names.remove(&from) {
                    model.names.insert(to);
                }
            }
            Step::Look(name) => {
                let found = fs::metadata(self.path(*name));
                assert_eq!(found.is_ok(), model.names.contains(&format!("n{name}")));
            }
            Step::List => {
                let listed = fs::read_dir(self.root.join("d")).unwrap();
                let mut listed: Vec<String> =
                    listed.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
                listed.sort();
                assert!(listed.iter().eq(&model.names), "{listed:?} {:?}", model.names);
            }
        }
    }

    fn write(&self, at: usize, bytes: &[u8], how: How, model: &mut Model) {
        let whole = model.bytes.len();
        match how {
            How::Mapped if at + bytes.len() > whole => return,
            How::Mapped => self.write_mapped(whole, at, bytes),
            How::Direct => {
                let mut options = OpenOptions::new();
                let direct =
                    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
                let direct = direct.write(true).open(self.root.join("file")).unwrap();
                direct.write_all_at(bytes, at as u64).unwrap();
            }
            How::Buffered => self.file.write_all_at(bytes, at as u64).unwrap(),
        }
        model.bytes.resize(whole.max(at + bytes.len()), 0);
        model.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, at: usize, len: usize, how: How, model: &Model) {
        let whole = model.bytes.len();
        let expected = &model.bytes[at.min(whole)..(at + len).min(whole)];
        let mut found = vec![0; len];
        match how {
            How::Mapped if at + len > whole || len == 0 => return,
            How::Mapped => found = Mapping::of(&self.file, whole, true).read(at, len),
            How::Direct | How::Buffered => {
                let mut done = 0;
                loop {
                    let read = self.file.read_at(&mut found[done..], (at + done) as u64).unwrap();
                    done += read;
                    if read == 0 || done == len {
                        break;
                    }
                }
                found.truncate(done);
            }
        }
        let differ = found.iter().zip(expected).position(|(a, b)| a != b);
        let lens = (found.len(), expected.len());
        assert!(found == expected, "{len} bytes at {at}, {how:?}: lengths {lens:?}, {differ:?}");
    }
}

#[test]
fn two_mounts_agree_after_every_step() {
    let Some((rigs, _)) = two() else { return };
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let steps = prop::collection::vec((any::<bool>(), step()), 1..120);
    runner
        .run(&steps, |steps| {
            let root = rigs[0].root();
            let _ = fs::remove_file(root.join("file"));
            let _ = fs::remove_dir_all(root.join("d"));
            fs::create_dir(root.join("d")).unwrap();
            let mut model = Model::default();
            let mut sides = [Side::new(rigs[0].root()), Side::new(rigs[1].root())];
            for (side, step) in &steps {
                sides[usize::from(*side)].take(step, &mut model);
            }
            for side in &sides {
                side.read(0, model.bytes.len() + 10, How::Buffered, &model);
                side.read(0, model.bytes.len(), How::Mapped, &model);
            }
            Ok(())
        })
        .unwrap();
}

/// A mount appends where it did not know that the end is: what it does next, in the kernel's cache too, meets the file as it
/// is by then.
#[test]
fn an_append_behind_anothers_is_seen_at_once() {
    let Some((rigs, _)) = two() else { return };
    fs::write(rigs[0].root().join("file"), "").unwrap();
    let mut model = Model::default();
    let mut sides = [Side::new(rigs[0].root()), Side::new(rigs[1].root())];
    for round in 0..1000u16 {
        let byte = round as u8 | 1;
        let behind = model.bytes.len();
        let (from, to) = (behind.saturating_sub(100), (behind + 13) as u16);
        let other = match round % 5 {
            4 => Step::Resize(from as u16),
            _ => Step::Write(behind as u16, vec![byte; 8], How::Buffered),
        };
        sides[1].take(&other, &mut model);
        sides[0].take(&Step::Append(byte), &mut model);
        match round % 3 {
            0 => sides[0].take(&Step::Read(from as u16, to, How::Buffered), &mut model),
            1 => sides[0].take(&Step::Size, &mut model),
            _ => {
                let at = model.bytes.len() as u16 - 3;
                sides[0].take(&Step::Write(at, vec![!byte; 3], How::Mapped), &mut model);
            }
        }
        sides[1].take(&Step::Read(from as u16, to, How::Buffered), &mut model);
    }
}

/// Changes of the same names and of the same bytes through both mounts at once: none waits for another one for ever.
#[test]
fn two_mounts_do_not_wait_for_each_other() {
    let Some((rigs, server)) = two() else { return };
    let roots = [rigs[0].root(), rigs[1].root()];
    fs::write(roots[0].join("file"), [1; 9000]).unwrap();
    std::thread::scope(|scope| {
        for (number, root) in roots.iter().cycle().take(4).enumerate() {
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(root.join("file"));
                let file = file.unwrap();
                for round in 0..300u64 {
                    let at = (round * 37) % 8000;
                    file.write_all_at(&[number as u8; 100], at).unwrap();
                    let _ = file.read_at(&mut [0; 4096], at).unwrap();
                    let (a, b) = (root.join("a"), root.join("b"));
                    let _ = fs::write(&a, "x");
                    let _ = fs::rename(&a, &b);
                    let _ = fs::metadata(&a).map(|it| it.size());
                    let _ = fs::remove_file(&b);
                    let _ = fs::create_dir(&a);
                    let _ = fs::remove_dir(&a);
                }
            });
        }
    });
    assert_eq!(server.status().evictions, 0);
}

/// Each mount has pages of one file in its cache, and both write to both: the kernel drops pages of one file while those of
/// the other are locked until a write is answered.
#[test]
fn writers_of_two_files_do_not_wait_for_each_other() {
    let Some((rigs, server)) = two() else { return };
    let mut files = Vec::new();
    for (first, name) in ["one", "two"].into_iter().enumerate() {
        // The first one that opens a file may have it in its cache.
        for rig in [&rigs[first], &rigs[1 - first]] {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            files.push(options.open(rig.root().join(name)).unwrap());
        }
    }
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                for round in 0..2000u64 {
                    file.write_all_at(&[1; 100], round % 3000).unwrap();
                    file.read_exact_at(&mut [0; 100], round % 3000).unwrap();
                }
            });
        }
    });
    assert_eq!(server.status().evictions, 0);
}

/// Both mounts write bytes of one page through mappings of it. Of what they write at the same time the last page counts.
#[test]
fn mapped_writers_of_a_page_do_not_wait_for_each_other() {
    let Some((rigs, server)) = two() else { return };
    fs::write(rigs[0].root().join("file"), [0; 4096]).unwrap();
    let sides = [Side::new(rigs[0].root()), Side::new(rigs[1].root())];
    std::thread::scope(|scope| {
        for (at, side) in sides.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..300u64 {
                    side.write_mapped(4096, at, &[round as u8]);
                }
            });
        }
    });
    assert_eq!(server.status().evictions, 0);
    for (at, side) in sides.iter().enumerate() {
        side.write_mapped(4096, at, &[255]);
    }
    let bytes = fs::read(rigs[0].root().join("file")).unwrap();
    assert!(bytes[..2] == [255; 2] && bytes[2..].iter().all(|byte| *byte == 0));
}

/// Each owner of the lock sees the number that the owner before has written.
#[test]
fn a_lock_guards_a_number_on_two_mounts() {
    let Some((rigs, _)) = two() else { return };
    let roots = [rigs[0].root(), rigs[1].root()];
    fs::write(roots[0].join("number"), 0u64.to_le_bytes()).unwrap();
    let failed = AtomicBool::new(false);
    const ROUNDS: u64 = 100;
    std::thread::scope(|scope| {
        for root in &roots {
            let failed = &failed;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let file = OpenOptions::new().read(true).write(true).open(root.join("number"));
                    let file = file.unwrap();
                    // SAFETY: the descriptor is open.
                    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
                        failed.store(true, Ordering::Relaxed);
                        return;
                    }
                    let mut number = [0; 8];
                    file.read_exact_at(&mut number, 0).unwrap();
                    let next = u64::from_le_bytes(number) + 1;
                    file.write_all_at(&next.to_le_bytes(), 0).unwrap();
                }
            });
        }
    });
    assert!(!failed.load(Ordering::Relaxed));
    let number = fs::read(roots[1].join("number")).unwrap();
    assert_eq!(number, (2 * ROUNDS).to_le_bytes());
}

/// A file gets shorter through the other mount, and longer again, but not as long as it was: a read past its end ends there.
#[test]
fn a_shorter_file_ends_where_it_ends() {
    let Some((rigs, _)) = two() else { return };
    let (a, b) = (rigs[0].root(), rigs[1].root());
    fs::create_dir(a.join("d")).unwrap();
    let bytes = vec![7; 250];
    for round in 0..100u16 {
        let _ = fs::remove_file(a.join("file"));
        let mut model = Model::default();
        let mut sides = [Side::new(a.clone()), Side::new(b.clone())];
        let write = |at, how| Step::Write(at, bytes.clone(), how);
        let steps = [
            (1, write(18_889, How::Direct)),
            (0, Step::Append(47)),
            (0, write(11_628, How::Buffered)),
            (0, Step::Read(3974, 4368, How::Buffered)),
            (1, write(6014, How::Buffered)),
            (1, Step::Remove(3)),
            (0, Step::Remove(4)),
            (0, write(2088, How::Buffered)),
            (1, Step::Resize(992)),
            (0, write(14_329 + round % 50, How::Buffered)),
            (1, Step::Reopen),
            (1, Step::Look(2)),
        ];
        for (side, step) in &steps {
            sides[*side].take(step, &mut model);
        }
        for side in &sides {
            side.read(0, model.bytes.len() + 10, How::Buffered, &model);
        }
    }
}

/// A file gets shorter through the other mount, to nothing, whole pages, or parts of one, and is read at once.
#[test]
fn a_file_that_was_cut_ends_where_it_ends() {
    let Some((rigs, _)) = two() else { return };
    let (a, b) = (rigs[0].root(), rigs[1].root());
    for round in 0..150u16 {
        let mut model = Model::default();
        let mut sides = [Side::new(a.clone()), Side::new(b.clone())];
        let bytes = vec![7; 300];
        sides[0].take(&Step::Write(50_000, bytes, How::Buffered), &mut model);
        sides[0].take(&Step::Read(0, 50_300, How::Buffered), &mut model);
        sides[1].take(&Step::Resize([0, 12_288, 16_384, 5000][usize::from(round % 4)]), &mut model);
        sides[0].take(&Step::Read(round % 9000, 40_000, How::Buffered), &mut model);
        sides[0].read(0, 60_000, How::Buffered, &model);
        fs::remove_file(a.join("file")).unwrap();
    }
}
