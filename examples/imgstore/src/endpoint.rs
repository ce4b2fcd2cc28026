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

/// A call of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    /// Finds the value of a key.
    Get(Bytes),
    /// Sets the value of a key.
    Put(Bytes, Bytes),
    /// Deletes a key, if it is present.
    Delete(Bytes),
    /// Finds the keys from the first (inclusive) to the second (exclusive).
    Range(Bytes, Bytes),
}

/// A store, wherever it runs.
#[async_trait]
pub trait Endpoint: Send + Sync + 'static {
    /// Makes calls inside a transaction, in order, and returns their results.
    ///
    /// The store may run in another thread or process: the transaction is passed there and back.
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

/// Lends a transaction to a store that runs elsewhere: releases it, passes its handle to `ask`, and takes it
/// over again.
///
/// If a store dies after it has released the transaction, the transaction has no owner and is aborted after
/// its time limit.
pub(crate) async fn lend(
    volume: &dyn Transact,
    txn: Txn,
    ask: impl AsyncFnOnce(Handle) -> Result<(Handle, Vec<Bytes>), ImgError>,
) -> Result<(Txn, Vec<Bytes>), ImgError> {
    let handle = txn.release().await?;
    match ask(handle).await {
        Ok((handle, found)) => Ok((volume.takeover(handle).await?, found)),
        Err(error) => {
            // A store that died before its takeover has left the transaction here.
            if let Ok(txn) = volume.takeover(handle).await {
                txn.abort().await;
            }
            Err(error)
        }
    }
}

/// The other side of [`lend`]: takes over the transaction, makes the calls, and releases it again. When a
/// call fails, the transaction is dropped here, which aborts it.
pub(crate) async fn answer(
    store: &Store,
    handle: Handle,
    calls: Vec<Call>,
) -> Result<(Handle, Vec<Bytes>), ImgError> {
    let txn = store.volume().takeover(handle).await?;
    let found = perform(store, &txn, calls).await?;
    Ok((txn.release().await?, found))
}
