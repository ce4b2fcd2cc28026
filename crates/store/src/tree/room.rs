//! The room that is left in a store.

use super::error::TreeError;
use super::store::Store;
use crate::txn::Transaction;

impl Store {
    /// How many blocks of the store are free in a transaction's view, and how many there are. It reads the whole bitmap.
    ///
    /// # Errors
    /// Those of the transaction, and [`TreeError::Damaged`].
    pub async fn free_blocks(&self, txn: &dyn Transaction) -> Result<(u64, u64), TreeError> {
        self.work(txn).count_free().await
    }
}
