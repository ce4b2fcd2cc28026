//! Contents of files that are kept elsewhere: the calls on them.
//!
//! Bytes are durable at once; the sizes of files are durable after a sync, and a crash may undo them. The order of
//! changes makes up for that:
//!
//! - Bytes are written first, and then the size that makes them visible.
//! - What a durable state of the filesystem needs is destroyed only after the change that makes it unneeded is
//!   durable: when a file was removed or made shorter, a record says so until that was done ([`super::deferred_removals`]).
//!   Bytes that a write, a punched hole or zeros replace are an exception, as in a file that is updated in place.
//! - Bytes behind the end of a file may be anything, since a crash or a failure may have come between. They become
//!   zeros before the file grows over them.
//! - None lie behind the *write bound* of the file, which its record has. It is raised, and durable, before bytes are written
//!   behind it. New files have a write bound already: so small ones cost no sync, also if the number of an inode is used
//!   again whose first creation a crash has undone.
//!
//! For each file there is a gate: calls that change its content or its size pass it alone, reads together. Callers'
//! transactions do not change contents, which could not be undone. One handle at a time may change the filesystem.

use bytes::Bytes;
use thalweg_store::txn::Durability;
use tokio::sync::OwnedRwLockWriteGuard;

use super::LocalFs;
use super::content::{BLOCK, clear_suid};
use super::format::{InodeRecord, TRUNCATING};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::gates::ExternalContents;
use super::rooms::Cover;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::filesystem::{Allocation, MAX_FILE, WriteAt, WriteHow};

/// The unit of a write bound in bytes, and the write bound of a new file.
pub(super) const REACH: u64 = 4 << 20;
/// The write bound is raised by as much as a file has, and by at most so many bytes.
const REACH_AHEAD: u64 = 1 << 30;
/// No bytes of the file lie there or behind.
pub(super) fn write_bound_of(record: &InodeRecord) -> u64 {
    reach_from(record.write_bound.get())
}

/// The write bound in bytes that is stored as this.
pub(super) fn reach_from(stored: u32) -> u64 {
    (u64::from(stored) + 1) * REACH
}

/// The stored write bound of a file without bytes behind `end`.
pub(super) fn reach_for(end: u64) -> u32 {
    u32::try_from(end.div_ceil(REACH).saturating_sub(1)).unwrap_or(u32::MAX)
}

impl LocalFs {
    /// The contents elsewhere, for a call that changes some.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] within a caller's transaction, [`FsError::ReadOnly`].
    pub(super) fn external_to_change(&self) -> Result<Option<&ExternalContents>, FsError> {
        match &self.inner.external_contents {
            Some(_) if self.inner.options.read_only => Err(FsError::ReadOnly),
            Some(_) if self.within.is_some() => Err(FsError::NotSupported),
            found => Ok(found.as_ref()),
        }
    }

    pub(super) async fn read_external(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<Vec<Bytes>, FsError> {
        loop {
            let shared = external_contents.gate(ino.0).read_owned().await;
            let size = self
                .look(async |txn| {
                    let mut op = self.op(&txn);
                    let size = op.file(ino.0).await?.size.get();
                    self.accessed(ino, &mut op).await?;
                    Ok(size)
                })
                .await?;
            let end = offset.saturating_add(len as u64).min(size);
            if offset >= end {
                return Ok(Vec::new());
            }
            if let Some(read) = self.inner.read_pieces(external_contents, ino, offset..end).await? {
                return Ok(read);
            }
            drop(shared);
            let _alone = external_contents.alone(ino.0).await;
            self.inner.place(external_contents, ino.0, offset..end).await?;
        }
    }

    /// Writes buffers; where they went. The size follows when they are stored.
    pub(super) async fn write_external(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        let _alone = external_contents.alone(ino.0).await;
        let record = self.inner.external_file(ino.0).await?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => record.size.get(),
        };
        let len: usize = data.iter().map(Bytes::len).sum();
        let end = offset.checked_add(len as u64).filter(|end| *end <= MAX_FILE);
        let end = end.ok_or(FsError::FileTooLarge)?;
        if len == 0 {
            return Ok(offset);
        }
        self.inner
            .prepare_growth(external_contents, ino.0, &record, (offset, end), &Cover::default())
            .await?;
        self.inner.extend_write_bound(external_contents, ino.0, end).await?;
        self.inner.place(external_contents, ino.0, offset..end).await?;
        external_contents.contents.write(ino, offset, &data).await?;
        let durability = if how.sync { Durability::Synced } else { Durability::Visible };
        self.change_as(durability, async |txn| {
            let mut op = self.op(&txn);
            op.content_changed(ino.0, end, how.clear_suid).await?;
            op.outcome = offset;
            Ok((offset, op.finish().await?))
        })
        .await
    }

    /// Before a call that sets a size: passes the file's gate, and clears what the file is to grow over.
    pub(super) async fn prepare_size(
        &self,
        ino: Ino,
        size: Option<u64>,
    ) -> Result<Option<OwnedRwLockWriteGuard<()>>, FsError> {
        let Some(size) = size else { return Ok(None) };
        let Some(external_contents) = self.external_to_change()? else { return Ok(None) };
        let alone = external_contents.alone(ino.0).await;
        let record = self.inner.external_file(ino.0).await?;
        if size <= MAX_FILE {
            self.inner
                .prepare_growth(external_contents, ino.0, &record, (size, size), &Cover::default())
                .await?;
        }
        Ok(Some(alone))
    }

    /// A range is zeroed, or the file grows. No space is set aside.
    pub(super) async fn allocate_external(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        (offset, end): (u64, u64),
        how: Allocation,
    ) -> Result<(), FsError> {
        let (grows, clears) = match how {
            Allocation::Punch => (false, true),
            Allocation::Reserve { keep_size } => (!keep_size, false),
            Allocation::Zero { keep_size } => (!keep_size, true),
        };
        if how != Allocation::Punch && end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        let _alone = external_contents.alone(ino.0).await;
        let mut record = self.inner.external_file(ino.0).await?;
        let size = record.size.get();
        if grows {
            record = self
                .inner
                .prepare_growth(external_contents, ino.0, &record, (end, end), &Cover::default())
                .await?;
        }
        let stored = end.min(size).min(write_bound_of(&record));
        if clears && offset < stored {
            self.inner.place(external_contents, ino.0, offset..stored).await?;
            external_contents.contents.zero(ino, offset..stored).await?;
        }
        let least = if grows { end } else { 0 };
        self.change(async |txn| {
            let mut op = self.op(&txn);
            op.content_changed(ino.0, least, false).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }
}

impl FsCall<'_> {
    /// The content of a file has changed, and it has at least `least` bytes now.
    pub(super) async fn content_changed(
        &mut self,
        ino: u64,
        least: u64,
        clears_suid: bool,
    ) -> Result<(), FsError> {
        let mut record = self.file(ino).await?;
        let size = record.size.get().max(least);
        self.resize(&mut record, size).await?;
        if clears_suid {
            clear_suid(&mut record);
        }
        self.touch_file(ino, record);
        Ok(())
    }

    /// Gives the record of a file another size. Its blocks are those that the size has, with holes.
    async fn resize(&mut self, record: &mut InodeRecord, size: u64) -> Result<(), FsError> {
        let blocks = size.div_ceil(BLOCK);
        self.charge(record.quota.get(), blocks as i64 - record.blocks.get() as i64, 0).await?;
        record.size = size.into();
        record.blocks = blocks.into();
        Ok(())
    }

    /// Gives a file another size. The bytes behind it are removed when that is durable.
    pub(super) async fn set_external_size(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        size: u64,
    ) -> Result<(), FsError> {
        if size < record.size.get() {
            record.flags |= TRUNCATING;
            self.note_cut(ino);
            self.forget_redirects(ino, size);
        }
        self.resize(record, size).await?;
        self.note_content(ino);
        Ok(())
    }
}

impl FsState {
    /// Blocks of the store with the contents, and free ones of these. If it does not say, those of the volume.
    pub(super) async fn external_blocks(
        &self,
        external_contents: &ExternalContents,
    ) -> Result<(u64, u64), FsError> {
        Ok(match external_contents.contents.space().await? {
            Some(space) => (space.size / BLOCK, space.free / BLOCK),
            None => (self.volume.blocks(), self.volume.blocks()),
        })
    }

    /// A file, as it is now.
    pub(super) async fn external_file(&self, ino: u64) -> Result<InodeRecord, FsError> {
        let txn = self.look().await?;
        FsCall::new(self, &txn, false).file(ino).await
    }

    /// Before a file grows to `end` by bytes from `start` on: checks its quota, and has the bytes between its end and
    /// `start` be zeros. Returns its record.
    pub(super) async fn prepare_growth(
        &self,
        external_contents: &ExternalContents,
        ino: u64,
        record: &InodeRecord,
        (start, end): (u64, u64),
        cover: &Cover,
    ) -> Result<InodeRecord, FsError> {
        let size = record.size.get();
        if end > size {
            // Before bytes are replaced: the transaction would fail after that.
            let txn = self.look().await?;
            let mut op = FsCall::new(self, &txn, false).covered(cover.clone());
            let more = end.div_ceil(BLOCK) as i64 - record.blocks.get() as i64;
            op.charge(record.quota.get(), more, 0).await?;
        }
        if start <= size {
            return Ok(*record);
        }
        if record.flags & TRUNCATING != 0 {
            return self.cut(external_contents, ino).await;
        }
        let stored = start.min(write_bound_of(record));
        if size < stored {
            external_contents.contents.zero(Ino(ino), size..stored).await?;
        }
        Ok(*record)
    }

    /// Has the write bound of a file be durable and at least `end`.
    pub(super) async fn extend_write_bound(
        &self,
        external_contents: &ExternalContents,
        ino: u64,
        end: u64,
    ) -> Result<(), FsError> {
        if end > write_bound_of(&self.external_file(ino).await?) {
            external_contents.raised.lock().insert(ino);
            let write_bound = reach_for(end + end.min(REACH_AHEAD));
            self.change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                let mut record = op.file(ino).await?;
                record.write_bound = write_bound.into();
                op.set_inode(ino, record);
                Ok(((), op.finish().await?))
            })
            .await?;
        }
        if external_contents.raised.lock().contains(&ino) {
            self.sync_volume().await?;
            external_contents.raised.lock().remove(&ino);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reach_covers_what_it_is_for() {
        for end in [0, 1, REACH - 1, REACH, REACH + 1, 7 * REACH, MAX_FILE] {
            let write_bound = reach_from(reach_for(end));
            assert!(
                write_bound >= end && (write_bound == REACH || write_bound < end + REACH),
                "{end}: {write_bound}"
            );
        }
    }
}
