//! Read views: calls that only read share a read-only transaction, and the pages that they have read in it, as
//! long as it is on the newest version that survives a crash.
//!
//! Every call first asks the volume for that version, so it sees what was acknowledged before it. A view holds its
//! version, which costs the volume memory or space once there are newer ones; so it lives for [`LIFETIME`] at most
//! and two of these without readers, and is then made anew.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use thalweg_env::{Env, HashMap, Task};

use crate::block::EpochVersion;
use crate::txn::{Begin, Transact, Transaction, TxnError};

/// How long a view lives.
const LIFETIME: Duration = Duration::from_millis(50);
/// Pages that a view keeps: those that were read first, so the upper levels of a tree are among them.
const MAX_PAGES: usize = 1024;

/// Pages that were read in one read-only transaction, by their place in the partition. They are what they say.
#[derive(Default)]
pub(super) struct SharedPages(RwLock<HashMap<u32, Bytes>>);

impl SharedPages {
    /// The content of a page.
    pub(super) fn get(&self, block: u32) -> Option<Bytes> {
        self.0.read().get(&block).cloned()
    }

    /// Adds a page, if there is room.
    pub(super) fn add(&self, block: u32, content: Bytes) {
        let mut pages = self.0.write();
        if pages.len() < MAX_PAGES {
            pages.insert(block, content);
        }
    }
}

/// A read-only transaction that several calls share.
pub(super) struct ReadView {
    txn: Arc<dyn Transaction>,
    version: EpochVersion,
    pages: SharedPages,
}

impl ReadView {
    /// Its transaction.
    pub(super) fn txn(&self) -> &dyn Transaction {
        &*self.txn
    }

    /// The pages that its calls have read.
    pub(super) fn pages(&self) -> &SharedPages {
        &self.pages
    }
}

/// The read view of a store. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct ReadViews(Arc<Mutex<Current>>);

#[derive(Default)]
struct Current {
    view: Option<Arc<ReadView>>,
    /// Drops views when their time is over; ends when there is none.
    sweeper: Option<Task<()>>,
}

impl fmt::Debug for ReadViews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadViews").finish_non_exhaustive()
    }
}

impl ReadViews {
    /// A view on the newest version that survives a crash; `None` when the volume does not say at once which one
    /// that is.
    ///
    /// # Errors
    /// Those of [`Transact::begin`].
    pub(super) async fn newest(
        &self,
        env: &Env,
        volume: &dyn Transact,
    ) -> Result<Option<Arc<ReadView>>, TxnError> {
        let Some(newest) = volume.synced() else { return Ok(None) };
        if let Some(view) = self.0.lock().view.clone().filter(|view| view.version == newest) {
            return Ok(Some(view));
        }
        let txn = volume.begin(Begin::READ_ONLY).await?;
        let version = txn.version();
        // It may have begun on a newer version, which a crash may lose.
        if volume.synced().is_none_or(|synced| synced < version) {
            return Ok(None);
        }
        let view = Arc::new(ReadView { txn, version, pages: SharedPages::default() });
        let before = self.install(env, &view);
        drop(before);
        Ok(Some(view))
    }

    /// Makes a view the current one. Returns the former one, which the caller drops without the lock.
    fn install(&self, env: &Env, view: &Arc<ReadView>) -> Option<Arc<ReadView>> {
        let mut current = self.0.lock();
        // The runtime on which it was started may have ended.
        if current.sweeper.as_ref().is_none_or(Task::is_finished) {
            let sweeper = env.spawn(sweep(env.clone(), Arc::downgrade(&self.0)));
            current.sweeper = Some(sweeper);
        }
        current.view.replace(view.clone())
    }

    /// Drops a view whose transaction was aborted.
    pub(super) fn drop_view(&self, view: &Arc<ReadView>) {
        let mut current = self.0.lock();
        if current.view.as_ref().is_some_and(|it| Arc::ptr_eq(it, view)) {
            current.view = None;
        }
    }
}

async fn sweep(env: Env, current: Weak<Mutex<Current>>) {
    loop {
        env.sleep(LIFETIME).await;
        let Some(current) = current.upgrade() else { return };
        let mut locked = current.lock();
        let view = locked.view.take();
        if view.is_none() {
            locked.sweeper = None;
            return;
        }
        drop(locked);
        drop(view);
    }
}
