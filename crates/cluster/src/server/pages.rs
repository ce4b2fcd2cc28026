//! Changes of bytes that are under way, and the pages of these bytes at other clients.
//!
//! A kernel cannot drop a page before its write of it is answered, nor before its read of it is. So that no two changes wait
//! for each other's pages, a change does not wait for pages that an earlier one holds which waits for pages itself: these are
//! dropped when that one is answered. And a page that is read while a change is under way may have the bytes before it, and is
//! dropped before the change is answered.

use std::ops::Range;
use std::sync::Arc;

use futures::future::join;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_env::HashMap;
use thalweg_fs::Ino;

use super::Shared;
use super::capabilities::Table;
use super::job::Job;
use crate::protocol::Changed;

/// Kernels cache and lock so many bytes at a time.
const PAGE: u64 = 4096;

/// The changes of bytes that are under way, by inodes.
#[derive(Debug, Default)]
pub(super) struct PageChanges(HashMap<Ino, SmallVec<[PageChange; 1]>>);

/// A change of bytes of a file.
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
    fn wait(&mut self, number: u64, ino: Ino) {
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
            match parts.is_empty() {
                true => free.push(change),
                false => {
                    free.extend(without(from..to, &parts).into_iter().map(of));
                    held.extend(parts.into_iter().map(of));
                }
            }
        }
        (free, held)
    }

    /// A session reads pages.
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

    fn end(&mut self, number: u64, ino: Ino) {
        let Some(changes) = self.0.get_mut(&ino) else { return };
        changes.retain(|it| it.number != number);
        if changes.is_empty() {
            self.0.remove(&ino);
        }
    }
}

/// A change of bytes until its call is answered.
#[derive(Debug)]
pub(super) struct PageTurn {
    pub(super) table: Arc<Mutex<Table>>,
    pub(super) number: u64,
    pub(super) inodes: SmallVec<[Ino; 2]>,
}

impl PageTurn {
    /// Its call is not answered before other sessions have heard of it: changes that begin from here on do not wait for pages that its
    /// session holds by it.
    pub(super) fn wait(&self) {
        let mut table = self.table.lock();
        self.inodes.iter().for_each(|ino| table.pages.wait(self.number, *ino));
    }
}

impl Drop for PageTurn {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        self.inodes.iter().for_each(|ino| table.pages.end(self.number, *ino));
        table.pages_ended.notify_waiters();
    }
}

/// What a session has to drop, or is to know, before a change is answered that was carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Late {
    /// The number of the change.
    pub(super) number: u64,
    pub(super) session: u64,
    pub(super) change: Changed,
}

impl Shared {
    /// A client's kernel is about to cache pages of a file: from here on it is told of each change of them.
    pub(super) async fn hold_pages(&self, job: &Job<'_>, ino: Ino, range: Range<u64>) {
        let serial = job.session.serial;
        while !self.capabilities.lock().read_pages(serial, ino, &range) {
            // What the owner sends before it releases the file may concern pages of this client, which drops none before
            // its read is answered. So it is not told before.
            let recalls = self.capabilities.recalls(serial, &[ino]);
            self.invalidate(job, recalls).await;
        }
    }

    /// Returns when the other sessions have dropped what outlived the changes of a call, and know what they are to know of them.
    pub(super) async fn settle(&self, job: &Job<'_>) {
        let late = job.take_late();
        if late.is_empty() {
            return;
        }
        let (free, held) = self.capabilities.lock().divide(late);
        join(self.drop_unless_held(held), self.invalidate(job, free)).await;
    }

    /// Returns when a client has dropped the pages of these files that it has read while they were changed. If it were told
    /// of a new size before, it would see zeros where the file goes on.
    pub(super) async fn settle_pages(&self, session: u64, told: &[Ino]) {
        let ended = self.capabilities.lock().pages_ended.clone();
        loop {
            let next = ended.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            {
                let pages = &self.capabilities.lock().pages;
                if !told.iter().any(|ino| pages.has_outdated(session, *ino)) {
                    return;
                }
            }
            next.await;
        }
    }

    /// The size of a file that other clients have open.
    pub(super) async fn size_for_others(&self, job: &Job<'_>, ino: Ino) -> Option<u64> {
        if !self.open_files.is_open_by_others(job.session.serial, ino) {
            return None;
        }
        Some(self.filesystem.attributes(ino).await.ok()?.attributes.size)
    }

    /// A file has perhaps grown since it had the size `before`: the other clients that have it open are told, since their programs
    /// may map it without asking for its size.
    pub(super) async fn tell_size(&self, job: &Job<'_>, ino: Ino, before: Option<u64>) {
        let Some(before) = before else { return };
        let Some(size) = self.size_for_others(job, ino).await.filter(|size| *size > before) else {
            return;
        };
        let change = Changed::Size { ino, size };
        job.waits_for_others();
        for session in self.open_files.others(job.session.serial, ino) {
            job.is_late(Late { number: 0, session, change: change.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn content(from: u64, to: u64) -> Changed {
        Changed::Content { ino: FILE, from, to }
    }

    #[test]
    fn ranges_are_cut() {
        assert_eq!(without(0..10, &[]), [0..10]);
        assert_eq!(without(0..10, &[2..4, 3..6]), [0..2, 6..10]);
        assert_eq!(without(0..10, &[0..10]), []);
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
        assert_eq!(pages.carried_out(1, FILE), []);
        // The other one's pages are dropped before this one is answered.
        assert_eq!(pages.held((2, 10), FILE, &(0..10)), [0..10]);
    }
}
