//! The bound of what clients know.
//!
//! The server keeps a record for each inode that a client knows. When these are more than [`Options::known`], the clients that
//! know most are asked to forget some ([`Release`]). A client cannot be made to: one that does not come below what it was
//! asked for keeps what it has, and is granted nothing more while the server is beyond its bound.
//!
//! [`Options::known`]: super::options::Options::known
//! [`Release`]: crate::protocol::FromServer::Release

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Time;

/// Clients are asked at most so many times in a lease.
const ASKS: u32 = 16;
/// The part of a lease that a client has for it.
const PATIENCE: u32 = 4;

#[derive(Debug)]
pub(super) struct InodeLimit {
    most: usize,
    lease: Duration,
    /// Inodes, counted for each session.
    known: AtomicUsize,
    asked: Mutex<Option<Time>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReleaseRequest {
    /// It is to know so many at most.
    pub(super) most: usize,
    /// When it was asked first.
    pub(super) since: Time,
}

impl InodeLimit {
    pub(super) fn new(most: usize, lease: Duration) -> InodeLimit {
        InodeLimit { most, lease, known: AtomicUsize::new(0), asked: Mutex::default() }
    }

    pub(super) fn add(&self, inodes: usize) {
        self.known.fetch_add(inodes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, inodes: usize) {
        let before = self.known.fetch_sub(inodes, Ordering::Relaxed);
        assert!(before >= inodes, "clients forget more inodes than they know");
    }

    fn is_exceeded(&self) -> bool {
        self.known.load(Ordering::Relaxed) > self.most
    }

    /// Whether clients are to be asked for inodes now, which then counts as done.
    pub(super) fn may_ask(&self, now: Time) -> bool {
        if !self.is_exceeded() {
            return false;
        }
        let mut asked = self.asked.lock();
        let may_ask = asked.is_none_or(|asked| now.since(asked) >= self.lease / ASKS);
        if may_ask {
            *asked = Some(now);
        }
        may_ask
    }

    /// What sessions that know so many inodes are asked for: with some room, so that the next call does not ask again.
    pub(super) fn request(&self, counts: Vec<usize>, since: Time) -> ReleaseRequest {
        ReleaseRequest { most: level(counts, self.most - self.most / 8), since }
    }

    /// Whether a session is granted nothing, since it was asked to forget inodes and has not.
    pub(super) fn refuses(&self, asked: Option<ReleaseRequest>, now: Time) -> bool {
        let is_late = |asked: ReleaseRequest| now.since(asked.since) > self.lease / PATIENCE;
        self.is_exceeded() && asked.is_some_and(is_late)
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
