//! The store for writers without transactions, whose writes fail while the fence is up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::inner::Inner;
use super::manager::TransactionManager;
use super::past::{self, Past};
use crate::block::{Applied, BlockStore, Layer, Lba, Retention, StoreError, Version, WriteList};

/// Excludes a structure that would raise the fence, until dropped.
#[derive(Debug)]
pub struct Occupation {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Occupation {
    fn drop(&mut self) {
        self.inner.order.lock().fence.occupants.remove(&self.id);
    }
}

impl TransactionManager {
    /// Announces that a volume whose block 0 begins with `prefix` has a structure that writes outside of
    /// transactions would destroy; `is_up`: it has one now.
    pub fn fence(&self, prefix: &'static [u8], is_up: bool) {
        let mut order = self.inner.order.lock();
        order.fence.prefix = prefix;
        order.fence.is_up.store(is_up, Ordering::SeqCst);
    }

    /// Whether [`TransactionManager::fenced`] refuses writes now.
    pub fn is_fenced(&self) -> bool {
        self.inner.is_fenced()
    }

    /// The store for writers without transactions: its writes fail while the fence is up.
    pub fn fenced(&self) -> Fenced {
        Fenced { manager: self.clone() }
    }

    /// Excludes commits that would raise the fence, until the returned guard is dropped; they fail with
    /// `why`. A commit that is being decided may still raise it.
    pub fn occupy(&self, why: String) -> Occupation {
        let mut order = self.inner.order.lock();
        order.fence.next_occupant += 1;
        let id = order.fence.next_occupant;
        order.fence.occupants.insert(id, why);
        Occupation { inner: self.inner.clone(), id }
    }

    /// [`TransactionManager::is_fenced`], once the commits that are being decided have their outcome.
    pub async fn settled_fence(&self) -> bool {
        past::decided(&self.inner).await;
        self.is_fenced()
    }
}

/// A manager as a block store whose writes fail while the fence is up.
#[derive(Clone, Debug)]
pub struct Fenced {
    manager: TransactionManager,
}

#[async_trait]
impl Layer for Fenced {
    fn below(&self) -> &dyn BlockStore {
        &self.manager
    }

    fn is_read_only(&self) -> bool {
        self.manager.is_fenced() || self.manager.inner.store.is_read_only()
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.manager.submit_past(Past::Fence, writes, retention).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        past::discard(&self.manager.inner, Past::Fence, lba, count).await
    }
}
