//! Changes of bytes that are under way, and the pages of these bytes at other clients.
//!
//! A kernel cannot drop a page before its write of it is answered, nor before its read of it is. So that no two changes wait
//! for each other's pages, a change does not wait for pages that an earlier one holds which waits for pages itself: these are
//! dropped when that one is answered. And a page that is read while a change is under way may have the bytes before it, and is
//! dropped before the change is answered.

use std::ops::Range;

use smallvec::SmallVec;
use thalweg_env::HashMap;
use thalweg_fs::Ino;

use crate::protocol::Changed;

/// Kernels cache and lock so many bytes at a time.
const PAGE: u64 = 4096;

/// The changes of bytes that are under way, by inodes.
#[derive(Debug, Default)]
pub(super) struct PageChanges(HashMap<Ino, SmallVec<[PageChange; 1]>>);

#[derive(Debug)]
struct PageChange {
    /// Grows with the order in which changes begin.
    number: u64,
    session: u64,
    /// Whole pages.
    range: Range<u64>,
    /// Other sessions have to drop pages before it is carried out or answered.
    waits: bool,
    is_carried_out: bool,
    /// The pages that sessions have read since it began, until it was carried out: they drop these before it ends.
    read: Vec<(u64, Range<u64>)>,
}

fn whole_pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE * PAGE..range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

fn common(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

/// The parts of a range that none of the others has.
fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = vec![range];
    for other in others {
        let cut = |part: Range<u64>| {
            let before = part.start..part.end.min(other.start);
            let behind = part.start.max(other.end)..part.end;
            [before, behind].into_iter().filter(|it| !it.is_empty())
        };
        parts = parts.into_iter().flat_map(cut).collect();
    }
    parts
}

impl PageChanges {
    /// A change begins. With `waits`, other sessions have to drop pages first.
    pub(super) fn begin(
        &mut self,
        (number, session): (u64, u64),
        (ino, range): (Ino, Range<u64>),
        waits: bool,
    ) {
        let (range, read) = (whole_pages(&range), Vec::new());
        let mut earlier = self.0.get(&ino).into_iter().flatten();
        assert!(earlier.all(|it| it.number <= number), "a change has the number of a later one");
        let begun = PageChange { number, session, range, waits, is_carried_out: false, read };
        self.0.entry(ino).or_default().push(begun);
    }

    /// The parts of a range that a session holds by changes which began before this one and wait for others.
    fn held(&self, (number, session): (u64, u64), ino: Ino, range: &Range<u64>) -> Vec<Range<u64>> {
        let changes = self.0.get(&ino).into_iter().flatten();
        let holds = |it: &&PageChange| it.session == session && it.number < number && it.waits;
        changes.filter(holds).filter_map(|it| common(&it.range, range)).collect()
    }

    /// A change is not answered before other sessions have heard of it.
    pub(super) fn wait(&mut self, number: u64, ino: Ino) {
        let changes = self.0.get_mut(&ino).into_iter().flatten();
        changes.filter(|it| it.number == number).for_each(|it| it.waits = true);
    }

    /// Whether a session holds the last page of a file of this size by a change.
    pub(super) fn holds_end(&self, session: u64, ino: Ino, size: u64) -> bool {
        let (last, changes) = (size.saturating_sub(1)..size, self.0.get(&ino));
        let mut own = changes.into_iter().flatten().filter(|it| it.session == session);
        own.any(|it| common(&it.range, &last).is_some())
    }

    /// Divides what a session has to drop for a change into what it can drop now, and what it holds by earlier changes.
    pub(super) fn divide(
        &self,
        number: u64,
        session: u64,
        changes: Vec<Changed>,
    ) -> (Vec<Changed>, Vec<Changed>) {
        let (mut free, mut held) = (Vec::new(), Vec::new());
        for change in changes {
            let Changed::Content { ino, from, to } = change else {
                free.push(change);
                continue;
            };
            let of = |range: Range<u64>| Changed::Content { ino, from: range.start, to: range.end };
            let parts = self.held((number, session), ino, &(from..to));
            if parts.is_empty() {
                free.push(change);
            } else {
                free.extend(without(from..to, &parts).into_iter().map(of));
                held.extend(parts.into_iter().map(of));
            }
        }
        (free, held)
    }

    pub(super) fn read(&mut self, session: u64, ino: Ino, range: &Range<u64>) {
        for change in self.0.get_mut(&ino).into_iter().flatten() {
            // A client's own change, too: its kernel may have dropped the page since it wrote to it.
            let both = common(&change.range, &whole_pages(range));
            if let Some(both) = both.filter(|_| !change.is_carried_out) {
                change.read.push((session, both));
                change.waits = true;
            }
        }
    }

    /// A change was carried out: pages of it that were read meanwhile may have the bytes before it.
    pub(super) fn carried_out(&mut self, number: u64, ino: Ino) -> Vec<(u64, Range<u64>)> {
        let mut outdated = Vec::new();
        for change in self.0.get_mut(&ino).into_iter().flatten() {
            if change.number == number {
                change.is_carried_out = true;
                outdated.extend(change.read.iter().cloned());
            }
        }
        outdated
    }

    /// Whether a session has pages of a file that it is about to drop, since another one has changed them.
    pub(super) fn has_outdated(&self, session: u64, ino: Ino) -> bool {
        let changes = self.0.get(&ino).into_iter().flatten();
        changes.flat_map(|it| &it.read).any(|(reader, _)| *reader == session)
    }

    pub(super) fn end(&mut self, number: u64, ino: Ino) {
        let Some(changes) = self.0.get_mut(&ino) else { return };
        changes.retain(|it| it.number != number);
        if changes.is_empty() {
            self.0.remove(&ino);
        }
    }
}

/// What a session has to drop, or is to know, before a change is answered that was carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::server) struct Late {
    pub(in crate::server) number: u64,
    pub(in crate::server) session: u64,
    pub(in crate::server) change: Changed,
}

pub(super) fn content_of(change: &Changed) -> Option<Ino> {
    match change {
        Changed::Content { ino, .. } => Some(*ino),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn content(from: u64, to: u64) -> Changed {
        Changed::Content { ino: FILE, from, to }
    }

    fn pairs(ranges: Vec<Range<u64>>) -> Vec<(u64, u64)> {
        ranges.into_iter().map(|it| (it.start, it.end)).collect()
    }

    #[test]
    fn ranges_are_cut() {
        assert_eq!(pairs(without(0..10, &[])), [(0, 10)]);
        assert_eq!(pairs(without(0..10, &[2..4, 3..6])), [(0, 2), (6, 10)]);
        assert_eq!(pairs(without(0..10, std::slice::from_ref(&(0..10)))), []);
        assert_eq!(whole_pages(&(4097..u64::MAX)), 4096..u64::MAX);
        assert_eq!(whole_pages(&(4095..4097)), 0..8192);
    }

    #[test]
    fn a_change_waits_for_no_pages_of_an_earlier_one_that_waits() {
        let mut pages = PageChanges::default();
        pages.begin((1, 10), (FILE, 100..200), true);
        pages.begin((2, 20), (FILE, 5000..5001), false);
        let of = |pages: &PageChanges, number, session| {
            pages.divide(number, session, vec![Changed::Attributes(FILE), content(0, 9000)])
        };
        let attributes = Changed::Attributes(FILE);
        let all = vec![attributes.clone(), content(0, 9000)];
        assert_eq!(
            of(&pages, 3, 10),
            (vec![attributes, content(4096, 9000)], vec![content(0, 4096)])
        );
        // This one waits for none, and is answered soon.
        assert_eq!(of(&pages, 3, 20), (all.clone(), vec![]));
        // That one began later: it leaves out what this one holds.
        assert_eq!(of(&pages, 0, 10), (all.clone(), vec![]));
        pages.end(1, FILE);
        assert_eq!(of(&pages, 3, 10), (all, vec![]));
        pages.end(2, FILE);
        assert!(pages.0.is_empty());
    }

    #[test]
    fn a_page_that_is_read_meanwhile_is_outdated() {
        let mut pages = PageChanges::default();
        pages.begin((1, 10), (FILE, 100..200), false);
        pages.read(10, FILE, &(4096..9000));
        pages.read(20, FILE, &(0..9000));
        pages.read(20, FILE, &(5000..9000));
        assert_eq!(pages.carried_out(1, FILE), [(20, 0..4096)]);
        pages.read(30, FILE, &(0..10));
        assert!(pages.has_outdated(20, FILE) && !pages.has_outdated(30, FILE));
        // The other one's pages are dropped before this one is answered.
        assert_eq!(pairs(pages.held((2, 10), FILE, &(0..10))), [(0, 10)]);
    }
}
