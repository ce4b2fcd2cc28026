//! Delegations that are released by the last batch of what their clients have made.
//!
//! A client that is asked for a delegation sends what it has made there, and says so in the last batch of that. So the call that
//! waits goes on when that batch has been carried out, and not only when its client has heard of that and has answered.
//! A batch that fails releases nothing: the client's answer does, as if it had never said so.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::{Env, HashMap};
use tokio::sync::oneshot;

/// A session, and the number of a recall of one of its delegations.
type Key = (u64, u64);

/// The recalls of delegations that are under way.
#[derive(Debug)]
pub(super) struct Releases {
    last: AtomicU64,
    waiting: Mutex<HashMap<Key, oneshot::Sender<()>>>,
}

/// A recall; its number means nothing any more when this is dropped.
#[derive(Debug)]
pub(super) struct Release<'a> {
    releases: &'a Releases,
    key: Key,
    released: oneshot::Receiver<()>,
}

impl Releases {
    /// None yet. The numbers begin anywhere: a batch that was made for a server before this one is sent again here.
    pub(super) fn new(env: &Env) -> Releases {
        let first = env.uuid().as_u64_pair().0;
        Releases { last: AtomicU64::new(first), waiting: Mutex::default() }
    }

    /// A delegation is recalled from a session.
    pub(super) fn expect(&self, session: u64) -> Release<'_> {
        let (told, released) = oneshot::channel();
        let number = loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed);
            // 0 is that of a recall that is not released by a batch.
            if number != 0 {
                break number;
            }
        };
        let before = self.waiting.lock().insert((session, number), told);
        assert!(before.is_none(), "two recalls have one number");
        Release { releases: self, key: (session, number), released }
    }

    /// A batch of a session has been carried out that releases these.
    pub(super) fn released(&self, session: u64, recalls: &[u64]) {
        for recall in recalls {
            if let Some(waiting) = self.waiting.lock().remove(&(session, *recall)) {
                // The recall may be over otherwise.
                let _ = waiting.send(());
            }
        }
    }
}

impl Release<'_> {
    /// Its number for the client.
    pub(super) fn number(&self) -> u64 {
        self.key.1
    }

    /// Returns when a batch has released it.
    pub(super) async fn released(&mut self) {
        if (&mut self.released).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.releases.waiting.lock().remove(&self.key);
    }
}
