//! The journal that a client uses now: from its beginning until it fails, or the server ends the session. Then it is opened again, by
//! what has opened it before.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use thalweg_env::{Env, Task};
use thalweg_fs::Ino;
use thalweg_fs::mutation::Mutation;
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::{LogRecovery, RecordPlace};
use uuid::Uuid;

use super::error::AttachError;
use super::found_journal::read_record;
use super::journal::ClientJournal;

/// What the server keeps for a journal that is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// The session that the journal names, perhaps.
    Session,
    /// Nothing: the session with this name has ended. Another mount of the journal may have ended it.
    Nothing(Uuid),
}

/// A journal that was opened.
pub(super) struct Reopened {
    pub(super) journal: ClientJournal,
    /// Of the inodes that were asked for: those that are as the client has left them, with their paths.
    pub(super) unused: Vec<(Ino, Bytes)>,
    /// Bytes of mutations that were in memory at most, while it was written back.
    pub(super) memory: usize,
}

/// Opens the journal: what it has is written back, and it begins anew. These inodes are asked for.
pub(super) type Reopen =
    Arc<dyn Fn(Kept, Vec<Ino>) -> BoxFuture<'static, Result<Reopened, AttachError>> + Send + Sync>;

/// The journal of a client, if it has one and that is used.
#[derive(Default)]
pub(super) struct JournalSlot(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    journal: Option<Arc<ClientJournal>>,
    has_ended: bool,
    /// It has ended because its device has failed.
    has_failed: bool,
    reopen: Option<Reopen>,
    /// Of a client that writes a journal back: where that is read.
    recovered_from: Weak<LogRecovery>,
    /// The session has ended; inodes of which the journal has changes.
    interrupted: Option<(Kept, Vec<Ino>)>,
    /// They keep the copies.
    _tasks: Vec<Task<()>>,
}

impl JournalSlot {
    /// The journal may be opened again when the server has ended the session.
    pub(super) fn reopen_by(&self, reopen: Reopen) {
        self.0.lock().reopen = Some(reopen);
    }

    pub(super) fn begin(&self, env: &Env, journal: ClientJournal) {
        let journal = Arc::new(journal);
        let tasks = (0..journal.copies.links.len()).map(|link| {
            let (journal, own) = (journal.clone(), env.clone());
            env.spawn(async move { journal.keep_copy(&own, link).await })
        });
        let _tasks = tasks.collect();
        let mut slot = self.0.lock();
        let reopen = slot.reopen.take();
        *slot = Slot { journal: Some(journal), reopen, _tasks, ..Slot::default() };
    }

    /// The journal, while it is used.
    pub(super) fn live(&self) -> Option<Arc<ClientJournal>> {
        let slot = self.0.lock();
        slot.journal.clone().filter(|_| !slot.has_ended)
    }

    /// The journal, also when it is used no more: it may have bytes that memory has not.
    pub(super) fn last(&self) -> Option<Arc<ClientJournal>> {
        self.0.lock().journal.clone()
    }

    /// This one is written back.
    pub(super) fn recover_from(&self, log: &Arc<LogRecovery>) {
        self.0.lock().recovered_from = Arc::downgrade(log);
    }

    /// The mutations of a record, and the number of the first one; `None` without a journal that has it.
    ///
    /// # Errors
    /// Those of the journal.
    pub(super) async fn read(
        &self,
        place: RecordPlace,
    ) -> Result<Option<(u64, Vec<Mutation>)>, JournalError> {
        if let Some(journal) = self.last() {
            return journal.read(place).await.map(Some);
        }
        let log = self.0.lock().recovered_from.upgrade();
        let Some(log) = log else { return Ok(None) };
        let record = read_record(&log, place).await?;
        let mutations = record.runs.into_iter().flat_map(|run| run.mutations);
        Ok(Some((record.head.first, mutations.map(|it| it.mutation).collect())))
    }

    /// A journal is used no more; whether it was, and no other one has begun.
    pub(super) fn fail(&self, journal: &Arc<ClientJournal>) -> bool {
        let mut slot = self.0.lock();
        let is_same = slot.journal.as_ref().is_some_and(|it| Arc::ptr_eq(it, journal));
        slot.has_failed |= is_same;
        is_same && !std::mem::replace(&mut slot.has_ended, true)
    }

    /// Whether there is none because it has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().has_failed
    }

    /// The journal is used no more; whether it was.
    pub(super) fn end(&self) -> bool {
        let mut slot = self.0.lock();
        !std::mem::replace(&mut slot.has_ended, true) && slot.journal.is_some()
    }

    /// The session of a journal that has just ended is over, and it has changes of these inodes: whether it will be opened again.
    pub(super) fn interrupt(&self, lapsed: bool, changed: Vec<Ino>) -> bool {
        let mut slot = self.0.lock();
        let Some(session) = slot.journal.as_ref().map(|journal| journal.session) else {
            return false;
        };
        let is_possible = slot.reopen.is_some();
        let kept = if lapsed { Kept::Session } else { Kept::Nothing(session) };
        slot.interrupted = is_possible.then_some((kept, changed));
        is_possible
    }

    /// How to open a journal again whose session is over.
    pub(super) fn to_reopen(&self) -> Option<(Reopen, Kept)> {
        let slot = self.0.lock();
        slot.reopen.clone().zip(slot.interrupted.as_ref().map(|(kept, _)| *kept))
    }

    /// It cannot be opened again; the inodes of which it has changes.
    pub(super) fn give_up(&self) -> Vec<Ino> {
        self.0.lock().interrupted.take().map(|(_, changed)| changed).unwrap_or_default()
    }
}
