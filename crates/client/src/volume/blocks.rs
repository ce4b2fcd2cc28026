//! Blocks of a volume, by their place in it. A call inside this thread's transaction is part of it; any other call is a
//! transaction of its own.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::{EpochVersion, Lba};
use thalweg_store::tree::{TreeError, catalogue};
use thalweg_store::txn::{Begin, Transaction, TxnError};

use super::Volume;

impl Volume {
    /// Reads blocks from `lba` on. Outside of a transaction it sees all commits so far.
    ///
    /// # Errors
    /// As [`Transaction::read_run`].
    pub fn read(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        self.read_with_version(lba, count).map(|(_, blocks)| blocks)
    }

    /// [`Volume::read`], and which version the blocks are of. Outside of a transaction a crash may still lose that
    /// version. Inside of one the blocks also have what the transaction itself wrote.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub fn read_with_version(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(EpochVersion, Vec<Bytes>), TxnError> {
        let read = |it: &Arc<dyn Transaction>| {
            Ok::<_, TxnError>((it.version(), self.run(it.read_run(lba, count))?))
        };
        match self.inside(read)? {
            Some(done) => Ok(done),
            None => read(&self.run(self.transact.begin(Begin::SNAPSHOT))?),
        }
    }

    /// Writes whole blocks from `lba` on, on a volume without partitions. Outside of a transaction the write
    /// is a transaction of its own, which always commits and is durable when this returns.
    ///
    /// # Errors
    /// [`TreeError::Partitioned`] on a volume with partitions, and as [`Transaction::write`]; the block that
    /// failed and the blocks behind it are not written then.
    pub fn write(&self, lba: Lba, content: &[u8]) -> Result<(), TreeError> {
        self.explain(lba, self.write_raw(&self.whole, lba.0, content))
    }

    /// Discards blocks from `lba` on, on a volume without partitions. Outside of a transaction as
    /// [`Volume::write`].
    ///
    /// # Errors
    /// [`TreeError::Partitioned`] on a volume with partitions, and as [`Transaction::discard`].
    pub fn discard(&self, lba: Lba, count: u64) -> Result<(), TreeError> {
        self.explain(lba, self.discard_raw(&self.whole, lba.0, count))
    }

    /// Narrows this thread's last read or write of a block to `range`, on a volume without partitions.
    /// Outside of a transaction it has no effect: the access was a transaction of its own, which has ended.
    ///
    /// # Errors
    /// [`TreeError::Partitioned`] on a volume with partitions, and as [`Transaction::mark_accessed`].
    pub fn mark_accessed(&self, lba: Lba, range: Range<usize>) -> Result<(), TreeError> {
        self.explain(lba, self.mark_raw(&self.whole, lba.0, range))
    }

    /// Replaces a refusal of raw access by an error that names the partition at `lba`.
    pub(super) fn explain<T>(&self, lba: Lba, done: Result<T, TreeError>) -> Result<T, TreeError> {
        match done {
            Err(TreeError::Partitioned { .. }) => {
                Err(self.wait(catalogue::refusal(&*self.transact, lba.0)))
            }
            done => done,
        }
    }

    /// Asks for a block to be kept in memory.
    ///
    /// # Errors
    /// The error that has ended this thread's transaction.
    pub fn please_cache(&self, lba: Lba) -> Result<(), TxnError> {
        let hint = |it: &Arc<dyn Transaction>| {
            it.please_cache(lba);
            Ok::<(), TxnError>(())
        };
        match self.inside(hint)? {
            Some(()) => Ok(()),
            None => hint(&self.run(self.transact.begin(Begin::READ_ONLY))?),
        }
    }
}
