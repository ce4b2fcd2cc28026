//! Random calls on the files of a directory, each through one of its mounts, with what every one returns compared with a model: the calls of
//! `fsx`, which knows one mount and one file, and calls that change names.
//!
//! A mount may be killed between two calls ([`Calls::mounted_again`]). It may have lost its last changes, none before one that it has kept,
//! and none that something has made safe: a sync of the file, or a use of it through another mount.

mod call;
mod mapping;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;

use call::{Call, How, LONGEST, NAMES, Range, State};
use mapping::Mapping;

/// Calls that a failing test shows.
const SHOWN: usize = 40;
/// Calls after which everything is synced, so that there is less to compare with after a kill.
const KEPT: usize = 300;

/// One mount of the directory. Its open files are closed when their name goes.
struct Side {
    root: PathBuf,
    open: [Option<File>; NAMES],
}

/// A call that was made.
struct Made {
    side: usize,
    call: Call,
}

/// The directory as it should be, and the calls that led to it.
pub(crate) struct Calls {
    seed: u64,
    rng: Rng,
    sides: Vec<Side>,
    now: State,
    /// Before `made`.
    base: State,
    made: Vec<Made>,
    /// For each mount, how many of the calls a kill of it leaves.
    safe: Vec<usize>,
}

impl Drop for Calls {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}; the last calls:", self.seed);
            let first = self.made.len().saturating_sub(SHOWN);
            for (nth, Made { side, call }) in self.made.iter().enumerate().skip(first) {
                eprintln!("{nth}: mount {side}: {call:?}");
            }
        }
    }
}

impl Calls {
    /// `roots` is one empty directory on each of its mounts.
    pub(crate) fn new(seed: u64, roots: &[PathBuf]) -> Calls {
        let side = |root: &PathBuf| Side { root: root.clone(), open: Default::default() };
        Calls {
            seed,
            rng: Rng::seed_from_u64(seed),
            sides: roots.iter().map(side).collect(),
            now: State::default(),
            base: State::default(),
            made: Vec::new(),
            safe: vec![0; roots.len()],
        }
    }

    /// Makes so many calls, each through a mount by chance.
    pub(crate) fn run(&mut self, count: usize) {
        // A mount with a few calls in a row gets files to itself.
        let row = self.rng.random_range(1..20);
        let mut side = 0;
        for _ in 0..count {
            if self.rng.random_range(0..row) == 0 {
                side = self.rng.random_range(0..self.sides.len());
            }
            let call = Call::draw(&mut self.rng, &self.now);
            self.make(side, call);
            if self.made.len() > KEPT {
                self.sync();
            }
        }
    }

    /// A number by the seed.
    pub(crate) fn choose(&mut self, below: usize) -> usize {
        self.rng.random_range(0..below)
    }

    /// Compares everything, as each mount shows it.
    pub(crate) fn check(&mut self) {
        for side in 0..self.sides.len() {
            self.make(side, Call::List);
            let present = self.now.clone();
            for file in (0..NAMES).filter(|file| present.0[*file].is_some()) {
                let range = Range { file, at: 0, len: LONGEST + 10 };
                self.make(side, Call::Read(range, How::Buffered));
            }
        }
    }

    fn make(&mut self, side: usize, call: Call) {
        // A failing call is among those that are shown.
        self.made.push(Made { side, call: call.clone() });
        call.names_that_go().for_each(|file| self.close(file));
        self.sides[side].make(&call, &self.now);
        self.now.apply(&call);
        // A sync of a file says nothing of what another mount has of it.
        let makes_safe = |other: &usize| match *other == side {
            true => call.is_sync(),
            false => call.uses_content(),
        };
        for other in (0..self.sides.len()).filter(makes_safe) {
            let last = self.last_change(other, &call);
            self.safe[other] = self.safe[other].max(last);
        }
    }

    /// How many calls there are up to the last one by which a mount has changed something that `call` uses.
    fn last_change(&self, side: usize, call: &Call) -> usize {
        let is_so = |made: &Made| made.side == side && made.call.changes_what_uses(call);
        self.made.iter().rposition(is_so).map_or(0, |last| last + 1)
    }

    fn close(&mut self, file: usize) {
        self.sides.iter_mut().for_each(|side| side.open[file] = None);
    }

    /// Has each mount make all of its changes durable.
    fn sync(&mut self) {
        for side in &mut self.sides {
            for file in (0..NAMES).filter(|file| self.now.0[*file].is_some()) {
                side.file(file).sync_all().unwrap();
            }
            File::open(&side.root).unwrap().sync_all().unwrap();
        }
        self.base = self.now.clone();
        self.made.clear();
        self.safe.fill(0);
    }

    /// Goes on with the files of a mount that was killed and is there again; the number of its calls that are lost.
    pub(crate) fn mounted_again(&mut self, killed: usize) -> usize {
        self.sides[killed].open = Default::default();
        let found = self.sides[killed].read_all();
        let ends = (self.safe[killed]..=self.made.len()).rev();
        let kept = ends.map(|end| (end, self.without(killed, end))).find(|(_, it)| *it == found);
        let Some((end, now)) = kept else {
            panic!("mount {killed} lacks what was synced: {}", self.now.difference(&found));
        };
        self.now = now;
        let before = self.made.len();
        let mut nth = 0..;
        self.made.retain(|made| nth.next().unwrap() < end || made.side != killed);
        // What it had is at the server by now.
        self.safe[killed] = self.made.len();
        before - self.made.len()
    }

    /// What there would be if a mount's calls from `end` on had not come.
    fn without(&self, side: usize, end: usize) -> State {
        let mut state = self.base.clone();
        let kept = self.made.iter().enumerate().filter(|(nth, it)| *nth < end || it.side != side);
        kept.for_each(|(_, made)| state.apply(&made.call));
        state
    }
}

impl Side {
    fn path(&self, file: usize) -> PathBuf {
        self.root.join(Call::name(file))
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options
    }

    fn file(&mut self, file: usize) -> &File {
        let path = self.path(file);
        self.open[file].get_or_insert_with(|| Side::options().open(path).unwrap())
    }

    /// Makes a call whose files are as in `state`.
    fn make(&mut self, call: &Call, state: &State) {
        match call {
            Call::Make(file) => {
                let made = Side::options().create(true).truncate(true).open(self.path(*file));
                self.open[*file] = Some(made.unwrap());
            }
            Call::Remove(file) => fs::remove_file(self.path(*file)).unwrap(),
            Call::Rename(from, to) => fs::rename(self.path(*from), self.path(*to)).unwrap(),
            Call::List => assert_eq!(self.list(), state.names()),
            Call::Reopen(file) => {
                self.open[*file] = None;
                self.file(*file);
            }
            Call::Write(range, fill, how) => self.write(range, *fill, *how, state),
            Call::Read(range, how) => self.read(range, *how, state),
            Call::Resize(file, len) => self.file(*file).set_len(*len as u64).unwrap(),
            Call::Allocate(range) => self.allocate(0, range),
            Call::Punch(range) => {
                self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, range);
            }
            Call::Copy(from, to) => self.copy(from, to, state),
            Call::Send(range) => self.send(range, state),
            Call::Forget(file) => {
                let file = self.file(*file).as_raw_fd();
                // SAFETY: the descriptor is open.
                unsafe { libc::posix_fadvise(file, 0, 0, libc::POSIX_FADV_DONTNEED) };
            }
            Call::Sync(file) => self.file(*file).sync_all().unwrap(),
            Call::SyncData(file) => self.file(*file).sync_data().unwrap(),
        }
    }

    fn list(&self) -> Vec<String> {
        let names = fs::read_dir(&self.root).unwrap();
        let mut names: Vec<String> =
            names.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn direct(&self, file: usize) -> File {
        Side::options().custom_flags(libc::O_DIRECT).open(self.path(file)).unwrap()
    }

    fn write(&mut self, range: &Range, fill: u8, how: How, state: &State) {
        let (bytes, len) = (range.filled(fill), state.len(range.file));
        match how {
            How::Buffered => self.file(range.file).write_all_at(&bytes, range.at as u64).unwrap(),
            How::Direct => self.direct(range.file).write_all_at(&bytes, range.at as u64).unwrap(),
            How::Mapped => {
                let mapping = Mapping::of(self.file(range.file), len);
                mapping.store(range.at, &bytes);
                mapping.sync();
            }
        }
    }

    fn read(&mut self, range: &Range, how: How, state: &State) {
        let found = match how {
            How::Buffered => read_at(self.file(range.file), range),
            How::Direct => read_at(&self.direct(range.file), range),
            How::Mapped => {
                let mapping = Mapping::of(self.file(range.file), state.len(range.file));
                mapping.read(range.at, range.len)
            }
        };
        assert_same(&found, state.bytes(range), (range, how));
        let size = self.file(range.file).metadata().unwrap().len();
        assert_eq!(size, state.len(range.file) as u64, "{range:?}, {how:?}");
    }

    fn allocate(&mut self, mode: i32, range: &Range) {
        let file = self.file(range.file).as_raw_fd();
        // SAFETY: the descriptor is open.
        let done = unsafe { libc::fallocate64(file, mode, range.at as i64, range.len as i64) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    fn copy(&mut self, from: &Range, to: &Range, state: &State) {
        let ends = [from.file, to.file].map(|file| self.file(file).as_raw_fd());
        let (mut at, mut to) = (from.at as i64, to.at as i64);
        let mut left = state.bytes(from).len();
        while left > 0 {
            // SAFETY: the descriptors are open, and the offsets are this function's.
            let copied =
                unsafe { libc::copy_file_range(ends[0], &mut at, ends[1], &mut to, left, 0) };
            assert!(copied > 0, "{copied}: {}", std::io::Error::last_os_error());
            left -= copied as usize;
        }
    }

    /// Reads by `sendfile`, into a pipe that takes a part at a time.
    fn send(&mut self, range: &Range, state: &State) {
        let (mut from_pipe, to_pipe) = std::io::pipe().unwrap();
        let (mut at, mut found) = (range.at as i64, Vec::new());
        let expected = state.bytes(range);
        while found.len() < expected.len() {
            let left = (expected.len() - found.len()).min(16_384);
            let file = self.file(range.file).as_raw_fd();
            // SAFETY: the descriptors are open, and the offset is this function's.
            let sent = unsafe { libc::sendfile64(to_pipe.as_raw_fd(), file, &mut at, left) };
            assert!(sent > 0, "{range:?}: {sent}: {}", std::io::Error::last_os_error());
            let mut piece = vec![0; sent as usize];
            from_pipe.read_exact(&mut piece).unwrap();
            found.extend(piece);
        }
        assert_same(&found, expected, range);
    }

    /// All files, by new descriptors.
    fn read_all(&self) -> State {
        let expected: BTreeMap<String, usize> =
            (0..NAMES).map(|file| (Call::name(file), file)).collect();
        let unknown: Vec<String> =
            self.list().into_iter().filter(|name| !expected.contains_key(name)).collect();
        assert_eq!(unknown, [""; 0], "there are other names");
        let read = |file| match fs::read(self.path(file)) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            read => Some(read.unwrap()),
        };
        State(std::array::from_fn(read))
    }
}

fn read_at(file: &File, range: &Range) -> Vec<u8> {
    let (mut bytes, mut done) = (vec![0; range.len], 0);
    loop {
        let read = file.read_at(&mut bytes[done..], (range.at + done) as u64).unwrap();
        done += read;
        if read == 0 || done == bytes.len() {
            bytes.truncate(done);
            return bytes;
        }
    }
}

fn assert_same(found: &[u8], expected: &[u8], what: impl Debug) {
    if found != expected {
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        let lens = (found.len(), expected.len());
        panic!("{what:?}: {lens:?} bytes, which differ from {differs:?} on");
    }
}
