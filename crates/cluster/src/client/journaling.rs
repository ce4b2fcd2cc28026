//! How a client uses its journal: nothing goes to the server before it is in the journal, and a record goes when the server has made it
//! durable.

use std::sync::Arc;

use thalweg_fs::mutation::Mutation;
use thalweg_fs::{Action, Failure, FsError};
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::RecordPlace;

use super::base::ClientBase;
use super::batch::Batch;
use super::journal::ClientJournal;
use super::record::SpilledWrite;
use super::rpc::Rpc;

/// Where mutations are durable after a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Committed {
    /// There is no journal with room for them.
    Nowhere,
    /// In the journal, and not in all its copies.
    Here,
    /// In the journal, and in all its copies.
    Everywhere,
}

pub(super) struct Journaling {
    base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
}

impl Journaling {
    pub(super) fn new(base: Arc<ClientBase>, rpc: Arc<Rpc>) -> Journaling {
        Journaling { base, rpc }
    }

    /// Returns when all mutations so far are durable in the journal, and in those of its copies whose keepers answer; where they are. Calls of
    /// programs that were answered are in no journal, and mutations may depend on them: these are durable at the server before.
    pub(super) async fn commit(&self) -> Result<Committed, FsError> {
        let Some(journal) = self.base.journal.live() else { return Ok(Committed::Nowhere) };
        self.base.queue.begin_commit();
        let last = self.base.queue.last();
        if self.base.replay_log.has_calls() {
            self.rpc.make_durable().await?;
        }
        // A caller that is gone meanwhile leaves no record half done.
        let (own, queue) = (journal.clone(), self.base.queue.clone());
        let committing = async move { Ok(own.commit(&queue, last).await) };
        let committed = self.base.run_apart(committing).await?;
        self.note_room(&journal);
        match committed {
            Ok(()) if journal.is_copied(last) => {
                if self.base.session.is_leased() {
                    self.base.queue.committed_leased(last);
                }
                return Ok(Committed::Everywhere);
            }
            Ok(()) => return Ok(Committed::Here),
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.give_up(&journal, &error),
        }
        Ok(Committed::Nowhere)
    }

    /// The journal fails: everything goes to the server at once from here on.
    fn give_up(&self, journal: &Arc<ClientJournal>, error: &JournalError) {
        // Not the one that has begun after it.
        if self.base.journal.fail(journal) {
            tracing::error!(%error, "the journal fails, and is used no more: a sync waits for the server");
            self.base.queue.end_journal();
        }
    }

    /// Before a batch is taken: all mutations are in the journal, or at least some that can be sent.
    pub(super) async fn before_send(&self) -> Result<(), FsError> {
        while let Some(journal) = self.base.journal.live() {
            self.release(&journal);
            if self.commit().await? != Committed::Nowhere || self.base.queue.may_send() {
                return Ok(());
            }
            // The journal is full of records that the server has, and has not made durable.
            self.rpc.make_durable().await?;
            // While a new server gets the calls again, none of them counts as durable.
            if !self.release(&journal) && self.base.replay_log.first_position().is_none() {
                self.give_up(&journal, &JournalError::Full { needed: 0 });
            }
        }
        Ok(())
    }

    /// Releases what the server has made durable; whether that was anything.
    fn release(&self, journal: &ClientJournal) -> bool {
        // In this order: a batch is kept before it counts as sent.
        let done = self.base.queue.done().min(self.base.queue.reached());
        let first = self.base.replay_log.first_position();
        let done = first.map_or(done, |first| done.min(journal.number(first) - 1));
        self.base.queue.sent_ends.release(journal.position(done));
        let is_released = journal.release(done);
        self.note_room(journal);
        is_released
    }

    fn note_room(&self, journal: &ClientJournal) {
        let queue = &self.base.queue;
        queue.note_journal(journal.room().used, journal.used_behind(queue.done()));
    }

    /// Returns when a quarter of the journal is free, if the server has what takes it: a *checkpoint* (7.2.6). Whether it is.
    pub(super) async fn checkpoint(&self) -> Result<bool, FsError> {
        let Some(journal) = self.base.journal.live() else { return Ok(true) };
        self.release(&journal);
        if self.base.queue.is_journal_tight() {
            self.rpc.make_durable().await?;
            self.release(&journal);
        }
        Ok(!self.base.queue.is_journal_tight())
    }

    /// Releases what the server has made durable, and has a scan find nothing of it: at once if that is wanted `now`.
    pub(super) async fn release_durable(&self, now: bool) {
        if let Some(journal) = self.base.journal.live() {
            self.release(&journal);
            // A journal that fails says so at its next commit.
            if let Err(error) = journal.forget(now).await {
                tracing::warn!(%error, "released changes may be read again after a crash");
            }
        }
    }

    /// Reads bytes of a batch that only the journal has; how many.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) async fn load(
        &self,
        batch: &mut Batch,
        spilled: impl Iterator<Item = SpilledWrite>,
    ) -> Result<usize, FsError> {
        let mut records = SpilledRecords::new(&self.base);
        let mut loaded = 0;
        for SpilledWrite { index, number, place, len } in spilled {
            loaded += len as usize;
            let found = records.get(number, place).await?;
            let ino = batch.mutations[index].kind.ino();
            let found = found.filter(|it| it.kind.ino() == ino).ok_or_else(|| damaged(place))?;
            batch.mutations[index] = found.clone();
        }
        Ok(loaded)
    }

    /// So many bytes of mutations were read for a batch.
    pub(super) fn note_loaded(&self, loaded: usize) {
        if self.base.queue.is_recovered() {
            self.base.queue.note_memory(self.base.queue.in_memory() + loaded);
        }
    }

    /// Mutations wait for no longer than the time of a commit.
    pub(super) async fn by_timer(&self) {
        self.release_durable(false).await;
        self.commit_unasked().await;
    }

    /// A commit that no caller waits for.
    pub(super) async fn commit_unasked(&self) {
        if let Err(error) = self.commit().await {
            tracing::warn!(%error, "changes are not in the journal yet");
        }
    }
}

/// Reads mutations whose bytes only the journal has. The last record stays in memory: the next one is often there, too.
pub(super) struct SpilledRecords<'a> {
    base: &'a ClientBase,
    record: Option<(RecordPlace, u64, Vec<Mutation>)>,
}

impl<'a> SpilledRecords<'a> {
    pub(super) fn new(base: &'a ClientBase) -> SpilledRecords<'a> {
        SpilledRecords { base, record: None }
    }

    /// The mutation with this number; `None` if the server has it by now.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) async fn get(
        &mut self,
        number: u64,
        place: RecordPlace,
    ) -> Result<Option<&Mutation>, FsError> {
        if self.record.as_ref().is_none_or(|(at, ..)| *at != place) {
            let (first, mutations) = match self.base.journal.read(place).await {
                Ok(Some(found)) => found,
                Ok(None) | Err(JournalError::Released { .. }) => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
            self.record = Some((place, first, mutations));
        }
        let found = self.record.as_ref().and_then(|(_, first, mutations)| {
            mutations.get(usize::try_from(number.checked_sub(*first)?).ok()?)
        });
        found.map(Some).ok_or_else(|| damaged(place))
    }
}

fn failed(error: JournalError) -> FsError {
    FsError::Store(Failure::new(Action::GiveUp, error))
}

fn damaged(place: RecordPlace) -> FsError {
    failed(JournalError::Damaged { device: String::new(), sequence: place.sequence })
}
