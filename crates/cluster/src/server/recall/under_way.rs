//! The invalidations under way, for an administrator.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use thalweg_env::Time;

use super::super::capabilities::Drops;
use super::super::context::RequestContext;

/// The invalidations under way, by number.
#[derive(Debug, Default)]
pub(super) struct RecallsUnderWay(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    last: u64,
    recalls: BTreeMap<u64, RecallReport>,
}

/// The invalidations for one call.
#[derive(Clone, Debug)]
pub(in crate::server) struct RecallReport {
    /// When it began.
    pub(in crate::server) since: Time,
    /// The name of the client whose call waits.
    pub(in crate::server) client: String,
    /// The kind of that call.
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
        let ended = self.recalls.0.lock().recalls.remove(&self.number);
        assert!(ended.is_some(), "a recall ends twice");
    }
}

impl Recalling<'_> {
    /// A session does not cache it any more.
    pub(super) fn answered(&self, session: u64) {
        if let Some(recall) = self.recalls.0.lock().recalls.get_mut(&self.number) {
            recall.unanswered.retain(|(asked, _)| *asked != session);
        }
    }
}

impl RecallsUnderWay {
    /// Sessions are asked to drop something, for a call.
    pub(super) fn begin(
        &self,
        by: &RequestContext<'_>,
        since: Time,
        asked: &Drops,
    ) -> Recalling<'_> {
        let client = by.session.visitor.name.clone();
        let recall = RecallReport { since, client, call: by.kind, unanswered: asked.clone() };
        let mut running = self.0.lock();
        running.last += 1;
        let number = running.last;
        let before = running.recalls.insert(number, recall);
        assert!(before.is_none(), "two recalls have one number");
        Recalling { recalls: self, number }
    }

    /// Those under way, the oldest first.
    pub(super) fn running(&self) -> Vec<RecallReport> {
        self.0.lock().recalls.values().cloned().collect()
    }
}
