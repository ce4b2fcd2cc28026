//! Pages of this client's own files that programs have written in parts, with the bytes that they have now.
//!
//! A kernel takes a page for valid only when a write has covered all of it. It asks for each other one by itself when a program
//! reads the file again, such as the tables and logs of a database, which are written record by record. So what was written of
//! such pages is kept here, also when the server has it. Pages that were written as a whole are the kernel's.
//!
//! They follow each change that this client makes without a call, under the lock of the file's stripe, and are used only under the
//! grant under which they were written: no other client has changed the file since. A change by a call drops them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_fs::Ino;

use super::delegated::GrantNumber;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// One range of bytes of a page, which was written.
struct Page {
    written: Range<usize>,
    bytes: Box<[u8]>,
}

impl Page {
    fn new(at: usize, data: &[u8]) -> Page {
        let mut page = Page { written: at..at, bytes: vec![0; PAGE as usize].into_boxed_slice() };
        page.write(at, data);
        page
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.bytes[at..end].copy_from_slice(data);
        let is_apart = at > self.written.end || end < self.written.start;
        self.written = match is_apart {
            // Of two ranges the later one is kept: more is likely to follow it.
            true => at..end,
            false => self.written.start.min(at)..self.written.end.max(end),
        };
    }

    fn truncate(&mut self, len: usize) {
        self.written.end = self.written.end.min(len).max(self.written.start);
    }
}

/// The parts of a range of bytes, page by page: the page's number, and the bytes of the page.
fn parts(bytes: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
    pages.map(move |page| {
        let start = page * PAGE;
        let within = |at: u64| (at.clamp(start, start + PAGE) - start) as usize;
        (page, within(bytes.start)..within(bytes.end))
    })
}

/// The pages of a file.
pub(super) struct PartialPages {
    grant: GrantNumber,
    pages: BTreeMap<u64, Page>,
    memory: Arc<PageMemory>,
}

impl PartialPages {
    fn new(grant: GrantNumber, memory: &Arc<PageMemory>) -> PartialPages {
        PartialPages { grant, pages: BTreeMap::new(), memory: memory.clone() }
    }

    /// Bytes of a file, which has these pages, are written under a grant.
    pub(super) fn keep(
        pages: &mut Option<Box<PartialPages>>,
        (grant, memory): (GrantNumber, &Arc<PageMemory>),
        (ino, offset): (Ino, u64),
        data: &[u8],
    ) {
        pages.take_if(|pages| pages.grant != grant);
        let end = offset + data.len() as u64;
        let is_partial = !offset.is_multiple_of(PAGE) || !end.is_multiple_of(PAGE);
        if is_partial && pages.is_none() {
            *pages = Some(Box::new(PartialPages::new(grant, memory)));
        }
        if let Some(pages) = pages {
            pages.write(ino, offset, data);
        }
    }

    /// The grant under which they were written.
    pub(super) fn grant(&self) -> GrantNumber {
        self.grant
    }

    fn write(&mut self, ino: Ino, offset: u64, mut data: &[u8]) {
        for (number, part) in parts(offset..offset + data.len() as u64) {
            let (these, rest) = data.split_at(part.len());
            data = rest;
            match self.pages.get_mut(&number) {
                Some(page) => page.write(part.start, these),
                None if part.len() == PAGE as usize => {}
                None => {
                    self.pages.insert(number, Page::new(part.start, these));
                    self.memory.added(ino, number);
                }
            }
        }
    }

    /// The file ends there from now on.
    pub(super) fn truncate(&mut self, size: u64) {
        let behind = self.pages.split_off(&size.div_ceil(PAGE));
        self.memory.removed(behind.len());
        if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
            page.truncate((size % PAGE) as usize);
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.memory.removed(usize::from(self.pages.remove(&number).is_some()));
    }

    /// These bytes, if there are some, and all of them were written and are here.
    pub(super) fn read(&self, bytes: Range<u64>) -> Option<Vec<u8>> {
        let is_here = |(number, part): (u64, Range<usize>)| {
            let written = self.pages.get(&number).map(|page| &page.written);
            written.is_some_and(|it| it.start <= part.start && part.end <= it.end)
        };
        // A read may begin behind the end.
        if bytes.is_empty() || !parts(bytes.clone()).all(is_here) {
            return None;
        }
        let mut read = Vec::with_capacity((bytes.end - bytes.start) as usize);
        for (number, part) in parts(bytes) {
            read.extend_from_slice(&self.pages[&number].bytes[part]);
        }
        Some(read)
    }
}

impl Drop for PartialPages {
    fn drop(&mut self) {
        self.memory.removed(self.pages.len());
    }
}

/// How many pages are kept, of all files. The oldest go first.
pub(super) struct PageMemory {
    max: usize,
    kept: AtomicUsize,
    /// In the order in which they were first written, also those that are not kept any more. The lock is taken under that of a
    /// stripe, and takes no other one.
    order: Mutex<VecDeque<(Ino, u64)>>,
    /// The length of that.
    noted: AtomicUsize,
}

impl PageMemory {
    /// For so many bytes.
    pub(super) fn new(bytes: usize) -> PageMemory {
        let (kept, order, noted) = Default::default();
        PageMemory { max: bytes / PAGE as usize, kept, order, noted }
    }

    fn added(&self, ino: Ino, number: u64) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        let mut order = self.order.lock();
        order.push_back((ino, number));
        self.noted.store(order.len(), Ordering::Relaxed);
    }

    fn removed(&self, pages: usize) {
        let before = self.kept.fetch_sub(pages, Ordering::Relaxed);
        assert!(before >= pages, "more pages are dropped than were kept");
    }

    fn is_over(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > self.max
            || self.noted.load(Ordering::Relaxed) > 2 * self.max
    }

    /// Has pages be dropped until they take no more memory than they may: `drop_page` looks for one of a file. The caller holds the lock of
    /// no stripe.
    pub(super) fn trim(&self, mut drop_page: impl FnMut(Ino, u64)) {
        while self.is_over() {
            let oldest = {
                let mut order = self.order.lock();
                let oldest = order.pop_front();
                self.noted.store(order.len(), Ordering::Relaxed);
                oldest
            };
            let Some((ino, number)) = oldest else { return };
            drop_page(ino, number);
        }
    }

    /// Pages that are kept.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

/// What a read finds.
pub(super) enum PageRead {
    Found(Bytes),
    /// The server has to note the time of a read, and is asked for the bytes.
    Due,
    Missing,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Truncate(u64),
        Read(Range<u64>),
        /// Under another grant.
        Regrant,
    }

    const END: u64 = 6 * PAGE;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let at = || prop_oneof![0..END, (0..6_u64).prop_map(|page| page * PAGE)];
        let data = (1..=255_u8, prop_oneof![1..300_usize, 4000..9000_usize, Just(4096)]);
        let write = (at(), data).prop_map(|(at, (byte, len))| {
            // Other bytes at each place.
            Step::Write(at, (0..len).map(|it| byte.wrapping_add(it as u8)).collect())
        });
        let read = (at(), 1..5000_u64).prop_map(|(at, len)| Step::Read(at..at + len));
        let step = prop_oneof![
            6 => write,
            1 => at().prop_map(Step::Truncate),
            6 => read,
            1 => Just(Step::Regrant)
        ];
        proptest::collection::vec(step, 1..40)
    }

    proptest! {
        /// What is read is what a plain file has, and pages that are read were written in parts; few are kept.
        #[test]
        fn pages_have_what_was_written(steps in steps(), max in 1..8_usize) {
            let memory = Arc::new(PageMemory::new(max * PAGE as usize));
            let (mut pages, ino) = (None, Ino(7));
            let (mut file, mut grant) = (Vec::new(), GrantNumber::MIN);
            for step in steps {
                match step {
                    Step::Write(offset, data) => {
                        let end = offset as usize + data.len();
                        file.resize(file.len().max(end), 0);
                        file[offset as usize..end].copy_from_slice(&data);
                        PartialPages::keep(&mut pages, (grant, &memory), (ino, offset), &data);
                        memory.trim(|_, number| pages.iter_mut().for_each(|it| it.remove(number)));
                        prop_assert!(memory.kept() <= max, "{}", memory.kept());
                    }
                    Step::Truncate(size) => {
                        file.truncate(size as usize);
                        pages.iter_mut().for_each(|it| it.truncate(size));
                    }
                    Step::Read(bytes) => {
                        let read = pages.as_ref().and_then(|it| it.read(bytes.clone()));
                        if let Some(read) = read {
                            let wanted = file.get(bytes.start as usize..bytes.end as usize);
                            prop_assert_eq!(Some(&read[..]), wanted);
                        }
                    }
                    Step::Regrant => grant = grant.checked_add(1).expect("few steps"),
                }
            }
            drop(pages);
            prop_assert_eq!(memory.kept(), 0);
        }
    }

    #[test]
    fn a_file_that_was_written_in_pieces_is_here_as_a_whole() {
        let memory = Arc::new(PageMemory::new(1 << 20));
        for (piece, pages) in [(100, 25), (1000, 25), (4000, 25), (4096, 1), (65_000, 2)] {
            let mut kept = None;
            let data: Vec<u8> = (0..100_000_usize).map(|at| (at / 7) as u8).collect();
            for (at, part) in data.chunks(piece).enumerate() {
                let offset = (at * piece) as u64;
                PartialPages::keep(&mut kept, (GrantNumber::MIN, &memory), (Ino(7), offset), part);
            }
            assert_eq!(memory.kept(), pages, "{piece}");
            let read = kept.as_ref().and_then(|it| it.read(0..100_000));
            assert_eq!(read, (pages == 25).then_some(data), "{piece}");
        }
    }
}
