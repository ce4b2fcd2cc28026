//! The slots of a session: a server keeps a record of the last change in each.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::SLOTS;

/// The slot of batches. Changes that use all other slots may wait for a batch.
const BATCH_SLOT: u16 = SLOTS - 1;

/// The slots of the session that no call uses.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Mutex<Vec<u16>>>,
    permits: Arc<Semaphore>,
}

impl Default for Slots {
    fn default() -> Slots {
        // The lowest first: servers keep a record of each one that was used.
        let free = Arc::new(Mutex::new((0..BATCH_SLOT).rev().collect()));
        Slots { free, permits: Arc::new(Semaphore::new(usize::from(BATCH_SLOT))) }
    }
}

impl Slots {
    /// A slot, as soon as one is free.
    pub(super) async fn acquire(&self) -> Option<Arc<Slot>> {
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        let number = self.free.lock().pop()?;
        Some(Arc::new(Slot { number, from: Some((self.free.clone(), permit)) }))
    }
}

/// A slot that a call uses, until its last clone is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: u16,
    /// Where it goes back to; not that of batches, of which one is under way at a time.
    from: Option<(Arc<Mutex<Vec<u16>>>, OwnedSemaphorePermit)>,
}

impl Slot {
    /// That of a batch.
    pub(super) fn of_batch() -> Arc<Slot> {
        Arc::new(Slot { number: BATCH_SLOT, from: None })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((free, _)) = &self.from {
            free.lock().push(self.number);
        }
    }
}
