//! The invalidations under way, for an administrator.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use thalweg_env::Time;

use super::context::RequestContext;
use crate::protocol::Changed;

/// The invalidations under way, by number.
#[derive(Debug, Default)]
pub(super) struct Recalls {
    state: Mutex<State>,
    pub(super) counts: RecallCounts,
}

/// Counts since the server started.
#[derive(Debug, Default)]
pub(super) struct RecallCounts {
    /// Messages to clients.
    pub(super) sent: AtomicU64,
    /// Clients' answers.
    pub(super) answered: AtomicU64,
    /// Clients that were evicted because they did not answer.
    pub(super) timed_out: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    running: BTreeMap<u64, Recall>,
}

/// The invalidations for one call.
#[derive(Clone, Debug)]
pub(super) struct Recall {
    /// When it began.
    pub(super) since: Time,
    /// The name of the client whose call waits.
    pub(super) client: String,
    /// The kind of that call.
    pub(super) call: &'static str,
    /// The sessions that have not answered, and what each is to drop.
    pub(super) unanswered: Vec<(u64, Vec<Changed>)>,
}

/// An invalidation under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Recalling<'a> {
    recalls: &'a Recalls,
    number: u64,
}

impl Drop for Recalling<'_> {
    fn drop(&mut self) {
        let ended = self.recalls.state.lock().running.remove(&self.number);
        assert!(ended.is_some(), "a recall ends twice");
    }
}

impl Recalling<'_> {
    /// A session does not cache it any more.
    pub(super) fn answered(&self, session: u64) {
        if let Some(recall) = self.recalls.state.lock().running.get_mut(&self.number) {
            recall.unanswered.retain(|(asked, _)| *asked != session);
        }
    }
}

impl Recalls {
    /// Sessions are asked to drop something, for a call.
    pub(super) fn begin(
        &self,
        by: &RequestContext<'_>,
        since: Time,
        asked: &[(u64, Vec<Changed>)],
    ) -> Recalling<'_> {
        let client = by.session.visitor.name.clone();
        let recall = Recall { since, client, call: by.kind, unanswered: asked.to_vec() };
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        let before = state.running.insert(number, recall);
        assert!(before.is_none(), "two recalls have one number");
        Recalling { recalls: self, number }
    }

    /// Those under way, the oldest first.
    pub(super) fn running(&self) -> Vec<Recall> {
        self.state.lock().running.values().cloned().collect()
    }

    /// How many are under way, and since when the first of them is.
    pub(super) fn pending(&self) -> (usize, Option<Time>) {
        let state = self.state.lock();
        (state.running.len(), state.running.values().next().map(|recall| recall.since))
    }
}
