//! The invalidations under way, for an administrator.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use thalweg_env::Time;

use super::job::Job;
use crate::protocol::Changed;

/// The invalidations under way, by number.
#[derive(Debug, Default)]
pub(super) struct Recalls(Mutex<State>);

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
        self.recalls.0.lock().running.remove(&self.number);
    }
}

impl Recalling<'_> {
    /// A session does not cache it any more.
    pub(super) fn answered(&self, session: u64) {
        if let Some(recall) = self.recalls.0.lock().running.get_mut(&self.number) {
            recall.unanswered.retain(|(asked, _)| *asked != session);
        }
    }
}

impl Recalls {
    /// Sessions are asked to drop something, for a call.
    pub(super) fn begin(
        &self,
        by: &Job<'_>,
        since: Time,
        asked: &[(u64, Vec<Changed>)],
    ) -> Recalling<'_> {
        let client = by.session.visitor.name.clone();
        let recall = Recall { since, client, call: by.kind, unanswered: asked.to_vec() };
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        state.running.insert(number, recall);
        Recalling { recalls: self, number }
    }

    /// Those under way, the oldest first.
    pub(super) fn running(&self) -> Vec<Recall> {
        self.0.lock().running.values().cloned().collect()
    }
}
