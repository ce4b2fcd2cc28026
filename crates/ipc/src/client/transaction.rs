//! A transaction that runs at a server.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet};
use thalweg_store::block::{BLOCK_SIZE, Class, EpochVersion, Lba};
use thalweg_store::device::FrameBuf;
use thalweg_store::txn::{self, Begin, Durability, Handle, Isolation, Transaction, TxnError};

use super::{Link, unexpected};
use crate::protocol::{Answer, MAX_RUN, Request};

/// Maximum number of blocks that a transaction caches of its snapshot.
const REMEMBERED: usize = 128;

/// A transaction that runs at a server.
pub(super) struct RemoteTransaction {
    link: Arc<Link>,
    txn: u64,
    /// The version that it reads.
    version: OnceLock<EpochVersion>,
    /// The transaction has ended, or was released.
    ended: AtomicBool,
    /// `None` when the transaction was taken over: the accesses of its former owner are unknown here.
    seen: Option<Mutex<Seen>>,
    begin: Option<Begin>,
}

/// The accesses of a transaction so far.
#[derive(Default)]
struct Seen {
    accessed: HashSet<u64>,
    written: HashSet<u64>,
    /// Blocks of the snapshot, by number.
    blocks: HashMap<u64, Bytes>,
}

impl fmt::Debug for RemoteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteTransaction").field("txn", &self.txn).finish_non_exhaustive()
    }
}

impl Drop for RemoteTransaction {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Acquire)
            && self.link.tell(&Request::Abort { txn: self.txn }, &[]).is_ok()
        {
            self.link.channel.flush_soon();
        }
    }
}

impl RemoteTransaction {
    pub(super) fn new(link: Arc<Link>, txn: u64, begin: Option<Begin>) -> RemoteTransaction {
        let seen = begin.map(|_| Mutex::default());
        let (ended, version) = (AtomicBool::new(false), OnceLock::new());
        RemoteTransaction { link, txn, version, ended, seen, begin }
    }

    /// Notes the version that the server's transaction reads.
    pub(super) fn set_version(&self, version: EpochVersion) {
        // Set once, before anything else sees the transaction.
        let _ = self.version.set(version);
    }

    /// Marks the transaction as ended: the server does not have it.
    pub(super) fn forget(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn end(&self) -> Result<(), TxnError> {
        match self.ended.swap(true, Ordering::AcqRel) {
            true => Err(TxnError::Ended),
            false => Ok(()),
        }
    }

    fn check(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        if self.ended.load(Ordering::Acquire) {
            return Err(TxnError::Ended);
        }
        let blocks = self.blocks();
        match lba.0.checked_add(count) {
            Some(end) if end <= blocks => Ok(()),
            _ => Err(TxnError::Invalid(format!(
                "{count} blocks from {} on leave a volume of {blocks} blocks",
                lba.0
            ))),
        }
    }

    /// Whether the server does not validate the transaction's reads.
    fn is_untracked(&self) -> bool {
        self.begin.is_some_and(|it| it.read_only || it.isolation == Isolation::Snapshot)
    }

    /// The blocks, if all of them are cached. A written block is read at the server, which must know the
    /// access that a later mark narrows.
    fn remembered(&self, lba: Lba, count: u64) -> Option<Vec<Bytes>> {
        let seen = self.seen.as_ref().filter(|_| self.is_untracked())?.lock();
        (lba.0..lba.0 + count).map(|lba| seen.blocks.get(&lba).cloned()).collect()
    }

    /// Records a read and caches its blocks.
    fn note_read(&self, lba: Lba, blocks: &[Bytes]) {
        let Some(seen) = &self.seen else { return };
        let mut seen = seen.lock();
        for (lba, block) in (lba.0..).zip(blocks) {
            if !self.is_untracked() {
                seen.accessed.insert(lba);
            } else if seen.blocks.len() < REMEMBERED && !seen.written.contains(&lba) {
                seen.blocks.insert(lba, block.clone());
            }
        }
    }

    fn note_write(&self, lba: Lba) -> Result<(), TxnError> {
        if self.begin.is_some_and(|begin| begin.read_only) {
            return Err(TxnError::Invalid("the transaction is read-only".to_owned()));
        }
        let Some(seen) = &self.seen else { return Ok(()) };
        let mut seen = seen.lock();
        let most = self.link.max_writes;
        if seen.written.len() >= most && !seen.written.contains(&lba.0) {
            return Err(TxnError::TooLarge(most));
        }
        seen.written.insert(lba.0);
        seen.blocks.remove(&lba.0);
        Ok(())
    }

    async fn read_part(&self, lba: u64, count: u64) -> Result<Vec<Bytes>, TxnError> {
        let request = Request::Read { txn: self.txn, lba, count };
        let (Answer::Blocks, payload) = self.link.ask(&request).await? else {
            return Err(unexpected());
        };
        if payload.len() as u64 != count * BLOCK_SIZE as u64 {
            return Err(unexpected());
        }
        // Copied, each into memory of its own: callers keep blocks, and a slice would keep the whole receive
        // buffer.
        Ok(payload.chunks(BLOCK_SIZE).map(FrameBuf::copy_block).collect())
    }
}

/// The first byte of a range in a block, and the byte after the last.
fn ends(range: Range<usize>) -> Result<(u16, u16), TxnError> {
    match range.start <= range.end && range.end <= BLOCK_SIZE {
        // Both are at most the size of a block.
        true => Ok((range.start as u16, range.end as u16)),
        false => Err(TxnError::Invalid(format!(
            "bytes {} to {} are not in a block",
            range.start, range.end
        ))),
    }
}

#[async_trait]
impl Transaction for RemoteTransaction {
    fn blocks(&self) -> u64 {
        self.link.blocks.load(Ordering::Relaxed)
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.check(lba, count)?;
        if let Some(blocks) = self.remembered(lba, count) {
            return Ok(blocks);
        }
        let end = lba.0 + count;
        let starts = (lba.0..end).step_by(MAX_RUN as usize);
        let parts = starts.map(|start| self.read_part(start, MAX_RUN.min(end - start)));
        let blocks = try_join_all(parts).await?.concat();
        self.note_read(lba, &blocks);
        Ok(blocks)
    }

    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        if content.len() != BLOCK_SIZE {
            return Err(TxnError::Invalid(format!("a block has {BLOCK_SIZE} bytes")));
        }
        self.note_write(lba)?;
        self.link.tell(&Request::Write { txn: self.txn, lba: lba.0, class }, &[content])
    }

    fn discard(&self, lba: Lba) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        self.note_write(lba)?;
        self.link.tell(&Request::Discard { txn: self.txn, lba: lba.0 }, &[])
    }

    fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        self.check(lba, 0)?;
        let (start, end) = ends(range)?;
        if let Some(seen) = self.seen.as_ref().filter(|_| !self.is_untracked()) {
            let seen = seen.lock();
            if !seen.accessed.contains(&lba.0) && !seen.written.contains(&lba.0) {
                let why = format!("block {} was neither read nor written here", lba.0);
                return Err(TxnError::Invalid(why));
            }
        }
        self.link.tell(&Request::Mark { txn: self.txn, lba: lba.0, start, end }, &[])
    }

    fn depend(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        self.check(lba, 1)?;
        let (start, end) = ends(range)?;
        self.link.tell(&Request::Depend { txn: self.txn, lba: lba.0, start, end }, &[])
    }

    fn please_cache(&self, lba: Lba) {
        // A hint may be lost with the connection.
        let _ = self.link.tell(&Request::PleaseCache { txn: self.txn, lba: lba.0 }, &[]);
    }

    fn version(&self) -> EpochVersion {
        self.version.get().copied().unwrap_or_default()
    }

    async fn seen(&self) -> Result<txn::Seen, TxnError> {
        self.check(Lba(0), 0)?;
        match self.link.ask(&Request::Seen { txn: self.txn }).await? {
            (Answer::Seen(seen), _) => Ok(seen),
            _ => Err(unexpected()),
        }
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        self.end()?;
        match self.link.ask(&Request::Commit { txn: self.txn, durability }).await? {
            (Answer::At(version), _) => Ok(version),
            _ => Err(unexpected()),
        }
    }

    async fn abort(&self) {
        if self.end().is_ok() {
            // With the connection lost, the server has aborted it.
            let _ = self.link.ask(&Request::Abort { txn: self.txn }).await;
        }
    }

    async fn release(&self) -> Result<Handle, TxnError> {
        self.check(Lba(0), 0)?;
        match self.link.ask(&Request::Release { txn: self.txn }).await? {
            (Answer::Released(handle), _) => {
                self.forget();
                Ok(handle)
            }
            _ => Err(unexpected()),
        }
    }
}
