//! The sessions of a server: how they begin, and how they end.
//!
//! A session that has ended is *leaving* until the filesystem has no record of it and its client uses nothing of its cache.
//! Until then nothing that it held is another client's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::{HashMap, Time, watch};
use thalweg_fs::session_table::{Held, JournalPosition, SessionRecord, UsedByOthers};
use thalweg_fs::{DirectContents, FsError, Ino};
use uuid::Uuid;

use super::base::{Base, resolve};
use super::counters::add;
use super::options::Visitor;
use super::session::{Identity, JournalInfo, Presence, Session, SessionJournal, SessionResources};
use super::session_record::encode;
use crate::protocol::{BATCH_SLOT, Changed};

/// Sessions that were handed over and have ended, of which the server knows.
const MAX_HANDED_OVER: usize = 1024;
/// Journals of one client that have lapsed, at most.
const MAX_LAPSED: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// Its client has ended it, and uses nothing any more.
    Detached,
    /// Its client may not know yet. If that has a journal, the session goes on without it: the journal has lapsed.
    Evicted(&'static str),
    /// It was lapsed, and is given up.
    Forgotten(&'static str),
}

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) base: Base,
    /// The number of the last session of a filesystem without records. 0 is the machine with the filesystem.
    last: AtomicU64,
    live: Mutex<LiveSessions>,
    /// By serial number.
    leaving: Mutex<HashMap<u64, LeavingSession>>,
    /// Names before a hand-over of sessions that have ended: the clients that had these may not know of that yet.
    handed_over: Mutex<VecDeque<Uuid>>,
}

#[derive(Debug, Default)]
struct LiveSessions {
    by_id: HashMap<Uuid, Arc<Session>>,
    by_serial: HashMap<u64, Arc<Session>>,
}

#[derive(Debug)]
struct LeavingSession {
    client: String,
    left: watch::Receiver<()>,
}

impl LiveSessions {
    fn insert(&mut self, session: Arc<Session>) {
        let before = self.by_serial.insert(session.serial, session.clone());
        assert!(before.is_none(), "two sessions have one number");
        self.by_id.insert(session.id(), session);
    }

    fn remove(&mut self, session: &Session) {
        let removed = self.by_serial.remove(&session.serial);
        assert!(removed.is_some(), "a session ends that does not live");
        // Two connections may have begun sessions with one identifier: the later one has it.
        let id = session.id();
        if self.by_id.get(&id).is_some_and(|it| it.serial == session.serial) {
            self.by_id.remove(&id);
        }
    }
}

impl Sessions {
    pub(super) fn new(base: &Base) -> Sessions {
        Sessions {
            base: base.clone(),
            last: AtomicU64::new(0),
            live: Mutex::default(),
            leaving: Mutex::default(),
            handed_over: Mutex::default(),
        }
    }

    pub(super) fn get(&self, id: Uuid) -> Option<Arc<Session>> {
        self.live.lock().by_id.get(&id).cloned()
    }

    pub(super) fn with_serial(&self, serial: u64) -> Option<Arc<Session>> {
        self.live.lock().by_serial.get(&serial).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.matching(|_| true)
    }

    pub(super) fn matching(&self, wanted: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let live = self.live.lock();
        live.by_serial.values().filter(|session| wanted(session)).cloned().collect()
    }

    /// Whether a session with this name was handed over to another machine. Of one that has ended since, only this server knows that.
    pub(super) fn was_handed_over(&self, id: Uuid) -> bool {
        let was = |session: &Session| session.identity().moved.is_some_and(|it| it.from == id);
        !self.matching(was).is_empty() || self.handed_over.lock().contains(&id)
    }

    /// A session has another name from now on.
    pub(super) fn rename(&self, session: &Arc<Session>, identity: Identity) {
        let mut live = self.live.lock();
        let before = live.by_id.remove(&session.id());
        assert!(before.is_some_and(|it| it.serial == session.serial), "it has its name alone");
        live.by_id.insert(identity.id, session.clone());
        session.set_identity(identity);
    }

    pub(super) fn know(&self, ino: Ino) -> bool {
        self.live.lock().by_serial.values().any(|session| session.knows(ino).is_ok())
    }

    /// The name of the client of a session, which may be leaving.
    pub(super) fn client_of(&self, serial: u64) -> String {
        if let Some(session) = self.with_serial(serial) {
            return session.client();
        }
        let leaving = self.leaving.lock();
        leaving.get(&serial).map(|leaving| leaving.client.clone()).unwrap_or_default()
    }

    pub(super) async fn begin(
        self: &Arc<Self>,
        id: Uuid,
        visitor: &Visitor,
        journal: Option<JournalInfo>,
    ) -> Result<Arc<Session>, FsError> {
        let path = resolve(&*self.base.files, &visitor.path).await?;
        if self.live.lock().by_serial.len() >= self.base.options.sessions {
            return Err(FsError::Invalid("the server has its maximum of sessions"));
        }
        let identity = Identity::new(id, visitor.name.clone());
        let serial = match self.base.files.session_table() {
            Some(table) => {
                let info = encode(&identity, visitor, self.base.options.lease, journal);
                table.begin_session(info).await?
            }
            None => 1 + self.last.fetch_add(1, Ordering::Relaxed),
        };
        let journal = SessionJournal::new(journal, JournalPosition::default(), Held::default());
        let session = self.add((identity, serial), visitor.clone(), path, journal);
        // A rename may have come between that did not know of the session.
        match resolve(&*self.base.files, &visitor.path).await {
            Ok(path) if path == session.path => {}
            found => {
                self.end(&session, Ending::Detached);
                return Err(found.err().unwrap_or(FsError::NotFound));
            }
        }
        tracing::info!(client = visitor.name, path = visitor.path, "a session began");
        Ok(session)
    }

    fn add(
        &self,
        numbers: (Identity, u64),
        visitor: Visitor,
        path: Vec<Ino>,
        journal: SessionJournal,
    ) -> Arc<Session> {
        let now = self.base.env.now();
        let session = Session::new(numbers, visitor, path, journal, (now, &self.base.limit));
        let session = Arc::new(session);
        self.base.files.reference(session.root);
        self.live.lock().insert(session.clone());
        session
    }

    /// A session that the server before this one has recorded goes on, of this client and with this path.
    pub(super) fn resume(
        &self,
        (identity, visitor, path): (Identity, Visitor, Vec<Ino>),
        journal: Option<JournalInfo>,
        record: SessionRecord,
    ) {
        let applied = record.slots.iter().find(|it| it.slot == BATCH_SLOT);
        let applied = applied.map(|it| JournalPosition { position: it.outcome, hash: it.hash });
        let held = record.held.clone();
        let journal = SessionJournal::new(journal, applied.unwrap_or_default(), record.held);
        let session = self.add((identity, record.session), visitor, path, journal);
        let mut state = session.lock();
        state.recorded = record.slots.into_iter().map(|it| (it.slot, it)).collect();
        state.replayed = Some(HashMap::default());
        state.known.set_revoked(record.revoked);
        drop(state);
        // What it may have changed in its journal is its again at this server: a client that has rebooted cannot reclaim that.
        for ino in session.journal.unused(held.inodes.iter()) {
            self.base.capabilities.resume_delegation(session.serial, ino);
        }
        let presence = journal_presence(&session);
        if presence != Some(Presence::Lapsed) {
            self.know_held(&session, &held);
        }
        if presence != Some(Presence::Present) {
            let used = held.used.iter().map(|it| it.ino);
            self.base.capabilities.lapse(session.serial, held.numbers.clone(), used);
            if !held.used.is_empty() {
                self.base.foreign_uses.begin();
            }
        }
    }

    /// Ends a session, and releases what it holds.
    pub(super) fn end(self: &Arc<Self>, session: &Arc<Session>, how: Ending) {
        let why = match how {
            Ending::Detached => "its client has left",
            Ending::Evicted(why) | Ending::Forgotten(why) => why,
        };
        let lapses = matches!(how, Ending::Evicted(_)) && self.may_have_changes(session);
        let (leaves, left) = watch::channel(());
        let leaving = LeavingSession { client: session.client(), left };
        let mut resources = {
            // Before it is seen to have ended, so that a change which waits for that waits for it to leave, too.
            let mut all = self.leaving.lock();
            let resources = if lapses { session.lapse() } else { session.end() };
            let Some(resources) = resources else { return };
            let before = all.insert(session.serial, leaving);
            assert!(before.is_none(), "a session ends while its journal lapses");
            resources
        };
        if let Some(channel) = resources.channel.take() {
            channel.close(why);
        }
        add(&self.base.counters.evictions, u64::from(matches!(how, Ending::Evicted(_))));
        let (name, path) = (session.client(), &session.visitor.path);
        if lapses {
            tracing::warn!(
                client = name,
                path,
                why,
                "a client with a journal is away, and others go on"
            );
        } else {
            tracing::info!(client = name, path, why, "a session ended");
            if let Some(moved) = session.identity().moved {
                self.handed_over.lock().push_front(moved.from);
                self.handed_over.lock().truncate(MAX_HANDED_OVER);
            }
            self.live.lock().remove(session);
        }
        self.base.replay.forget(session.serial);
        let (sessions, serial, session) = (self.clone(), session.serial, session.clone());
        let leaving = async move {
            if lapses {
                sessions.lapse(&session, resources).await;
            } else {
                sessions.release(serial, how, resources).await;
            }
            let left = sessions.leaving.lock().remove(&serial);
            assert!(left.is_some(), "a session leaves twice");
            drop(leaves);
            if lapses {
                sessions.forget_oldest(&session.client());
            }
        };
        self.base.env.spawn(leaving).detach();
    }

    /// Releases what an ended session held; returns when its client uses nothing of its cache.
    async fn release(&self, serial: u64, how: Ending, resources: SessionResources) {
        let SessionResources { files, inodes, numbers, heard, has_journal, .. } = resources;
        let until = match how {
            Ending::Detached | Ending::Forgotten(_) => self.base.env.now(),
            Ending::Evicted(_) => {
                self.shut_out(&[serial]).await;
                self.lease_end(heard)
            }
        };
        if let Some(table) = self.base.files.session_table() {
            // Before anything is released, so that a client cannot reclaim what another one gets now.
            if let Err(error) = table.end_sessions(&[serial]).await {
                tracing::error!(%error, "the record of a client's session stays");
            }
            table.release_room(serial);
        }
        for file in files {
            self.base.open_files.close(serial, file).await;
        }
        inodes.into_iter().for_each(|ino| self.base.files.unreference(ino, 1));
        // Inodes that only a journal has may have numbers of its client.
        let are_unused = matches!(how, Ending::Detached) || !has_journal;
        if let Some(table) = self.base.files.session_table().filter(|_| are_unused) {
            for range in numbers {
                if let Err(error) = table.return_numbers(range).await {
                    tracing::debug!(%error, "inode numbers stay unused");
                }
            }
        }
        self.base.env.sleep_until(until).await;
        self.base.capabilities.drop_session(serial);
    }

    /// Whether the client of a session may have a journal with changes that the server does not have, or of which it does not know that.
    fn may_have_changes(&self, session: &Session) -> bool {
        let has_some = || {
            session.journal.applied().position > 0
                || !session.journal.reserved().is_empty()
                || self.base.capabilities.has_delegations(session.serial)
        };
        session.journal.is_kept() && has_some()
    }

    /// The sessions of a client whose journals have lapsed. Not one whose client may still use its cache: it ends after that.
    fn lapsed_of(&self, client: &str) -> Vec<Arc<Session>> {
        let mut lapsed = self.matching(|it| it.client() == client && it.journal.has_lapsed());
        let leaving = self.leaving.lock();
        lapsed.retain(|session| !leaving.contains_key(&session.serial));
        lapsed
    }

    /// Gives up the oldest journals of a client that have lapsed, if it has too many: each takes records, and a place among the sessions.
    fn forget_oldest(self: &Arc<Self>, client: &str) {
        let mut lapsed = self.lapsed_of(client);
        lapsed.sort_by_key(|session| session.lock().heard);
        for session in lapsed.iter().rev().skip(MAX_LAPSED) {
            tracing::error!(
                client,
                "a client has left too many journals: the oldest one is given up"
            );
            self.end(session, Ending::Forgotten("its client has left too many journals"));
        }
    }

    /// By then a client that was last heard at a time cannot use what it caches any more: clocks differ by less than an eighth.
    fn lease_end(&self, heard: Time) -> Time {
        heard + self.base.options.lease + self.base.options.lease / 8
    }

    /// The journal of a session has lapsed: releases what that held beside what the journal may change, and returns when its client
    /// uses nothing of its cache.
    async fn lapse(&self, session: &Session, resources: SessionResources) {
        let SessionResources { files, inodes, heard, .. } = resources;
        let serial = session.serial;
        self.shut_out(&[serial]).await;
        session.journal.batches_ended().await;
        if let Some(table) = self.base.files.session_table() {
            let info = encode(
                &session.identity(),
                &session.visitor,
                self.base.options.lease,
                session.journal.info(),
            );
            if let Err(error) = table.set_session(serial, info).await {
                tracing::error!(%error, "a later server waits for a client that is away");
            }
            table.release_room(serial);
        }
        for file in files {
            self.base.open_files.close(serial, file).await;
        }
        inodes.into_iter().for_each(|ino| self.base.files.unreference(ino, 1));
        self.base.env.sleep_until(self.lease_end(heard)).await;
        let used = session.journal.used().into_iter().map(|it| it.ino);
        self.base.capabilities.lapse(serial, session.journal.reserved(), used);
    }

    /// Other clients are about to use what may have changed in a journal that has lapsed: returns when that is on record. Not if its client
    /// is there, and is to be asked.
    pub(super) async fn note_use(&self, serial: u64, changes: &[Changed]) -> bool {
        let Some(session) = self.with_serial(serial) else { return true };
        let _turn = session.journal.noting.lock().await;
        if !session.is_deserted() && !session.journal.has_returned() {
            return false;
        }
        let inodes: Vec<Ino> = changes.iter().filter_map(delegated).collect();
        let new = session.journal.unused(inodes.iter());
        while let Err(error) = self.note(&session, &new).await {
            if session.lock().has_ended {
                return true;
            }
            tracing::error!(%error, "the use of what is a client's that is away cannot be noted; it is tried again");
            self.base.env.sleep(self.base.options.lease / 4).await;
        }
        true
    }

    async fn note(&self, session: &Session, inodes: &[Ino]) -> Result<(), FsError> {
        let Some(table) = self.base.files.session_table().filter(|_| !inodes.is_empty()) else {
            return Ok(());
        };
        let mut used = Vec::with_capacity(inodes.len());
        for ino in inodes {
            match self.base.files.attributes(*ino).await {
                Ok(found) => {
                    // What the use is about is noted when that is known.
                    let (ino, changed) = (*ino, found.attributes.changed);
                    used.push(UsedByOthers { ino, changed, written: Some(Vec::new()) });
                }
                // It is gone: a change of it will be refused anyway.
                Err(FsError::Stale | FsError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let held = Held { used, ..Held::default() };
        table.hold(session.serial, &held).await?;
        session.journal.note_used(held.used);
        self.base.foreign_uses.begin();
        Ok(())
    }

    /// A session knows what its client may have changed in its journal.
    pub(super) fn know_held(&self, session: &Session, held: &Held) {
        for ino in &held.inodes {
            if session.reclaim(*ino, 0) {
                self.base.files.reference(*ino);
            }
        }
    }

    pub(super) async fn left(&self, serial: u64) {
        let left = self.leaving.lock().get(&serial).map(|leaving| leaving.left.clone());
        if let Some(mut left) = left {
            let _ = left.changed().await;
        }
    }

    /// Ends the sessions of clients that are silent for too long.
    pub(super) fn expire(self: &Arc<Self>) {
        let now = self.base.env.now();
        let is_lost = |it: &Session| {
            let silence = self.base.options.longest_silence(it.journal.is_kept());
            !it.journal.has_lapsed() && now.since(it.lock().heard) > silence
        };
        for session in &self.matching(is_lost) {
            self.end(session, Ending::Evicted("its client was silent for too long"));
        }
    }

    pub(super) fn evict(self: &Arc<Self>, client: &str) -> usize {
        let of_client = self.matching(|session| session.client() == client);
        for session in &of_client {
            self.end(session, Ending::Evicted("an administrator evicted it"));
        }
        of_client.len()
    }

    /// Gives up the journals of a client that have lapsed; how many.
    pub(super) fn forget_journals(self: &Arc<Self>, client: &str) -> usize {
        let lapsed = self.lapsed_of(client);
        for session in &lapsed {
            self.end(session, Ending::Forgotten("an administrator gave its journal up"));
        }
        lapsed.len()
    }

    /// Asks the clients that know most to forget inodes, if the clients know too many.
    pub(super) fn request_release(&self) {
        if !self.base.limit.may_ask(self.base.env.now()) {
            return;
        }
        let sessions = self.all();
        let counts = sessions.iter().map(|session| session.lock().known.len()).collect();
        let request = self.base.limit.request(counts, self.base.env.now());
        sessions.iter().for_each(|session| session.request_release(request));
    }

    /// What clients need that reach contents themselves.
    pub(super) fn direct(&self) -> Option<&dyn DirectContents> {
        self.base.files.session_table()?.direct()
    }

    /// Nothing of these sessions changes contents any more when this returns. Before that nothing that they had is another
    /// client's.
    pub(super) async fn shut_out(&self, sessions: &[u64]) {
        let Some(direct) = self.direct() else { return };
        while let Err(error) = direct.shut_out(sessions).await {
            tracing::error!(%error, "a client cannot be shut out of the contents; it is tried again");
            self.base.env.sleep(self.base.options.lease / 4).await;
        }
    }
}

fn delegated(change: &Changed) -> Option<Ino> {
    match change {
        Changed::Delegation(ino) => Some(*ino),
        _ => None,
    }
}

fn journal_presence(session: &Session) -> Option<Presence> {
    Some(session.journal.info()?.presence)
}
