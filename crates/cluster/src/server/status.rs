//! What an administrator sees of a server.

use std::sync::Arc;

use serde::Serialize;
use thalweg_env::HashMap;
use thalweg_net::keys::Access;

use super::counters::{CallCounts, value};
use super::report::millis;
use super::session::Session;
use super::stages::Stages;

/// A session, for an administrator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionStatus {
    /// The client's name.
    pub client: String,
    /// The directory that it sees as its root.
    pub path: String,
    /// Whether it may change nothing.
    pub read_only: bool,
    /// Whether it has a connection.
    pub connected: bool,
    /// Whether it reads and writes contents of files itself, where those are kept elsewhere.
    pub direct: bool,
    /// Milliseconds since it was last heard.
    pub silent_ms: u64,
    /// Inodes that it knows.
    pub inodes: usize,
    /// Inodes of which it caches something.
    pub cached: u64,
    /// Open files.
    pub open: usize,
    /// Its changes, opens and locks that run.
    pub running: usize,
    /// Inodes and names that it alone has changed, and whose changes may not survive a crash: it keeps these changes.
    pub undurable: u64,
    /// Its calls that were begun.
    pub calls: u64,
    /// Bytes of their payloads.
    pub received_bytes: u64,
    /// Bytes of the payloads of their answers.
    pub sent_bytes: u64,
}

/// The invalidations of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InvalidationCounts {
    /// Calls that wait for invalidations.
    pub pending: usize,
    /// Milliseconds for which the first of them has waited.
    pub oldest_ms: Option<u64>,
    /// Messages to clients.
    pub sent: u64,
    /// Clients' answers to these.
    pub answered: u64,
    /// Clients that were evicted because they did not answer one.
    pub timed_out: u64,
}

/// A server. Counts are those since it started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerStatus {
    /// Milliseconds since it started.
    pub age_ms: u64,
    /// Clients of the server before this one that have not come back yet. Until they have, or their time is up, calls wait.
    pub expected: usize,
    /// Connections of clients.
    pub connections: u64,
    /// Inodes that the sessions know, counted for each session.
    pub known: usize,
    /// Inodes of which the sessions cache something, counted for each session.
    pub cached: u64,
    /// Inodes and names whose changes may not survive a crash.
    pub undurable: u64,
    /// Sessions that it has ended although their clients did not ask for it.
    pub evictions: u64,
    /// Changes that clients had made by themselves and that were lost, because they could not be applied.
    pub refused_changes: u64,
    /// How often clients had to return the room that they were promised, because others needed it.
    pub room_recalls: u64,
    /// Its invalidations.
    pub invalidations: InvalidationCounts,
    /// Bytes of the payloads of calls.
    pub received_bytes: u64,
    /// Bytes of the payloads of answers.
    pub sent_bytes: u64,
    /// The calls that were answered, by their kinds.
    pub calls: Vec<CallCounts>,
    /// The sessions, by the names of their clients.
    pub clients: Vec<SessionStatus>,
}

/// The server and its sessions.
pub(super) fn status_of(stages: &Stages) -> ServerStatus {
    let (now, counters) = (stages.env.now(), &stages.counters);
    let clients = sessions_of(stages);
    let recalls = stages.recall.running();
    ServerStatus {
        age_ms: millis(now, stages.started),
        expected: stages.grace_period.missing(),
        connections: value(&counters.connections),
        known: clients.iter().map(|client| client.inodes).sum(),
        cached: clients.iter().map(|client| client.cached).sum(),
        undurable: stages.commit_on_share.count().values().sum(),
        evictions: value(&counters.evictions),
        refused_changes: value(&counters.refused),
        room_recalls: stages.room.recalls(),
        invalidations: InvalidationCounts {
            pending: recalls.len(),
            oldest_ms: recalls.first().map(|recall| millis(now, recall.since)),
            sent: value(&counters.recalls_sent),
            answered: value(&counters.recalls_answered),
            timed_out: value(&counters.recalls_timed_out),
        },
        received_bytes: value(&counters.received),
        sent_bytes: value(&counters.sent),
        calls: counters.calls(),
        clients,
    }
}

/// The sessions, by the names of their clients.
pub(super) fn sessions_of(stages: &Stages) -> Vec<SessionStatus> {
    let (cached, undurable) = (stages.capabilities.count(), stages.commit_on_share.count());
    let of = |counts: &HashMap<u64, u64>, session: &Session| {
        counts.get(&session.serial).copied().unwrap_or_default()
    };
    let now = stages.env.now();
    let status = |session: Arc<Session>| {
        let state = session.lock();
        SessionStatus {
            client: session.visitor.name.clone(),
            path: session.visitor.path.clone(),
            read_only: session.visitor.access == Access::Read,
            connected: state.channel.is_some(),
            direct: state.is_direct,
            silent_ms: millis(now, state.heard),
            inodes: state.known.len(),
            cached: of(&cached, &session),
            open: session.handles.len(),
            running: session.replies.running(),
            undurable: of(&undurable, &session),
            calls: value(&session.counters.calls),
            received_bytes: value(&session.counters.received),
            sent_bytes: value(&session.counters.sent),
        }
    };
    let mut all: Vec<_> = stages.sessions.all().into_iter().map(status).collect();
    all.sort_by(|a, b| (&a.client, &a.path).cmp(&(&b.client, &b.path)));
    all
}
