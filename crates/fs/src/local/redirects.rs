//! Bytes of files that are not in their place (*redirect on write*), where contents are kept elsewhere.
//!
//! A batch of a client with a journal may replace bytes in many objects, and changes names and attributes in a transaction. To
//! other clients it is one change. So its bytes are stored aside first, in a file that has no inode, and the transaction says where they
//! are: a crash leaves all of the batch, or nothing. They are placed later ([`super::redirected`]); those that a
//! later batch replaces before that never are.
//!
//! Here is what memory knows of them: all redirects, which are records of the filesystem, and how the file aside is used. Its
//! objects are used one after another, each once. An object is removed when no durable record is about bytes of it. The filesystem
//! has a record of the first object that may be there, and of the first one that is not: this one is raised durably before bytes are
//! stored behind it.

mod records;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::{HashMap, Time};

use crate::attributes::Ino;
use records::LONGEST;
use records::redirect_record;
pub(super) use records::{
    Parsed, Redirect, bounds_key, bounds_record, parse_redirect, redirect_key,
};

/// The file with redirected bytes. No inode has its number.
pub(super) const ASIDE: Ino = Ino(1 << 63);
/// Objects that are filled at the same time: those of different sessions lie on different servers.
const ARENAS: u64 = 16;
/// The bound is raised by so many objects.
pub(super) const OBJECTS_AHEAD: u64 = 64;
/// Redirects of all files before the oldest ones are placed, and their bytes.
const MOST: (usize, u64) = (1 << 17, 4 << 30);
/// A file's bytes are placed when none was redirected for so long, and when the first one was so long ago.
const STILL: Duration = Duration::from_secs(60);
const OLD: Duration = Duration::from_secs(600);

/// The redirects of a file, by the first byte of each. None overlaps another one.
type OfFile = BTreeMap<u64, Redirect>;

/// The redirects of a file that have bytes of a range.
fn overlapping(file: &OfFile, range: &Range<u64>) -> impl Iterator<Item = (u64, Redirect)> {
    let before = file.range(..range.start).next_back();
    let before = before.filter(|(offset, it)| *offset + it.len > range.start);
    let inside = file.range(range.start..range.end.max(range.start));
    before.into_iter().chain(inside).map(|(offset, it)| (*offset, *it))
}

/// Takes the bytes of a range out of the redirects of a file; where they were.
fn carve(file: &mut OfFile, range: &Range<u64>) -> Vec<Range<u64>> {
    let found: Vec<(u64, Redirect)> = overlapping(file, range).collect();
    let mut freed = Vec::with_capacity(found.len());
    for (offset, Redirect { len, at }) in found {
        let (start, end) = (offset.max(range.start), (offset + len).min(range.end));
        file.remove(&offset);
        if offset < start {
            file.insert(offset, Redirect { len: start - offset, at });
        }
        if end < offset + len {
            file.insert(end, Redirect { len: offset + len - end, at: at + (end - offset) });
        }
        freed.push(at + (start - offset)..at + (end - offset));
    }
    freed
}

/// A change of the redirects of a file, which a transaction makes, and memory gets when that has committed. Nothing else changes them
/// between: its maker has passed the gate of the file alone.
#[derive(Clone, Debug)]
pub(super) struct RedirectChange {
    ino: u64,
    /// The first bytes of redirects that go, and those that come.
    gone: Vec<u64>,
    come: Vec<(u64, Redirect)>,
    /// Bytes in the file aside that are used now, and those that are not used any more.
    used: Vec<Range<u64>>,
    freed: Vec<Range<u64>>,
}

impl RedirectChange {
    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.come.is_empty()
    }

    /// The records that change, and what they become.
    pub(super) fn records(&self) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
        let gone = self.gone.iter().map(|offset| (redirect_key(self.ino, *offset), None));
        let come = self.come.iter();
        let come = come.map(|(at, it)| (redirect_key(self.ino, *at), Some(redirect_record(*it))));
        gone.chain(come)
    }
}

/// Part of a range of a file: in its place, or from this byte of the file aside on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    pub(super) aside: Option<u64>,
}

#[derive(Debug, Default)]
struct File {
    redirects: OfFile,
    /// When the first one came, and the last one.
    first: Time,
    last: Time,
}

#[derive(Debug)]
struct State {
    files: HashMap<u64, File>,
    count: usize,
    bytes: u64,
    /// The objects that may be there, by the durable record.
    bounds: Range<u64>,
    /// The first object that was never used.
    next: u64,
    /// The bytes that objects which are being filled have left.
    arenas: HashMap<u64, Range<u64>>,
    /// Bytes of each object that are used.
    live: HashMap<u64, u64>,
    /// Bytes that are free once the transactions that have freed them are durable: these are numbered.
    freed: VecDeque<(u64, Vec<Range<u64>>)>,
    last_freed: u64,
    /// Objects that are to be removed.
    unused: Vec<u64>,
}

/// All redirects of a filesystem.
#[derive(Debug)]
pub(super) struct Redirects {
    /// Bytes of an object.
    unit: u64,
    state: Mutex<State>,
    /// One at a time raises the bound.
    pub(super) raising: tokio::sync::Mutex<()>,
}

/// Bytes of the file aside that are not used otherwise as long as this is there, and as long as records are about them.
#[derive(Debug)]
pub(super) struct Aside {
    redirects: Arc<Redirects>,
    range: Range<u64>,
}

impl Aside {
    /// The first byte.
    pub(super) fn start(&self) -> u64 {
        self.range.start
    }

    /// Objects that begin there or behind were not used before.
    pub(super) fn absent_from(&self) -> u64 {
        let start = self.range.start;
        if start.is_multiple_of(self.redirects.unit) { start } else { u64::MAX }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.redirects.state.lock().release(&self.range, self.redirects.unit);
    }
}

impl State {
    fn use_range(&mut self, range: &Range<u64>, unit: u64) {
        for (object, bytes) in objects_of(range, unit) {
            *self.live.entry(object).or_default() += bytes;
        }
    }

    fn release(&mut self, range: &Range<u64>, unit: u64) {
        for (object, bytes) in objects_of(range, unit) {
            let live = self.live.get_mut(&object).expect("an object with redirected bytes is used");
            *live = live.checked_sub(bytes).expect("more bytes of an object are freed than used");
            if *live == 0 {
                self.live.remove(&object);
                self.drop_if_unused(object, unit);
            }
        }
    }

    /// An object that is neither used nor being filled is to be removed.
    fn drop_if_unused(&mut self, object: u64, unit: u64) {
        let is_filled = self.arenas.values().any(|it| it.start / unit == object && !it.is_empty());
        if !is_filled && !self.live.contains_key(&object) {
            self.unused.push(object);
        }
    }

    /// Takes bytes for a session; `None` when the bound is to be raised first.
    fn take(&mut self, session: u64, len: u64, unit: u64) -> Option<Range<u64>> {
        let arena = session % ARENAS;
        let open = self.arenas.get(&arena).cloned().unwrap_or_default();
        let taken = if open.end - open.start >= len {
            self.arenas.insert(arena, open.start + len..open.end);
            open.start..open.start + len
        } else {
            let end = self.next + len.div_ceil(unit);
            if end > self.bounds.end {
                return None;
            }
            let start = self.next * unit;
            self.next = end;
            // What is left of the object before is not used.
            self.arenas.insert(arena, start + len..end * unit);
            if !open.is_empty() {
                self.drop_if_unused(open.start / unit, unit);
            }
            start..start + len
        };
        self.use_range(&taken, unit);
        Some(taken)
    }
}

/// The objects of a range of the file aside, with how many bytes each has of it.
fn objects_of(range: &Range<u64>, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let (start, end) = (range.start, range.end.max(range.start));
    (start / unit..end.div_ceil(unit)).map(move |object| {
        let bytes = ((object + 1) * unit).min(end) - (object * unit).max(start);
        (object, bytes)
    })
}

impl Redirects {
    /// What an opening has found: the objects that may be there, and the redirects of files.
    pub(super) fn new(
        unit: u64,
        bounds: Range<u64>,
        found: Vec<(u64, u64, Redirect)>,
        now: Time,
    ) -> Redirects {
        let mut state = State {
            files: HashMap::default(),
            count: 0,
            bytes: 0,
            next: bounds.end,
            bounds,
            arenas: HashMap::default(),
            live: HashMap::default(),
            freed: VecDeque::new(),
            last_freed: 0,
            unused: Vec::new(),
        };
        for (ino, offset, redirect) in found {
            let file = state.files.entry(ino).or_default();
            (file.first, file.last) = (now, now);
            file.redirects.insert(offset, redirect);
            state.count += 1;
            state.bytes += redirect.len;
            state.use_range(&(redirect.at..redirect.at + redirect.len), unit);
        }
        let unused = state.bounds.clone().filter(|object| !state.live.contains_key(object));
        state.unused = unused.collect();
        Redirects { unit, state: Mutex::new(state), raising: tokio::sync::Mutex::default() }
    }

    /// Takes bytes of the file aside for a session; `None` when the bound is to be raised first.
    pub(super) fn take(self: &Arc<Redirects>, session: u64, len: u64) -> Option<Aside> {
        let range = self.state.lock().take(session, len, self.unit)?;
        Some(Aside { redirects: self.clone(), range })
    }

    /// The bounds with which so many bytes can be taken.
    pub(super) fn raised(&self, len: u64) -> Range<u64> {
        let state = self.state.lock();
        let live = state.live.keys().chain(&state.unused).copied();
        let filled = state.arenas.values().filter(|it| !it.is_empty());
        let filled = filled.map(|it| it.start / self.unit);
        let first = live.chain(filled).min().unwrap_or(state.next);
        first.min(state.next)..state.next + len.div_ceil(self.unit) + OBJECTS_AHEAD
    }

    /// The record with these bounds is durable.
    pub(super) fn set_bounds(&self, bounds: Range<u64>) {
        self.state.lock().bounds = bounds;
    }

    /// Plans that bytes of a file are elsewhere: ranges in the order in which they were written, and where each is from now on, `None`
    /// in its place.
    pub(super) fn plan(
        &self,
        ino: u64,
        ranges: impl Iterator<Item = (Range<u64>, Option<u64>)>,
    ) -> RedirectChange {
        let ranges: Vec<_> = ranges.filter(|(range, _)| !range.is_empty()).collect();
        let hull = ranges.iter().map(|(range, _)| range.start).min().unwrap_or_default()
            ..ranges.iter().map(|(range, _)| range.end).max().unwrap_or_default();
        let before: OfFile = match self.state.lock().files.get(&ino) {
            Some(file) => overlapping(&file.redirects, &hull).collect(),
            None => OfFile::new(),
        };
        let (mut after, mut used, mut freed) = (before.clone(), Vec::new(), Vec::new());
        for (range, aside) in ranges {
            freed.extend(carve(&mut after, &range));
            let Some(at) = aside else { continue };
            used.push(at..at + (range.end - range.start));
            for offset in (range.start..range.end).step_by(LONGEST as usize) {
                let len = LONGEST.min(range.end - offset);
                after.insert(offset, Redirect { len, at: at + (offset - range.start) });
            }
        }
        let gone = before.keys().filter(|offset| !after.contains_key(offset)).copied().collect();
        let come = after.iter().filter(|(offset, it)| before.get(offset) != Some(it));
        let come = come.map(|(offset, it)| (*offset, *it)).collect();
        RedirectChange { ino, gone, come, used, freed }
    }

    /// A change has committed.
    pub(super) fn commit(&self, change: &RedirectChange, now: Time) {
        let mut guard = self.state.lock();
        let State { files, count, bytes, .. } = &mut *guard;
        let file =
            files.entry(change.ino).or_insert_with(|| File { first: now, ..File::default() });
        for offset in &change.gone {
            let gone = file.redirects.remove(offset).expect("a redirect that goes is known");
            (*count, *bytes) = (*count - 1, *bytes - gone.len);
        }
        for (offset, redirect) in &change.come {
            let before = file.redirects.insert(*offset, *redirect);
            *count += usize::from(before.is_none());
            *bytes = *bytes + redirect.len - before.map_or(0, |it| it.len);
        }
        if !change.come.is_empty() {
            file.last = now;
        }
        if file.redirects.is_empty() {
            files.remove(&change.ino);
        }
        change.used.iter().for_each(|it| guard.use_range(it, self.unit));
        let State { freed, last_freed, .. } = &mut *guard;
        if !change.freed.is_empty() {
            *last_freed += 1;
            freed.push_back((*last_freed, change.freed.clone()));
        }
    }

    /// The last transaction that has freed bytes: these may be used again when it is durable. `None` if there are none.
    pub(super) fn last_freed(&self) -> Option<u64> {
        self.state.lock().freed.back().map(|(number, ..)| *number)
    }

    /// The transactions that have freed bytes are durable, up to this one.
    pub(super) fn release(&self, last: u64) {
        let mut state = self.state.lock();
        let durable = state.freed.partition_point(|(number, ..)| *number <= last);
        let durable: Vec<_> = state.freed.drain(..durable).collect();
        durable.iter().flat_map(|(.., freed)| freed).for_each(|it| state.release(it, self.unit));
    }

    /// Objects that are to be removed: also those that are being filled, if nothing of them is used.
    pub(super) fn take_unused(&self) -> Vec<Range<u64>> {
        let mut guard = self.state.lock();
        let State { arenas, live, unused, .. } = &mut *guard;
        arenas.retain(|_, left| {
            let object = left.start / self.unit;
            let is_used = left.is_empty() || live.contains_key(&object);
            unused.extend((!is_used).then_some(object));
            is_used
        });
        let unused = std::mem::take(unused);
        drop(guard);
        unused.into_iter().map(|object| object * self.unit..(object + 1) * self.unit).collect()
    }

    /// They could not be removed.
    pub(super) fn give_unused_back(&self, objects: &[Range<u64>]) {
        self.state.lock().unused.extend(objects.iter().map(|it| it.start / self.unit));
    }

    /// Whether bytes of a range of a file are redirected.
    pub(super) fn has(&self, ino: u64, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        let file = state.files.get(&ino);
        file.is_some_and(|file| overlapping(&file.redirects, range).next().is_some())
    }

    /// Where the bytes of a range are, piece after piece.
    pub(super) fn pieces(&self, ino: u64, range: Range<u64>) -> Vec<Piece> {
        let state = self.state.lock();
        let found = state.files.get(&ino).map(|file| overlapping(&file.redirects, &range));
        let (mut pieces, mut at) = (Vec::<Piece>::new(), range.start);
        for (offset, redirect) in found.into_iter().flatten() {
            let (start, end) = (offset.max(range.start), (offset + redirect.len).min(range.end));
            if at < start {
                pieces.push(Piece { range: at..start, aside: None });
            }
            let aside = redirect.at + (start - offset);
            let behind = |it: &Piece| it.aside.map(|at| at + (it.range.end - it.range.start));
            match pieces.last_mut().filter(|it| it.range.end == start && behind(it) == Some(aside))
            {
                Some(last) => last.range.end = end,
                None => pieces.push(Piece { range: start..end, aside: Some(aside) }),
            }
            at = end;
        }
        if at < range.end {
            pieces.push(Piece { range: at..range.end, aside: None });
        }
        pieces
    }

    /// Redirects of a file that have bytes of a range, the first so many of them and of their bytes.
    pub(super) fn some(
        &self,
        ino: u64,
        range: &Range<u64>,
        (count, most): (usize, u64),
    ) -> Vec<(u64, Redirect)> {
        let state = self.state.lock();
        let Some(file) = state.files.get(&ino) else { return Vec::new() };
        let mut bytes = 0;
        let found = overlapping(&file.redirects, range).take(count);
        found
            .take_while(|(_, it)| {
                bytes += it.len;
                bytes <= most.max(it.len)
            })
            .collect()
    }

    /// The files that have redirects.
    pub(super) fn files(&self) -> Vec<u64> {
        let mut files: Vec<u64> = self.state.lock().files.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Redirects of all files, and their bytes.
    pub(super) fn total(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.count, state.bytes)
    }

    /// Whether there are more than so many parts of [`MOST`], in quarters.
    pub(super) fn is_over(&self, quarters: usize) -> bool {
        let (count, bytes) = self.total();
        4 * count > quarters * MOST.0 || 4 * bytes > quarters as u64 * MOST.1
    }

    /// The files whose bytes are to be placed next, because they are old or there are too many of all files: at most so many, the
    /// oldest ones first.
    pub(super) fn due(&self, now: Time, most: usize) -> Vec<u64> {
        let is_over = self.is_over(4);
        let state = self.state.lock();
        let is_due = |file: &File| now.since(file.last) >= STILL || now.since(file.first) >= OLD;
        let files = state.files.iter().filter(|(_, file)| is_over || is_due(file));
        let mut due: Vec<(Time, u64)> = files.map(|(ino, file)| (file.first, *ino)).collect();
        if due.len() > most {
            due.select_nth_unstable(most);
            due.truncate(most);
        }
        due.sort_unstable();
        due.into_iter().map(|(_, ino)| ino).collect()
    }

    /// Whether something waits to be placed, removed or made durable.
    pub(super) fn has_work(&self) -> bool {
        let state = self.state.lock();
        !state.files.is_empty() || !state.freed.is_empty() || !state.unused.is_empty()
    }
}
