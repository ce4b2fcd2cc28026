//! Changes that a pool refuses because of how it is open.

use super::{Pool, PoolError};
use crate::block::StoreError;
use crate::chain::ChainError;

impl Pool {
    /// Refuses changes of the devices of a volume that is open read-only, and of the size of one that follows another one,
    /// from which its size comes. The devices of such a one may change.
    pub(super) fn refuse_change(&self, of_size: bool) -> Result<(), PoolError> {
        if self.chain.is_only_looked_at() {
            return Err(ChainError::from(StoreError::ReadOnly).into());
        }
        match of_size && self.chain.label().follows {
            true => {
                let why = "a replica has the size of its primary; change that one's";
                Err(PoolError::Invalid(why.into()))
            }
            false => Ok(()),
        }
    }
}
