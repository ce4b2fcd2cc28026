//! A process that runs transactions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::begin;
use super::inner::Inner;
use super::past::{self, Past};
use super::running::{OwnerId, Running};
use super::transaction::LocalTransaction;
use super::view::LocalView;
use super::{
    Begin, Contention, Handle, Preempted, Reading, Transact, Transaction, TxnError, no_replicas,
};
use crate::block::{BlockVersion, BlocksExt, Epoch, EpochVersion, Lba, Position, Version};
use crate::stale::{Cost, Needs, Standing, Unserved, VersionRange};

/// A process, or a connection of one, that runs transactions. When the last clone is dropped, its
/// transactions are aborted except for those that it released.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Process>,
}

#[derive(Debug)]
struct Process {
    inner: Arc<Inner>,
    owner: OwnerId,
}

impl Drop for Process {
    fn drop(&mut self) {
        let owned = self.inner.registry.lock().of(self.owner);
        for running in owned {
            self.inner.preempt(&running, Preempted::OwnerDied);
        }
    }
}

impl Client {
    pub(super) fn new(inner: &Arc<Inner>) -> Client {
        let owner = inner.registry.lock().owner();
        Client { shared: Arc::new(Process { inner: inner.clone(), owner }) }
    }

    /// See [`Transact::begin`].
    pub(super) async fn start(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        let (inner, owner) = (&self.shared.inner, self.shared.owner);
        if begin.at_primary && !inner.versions.is_primary() {
            return Err(Unserved::NotPrimary.into());
        }
        if let Some(after) = begin.after {
            inner.versions.check_way(after)?;
        }
        let enter = |snapshot| {
            let limits = (inner.tick(), inner.options.max_running);
            inner.registry.lock().add(owner, begin, snapshot, limits)
        };
        let entered = match (begin.at, begin.read_only) {
            (Some(at), true) => begin::begin_at(inner, at, enter).await?,
            (Some(_), false) => {
                let why = "a transaction on a given version is read-only";
                return Err(TxnError::Invalid(why.to_owned()));
            }
            (None, true) => begin::begin_synced(inner, enter).await?,
            (None, false) => begin::begin(inner, enter).await?,
        };
        let running = entered.map_err(|(error, snapshot)| {
            inner.let_go(snapshot);
            error
        })?;
        Ok(self.transaction(running))
    }

    fn transaction(&self, running: Arc<Running>) -> Arc<dyn Transaction> {
        Arc::new(LocalTransaction::new(self.shared.inner.clone(), running))
    }
}

#[async_trait]
impl Transact for Client {
    fn blocks(&self) -> u64 {
        self.shared.inner.store.blocks()
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        self.start(begin).await
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        let inner = &self.shared.inner;
        let most = inner.options.max_running;
        let running = inner.registry.lock().takeover(handle, self.shared.owner, most)?;
        running.touch(inner.tick());
        Ok(self.transaction(running))
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        let store = &self.shared.inner.store;
        let version = store.now();
        store.sync(version).await?;
        Ok(store.name(version))
    }

    fn synced(&self) -> Option<EpochVersion> {
        let store = &self.shared.inner.store;
        Some(store.name(store.synced()?))
    }

    fn room(&self) -> Option<u64> {
        self.shared.inner.store.room()
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        let store = &self.shared.inner.store;
        Ok((store.epoch(), store.versions(lba).await?))
    }

    async fn view(&self, needs: &Needs, first: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        let running = self.start(Begin::READ_ONLY).await?;
        let versions = &self.shared.inner.versions;
        Ok(Arc::new(Reading(LocalView::open(running, versions, needs, first)?)))
    }

    async fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        Ok(self.shared.inner.versions.contents(lba, range)?)
    }

    async fn standing(&self) -> Result<Standing, TxnError> {
        Ok(self.shared.inner.versions.standing())
    }

    async fn position(&self) -> Result<Option<Position>, TxnError> {
        Ok(self.shared.inner.store.position())
    }

    async fn reached(
        &self,
        position: Position,
        within: Option<Duration>,
    ) -> Result<bool, TxnError> {
        let inner = &self.shared.inner;
        if inner.store.relation(position).is_none() {
            return Err(no_replicas(position));
        }
        let reached = inner.store.reached(position);
        match within {
            None => reached.await?,
            Some(within) => match inner.env.timeout(within, reached).await {
                Some(reached) => reached?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    async fn replicated(
        &self,
        version: Version,
        within: Duration,
    ) -> Result<Option<bool>, TxnError> {
        let inner = &self.shared.inner;
        let replicated = inner.env.timeout(within, inner.store.replicated(version)).await;
        // No wait ends without replicas.
        Ok(replicated.map_or(Some(false), |replicated| replicated.then_some(true)))
    }

    fn contention(&self) -> &Contention {
        &self.shared.inner.contention
    }

    async fn discard_run(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        past::discard(&self.shared.inner, Past::Anything, lba, count).await?;
        Ok(())
    }
}
