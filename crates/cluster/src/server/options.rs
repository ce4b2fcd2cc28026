//! What a server is told when it starts, and what it is told of each client.

use std::time::Duration;

use thalweg_env::Tenure;
use thalweg_net::keys::{Access, Squash};

/// Bytes of memory that an inode takes which a client knows, about.
pub const KNOWN_BYTES: usize = 256;

/// Limits and times.
#[derive(Clone, Debug)]
pub struct Options {
    /// A client may use what it caches for so long after the last call that was answered.
    pub lease: Duration,
    /// Time in addition to the lease for a client with a journal that does not answer: it may reboot.
    pub hold: Duration,
    /// Other clients wait for so long at most for one that sends what it has made, batch after batch. One that sends none for the time
    /// of a lease is not waited for.
    pub recall: Duration,
    /// A client that is silent for so long has lost its session; one with a journal after `hold` more.
    pub expire: Duration,
    /// Most sessions.
    pub sessions: usize,
    /// Calls of one connection that run at a time, those that wait for locks not counted.
    pub budget: u32,
    /// Time within which a new connection must send its hello.
    pub patience: Duration,
    /// Changes are durable after so long at the latest.
    pub commit: Duration,
    /// A directory that one client had to itself, and another one has used, can be one client's alone again after so long.
    pub share: Duration,
    /// While it has run out, no answer is sent: another server may serve the filesystem.
    pub tenure: Option<Tenure>,
    /// Inodes that the clients may know together, counted for each client, before the server asks for some back. Each takes
    /// about [`KNOWN_BYTES`] of memory.
    pub known: usize,
}

impl Options {
    /// A client that is silent for longer has lost its session.
    pub(super) fn longest_silence(&self, has_journal: bool) -> Duration {
        if has_journal { self.expire + self.hold } else { self.expire }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(10),
            hold: Duration::ZERO,
            recall: Duration::from_secs(60),
            expire: Duration::from_secs(60),
            sessions: 4096,
            budget: 4096,
            patience: Duration::from_secs(10),
            commit: Duration::from_secs(1),
            share: Duration::from_secs(5),
            tenure: None,
            known: (1 << 30) / KNOWN_BYTES,
        }
    }
}

/// A client, as its key says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visitor {
    /// Its name.
    pub name: String,
    /// The directory that it is to see as its root: a path from the filesystem's root.
    pub path: String,
    /// What it may do.
    pub access: Access,
    /// These users of the client act as the user nobody. If there are any, the server checks permissions.
    pub squash: Squash,
}
