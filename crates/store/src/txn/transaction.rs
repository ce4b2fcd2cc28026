//! A transaction of this process.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::access::{Accesses, Own};
use super::commit;
use super::counts::Counts;
use super::inner::Inner;
use super::order::Snapshot;
use super::running::{Phase, Running, Work};
use super::{Durability, Handle, Seen, Transaction, TxnError};
use crate::block::{BLOCK_SIZE, Backpressure, BlocksExt, Class, EpochVersion, Lba, Version};
use crate::device::AlignedBuf;
use crate::stale::VersionRange;

/// Reads are charged too: recording this many takes as much memory as one written block.
const READS_PER_WRITE: usize = 64;

/// The content of blocks that hold nothing.
pub(super) static ZEROS: LazyLock<Bytes> =
    LazyLock::new(|| AlignedBuf::zeroed(BLOCK_SIZE).freeze());

/// A transaction of this process.
pub(super) struct LocalTransaction {
    pub(super) inner: Arc<Inner>,
    pub(super) running: Arc<Running>,
    /// After a release another owner may have it.
    released: AtomicBool,
}

impl fmt::Debug for LocalTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.running.id).finish_non_exhaustive()
    }
}

impl Drop for LocalTransaction {
    fn drop(&mut self) {
        if !self.released.load(Ordering::Acquire) {
            self.finish();
        }
    }
}

impl LocalTransaction {
    pub(super) fn new(inner: Arc<Inner>, running: Arc<Running>) -> LocalTransaction {
        LocalTransaction { inner, running, released: AtomicBool::new(false) }
    }

    /// Ends the transaction without a commit.
    fn finish(&self) {
        if let Phase::Active(snapshot) = self.inner.end(&self.running, Phase::Ended) {
            self.inner.let_go(snapshot);
            Counts::add(&self.inner.counts.aborts, 1);
        }
        self.inner.registry.lock().remove(self.running.id);
    }

    /// The transaction's work, unless it was released.
    ///
    /// # Errors
    /// [`TxnError::Ended`] after a release.
    fn usable(&self) -> Result<MutexGuard<'_, Work>, TxnError> {
        match self.released.load(Ordering::Acquire) {
            true => Err(TxnError::Ended),
            false => Ok(self.running.work.lock()),
        }
    }

    /// Ends the transaction for a commit: it no longer counts as running, and cannot be aborted any more.
    fn end(&self) -> Result<(Snapshot, Accesses), TxnError> {
        let mut work = self.usable()?;
        work.snapshot()?;
        let phase = std::mem::replace(&mut work.phase, Phase::Ended);
        let accesses = std::mem::take(&mut work.accesses);
        drop(work);
        self.inner.discharge(&self.running);
        self.inner.registry.lock().remove(self.running.id);
        match phase {
            Phase::Active(snapshot) => Ok((snapshot, accesses)),
            _ => Err(TxnError::Ended),
        }
    }

    /// Records that the transaction is in use.
    ///
    /// # Errors
    /// Why it does not run any more.
    pub(super) fn check_active(&self) -> Result<(), TxnError> {
        self.usable()?.snapshot()?;
        self.running.touch(self.inner.tick());
        Ok(())
    }

    pub(super) fn check(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        let blocks = self.inner.store.blocks();
        match lba.0.checked_add(count) {
            Some(end) if end <= blocks => Ok(()),
            _ => Err(TxnError::Invalid(format!(
                "{count} blocks from {} on leave a volume of {blocks} blocks",
                lba.0
            ))),
        }
    }

    fn put(&self, lba: Lba, content: Option<Bytes>, class: Class) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        if content.as_ref().is_some_and(|content| content.len() != BLOCK_SIZE) {
            return Err(TxnError::Invalid(format!("a block has {BLOCK_SIZE} bytes")));
        }
        let is_too_much = {
            let mut work = self.usable()?;
            work.snapshot()?;
            if self.running.begin.read_only {
                return Err(TxnError::Invalid("the transaction is for reading".to_owned()));
            }
            let before = work.accesses.writes();
            let most = match self.running.is_large.load(Ordering::Relaxed) {
                true => self.inner.options.max_large,
                false => self.inner.options.max_writes,
            };
            work.accesses.write(lba, content, class, most)?;
            let written = work.accesses.writes() - before;
            self.inner.charge(&self.running, &mut work, written)
        };
        self.running.touch(self.inner.tick());
        if is_too_much {
            self.inner.preempt_the_greediest();
        }
        Ok(())
    }

    /// Records reads, and separates the blocks that the transaction itself wrote; an empty list if it wrote none.
    fn plan(&self, lba: Lba, count: u64) -> Result<Plan, TxnError> {
        let mut work = self.usable()?;
        let at = work.snapshot()?.hold.version();
        let begin = self.running.begin;
        if begin.is_untracked() && work.accesses.blocks() == 0 {
            return Ok(Plan { at, own: SmallVec::new(), is_too_much: false });
        }
        let mut own = SmallVec::with_capacity(count as usize);
        let before = work.accesses.blocks();
        for lba in (lba.0..lba.0 + count).map(Lba) {
            own.push(work.accesses.own(lba));
            work.accesses.read(lba, begin.is_untracked());
        }
        let noted = work.accesses.blocks() - before;
        let charged = noted.div_ceil(READS_PER_WRITE);
        let is_too_much = self.inner.charge(&self.running, &mut work, charged);
        Ok(Plan { at, own, is_too_much })
    }
}

/// What a read needs from the store.
struct Plan {
    at: Version,
    own: SmallVec<[Own; 1]>,
    /// The read set exceeds the memory limit.
    is_too_much: bool,
}

#[async_trait]
impl Transaction for LocalTransaction {
    fn blocks(&self) -> u64 {
        self.inner.store.blocks()
    }

    async fn read(&self, lba: Lba) -> Result<Bytes, TxnError> {
        self.check(lba, 1)?;
        let mut plan = self.plan(lba, 1)?;
        self.running.touch(self.inner.tick());
        if plan.is_too_much {
            self.inner.preempt_the_greediest();
        }
        let stored = match plan.own.pop() {
            Some(Own::Content(content)) => Ok(Some(content)),
            Some(Own::Discarded) => Ok(None),
            Some(Own::Nothing) | None => match self.inner.store.peek(lba, plan.at) {
                Some(stored) => Ok(stored),
                None => {
                    self.inner.store.read(lba, 1, plan.at).await.map(|mut run| run.pop().flatten())
                }
            },
        };
        // As in `read_run`: first why the transaction does not run any more.
        self.usable()?.snapshot()?;
        Ok(stored?.unwrap_or_else(|| ZEROS.clone()))
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.check(lba, count)?;
        let plan = self.plan(lba, count)?;
        self.running.touch(self.inner.tick());
        if plan.is_too_much {
            self.inner.preempt_the_greediest();
        }
        let written = plan.own.iter().filter(|own| !matches!(own, Own::Nothing)).count();
        let stored = match written as u64 == count {
            true => Ok(vec![None; plan.own.len()]),
            false => self.inner.store.read(lba, count, plan.at).await,
        };
        // While the transaction was not aborted its snapshot was held, so all blocks belong to one snapshot.
        // Otherwise the reason counts, and not that the snapshot is gone.
        self.usable()?.snapshot()?;
        let mut stored = stored?;
        for (own, stored) in plan.own.into_iter().zip(&mut stored) {
            match own {
                Own::Content(content) => *stored = Some(content),
                Own::Discarded => *stored = None,
                Own::Nothing => {}
            }
        }
        Ok(stored.into_iter().map(|stored| stored.unwrap_or_else(|| ZEROS.clone())).collect())
    }

    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError> {
        self.put(lba, Some(content), class)
    }

    fn discard(&self, lba: Lba) -> Result<(), TxnError> {
        self.put(lba, None, Class::Metadata)
    }

    fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        let mut work = self.usable()?;
        work.snapshot()?;
        work.accesses.mark(lba, range, self.running.begin.is_untracked())
    }

    fn depend(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        let mut work = self.usable()?;
        work.snapshot()?;
        work.accesses.depend(lba, range)
    }

    fn aside(&self) -> Option<&dyn super::Aside> {
        Some(self)
    }

    fn please_cache(&self, lba: Lba) {
        self.inner.store.please_cache(lba);
    }

    fn version(&self) -> EpochVersion {
        self.inner.store.name(self.running.version)
    }

    async fn seen(&self) -> Result<Seen, TxnError> {
        let (version, versions) = (self.running.version, &self.inner.versions);
        let range = VersionRange { low: version, up: version };
        let (position, timeline) = (versions.position_of(version), versions.timeline());
        Ok(Seen { range, age: None, position, timeline })
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        let (snapshot, accesses) = self.end()?;
        let isolation = self.running.begin.isolation;
        let until = snapshot.until.unwrap_or(u64::MAX);
        let intent = accesses.into_intent(isolation, until);
        let (version, _, backpressure) = match intent.writes.is_empty() {
            true => {
                let (version, is_durable) = (snapshot.hold.version(), snapshot.until.is_none());
                self.inner.let_go(snapshot);
                Counts::add(&self.inner.counts.read_only, 1);
                if is_durable {
                    return Ok(self.inner.store.name(version));
                }
                (version, None, Backpressure::NONE)
            }
            false => {
                // No more reads: the store need not keep the snapshot any longer.
                drop(snapshot);
                commit::commit(&self.inner, intent).await?.into_parts()
            }
        };
        if durability == Durability::Synced {
            self.inner.store.sync(version).await?;
        }
        backpressure.wait().await;
        Ok(self.inner.store.name(version))
    }

    async fn abort(&self) {
        if !self.released.load(Ordering::Acquire) {
            self.finish();
        }
    }

    async fn release(&self) -> Result<Handle, TxnError> {
        self.usable()?.snapshot()?;
        let secret = self.inner.env.secret();
        let secret =
            secret.map_err(|error| TxnError::Invalid(format!("no random handle: {error}")))?;
        if self.released.swap(true, Ordering::AcqRel) {
            return Err(TxnError::Ended);
        }
        let handle = Handle(u128::from_le_bytes(secret));
        self.running.touch(self.inner.tick());
        self.inner.registry.lock().release(self.running.id, handle);
        Ok(handle)
    }
}
