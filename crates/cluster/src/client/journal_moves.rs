//! Journals of mounts that move: what is read of one that leaves, and one that arrives.

use thalweg_env::Env;
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::{Log, RecordPlace};
use uuid::Uuid;

use super::copies::{Copies, KeeperTarget};
use super::journal::{ClientJournal, FoundJournal};
use super::journal_format::{Head, JournalRecord, Mark, Places, Run};

impl FoundJournal {
    /// Forgets everything, for what another machine's mount has that is to move here.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn receive(self) -> Result<ArrivingJournal, JournalError> {
        let log = self.log.begin(1).await?;
        let head = Head { session: Uuid::nil(), first: 1 };
        Ok(ArrivingJournal { log, head, next: 1, records: Places::default() })
    }
}

/// The journal of a mount that is to move here.
pub(super) struct ArrivingJournal {
    log: Log,
    /// The session that it gets, and the position of its first mutation.
    head: Head,
    /// The position behind its last mutation.
    pub(super) next: u64,
    records: Places,
}

impl ArrivingJournal {
    /// Begins with a position: the records before it do not count any more.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn begin(
        &mut self,
        (session, from): (Uuid, Uuid),
        first: u64,
    ) -> Result<(), JournalError> {
        let head = Head { session, first };
        let begins = self.log.append(&Mark::Arrives(from).encode(head)).await?;
        self.records.release(u64::MAX);
        self.log.release(begins.sequence);
        (self.head, self.next, self.records) = (head, first, Places::default());
        self.records.push(begins.place, first, first - 1);
        Ok(())
    }

    /// Appends mutations with the next positions; where they are, and the position of the last one.
    ///
    /// # Errors
    /// [`JournalError::Full`]; the device's.
    pub(super) async fn append(
        &mut self,
        runs: Vec<Run>,
    ) -> Result<(RecordPlace, u64, Vec<Run>), JournalError> {
        let head = Head { first: self.next, ..self.head };
        let record = JournalRecord { head, runs };
        let last = record.last();
        let place = self.log.append(&record.encode()).await?.place;
        self.records.push(place, head.first, last);
        self.next = last + 1;
        Ok((place, last, record.runs))
    }

    /// Bytes that it takes.
    pub(super) fn size(&self) -> u64 {
        self.log.size()
    }

    /// Nothing arrives.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn clear(&self) -> Result<(), JournalError> {
        self.log.clear().await
    }

    /// The mount is here, and goes on with it.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn arrive(
        mut self,
        env: &Env,
        keepers: Vec<KeeperTarget>,
    ) -> Result<ClientJournal, JournalError> {
        let session = self.head.session;
        let head = Head { first: self.next, ..self.head };
        let place = self.log.append(&Mark::Arrived.encode(head)).await?.place;
        self.records.push(place, self.next, self.next - 1);
        let copies = Copies::new(env, session, None, keepers);
        Ok(ClientJournal::new(self.log, session, self.records, copies))
    }
}

impl ClientJournal {
    /// The position of the first mutation that is not released, or the next one.
    pub(super) fn first(&self) -> u64 {
        self.records.lock().first().unwrap_or(1)
    }

    /// The session before, of which the server has everything.
    pub(super) fn session_before(&self) -> Option<Uuid> {
        self.copies.before
    }

    /// The mutations from this position on that are not released, of about so many bytes; the positions of the first one, and behind the last one.
    /// `None` if there are none.
    ///
    /// # Errors
    /// A record is damaged; the device's.
    pub(super) async fn read_from(
        &self,
        position: u64,
        bytes: usize,
    ) -> Result<Option<(u64, u64, Vec<Run>)>, JournalError> {
        let (mut found, mut size): (Option<(u64, u64, Vec<Run>)>, usize) = (None, 0);
        while size < bytes {
            let next = found.as_ref().map_or(position, |(_, next, _)| *next);
            let Some((place, first, last)) = self.records.lock().from(next) else { break };
            let record = match self.log.read(place).await {
                // The server has made it durable meanwhile.
                Err(JournalError::Released { .. }) => continue,
                record => record?,
            };
            let damaged = || JournalError::Damaged {
                device: self.log.device().name(),
                sequence: place.sequence,
            };
            let record_bytes = record.body.len();
            let JournalRecord { runs, .. } = JournalRecord::decode(&record).ok_or_else(damaged)?;
            match &mut found {
                Some((_, next, all)) if *next == first => {
                    *next = last + 1;
                    all.extend(runs);
                }
                // Those before were released meanwhile.
                found => *found = Some((first, last + 1, runs)),
            }
            size += record_bytes;
        }
        Ok(found)
    }
}
