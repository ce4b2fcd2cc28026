//! Pending work: inodes without names, blocks behind the ends of files, blocks to be freed.
//!
//! The transaction that leaves the work behind writes a record of it, so that the next opening after a
//! crash continues it. Every step is a transaction, and may be repeated.

use super::area::DataArea;
use super::dir_slots::position_of;
use super::extents::Run;
use super::format::{DirSlot, HAS_XATTRS, TRUNCATING, Tag, key, key_behind, parse_key};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::records::kind_of;
use crate::attributes::Kind;
use crate::error::FsError;
use async_recursion::async_recursion;

/// Extents that one transaction frees.
pub(super) const EXTENTS_AT_ONCE: usize = 32;
/// Other records of an inode that one transaction removes.
const RECORDS_AT_ONCE: usize = 64;
/// Blocks that one transaction marks as free.
const FREED_AT_ONCE: u64 = 1 << 18;

impl FsCall<'_> {
    /// Notes that there is something left to be done about an inode.
    pub(super) fn note_orphan(&mut self, ino: u64) {
        self.put(key(0, Tag::Orphan, &ino.to_be_bytes()), Vec::new());
        self.effects.orphans.push(ino);
    }

    /// Notes that nothing is left to be done about an inode.
    pub(super) fn forget_orphan(&mut self, ino: u64) {
        self.delete(key(0, Tag::Orphan, &ino.to_be_bytes()));
    }

    /// An inode has lost its last name. It is removed now if it has no references and is small.
    pub(super) async fn abandon(&mut self, ino: u64) -> Result<(), FsError> {
        if self.inner.may_be_referenced(ino) || !self.remove_step(ino).await? {
            self.note_orphan(ino);
        }
        Ok(())
    }

    /// Removes a part of an inode without names; returns whether all of it is gone.
    async fn remove_step(&mut self, ino: u64) -> Result<bool, FsError> {
        let mut record = self.find_inode(ino).await?.ok_or(FsError::Stale)?;
        let kind = kind_of(ino, &record)?;
        if kind == Kind::File && self.inner.external_contents.is_some() {
            self.charge(record.quota.get(), -(record.blocks.get() as i64), 0).await?;
            self.note_removed(ino, &record);
        } else if kind == Kind::File {
            record.size = 0.into();
            self.inner.space.release(ino);
            let done = self.truncate_tail(ino, &mut record, EXTENTS_AT_ONCE).await?;
            self.set_inode(ino, record);
            if !done {
                return Ok(false);
            }
        }
        if kind == Kind::Directory && !self.remove_places(ino).await? {
            return Ok(false);
        }
        if record.flags & HAS_XATTRS != 0 {
            let range = key(ino, Tag::Xattr, &[])..key_behind(ino, Tag::Xattr);
            let some = self.range(range, RECORDS_AT_ONCE).await?;
            let done = some.len() < RECORDS_AT_ONCE;
            some.into_iter().for_each(|(key, _)| self.delete(key.to_vec()));
            if !done {
                return Ok(false);
            }
        }
        if kind == Kind::Symlink {
            self.delete(key(ino, Tag::Target, &[]));
        }
        self.charge(record.quota.get(), 0, -1).await?;
        self.remove_quota(ino, &record).await?;
        self.remove_inode(ino);
        Ok(true)
    }

    /// Removes places that an empty directory keeps free; whether none are left.
    async fn remove_places(&mut self, ino: u64) -> Result<bool, FsError> {
        let range = key(ino, Tag::Entry, &[])..key_behind(ino, Tag::Entry);
        let some = self.range(range, RECORDS_AT_ONCE).await?;
        let done = some.len() < RECORDS_AT_ONCE;
        for (key, value) in some {
            if position_of(&key).is_none() || DirSlot::decode(&value) != Some(DirSlot::Vacant) {
                return Err(FsError::Damaged(format!(
                    "directory {ino} counts as empty, and is not"
                )));
            }
            self.delete(key.to_vec());
        }
        Ok(done)
    }

    /// Does a part of an inode's pending work; returns whether none is left.
    async fn orphan_step(&mut self, ino: u64) -> Result<bool, FsError> {
        let Some(mut record) = self.find_inode(ino).await? else {
            self.forget_orphan(ino);
            return Ok(true);
        };
        if record.links.get() == 0 && !self.inner.may_be_referenced(ino) {
            let done = self.remove_step(ino).await?;
            if done {
                self.forget_orphan(ino);
            }
            return Ok(done);
        }
        if record.flags & TRUNCATING != 0 && self.inner.external_contents.is_some() {
            self.effects.cuts.push(ino);
            return Ok(true);
        }
        if record.flags & TRUNCATING != 0 {
            let done = self.truncate_tail(ino, &mut record, EXTENTS_AT_ONCE).await?;
            self.set_inode(ino, record);
            if record.links.get() == 0 {
                self.note_orphan(ino);
            }
            return Ok(done);
        }
        if record.links.get() > 0 {
            self.forget_orphan(ino);
        }
        Ok(true)
    }
}

impl FsState {
    /// Does an inode's pending work as far as possible: an inode with references stays.
    pub(super) async fn finish_orphan(&self, ino: u64) -> Result<(), FsError> {
        loop {
            let step = self.change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                let done = op.orphan_step(ino).await?;
                Ok((done, op.finish().await?))
            });
            // Boxed: the steps of a change may lead here.
            if Box::pin(step).await? {
                return Ok(());
            }
        }
    }

    /// Frees all blocks that are noted to be freed: first they are emptied, then their bits are cleared.
    #[async_recursion]
    pub(super) async fn finish_freed(&self) -> Result<(), FsError> {
        let _turn = self.freeing.lock().await;
        loop {
            let txn = self.volume.begin(thalweg_store::txn::Begin::SNAPSHOT).await?;
            let mut op = FsCall::new(self, &txn, false);
            let some = op.range(key(0, Tag::Freed, &[])..key_behind(0, Tag::Freed), 64).await?;
            drop(op);
            drop(txn);
            if some.is_empty() {
                return Ok(());
            }
            for (key, value) in some {
                let noted = freed_run(&key, &value, &self.area);
                let noted = noted.ok_or_else(|| {
                    FsError::Damaged("a record of blocks to be freed is invalid".to_owned())
                })?;
                self.free_noted(noted).await?;
            }
        }
    }

    async fn free_noted(&self, noted: Run) -> Result<(), FsError> {
        let mut rest = noted;
        while rest.blocks > 0 {
            let run = Run { blocks: rest.blocks.min(FREED_AT_ONCE), ..rest };
            self.volume.discard_run(self.area.lba(run.start), run.blocks).await?;
            let next = Run { start: run.start + run.blocks, blocks: rest.blocks - run.blocks };
            self.change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                op.delete(freed_key(run.start));
                if next.blocks > 0 {
                    op.put(freed_key(next.start), next.blocks.to_le_bytes().to_vec());
                }
                op.clear_bits(run).await?;
                Ok(((), op.finish().await?))
            })
            .await?;
            rest = next;
        }
        Ok(())
    }

    /// Inodes with something left to be done, as the filesystem has them.
    pub(super) async fn stored_orphans(&self) -> Result<Vec<u64>, FsError> {
        let txn = self.volume.begin(thalweg_store::txn::Begin::SNAPSHOT).await?;
        let mut op = FsCall::new(self, &txn, false);
        let range = key(0, Tag::Orphan, &[])..key_behind(0, Tag::Orphan);
        let found = op.range(range, usize::MAX).await?;
        let ino = |(key, _): &(bytes::Bytes, bytes::Bytes)| {
            let (_, _, rest) = parse_key(key)?;
            Some(u64::from_be_bytes(rest.try_into().ok()?))
        };
        Ok(found.iter().filter_map(ino).collect())
    }
}

/// The key of a note of blocks to be freed.
pub(super) fn freed_key(start: u64) -> Vec<u8> {
    key(0, Tag::Freed, &start.to_be_bytes())
}

/// Decodes a record of blocks to be freed; `None` when it is invalid.
pub(super) fn freed_run(key: &[u8], value: &[u8], area: &DataArea) -> Option<Run> {
    let (_, _, rest) = parse_key(key)?;
    let start = u64::from_be_bytes(rest.try_into().ok()?);
    area.run(start, u64::from_le_bytes(value.try_into().ok()?))
}
