//! The transactions of a volume, for the process that opened it. A child that this one forks gets an error from each call, at
//! once, and ends none of its parent's transactions. All stores, scans and transactions of a volume use it through this.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::Env;
use thalweg_env::process::OfProcess;
use thalweg_store::block::{BlockVersion, Class, Epoch, EpochVersion, Lba, Position, Version};
use thalweg_store::stale::{Cost, Needs, Standing, VersionRange};
use thalweg_store::txn::{
    Aside, Begin, Contention, Durability, Handle, Seen, Transact, Transaction, TxnError,
};

/// A volume of this process.
#[derive(Debug)]
pub(super) struct Guarded {
    volume: OfProcess<Arc<dyn Transact>>,
    /// Where a child would wait for a turn: the parent's may be taken for ever.
    spare: Contention,
}

impl Guarded {
    pub(super) fn new(env: &Env, volume: Arc<dyn Transact>) -> Guarded {
        Guarded { volume: OfProcess::new(volume), spare: Contention::new(env) }
    }
}

fn guarded(transaction: Arc<dyn Transaction>) -> Arc<dyn Transaction> {
    let version = transaction.version();
    Arc::new(GuardedTransaction { transaction: OfProcess::new(transaction), version })
}

#[async_trait]
impl Transact for Guarded {
    fn blocks(&self) -> u64 {
        self.volume.get().map_or(0, |volume| volume.blocks())
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        self.volume.get()?.begin(begin).await.map(guarded)
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.volume.get()?.takeover(handle).await.map(guarded)
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        self.volume.get()?.sync().await
    }

    fn synced(&self) -> Option<EpochVersion> {
        self.volume.get().ok()?.synced()
    }

    fn room(&self) -> Option<u64> {
        self.volume.get().ok()?.room()
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        self.volume.get()?.versions(lba).await
    }

    async fn view(&self, needs: &Needs, first: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        self.volume.get()?.view(needs, first).await.map(guarded)
    }

    async fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        self.volume.get()?.contents(lba, range).await
    }

    async fn position(&self) -> Result<Option<Position>, TxnError> {
        self.volume.get()?.position().await
    }

    async fn standing(&self) -> Result<Standing, TxnError> {
        self.volume.get()?.standing().await
    }

    async fn reached(
        &self,
        position: Position,
        within: Option<Duration>,
    ) -> Result<bool, TxnError> {
        self.volume.get()?.reached(position, within).await
    }

    async fn replicated(
        &self,
        version: Version,
        within: Duration,
    ) -> Result<Option<bool>, TxnError> {
        self.volume.get()?.replicated(version, within).await
    }

    fn contention(&self) -> &Contention {
        self.volume.get().map_or(&self.spare, |volume| volume.contention())
    }

    async fn discard_run(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        self.volume.get()?.discard_run(lba, count).await
    }
}

/// A transaction of this process.
#[derive(Debug)]
struct GuardedTransaction {
    transaction: OfProcess<Arc<dyn Transaction>>,
    /// The version that it read when it began.
    version: EpochVersion,
}

#[async_trait]
impl Transaction for GuardedTransaction {
    fn blocks(&self) -> u64 {
        self.transaction.get().map_or(0, |it| it.blocks())
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.transaction.get()?.read_run(lba, count).await
    }

    async fn read(&self, lba: Lba) -> Result<Bytes, TxnError> {
        self.transaction.get()?.read(lba).await
    }

    fn write(&self, lba: Lba, content: Bytes) -> Result<(), TxnError> {
        self.transaction.get()?.write(lba, content)
    }

    fn write_as(&self, lba: Lba, content: Bytes, class: Class) -> Result<(), TxnError> {
        self.transaction.get()?.write_as(lba, content, class)
    }

    fn discard(&self, lba: Lba) -> Result<(), TxnError> {
        self.transaction.get()?.discard(lba)
    }

    fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        self.transaction.get()?.mark_accessed(lba, range)
    }

    fn depend(&self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        self.transaction.get()?.depend(lba, range)
    }

    fn aside(&self) -> Option<&dyn Aside> {
        self.transaction.get().ok()?.aside()
    }

    fn please_cache(&self, lba: Lba) {
        if let Ok(transaction) = self.transaction.get() {
            transaction.please_cache(lba);
        }
    }

    fn version(&self) -> EpochVersion {
        self.transaction.get().map_or(self.version, |it| it.version())
    }

    fn node(&self) -> Option<Arc<str>> {
        self.transaction.get().ok()?.node()
    }

    async fn seen(&self) -> Result<Seen, TxnError> {
        self.transaction.get()?.seen().await
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        self.transaction.get()?.commit(durability).await
    }

    async fn abort(&self) {
        if let Ok(transaction) = self.transaction.get() {
            transaction.abort().await;
        }
    }

    async fn release(&self) -> Result<Handle, TxnError> {
        self.transaction.get()?.release().await
    }
}
