//! A client's session: it outlives connections, and holds inodes, open files and locks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{HashMap, Time};
use thalweg_fs::ledger::{Committed, SlotRecord};
use thalweg_fs::{FsError, Handle, Ino, Lock, LockOwner, OpenFlags};
use thalweg_net::channel::Channel;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::Visitor;
use super::counters::SessionCounters;
use super::pressure::{Asked, Pressure};
use crate::protocol::{FromServer, Grants, Reply};

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Uuid,
    /// Its number here: no other session of this server has it.
    pub(super) serial: u64,
    pub(super) visitor: Visitor,
    /// The directory that its client sees as the root.
    pub(super) root: Ino,
    /// By slots, the last calls that an earlier incarnation of the server has recorded.
    pub(super) recorded: Mutex<HashMap<u16, SlotRecord>>,
    /// By numbers, the calls that were made again here, until the client knows that it has claimed everything.
    pub(super) again: Mutex<Option<HashMap<u64, Committed>>>,
    pub(super) state: Mutex<SessionState>,
    pub(super) counters: SessionCounters,
    /// A connection came or went, or the session has ended.
    pub(super) moved: Notify,
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
    handles: HashMap<Handle, OpenFile>,
    /// The client was asked to forget inodes, and still knows too many.
    pub(super) asked: Option<Asked>,
    pressure: Arc<Pressure>,
    calls: BTreeMap<u64, CallState>,
    /// The client knows the answers to all calls before this one.
    oldest: u64,
    /// Waits for locks, by the numbers of the calls.
    waits: HashMap<u64, LockWait>,
    /// Recalls of the room that the client was promised.
    room_recalls: u64,
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

/// Maximum number of unacknowledged calls of a session.
const MAX_CALLS: usize = 1 << 16;
/// Most calls of a session that wait for locks.
const MAX_WAITS: usize = 1 << 12;

/// A call that must not be carried out twice.
#[derive(Debug)]
enum CallState {
    /// It runs; the answer goes to this call of the present connection.
    Running(Option<u64>),
    Done(Box<Reply>, Vec<Bytes>),
}

/// What is to be done with a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// Carry it out.
    New,
    /// Answer this.
    Known(Box<Reply>, Vec<Bytes>),
    /// Nothing: it runs, or the client knows the answer.
    Ignored,
    /// End the connection: the client acknowledges no answers.
    TooMany,
}

/// What an ended session held.
#[derive(Debug, Default)]
pub(super) struct Estate {
    pub(super) files: Vec<OpenFile>,
    pub(super) inodes: Vec<Ino>,
    pub(super) numbers: Vec<Range<u64>>,
}

impl Session {
    pub(super) fn new(
        (id, serial): (Uuid, u64),
        visitor: Visitor,
        root: Ino,
        now: Time,
        pressure: &Arc<Pressure>,
    ) -> Session {
        pressure.add(1);
        let state = SessionState {
            channel: None,
            heard: now,
            has_ended: false,
            is_direct: false,
            stamp: 0,
            kept: 0,
            told: HashMap::from_iter([(root, u64::MAX)]),
            handles: HashMap::default(),
            asked: None,
            pressure: pressure.clone(),
            calls: BTreeMap::new(),
            oldest: 0,
            waits: HashMap::default(),
            room_recalls: 0,
            numbers: Vec::new(),
        };
        let (moved, recorded, again) = (Notify::new(), Mutex::default(), Mutex::default());
        let (state, counters) = (Mutex::new(state), SessionCounters::default());
        Session { id, serial, visitor, root, recorded, again, state, counters, moved }
    }

    /// The client has a new connection: it sends its calls again. Ends the old one.
    pub(super) fn connect(&self, channel: Channel) {
        let old = {
            let mut state = self.state.lock();
            for call in state.calls.values_mut() {
                if let CallState::Running(answers) = call {
                    *answers = None;
                }
            }
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

    /// What is to be done with call `number`, which is call `id` of the connection.
    pub(super) fn admit(&self, number: u64, oldest: u64, id: u64) -> Admission {
        let mut state = self.state.lock();
        state.oldest = state.oldest.max(oldest);
        while let Some(first) = state.calls.first_entry() {
            if *first.key() >= oldest || matches!(first.get(), CallState::Running(_)) {
                break;
            }
            first.remove();
        }
        if number < state.oldest {
            return Admission::Ignored;
        }
        let is_full = state.calls.len() >= MAX_CALLS;
        match state.calls.get_mut(&number) {
            None if is_full => Admission::TooMany,
            None => {
                state.calls.insert(number, CallState::Running(Some(id)));
                Admission::New
            }
            Some(CallState::Running(answers)) => {
                *answers = Some(id);
                Admission::Ignored
            }
            Some(CallState::Done(reply, payload)) => {
                // What was granted with the lost answer may have been invalidated since.
                let reply = Reply { grants: Grants::default(), ..(**reply).clone() };
                Admission::Known(Box::new(reply), payload.clone())
            }
        }
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
    pub(super) fn ask_back(&self, most: usize, now: Time) {
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
    /// [`FsError::TooManyLocks`].
    pub(super) fn wait(
        &self,
        number: u64,
        (ino, lock): (Ino, Lock),
        since: Time,
    ) -> Result<oneshot::Receiver<()>, FsError> {
        let (_end, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        if state.waits.len() >= MAX_WAITS {
            return Err(FsError::TooManyLocks);
        }
        state.waits.insert(number, LockWait { ino, lock, since, _end });
        Ok(receiver)
    }

    /// The wait of a call is over, or is to be over.
    pub(super) fn end_wait(&self, number: u64) {
        self.state.lock().waits.remove(&number);
    }
}

impl SessionState {
    /// The client has to return the room that it was promised: the number of this recall.
    pub(super) fn recall_room(&mut self) -> u64 {
        self.room_recalls += 1;
        self.room_recalls
    }

    /// How often it had to so far.
    pub(super) fn room_recalls(&self) -> u64 {
        self.room_recalls
    }

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
        self.pressure.add(new.len());
        (self.stamp, new)
    }

    /// The client has forgotten an inode, of which it heard last in the answer with this stamp; whether it does not know
    /// it any more.
    pub(super) fn forget(&mut self, ino: Ino, stamp: u64) -> bool {
        let is_last = self.told.get(&ino) == Some(&stamp);
        if is_last {
            self.told.remove(&ino);
            self.pressure.remove(1);
            self.asked = self.asked.filter(|asked| !asked.is_met(self.told.len()));
        }
        is_last
    }

    /// The client keeps a change with this version.
    pub(super) fn keep(&mut self, version: u64) {
        self.kept = self.kept.max(version);
    }

    /// The client claims that it knows an inode; whether that is news here.
    pub(super) fn claim(&mut self, ino: Ino, stamp: u64) -> bool {
        self.stamp = self.stamp.max(stamp);
        let is_new = self.told.insert(ino, stamp).is_none();
        self.pressure.add(usize::from(is_new));
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

    /// Whether a call is carried out now.
    pub(super) fn runs(&self, number: u64) -> bool {
        matches!(self.calls.get(&number), Some(CallState::Running(_)))
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

    /// A call that is carried out once has its answer. Returns the call of the present connection that waits for it.
    pub(super) fn done(&mut self, number: u64, reply: &Reply, payload: &[Bytes]) -> Option<u64> {
        match self.calls.insert(number, CallState::Done(Box::new(reply.clone()), payload.to_vec()))
        {
            Some(CallState::Running(answers)) => answers,
            _ => None,
        }
    }

    /// Ends the session; what it held, the first time.
    pub(super) fn end(&mut self, why: &'static str) -> Option<Estate> {
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
        self.pressure.remove(told.len());
        let files = handles.into_values().collect();
        let numbers = std::mem::take(&mut self.numbers);
        let numbers = numbers.into_iter().filter(|(_, is_new)| *is_new).map(|(it, _)| it).collect();
        Some(Estate { files, inodes: told.into_keys().collect(), numbers })
    }

    /// A lock was taken through an open file, whose handle in the filesystem is `at`.
    pub(super) fn locked(&mut self, at: Handle, now: Time) {
        let file = self.handles.values_mut().find(|file| file.at == at);
        file.into_iter().for_each(|file| file.locked = Some(now));
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
        let running = self.calls.values().filter(|call| matches!(call, CallState::Running(_)));
        (self.told.len(), self.handles.len(), running.count())
    }
}
