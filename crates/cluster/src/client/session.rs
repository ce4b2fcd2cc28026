//! The session at the server: what the server calls this client, what it said when the session began, and the lease.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Time};
use thalweg_fs::{Ino, Timestamp, Validity};
use thalweg_net::keys::Squash;
use uuid::Uuid;

use crate::protocol::JournalMount;

/// What the server has said of a session, and this client of itself.
#[derive(Clone, Debug)]
pub(super) struct SessionInfo {
    pub(super) id: Uuid,
    /// Sessions of this client count from 0.
    pub(super) generation: u64,
    /// The server knows it.
    pub(super) begun: bool,
    pub(super) lease: Duration,
    pub(super) read_only: bool,
    /// Where the contents of files are; nothing if only the server reaches them.
    pub(super) contents: Bytes,
    pub(super) squash: Squash,
    /// The server's incarnation.
    pub(super) server: Uuid,
    /// The number of the server that has attached it last.
    pub(super) server_number: u64,
    /// How the client mounts its journal, if it has one.
    pub(super) journal: Option<JournalMount>,
    /// Of a client with a journal: it was away, and other clients went on.
    pub(super) has_returned: bool,
}

/// The clocks when a change is made: that of the environment, and what programs see.
pub(super) type Clocks = (Time, Timestamp);

/// The end of a lease that does not count while the client is about to hand its session over. No renewal changes it.
const SUSPENDED: u64 = u64::MAX;

/// The session of a client: one after the other.
pub(super) struct Session {
    env: Env,
    info: Mutex<SessionInfo>,
    /// The root at the server, and until when what is cached may be used, in nanoseconds: read for each call, so without the lock.
    root: AtomicU64,
    lease_end: AtomicU64,
    /// No kernel checks what the users of this client may do.
    checks_for_kernel: AtomicBool,
}

impl Session {
    pub(super) fn new(env: &Env) -> Session {
        let info = SessionInfo {
            id: env.uuid(),
            generation: 0,
            begun: false,
            lease: Duration::ZERO,
            read_only: false,
            contents: Bytes::new(),
            squash: Squash::None,
            server: Uuid::nil(),
            server_number: 0,
            journal: None,
            has_returned: false,
        };
        Session {
            env: env.clone(),
            info: Mutex::new(info),
            root: AtomicU64::new(Ino::ROOT.0),
            lease_end: AtomicU64::new(0),
            checks_for_kernel: AtomicBool::new(false),
        }
    }

    /// The session has this name, and a journal, from its beginning on; with [`JournalMount::Rebooted`] it goes on.
    pub(super) fn keep_journal(&self, session: Uuid, mount: JournalMount) {
        let mut info = self.info.lock();
        assert!(!info.begun, "a session has a journal from its beginning on");
        (info.id, info.journal, info.begun) =
            (session, Some(mount), mount == JournalMount::Rebooted);
    }

    pub(super) fn has_journal(&self) -> bool {
        self.info.lock().journal.is_some()
    }

    pub(super) fn info(&self) -> SessionInfo {
        self.info.lock().clone()
    }

    pub(super) fn generation(&self) -> u64 {
        self.info.lock().generation
    }

    pub(super) fn server_number(&self) -> u64 {
        self.info.lock().server_number
    }

    pub(super) fn lease(&self) -> Duration {
        self.info.lock().lease
    }

    pub(super) fn squash(&self) -> Squash {
        self.info.lock().squash
    }

    /// The server has attached it: `change` notes what it said.
    pub(super) fn attach(&self, root: Ino, change: impl FnOnce(&mut SessionInfo)) {
        let mut info = self.info.lock();
        change(&mut info);
        self.root.store(root.0, Ordering::Relaxed);
    }

    /// The server that was attached has what this client reclaimed there.
    pub(super) fn reclaimed(&self, server: Uuid) {
        self.info.lock().server = server;
    }

    /// The server has ended it; the next one has another name.
    pub(super) fn end(&self) {
        let mut info = self.info.lock();
        (info.id, info.begun, info.journal) = (self.env.uuid(), false, None);
        info.generation += 1;
        self.lease_end.store(0, Ordering::Relaxed);
    }

    /// The number of an inode for callers: all filesystems have one for the root.
    pub(super) fn ours(&self, ino: Ino) -> Ino {
        if ino.0 == self.root.load(Ordering::Relaxed) { Ino::ROOT } else { ino }
    }

    /// The number of an inode at the server.
    pub(super) fn theirs(&self, ino: Ino) -> Ino {
        if ino == Ino::ROOT { Ino(self.root.load(Ordering::Relaxed)) } else { ino }
    }

    /// A call that was sent then was answered.
    pub(super) fn renew(&self, sent: Time) {
        let end = sent + self.lease();
        self.lease_end.fetch_max(end.as_nanos(), Ordering::Relaxed);
    }

    /// The time of a change that is made now.
    pub(super) fn clocks(&self) -> Clocks {
        (self.env.now(), Timestamp::of_nanos(self.env.wall_nanos()))
    }

    /// Nothing that is cached may be used, and nothing is changed without a call, until this ends.
    pub(super) fn suspend_lease(&self) {
        self.lease_end.store(SUSPENDED, Ordering::Relaxed);
    }

    /// The same as after [`Self::end_lease`] from now on.
    pub(super) fn resume_lease(&self) {
        let resumed = |end| (end == SUSPENDED).then_some(0);
        let _ = self.lease_end.fetch_update(Ordering::Relaxed, Ordering::Relaxed, resumed);
    }

    /// Nothing that is cached may be used until the server has answered a call again.
    pub(super) fn end_lease(&self) {
        self.lease_end.store(0, Ordering::Relaxed);
    }

    /// Whether what is cached may be used.
    pub(super) fn is_leased(&self) -> bool {
        self.is_leased_at(self.env.now())
    }

    /// The same, for a change that has read the clock.
    pub(super) fn is_leased_at(&self, now: Time) -> bool {
        let end = self.lease_end.load(Ordering::Relaxed);
        end > now.as_nanos() && end != SUSPENDED
    }

    /// [`Self::validity`], if what is cached may be used. The clock is read once: that is much of what a cached answer takes.
    pub(super) fn leased(&self) -> Option<Validity> {
        let now = self.env.now();
        self.is_leased_at(now).then(|| self.validity_at(now))
    }

    /// How long attributes may be used by a caller's own cache.
    pub(super) fn validity(&self) -> Validity {
        self.validity_at(self.env.now())
    }

    fn validity_at(&self, now: Time) -> Validity {
        let end = self.lease_end.load(Ordering::Relaxed);
        let end = Time::from_nanos(if end == SUSPENDED { 0 } else { end });
        let attributes = if end > now { end.since(now) } else { Duration::ZERO };
        // The caller's kernel would have to lock a directory to drop a name of it, which a call under way may have
        // locked. So the kernel asks for each name.
        Validity { entry: Duration::ZERO, attributes }
    }

    /// Whether all users of this client act as one at the server. The caller relies on that from now on.
    pub(super) fn check_for_kernel(&self) -> bool {
        let is_one = matches!(self.squash(), Squash::All(_));
        self.checks_for_kernel.store(is_one, Ordering::Relaxed);
        is_one
    }

    /// Whether a session with these users may go on: a kernel that checks nothing relies on the checks here.
    pub(super) fn fits(&self, squash: Squash) -> bool {
        !self.checks_for_kernel.load(Ordering::Relaxed) || matches!(squash, Squash::All(_))
    }
}
