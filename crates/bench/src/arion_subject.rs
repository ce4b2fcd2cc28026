//! What the benchmarks of a client's journal compare, as programs see it, and pages in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::{FsError, Ino};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// The pages with these bytes.
pub(crate) fn pages_of(offset: u64, len: usize) -> Range<u64> {
    offset / PAGE..(offset + len as u64).div_ceil(PAGE)
}

/// So many bytes of a file's contents; clients that keep them share the memory.
pub(crate) fn ones(len: usize) -> Bytes {
    static ONES: [u8; 1 << 20] = [1; 1 << 20];
    ONES.get(..len).map_or_else(|| Bytes::from(vec![1; len]), Bytes::from_static)
}

/// Which pages are in memory; the one that was used least recently goes first.
pub(crate) struct PageCache {
    most: usize,
    used: BTreeMap<(Ino, u64), u64>,
    by_use: BTreeMap<u64, (Ino, u64)>,
    now: u64,
}

impl PageCache {
    pub(crate) fn new(most: usize) -> PageCache {
        PageCache { most, used: BTreeMap::new(), by_use: BTreeMap::new(), now: 0 }
    }

    /// Whether a page is there; it is used.
    pub(crate) fn touch(&mut self, ino: Ino, page: u64) -> bool {
        let is_there = self.used.contains_key(&(ino, page));
        if is_there {
            self.insert(ino, page);
        }
        is_there
    }

    pub(crate) fn insert(&mut self, ino: Ino, page: u64) {
        self.now += 1;
        if let Some(before) = self.used.insert((ino, page), self.now) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.now, (ino, page));
        if self.used.len() > self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used.remove(&oldest);
        }
    }

    /// Nothing of a file is there any more.
    pub(crate) fn forget(&mut self, ino: Ino) {
        let pages = (ino, 0)..=(ino, u64::MAX);
        let used: Vec<_> = self.used.range(pages).map(|(at, used)| (*at, *used)).collect();
        for (at, used) in used {
            self.used.remove(&at);
            self.by_use.remove(&used);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.used.clear();
        self.by_use.clear();
    }
}

/// A filesystem, as programs see it.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    async fn make_directory(&self, name: &str) -> Result<Ino, FsError>;
    async fn create(&self, directory: Ino, name: &str) -> Result<Ino, FsError>;
    /// Looks for what another client has made there.
    async fn find(&self, directory: Ino, name: &str, made: Ino) -> Result<(), FsError>;
    async fn unlink(&self, directory: Ino, name: &str, file: Ino) -> Result<(), FsError>;
    async fn write(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError>;
    async fn sync(&self, file: Ino) -> Result<(), FsError>;
    async fn read(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError>;
    /// Has everything be durable at the servers.
    async fn drain(&self) -> Result<(), FsError>;
    /// Forgets clean pages.
    fn forget_pages(&self);
    /// Bytes that the servers do not have.
    fn unsent(&self) -> u64;
    /// Bytes that are in the client's volatile memory alone.
    fn vulnerable(&self) -> u64;
}

/// A directory that is the client's alone.
pub(crate) async fn own_directory(subject: &dyn Subject, name: &str) -> Result<Ino, FsError> {
    let directory = subject.make_directory(name).await?;
    // The directory is the client's with the second name.
    for name in ["a", "b"] {
        subject.create(directory, name).await?;
    }
    Ok(directory)
}
