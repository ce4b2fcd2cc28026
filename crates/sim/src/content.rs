//! The content of a simulated medium: sparse, and cheap to clone.
//!
//! Pages are shared between clones until one of them is written. A page that repeats its first
//! [`PATTERN`] bytes is kept as those bytes alone, so that a load which writes such pages fits tens
//! of gigabytes into RAM.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::HashMap;
use thalweg_store::device::AlignedBuf;

/// Bytes in a page, the unit of allocation.
pub const PAGE: usize = 4096;
/// Length in bytes of a pattern that is kept in place of the page which repeats it.
pub const PATTERN: usize = 16;

/// Pages that are shared between clones, and copied on write, together.
const CHUNK_PAGES: u64 = 64;

#[derive(Clone, Debug, Default)]
enum Page {
    /// Never written, or discarded: reads as zeros.
    #[default]
    Absent,
    Pattern([u8; PATTERN]),
    Bytes(Arc<[u8]>),
}

impl Page {
    fn of(bytes: &[u8]) -> Page {
        // A sequence that equals itself shifted by the pattern's length has that period.
        match bytes.first_chunk::<PATTERN>() {
            Some(pattern) if bytes[PATTERN..] == bytes[..PAGE - PATTERN] => Page::Pattern(*pattern),
            _ => Page::Bytes(Arc::from(bytes)),
        }
    }

    fn read(&self, first: usize, into: &mut [u8]) {
        match self {
            Page::Absent => into.fill(0),
            Page::Pattern(pattern) => repeat(pattern, first, into),
            Page::Bytes(bytes) => into.copy_from_slice(&bytes[first..first + into.len()]),
        }
    }

    fn write(&mut self, first: usize, from: &[u8]) {
        if from.len() == PAGE {
            *self = Page::of(from);
            return;
        }
        if let Page::Bytes(bytes) = self {
            Arc::make_mut(bytes)[first..first + from.len()].copy_from_slice(from);
            return;
        }
        let mut bytes = [0; PAGE];
        self.read(0, &mut bytes);
        bytes[first..first + from.len()].copy_from_slice(from);
        *self = Page::of(&bytes);
    }
}

/// Fills `into` with the pattern, of which byte `first` comes first, by doubling: with a loop over patterns, crash
/// campaigns spent a third of their time here.
fn repeat(pattern: &[u8; PATTERN], first: usize, into: &mut [u8]) {
    let mut turned = *pattern;
    turned.rotate_left(first % PATTERN);
    let mut filled = into.len().min(PATTERN);
    into[..filled].copy_from_slice(&turned[..filled]);
    while filled < into.len() {
        let more = filled.min(into.len() - filled);
        into.copy_within(..more, filled);
        filled += more;
    }
}

type Chunk = [Page; CHUNK_PAGES as usize];

/// The content of a medium. Bytes never written read as zeros.
#[derive(Clone, Default)]
pub struct Content {
    chunks: HashMap<u64, Arc<Chunk>>,
}

/// A part of a request that lies in one page: the page, the first byte in it, and the length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let first = at % PAGE as u64;
        let take = (PAGE as u64 - first).min(end - at);
        let piece = (at / PAGE as u64, first as usize, take as usize);
        at += take;
        Some(piece)
    })
}

impl Content {
    /// Content of zeros.
    pub fn new() -> Content {
        Content::default()
    }

    fn page(&self, page: u64) -> Option<&Page> {
        let chunk = self.chunks.get(&(page / CHUNK_PAGES))?;
        Some(&chunk[(page % CHUNK_PAGES) as usize])
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        let chunk = self
            .chunks
            .entry(page / CHUNK_PAGES)
            .or_insert_with(|| Arc::new(std::array::from_fn(|_| Page::Absent)));
        &mut Arc::make_mut(chunk)[(page % CHUNK_PAGES) as usize]
    }

    /// Fills `into` with the bytes at `offset`.
    pub fn read_into(&self, offset: u64, into: &mut [u8]) {
        let mut filled = 0;
        for (page, first, take) in pieces(offset, into.len() as u64) {
            let target = &mut into[filled..filled + take];
            match self.page(page) {
                Some(page) => page.read(first, target),
                None => target.fill(0),
            }
            filled += take;
        }
    }

    /// `len` bytes at `offset`, in an aligned buffer.
    pub fn read(&self, offset: u64, len: usize) -> Bytes {
        let mut buffer = AlignedBuf::zeroed(len);
        self.read_into(offset, &mut buffer);
        buffer.freeze()
    }

    /// Overwrites the bytes at `offset` with `data`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut taken = 0;
        for (page, first, take) in pieces(offset, data.len() as u64) {
            self.page_mut(page).write(first, &data[taken..taken + take]);
            taken += take;
        }
    }

    /// Overwrites the bytes at `offset` with `data`, buffer after buffer.
    pub fn write_all(&mut self, offset: u64, data: &[Bytes]) {
        let mut at = offset;
        for buffer in data {
            self.write(at, buffer);
            at += buffer.len() as u64;
        }
    }

    /// Overwrites `len` bytes at `offset` with `pattern`, repeated from `offset` on.
    pub fn fill(&mut self, offset: u64, len: u64, pattern: [u8; PATTERN]) {
        let mut filler = [0; PAGE];
        for (page, first, take) in pieces(offset, len) {
            let done = page * PAGE as u64 + first as u64 - offset;
            repeat(&pattern, (done % PATTERN as u64) as usize, &mut filler[..take]);
            self.page_mut(page).write(first, &filler[..take]);
        }
    }

    /// Frees the whole pages of `len` bytes at `offset`: they read as zeros. The rest is kept.
    pub fn discard(&mut self, offset: u64, len: u64) {
        for (page, _, take) in pieces(offset, len) {
            if take == PAGE {
                self.free(page);
            }
        }
    }

    /// Makes `len` bytes at `offset` read as zeros, and frees the whole pages among them.
    pub fn zero(&mut self, offset: u64, len: u64) {
        for (page, first, take) in pieces(offset, len) {
            if take == PAGE {
                self.free(page);
            } else if self.is_stored(page) {
                self.page_mut(page).write(first, &[0; PAGE][..take]);
            }
        }
    }

    fn free(&mut self, page: u64) {
        if self.is_stored(page) {
            *self.page_mut(page) = Page::Absent;
        }
    }

    /// Whether the page numbered `page` was written, and not discarded since.
    pub fn is_stored(&self, page: u64) -> bool {
        !matches!(self.page(page), None | Some(Page::Absent))
    }

    /// The number of pages stored as (patterns, whole pages).
    pub fn stored_pages(&self) -> (u64, u64) {
        let pages = self.chunks.values().flat_map(|chunk| chunk.iter());
        pages.fold((0, 0), |(patterns, whole), page| match page {
            Page::Absent => (patterns, whole),
            Page::Pattern(_) => (patterns + 1, whole),
            Page::Bytes(_) => (patterns, whole + 1),
        })
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (patterns, whole) = self.stored_pages();
        write!(f, "Content({patterns} patterned and {whole} whole pages)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    #[test]
    fn random_writes_read_back_as_from_a_plain_buffer() {
        const SIZE: usize = 40 * PAGE;
        let mut rng = Rng::seed_from_u64(3);
        let mut plain = vec![0u8; SIZE];
        let mut content = Content::new();
        for _ in 0..2_000 {
            let offset = rng.random_range(0..SIZE - 1);
            let len = rng.random_range(1..=(SIZE - offset).min(3 * PAGE));
            let range = offset..offset + len;
            match rng.random_range(0..4) {
                0 => plain[range.clone()].fill(rng.random()),
                1 => {
                    content.zero(offset as u64, len as u64);
                    plain[range].fill(0);
                    continue;
                }
                _ => rng.fill(&mut plain[range.clone()]),
            }
            content.write(offset as u64, &plain[range]);
            let mut read = vec![1; 2 * PAGE];
            let start = rng.random_range(0..SIZE - read.len());
            content.read_into(start as u64, &mut read);
            assert_eq!(read, plain[start..start + read.len()]);
        }
        assert_eq!(content.read(0, SIZE), plain);
    }

    #[test]
    fn repeating_pages_are_kept_as_patterns() {
        let mut content = Content::new();
        let page: Vec<u8> = (0..PAGE).map(|i| (i % PATTERN) as u8).collect();
        content.write(PAGE as u64, &page);
        assert_eq!(content.stored_pages(), (1, 0));
        assert_eq!(content.read(PAGE as u64 + 5, 100), page[5..105]);
        content.write(PAGE as u64 + 7, &[99]);
        assert_eq!(content.stored_pages(), (0, 1));
        content.discard(0, 2 * PAGE as u64);
        assert_eq!(content.stored_pages(), (0, 0));
        assert_eq!(content.read(PAGE as u64, PAGE), vec![0; PAGE]);
    }

    #[test]
    fn a_clone_keeps_its_content() {
        let mut content = Content::new();
        content.write(0, &[1; 100]);
        let clone = content.clone();
        content.write(50, &[2; 100]);
        assert_eq!(clone.read(0, 150), [[1; 50].as_slice(), &[1; 50], &[0; 50]].concat());
        assert_eq!(content.read(0, 150), [[1; 50].as_slice(), &[2; 100]].concat());
    }
}
