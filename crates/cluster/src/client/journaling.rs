//! How a client uses its journal: nothing goes to the server before it is in the journal, and a record goes when the server has made it
//! durable.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Action, Failure, FsError};
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::RecordPlace;

use super::base::ClientBase;
use super::journal::ClientJournal;
use super::queue::{Batch, SpilledWrite};
use super::rpc::Rpc;

pub(super) struct Journaling {
    base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
}

impl Journaling {
    pub(super) fn new(base: Arc<ClientBase>, rpc: Arc<Rpc>) -> Journaling {
        Journaling { base, rpc }
    }

    /// Returns when all mutations so far are durable in the journal; whether they are, which takes a journal with room. Calls of
    /// programs that were answered are in no journal, and mutations may depend on them: these are durable at the server before.
    pub(super) async fn commit(&self) -> Result<bool, FsError> {
        let Some(journal) = self.base.journal.live() else { return Ok(false) };
        let last = self.base.queue.last();
        if self.base.replay_log.has_calls() {
            self.rpc.make_durable().await?;
        }
        match journal.commit(&self.base.queue, last).await {
            Ok(()) => return Ok(true),
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.give_up(&error),
        }
        Ok(false)
    }

    /// The journal fails: everything goes to the server at once from here on.
    fn give_up(&self, error: &JournalError) {
        if self.base.journal.end() {
            tracing::error!(%error, "the journal fails, and is used no more: a sync waits for the server");
        }
        self.base.queue.end_journal();
    }

    /// Before a batch is taken: all mutations are in the journal, or at least some that can be sent.
    pub(super) async fn before_send(&self) -> Result<(), FsError> {
        while let Some(journal) = self.base.journal.live() {
            self.release(&journal);
            if self.commit().await? || self.base.queue.may_send() {
                return Ok(());
            }
            // The journal is full of records that the server has, and has not made durable.
            self.rpc.make_durable().await?;
            // While a new server gets the calls again, none of them counts as durable.
            if !self.release(&journal) && self.base.replay_log.first_position().is_none() {
                self.give_up(&JournalError::Full { needed: 0 });
            }
        }
        Ok(())
    }

    /// Releases what the server has made durable; whether that was anything.
    fn release(&self, journal: &ClientJournal) -> bool {
        // In this order: a batch is kept before it counts as sent.
        let done = self.base.queue.done();
        let first = self.base.replay_log.first_position();
        journal.release(first.map_or(done, |first| done.min(first - 1)))
    }

    /// Releases what the server has made durable.
    pub(super) fn release_durable(&self) {
        if let Some(journal) = self.base.journal.live() {
            self.release(&journal);
        }
    }

    /// Reads those bytes of a batch that are in the journal alone.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) async fn load(&self, batch: &mut Batch) -> Result<(), FsError> {
        let spilled = std::mem::take(&mut batch.spilled);
        let failed = |error: JournalError| FsError::Store(Failure::new(Action::GiveUp, error));
        let mut record: Option<(RecordPlace, u64, Vec<Mutation>)> = None;
        for SpilledWrite { index, number, place } in spilled {
            if record.as_ref().is_none_or(|(at, ..)| *at != place) {
                let journal = self.base.journal.last().expect("what is spilled is in a journal");
                let (first, mutations) = journal.read(place).await.map_err(failed)?;
                record = Some((place, first, mutations));
            }
            let Some((_, first, mutations)) = &record else { continue };
            let found = number.checked_sub(*first).and_then(|nth| mutations.get(nth as usize));
            let found = found.filter(|it| it.kind.ino() == batch.mutations[index].kind.ino());
            let found = found.ok_or_else(|| {
                failed(JournalError::Damaged { device: String::new(), sequence: place.sequence })
            })?;
            batch.mutations[index] = found.clone();
        }
        Ok(())
    }

    /// The bytes of a write that are in the journal alone; `None` if the server has them by now.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) async fn spilled(
        &self,
        number: u64,
        place: RecordPlace,
    ) -> Result<Option<Bytes>, FsError> {
        let Some(journal) = self.base.journal.last() else { return Ok(None) };
        let (first, mut mutations) = match journal.read(place).await {
            Ok(found) => found,
            Err(JournalError::Released { .. }) => return Ok(None),
            Err(error) => return Err(FsError::Store(Failure::new(Action::GiveUp, error))),
        };
        let nth = number.checked_sub(first).map(|nth| nth as usize);
        let found = nth.filter(|nth| *nth < mutations.len()).map(|nth| mutations.swap_remove(nth));
        match found.map(|it| it.kind) {
            Some(MutationKind::Write { data, .. }) => Ok(Some(data)),
            _ => {
                let (device, sequence) = (String::new(), place.sequence);
                let error = JournalError::Damaged { device, sequence };
                Err(FsError::Store(Failure::new(Action::GiveUp, error)))
            }
        }
    }

    /// Mutations wait for no longer than the time of a commit.
    pub(super) async fn by_timer(&self) {
        self.release_durable();
        if let Err(error) = self.commit().await {
            tracing::warn!(%error, "changes are not in the journal yet");
        }
    }
}
