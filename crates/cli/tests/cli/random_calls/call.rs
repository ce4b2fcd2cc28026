//! A call, and what it does to the files.

use rand::RngExt;
use thalweg_env::Rng;

/// Names in the directory.
pub(super) const NAMES: usize = 3;
/// Bytes of a file at most, and of a call.
pub(super) const LONGEST: usize = 160_000;
const MOST: usize = 40_000;

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) file: usize,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Range {
    /// Bytes to write there, which tell where they belong.
    pub(super) fn filled(&self, fill: u8) -> Vec<u8> {
        (self.at..self.at + self.len).map(|at| (at / 3) as u8 ^ fill).collect()
    }

    fn meets(&self, other: &Range) -> bool {
        let is_apart = self.at + self.len <= other.at || other.at + other.len <= self.at;
        self.file == other.file && !is_apart
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Buffered,
    /// With `O_DIRECT`.
    Direct,
    /// Through a mapping, which is synced.
    Mapped,
}

/// Files are numbers. Those of a call are there, except a new one.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// Makes a file, or empties it.
    Make(usize),
    Remove(usize),
    Rename(usize, usize),
    List,
    Reopen(usize),
    Write(Range, u8, How),
    Read(Range, How),
    Resize(usize, usize),
    Allocate(Range),
    Punch(Range),
    Copy(Range, Range),
    /// Reads by `sendfile`.
    Send(Range),
    /// Has the kernel drop pages.
    Forget(usize),
    Sync(usize),
    SyncData(usize),
}

/// The bytes of each file; `None` if it is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State(pub(super) [Option<Vec<u8>>; NAMES]);

impl State {
    pub(super) fn len(&self, file: usize) -> usize {
        self.0[file].as_ref().map_or(0, Vec::len)
    }

    /// What there is of a range.
    pub(super) fn bytes(&self, range: &Range) -> &[u8] {
        let len = self.len(range.file);
        let all = self.0[range.file].as_deref().unwrap_or_default();
        &all[range.at.min(len)..(range.at + range.len).min(len)]
    }

    pub(super) fn names(&self) -> Vec<String> {
        (0..NAMES).filter(|file| self.0[*file].is_some()).map(Call::name).collect()
    }

    /// Where it differs from another one.
    pub(super) fn difference(&self, other: &State) -> String {
        let describe = |file: usize| {
            let (own, other) = (&self.0[file], &other.0[file]);
            let mut pairs = own.iter().flatten().zip(other.iter().flatten());
            let at = pairs.position(|(own, other)| own != other);
            let lens = [own, other].map(|bytes| bytes.as_ref().map(Vec::len));
            format!("{}: {lens:?} bytes, which differ from {at:?} on", Call::name(file))
        };
        let files = (0..NAMES).filter(|file| self.0[*file] != other.0[*file]);
        files.map(describe).collect::<Vec<String>>().join("; ")
    }

    fn write(&mut self, file: usize, at: usize, bytes: &[u8]) {
        let Some(all) = &mut self.0[file] else { return };
        if bytes.is_empty() {
            return;
        }
        all.resize(all.len().max(at + bytes.len()), 0);
        all[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn apply(&mut self, call: &Call) {
        match call {
            Call::Make(file) => self.0[*file] = Some(Vec::new()),
            Call::Remove(file) => self.0[*file] = None,
            Call::Rename(from, to) => self.0[*to] = self.0[*from].take(),
            Call::Write(range, fill, _) => self.write(range.file, range.at, &range.filled(*fill)),
            Call::Resize(file, len) => {
                self.0[*file].iter_mut().for_each(|bytes| bytes.resize(*len, 0));
            }
            Call::Allocate(range) => {
                let end = range.at + range.len;
                let longer = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().max(end), 0);
                self.0[range.file].iter_mut().for_each(longer);
            }
            Call::Punch(range) => {
                let zeros = vec![0; self.bytes(range).len()];
                self.write(range.file, range.at, &zeros);
            }
            Call::Copy(from, to) => {
                let bytes = self.bytes(from).to_vec();
                self.write(to.file, to.at, &bytes);
            }
            Call::List | Call::Reopen(_) | Call::Read(..) | Call::Send(_) | Call::Forget(_) => {}
            Call::Sync(_) | Call::SyncData(_) => {}
        }
    }
}

impl Call {
    pub(super) fn name(file: usize) -> String {
        format!("f{file}")
    }

    /// One that is possible with these files.
    pub(super) fn draw(rng: &mut Rng, state: &State) -> Call {
        let file = rng.random_range(0..NAMES);
        let other = rng.random_range(0..NAMES);
        if state.0[file].is_none() {
            return if rng.random_range(0..4) == 0 { Call::List } else { Call::Make(file) };
        }
        match rng.random_range(0..100) {
            0 => Call::Make(file),
            1 => Call::Remove(file),
            2..4 if other != file => Call::Rename(file, other),
            4..6 => Call::List,
            6..10 => Call::Reopen(file),
            10..36 => Call::draw_write(rng, state, file),
            36..60 => Call::draw_read(rng, state, file),
            60..68 => Call::Resize(file, rng.random_range(0..LONGEST)),
            68..72 => Call::Allocate(range(rng, file)),
            72..78 => Call::Punch(range(rng, file)),
            78..85 if state.0[other].is_some() => Call::draw_copy(rng, file, other),
            85..89 => Call::Send(range(rng, file)),
            89..92 => Call::Forget(file),
            92..97 => Call::Sync(file),
            _ => Call::SyncData(file),
        }
    }

    fn draw_write(rng: &mut Rng, state: &State, file: usize) -> Call {
        let (fill, how, range) = (rng.random(), how(rng), range(rng, file));
        match how {
            How::Mapped if state.bytes(&range).is_empty() => Call::Write(range, fill, How::Direct),
            How::Mapped => {
                let len = state.bytes(&range).len();
                Call::Write(Range { len, ..range }, fill, how)
            }
            _ => Call::Write(range, fill, how),
        }
    }

    fn draw_read(rng: &mut Rng, state: &State, file: usize) -> Call {
        let (how, range) = (how(rng), range(rng, file));
        let len = state.bytes(&range).len();
        match how {
            How::Mapped if len == 0 => Call::Read(range, How::Direct),
            How::Mapped => Call::Read(Range { len, ..range }, how),
            _ => Call::Read(range, how),
        }
    }

    fn draw_copy(rng: &mut Rng, file: usize, other: usize) -> Call {
        let (from, to) = (range(rng, file), range(rng, other));
        let to = Range { len: from.len, ..to };
        match from.meets(&to) {
            true => Call::Send(from),
            false => Call::Copy(from, to),
        }
    }

    /// The names that no longer have the file that they had.
    pub(super) fn names_that_go(&self) -> impl Iterator<Item = usize> + use<> {
        let names = match self {
            Call::Remove(file) => [Some(*file), None],
            Call::Rename(from, to) => [Some(*from), Some(*to)],
            _ => [None, None],
        };
        names.into_iter().flatten()
    }

    /// Whether it asks for bytes or names as they are now, or changes them.
    pub(super) fn uses_content(&self) -> bool {
        !matches!(self, Call::Reopen(_) | Call::Forget(_) | Call::Sync(_) | Call::SyncData(_))
    }

    /// Whether it returns when its file is durable.
    pub(super) fn is_sync(&self) -> bool {
        let is_mapped = matches!(self, Call::Write(_, _, How::Mapped));
        is_mapped || matches!(self, Call::Sync(_) | Call::SyncData(_))
    }

    /// The files that it uses, and whether it uses their names.
    fn used(&self) -> ([Option<usize>; 2], bool) {
        match self {
            Call::List => ([None, None], true),
            Call::Make(file) | Call::Remove(file) => ([Some(*file), None], true),
            Call::Rename(from, to) => ([Some(*from), Some(*to)], true),
            Call::Copy(from, to) => ([Some(from.file), Some(to.file)], false),
            Call::Write(range, ..) | Call::Read(range, _) => ([Some(range.file), None], false),
            Call::Allocate(range) | Call::Punch(range) | Call::Send(range) => {
                ([Some(range.file), None], false)
            }
            Call::Resize(file, _) | Call::Sync(file) | Call::SyncData(file) => {
                ([Some(*file), None], false)
            }
            // Neither asks for bytes.
            Call::Reopen(_) | Call::Forget(_) => ([None, None], false),
        }
    }

    fn changes(&self) -> bool {
        match self {
            Call::Make(_) | Call::Remove(_) | Call::Rename(..) | Call::Write(..) => true,
            Call::Resize(..) | Call::Allocate(_) | Call::Punch(_) | Call::Copy(..) => true,
            Call::List | Call::Reopen(_) | Call::Read(..) | Call::Send(_) => false,
            Call::Forget(_) | Call::Sync(_) | Call::SyncData(_) => false,
        }
    }

    /// Whether it changes something that the other one uses.
    pub(super) fn changes_what_uses(&self, other: &Call) -> bool {
        let ((own, own_names), (others, other_names)) = (self.used(), other.used());
        let shares = own.iter().flatten().any(|file| others.contains(&Some(*file)));
        self.changes() && (shares || own_names && other_names)
    }
}

fn how(rng: &mut Rng) -> How {
    match rng.random_range(0..6) {
        0 => How::Direct,
        1 => How::Mapped,
        _ => How::Buffered,
    }
}

fn range(rng: &mut Rng, file: usize) -> Range {
    // Small ones are as frequent as large ones.
    let most = if rng.random() { 300 } else { MOST };
    let at = rng.random_range(0..LONGEST - most);
    Range { file, at, len: rng.random_range(1..most) }
}
