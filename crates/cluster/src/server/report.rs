//! What an administrator sees of a server, and of one inode.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thalweg_env::{HashMap, Time};
use thalweg_fs::{FsError, Ino, Kind, Lock, LockKind, LockMode};
use thalweg_net::keys::Access;

use super::base::resolve;
use super::counters::{CallCounts, value};
use super::recall::RecallReport;
use super::session::Session;
use super::stages::Stages;
use crate::protocol::{Changed, Grants};

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
    /// Whether its client has a journal.
    pub journal: bool,
    /// Whether that journal has lapsed: its client was away for so long that other clients went on. It keeps all that these have
    /// not used.
    pub lapsed: bool,
    /// Of a lapsed journal: the inodes that other clients have used since.
    pub used: usize,
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
    /// Inodes and names that only this client has changed since the last sync. It keeps these changes.
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
    /// Inodes and names that were changed since the last sync.
    pub undurable: u64,
    /// Sessions that it has ended although their clients did not ask for it.
    pub evictions: u64,
    /// Journals whose clients were away for so long that other clients went on.
    pub lapsed_journals: usize,
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
        lapsed_journals: clients.iter().filter(|client| client.lapsed).count(),
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
        let running = session.replies.running();
        let state = session.lock();
        SessionStatus {
            client: session.client(),
            path: session.visitor.path.clone(),
            read_only: session.visitor.access == Access::Read,
            connected: state.channel.is_some(),
            direct: state.is_direct,
            journal: session.journal.is_kept(),
            lapsed: session.journal.has_lapsed(),
            used: session.journal.used().len(),
            silent_ms: millis(now, state.heard),
            inodes: state.known.len(),
            cached: of(&cached, &session),
            open: session.handles.len(),
            running,
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

/// The holders of an inode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InodeReport {
    /// Its number.
    pub ino: u64,
    /// Its type.
    pub kind: Kind,
    /// The sessions that know it, by the names of their clients.
    pub holders: Vec<HolderReport>,
    /// The invalidations of it that are under way, the oldest first.
    pub invalidations: Vec<InvalidationReport>,
}

/// What a session holds of an inode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HolderReport {
    /// The client's name.
    pub client: String,
    /// Whether it has a connection.
    pub connected: bool,
    /// The session has ended; its client may still use what it caches, until its lease ends.
    pub ended: bool,
    /// It caches the attributes.
    pub attributes: bool,
    /// It caches names of the directory.
    pub names: bool,
    /// It caches pages of the file.
    pub content: bool,
    /// The directory is its client's alone.
    pub exclusive: bool,
    /// Milliseconds since it began to cache something of the inode, if it does.
    pub cached_ms: Option<u64>,
    /// Open files of it that only read.
    pub reading: usize,
    /// Open files of it that may write.
    pub writing: usize,
    /// Milliseconds since the oldest of these was opened, or reclaimed from this server.
    pub open_ms: Option<u64>,
    /// Its locks on the file.
    pub locks: Vec<LockReport>,
    /// The locks that its calls wait for.
    pub waits: Vec<LockReport>,
}

/// A lock that is held or waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LockReport {
    /// The kind.
    pub kind: LockKind,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// The first byte.
    pub first: u64,
    /// The last byte; `None` for the end of the file, however long it becomes.
    pub last: Option<u64>,
    /// The process on the client's machine.
    pub pid: u32,
    /// Milliseconds since a lock was last taken through the same open file, or since the wait began.
    pub since_ms: Option<u64>,
}

/// An invalidation that a call waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InvalidationReport {
    /// Milliseconds since it began.
    pub age_ms: u64,
    /// The client whose call waits.
    pub client: String,
    /// The kind of the call.
    pub call: String,
    /// The names in the directory that are about to change.
    pub names: Vec<String>,
    /// The clients that have not answered.
    pub unanswered: Vec<String>,
}

impl LockReport {
    fn of(lock: &Lock, since_ms: Option<u64>) -> LockReport {
        let Lock { kind, mode, range, pid, .. } = *lock;
        let last = (range.last < u64::MAX).then_some(range.last);
        LockReport { kind, mode, first: range.first, last, pid, since_ms }
    }
}

/// The holders of the inode of a path, which is one from the filesystem's root; a symbolic link at its end is not followed.
pub(super) async fn report_of(stages: &Stages, path: &str) -> Result<InodeReport, FsError> {
    let (files, path) = (&*stages.files, path.trim_end_matches('/'));
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = resolve(files, parent).await?.last().copied().unwrap_or(Ino::ROOT);
    let found = match name {
        "" => files.attributes(parent).await?.attributes,
        name => files.find(parent, name.as_bytes()).await?.attributes,
    };
    Ok(InodeReport {
        ino: found.ino.0,
        kind: found.kind,
        holders: holders(stages, found.ino),
        invalidations: invalidations(stages, found.ino),
    })
}

pub(super) fn millis(now: Time, since: Time) -> u64 {
    u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX)
}

fn holders(
    Stages { env, files, capabilities, sessions, .. }: &Stages,
    ino: Ino,
) -> Vec<HolderReport> {
    let now = env.now();
    let mut cached = capabilities.holders(ino);
    let locks = files.locks(ino);
    let mut holders = Vec::new();
    for session in sessions.all() {
        let own = cached.iter().position(|(holder, ..)| *holder == session.serial);
        let own = own.map(|own| cached.swap_remove(own));
        let Some(mut holder) = holder_of(&session, ino, now, &locks) else { continue };
        if let Some((_, held, since)) = own {
            holder.caches(held, millis(now, since));
        }
        holders.push(holder);
    }
    for (serial, held, since) in cached {
        let client = sessions.client_of(serial);
        let mut holder = HolderReport { client, ended: true, ..HolderReport::default() };
        holder.caches(held, millis(now, since));
        holders.push(holder);
    }
    holders.sort_by(|a, b| a.client.cmp(&b.client));
    holders
}

fn invalidations(stages: &Stages, ino: Ino) -> Vec<InvalidationReport> {
    let reports = stages.recall.running().into_iter();
    reports.filter_map(|recall| invalidation_of(stages, recall, ino)).collect()
}

fn invalidation_of(stages: &Stages, recall: RecallReport, ino: Ino) -> Option<InvalidationReport> {
    let RecallReport { since, client, call, mut unanswered } = recall;
    unanswered.retain(|(_, changes)| changes.iter().any(|change| change.ino() == ino));
    if unanswered.is_empty() {
        return None;
    }
    let mut names: Vec<String> = Vec::new();
    for change in unanswered.iter().flat_map(|(_, changes)| changes) {
        if let Changed::Name { parent, name } = change
            && *parent == ino
        {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    names.sort();
    names.dedup();
    let clients = unanswered.iter().map(|(serial, _)| stages.sessions.client_of(*serial));
    Some(InvalidationReport {
        age_ms: millis(stages.env.now(), since),
        client,
        call: call.to_owned(),
        names,
        unanswered: clients.collect(),
    })
}

impl HolderReport {
    fn caches(&mut self, held: Grants, since_ms: u64) {
        self.attributes = held.attributes;
        self.names = held.names;
        self.content = held.content;
        self.exclusive = held.delegation;
        self.cached_ms = Some(since_ms);
    }
}

fn holder_of(session: &Session, ino: Ino, now: Time, locks: &[Lock]) -> Option<HolderReport> {
    let (is_known, files) = (session.knows(ino).is_ok(), session.handles.of(ino));
    if !is_known && files.is_empty() {
        return None;
    }
    let own = locks.iter().filter(|lock| lock.owner.client == session.serial);
    let locked = |lock: &Lock| files.iter().find(|file| file.at == lock.handle)?.locked;
    Some(HolderReport {
        client: session.client(),
        connected: session.lock().channel.is_some(),
        reading: files.iter().filter(|file| !file.flags.write).count(),
        writing: files.iter().filter(|file| file.flags.write).count(),
        open_ms: files.iter().map(|file| millis(now, file.since)).max(),
        locks: own
            .map(|lock| LockReport::of(lock, locked(lock).map(|since| millis(now, since))))
            .collect(),
        waits: session
            .replies
            .waits_of(ino)
            .iter()
            .map(|(lock, since)| LockReport::of(lock, Some(millis(now, *since))))
            .collect(),
        ..HolderReport::default()
    })
}
