//! The sessions of a server that stopped go on at the next one.
//!
//! Until each client has reclaimed what it held, or the time for that is up, no other call is carried out. So a reclaim meets
//! what the client left behind, and nothing that came after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::{HashSet, Time, watch};
use thalweg_fs::FsError;
use thalweg_fs::session_table::SessionRecord;

use super::base::{Base, resolve};
use super::session::{Presence, Session};
use super::session_record::{Recorded, decode};
use super::sessions::{Ending, Sessions};

#[derive(Debug)]
pub(super) struct GracePeriod {
    base: Base,
    sessions: Arc<Sessions>,
    /// The sessions that have not reclaimed what they held yet.
    expected: watch::Sender<HashSet<u64>>,
    is_over: watch::Sender<bool>,
    /// [`Answer::Attached::server_number`](crate::protocol::Answer::Attached::server_number); 0 for a server that
    /// expects no clients: they have sent no calls to a server before it.
    server_number: AtomicU64,
}

impl GracePeriod {
    pub(super) fn new(base: &Base, sessions: &Arc<Sessions>) -> GracePeriod {
        GracePeriod {
            base: base.clone(),
            sessions: sessions.clone(),
            expected: watch::Sender::new(HashSet::default()),
            is_over: watch::Sender::new(true),
            server_number: AtomicU64::new(0),
        }
    }

    pub(super) fn server_number(&self) -> u64 {
        self.server_number.load(Ordering::Relaxed)
    }

    pub(super) fn expects(&self, session: u64) -> bool {
        self.expected.borrow().contains(&session)
    }

    pub(super) fn missing(&self) -> usize {
        self.expected.borrow().len()
    }

    /// A session has reclaimed what it held, or has ended.
    pub(super) fn is_gone(&self, session: u64) {
        self.expected.send_if_modified(|expected| expected.remove(&session));
    }

    /// Whether a client that reclaims something has reclaimed everything before, and may not know that. Fails when the client is
    /// not expected.
    pub(super) fn has_reclaimed(&self, session: &Session) -> Result<bool, FsError> {
        let may_replay = session.lock().replayed.is_some();
        match (self.expects(session.serial), may_replay) {
            (true, _) => Ok(false),
            (false, true) => Ok(true),
            (false, false) => Err(FsError::Invalid("nothing can be claimed now")),
        }
    }

    /// Returns when ordinary calls may be carried out.
    pub(super) async fn over(&self) {
        if !*self.is_over.borrow() {
            let _ = self.is_over.subscribe().wait_for(|is_over| *is_over).await;
        }
    }

    /// Expects the sessions that the filesystem has on record. Returns the time until which they may come back, if there are
    /// some.
    pub(super) async fn begin(&self) -> Result<Option<Time>, FsError> {
        let Some(table) = self.base.files.session_table() else { return Ok(None) };
        assert!(self.missing() == 0, "a grace period begins twice");
        let (mut invalid, mut lease) = (Vec::new(), self.base.options.lease);
        for record in table.sessions().await? {
            let number = record.session;
            match self.expect(record).await? {
                Some(granted) => lease = lease.max(granted),
                None => invalid.push(number),
            }
        }
        if !invalid.is_empty() {
            self.sessions.shut_out(&invalid).await;
            table.end_sessions(&invalid).await?;
        }
        let expected = self.missing();
        if expected == 0 {
            table.release_orphans().await?;
            return Ok(None);
        }
        tracing::info!(sessions = expected, "clients of the server before this one are expected");
        self.server_number.store(table.number_server().await?, Ordering::Relaxed);
        self.base.replay.begin();
        self.is_over.send_replace(false);
        // Longer than any lease that the server before this one has granted.
        Ok(Some(self.base.env.now() + lease + lease / 2))
    }

    /// Expects a session, which has this lease; `None` if it cannot go on.
    async fn expect(&self, record: SessionRecord) -> Result<Option<Duration>, FsError> {
        let Some(Recorded { identity, visitor, lease, journal }) = decode(&record.info) else {
            return Ok(None);
        };
        let path = match resolve(&*self.base.files, &visitor.path).await {
            Ok(path) => path,
            Err(FsError::NotFound | FsError::NotDirectory) => {
                tracing::warn!(client = visitor.name, "the directory of a client is gone");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if journal.is_some_and(|journal| journal.presence == Presence::Lapsed) {
            self.sessions.resume((identity, visitor, path), journal, record);
            return Ok(Some(Duration::ZERO));
        }
        self.expected.send_if_modified(|expected| expected.insert(record.session));
        self.sessions.resume((identity, visitor, path), journal, record);
        Ok(Some(lease))
    }

    /// Waits for the clients, and ends the sessions of those that do not come.
    pub(super) async fn run(&self, until: Time) {
        let patience = until.since(self.base.env.now());
        let mut expected = self.expected.subscribe();
        let _ = self.base.env.timeout(patience, expected.wait_for(HashSet::is_empty)).await;
        let lost = self.sessions.matching(|session| self.expects(session.serial));
        if let Some(table) = self.base.files.session_table() {
            let without = lost.iter().filter(|it| !it.journal.is_kept());
            let numbers: Vec<u64> = without.map(|it| it.serial).collect();
            self.sessions.shut_out(&numbers).await;
            if let Err(error) = table.end_sessions(&numbers).await {
                tracing::error!(%error, "the records of lost clients stay");
            }
            if let Err(error) = table.release_orphans().await {
                tracing::error!(%error, "files without names stay");
            }
        }
        for session in &lost {
            let why = "its client did not come back to this server";
            self.sessions.end(session, Ending::Evicted(why));
        }
        self.expected.send_replace(HashSet::default());
        self.base.replay.complete();
        self.is_over.send_replace(true);
        tracing::info!(lost = lost.len(), "the server goes on");
    }
}
