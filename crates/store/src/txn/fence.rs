//! The fence: protects a volume with a structure of its own from writes outside of transactions.
//!
//! A block device or an NBD client writes outside of transactions, and would overwrite the data that
//! transactions keep in the volume. So a structure, such as a catalogue of partitions, announces the bytes
//! with which block 0 begins while the structure exists. The fence is up from the commit that writes those
//! bytes until one removes them. [`Fenced`](super::Fenced) is the store for such writers: it refuses their writes
//! while the fence is up.
//!
//! A writer that has the volume open excludes the structure in turn: while it holds an
//! [`Occupation`](super::Occupation), a
//! commit that would raise the fence fails.
//!
//! Both sides check under the lock of the commit order, so that neither misses the other: a write either
//! precedes the commit, which then conflicts with it if it read that block, or waits for its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_env::HashMap;

use super::TxnError;
use super::intent::Intent;
use crate::block::{Lba, StoreError};

/// The block that raises the fence.
const HEAD: Lba = Lba(0);

/// The fence, under the lock of the commit order.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// The first bytes of block 0 while the fence is up; empty when there is no fence.
    pub(super) prefix: &'static [u8],
    /// Commits of transactions that write block 0 and have no outcome yet.
    pending: u32,
    /// Why the fence may not be raised now.
    pub(super) occupants: HashMap<u64, String>,
    pub(super) next_occupant: u64,
    /// Whether it is up. Writes that bypass the stream while no transaction runs read it without the lock:
    /// only a transaction raises it.
    pub(super) is_up: Arc<AtomicBool>,
}

impl Fence {
    /// Whether a transaction raises the fence (true) or lowers it (false); `None` if it leaves block 0 alone.
    fn raised_by(&self, intent: &Intent) -> Option<bool> {
        if self.prefix.is_empty() || intent.is_singleton() {
            return None;
        }
        intent.content_of(HEAD).map(|content| content.is_some_and(|it| it.starts_with(self.prefix)))
    }

    /// Records a transaction that is about to be decided.
    ///
    /// # Errors
    /// [`TxnError::Invalid`]: it would raise the fence, which an occupant excludes.
    pub(super) fn enter(&mut self, intent: &Intent) -> Result<(), TxnError> {
        let Some(raises) = self.raised_by(intent) else { return Ok(()) };
        match self.occupants.values().next() {
            Some(why) if raises && !self.is_up() => Err(TxnError::Invalid(why.clone())),
            _ => {
                self.pending += 1;
                Ok(())
            }
        }
    }

    /// Records the outcome of a transaction that entered.
    pub(super) fn leave(&mut self, intent: &Intent, committed: bool) {
        if let Some(raises) = self.raised_by(intent) {
            assert!(self.pending > 0, "a transaction leaves the fence that did not enter");
            self.pending -= 1;
            if committed {
                self.is_up.store(raises, Ordering::SeqCst);
            }
        }
    }

    fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
    }

    /// Whether writes outside of transactions may enter the stream: `None` while that is being decided.
    pub(super) fn permits(&self) -> Option<bool> {
        (self.pending == 0).then(|| !self.is_up())
    }
}

/// Why a write outside of transactions fails while the fence is up.
pub(super) fn refused() -> StoreError {
    StoreError::Invalid(
        "the volume holds partitions, which this write could destroy; use them as partitions, or \
         open the volume for writing as a whole explicitly"
            .to_owned(),
    )
}
