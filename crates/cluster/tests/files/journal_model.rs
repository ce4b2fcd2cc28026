//! What programs on clients with journals, and without, may find: the model that their histories are checked with.
//!
//! The names of a directory and two files are values. A change takes effect for all programs when it is acknowledged, and is kept
//! until another client has seen it. A crash of its client takes back the last changes, in their order, but none that was
//! synced. When the journal of a client lapses, other clients go on without its last changes; when the client is back, the first of
//! these take effect, up to a conflict, or all but those that conflict and what depends on them. Synced changes among the rest are in a
//! conflict set.

use crate::linear::{Recorded, has_order};

/// Names in the directory.
pub(crate) const NAMES: usize = 4;
pub(crate) const FILES: usize = 2;
/// Of each file a number, which its first bytes are, and its size.
const VALUES: usize = NAMES + 2 * FILES;
/// The inode of a name whose create had no answer.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// A set of values.
pub(crate) type Set = u16;

pub(crate) fn name_set(name: u8) -> Set {
    1 << name
}

/// Both values of a file.
pub(crate) fn file_set(file: u8) -> Set {
    0b11 << number_of(file)
}

fn number_of(file: u8) -> usize {
    NAMES + 2 * usize::from(file)
}

fn size_of(file: u8) -> usize {
    number_of(file) + 1
}

/// Both values of the file that one is of.
fn file_of(value: usize) -> Set {
    file_set(((value - NAMES) / 2) as u8)
}

/// A call with its answer, or what happens to a client.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// The inode; `None` if the name was there.
    Create(u8, Option<u64>),
    Unlink(u8, bool),
    Rename(u8, u8, bool),
    Look(u8, Option<u64>),
    Write(u8, u64),
    /// Where the bytes went, if that is known.
    Append(u8, Option<u64>),
    Read(u8, u64),
    Size(u8, u64),
    Sync(Set),
    /// The client's machine loses its power.
    Crash,
    /// Other clients go on without it.
    Lapse,
    /// It goes on, and everything that is left of it is durable.
    Back(Conflicts),
}

/// What conflict sets say of a client that is back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conflicts {
    /// What they are about.
    pub(crate) named: Set,
    /// The numbers of files in their copies, and the sizes of copies of whole files.
    pub(crate) numbers: [Option<u64>; FILES],
    pub(crate) sizes: [Option<u64>; FILES],
}

/// A change: the values before and after it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Change(Vec<(usize, u64, u64)>);

impl Change {
    fn set(&self) -> Set {
        self.0.iter().fold(0, |set, (value, ..)| set | 1 << value)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Away {
    /// Changes that are in the journal alone, at most.
    changes: Vec<Change>,
    /// The first of them that were synced.
    synced: usize,
    /// What other clients have read and changed since.
    read: Set,
    changed: Set,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Client {
    has_journal: bool,
    /// Changes that no other client has seen.
    kept: Vec<Change>,
    /// The first of them that were synced.
    synced: usize,
    away: Option<Away>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    values: [u64; VALUES],
    clients: Vec<Client>,
    scope: Scope,
    has_objects: bool,
}

/// Which changes of a client that is back are not written back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Scope {
    /// The first one that conflicts, and all behind it.
    Prefix,
    /// Those that conflict, and those that depend on them.
    File,
}

impl State {
    /// No names, and files with the number 0. The first clients have journals. Contents of files may be objects.
    pub(crate) fn new(clients: usize, journals: usize, scope: Scope, has_objects: bool) -> State {
        let client = |number| Client { has_journal: number < journals, ..Client::default() };
        let mut values = [0; VALUES];
        (0..FILES as u8).for_each(|file| values[size_of(file)] = 8);
        State { values, clients: (0..clients).map(client).collect(), scope, has_objects }
    }

    /// A client has used these values: no other client keeps them to itself.
    fn used(&mut self, by: usize, read: Set, changed: Set) {
        let others = self.clients.iter_mut().enumerate().filter(|(number, _)| *number != by);
        for (_, client) in others {
            let is_seen = |change: &Change| change.set() & (read | changed) != 0;
            let seen = client.kept.iter().rposition(is_seen).map_or(0, |at| at + 1);
            client.kept.drain(..seen);
            client.synced = client.synced.saturating_sub(seen);
            if let Some(away) = &mut client.away {
                away.read |= read;
                away.changed |= changed;
            }
        }
    }

    /// A client has seen attributes alone: that conflicts with no write.
    fn see(mut self, by: usize, set: Set) -> Option<State> {
        let reads: Vec<Option<Set>> =
            self.clients.iter().map(|it| Some(it.away.as_ref()?.read)).collect();
        self.used(by, set, 0);
        for (client, read) in self.clients.iter_mut().zip(reads) {
            client.away.iter_mut().zip(read).for_each(|(away, read)| away.read = read);
        }
        Some(self)
    }

    fn read(mut self, by: usize, set: Set) -> Option<State> {
        self.used(by, set, 0);
        Some(self)
    }

    fn change(mut self, by: usize, values: &[(usize, u64)]) -> Option<State> {
        let change = values.iter().map(|(at, new)| (*at, self.values[*at], *new)).collect();
        let change = Change(change);
        self.used(by, 0, change.set());
        self.redo(&change);
        let client = &mut self.clients[by];
        if client.has_journal {
            client.kept.push(change);
        }
        Some(self)
    }

    fn redo(&mut self, change: &Change) {
        change.0.iter().for_each(|(at, _, new)| self.values[*at] = *new);
    }

    fn undo(&mut self, changes: &[Change]) {
        for change in changes.iter().rev() {
            change.0.iter().for_each(|(at, old, _)| self.values[*at] = *old);
        }
    }

    /// Without these changes. Where contents are objects, a write that was a call is not one change: a crash may undo its transaction, and
    /// leave its bytes.
    fn without(&self, changes: &[Change]) -> Vec<State> {
        let mut state = self.clone();
        state.undo(changes);
        let mut states = vec![state];
        if !self.has_objects {
            return states;
        }
        for value in (0..FILES as u8).map(number_of) {
            let written = changes.iter().flat_map(|it| &it.0).rfind(|(at, ..)| *at == value);
            let Some((_, _, number)) = written else { continue };
            let mut left = states.clone();
            left.iter_mut().for_each(|state| state.values[value] = *number);
            states.extend(left);
        }
        states
    }

    fn name(self, by: usize, op: &Op) -> Option<State> {
        let at = |name: u8| self.values[usize::from(name)];
        match *op {
            Op::Create(name, Some(ino)) if at(name) == 0 => {
                self.change(by, &[(usize::from(name), ino)])
            }
            Op::Unlink(name, true) if at(name) != 0 => self.change(by, &[(usize::from(name), 0)]),
            Op::Rename(from, to, true) if at(from) != 0 => {
                let ino = at(from);
                self.change(by, &[(usize::from(from), 0), (usize::from(to), ino)])
            }
            // Nothing of the file is asked for.
            Op::Create(name, None) if at(name) != 0 => self.see(by, name_set(name)),
            Op::Unlink(name, false) | Op::Rename(name, _, false) if at(name) == 0 => {
                self.read(by, 0)
            }
            Op::Look(name, Some(ino)) if at(name) == ino => self.read(by, name_set(name)),
            Op::Look(name, Some(ino)) if at(name) == UNKNOWN => {
                let mut state = self;
                state.values[usize::from(name)] = ino;
                state.read(by, name_set(name))
            }
            Op::Look(name, None) if at(name) == 0 => self.read(by, 0),
            _ => None,
        }
    }

    fn file(self, by: usize, op: &Op) -> Option<State> {
        let (number, size) =
            (|file| self.values[number_of(file)], |file| self.values[size_of(file)]);
        match *op {
            Op::Write(file, number) => self.change(by, &[(number_of(file), number)]),
            Op::Append(file, at) if at.is_none_or(|at| at == size(file)) => {
                let size = size(file) + 8;
                self.change(by, &[(size_of(file), size)])
            }
            Op::Read(file, found) if found == number(file) => self.read(by, file_set(file)),
            Op::Size(file, found) if found == size(file) => self.see(by, file_set(file)),
            _ => None,
        }
    }

    fn sync(mut self, by: usize, set: Set) -> Option<State> {
        let client = &mut self.clients[by];
        // What was in the journal before the lease was over.
        let (changes, synced) = match &mut client.away {
            Some(away) => (&away.changes, &mut away.synced),
            None => (&client.kept, &mut client.synced),
        };
        let last = changes.iter().rposition(|change| change.set() & set != 0);
        *synced = last.map_or(0, |at| at + 1).max(*synced);
        Some(self)
    }

    /// Of what was not synced, a first part is left.
    fn crash(&self, by: usize) -> Vec<State> {
        let Client { kept, synced, .. } = &self.clients[by];
        let left = |left: usize| {
            let mut states = self.without(&kept[left..]);
            states.iter_mut().for_each(|state| state.clients[by].kept.truncate(left));
            states
        };
        (*synced..=kept.len()).flat_map(left).collect()
    }

    /// The server has a first part of its changes.
    fn lapse(&self, by: usize) -> Vec<State> {
        let Client { kept, synced, .. } = &self.clients[by];
        let sent = |sent: usize| {
            let mut states = self.without(&kept[sent..]);
            for state in &mut states {
                let client = &mut state.clients[by];
                let changes = client.kept.split_off(sent);
                client.synced = client.synced.min(sent);
                let synced = synced.saturating_sub(sent);
                client.away = Some(Away { changes, synced, read: 0, changed: 0 });
            }
            states
        };
        (0..=kept.len()).flat_map(sent).collect()
    }

    fn back(&self, by: usize, conflicts: &Conflicts) -> Vec<State> {
        let mut state = self.clone();
        let Some(away) = state.clients[by].away.take() else {
            // Nothing conflicts while the journal has not lapsed.
            let states = if conflicts.named == 0 { self.crash(by) } else { Vec::new() };
            return states.into_iter().map(|state| state.settled(by)).collect();
        };
        let uses = away.uses(self.scope, conflicts);
        let written_back = |count: usize| {
            let back = |away: &Away| match self.scope {
                Scope::Prefix => state.clone().with_prefix(away, count, conflicts),
                Scope::File => state.clone().with_independent(away, count, conflicts),
            };
            uses.iter().filter_map(back).collect::<Vec<State>>()
        };
        let written_back = (0..=away.changes.len()).flat_map(written_back);
        let mut states: Vec<State> = written_back.map(|state| state.settled(by)).collect();
        // Calls that the server had not made durable, and nothing behind them.
        if away.synced == 0 {
            states.extend(state.crash(by).into_iter().map(|state| state.settled(by)));
        }
        states
    }

    /// The first so many changes of a client that was away are written back, if none of them conflicts.
    fn with_prefix(mut self, away: &Away, count: usize, conflicts: &Conflicts) -> Option<State> {
        let (back, rest) = away.changes.split_at(count);
        let synced = away.synced.saturating_sub(count);
        for change in back {
            if away.conflicts_with(change, &self.values) {
                return None;
            }
            self.redo(change);
        }
        is_named(rest, synced, conflicts).then_some(self)
    }

    /// Of the first so many changes, which are in the journal, all are written back but those that conflict, or depend on one that is
    /// not written back. Those are named, and nothing else is.
    fn with_independent(
        mut self,
        away: &Away,
        count: usize,
        conflicts: &Conflicts,
    ) -> Option<State> {
        if count < away.synced {
            return None;
        }
        let mut skipped = Skipped::default();
        for change in &away.changes[..count] {
            if skipped.has_before(change) || away.conflicts_with(change, &self.values) {
                skipped.add(change);
            } else {
                self.redo(change);
            }
        }
        let Skipped { changes, values, .. } = skipped;
        // The names of a file that is gone are not known.
        let all_names = (1 << NAMES) - 1;
        let unnamed = if conflicts.named & all_names == all_names { all_names } else { 0 };
        let is_exact = conflicts.named & !(values | unnamed) == 0;
        (is_exact && is_named(&changes, changes.len(), conflicts)).then_some(self)
    }

    fn settled(mut self, by: usize) -> State {
        let client = &mut self.clients[by];
        client.kept.clear();
        client.synced = 0;
        self
    }

    /// The states after a call, or after what happened to a client.
    fn step(&self, by: usize, op: &Op) -> Vec<State> {
        match op {
            Op::Crash => return self.crash(by),
            Op::Lapse => return self.lapse(by),
            Op::Back(conflicts) => return self.back(by, conflicts),
            Op::Sync(_) => {}
            // It uses nothing after its lease.
            _ if self.clients[by].away.is_some() => return Vec::new(),
            _ => {}
        }
        let state = self.clone();
        let next = match op {
            Op::Create(..) | Op::Unlink(..) | Op::Rename(..) | Op::Look(..) => state.name(by, op),
            Op::Sync(set) => state.sync(by, *set),
            _ => state.file(by, op),
        };
        next.into_iter().collect()
    }
}

impl Away {
    /// What other clients may have used. One that has opened a file, and written some bytes of it, may have read all of it by itself: then
    /// the server counts that, and the file is named.
    fn uses(&self, scope: Scope, conflicts: &Conflicts) -> Vec<Away> {
        let mut uses = vec![self.clone()];
        let files = (0..FILES as u8).map(file_set).filter(|_| scope == Scope::File);
        let used = self.read | self.changed;
        for file in files.filter(|file| used & conflicts.named & file != 0) {
            let read = uses.clone().into_iter().map(|it| Away { read: it.read | file, ..it });
            uses.extend(read.collect::<Vec<_>>());
        }
        uses
    }

    /// Whether other clients have used what a change is about. A new name conflicts with another file of that name alone. Of a file,
    /// bytes that they have written beside it do not count, and may.
    fn conflicts_with(&self, change: &Change, values: &[u64; VALUES]) -> bool {
        let conflicts = |(at, old, _): &(usize, u64, u64)| match *at < NAMES {
            true => values[*at] != *old || *old != 0 && self.read & (1 << at) != 0,
            false => (self.read | self.changed) & (1 << at) != 0,
        };
        change.0.iter().any(conflicts)
    }
}

/// Changes that are not written back.
#[derive(Default)]
struct Skipped {
    changes: Vec<Change>,
    /// What they are about: the names stay as they are, and so do the files.
    values: Set,
    /// The inodes of their names.
    inodes: Vec<u64>,
}

impl Skipped {
    /// Whether a later change depends on one of them.
    fn has_before(&self, change: &Change) -> bool {
        let is_of = |inode: &u64| *inode != 0 && self.inodes.contains(inode);
        let depends = |(at, old, new): &(usize, u64, u64)| match *at < NAMES {
            true => self.values & (1 << at) != 0 || is_of(old) || is_of(new),
            false => self.values & file_of(*at) != 0,
        };
        change.0.iter().any(depends)
    }

    fn add(&mut self, change: &Change) {
        let values = change.0.iter().map(|(at, ..)| match *at < NAMES {
            true => 1 << at,
            false => file_of(*at),
        });
        self.values = values.fold(self.values, |set, value| set | value);
        let names = change.0.iter().filter(|(at, ..)| *at < NAMES);
        self.inodes.extend(names.flat_map(|(_, old, new)| [*old, *new]));
        self.changes.push(change.clone());
    }
}

/// Whether what was synced of changes that are not written back is in conflict sets, as it was then or later.
fn is_named(rest: &[Change], synced: usize, conflicts: &Conflicts) -> bool {
    let mut mine: Vec<Option<(u64, u64)>> = vec![None; VALUES];
    let fits = |mine: &[Option<(u64, u64)>]| {
        let differs = |at: usize| mine[at].filter(|(old, new)| old != new).map(|it| it.1);
        let is_named =
            (0..VALUES).all(|at| differs(at).is_none() || conflicts.named & (1 << at) != 0);
        let is_copied = (0..FILES as u8).all(|file| {
            let size = conflicts.sizes[usize::from(file)];
            differs(number_of(file))
                .is_none_or(|number| conflicts.numbers[usize::from(file)] == Some(number))
                && differs(size_of(file)).is_none_or(|wanted| size.is_none_or(|it| it == wanted))
        });
        is_named && is_copied
    };
    if synced == 0 {
        return true;
    }
    for (number, change) in rest.iter().enumerate() {
        for (at, old, new) in &change.0 {
            let first = mine[*at].map_or(*old, |it| it.0);
            mine[*at] = Some((first, *new));
        }
        if number + 1 >= synced && fits(&mine) {
            return true;
        }
    }
    false
}

/// Whether the calls, and what happened to clients, have an order in which each answer is right.
pub(crate) fn is_explained(first: State, history: &[Recorded<Op>]) -> bool {
    has_order(first, history, |state: &State, it| state.step(it.client, &it.op))
}
