//! Contents elsewhere that the filesystem no longer needs: those of removed files, and the ends of files that became
//! shorter.
//!
//! The transaction that leaves them behind writes a record of them. They are removed after a sync has made that record
//! durable, and the record goes after that; so each step may be repeated.

use async_recursion::async_recursion;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::external_contents::{reach_for, reach_from, write_bound_of};
use super::format::{InodeRecord, TRUNCATING, Tag, key, key_behind, parse_key};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::gates::ExternalContents;
use crate::attributes::Ino;
use crate::error::FsError;

/// Records of removed files that are worked off with one sync.
const REMOVED_AT_ONCE: usize = 1024;
/// Files whose contents are removed at the same time.
const PARALLEL: usize = 16;

/// A removed file: its inode number, and the byte behind all of its content.
#[derive(Clone, Copy, Debug)]
struct RemovedFile {
    ino: u64,
    end: u64,
}

fn removed_key(ino: u64) -> Vec<u8> {
    key(0, Tag::Removed, &ino.to_be_bytes())
}

/// The inode number of a record of a removed file, and its stored write bound; `None` when the record is invalid.
pub(super) fn parse_removed(key: &[u8], value: &[u8]) -> Option<(u64, u32)> {
    let (0, Tag::Removed, rest) = parse_key(key)? else { return None };
    Some((u64::from_be_bytes(rest.try_into().ok()?), u32::from_le_bytes(value.try_into().ok()?)))
}

impl FsCall<'_> {
    /// Notes that the content of a file is to be removed, since the inode is.
    pub(super) fn note_removed(&mut self, ino: u64, record: &InodeRecord) {
        self.put(removed_key(ino), record.write_bound.get().to_le_bytes().to_vec());
        self.effects.removed = true;
        if record.flags & TRUNCATING != 0 {
            self.forget_orphan(ino);
        }
    }

    /// Takes the note of a removed file away.
    pub(super) fn forget_removed(&mut self, ino: u64) {
        self.delete(removed_key(ino));
    }

    /// Notes that the content behind the end of a file is to be removed.
    pub(super) fn note_cut(&mut self, ino: u64) {
        self.put(key(0, Tag::Orphan, &ino.to_be_bytes()), Vec::new());
        self.effects.cuts.push(ino);
    }
}

impl FsState {
    /// Whether contents wait to be removed.
    pub(super) fn has_deferred_removals(&self) -> bool {
        let deferred_work = self.deferred_work.lock();
        deferred_work.removed || !deferred_work.cuts.is_empty()
    }

    /// Removes all contents that are not needed, after a sync that makes their notes durable.
    ///
    /// # Errors
    /// Those of the contents and of the transactions. The next call continues.
    #[async_recursion]
    pub(super) async fn finish_deferred_removals(&self) -> Result<(), FsError> {
        let Some(external_contents) = &self.external_contents else { return Ok(()) };
        let _turn = external_contents.turn.lock().await;
        loop {
            let removed = std::mem::take(&mut self.deferred_work.lock().removed);
            let done = self.remove_deferred(external_contents, removed).await;
            // After an error they are looked for again, and after a round there may be more.
            self.deferred_work.lock().removed |= removed && !matches!(done, Ok(false));
            if !done? {
                return Ok(());
            }
        }
    }

    /// One round; whether there was something to do.
    async fn remove_deferred(
        &self,
        external_contents: &ExternalContents,
        removed: bool,
    ) -> Result<bool, FsError> {
        let notes = if removed { self.removed_files().await? } else { Vec::new() };
        let cuts: Vec<u64> = self.deferred_work.lock().cuts.iter().copied().collect();
        if notes.is_empty() && cuts.is_empty() {
            return Ok(false);
        }
        self.sync_volume().await?;
        let removals = stream::iter(notes.clone()).map(|RemovedFile { ino, end }| async move {
            // A write that began before the removal ends first.
            let _alone = external_contents.alone(ino).await;
            external_contents.contents.remove(Ino(ino), end).await
        });
        removals.buffer_unordered(PARALLEL).try_collect::<()>().await?;
        if !notes.is_empty() {
            self.change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                for RemovedFile { ino, .. } in &notes {
                    op.forget_redirects(*ino, 0);
                    op.forget_removed(*ino);
                }
                Ok(((), op.finish().await?))
            })
            .await?;
        }
        let cuts = stream::iter(cuts).map(|ino| async move {
            let _alone = external_contents.alone(ino).await;
            self.cut_if_shorter(external_contents, ino).await?;
            self.deferred_work.lock().cuts.remove(&ino);
            Ok::<_, FsError>(())
        });
        cuts.buffer_unordered(PARALLEL).try_collect::<()>().await?;
        Ok(true)
    }

    /// Files that are noted to be removed, some of them.
    async fn removed_files(&self) -> Result<Vec<RemovedFile>, FsError> {
        let txn = self.look().await?;
        let mut op = FsCall::new(self, &txn, false);
        let range = key(0, Tag::Removed, &[])..key_behind(0, Tag::Removed);
        let mut files = Vec::new();
        for (key, value) in op.range(range, REMOVED_AT_ONCE).await? {
            let damaged = || FsError::Damaged("a record of a removed file is invalid".to_owned());
            let (ino, write_bound) = parse_removed(&key, &value).ok_or_else(damaged)?;
            if op.find_inode(ino).await?.is_some() {
                return Err(FsError::Damaged(format!("inode {ino} is recorded as removed")));
            }
            files.push(RemovedFile { ino, end: reach_from(write_bound) });
        }
        Ok(files)
    }

    async fn cut_if_shorter(
        &self,
        external_contents: &ExternalContents,
        ino: u64,
    ) -> Result<(), FsError> {
        let txn = self.look().await?;
        let found = FsCall::new(self, &txn, false).find_inode(ino).await?;
        drop(txn);
        match found {
            Some(record) if record.flags & TRUNCATING != 0 => {
                self.cut(external_contents, ino).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Removes the content behind the end of a file that became shorter, when that is durable. The caller has passed the
    /// file's gate, so that its size stays. Returns its record.
    pub(super) async fn cut(
        &self,
        external_contents: &ExternalContents,
        ino: u64,
    ) -> Result<InodeRecord, FsError> {
        self.sync_volume().await?;
        let txn = self.look().await?;
        let found = FsCall::new(self, &txn, false).find_inode(ino).await?.ok_or(FsError::Stale)?;
        drop(txn);
        let size = found.size.get();
        external_contents.contents.truncate(Ino(ino), write_bound_of(&found), size).await?;
        self.change(async |txn| {
            let mut op = FsCall::new(self, &txn, false);
            let mut record = op.find_inode(ino).await?.ok_or(FsError::Stale)?;
            record.flags &= !TRUNCATING;
            record.write_bound = reach_for(size).into();
            op.set_inode(ino, record);
            if record.links.get() > 0 {
                op.forget_orphan(ino);
            }
            Ok((record, op.finish().await?))
        })
        .await
    }
}
