//! A model of a client of Ceph without a journal of its own, as the thesis measures it (8.1, table 7.1), on simulated object servers.
//!
//! It has
//! - a page cache. Writes make pages of 4 KiB dirty; one of a part of a page that is stored and not in memory reads the page first;
//! - write-back of the pages of each file, as often as `writeback` and when the file has been dirty for `expire`; in the background when 10 % of
//!   memory is dirty, and writers wait at 20 %. Adjacent pages are one write, 64 writes are under way;
//! - `fsync`, which writes the pages of the file and waits for the object servers, and at the same time for the journal of the metadata server, if
//!   that has not made the file's creation durable. It does not wait for the record of the file's size, which a metadata server can recover;
//! - names by calls: a round trip and the metadata server's processor, which is as fast as that of our server. The answer comes before its
//!   journal is durable. That is an object; one write of it is under way, and takes what came meanwhile;
//! - opens, attributes and cached names without calls, under capabilities. One client at a time keeps pages of a file: one that opens a file of
//!   another client's to write it waits until that has written its pages, and dropped them ([`CephMetadata`]).
//!
//! It has no congestion, no recalls of names, no files that several clients have open, no copies of directories that the metadata server writes later, no journals that this one
//! trims, and no logs or scrubs of object servers: all of that would make it slower.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use thalweg_env::{Env, Time, watch};
use thalweg_fs::{FsError, Ino};
use thalweg_rados::ObjectStoreRef;
use thalweg_rados::object::{Change, Step};
use thalweg_sim::rados::SimRados;
use tokio::sync::Notify;

use crate::arion_subject::{PAGE, PageCache, Subject, ones, pages_of};
use crate::ceph_metadata::{CephMetadata, FileState, OBJECT, PageHolder};

/// Writes that are under way.
const AT_ONCE: usize = 64;
/// Pages that write-back in the background takes from one file, one after the other.
const SHARE: usize = 1024;

/// The settings of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CephSpec {
    /// How often it looks for old pages.
    pub(crate) writeback: Duration,
    /// How old they become.
    pub(crate) expire: Duration,
    /// Each write goes to the object servers, and waits for them.
    pub(crate) is_synchronous: bool,
    /// Bytes of memory.
    pub(crate) memory: u64,
}

#[derive(Default)]
struct CephFile {
    size: u64,
    /// The end of what the object servers have.
    stored: u64,
    dirty: BTreeSet<u64>,
    /// Since when pages are dirty.
    since: Option<Time>,
    /// Pages under way.
    writing: usize,
    /// The event that made it.
    made: u64,
}

struct CephState {
    files: BTreeMap<Ino, CephFile>,
    cache: PageCache,
    /// Pages that are dirty or under way.
    dirty: usize,
}

/// A client.
pub(crate) struct CephModel {
    env: Env,
    spec: CephSpec,
    this: Weak<dyn PageHolder>,
    store: ObjectStoreRef,
    state: Mutex<CephState>,
    /// Write-back is to begin.
    pressed: Notify,
    /// Counts writes that have ended.
    written: watch::Sender<u64>,
    metadata: Arc<CephMetadata>,
}

impl CephModel {
    /// A client of this metadata server; its tasks run until the simulation ends.
    pub(crate) fn join(
        env: &Env,
        rados: &SimRados,
        metadata: &Arc<CephMetadata>,
        spec: CephSpec,
    ) -> Arc<CephModel> {
        let pages = (spec.memory / PAGE) as usize;
        let cache = PageCache::new(pages);
        let state = CephState { files: BTreeMap::new(), cache, dirty: 0 };
        let model = Arc::new_cyclic(|this: &Weak<CephModel>| CephModel {
            env: env.clone(),
            spec,
            this: this.clone(),
            store: rados.client().store(),
            state: Mutex::new(state),
            pressed: Notify::new(),
            written: watch::channel(0).0,
            metadata: metadata.clone(),
        });
        let own = model.clone();
        env.spawn(async move { own.write_back().await }).detach();
        model
    }

    /// Has the right to keep pages of a file.
    async fn acquire(&self, file: Ino) -> Result<(), FsError> {
        if self.state.lock().files.contains_key(&file) {
            return Ok(());
        }
        let FileState { size, stored, made } = self.metadata.open(file, &self.this).await?;
        let held = CephFile { size, stored, made, ..CephFile::default() };
        self.state.lock().files.entry(file).or_insert(held);
        Ok(())
    }

    /// Writes the dirty pages of a file, and waits for those that are under way.
    async fn store_file(&self, file: Ino) -> Result<(), FsError> {
        self.store_all(self.take(file, usize::MAX)).await?;
        // Write-back may have taken some before.
        self.until(|state| state.files.get(&file).is_none_or(|file| file.writing == 0)).await;
        Ok(())
    }

    /// Pages of this part of memory.
    fn share(&self, part: u64) -> usize {
        (self.spec.memory / part / PAGE) as usize
    }

    fn is_pressed(&self) -> bool {
        self.state.lock().dirty > self.share(10)
    }

    /// Writes old pages, and the oldest while too many are dirty.
    async fn write_back(&self) {
        loop {
            let _ = self.env.timeout(self.spec.writeback, self.pressed.notified()).await;
            let now = self.env.now();
            let is_old = |file: &CephFile| {
                file.since.is_some_and(|since| now.since(since) >= self.spec.expire)
            };
            let old: Vec<Ino> = {
                let state = self.state.lock();
                state.files.iter().filter(|(_, file)| is_old(file)).map(|(ino, _)| *ino).collect()
            };
            let writes = old.into_iter().flat_map(|ino| self.take(ino, usize::MAX)).collect();
            // The object servers of a simulation do not fail.
            self.store_all(writes).await.unwrap_or_default();
            while self.is_pressed() {
                let mut writes = Vec::new();
                {
                    let state = self.state.lock();
                    let dirty = state.files.iter().filter_map(|(ino, it)| Some((it.since?, *ino)));
                    let mut oldest: Vec<(Time, Ino)> = dirty.collect();
                    drop(state);
                    oldest.sort_unstable();
                    for (_, ino) in oldest {
                        if writes.len() >= 4 * AT_ONCE {
                            break;
                        }
                        writes.extend(self.take(ino, SHARE));
                    }
                }
                // The rest is under way for others.
                if writes.is_empty() {
                    break;
                }
                self.store_all(writes).await.unwrap_or_default();
            }
        }
    }

    /// Takes dirty pages of a file: ranges of adjacent ones.
    fn take(&self, ino: Ino, most: usize) -> Vec<(Ino, Range<u64>)> {
        let state = &mut *self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return Vec::new() };
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for _ in 0..most.min(file.dirty.len()) {
            let Some(page) = file.dirty.pop_first() else { break };
            file.writing += 1;
            push(&mut ranges, page);
        }
        if file.dirty.is_empty() {
            file.since = None;
        }
        ranges.into_iter().map(|range| (ino, range)).collect()
    }

    /// Writes pages to the object servers.
    async fn store_all(&self, writes: Vec<(Ino, Range<u64>)>) -> Result<(), FsError> {
        let mut files: Vec<Ino> = writes.iter().map(|(ino, _)| *ino).collect();
        files.dedup();
        let writing = writes.into_iter().map(|(ino, pages)| self.store_pages(ino, pages));
        stream::iter(writing).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        // The metadata server hears of their sizes.
        for _ in files {
            self.metadata.event();
        }
        Ok(())
    }

    async fn store_pages(&self, ino: Ino, pages: Range<u64>) -> Result<(), FsError> {
        let size = self.state.lock().files.get(&ino).map(|file| file.size);
        let (start, end) = (pages.start * PAGE, pages.end * PAGE);
        let end = size.map_or(start, |size| end.min(size)).max(start);
        // A file that was removed meanwhile is not written.
        if end > start {
            self.store_bytes(ino, start..end).await?;
        }
        let mut state = self.state.lock();
        let count = (pages.end - pages.start) as usize;
        state.dirty -= count;
        if let Some(file) = state.files.get_mut(&ino) {
            file.writing -= count;
            file.stored = file.stored.max(end);
        }
        drop(state);
        self.written.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Writes bytes of one object or two.
    async fn store_bytes(&self, ino: Ino, bytes: Range<u64>) -> Result<(), FsError> {
        let mut start = bytes.start;
        while start < bytes.end {
            let end = bytes.end.min((start / OBJECT + 1) * OBJECT);
            let data = vec![ones((end - start) as usize)];
            let change = Change::new().then(Step::Write { offset: start % OBJECT, data });
            self.store.apply(&object(ino, start), change).await?;
            start = end;
        }
        Ok(())
    }

    /// Reads the pages that are not in memory, of those that are stored.
    async fn fetch(&self, ino: Ino, pages: Range<u64>) -> Result<(), FsError> {
        let missing: Vec<u64> = {
            let state = &mut *self.state.lock();
            let stored = state.files.get(&ino).map_or(0, |file| file.stored);
            pages.filter(|page| page * PAGE < stored && !state.cache.touch(ino, *page)).collect()
        };
        let mut runs: Vec<Range<u64>> = Vec::new();
        missing.into_iter().for_each(|page| push(&mut runs, page));
        for run in runs {
            let (start, len) = (run.start * PAGE, (run.end - run.start) * PAGE);
            self.store.read(&object(ino, start), start % OBJECT, len as usize).await?;
            let mut state = self.state.lock();
            run.for_each(|page| state.cache.insert(ino, page));
        }
        Ok(())
    }

    async fn until(&self, is_done: impl Fn(&CephState) -> bool) {
        let mut written = self.written.subscribe();
        loop {
            let _ = written.borrow_and_update();
            if is_done(&self.state.lock()) {
                return;
            }
            self.pressed.notify_one();
            let _ = written.changed().await;
        }
    }
}

/// Adds a page to the last range, if it follows it in the same object.
fn push(ranges: &mut Vec<Range<u64>>, page: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == page && !(page * PAGE).is_multiple_of(OBJECT) => last.end += 1,
        _ => ranges.push(page..page + 1),
    }
}

fn object(ino: Ino, offset: u64) -> String {
    format!("ceph.{:x}.{:08x}", ino.0, offset / OBJECT)
}

#[async_trait]
impl PageHolder for CephModel {
    async fn release(&self, file: Ino) -> Result<FileState, FsError> {
        self.store_file(file).await?;
        let state = &mut *self.state.lock();
        state.cache.forget(file);
        let CephFile { size, stored, made, .. } =
            state.files.remove(&file).ok_or(FsError::NotFound)?;
        Ok(FileState { size, stored, made })
    }
}

#[async_trait]
impl Subject for CephModel {
    async fn make_directory(&self, _: &str) -> Result<Ino, FsError> {
        self.metadata.call(true).await;
        Ok(self.metadata.new_ino())
    }

    async fn find(&self, _: Ino, _: &str, _: Ino) -> Result<(), FsError> {
        self.metadata.call(false).await;
        Ok(())
    }

    async fn create(&self, _: Ino, _: &str) -> Result<Ino, FsError> {
        let made = self.metadata.call(true).await;
        let ino = self.metadata.new_ino();
        self.state.lock().files.insert(ino, CephFile { made, ..CephFile::default() });
        self.metadata.hold(ino, &self.this).await;
        Ok(ino)
    }

    async fn unlink(&self, _: Ino, _: &str, file: Ino) -> Result<(), FsError> {
        self.metadata.call(true).await;
        let removed = {
            let state = &mut *self.state.lock();
            let removed = state.files.remove(&file);
            state.dirty -= removed.as_ref().map_or(0, |removed| removed.dirty.len());
            removed
        };
        let stored = removed.map_or(0, |removed| removed.stored);
        let store = self.metadata.store();
        let purge = async move {
            for offset in (0..stored).step_by(OBJECT as usize) {
                drop(store.apply(&object(file, offset), Change::new().then(Step::Remove)).await);
            }
        };
        self.env.spawn(purge).detach();
        Ok(())
    }

    async fn write(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        let end = offset + len as u64;
        let pages = pages_of(offset, len);
        self.acquire(file).await?;
        if self.spec.is_synchronous {
            self.store_bytes(file, offset..end).await?;
            let state = &mut *self.state.lock();
            if let Some(found) = state.files.get_mut(&file) {
                (found.size, found.stored) = (found.size.max(end), found.stored.max(end));
            }
            pages.for_each(|page| state.cache.insert(file, page));
            return Ok(());
        }
        for (page, is_partial) in [
            (pages.start, !offset.is_multiple_of(PAGE)),
            (pages.end - 1, !end.is_multiple_of(PAGE) && pages.end - 1 > pages.start),
        ] {
            if is_partial || pages.end - pages.start == 1 && !end.is_multiple_of(PAGE) {
                self.fetch(file, page..page + 1).await?;
            }
        }
        {
            let state = &mut *self.state.lock();
            let found = state.files.get_mut(&file).ok_or(FsError::NotFound)?;
            found.size = found.size.max(end);
            found.since.get_or_insert(self.env.now());
            for page in pages {
                state.dirty += usize::from(found.dirty.insert(page));
                state.cache.insert(file, page);
            }
        }
        if self.is_pressed() {
            self.pressed.notify_one();
        }
        let most = self.share(5);
        self.until(|state| state.dirty <= most).await;
        Ok(())
    }

    async fn sync(&self, file: Ino) -> Result<(), FsError> {
        let made = self.state.lock().files.get(&file).map_or(0, |file| file.made);
        futures::future::join(self.store_file(file), self.metadata.is_recorded(made)).await.0
    }

    async fn read(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        // Files are read by the client that has written them.
        if !self.state.lock().files.contains_key(&file) {
            return Err(FsError::NotFound);
        }
        self.fetch(file, pages_of(offset, len)).await
    }

    async fn drain(&self) -> Result<(), FsError> {
        let files: Vec<Ino> = self.state.lock().files.keys().copied().collect();
        let writes = files.into_iter().flat_map(|ino| self.take(ino, usize::MAX)).collect();
        self.store_all(writes).await?;
        self.until(|state| state.dirty == 0).await;
        self.metadata.is_recorded(self.metadata.last_event()).await;
        Ok(())
    }

    fn forget_pages(&self) {
        self.state.lock().cache.clear();
    }

    fn unsent(&self) -> u64 {
        self.vulnerable()
    }

    fn vulnerable(&self) -> u64 {
        self.state.lock().dirty as u64 * PAGE
    }
}
