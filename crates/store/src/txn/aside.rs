//! Writes to blocks that only one running transaction uses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashSet;

use super::begin;
use super::inner::Inner;
use super::order::Snapshot;
use super::transaction::{LocalTransaction, ZEROS};
use super::{Aside, TxnError};
use crate::block::{ByteRanges, Class, Lba, Retention, Write, WriteList};

/// Blocks that are written or discarded as one version of the store.
const AT_ONCE: usize = 64;

/// Keeps the store from being changed as a whole while it lives.
struct Floor<'a> {
    inner: &'a Inner,
    snapshot: Option<Snapshot>,
}

impl<'a> Floor<'a> {
    async fn take(inner: &'a Inner) -> Result<Floor<'a>, TxnError> {
        let snapshot = begin::begin(inner, |snapshot| snapshot).await?;
        Ok(Floor { inner, snapshot: Some(snapshot) })
    }
}

impl Drop for Floor<'_> {
    fn drop(&mut self) {
        // The shared snapshot is older than this write, so the next transaction needs a newer one; also when
        // the write was dropped halfway.
        self.inner.passed.store(true, Ordering::SeqCst);
        if let Some(snapshot) = self.snapshot.take() {
            self.inner.let_go(snapshot);
        }
    }
}

impl LocalTransaction {
    async fn apply_aside(&self, writes: Vec<Write>) -> Result<(), TxnError> {
        let writes = WriteList::new(writes)?;
        let applied = {
            let _floor = Floor::take(&self.inner).await?;
            self.check_active()?;
            self.inner.store.submit(writes, Retention::Unversioned).await?
        };
        applied.settle().await;
        self.check_active()
    }
}

#[async_trait]
impl Aside for LocalTransaction {
    async fn write(&self, writes: Vec<Write>) -> Result<(), TxnError> {
        writes.iter().try_for_each(|write| self.check(write.lba, 1))?;
        let mut writes = writes.into_iter().peekable();
        while writes.peek().is_some() {
            self.apply_aside(writes.by_ref().take(AT_ONCE).collect()).await?;
        }
        Ok(())
    }

    async fn read(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.check(lba, count)?;
        self.check_active()?;
        let (_, stored) = self.inner.store.read_newest(lba, count).await?;
        self.check_active()?;
        Ok(stored.into_iter().map(|block| block.unwrap_or_else(|| ZEROS.clone())).collect())
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        self.check(lba, count)?;
        let empty = |lba| Write {
            lba: Lba(lba),
            content: None,
            changed: ByteRanges::whole(),
            class: Class::Metadata,
        };
        let mut blocks = lba.0..lba.0 + count;
        while !blocks.is_empty() {
            self.apply_aside(blocks.by_ref().take(AT_ONCE).map(empty).collect()).await?;
        }
        Ok(())
    }

    fn make_large(&self) {
        self.running.is_large.store(true, Ordering::Relaxed);
    }

    fn owners(&self) -> Arc<Mutex<HashSet<u128>>> {
        self.inner.owners.clone()
    }
}
