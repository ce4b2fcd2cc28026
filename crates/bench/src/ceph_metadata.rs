//! The metadata server of the model of Ceph: calls, its journal, and which client may keep a file's pages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Time, watch};
use thalweg_fs::{FsError, Ino};
use thalweg_rados::ObjectStoreRef;
use thalweg_rados::object::{Change, Step};
use thalweg_sim::rados::SimRados;

use crate::arion_site::{LATENCY, PROCESSING};

/// Bytes of an object.
pub(crate) const OBJECT: u64 = 4 << 20;
/// Bytes of an event in the journal, and of the head of a write of it.
const EVENT: u64 = 2048;
const JOURNAL_HEAD: u64 = 4096;

/// What another client hears of a file when it opens it.
pub(crate) struct FileState {
    pub(crate) size: u64,
    /// The end of what the object servers have.
    pub(crate) stored: u64,
    /// The event that made it.
    pub(crate) made: u64,
}

/// A client that may keep pages of files.
#[async_trait]
pub(crate) trait PageHolder: Send + Sync {
    /// Another client is to have a file: what is dirty is written, and no page stays.
    async fn release(&self, file: Ino) -> Result<FileState, FsError>;
}

/// The metadata server.
pub(crate) struct CephMetadata {
    env: Env,
    store: ObjectStoreRef,
    free_at: Mutex<Time>,
    events: watch::Sender<u64>,
    /// Events up to this one are durable.
    durable: watch::Sender<u64>,
    last_ino: AtomicU64,
    /// The client that may keep the pages of a file, and write them later.
    holders: tokio::sync::Mutex<BTreeMap<Ino, Weak<dyn PageHolder>>>,
}

impl CephMetadata {
    /// A server; its task runs until the simulation ends.
    pub(crate) fn start(env: &Env, rados: &SimRados) -> Arc<CephMetadata> {
        let metadata = Arc::new(CephMetadata {
            env: env.clone(),
            store: rados.client().store(),
            free_at: Mutex::default(),
            events: watch::channel(0).0,
            durable: watch::channel(0).0,
            last_ino: AtomicU64::new(1),
            holders: tokio::sync::Mutex::default(),
        });
        let own = metadata.clone();
        env.spawn(async move { own.keep_journal().await }).detach();
        metadata
    }

    pub(crate) fn store(&self) -> ObjectStoreRef {
        self.store.clone()
    }

    pub(crate) fn new_ino(&self) -> Ino {
        Ino(self.last_ino.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A call; the number of its event if it changes something.
    pub(crate) async fn call(&self, changes: bool) -> u64 {
        self.env.sleep(LATENCY).await;
        self.work().await;
        self.env.sleep(LATENCY).await;
        if changes { self.event() } else { 0 }
    }

    /// Its processor handles a message.
    async fn work(&self) {
        let until = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(self.env.now()) + PROCESSING.call;
            *free_at
        };
        self.env.sleep_until(until).await;
    }

    /// Something is to be in its journal.
    pub(crate) fn event(&self) -> u64 {
        self.events.send_modify(|last| *last += 1);
        *self.events.borrow()
    }

    pub(crate) fn last_event(&self) -> u64 {
        *self.events.borrow()
    }

    /// Waits until an event is in its journal.
    pub(crate) async fn is_recorded(&self, event: u64) {
        let mut durable = self.durable.subscribe();
        while *durable.borrow_and_update() < event {
            let _ = durable.changed().await;
        }
    }

    /// A client has made a file.
    pub(crate) async fn hold(&self, file: Ino, client: &Weak<dyn PageHolder>) {
        self.holders.lock().await.insert(file, client.clone());
    }

    /// A client opens a file to write it. The one that may keep its pages writes them first, and drops them.
    pub(crate) async fn open(
        &self,
        file: Ino,
        client: &Weak<dyn PageHolder>,
    ) -> Result<FileState, FsError> {
        self.env.sleep(LATENCY).await;
        self.work().await;
        let before = {
            let mut holders = self.holders.lock().await;
            let before = holders.insert(file, client.clone());
            before.and_then(|before| before.upgrade()).ok_or(FsError::NotFound)?
        };
        self.env.sleep(LATENCY).await;
        let state = before.release(file).await?;
        self.env.sleep(LATENCY).await;
        self.work().await;
        self.env.sleep(LATENCY).await;
        Ok(state)
    }

    async fn keep_journal(&self) {
        let mut more = self.events.subscribe();
        let mut offset = 0;
        loop {
            let last = *more.borrow_and_update();
            let first = *self.durable.borrow();
            if last == first {
                let _ = more.changed().await;
                continue;
            }
            let len = JOURNAL_HEAD + (last - first) * EVENT;
            let data = vec![Bytes::from(vec![1; len as usize])];
            let name = format!("journal.{:08x}", offset / OBJECT);
            let change = Change::new().then(Step::Write { offset: offset % OBJECT, data });
            if self.store.apply(&name, change).await.is_ok() {
                offset += len;
                self.durable.send_replace(last);
            }
        }
    }
}
