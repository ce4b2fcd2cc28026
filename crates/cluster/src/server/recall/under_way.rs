//! The recalls under way, and delegations that are released by the last batch of what their clients have made.
//!
//! A client that is asked for a delegation sends what it has made there, and says so in the last batch of that. So the call that
//! waits goes on when that batch has been carried out, and not only when its client has heard of that and has answered.
//! A batch that fails releases nothing: the client's answer does, as if it had never said so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, Time};
use tokio::sync::oneshot;

use super::super::capabilities::Drops;
use super::super::context::RequestContext;

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

    pub(super) fn expect(&self, session: u64) -> Release<'_> {
        let (told, released) = oneshot::channel();
        // Odd ones: 0 is the number of a recall that is not released by a batch.
        let number = self.last.fetch_add(2, Ordering::Relaxed) | 1;
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
    pub(super) fn number(&self) -> u64 {
        self.key.1
    }

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

/// The recalls under way, for an administrator: by numbers that grow from recall to recall.
#[derive(Debug, Default)]
pub(super) struct RecallsUnderWay(Mutex<BTreeMap<u64, RecallReport>>);

#[derive(Clone, Debug)]
pub(in crate::server) struct RecallReport {
    pub(in crate::server) since: Time,
    pub(in crate::server) client: String,
    pub(in crate::server) call: &'static str,
    /// The sessions that have not answered, and what each is to drop.
    pub(in crate::server) unanswered: Drops,
}

/// An invalidation under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Recalling<'a> {
    recalls: &'a RecallsUnderWay,
    number: u64,
}

impl Drop for Recalling<'_> {
    fn drop(&mut self) {
        let ended = self.recalls.0.lock().remove(&self.number);
        assert!(ended.is_some(), "a recall ends twice");
    }
}

impl Recalling<'_> {
    pub(super) fn answered(&self, session: u64) {
        if let Some(recall) = self.recalls.0.lock().get_mut(&self.number) {
            recall.unanswered.retain(|(asked, _)| *asked != session);
        }
    }
}

impl RecallsUnderWay {
    pub(super) fn begin(
        &self,
        by: &RequestContext<'_>,
        since: Time,
        asked: &Drops,
    ) -> Recalling<'_> {
        let client = by.session.client();
        let recall = RecallReport { since, client, call: by.kind, unanswered: asked.clone() };
        let mut recalls = self.0.lock();
        let number = recalls.last_key_value().map_or(0, |(last, _)| last + 1);
        recalls.insert(number, recall);
        Recalling { recalls: self, number }
    }

    pub(super) fn running(&self) -> Vec<RecallReport> {
        self.0.lock().values().cloned().collect()
    }
}
