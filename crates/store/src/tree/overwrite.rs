//! Changes of parts of values.

use bytes::Bytes;

use super::{Store, TreeError};
use crate::txn::{Transaction, run};

impl Store {
    /// Overwrites a part of a key's value, within a transaction; see [`overwrite`](super::WorkingSet::overwrite).
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub async fn overwrite_in(
        &self,
        txn: &dyn Transaction,
        key: &[u8],
        offset: usize,
        part: impl Into<Bytes>,
    ) -> Result<bool, TreeError> {
        let mut set = self.working_set(txn);
        let was_there = set.overwrite(key, offset, part.into()).await?;
        set.finish()?;
        Ok(was_there)
    }

    /// Overwrites a part of a key's value; see [`overwrite`](super::WorkingSet::overwrite).
    ///
    /// # Errors
    /// As [`Store::put_in`].
    pub async fn overwrite(
        &self,
        key: &[u8],
        offset: usize,
        part: impl Into<Bytes>,
    ) -> Result<bool, TreeError> {
        let part = part.into();
        run(&**self.volume(), self.begin(), self.durability, async |txn| {
            self.overwrite_in(&*txn, key, offset, part.clone()).await
        })
        .await
    }
}
