//! Journals of mounts that move: what is read of one that leaves, and one that arrives.

use thalweg_env::Env;
use thalweg_fs::session_table::JournalPosition;
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::{Log, RecordPlace};
use uuid::Uuid;

use super::copies::{Copies, KeeperTarget};
use super::found_journal::FoundJournal;
use super::journal::ClientJournal;
use super::journal_format::{Head, Mark, PlacedRecord, Places};
use super::journal_record::JournalRecord;
use super::journal_runs::Run;
use super::options::JournaledData;

impl FoundJournal {
    /// Forgets everything, for what another machine's mount has that is to move here.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn receive(
        self,
        data: JournaledData,
    ) -> Result<ArrivingJournal, JournalError> {
        let log = self.into_log()?.begin(1).await?;
        let (session, durable, end) = Default::default();
        Ok(ArrivingJournal { log, data, session, durable, end, records: Places::default() })
    }
}

/// The journal of a mount that is to move here.
pub(super) struct ArrivingJournal {
    log: Log,
    data: JournaledData,
    /// The session that it gets.
    session: Uuid,
    /// The server has made everything up to this position durable.
    durable: u64,
    /// The position of its last mutation.
    pub(super) end: JournalPosition,
    records: Places,
}

impl ArrivingJournal {
    /// Begins behind a position: the records before it do not count any more.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn begin(
        &mut self,
        (session, from): (Uuid, Uuid),
        after: JournalPosition,
    ) -> Result<(), JournalError> {
        let durable = after.position;
        let head = Head::of_mark(session, after, durable);
        let begins = self.log.append(&Mark::Arrives(from).encode(head)).await?;
        self.records.release(u64::MAX);
        self.log.release(begins.sequence);
        (self.session, self.durable, self.end) = (session, durable, after);
        self.records = Places::default();
        self.records.push(begins.place, after, after);
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
        let after = self.end;
        let (record, _) = JournalRecord::new(self.session, after, self.durable, runs);
        let encoded = record.encode(self.data == JournaledData::Pages);
        let place = self.log.append(&encoded).await?.place;
        self.end = record.end();
        self.records.push(place, after, self.end);
        Ok((place, self.end.position, record.runs))
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
        let (session, end) = (self.session, self.end);
        let head = Head::of_mark(session, end, self.durable);
        let place = self.log.append(&Mark::Arrived.encode(head)).await?.place;
        self.records.push(place, end, end);
        let copies = Copies::new(env, session, None, keepers);
        Ok(ClientJournal::new(self.log, session, (self.records, end), (self.data, copies)))
    }
}

/// The position before the first of some mutations, that of the last one, and the mutations.
pub(super) type ReadRuns = (JournalPosition, JournalPosition, Vec<Run>);

impl ClientJournal {
    /// The position before the first record that is not released.
    pub(super) fn after(&self) -> JournalPosition {
        self.records.lock().after().unwrap_or_default()
    }

    /// The session before, of which the server has everything.
    pub(super) fn session_before(&self) -> Option<Uuid> {
        self.copies.before
    }

    /// The mutations behind this position that are not released, of about so many bytes; the position before the first one, and that of the last
    /// one. `None` if there are none.
    ///
    /// # Errors
    /// A record is damaged; the device's.
    pub(super) async fn read_behind(
        &self,
        position: u64,
        bytes: usize,
    ) -> Result<Option<ReadRuns>, JournalError> {
        let (mut found, mut size): (Option<ReadRuns>, usize) = (None, 0);
        while size < bytes {
            let last = found.as_ref().map_or(position, |(_, end, _)| end.position);
            let next = self.records.lock().from(last + 1);
            let Some(PlacedRecord { place, after, end }) = next else { break };
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
                Some((_, last, all)) if *last == after => {
                    *last = end;
                    all.extend(runs);
                }
                // Those before were released meanwhile.
                found => *found = Some((after, end, runs)),
            }
            size += record_bytes;
        }
        Ok(found)
    }
}
