//! A store, wherever it runs.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_store::tree::Store;
use thalweg_store::txn::{Handle, Transact, Transaction};

use crate::ImgError;

/// A transaction on the volume that both stores are on.
pub type Txn = Arc<dyn Transaction>;

/// What a store can do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    /// Finds the value of a key.
    Get(Bytes),
    /// Gives a key a value.
    Put(Bytes, Bytes),
    /// Takes a key out, if it is there.
    Delete(Bytes),
    /// Finds the keys from one on, up to another one.
    Range(Bytes, Bytes),
}

/// A store, wherever it runs.
#[async_trait]
pub trait Endpoint: Send + Sync + 'static {
    /// Makes some calls inside of a transaction, in order; what they found.
    ///
    /// The store may run where the transaction has to be handed over to, so it goes along and comes back.
    ///
    /// # Errors
    /// [`ImgError`]; the transaction is aborted then.
    async fn call(&self, txn: Txn, calls: Vec<Call>) -> Result<(Txn, Vec<Bytes>), ImgError>;
}

/// Cross-library: a plain call.
#[async_trait]
impl Endpoint for Store {
    async fn call(&self, txn: Txn, calls: Vec<Call>) -> Result<(Txn, Vec<Bytes>), ImgError> {
        let found = perform(self, &txn, calls).await?;
        Ok((txn, found))
    }
}

/// Makes calls of a store in this process.
async fn perform(store: &Store, txn: &Txn, calls: Vec<Call>) -> Result<Vec<Bytes>, ImgError> {
    let mut found = Vec::new();
    for call in calls {
        match call {
            Call::Get(key) => found.extend(store.get_in(&**txn, &key).await?),
            Call::Put(key, value) => store.put_in(&**txn, &key, value).await?,
            Call::Delete(key) => drop(store.delete_in(&**txn, &key).await?),
            Call::Range(from, to) => {
                let pairs = store.range_in(txn.clone(), from..to)?.collect().await?;
                found.extend(pairs.into_iter().map(|(key, _)| key));
            }
        }
    }
    Ok(found)
}

/// Lends a transaction to a store that runs elsewhere: lets go of it, has its handle answered, and takes
/// it back.
///
/// A store that dies once it has let go of the transaction leaves it to nobody: it is aborted when its
/// time is up.
pub(crate) async fn lend(
    volume: &dyn Transact,
    txn: Txn,
    ask: impl AsyncFnOnce(Handle) -> Result<(Handle, Vec<Bytes>), ImgError>,
) -> Result<(Txn, Vec<Bytes>), ImgError> {
    let handle = txn.release().await?;
    match ask(handle).await {
        Ok((handle, found)) => Ok((volume.takeover(handle).await?, found)),
        Err(error) => {
            // A store that died before it took it over has left it here.
            if let Ok(txn) = volume.takeover(handle).await {
                txn.abort().await;
            }
            Err(error)
        }
    }
}

/// The other side of [`lend`]: takes the transaction over, makes the calls, and lets go of it again.
/// When a call fails, the transaction is dropped here, which aborts it.
pub(crate) async fn answer(
    store: &Store,
    handle: Handle,
    calls: Vec<Call>,
) -> Result<(Handle, Vec<Bytes>), ImgError> {
    let txn = store.volume().takeover(handle).await?;
    let found = perform(store, &txn, calls).await?;
    Ok((txn.release().await?, found))
}
