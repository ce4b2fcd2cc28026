//! A client's session: it outlives connections, and holds inodes, open files and locks.

mod handles;
mod identity;
mod journal;
mod known_inodes;
mod reply_cache;
mod reserved_numbers;
mod staged;

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use thalweg_env::{HashMap, HashSet, Time};
use thalweg_fs::mutation::Mutation;
use thalweg_fs::session_table::{Committed, SlotRecord};
use thalweg_fs::{FsError, Ino, LockOwner};
use thalweg_net::channel::Channel;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore};
use uuid::Uuid;

use super::counters::SessionCounters;
use super::inode_limit::{InodeLimit, ReleaseRequest};
use super::options::Visitor;
use crate::protocol::FromServer;
use handles::Handles;
pub(super) use handles::OpenFile;
pub(super) use identity::Identity;
pub(super) use journal::{BatchPosition, JournalInfo, Presence, SessionJournal};
use known_inodes::KnownInodes;
pub(super) use known_inodes::MAX_RECLAIMED;
pub(super) use reply_cache::Admission;
use reply_cache::ReplyCache;
use reserved_numbers::ReservedNumbers;
use staged::Staged;
pub(super) use staged::{StagingRoom, StoringPart};

/// Most calls of a session that wait for levels beside its other calls.
const MAX_LEVEL_WAITS: usize = 1 << 12;

/// A call that waits for a level, until this is dropped.
pub(super) type LevelWait = OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct Session {
    identity: Mutex<Identity>,
    /// Its number here: no other session of this server has it.
    pub(super) serial: u64,
    /// Its client at the first connection. The name may be another one by now.
    pub(super) visitor: Visitor,
    /// The directory that its client sees as the root.
    pub(super) root: Ino,
    /// The directories on its path, from the filesystem's root to its own. The session ends when one of them is moved.
    pub(super) path: Vec<Ino>,
    pub(super) counters: SessionCounters,
    /// Its calls that are carried out once. Each is answered on the connection on which it came last.
    pub(super) replies: ReplyCache<(Channel, u64)>,
    pub(super) handles: Handles,
    pub(super) journal: SessionJournal,
    pub(super) staged: Staged,
    state: Mutex<SessionState>,
    /// Held from where an answer is granted something until it is queued, and before a call of the server is sent. So an
    /// invalidation is sent behind the answer that it takes back.
    pub(super) answer_order: Mutex<()>,
    /// A connection came or went, or the session has ended.
    moved: Notify,
    level_waits: Arc<Semaphore>,
    /// Changes under way, of a client that does not see everything.
    executing: Arc<RwLock<()>>,
}

#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) channel: Option<Channel>,
    pub(super) heard: Time,
    pub(super) has_ended: bool,
    pub(super) is_direct: bool,
    pub(super) known: KnownInodes,
    /// The highest version of which the client has not heard that it is durable.
    uncommitted: u64,
    /// Recalls of the room that the client was promised.
    pub(super) room_recalls: u64,
    /// Inode numbers that are reserved for the client.
    numbers: ReservedNumbers,
    /// By slots, the last calls that the server before this one has recorded.
    pub(super) recorded: HashMap<u16, SlotRecord>,
    /// By numbers, what calls have come to that were made again here, until the client knows that it has reclaimed everything:
    /// then it makes none again.
    pub(super) replayed: Option<HashMap<u64, Committed>>,
}

/// What an ended session held.
#[derive(Debug, Default)]
pub(super) struct SessionResources {
    pub(super) channel: Option<Channel>,
    pub(super) files: Vec<OpenFile>,
    pub(super) inodes: Vec<Ino>,
    pub(super) numbers: Vec<Range<u64>>,
    pub(super) heard: Time,
    pub(super) has_journal: bool,
}

impl Session {
    pub(super) fn new(
        (identity, serial): (Identity, u64),
        visitor: Visitor,
        path: Vec<Ino>,
        journal: SessionJournal,
        (now, limit): (Time, &Arc<InodeLimit>),
    ) -> Session {
        let root = path.last().copied().unwrap_or(Ino::ROOT);
        let state = SessionState {
            channel: None,
            heard: now,
            has_ended: false,
            is_direct: false,
            known: KnownInodes::new(root, limit),
            uncommitted: 0,
            room_recalls: 0,
            numbers: ReservedNumbers::default(),
            recorded: HashMap::default(),
            replayed: None,
        };
        Session {
            identity: Mutex::new(identity),
            serial,
            visitor,
            root,
            path,
            counters: SessionCounters::default(),
            replies: ReplyCache::default(),
            handles: Handles::default(),
            journal,
            staged: Staged::default(),
            state: Mutex::new(state),
            answer_order: Mutex::default(),
            moved: Notify::new(),
            level_waits: Arc::new(Semaphore::new(MAX_LEVEL_WAITS)),
            executing: Arc::default(),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity.lock().clone()
    }

    /// Its name and its client's are these from now on. The caller knows of no other session with that name.
    pub(super) fn set_identity(&self, identity: Identity) {
        *self.identity.lock() = identity;
    }

    pub(super) fn id(&self) -> Uuid {
        self.identity.lock().id
    }

    /// The name of its client.
    pub(super) fn client(&self) -> String {
        self.identity.lock().client.clone()
    }

    pub(super) fn is_confined(&self) -> bool {
        self.root != Ino::ROOT
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }

    /// The client has a new connection: it sends its calls again. Ends the old one.
    pub(super) fn connect(&self, channel: Channel, now: Time) {
        let old = {
            let mut state = self.state.lock();
            state.heard = now;
            state.channel.replace(channel)
        };
        if let Some(old) = old {
            old.close("the client has connected again");
        }
        self.moved.notify_waiters();
    }

    pub(super) fn disconnect(&self, channel: &Channel) {
        let mut state = self.state.lock();
        if state.is_connected_by(channel) {
            state.channel = None;
        }
    }

    /// A call has come on a connection. Fails with the reason why it is refused, with its connection.
    pub(super) fn hear(&self, channel: &Channel, now: Time) -> Result<(), &'static str> {
        let mut state = self.state.lock();
        state.check_connection(channel)?;
        state.heard = now;
        Ok(())
    }

    /// The connection for a call of the server that takes back what answers have granted: those are queued when this returns.
    /// Waits for one that is not `failed`. `None` when the session has ended.
    pub(super) async fn channel_behind_answers(&self, failed: Option<&Channel>) -> Option<Channel> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let _ordered = self.answer_order.lock();
                let state = self.state.lock();
                if state.has_ended || self.journal.has_lapsed() {
                    return None;
                }
                let is_new = |it: &&Channel| !failed.is_some_and(|failed| failed.is_same(it));
                if let Some(channel) = state.channel.as_ref().filter(is_new) {
                    return Some(channel.clone());
                }
            }
            moved.await;
        }
    }

    /// Sends a call without an answer, if the client has a connection; without one it hears of that another time.
    pub(super) fn notify(&self, purpose: &'static str, call: &FromServer) {
        let channel = self.state.lock().channel.clone();
        if let Some(channel) = channel {
            let _ = channel.tell_for(purpose, call, &[]);
            channel.flush_soon();
        }
    }

    /// Tells the client up to which version changes are durable, if it keeps some. On a later connection it hears that with
    /// the next sync.
    pub(super) fn notify_durable(&self, version: u64) {
        {
            let mut state = self.state.lock();
            if state.uncommitted == 0 {
                return;
            }
            if state.uncommitted <= version {
                state.uncommitted = 0;
            }
        }
        self.notify("Durable", &FromServer::Durable(version));
    }

    /// Asks the client to know at most so many inodes, if it knows more. On a later connection it is asked again.
    pub(super) fn request_release(&self, request: ReleaseRequest) {
        if self.state.lock().known.ask(request) {
            self.notify("Release", &FromServer::Release(request.most as u64));
        }
    }

    /// [`FsError::Stale`] unless the client knows an inode: it may use no other one.
    pub(super) fn knows(&self, ino: Ino) -> Result<(), FsError> {
        if self.state.lock().known.has(ino) { Ok(()) } else { Err(FsError::Stale) }
    }

    /// Begins a change of a confined client: what it knows is not moved out of its root before the guard is dropped.
    /// [`FsError::Stale`] if one of these inodes was.
    pub(super) async fn begin_change(
        &self,
        mut inodes: impl Iterator<Item = Ino>,
    ) -> Result<OwnedRwLockReadGuard<()>, FsError> {
        let executing = self.executing.clone().read_owned().await;
        let state = self.state.lock();
        if inodes.any(|ino| state.known.is_revoked(ino)) {
            return Err(FsError::Stale);
        }
        Ok(executing)
    }

    /// Returns when no change is under way that has begun before.
    pub(super) async fn changes_ended(&self) {
        drop(self.executing.write().await);
    }

    /// The client does not know an inode any more, which leaves its root; the stamp of the last answer that named it, if it knew it.
    pub(super) fn revoke(&self, ino: Ino) -> Option<u64> {
        let stamp = self.state.lock().known.revoke(ino)?;
        self.replies.end_waits_of(ino);
        Some(stamp)
    }

    pub(super) fn restore(&self, inodes: &[(Ino, u64)]) {
        let mut state = self.state.lock();
        if !state.has_ended {
            inodes.iter().for_each(|(ino, stamp)| state.known.restore(*ino, *stamp));
        }
    }

    /// An owner of locks: those of two clients are never the same.
    pub(super) fn owner_of(&self, owner: LockOwner) -> LockOwner {
        LockOwner { client: self.serial, ..owner }
    }

    /// A call that waits for a level begins; `None` when there are so many that it counts as any other.
    pub(super) fn begin_level_wait(&self) -> Option<LevelWait> {
        self.level_waits.clone().try_acquire_owned().ok()
    }

    /// Inode numbers are the client's; with `is_new`, no inode ever had one.
    pub(super) fn add_numbers(&self, numbers: Range<u64>, is_new: bool) {
        let mut state = self.state.lock();
        if !state.has_ended {
            state.numbers.add(numbers, is_new);
        }
    }

    pub(super) fn ranges(&self) -> usize {
        self.state.lock().numbers.len()
    }

    /// Whether the client may make changes in this order: each of inodes that it knows or has made before, and perhaps of a new
    /// inode, which has a number of the client's unless it had that before a crash.
    pub(super) fn may_make(&self, mutations: &[Mutation], is_replay: bool) -> Result<(), FsError> {
        let (state, mut made) = (self.state.lock(), HashSet::default());
        for Mutation { kind, .. } in mutations {
            let new = kind.made();
            for ino in kind.inodes().filter(|ino| Some(*ino) != new) {
                let is_own = || self.journal.has_made(ino) && !state.known.is_revoked(ino);
                if !made.contains(&ino) && !state.known.has(ino) && !is_own() {
                    return Err(FsError::Stale);
                }
            }
            let Some(new) = new else { continue };
            if !is_replay && !state.numbers.has(new.0) && !self.journal.has_made(new) {
                return Err(FsError::Invalid("the inode number is not the client's"));
            }
            made.insert(new);
        }
        Ok(())
    }

    /// Inodes have got these numbers of the client's, which does not use them again.
    pub(super) fn use_numbers(&self, used: impl Iterator<Item = Ino>) {
        let mut state = self.state.lock();
        used.for_each(|Ino(number)| state.numbers.use_up_to(number));
    }

    pub(super) fn generation(&self, ino: Ino) -> u64 {
        self.state.lock().known.generation(ino)
    }

    /// The client reclaims that it knows an inode; whether that is news here.
    pub(super) fn reclaim(&self, ino: Ino, stamp: u64) -> bool {
        self.state.lock().known.reclaim(ino, stamp)
    }

    pub(super) fn set_direct(&self, is_direct: bool) {
        self.state.lock().is_direct = is_direct;
    }

    /// The client was away for too long, and the session goes on without it; what it held beside what its journal may change, the
    /// first time.
    pub(super) fn lapse(&self) -> Option<SessionResources> {
        let resources = {
            let mut state = self.state.lock();
            if state.has_ended || !self.journal.lapse() {
                return None;
            }
            SessionResources {
                channel: state.channel.take(),
                files: self.handles.take(),
                inodes: state.known.forget_all(),
                numbers: Vec::new(),
                heard: state.heard,
                has_journal: true,
            }
        };
        self.replies.clear();
        self.moved.notify_waiters();
        Some(resources)
    }

    /// Whether the server calls its client no more, unless that comes back.
    pub(super) fn is_deserted(&self) -> bool {
        self.journal.has_lapsed() || self.state.lock().has_ended
    }

    /// Returns when the server calls the client no more.
    pub(super) async fn deserted(&self) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.is_deserted() {
                return;
            }
            moved.await;
        }
    }

    /// Ends the session; what it held, the first time.
    pub(super) fn end(&self) -> Option<SessionResources> {
        let resources = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.has_ended, true) {
                return None;
            }
            SessionResources {
                channel: state.channel.take(),
                files: self.handles.end(),
                inodes: state.known.clear(),
                numbers: state.numbers.take_unused(),
                heard: state.heard,
                has_journal: self.journal.is_kept(),
            }
        };
        self.replies.clear();
        self.moved.notify_waiters();
        Some(resources)
    }
}

impl SessionState {
    fn is_connected_by(&self, channel: &Channel) -> bool {
        self.channel.as_ref().is_some_and(|present| present.is_same(channel))
    }

    /// Why a call is refused that has come on this connection, which then ends; no error if it is the session's present one.
    pub(super) fn check_connection(&self, channel: &Channel) -> Result<(), &'static str> {
        if self.has_ended {
            return Err("its session has ended");
        }
        // What comes late over an old connection was sent again.
        if !self.is_connected_by(channel) {
            return Err("the client has connected again");
        }
        Ok(())
    }

    /// The record of a call, if it is the last of its slot.
    pub(super) fn record_of(&self, number: u64) -> Option<SlotRecord> {
        self.recorded.values().find(|it| it.number == number).copied()
    }

    /// The client keeps a change with this version until it hears that it is durable.
    pub(super) fn keep(&mut self, version: u64) {
        self.uncommitted = self.uncommitted.max(version);
    }
}
