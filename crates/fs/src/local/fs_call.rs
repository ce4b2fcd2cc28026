//! One call on the filesystem, within a transaction.
//!
//! The call gathers its changes here and hands them to the transaction at its end: a failed call has
//! changed nothing, so that the transaction around it may go on. A call that changes names, blocks or
//! attributes of an inode writes the inode's record too; so two concurrent calls conflict there, whatever
//! else they read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::HashMap;
use thalweg_store::block::{BLOCK_SIZE, Class};
use thalweg_store::tree::{Pair, Scan, WorkingSet};
use thalweg_store::txn::{FRAGMENT, Transaction};
use zerocopy::IntoBytes;

use super::area::BitmapPage;
use super::effects::{Earlier, Effects};
use super::extents::Run;
use super::format::{InodeRecord, Tag, decode, key, key_behind};
use super::fs_state::FsState;
use super::private_blocks;
use super::records::{kind_of, later, stored_time};
use super::reserved_blocks::{Claim, Reservation};
use crate::attributes::Kind;
use crate::error::FsError;
use crate::filesystem::MAX_FILE;
use crate::session_table::Recorder;

/// Blocks that a call discards in its own transaction; longer runs are noted and freed after it.
const DISCARDED_AT_ONCE: u64 = 32;

/// Records in the order of their keys: so each leaf of the tree is changed once.
fn in_order(records: HashMap<Vec<u8>, Option<Bytes>>) -> Vec<(Vec<u8>, Option<Bytes>)> {
    let mut records: Vec<_> = records.into_iter().collect();
    records.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    records
}

/// A block of data to write or discard.
#[derive(Debug)]
struct BlockWrite {
    block: u64,
    content: Option<Bytes>,
    changed: Range<usize>,
}

/// An inode that was read, and perhaps changed.
#[derive(Debug)]
struct Staged {
    record: Option<InodeRecord>,
    changed: bool,
    /// Its last change before this call; `None` of a new inode.
    touched: Option<u64>,
}

/// One call.
#[derive(Debug)]
pub(super) struct FsCall<'a> {
    pub(super) inner: &'a FsState,
    pub(super) txn: &'a Arc<dyn Transaction>,
    /// The time of the call, as records have it.
    pub(super) now: u64,
    /// The transaction is the caller's: no other transaction will finish work that this one begins.
    pub(super) is_within: bool,
    /// Records of inodes may be wrong.
    pub(super) is_repair: bool,
    /// What is charged is durable already, so that no quota refuses it.
    pub(super) is_stored: bool,
    /// The call adds records that were not there.
    pub(super) grows: bool,
    /// Records the call.
    pub(super) recorder: Option<&'a Recorder>,
    /// What it comes to, for its record.
    pub(super) outcome: u64,
    /// And [`JournalPosition::hash`](crate::session_table::JournalPosition::hash).
    pub(super) hash: u64,
    pub(super) effects: Effects,
    /// What earlier calls of the transaction have charged, by quota.
    pub(super) earlier: BTreeMap<u64, Earlier>,
    /// The pages of the tree that the call has read. They get its changes at the end.
    tree: WorkingSet<'a>,
    inodes: BTreeMap<u64, Staged>,
    records: HashMap<Vec<u8>, Option<Bytes>>,
    /// The lowest inode number that was never reserved, once it was read.
    pub(super) next_number: Option<u64>,
    pages: BTreeMap<u64, BitmapPage>,
    writes: Vec<BlockWrite>,
    discards: u64,
    /// The blocks that the caller's transaction has reserved.
    own: Option<&'a Reservation>,
    /// The call's allocations from these.
    pub(super) claim: Claim<'a>,
    /// Runs that nothing refers to any more.
    released: Vec<Run>,
    /// Blocks of lists to be written, or discarded.
    pub(super) lists: Vec<(u64, Option<Bytes>, Range<usize>)>,
}

impl<'a> FsCall<'a> {
    pub(super) fn new(
        inner: &'a FsState,
        txn: &'a Arc<dyn Transaction>,
        is_within: bool,
    ) -> FsCall<'a> {
        FsCall {
            inner,
            txn,
            now: stored_time(inner.env.wall_nanos()),
            is_within,
            is_repair: false,
            is_stored: false,
            grows: false,
            recorder: None,
            outcome: 0,
            hash: 0,
            effects: Effects::default(),
            earlier: BTreeMap::new(),
            tree: inner.tree.working_set(&**txn),
            inodes: BTreeMap::new(),
            records: HashMap::default(),
            next_number: None,
            pages: BTreeMap::new(),
            writes: Vec::new(),
            discards: 0,
            own: None,
            claim: Claim::default(),
            released: Vec::new(),
            lists: Vec::new(),
        }
    }

    /// The call in a caller's transaction, which has blocks to itself where that is possible.
    pub(super) fn with(self, own: &'a Reservation) -> FsCall<'a> {
        let may_own = self.txn.aside().is_some() && self.inner.table.get().is_some();
        if may_own { FsCall { own: Some(own), claim: own.claim(), ..self } } else { self }
    }

    /// The blocks that the caller's transaction has reserved.
    pub(super) fn own(&self) -> Option<&'a Reservation> {
        self.own
    }

    /// Takes blocks for a file that has `has`, from `goal` on if they are free.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: there are not as many.
    pub(super) async fn allocate(
        &mut self,
        ino: u64,
        goal: u64,
        blocks: u64,
        has: u64,
    ) -> Result<Vec<Run>, FsError> {
        match self.own {
            Some(own) => own.take((self.inner, self.txn), goal, blocks, &mut self.claim).await,
            None => self.allocate_blocks(ino, goal, blocks, has).await,
        }
    }

    /// The value of a record.
    pub(super) async fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, FsError> {
        match self.records.get(key) {
            Some(staged) => Ok(staged.clone()),
            None => Ok(self.tree.get(key).await?),
        }
    }

    /// The stored record with the greatest key at or below `key`, without the changes of this call. The call
    /// depends on that record alone.
    pub(super) async fn floor(&mut self, key: &[u8]) -> Result<Option<Pair>, FsError> {
        Ok(self.tree.floor(key).await?)
    }

    /// Scans stored records in a range of keys, without the changes of this call.
    pub(super) fn scan(&self, range: Range<Vec<u8>>) -> Result<Scan, FsError> {
        Ok(self.tree.range(range)?)
    }

    /// The next record of a scan.
    pub(super) async fn next(&mut self, scan: &mut Scan) -> Result<Option<Pair>, FsError> {
        Ok(self.tree.next(scan).await?)
    }

    /// Gives a record a value.
    pub(super) fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.records.insert(key, Some(value.into()));
    }

    /// Takes a record out.
    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.records.insert(key, None);
    }

    /// At most `most` stored records in a range of keys, without the changes of this call.
    pub(super) async fn range(
        &mut self,
        range: Range<Vec<u8>>,
        most: usize,
    ) -> Result<Vec<Pair>, FsError> {
        let mut found = Vec::new();
        let mut scan = self.scan(range)?;
        while found.len() < most
            && let Some(pair) = self.next(&mut scan).await?
        {
            found.push(pair);
        }
        Ok(found)
    }

    /// Whether an inode has records of a kind, without the changes of this call.
    pub(super) async fn has_records(&mut self, ino: u64, tag: Tag) -> Result<bool, FsError> {
        Ok(!self.range(key(ino, tag, &[])..key_behind(ino, tag), 1).await?.is_empty())
    }

    /// An inode, if there is one.
    pub(super) async fn find_inode(&mut self, ino: u64) -> Result<Option<InodeRecord>, FsError> {
        if let Some(staged) = self.inodes.get(&ino) {
            return Ok(staged.record);
        }
        if ino == 0 {
            return Ok(None);
        }
        let value = self.tree.get(&key(ino, Tag::Inode, &[])).await?;
        let what = || format!("inode {ino} has a record of another size");
        let record = value.map(|value| decode(&value, what)).transpose()?;
        let touched = record.map(|record: InodeRecord| record.changed.get());
        self.inodes.insert(ino, Staged { record, changed: false, touched });
        Ok(record)
    }

    /// An inode.
    ///
    /// # Errors
    /// [`FsError::Stale`]
    pub(super) async fn inode(&mut self, ino: u64) -> Result<InodeRecord, FsError> {
        let record = self.find_inode(ino).await?.ok_or(FsError::Stale)?;
        // An inode without names and references is gone, even if records of it are left.
        let is_gone = record.links.get() == 0 && !self.inner.is_referenced(ino);
        if is_gone && !self.is_repair { Err(FsError::Stale) } else { Ok(record) }
    }

    /// An inode that a name leads to.
    ///
    /// # Errors
    /// [`FsError::Damaged`] when it is not there.
    pub(super) async fn named_inode(&mut self, ino: u64) -> Result<InodeRecord, FsError> {
        let found = self.find_inode(ino).await?;
        found.ok_or_else(|| FsError::Damaged(format!("a name leads to inode {ino}, which is gone")))
    }

    /// A directory.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::NotDirectory`].
    pub(super) async fn directory(&mut self, ino: u64) -> Result<InodeRecord, FsError> {
        let record = self.inode(ino).await?;
        match kind_of(ino, &record)? {
            Kind::Directory => Ok(record),
            _ => Err(FsError::NotDirectory),
        }
    }

    /// A file.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::IsDirectory`], [`FsError::Invalid`].
    pub(super) async fn file(&mut self, ino: u64) -> Result<InodeRecord, FsError> {
        let record = self.inode(ino).await?;
        match kind_of(ino, &record)? {
            Kind::File if record.size > MAX_FILE => {
                Err(FsError::Damaged(format!("inode {ino} has a size that cannot be")))
            }
            Kind::File => Ok(record),
            Kind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("it is no file")),
        }
    }

    /// Notes a change of an inode. Its time is later than that of the last call that changed it, also while the clock stands
    /// still or was set back.
    pub(super) fn touch(&self, ino: u64, record: &mut InodeRecord) {
        let before = self.inodes.get(&ino).and_then(|staged| staged.touched);
        let now = self.inner.behind_uses(self.now);
        record.changed = before.map_or(now, |before| later(now, before)).into();
    }

    /// Later changes of an inode in this call are changes of their own: each has a later time.
    pub(super) fn end_change(&mut self, ino: u64) {
        if let Some(staged) = self.inodes.get_mut(&ino) {
            staged.touched = staged.record.map(|record| record.changed.get());
        }
    }

    /// [`FsCall::touch`] for a change of the content.
    pub(super) fn touch_content(&self, ino: u64, record: &mut InodeRecord) {
        record.modified = self.now.into();
        self.touch(ino, record);
    }

    /// Gives an inode another record.
    pub(super) fn set_inode(&mut self, ino: u64, record: InodeRecord) {
        self.stage(ino, Some(record));
        self.effects.inodes.entry(ino).or_default();
    }

    fn stage(&mut self, ino: u64, record: Option<InodeRecord>) {
        let touched = self.inodes.get(&ino).and_then(|staged| staged.touched);
        self.inodes.insert(ino, Staged { record, changed: true, touched });
    }

    /// Takes an inode's record out.
    pub(super) fn remove_inode(&mut self, ino: u64) {
        self.stage(ino, None);
        self.effects.inodes.entry(ino).or_default();
        self.effects.count -= 1;
    }

    /// The bytes of an inode changed.
    pub(super) fn note_content(&mut self, ino: u64) {
        self.effects.inodes.insert(ino, true);
    }

    /// A name means something else.
    pub(super) fn note_name(&mut self, directory: u64, name: Bytes) {
        self.effects.names.push((directory, name));
    }

    /// The content of a data block; the call depends on these bytes of it.
    pub(super) async fn read_block(
        &self,
        block: u64,
        range: Range<usize>,
    ) -> Result<Bytes, FsError> {
        if self.own.is_some_and(|own| own.has(block)) {
            let run = Run { start: block, blocks: 1 };
            let content = private_blocks::read(self.inner, self.txn, run).await?.pop();
            return content.ok_or(FsError::Stale);
        }
        let lba = self.inner.area.lba(block);
        let content = self.txn.read(lba).await?;
        let units = range.start / FRAGMENT * FRAGMENT..range.end.next_multiple_of(FRAGMENT);
        self.txn.mark_accessed(lba, units)?;
        Ok(content)
    }

    /// The content of a run of data blocks.
    pub(super) async fn read_blocks(&self, run: Run) -> Result<Vec<Bytes>, FsError> {
        let Some(own) = self.own else {
            return Ok(self.txn.read_run(self.inner.area.lba(run.start), run.blocks).await?);
        };
        let mut blocks = Vec::with_capacity(run.blocks as usize);
        for (part, is_own) in own.parts(run) {
            if is_own {
                blocks.extend(private_blocks::read(self.inner, self.txn, part).await?);
                continue;
            }
            let lba = self.inner.area.lba(part.start);
            blocks.extend(self.txn.read_run(lba, part.blocks).await?);
        }
        Ok(blocks)
    }

    /// Writes a block of data, of which only these bytes are other than before.
    pub(super) fn write_block(&mut self, block: u64, content: Bytes, changed: Range<usize>) {
        assert_eq!(content.len(), BLOCK_SIZE, "block {block} is not written as a whole");
        assert!(
            changed.start <= changed.end && changed.end <= BLOCK_SIZE,
            "{changed:?} of a block"
        );
        self.writes.push(BlockWrite { block, content: Some(content), changed });
    }

    /// Has a block of data read as zeros.
    pub(super) fn clear_block(&mut self, block: u64) {
        self.writes.push(BlockWrite { block, content: None, changed: 0..BLOCK_SIZE });
    }

    /// A page of bits.
    pub(super) async fn page(&mut self, page: u64) -> Result<&mut BitmapPage, FsError> {
        if !self.pages.contains_key(&page) {
            let lba = self.inner.area.page_lba(page);
            let content = self.txn.read(lba).await?;
            self.txn.mark_accessed(lba, 0..FRAGMENT)?;
            self.pages.insert(page, BitmapPage::read(&self.inner.area, page, &content)?);
        }
        self.pages.get_mut(&page).ok_or(FsError::Stale)
    }

    /// Gives blocks back: at once when they are few, otherwise in transactions of their own later.
    pub(super) async fn free(&mut self, run: Run) -> Result<(), FsError> {
        if self.own.is_some() {
            self.released.push(run);
            return Ok(());
        }
        if self.discards + run.blocks > DISCARDED_AT_ONCE {
            let blocks = run.blocks.to_le_bytes().to_vec();
            self.put(key(0, Tag::Freed, &run.start.to_be_bytes()), blocks);
            self.effects.freed = true;
            return Ok(());
        }
        self.discards += run.blocks;
        (run.start..run.start + run.blocks).for_each(|block| self.clear_block(block));
        self.clear_bits(run).await
    }

    /// Hands all changes to the transaction and returns the call's effects.
    pub(super) async fn finish(mut self) -> Result<Effects, FsError> {
        self.put_usage().await?;
        self.record_call(self.recorder).await?;
        for (ino, staged) in std::mem::take(&mut self.inodes) {
            match staged {
                Staged { changed: false, .. } => {}
                Staged { record: Some(mut record), .. } => {
                    if let Some(accessed) = self.inner.pending_access(ino) {
                        record.accessed = accessed.into();
                    }
                    self.put(key(ino, Tag::Inode, &[]), record.as_bytes().to_vec());
                }
                Staged { record: None, .. } => self.delete(key(ino, Tag::Inode, &[])),
            }
        }
        self.write_own().await?;
        for (key, value) in in_order(std::mem::take(&mut self.records)) {
            match value {
                Some(value) => self.tree.put(&key, value).await?,
                None => drop(self.tree.delete(&key).await?),
            }
        }
        let allocated = self.tree.allocated();
        self.charge_pages(allocated)?;
        self.tree.finish()?;
        for (number, page) in std::mem::take(&mut self.pages) {
            *self.effects.pages.entry(number).or_default() +=
                page.free() as i64 - page.free_before() as i64;
            let Some((changed, content)) = page.into_changed() else { continue };
            let lba = self.inner.area.page_lba(number);
            for range in changed.iter() {
                let units = range.start / FRAGMENT * FRAGMENT..range.end.next_multiple_of(FRAGMENT);
                self.txn.mark_accessed(lba, units)?;
            }
            self.txn.write_as(lba, content, Class::Metadata)?;
            changed.iter().try_for_each(|range| self.txn.mark_accessed(lba, range))?;
        }
        for (block, content, changed) in std::mem::take(&mut self.lists) {
            let lba = self.inner.area.lba(block);
            match content {
                Some(content) => {
                    self.txn.write_as(lba, content, Class::Metadata)?;
                    self.txn.mark_accessed(lba, changed)?;
                }
                None => self.txn.discard(lba)?,
            }
        }
        for BlockWrite { block, content, changed } in std::mem::take(&mut self.writes) {
            let lba = self.inner.area.lba(block);
            let Some(content) = content else {
                self.txn.discard(lba)?;
                continue;
            };
            self.txn.write_as(lba, content, Class::Data)?;
            self.txn.mark_accessed(lba, changed)?;
        }
        self.release().await?;
        self.claim.keep();
        Ok(std::mem::take(&mut self.effects))
    }

    /// Writes to blocks that the caller's transaction has reserved.
    async fn write_own(&mut self) -> Result<(), FsError> {
        let Some(own) = self.own else { return Ok(()) };
        let writes = std::mem::take(&mut self.writes);
        let (mine, rest): (Vec<_>, _) = writes.into_iter().partition(|it| own.has(it.block));
        self.writes = rest;
        if mine.is_empty() {
            return Ok(());
        }
        self.claim.dirties = true;
        let mine = mine.into_iter().map(|it| (it.block, it.content, it.changed)).collect();
        private_blocks::write(self.inner, self.txn, mine).await
    }

    /// Releases the blocks that the call freed into the caller's transaction.
    async fn release(&mut self) -> Result<(), FsError> {
        let Some(own) = self.own else { return Ok(()) };
        for run in std::mem::take(&mut self.released) {
            for (part, is_own) in own.parts(run) {
                if is_own {
                    private_blocks::empty(self.inner, self.txn, part).await?;
                    own.give(part);
                } else {
                    own.release(part);
                }
            }
        }
        Ok(())
    }
}
