//! The filesystem in two partitions of a volume: a B-tree with all metadata, and the blocks with the bytes
//! of files.
//!
//! It has no lock and no log: each call is a transaction, and a transaction may span the filesystem and any
//! other store of the volume (IsoFS, Isotope 4.3.2). Memory holds hints and the references to inodes; none
//! of it has to survive a crash.

mod accesses;
mod area;
mod background;
mod batch_contents;
mod blocks;
mod calls;
pub mod check;
mod content;
mod create_queue;
mod creates;
mod deferred_removals;
mod dir_slots;
mod direct;
mod effects;
mod ended;
mod extents;
mod external_contents;
pub mod format;
mod fs_call;
mod fs_state;
mod gates;
mod growth;
mod levels;
mod make;
mod mutations;
mod names;
mod numbers;
mod options;
mod orphans;
mod paths;
mod private_blocks;
mod promises;
mod quota;
mod records;
mod redirected;
mod redirects;
mod references;
mod reservation;
mod reserved_blocks;
mod rooms;
mod seek;
mod sessions;
mod source;
mod space;
mod superblock;
mod table;
mod use_records;
mod versions;
mod xattrs;
mod zeros;

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Task;
use thalweg_store::txn::{Durability, Transaction};
use tokio::sync::RwLock;

use crate::answer::Answer;
use crate::attributes::{AttributeChange, Attributes, Ino, Kind, TimeChange};
use crate::error::FsError;
use crate::filesystem::WriteAt;
use crate::session_table::Recorder;
use content::BLOCK;
use effects::Effects;
use fs_call::FsCall;
use fs_state::FsState;
pub use growth::{Growth, room, size};
pub use make::{is_external, make, make_external, remove};
pub use options::{Atime, Format, Options};
pub use quota::{Quota, is_attribute as is_quota_attribute};
use records::{attributes_of, kind_of};
use reserved_blocks::Reservation;

/// Bytes of the largest write that is one transaction: a longer one is several, cut at multiples of it.
pub const MAX_ATOMIC_WRITE: u64 = 128 * BLOCK;
/// Blocks that one transaction reserves.
const RESERVED_AT_ONCE: u64 = 8 * format::BITS_PER_PAGE;
/// Blocks that one transaction zeroes.
const ZEROED_AT_ONCE: u64 = 128;
/// A longer range (in blocks) is zeroed by freeing its blocks and allocating others.
const LONG_ZEROS: u64 = 8 * ZEROED_AT_ONCE;
/// Bytes that are copied from file to file at a time.
const COPIED_AT_ONCE: u64 = MAX_ATOMIC_WRITE;

/// An open filesystem of a volume. Clones are the same handle.
///
/// Two handles on one filesystem, also in two processes, see each other's changes. But an inode without
/// names lives only while it has references in the handle that removed its last name, and each handle
/// estimates [`Statistics`](crate::Statistics) from the changes that it has seen.
#[derive(Clone)]
pub struct LocalFs {
    inner: Arc<FsState>,
    within: Option<Arc<Within>>,
    /// Records the call for which this handle is.
    recorder: Option<Arc<Recorder>>,
    _keeper: Arc<Task<()>>,
}

/// A transaction of the caller's.
struct Within {
    inner: Arc<FsState>,
    txn: Arc<dyn Transaction>,
    /// Changes come one after the other: within a transaction nothing keeps them apart.
    order: RwLock<()>,
    effects: Mutex<Effects>,
    reservation: Reservation,
    /// Why the transaction was aborted in the middle of a call.
    failure: OnceLock<FsError>,
}

impl Drop for Within {
    fn drop(&mut self) {
        let effects = std::mem::take(&mut *self.effects.lock());
        self.inner.tell(&effects);
        self.inner.settle_when_ended(&self.txn, effects, self.reservation.end());
    }
}

impl Within {
    /// Aborts the transaction because of an error.
    async fn fail(&self, error: &FsError) {
        if self.failure.set(error.clone()).is_ok() {
            tracing::warn!(%error, "a transaction on files was aborted");
        }
        self.txn.abort().await;
    }
}

impl fmt::Debug for LocalFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = self.within.as_ref().map(|within| &within.txn);
        f.debug_struct("Local").field("inner", &self.inner).field("within", &within).finish()
    }
}

impl LocalFs {
    /// The same filesystem as the transaction sees it: every call through the new handle is a part of
    /// `txn`, whose isolation should be strict, and no change is visible outside until `txn` commits. Other
    /// stores and blocks may be a part of it too.
    ///
    /// Commit with [`LocalFs::commit`], or drop the handle after the transaction has ended; watchers are told
    /// then. To undo everything, abort the transaction. A failed call has changed nothing, except with
    /// [`FsError::Aborted`]: then the transaction is aborted.
    pub fn within(&self, txn: Arc<dyn Transaction>) -> LocalFs {
        if let Some(aside) = txn.aside() {
            aside.make_large();
        }
        let within = Within {
            inner: self.inner.clone(),
            txn,
            order: RwLock::new(()),
            effects: Mutex::default(),
            reservation: Reservation::default(),
            failure: OnceLock::new(),
        };
        LocalFs { within: Some(Arc::new(within)), ..self.clone() }
    }

    /// Prepares for a transaction that is about to begin and will create many inodes: reserves inode
    /// numbers now, so that the transaction does not conflict with a later reservation.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn prepare(&self) -> Result<(), FsError> {
        if self.inner.options.read_only { Ok(()) } else { self.inner.prepare_numbers().await }
    }

    /// Commits the transaction of a handle from [`LocalFs::within`].
    ///
    /// # Errors
    /// [`FsError::Conflict`]: nothing of it counts; begin again. [`FsError::Invalid`] for a handle
    /// without one.
    pub async fn commit(&self, durability: Durability) -> Result<(), FsError> {
        let within = self.within.as_ref().ok_or(FsError::Invalid("there is no transaction"))?;
        let _order = within.order.write().await;
        let before = self.inner.moment();
        let committed = within.txn.commit(durability).await;
        if let Ok(version) = &committed {
            let effects = std::mem::take(&mut *within.effects.lock());
            self.inner.tell(&effects);
            let synced = (durability == Durability::Synced).then_some((before, version.version));
            self.inner.settle(effects, synced);
        }
        self.inner.end_reservation(within.reservation.end()).await;
        committed?;
        Ok(())
    }

    /// Takes back everything that was done through a handle from [`LocalFs::within`]. Without one, does
    /// nothing.
    pub async fn abort(&self) {
        let Some(within) = &self.within else { return };
        let _order = within.order.write().await;
        within.txn.abort().await;
        self.inner.end_reservation(within.reservation.end()).await;
    }

    /// Why the transaction of a handle from [`LocalFs::within`] was aborted in the middle of a call.
    pub fn failure(&self) -> Option<FsError> {
        self.within.as_ref()?.failure.get().cloned()
    }

    /// Changes something.
    async fn change<T, Work>(
        &self,
        work: impl Fn(Arc<dyn Transaction>) -> Work,
    ) -> Result<T, FsError>
    where
        Work: Future<Output = Result<(T, Effects), FsError>>,
    {
        self.change_as(Durability::Visible, work).await
    }

    async fn change_as<T, Work>(
        &self,
        durability: Durability,
        work: impl Fn(Arc<dyn Transaction>) -> Work,
    ) -> Result<T, FsError>
    where
        Work: Future<Output = Result<(T, Effects), FsError>>,
    {
        let Some(within) = &self.within else {
            let recorder = self.recorder.as_deref();
            return match self.inner.change_for(recorder, durability, &work).await {
                // A call that finds no room waits for blocks that are being freed.
                Err(FsError::NoSpace | FsError::QuotaExceeded)
                    if self.inner.may_have_more_room() =>
                {
                    self.inner.free_room().await?;
                    self.inner.change_for(recorder, durability, &work).await
                }
                done => done,
            };
        };
        let _order = within.order.write().await;
        let mut done = work(within.txn.clone()).await;
        if !matches!(&done, Err(error) if error.ends_transaction()) {
            let written = within.reservation.write_released(&self.inner, &within.txn).await;
            done = written.map_err(FsError::ending_transaction).and(done);
        }
        match done {
            Ok((done, effects)) => {
                within.effects.lock().add(effects);
                Ok(done)
            }
            Err(error) => {
                if error.ends_transaction() {
                    // It may have been changed in part.
                    within.fail(&error).await;
                }
                Err(error)
            }
        }
    }

    /// Looks at something.
    async fn look<T, Work>(
        &self,
        work: impl FnOnce(Arc<dyn Transaction>) -> Work,
    ) -> Result<T, FsError>
    where
        Work: Future<Output = Result<T, FsError>>,
    {
        match &self.within {
            None => work(self.inner.look().await?).await,
            Some(within) => {
                let _order = within.order.read().await;
                work(within.txn.clone()).await
            }
        }
    }

    fn op<'a>(&'a self, txn: &'a Arc<dyn Transaction>) -> FsCall<'a> {
        let op = FsCall::new(&self.inner, txn, self.within.is_some());
        let op = match &self.recorder {
            Some(recorder) => op.recorded(recorder),
            None => op,
        };
        match &self.within {
            Some(within) => op.with(&within.reservation).after(&within.effects.lock()),
            None => op,
        }
    }

    /// Notes that an inode was read, as far as that is noted.
    async fn accessed(&self, ino: Ino, op: &mut FsCall<'_>) -> Result<(), FsError> {
        if self.within.is_none() {
            let record = op.inode(ino.0).await?;
            self.inner.note_access(ino.0, &record);
        }
        Ok(())
    }

    /// Attributes as a caller is told of them.
    fn answer(&self, attributes: Attributes) -> Answer {
        Answer::until_changed(match self.within {
            None => self.inner.with_access(attributes),
            Some(_) => attributes,
        })
    }

    /// The limits and the usage of a directory that is the root of a quota.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`].
    pub async fn quota(&self, directory: Ino) -> Result<Option<Quota>, FsError> {
        self.look(async |txn| self.op(&txn).quota(directory.0).await).await
    }

    /// Every directory that is the root of a quota.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn quotas(&self) -> Result<Vec<Ino>, FsError> {
        self.look(async |txn| Ok(self.op(&txn).quotas().await?.into_iter().map(Ino).collect()))
            .await
    }

    /// Sets limits of a directory tree, in bytes and in inodes; `None` keeps a limit, and 0 removes it. A
    /// directory without a quota becomes the root of one, and its tree is walked and counted. The extended
    /// attributes `thalweg.quota.max_bytes` and `thalweg.quota.max_files` do the same.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; [`FsError::NotSupported`] within a transaction, for a directory that is
    /// not empty and has no quota yet.
    pub async fn set_quota(
        &self,
        directory: Ino,
        bytes: Option<u64>,
        inodes: Option<u64>,
    ) -> Result<(), FsError> {
        let walk = self
            .change(async |txn| {
                let mut op = self.op(&txn);
                let walk = op.set_limits(directory.0, bytes, inodes).await?;
                Ok((walk, op.finish().await?))
            })
            .await?;
        if walk { self.inner.count_tree(directory.0).await } else { Ok(()) }
    }

    /// Sets how reads of inodes are noted from now on.
    pub fn set_atime(&self, atime: Atime) {
        self.inner.set_atime(atime);
    }

    /// Finishes pending work, records access times, and returns when everything survives a crash. Without
    /// it the next opening does the same.
    ///
    /// # Errors
    /// Those of the transactions.
    pub async fn close(&self) -> Result<(), FsError> {
        if self.inner.options.read_only {
            return Ok(());
        }
        self.inner.run_deferred_work().await?;
        // The keeper may be in the middle of work that it took over: this waits for it.
        self.inner.finish_reservations().await?;
        self.inner.finish_freed().await?;
        self.inner.finish_deferred_removals().await?;
        self.inner.flush_accesses().await?;
        self.inner.save_counts().await?;
        if let Some(external_contents) = &self.inner.external_contents {
            external_contents.contents.settle().await?;
        }
        self.inner.sync(None).await
    }

    async fn write_piece(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        clears_suid: bool,
        durability: Durability,
    ) -> Result<u64, FsError> {
        self.change_as(durability, async |txn| {
            let mut op = self.op(&txn);
            let offset = op.write(ino.0, at, data.clone(), clears_suid).await?;
            op.outcome = offset;
            Ok((offset, op.finish().await?))
        })
        .await
    }

    async fn reserve(
        &self,
        ino: Ino,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<(), FsError> {
        let mut at = offset;
        while at < end {
            at = self
                .change(async |txn| {
                    let mut op = self.op(&txn);
                    let done = op.reserve(ino.0, at..end, keep_size, RESERVED_AT_ONCE).await?;
                    Ok((done, op.finish().await?))
                })
                .await?;
        }
        Ok(())
    }

    async fn punch(&self, ino: Ino, offset: u64, end: u64) -> Result<(), FsError> {
        let most = if self.within.is_some() { usize::MAX } else { orphans::EXTENTS_AT_ONCE };
        let mut at = end;
        while at > offset {
            at = self
                .change(async |txn| {
                    let mut op = self.op(&txn);
                    let done = op.punch(ino.0, offset..at, most).await?;
                    Ok((done, op.finish().await?))
                })
                .await?;
        }
        Ok(())
    }

    async fn zero(&self, ino: Ino, offset: u64, end: u64, keep_size: bool) -> Result<(), FsError> {
        if end - offset > LONG_ZEROS * BLOCK || self.within.is_some() {
            self.punch(ino, offset, end).await?;
            return self.reserve(ino, offset, end, keep_size).await;
        }
        let mut at = offset;
        while at < end {
            at = self
                .change(async |txn| {
                    let mut op = self.op(&txn);
                    let done = op.zero(ino.0, at..end, keep_size, ZEROED_AT_ONCE).await?;
                    Ok((done, op.finish().await?))
                })
                .await?;
        }
        Ok(())
    }
}

impl FsCall<'_> {
    async fn set_attributes(
        &mut self,
        ino: u64,
        change: &AttributeChange,
    ) -> Result<Attributes, FsError> {
        let mut record = match change.size {
            Some(_) => self.file(ino).await?,
            None => self.inode(ino).await?,
        };
        if let Some(mode) = change.mode {
            self.change_mode(ino, &mut record, mode).await?;
        }
        if let Some(uid) = change.uid {
            record.uid = uid.into();
        }
        if let Some(gid) = change.gid {
            record.gid = gid.into();
        }
        if change.clear_suid && kind_of(ino, &record)? != Kind::Directory {
            content::clear_suid(&mut record);
        }
        if let Some(size) = change.size {
            self.set_size(ino, &mut record, size).await?;
            record.modified = self.now.into();
        }
        let time = |change: TimeChange| match change {
            TimeChange::Now => self.now,
            TimeChange::At(time) => format::encode_time(time),
        };
        if let Some(accessed) = change.accessed {
            record.accessed = time(accessed).into();
        }
        if let Some(modified) = change.modified {
            record.modified = time(modified).into();
        }
        self.touch(ino, &mut record);
        self.set_inode(ino, record);
        attributes_of(ino, &record)
    }
}
