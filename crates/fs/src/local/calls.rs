//! The calls of [`Filesystem`] on a filesystem of a volume.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_store::txn::Durability;

use super::content::BLOCK;
use super::create_queue::Create;
use super::creates::Joined;
use super::records::attributes_of;
use super::{COPIED_AT_ONCE, LocalFs, MAX_ATOMIC_WRITE, quota};
use crate::answer::{Answer, Lookup};
use crate::attributes::{AttributeChange, Ino};
use crate::error::FsError;
use crate::filesystem::{
    Allocation, Cookie, Entry, Filesystem, NewNode, Rename, Seek, SessionTable, SetXattr,
    Statistics, WriteAt, WriteHow,
};
use crate::handle::{Caller, Handle, OpenFlags, Opened};
use crate::invalidation::Watcher;
use crate::level::Level;
use crate::locks::{Lock, LockKind, LockOwner, LockRange};

/// Cuts buffers where their bytes reach multiples of [`MAX_ATOMIC_WRITE`] in the file.
fn cut(offset: u64, data: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut pieces, mut piece, mut at) = (Vec::new(), Vec::new(), offset);
    for mut buffer in data {
        while !buffer.is_empty() {
            let room = MAX_ATOMIC_WRITE - at % MAX_ATOMIC_WRITE;
            let some = room.min(buffer.len() as u64);
            assert!(0 < some && some <= room, "a piece ends where the next one begins");
            piece.push(buffer.split_to(some as usize));
            at += some;
            if some == room {
                pieces.push(std::mem::take(&mut piece));
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[async_trait]
impl Filesystem for LocalFs {
    fn is_read_only(&self) -> bool {
        self.inner.options.read_only
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup, FsError> {
        match self.look(async |txn| self.op(&txn).lookup(parent.0, name).await).await {
            Ok(found) => Ok(Lookup::Found(self.answer(found))),
            Err(FsError::NotFound) => Ok(Lookup::ABSENT),
            Err(error) => Err(error),
        }
    }

    async fn parent(&self, directory: Ino) -> Result<Ino, FsError> {
        self.look(async |txn| Ok(Ino(self.op(&txn).directory(directory.0).await?.parent.get())))
            .await
    }

    async fn attributes(&self, ino: Ino) -> Result<Answer, FsError> {
        let found =
            self.look(async |txn| attributes_of(ino.0, &self.op(&txn).inode(ino.0).await?)).await?;
        Ok(self.answer(found))
    }

    async fn set_attributes(&self, ino: Ino, change: &AttributeChange) -> Result<Answer, FsError> {
        if change.accessed.is_some() && self.within.is_none() {
            self.inner.drop_access(ino.0);
        }
        let _alone = self.prepare_size(ino, change.size).await?;
        let set = self
            .change(async |txn| {
                let mut op = self.op(&txn);
                let attributes = op.set_attributes(ino.0, change).await?;
                Ok((attributes, op.finish().await?))
            })
            .await?;
        Ok(self.answer(set))
    }

    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<Answer, FsError> {
        if let Some(before) = self.recorder.as_ref().and_then(|it| it.call.before) {
            return self.create_again(parent, name, new, Ino(before.outcome)).await;
        }
        let number = Ino(self.inner.number(parent.0).await?);
        let create = || Create {
            parent,
            name: Bytes::copy_from_slice(name),
            new: new.clone(),
            number,
            recorder: self.recorder.clone(),
        };
        let joined = match self.within {
            Some(_) => Joined::Alone(None),
            None => self.inner.create_with_others(create).await,
        };
        let _alone = match joined {
            Joined::Made(answer) => return Ok(answer),
            Joined::Alone(alone) => alone,
        };
        self.change(async |txn| {
            let mut op = self.op(&txn);
            let attributes = op.create(parent.0, name, new, number.0).await?;
            op.outcome = number.0;
            Ok((Answer::until_changed(attributes), op.finish().await?))
        })
        .await
    }

    async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Answer, FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            let attributes = op.link(ino.0, parent.0, name).await?;
            Ok((Answer::until_changed(attributes), op.finish().await?))
        })
        .await
    }

    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            op.unlink(parent.0, name).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            op.remove_directory(parent.0, name).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            op.rename((from.0.0, from.1), (to.0.0, to.1), how).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let target = op.read_link(ino.0).await?;
            self.accessed(ino, &mut op).await?;
            Ok(target)
        })
        .await
    }

    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        let mut entries = self
            .look(async |txn| {
                let mut op = self.op(&txn);
                let entries = op.read_directory(ino.0, from, most, attributes).await?;
                self.accessed(ino, &mut op).await?;
                Ok(entries)
            })
            .await?;
        for entry in &mut entries {
            entry.attributes = entry.attributes.map(|answer| self.answer(answer.attributes));
        }
        Ok(entries)
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        if let Some(external_contents) = &self.inner.external_contents {
            return self.read_external(external_contents, ino, offset, len).await;
        }
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let buffers = op.read(ino.0, offset, len).await?;
            self.accessed(ino, &mut op).await?;
            Ok(buffers)
        })
        .await
    }

    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        if let Some(external_contents) = self.external_to_change()? {
            return self.write_external(external_contents, ino, at, data, how).await;
        }
        let durable = if how.sync { Durability::Synced } else { Durability::Visible };
        let len: usize = data.iter().map(Bytes::len).sum();
        if len as u64 <= MAX_ATOMIC_WRITE || self.within.is_some() {
            return self.write_piece(ino, at, data, how.clear_suid, durable).await;
        }
        let start = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => self.attributes(ino).await?.size,
        };
        let end = start.checked_add(len as u64);
        if end.is_none_or(|end| end > crate::filesystem::MAX_FILE) {
            return Err(FsError::FileTooLarge);
        }
        if let Some(unrecorded) = self.unrecorded() {
            let lazy = WriteHow { sync: false, ..how };
            let went = unrecorded.write(ino, at, data, lazy).await?;
            self.record(went, durable).await?;
            return Ok(went);
        }
        let mut pieces = cut(start, data).into_iter().peekable();
        let (mut first, mut next) = (None, at);
        while let Some(piece) = pieces.next() {
            let durable = if pieces.peek().is_none() { durable } else { Durability::Visible };
            let len: usize = piece.iter().map(Bytes::len).sum();
            let offset = self.write_piece(ino, next, piece, how.clear_suid, durable).await?;
            first.get_or_insert(offset);
            next = WriteAt::Offset(offset + len as u64);
        }
        Ok(first.unwrap_or(start))
    }

    async fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError> {
        let end = offset.checked_add(len).ok_or(FsError::FileTooLarge)?;
        if len == 0 {
            return Err(FsError::Invalid("nothing is to be allocated"));
        }
        if let Some(external_contents) = self.external_to_change()? {
            return self.allocate_external(external_contents, ino, (offset, end), how).await;
        }
        if let Some(unrecorded) = self.unrecorded() {
            unrecorded.allocate(ino, offset, len, how).await?;
            return self.record(0, Durability::Visible).await;
        }
        match how {
            Allocation::Punch => {
                self.punch(ino, offset, end.min(crate::filesystem::MAX_FILE)).await
            }
            _ if end > crate::filesystem::MAX_FILE => Err(FsError::FileTooLarge),
            Allocation::Reserve { keep_size } => self.reserve(ino, offset, end, keep_size).await,
            Allocation::Zero { keep_size } => self.zero(ino, offset, end, keep_size).await,
        }
    }

    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, FsError> {
        self.look(async |txn| self.op(&txn).seek(ino.0, offset, what).await).await
    }

    async fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, FsError> {
        if let Some(unrecorded) = self.unrecorded() {
            let copied = unrecorded.copy(from, to, len).await?;
            self.record(copied, Durability::Visible).await?;
            return Ok(copied);
        }
        let size = self
            .look(async |txn| {
                let mut op = self.op(&txn);
                op.file(to.0.0).await?;
                Ok(op.file(from.0.0).await?.size.get())
            })
            .await?;
        let len = len.min(size.saturating_sub(from.1));
        let overlaps = from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len;
        if overlaps {
            return Err(FsError::Invalid("the two ranges overlap"));
        }
        let mut done = 0;
        while done < len {
            let room = COPIED_AT_ONCE - (to.1 + done) % COPIED_AT_ONCE;
            let some = room.min(len - done);
            let data = self.read(from.0, from.1 + done, some as usize).await?;
            let read: usize = data.iter().map(Bytes::len).sum();
            if read == 0 {
                break;
            }
            let at = WriteAt::Offset(to.1 + done);
            self.write(to.0, at, data, WriteHow::default()).await?;
            done += read as u64;
        }
        Ok(done)
    }

    async fn sync(&self, ino: Ino, _content_only: bool) -> Result<(), FsError> {
        match self.within {
            None => self.inner.sync(Some(ino.0)).await,
            Some(_) => Ok(()),
        }
    }

    async fn sync_all(&self) -> Result<(), FsError> {
        match self.within {
            None => self.inner.sync(None).await,
            Some(_) => Ok(()),
        }
    }

    async fn level(&self, ino: Ino) -> Result<Level, FsError> {
        self.level_of(ino).await
    }

    async fn wait_for(&self, ino: Ino, level: Level, within: Duration) -> Result<bool, FsError> {
        self.bring_to(ino, level, within).await
    }

    async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        self.look(async |txn| self.op(&txn).xattr(ino.0, name).await).await
    }

    async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError> {
        if quota::is_attribute(name) {
            let limit = Some(quota::parse_limit(&value)?);
            return if name == quota::MAX_BYTES {
                self.set_quota(ino, limit, None).await
            } else {
                self.set_quota(ino, None, limit).await
            };
        }
        self.change(async |txn| {
            let mut op = self.op(&txn);
            op.set_xattr(ino.0, name, value.clone(), how).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        self.look(async |txn| self.op(&txn).xattrs(ino.0).await).await
    }

    async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        if quota::is_attribute(name) {
            self.xattr(ino, name).await?;
            return if name == quota::MAX_BYTES {
                self.set_quota(ino, Some(0), None).await
            } else {
                self.set_quota(ino, None, Some(0)).await
            };
        }
        self.change(async |txn| {
            let mut op = self.op(&txn);
            op.remove_xattr(ino.0, name).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn statistics(&self) -> Result<Statistics, FsError> {
        let used = self.inner.inodes();
        let (blocks, free) = match &self.inner.external_contents {
            Some(external_contents) => self.inner.external_blocks(external_contents).await?,
            None => {
                // What was removed is free, or soon.
                if self.inner.is_freeing() && !self.is_read_only() {
                    self.inner.run_deferred_work().await?;
                }
                // The table of reservations is no file's.
                let table = u64::from(self.inner.table.get().is_some());
                // Snapshots of the volume may keep what files had: then a write fails before all free blocks are used.
                let free = self.inner.space.free();
                let room = self.inner.volume.room().unwrap_or(free);
                (self.inner.area.blocks() - table, free.min(room))
            }
        };
        Ok(Statistics {
            block: BLOCK as u32,
            blocks,
            free,
            inodes: (used, used.max(self.inner.max_inodes.load(Ordering::Relaxed))),
        })
    }

    fn reference(&self, ino: Ino) {
        self.inner.reference(ino.0);
    }

    fn unreference(&self, ino: Ino, count: u64) {
        self.inner.unreference(ino.0, count);
    }

    async fn open(&self, _caller: &Caller, _ino: Ino, flags: OpenFlags) -> Result<Opened, FsError> {
        if flags.write && self.is_read_only() {
            Err(FsError::ReadOnly)
        } else {
            Ok(Opened { handle: self.inner.handle(), ..Opened::default() })
        }
    }

    async fn flush(&self, ino: Ino, _handle: Handle, owner: LockOwner) -> Result<(), FsError> {
        self.inner.locks.unlock_owner(ino, LockKind::Posix, owner);
        Ok(())
    }

    async fn release(&self, ino: Ino, handle: Handle) {
        self.inner.locks.unlock_handle(ino, handle);
    }

    async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<(), FsError> {
        self.inner.locks.lock(ino, lock, wait).await
    }

    async fn unlock(
        &self,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        self.inner.locks.unlock(ino, kind, owner, range)
    }

    async fn conflicting_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>, FsError> {
        Ok(self.inner.locks.conflict(ino, lock))
    }

    fn locks(&self, ino: Ino) -> Vec<Lock> {
        self.inner.locks.held_on(ino)
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.watch(watcher);
    }

    fn session_table(&self) -> Option<&dyn SessionTable> {
        (!self.is_read_only()).then_some(self)
    }
}
