//! Transactions that only read, of kinds of their own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::{Durability, Handle, Transaction, TxnError};
use crate::block::{Class, EpochVersion, Lba, Position};
use crate::stale::VersionRange;

/// What the reads of a transaction are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Seen {
    /// The versions whose state all of them are of.
    pub range: VersionRange,
    /// How long ago the newest of these was replaced, at most; `None` when that is not known.
    pub age: Option<Duration>,
    /// The name of the oldest of these on every machine, if it has one.
    pub position: Option<Position>,
    /// The timeline to which the volume's next version will belong, if it has one.
    pub timeline: Option<Uuid>,
}

/// What reads blocks of one state. [`Reading`] makes a transaction of it.
#[async_trait]
pub trait Reader: fmt::Debug + Send + Sync {
    /// See [`Transaction::blocks`].
    fn blocks(&self) -> u64;

    /// See [`Transaction::read_run`].
    ///
    /// # Errors
    /// Those of the transaction.
    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError>;

    /// See [`Transaction::please_cache`].
    fn please_cache(&self, _lba: Lba) {}

    /// See [`Transaction::version`].
    fn version(&self) -> EpochVersion;

    /// See [`Transaction::node`].
    fn node(&self) -> Option<Arc<str>> {
        None
    }

    /// See [`Transaction::seen`].
    ///
    /// # Errors
    /// Those of the transaction.
    async fn seen(&self) -> Result<Seen, TxnError>;

    /// See [`Transaction::commit`].
    ///
    /// # Errors
    /// Those of the transaction.
    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError>;

    /// See [`Transaction::abort`].
    async fn abort(&self);
}

/// A reader as a transaction, which takes no writes and has one owner.
#[derive(Debug)]
pub struct Reading<R>(pub R);

fn for_reading() -> TxnError {
    TxnError::Invalid("the transaction is for reading".to_owned())
}

#[async_trait]
impl<R: Reader> Transaction for Reading<R> {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.0.read_run(lba, count).await
    }

    fn write_as(&self, _lba: Lba, _content: Bytes, _class: Class) -> Result<(), TxnError> {
        Err(for_reading())
    }

    fn discard(&self, _lba: Lba) -> Result<(), TxnError> {
        Err(for_reading())
    }

    /// Without effect, as in every read-only transaction.
    fn mark_accessed(&self, _lba: Lba, _range: Range<usize>) -> Result<(), TxnError> {
        Ok(())
    }

    /// Without effect, as in every read-only transaction.
    fn depend(&self, _lba: Lba, _range: Range<usize>) -> Result<(), TxnError> {
        Ok(())
    }

    fn please_cache(&self, lba: Lba) {
        self.0.please_cache(lba);
    }

    fn version(&self) -> EpochVersion {
        self.0.version()
    }

    fn node(&self) -> Option<Arc<str>> {
        self.0.node()
    }

    async fn seen(&self) -> Result<Seen, TxnError> {
        self.0.seen().await
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        self.0.commit(durability).await
    }

    async fn abort(&self) {
        self.0.abort().await;
    }

    async fn release(&self) -> Result<Handle, TxnError> {
        Err(TxnError::Invalid("a view of old versions has one owner".to_owned()))
    }
}
