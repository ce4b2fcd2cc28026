//! A client's session: it outlives connections, and holds inodes, open files and locks.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet, Time};
use thalweg_fs::session_table::{Committed, SlotRecord};
use thalweg_fs::{FsError, Handle, Ino, Lock, LockOwner, OpenFlags};
use thalweg_net::channel::Channel;
use tokio::sync::{Notify, RwLock, oneshot};
use uuid::Uuid;

use super::Visitor;
use super::calls::Calls;
use super::counters::SessionCounters;
use super::inode_limit::{Asked, InodeLimit};
use crate::protocol::FromServer;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Uuid,
    /// Its number here: no other session of this server has it.
    pub(super) serial: u64,
    pub(super) visitor: Visitor,
    /// The directory that its client sees as the root.
    pub(super) root: Ino,
    /// The directories on its path, from the filesystem's root to its own. The session ends when one of them is moved.
    pub(super) path: Vec<Ino>,
    /// By slots, the last calls that an earlier incarnation of the server has recorded.
    pub(super) recorded: Mutex<HashMap<u16, SlotRecord>>,
    /// By numbers, the calls that were made again here, until the client knows that it has reclaimed everything.
    pub(super) again: Mutex<Option<HashMap<u64, Committed>>>,
    pub(super) state: Mutex<SessionState>,
    pub(super) counters: SessionCounters,
    /// A connection came or went, or the session has ended.
    pub(super) moved: Notify,
    /// Changes under way, of a client that does not see everything.
    pub(super) executing: Arc<RwLock<()>>,
}

#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) channel: Option<Channel>,
    /// When its client was last heard.
    pub(super) heard: Time,
    /// It has ended, and its calls are refused.
    pub(super) has_ended: bool,
    /// Its client reaches contents itself.
    pub(super) is_direct: bool,
    /// Of the last answer that named inodes.
    stamp: u64,
    /// The highest version of which the client has not heard that it is durable.
    kept: u64,
    /// The inodes that the client knows, and the stamp of the last answer that named each.
    told: HashMap<Ino, u64>,
    /// Inodes that were moved out of the client's root, and the generation in which each was: it may have been told of some again.
    revoked: HashMap<Ino, u64>,
    /// How often that happened here.
    lost: u64,
    handles: HashMap<Handle, OpenFile>,
    /// The client was asked to forget inodes, and still knows too many.
    pub(super) asked: Option<Asked>,
    inode_limit: Arc<InodeLimit>,
    pub(super) calls: Calls,
    /// Waits for locks, by the numbers of the calls.
    waits: HashMap<u64, LockWait>,
    /// Recalls of the room that the client was promised.
    pub(super) room_recalls: u64,
    /// Calls that wait for a level.
    level_waits: usize,
    /// Inode numbers that are reserved for the client, and whether no inode ever had them.
    numbers: Vec<(Range<u64>, bool)>,
}

/// An open file of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    /// Its handle in the filesystem. The client's handle outlives the server.
    pub(super) at: Handle,
    /// When it was opened here.
    pub(super) since: Time,
    /// When a lock was last taken through it here.
    pub(super) locked: Option<Time>,
}

/// A call that waits for a lock.
#[derive(Debug)]
pub(super) struct LockWait {
    pub(super) ino: Ino,
    pub(super) lock: Lock,
    pub(super) since: Time,
    /// Dropped, it ends the wait.
    _end: oneshot::Sender<()>,
}

/// Most calls of a session that wait for locks, and most that wait for levels beside its other calls.
const MAX_WAITS: usize = 1 << 12;

/// What an ended session held.
#[derive(Debug, Default)]
pub(super) struct SessionResources {
    pub(super) files: Vec<OpenFile>,
    pub(super) inodes: Vec<Ino>,
    pub(super) numbers: Vec<Range<u64>>,
}

impl Session {
    pub(super) fn new(
        (id, serial): (Uuid, u64),
        visitor: Visitor,
        path: Vec<Ino>,
        now: Time,
        inode_limit: &Arc<InodeLimit>,
    ) -> Session {
        inode_limit.add(1);
        let root = path.last().copied().unwrap_or(Ino::ROOT);
        let state = SessionState {
            channel: None,
            heard: now,
            has_ended: false,
            is_direct: false,
            stamp: 0,
            kept: 0,
            told: HashMap::from_iter([(root, u64::MAX)]),
            revoked: HashMap::default(),
            lost: 0,
            handles: HashMap::default(),
            asked: None,
            inode_limit: inode_limit.clone(),
            calls: Calls::default(),
            waits: HashMap::default(),
            room_recalls: 0,
            level_waits: 0,
            numbers: Vec::new(),
        };
        let (moved, recorded, again) = (Notify::new(), Mutex::default(), Mutex::default());
        let (state, counters) = (Mutex::new(state), SessionCounters::default());
        let executing = Arc::default();
        Session {
            id,
            serial,
            visitor,
            root,
            path,
            recorded,
            again,
            state,
            counters,
            moved,
            executing,
        }
    }

    /// Whether its client sees a part of the filesystem only.
    pub(super) fn is_confined(&self) -> bool {
        self.root != Ino::ROOT
    }

    /// The client has a new connection: it sends its calls again. Ends the old one.
    pub(super) fn connect(&self, channel: Channel) {
        let old = {
            let mut state = self.state.lock();
            state.calls.connect();
            state.channel.replace(channel)
        };
        if let Some(old) = old {
            old.close("the client has connected again");
        }
        self.moved.notify_waiters();
    }

    /// A connection has ended.
    pub(super) fn disconnect(&self, channel: &Channel) {
        let mut state = self.state.lock();
        if state.channel.as_ref().is_some_and(|present| present.is_same(channel)) {
            state.channel = None;
        }
    }

    /// Whether the last call of a slot is this one.
    pub(super) fn has_recorded(&self, number: u64) -> bool {
        self.recorded.lock().values().any(|it| it.number == number)
    }

    /// The client knows the answers to all calls before `oldest`, and to these.
    pub(super) fn acknowledge(&self, oldest: u64, answered: &[u64]) {
        let mut state = self.state.lock();
        let unwanted = state.calls.acknowledge(oldest, answered);
        unwanted.iter().for_each(|number| drop(state.waits.remove(number)));
    }

    /// The client waits for the answers to these calls, in their order, and to no other one that it has made.
    pub(super) fn acknowledge_others(&self, pending: &[u64]) {
        let mut state = self.state.lock();
        let unwanted = state.calls.acknowledge_others(pending);
        unwanted.iter().for_each(|number| drop(state.waits.remove(number)));
    }

    /// Whether the client knows an inode: it may use no other one.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub(super) fn knows(&self, ino: Ino) -> Result<(), FsError> {
        match self.state.lock().told.contains_key(&ino) {
            true => Ok(()),
            false => Err(FsError::Stale),
        }
    }

    /// Whether one of these inodes was moved out of the client's root, and the client does not know it any more.
    pub(super) fn has_lost(&self, inodes: &[Option<Ino>]) -> bool {
        let state = self.state.lock();
        inodes.iter().flatten().any(|ino| state.is_revoked(*ino))
    }

    /// The file behind a handle.
    ///
    /// # Errors
    /// [`FsError::Stale`]: it is not one of this session, or of another inode.
    pub(super) fn opened(&self, handle: Handle, ino: Ino) -> Result<OpenFile, FsError> {
        match self.state.lock().handles.get(&handle) {
            Some(file) if file.ino == ino => Ok(*file),
            _ => Err(FsError::Stale),
        }
    }

    /// An owner of locks: those of two clients are never the same.
    pub(super) fn owner_of(&self, owner: LockOwner) -> LockOwner {
        LockOwner { client: self.serial, ..owner }
    }

    /// Tells the client up to which version changes are durable, if it keeps some.
    pub(super) fn tell_durable(&self, version: u64) {
        let mut state = self.state.lock();
        if state.kept == 0 {
            return;
        }
        if state.kept <= version {
            state.kept = 0;
        }
        if let Some(channel) = &state.channel {
            // On another connection the client hears it with the next sync.
            let _ = channel.tell_for("Durable", &FromServer::Durable(version), &[]);
            channel.flush_soon();
        }
    }

    /// Asks the client to know at most so many inodes, if it knows more.
    pub(super) fn request_release(&self, most: usize, now: Time) {
        let mut state = self.state.lock();
        if state.told.len() <= most {
            state.asked = None;
            return;
        }
        let since = state.asked.map_or(now, |asked| asked.since);
        state.asked = Some(Asked { most, since });
        if let Some(channel) = &state.channel {
            // On another connection the client is asked again.
            let _ = channel.tell_for("Release", &FromServer::Release(most as u64), &[]);
            channel.flush_soon();
        }
    }

    /// Call `number` waits for a lock from now on; a way to end the wait.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`]; [`FsError::Locked`] when it is not to wait any more.
    pub(super) fn wait(
        &self,
        number: u64,
        (ino, lock): (Ino, Lock),
        since: Time,
    ) -> Result<oneshot::Receiver<()>, FsError> {
        let (_end, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        if state.calls.is_cancelled(number) {
            return Err(FsError::Locked);
        }
        if state.waits.len() >= MAX_WAITS {
            return Err(FsError::TooManyLocks);
        }
        state.waits.insert(number, LockWait { ino, lock, since, _end });
        Ok(receiver)
    }

    /// The wait of a call is over.
    pub(super) fn end_wait(&self, number: u64) {
        self.state.lock().waits.remove(&number);
    }

    /// A call is not to wait for a lock any more, also if it has not begun to.
    pub(super) fn cancel_wait(&self, number: u64) {
        let mut state = self.state.lock();
        state.calls.cancel(number);
        state.waits.remove(&number);
    }

    /// A call that waits for a level begins; `None` when there are so many that it counts as any other.
    pub(super) fn begin_level_wait(self: &Arc<Self>) -> Option<LevelWait> {
        let mut state = self.state.lock();
        let is_one = state.level_waits < MAX_WAITS;
        state.level_waits += usize::from(is_one);
        is_one.then(|| LevelWait(self.clone()))
    }
}

/// A call that waits for a level, until this is dropped.
#[derive(Debug)]
pub(super) struct LevelWait(Arc<Session>);

impl Drop for LevelWait {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        assert!(state.level_waits > 0, "a wait for a level ends twice");
        state.level_waits -= 1;
    }
}

impl SessionState {
    /// The client is told of inodes: the answer's stamp, and those that it did not know.
    pub(super) fn tell(&mut self, inodes: &[Ino]) -> (u64, Vec<Ino>) {
        if inodes.is_empty() {
            return (self.stamp, Vec::new());
        }
        self.stamp += 1;
        let mut new = Vec::new();
        for ino in inodes {
            match self.told.get_mut(ino) {
                // The root is never forgotten.
                Some(stamp) if *stamp == u64::MAX => {}
                Some(stamp) => *stamp = self.stamp,
                None => {
                    self.told.insert(*ino, self.stamp);
                    new.push(*ino);
                }
            }
        }
        self.inode_limit.add(new.len());
        (self.stamp, new)
    }

    /// The client has forgotten an inode, of which it heard last in the answer with this stamp; whether it does not know
    /// it any more.
    pub(super) fn forget(&mut self, ino: Ino, stamp: u64) -> bool {
        let is_last = self.told.get(&ino) == Some(&stamp);
        if is_last {
            self.told.remove(&ino);
            self.inode_limit.remove(1);
            self.asked = self.asked.filter(|asked| !asked.is_met(self.told.len()));
        }
        is_last
    }

    /// The client does not know an inode any more, which leaves its root; the stamp of the last answer that named it, if it knew it.
    pub(super) fn revoke(&mut self, ino: Ino) -> Option<u64> {
        let stamp = self.told.get(&ino).copied().filter(|stamp| *stamp != u64::MAX)?;
        self.told.remove(&ino);
        self.inode_limit.remove(1);
        let generation = self.stamp.max(1);
        self.revoked.insert(ino, generation);
        self.lost += 1;
        self.waits.retain(|_, wait| wait.ino != ino);
        Some(stamp)
    }

    /// The client knows a revoked inode after all.
    pub(super) fn know_again(&mut self, ino: Ino, stamp: u64) {
        if !self.has_ended && self.told.insert(ino, stamp).is_none() {
            self.inode_limit.add(1);
        }
    }

    /// Of each inode that an earlier server has revoked, the generation.
    pub(super) fn set_revoked(&mut self, revoked: Vec<(Ino, u64)>) {
        self.stamp = revoked.iter().map(|(_, generation)| *generation).fold(self.stamp, u64::max);
        self.revoked = revoked.into_iter().collect();
    }

    /// Whether an inode was revoked, and the client was not told of it again.
    pub(super) fn is_revoked(&self, ino: Ino) -> bool {
        self.revoked.contains_key(&ino) && !self.told.contains_key(&ino)
    }

    /// How often an inode was revoked by this server.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// The generation in which an inode was last revoked; 0 if it never was. Proofs are of a generation.
    pub(super) fn generation(&self, ino: Ino) -> u64 {
        self.revoked.get(&ino).copied().unwrap_or_default()
    }

    /// Its open files of these inodes, which are to be closed.
    #[must_use = "they are to be closed"]
    pub(super) fn close_all(&mut self, inodes: &HashSet<Ino>) -> Vec<OpenFile> {
        self.handles
            .extract_if(|_, file| inodes.contains(&file.ino))
            .map(|(_, file)| file)
            .collect()
    }

    /// The client keeps a change with this version.
    pub(super) fn keep(&mut self, version: u64) {
        self.kept = self.kept.max(version);
    }

    /// The client reclaims that it knows an inode; whether that is news here.
    pub(super) fn reclaim(&mut self, ino: Ino, stamp: u64) -> bool {
        self.stamp = self.stamp.max(stamp);
        let is_new = self.told.insert(ino, stamp).is_none();
        self.inode_limit.add(usize::from(is_new));
        is_new
    }

    /// Inode numbers are the client's; with `is_new`, no inode ever had one.
    pub(super) fn own_numbers(&mut self, numbers: Range<u64>, is_new: bool) {
        self.numbers.push((numbers, is_new));
    }

    /// How many ranges of inode numbers the client has.
    pub(super) fn ranges(&self) -> usize {
        self.numbers.len()
    }

    /// Whether a number is the client's.
    pub(super) fn has_number(&self, number: u64) -> bool {
        self.numbers.iter().any(|(range, _)| range.contains(&number))
    }

    /// An inode has got a number of the client's, which does not use it or a lower one of its range again.
    pub(super) fn use_number(&mut self, number: u64) {
        if let Some((range, _)) = self.numbers.iter_mut().find(|(it, _)| it.contains(&number)) {
            range.start = number + 1;
        }
        self.numbers.retain(|(range, _)| !range.is_empty());
    }

    /// Whether the client has a file open under this handle.
    pub(super) fn has_handle(&self, handle: Handle) -> bool {
        self.handles.contains_key(&handle)
    }

    /// The client has a file open under this handle. Returns one that it had opened under it before.
    #[must_use = "it is to be closed"]
    pub(super) fn open(&mut self, handle: Handle, file: OpenFile) -> Option<OpenFile> {
        self.handles.insert(handle, file)
    }

    pub(super) fn close(&mut self, handle: Handle) -> Option<OpenFile> {
        self.handles.remove(&handle)
    }

    /// Ends the session; what it held, the first time.
    pub(super) fn end(&mut self, why: &'static str) -> Option<SessionResources> {
        if std::mem::replace(&mut self.has_ended, true) {
            return None;
        }
        self.waits.clear();
        self.calls.clear();
        if let Some(channel) = self.channel.take() {
            channel.close(why);
        }
        let handles = std::mem::take(&mut self.handles);
        let told = std::mem::take(&mut self.told);
        self.inode_limit.remove(told.len());
        let files = handles.into_values().collect();
        let numbers = std::mem::take(&mut self.numbers);
        let numbers = numbers.into_iter().filter(|(_, is_new)| *is_new).map(|(it, _)| it).collect();
        Some(SessionResources { files, inodes: told.into_keys().collect(), numbers })
    }

    /// A lock was taken through an open file, whose handle in the filesystem is `at`; whether it is open still.
    pub(super) fn locked(&mut self, at: Handle, now: Time) -> bool {
        let file = self.handles.values_mut().find(|file| file.at == at);
        file.map(|file| file.locked = Some(now)).is_some()
    }

    /// Whether the client knows an inode, its open files of it, and its calls that wait for locks on it, by their numbers.
    pub(super) fn uses_of(&self, ino: Ino) -> (bool, Vec<OpenFile>, Vec<(&u64, &LockWait)>) {
        let files = self.handles.values().filter(|file| file.ino == ino).copied();
        let mut waits: Vec<_> = self.waits.iter().filter(|(_, wait)| wait.ino == ino).collect();
        waits.sort_by_key(|(number, _)| **number);
        (self.told.contains_key(&ino), files.collect(), waits)
    }

    /// How many inodes it knows, how many files it has open, and how many calls that are carried out once run.
    pub(super) fn holds(&self) -> (usize, usize, usize) {
        (self.told.len(), self.handles.len(), self.calls.running())
    }
}
