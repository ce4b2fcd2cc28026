//! What an administrator sees of one inode.

use serde::{Deserialize, Serialize};
use thalweg_env::Time;
use thalweg_fs::{FsError, Ino, Kind, Lock, LockKind, LockMode};

use super::capabilities::Held;
use super::recalls::Recall;
use super::session::Session;
use super::{Server, Shared};
use crate::protocol::Changed;

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

impl Server {
    /// The holders of the inode of a path. The path is one from the filesystem's root; a symbolic link at its end is
    /// not followed.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::NotDirectory`] when something in the middle of the path is not a directory.
    pub async fn inode(&self, path: &str) -> Result<InodeReport, FsError> {
        let shared = &self.shared;
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = shared.resolve(parent).await?.last().copied().unwrap_or(Ino::ROOT);
        let found = match name {
            "" => shared.filesystem.attributes(parent).await?.attributes,
            name => shared.filesystem.find(parent, name.as_bytes()).await?.attributes,
        };
        let (holders, invalidations) = (shared.holders(found.ino), shared.invalidations(found.ino));
        Ok(InodeReport { ino: found.ino.0, kind: found.kind, holders, invalidations })
    }
}

/// Milliseconds from one point in time to another.
pub(super) fn millis(now: Time, since: Time) -> u64 {
    u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX)
}

impl Shared {
    fn holders(&self, ino: Ino) -> Vec<HolderReport> {
        let now = self.env.now();
        let mut cached = self.capabilities.holders(ino);
        let locks = self.filesystem.locks(ino);
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        let mut holders = Vec::new();
        for session in sessions {
            let own = cached.iter().position(|(holder, ..)| *holder == session.serial);
            let own = own.map(|own| cached.swap_remove(own));
            let Some(mut holder) = holder_of(&session, ino, now, &locks) else { continue };
            if let Some((_, held, since)) = own {
                holder.caches(held, millis(now, since));
            }
            holders.push(holder);
        }
        for (serial, held, since) in cached {
            let mut holder = HolderReport { ended: true, ..HolderReport::default() };
            holder.client = self.client_of(serial);
            holder.caches(held, millis(now, since));
            holders.push(holder);
        }
        holders.sort_by(|a, b| a.client.cmp(&b.client));
        holders
    }

    /// The name of the client of a session.
    fn client_of(&self, serial: u64) -> String {
        let sessions = self.sessions.lock();
        let session = sessions.values().find(|session| session.serial == serial);
        if let Some(session) = session {
            return session.visitor.name.clone();
        }
        drop(sessions);
        let leaving = self.leaving.lock();
        leaving.get(&serial).map(|leaving| leaving.client.clone()).unwrap_or_default()
    }

    fn invalidations(&self, ino: Ino) -> Vec<InvalidationReport> {
        let now = self.env.now();
        let concerns = |recall: &Recall| {
            let mut changes = recall.unanswered.iter().flat_map(|(_, changes)| changes);
            changes.any(|change| change.ino() == ino)
        };
        let recalls = self.recalls.running().into_iter().filter(concerns);
        recalls.map(|recall| self.invalidation_of(&recall, ino, now)).collect()
    }

    fn invalidation_of(&self, recall: &Recall, ino: Ino, now: Time) -> InvalidationReport {
        let Recall { since, client, call, unanswered } = recall;
        let concerned = unanswered.iter().filter(|(_, all)| all.iter().any(|it| it.ino() == ino));
        let mut names: Vec<String> = Vec::new();
        for change in concerned.clone().flat_map(|(_, changes)| changes) {
            if let Changed::Name { parent, name } = change
                && *parent == ino
            {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        names.sort();
        names.dedup();
        InvalidationReport {
            age_ms: millis(now, *since),
            client: client.clone(),
            call: (*call).to_owned(),
            names,
            unanswered: concerned.map(|(serial, _)| self.client_of(*serial)).collect(),
        }
    }
}

impl HolderReport {
    fn caches(&mut self, held: Held, since_ms: u64) {
        self.attributes = held.attributes;
        self.names = held.names;
        self.content = held.content;
        self.exclusive = held.delegation;
        self.cached_ms = Some(since_ms);
    }
}

/// What a session holds of an inode, if its client knows it.
fn holder_of(session: &Session, ino: Ino, now: Time, locks: &[Lock]) -> Option<HolderReport> {
    let state = session.state.lock();
    let (is_known, files, waits) = state.uses_of(ino);
    if !is_known && files.is_empty() {
        return None;
    }
    let own = locks.iter().filter(|lock| lock.owner.client == session.serial);
    let locked = |lock: &Lock| files.iter().find(|file| file.at == lock.handle)?.locked;
    Some(HolderReport {
        client: session.visitor.name.clone(),
        connected: state.channel.is_some(),
        reading: files.iter().filter(|file| !file.flags.write).count(),
        writing: files.iter().filter(|file| file.flags.write).count(),
        open_ms: files.iter().map(|file| millis(now, file.since)).max(),
        locks: own
            .map(|lock| LockReport::of(lock, locked(lock).map(|since| millis(now, since))))
            .collect(),
        waits: waits
            .iter()
            .map(|(_, wait)| LockReport::of(&wait.lock, Some(millis(now, wait.since))))
            .collect(),
        ..HolderReport::default()
    })
}
