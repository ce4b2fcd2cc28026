//! A client of ours, as programs see it: its calls, and the page cache of its machine.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_cluster::client::Client;
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Node, OpenFlags, WriteAt, WriteHow};

use crate::arion_subject::{PAGE, PageCache, Subject, ones, pages_of};
use crate::cluster_site::new;

const WRITING: OpenFlags =
    OpenFlags { read: true, write: true, append: false, direct: false, sync: false };

/// A client, and the page cache of its machine.
pub(crate) struct OwnClient {
    client: Client,
    pages: Mutex<PageCache>,
    sizes: Mutex<BTreeMap<Ino, u64>>,
}

impl OwnClient {
    /// On a machine with so many bytes of memory.
    pub(crate) fn new(client: Client, memory: u64) -> OwnClient {
        let pages = Mutex::new(PageCache::new((memory / PAGE) as usize));
        OwnClient { client, pages, sizes: Mutex::default() }
    }
}

#[async_trait]
impl Subject for OwnClient {
    async fn make_directory(&self, name: &str) -> Result<Ino, FsError> {
        let made = self.client.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await?.ino;
        self.client.reference(made);
        Ok(made)
    }

    async fn create(&self, directory: Ino, name: &str) -> Result<Ino, FsError> {
        let made = self.client.create(directory, name.as_bytes(), &new(Node::File)).await?.ino;
        self.client.reference(made);
        Ok(made)
    }

    async fn find(&self, directory: Ino, name: &str, made: Ino) -> Result<(), FsError> {
        let found = self.client.find(directory, name.as_bytes()).await?.ino;
        self.client.reference(found);
        if found == made { Ok(()) } else { Err(FsError::NotFound) }
    }

    async fn unlink(&self, directory: Ino, name: &str, file: Ino) -> Result<(), FsError> {
        self.client.unlink(directory, name.as_bytes()).await?;
        self.client.unreference(file, 1);
        self.sizes.lock().remove(&file);
        Ok(())
    }

    async fn write(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        let data = vec![ones(len)];
        // A program opens a file to write it, by which that becomes the client's own.
        let handle = self.client.open(&Caller::default(), file, WRITING).await?.handle;
        self.client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await?;
        self.client.release(file, handle).await;
        let (size, end) = {
            let mut sizes = self.sizes.lock();
            let size = sizes.entry(file).or_default();
            let before = *size;
            *size = before.max(offset + len as u64);
            (before, offset + len as u64)
        };
        let mut cache = self.pages.lock();
        for page in pages_of(offset, len) {
            // Of a page that is there in part, the rest is not in memory. Behind the end of the file there is none.
            let has_start = offset <= page * PAGE;
            let has_end = end >= ((page + 1) * PAGE).min(size);
            if has_start && has_end || page * PAGE >= size || cache.touch(file, page) {
                cache.insert(file, page);
            }
        }
        Ok(())
    }

    async fn sync(&self, file: Ino) -> Result<(), FsError> {
        self.client.sync(file, true).await
    }

    async fn read(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        let is_there = {
            let mut cache = self.pages.lock();
            pages_of(offset, len).all(|page| cache.touch(file, page))
        };
        if !is_there {
            self.client.read(file, offset, len).await?;
            let mut cache = self.pages.lock();
            pages_of(offset, len).for_each(|page| cache.insert(file, page));
        }
        Ok(())
    }

    async fn drain(&self) -> Result<(), FsError> {
        self.client.drain().await
    }

    fn forget_pages(&self) {
        self.pages.lock().clear();
    }

    fn unsent(&self) -> u64 {
        self.client.pending().unsent.bytes
    }

    fn vulnerable(&self) -> u64 {
        let pending = self.client.pending();
        pending.unsent.bytes.saturating_sub(pending.in_journal.bytes)
    }
}
