//! The bound of what clients know.
//!
//! The server keeps a record for each inode that a client knows. When these are more than [`Options::known`], the clients that
//! know most are asked to forget some ([`Release`]). A client cannot be made to: one that does not come below what it was
//! asked for keeps what it has, and is granted nothing more while the server is beyond its bound.
//!
//! [`Options::known`]: super::Options::known
//! [`Release`]: crate::protocol::FromServer::Release

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use thalweg_env::Time;

use super::Shared;

/// Clients are asked at most so many times in a lease.
const ASKS: u32 = 16;
/// The part of a lease that a client has for it.
const PATIENCE: u32 = 4;

/// What the sessions know.
#[derive(Debug, Default)]
pub(super) struct InodeLimit {
    /// Inodes, counted for each session.
    known: AtomicUsize,
    /// When clients were asked last.
    asked: Mutex<Option<Time>>,
}

/// A session was asked to forget inodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// It is to know so many at most.
    pub(super) most: usize,
    /// When it was asked first.
    pub(super) since: Time,
}

impl InodeLimit {
    /// A session knows more inodes.
    pub(super) fn add(&self, inodes: usize) {
        self.known.fetch_add(inodes, Ordering::Relaxed);
    }

    /// A session knows fewer inodes.
    pub(super) fn remove(&self, inodes: usize) {
        let before = self.known.fetch_sub(inodes, Ordering::Relaxed);
        assert!(before >= inodes, "clients forget more inodes than they know");
    }

    pub(super) fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }
}

/// The level to which sessions have to come down so that they know `most` inodes together: those below it stay as they are.
fn level(mut counts: Vec<usize>, most: usize) -> usize {
    counts.sort_unstable();
    let (mut rest, mut sessions) = (most, counts.len());
    for count in counts {
        assert!(sessions > 0, "a session is counted twice");
        let share = rest / sessions;
        if count > share {
            return share;
        }
        assert!(count <= rest, "a share of the rest is more than the rest");
        rest -= count;
        sessions -= 1;
    }
    usize::MAX
}

impl Asked {
    /// Whether a session that knows so many inodes does what it was asked for.
    pub(super) fn is_met(&self, known: usize) -> bool {
        known <= self.most
    }
}

impl Shared {
    /// Asks the clients that know most to forget inodes, if the clients know too many.
    pub(super) fn request_release(&self) {
        if self.inode_limit.known() <= self.options.known {
            return;
        }
        let now = self.env.now();
        {
            let mut asked = self.inode_limit.asked.lock();
            if asked.is_some_and(|asked| now.since(asked) < self.options.lease / ASKS) {
                return;
            }
            *asked = Some(now);
        }
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        let counts = sessions.iter().map(|session| session.state.lock().holds().0).collect();
        // With some room, so that the next call does not ask again.
        let most = level(counts, self.options.known - self.options.known / 8);
        sessions.iter().for_each(|session| session.request_release(most, now));
    }

    /// Whether a session is granted nothing, since it was asked to forget inodes and has not.
    pub(super) fn is_refused(&self, asked: Option<Asked>) -> bool {
        let late = |asked: Asked| self.env.now().since(asked.since) > self.options.lease / PATIENCE;
        self.inode_limit.known() > self.options.known && asked.is_some_and(late)
    }
}
