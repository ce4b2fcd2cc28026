//! The pages that one call on a store reads and changes, within a transaction.
//!
//! Changes are gathered here and written at the end of the call, each page once: a call that fails has
//! written nothing. Every written page was read before, and counts as read in whole units; so of two
//! transactions that write into the same unit one fails, under either isolation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use rand::RngExt;
use smallvec::SmallVec;
use thalweg_env::{Env, Rng};
use zerocopy::{FromBytes, IntoBytes};

use super::area::Area;
use super::error::TreeError;
use super::format::{
    BODY, FORMAT_VERSION, IDENTITY, LABEL, PAGE_MAGIC, PageHeader, PageKind, StoreHeader, UNIT,
};
use super::page::{Page, damaged};
use super::read_view::{ReadView, SharedPages};
use super::way::Way;
use crate::block::{BLOCK_SIZE, Class};
use crate::txn::Transaction;

/// One call in so many asks the volume to keep the pages on its path in memory. The volume forgets such
/// requests after a time, so they are repeated; repeating each time would be too often.
const WISH: u32 = 32;
/// Ways that a call keeps: calls often take turns between two leaves, and go through each in the order of keys.
const WAYS: usize = 2;

/// One call on a store: the pages it has loaded and changed.
pub(super) struct Work<'a> {
    pub(super) txn: &'a dyn Transaction,
    pub(super) area: &'a Area,
    pub(super) rng: Rng,
    pages: BTreeMap<u32, Page>,
    /// The last ways through a B-tree. Their pages are there, and no inner node has changed since.
    ways: SmallVec<[Way; WAYS]>,
    /// Blocks of large values to write.
    values: BTreeMap<u32, Bytes>,
    freed: BTreeSet<u32>,
    /// Blocks allocated less blocks freed.
    pub(super) allocated: i64,
    wishes: bool,
    /// Pages of zeros are accepted although the store's header is gone.
    headless: bool,
    /// Pages that other calls of a read view have read.
    shared: Option<&'a SharedPages>,
}

impl<'a> Work<'a> {
    pub(super) fn new(txn: &'a dyn Transaction, area: &'a Area, env: &Env) -> Work<'a> {
        let mut rng = env.rng();
        let wishes = rng.random_range(0..WISH) == 0;
        Work {
            txn,
            area,
            rng,
            pages: BTreeMap::new(),
            ways: SmallVec::new(),
            values: BTreeMap::new(),
            freed: BTreeSet::new(),
            allocated: 0,
            wishes,
            headless: false,
            shared: None,
        }
    }

    /// For a call that only reads, in the transaction of a read view. Few of its calls read a page from the
    /// volume, so each that does asks for it to be kept.
    pub(super) fn of_view(view: &'a ReadView, area: &'a Area, env: &Env) -> Work<'a> {
        Work { shared: Some(view.pages()), wishes: true, ..Work::new(view.txn(), area, env) }
    }

    /// For a store that is being dropped: its header may be gone.
    pub(super) fn without_header(txn: &'a dyn Transaction, area: &'a Area, env: &Env) -> Work<'a> {
        Work { headless: true, ..Work::new(txn, area, env) }
    }

    /// Loads a page of the store. The transaction depends on its identity; the caller marks other
    /// dependencies.
    ///
    /// # Errors
    /// [`TreeError::Damaged`] when the block does not hold that kind of page.
    pub(super) async fn load(
        &mut self,
        block: u32,
        kind: PageKind,
    ) -> Result<&mut Page, TreeError> {
        if !self.pages.contains_key(&block) {
            let page = match self.shared.and_then(|shared| shared.get(block)) {
                Some(content) => self.shared_page(block, content, kind)?,
                None => self.load_from_volume(block, kind).await?,
            };
            self.pages.insert(block, page);
        }
        self.page(block)
    }

    /// A page that another call of the view has read.
    fn shared_page(&self, block: u32, content: Bytes, kind: PageKind) -> Result<Page, TreeError> {
        // Fails once the transaction was aborted: the page may be outdated then.
        self.depend(block, IDENTITY)?;
        let page = Page::read(block, content);
        self.verify(&page, kind)?;
        Ok(page)
    }

    async fn load_from_volume(&mut self, block: u32, kind: PageKind) -> Result<Page, TreeError> {
        let page = self.read(block).await?;
        let lazy = matches!(kind, PageKind::Bitmap | PageKind::Directory);
        if lazy && page.bytes().iter().all(|byte| *byte == 0) {
            // Zeros do not say which store the page belongs to.
            self.verify_store().await?;
        } else {
            self.verify(&page, kind)?;
            if let Some(shared) = self.shared {
                shared.add(block, page.slice(0..BLOCK_SIZE));
            }
        }
        self.wish(&page, kind);
        Ok(page)
    }

    async fn read(&self, block: u32) -> Result<Page, TreeError> {
        let lba = self.area.lba(block);
        let content = self.txn.read(lba).await?;
        if content.len() != BLOCK_SIZE {
            return Err(damaged(block, "it is no whole block"));
        }
        self.depend(block, IDENTITY)?;
        Ok(Page::read(block, content))
    }

    fn verify(&self, page: &Page, kind: PageKind) -> Result<(), TreeError> {
        let header = page.header();
        let whose = (header.tag.get(), header.block.get(), header.kind);
        if header.magic != PAGE_MAGIC {
            return Err(page.damaged("it is no page of a store"));
        }
        if header.version.get() > FORMAT_VERSION {
            return Err(TreeError::Newer {
                what: format!("block {} of the store", page.block),
                version: header.version.get().into(),
            });
        }
        match whose == (self.area.tag, page.block, kind.encode()) {
            true => Ok(()),
            false => Err(page.damaged("it belongs elsewhere, or to another store")),
        }
    }

    fn wish(&self, page: &Page, kind: PageKind) {
        let inner = match kind {
            PageKind::Node => page.level() > 0,
            PageKind::Bitmap | PageKind::Directory => true,
            PageKind::Header | PageKind::Bucket => false,
        };
        if self.wishes && inner {
            self.txn.please_cache(self.area.lba(page.block));
        }
    }

    /// Checks that the partition still holds the store that was opened.
    pub(super) async fn verify_store(&mut self) -> Result<(), TreeError> {
        if self.headless || self.pages.contains_key(&0) {
            return Ok(());
        }
        let page = self.read(0).await?;
        self.verify(&page, PageKind::Header)?;
        self.depend(0, BODY..BODY + size_of::<StoreHeader>())?;
        let header = StoreHeader::read_from_prefix(&page.bytes()[BODY..]);
        let (header, _) = header.map_err(|_| page.damaged("it is too short"))?;
        let same = header.uuid == *self.area.uuid.as_bytes()
            && header.blocks.get() == self.area.blocks
            && header.kind == self.area.kind.encode();
        if !same {
            return Err(page.damaged("it is the header of another store"));
        }
        self.pages.insert(0, page);
        Ok(())
    }

    /// The store's label.
    pub(super) async fn label(&mut self) -> Result<Bytes, TreeError> {
        self.verify_store().await?;
        self.depend(0, LABEL)?;
        Ok(Bytes::copy_from_slice(&self.page(0)?.bytes()[LABEL]))
    }

    /// Changes the first bytes of the label.
    pub(super) async fn set_label(&mut self, label: &[u8]) -> Result<(), TreeError> {
        self.verify_store().await?;
        self.page(0)?.put(LABEL.start, label);
        Ok(())
    }

    /// A page that was loaded before, to read.
    pub(super) fn loaded(&self, block: u32) -> Result<&Page, TreeError> {
        self.pages.get(&block).ok_or_else(|| damaged(block, "it is used twice"))
    }

    /// A page that was loaded before.
    pub(super) fn page(&mut self, block: u32) -> Result<&mut Page, TreeError> {
        self.pages.get_mut(&block).ok_or_else(|| damaged(block, "it is used twice"))
    }

    /// Forgets all pages that were only read, if there are more than `most` pages.
    pub(super) fn trim(&mut self, most: usize) {
        if self.pages.len() > most {
            self.ways.clear();
            self.pages.retain(|_, page| page.is_changed());
        }
    }

    /// Forgets a page that was only read.
    pub(super) fn unload(&mut self, block: u32) {
        self.ways.clear();
        self.pages.remove(&block);
    }

    /// All keys in the leaf of a way are at or above it, unless it is the first leaf.
    pub(super) fn low(&self, way: &Way) -> Result<Option<Bytes>, TreeError> {
        Ok(way.low(|block| self.loaded(block))?.map(Bytes::copy_from_slice))
    }

    /// All keys in the leaf of a way are below it, unless it is the last leaf.
    pub(super) fn high(&self, way: &Way) -> Result<Option<Bytes>, TreeError> {
        Ok(way.high(|block| self.loaded(block))?.map(Bytes::copy_from_slice))
    }

    /// A way that was taken not long ago and leads to the leaf of this key.
    pub(super) fn known_way(&mut self, key: &[u8]) -> Result<Option<Way>, TreeError> {
        for way in &self.ways {
            if way.covers(key, |block| self.loaded(block))? {
                return Ok(Some(way.clone()));
            }
        }
        Ok(None)
    }

    /// Keeps a way that was taken.
    pub(super) fn keep_way(&mut self, way: &Way) {
        self.ways.truncate(WAYS - 1);
        self.ways.insert(0, way.clone());
    }

    /// An inner node is about to change: ways through it may lead elsewhere.
    pub(super) fn forget_ways(&mut self) {
        self.ways.clear();
    }

    /// Marks bytes of a loaded page as read.
    pub(super) fn depend(&self, block: u32, range: Range<usize>) -> Result<(), TreeError> {
        Ok(self.txn.mark_accessed(self.area.lba(block), range)?)
    }

    /// Adds a page in a block that was just allocated.
    pub(super) async fn create(
        &mut self,
        block: u32,
        kind: PageKind,
        level: u8,
    ) -> Result<&mut Page, TreeError> {
        self.ways.clear();
        let there = self.read(block).await?;
        let header = PageHeader::new(kind, level, self.area.tag, block);
        self.pages.insert(block, Page::fresh(block, there.bytes(), &header));
        self.page(block)
    }

    /// Gives a page of zeros its header.
    pub(super) fn begin(&mut self, block: u32, kind: PageKind) -> Result<(), TreeError> {
        let header = PageHeader::new(kind, 0, self.area.tag, block);
        let page = self.page(block)?;
        if page.header().magic != PAGE_MAGIC {
            page.put(0, header.as_bytes());
        }
        Ok(())
    }

    /// Writes a block of a large value.
    pub(super) fn put_value(&mut self, block: u32, content: Bytes) {
        self.values.insert(block, content);
    }

    /// A block of a large value that this call has written.
    pub(super) fn own_value(&self, block: u32) -> Option<&Bytes> {
        self.values.get(&block)
    }

    /// Whether this call has freed the block.
    pub(super) fn has_freed(&self, block: u32) -> bool {
        self.freed.contains(&block)
    }

    /// Forgets a block whose bit was cleared.
    pub(super) fn forget(&mut self, block: u32) -> Result<(), TreeError> {
        self.ways.clear();
        if self.pages.remove(&block).is_some() {
            self.depend(block, 0..BLOCK_SIZE)?;
        }
        self.values.remove(&block);
        self.freed.insert(block);
        Ok(())
    }

    /// Hands all changes to the transaction, and forgets all pages.
    pub(super) fn finish(&mut self) -> Result<(), TreeError> {
        self.ways.clear();
        for block in std::mem::take(&mut self.freed) {
            self.txn.discard(self.area.lba(block))?;
        }
        for (block, page) in std::mem::take(&mut self.pages) {
            let Some((changed, content)) = page.into_changed() else { continue };
            let lba = self.area.lba(block);
            for range in changed.iter() {
                let units = range.start / UNIT * UNIT..range.end.next_multiple_of(UNIT);
                self.txn.mark_accessed(lba, units)?;
            }
            self.txn.write_as(lba, content, Class::Metadata)?;
            for range in changed.iter() {
                self.txn.mark_accessed(lba, range)?;
            }
        }
        for (block, content) in std::mem::take(&mut self.values) {
            self.txn.write_as(self.area.lba(block), content, Class::Metadata)?;
        }
        Ok(())
    }
}
