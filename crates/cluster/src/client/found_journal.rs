//! A journal that was opened, before a mount begins there.
//!
//! Of what it has the names are in memory, and where the rest is: bytes of files are read when they are needed, a record at a time. So a large
//! journal is written back in little memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_env::Env;
use thalweg_fs::Credentials;
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::log::{FoundRecord, Log, LogRecovery, RecordPlace};
use thalweg_store::journal::{End, JournalError};

use super::damaged_journal::refusal;
use super::journal_format::{
    Chain, Entry, Head, Mark, OWNER, PlacedRecord, UnknownFormat, unknown_format,
};
use super::journal_record::JournalRecord;
use super::journal_runs::{JournaledMutation, Run, hashes};
use super::record::Record;

/// A mutation of a journal. Many bytes stay there alone.
pub(super) struct FoundMutation {
    pub(super) record: Record,
    pub(super) quota: u64,
    /// The hash up to it.
    pub(super) hash: u64,
}

/// Mutations of one user that follow each other.
pub(super) struct FoundRun {
    pub(super) user: Option<Credentials>,
    pub(super) mutations: Vec<FoundMutation>,
}

impl FoundRun {
    /// These runs, with the hash before them. Their bytes are in a record alone that they are `spilled_to`.
    pub(super) fn all(
        runs: Vec<Run>,
        before: u64,
        spilled_to: Option<RecordPlace>,
    ) -> Vec<FoundRun> {
        let hashes: Vec<u64> = hashes(before, &runs).collect();
        let mut hashes = hashes.into_iter();
        let mut found = |JournaledMutation { mutation, blocks, quota }| {
            let mut record = Record::recovered(mutation, blocks);
            if let Some(place) = spilled_to {
                record.spill(place);
            }
            FoundMutation { record, quota, hash: hashes.next().unwrap_or_default() }
        };
        let run = |Run { user, mutations }| FoundRun {
            user,
            mutations: mutations.into_iter().map(&mut found).collect(),
        };
        runs.into_iter().map(run).collect()
    }
}

/// A journal that was opened, and what it has.
pub(super) struct FoundJournal {
    log: Arc<LogRecovery>,
    /// The session that it is of, and the positions of its mutations.
    pub(super) chain: Chain,
    /// The records with mutations.
    pub(super) records: Vec<PlacedRecord>,
    pub(super) runs: Vec<FoundRun>,
}

/// How a journal ends that is damaged in its middle.
pub(super) struct Damaged {
    pub(super) end: End,
    /// The position of the last change before the damage.
    pub(super) last: u64,
}

/// A record, with its mutations; without those of a mark.
type FoundEntry = (Entry, Option<(PlacedRecord, Vec<FoundRun>)>);

/// Its bytes of files stay in memory as far as these are left of what it may take.
fn decode(found: FoundRecord, left: &AtomicUsize) -> Option<FoundEntry> {
    let entry = Entry::decode(found.stamp, &found.header)?;
    if entry.mark.is_some() {
        return Some((entry, None));
    }
    let place = found.place();
    let runs = JournalRecord::decode(&found)?.runs;
    let bytes = found.body.len();
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(bytes));
    let spilled_to = taken.is_err().then_some(place);
    let runs = FoundRun::all(runs, entry.head.before, spilled_to);
    let placed = PlacedRecord { place, after: entry.head.after(), end: entry.end() };
    Some((entry, Some((placed, runs))))
}

impl FoundJournal {
    /// Reads a journal, and changes nothing of what it has: only a mirror's devices are made equal. About so many bytes of files stay in
    /// memory.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`]; [`JournalError::Invalid`], also of one that is
    /// damaged in its middle; the device's.
    pub(super) async fn open(
        env: &Env,
        device: DeviceRef,
        memory: usize,
    ) -> Result<FoundJournal, JournalError> {
        let name = device.name();
        let (found, damaged) = FoundJournal::read_damaged(env, device, memory).await?;
        match damaged {
            None => {
                // The server is told of nothing that one device of a mirror has alone.
                found.log.settle().await?;
                Ok(found)
            }
            Some(Damaged { end, .. }) => Err(refusal(name, end)),
        }
    }

    /// Reads a journal, also one that is damaged in its middle: what is before the damage. Changes nothing.
    ///
    /// # Errors
    /// The others.
    pub(super) async fn read_damaged(
        env: &Env,
        device: DeviceRef,
        memory: usize,
    ) -> Result<(FoundJournal, Option<Damaged>), JournalError> {
        let left = AtomicUsize::new(memory);
        let decode = |found: FoundRecord| match unknown_format(&found.header) {
            Some(format) => Some(Err(format)),
            None => decode(found, &left).map(Ok),
        };
        let (log, scanned) = LogRecovery::open(env, device, OWNER, true, decode).await?;
        let damaged = Damaged { end: scanned.end, last: scanned.stamp };
        let damaged = matches!(scanned.end, End::Rotten { .. }).then_some(damaged);
        let (records, runs) = Default::default();
        let mut found = FoundJournal { log: Arc::new(log), chain: Chain::default(), records, runs };
        for scanned in scanned.records {
            let invalid = |why: String| {
                JournalError::Invalid(format!("{}: {why}", found.log.device().name()))
            };
            let (entry, record) =
                scanned.map_err(|format| invalid(UnknownFormat(format).to_string()))?;
            if found.chain.take(entry).is_err() {
                // No crash leaves that.
                let last = entry.head.first.saturating_sub(1);
                return Ok((found, Some(Damaged { end: End::Clean, last })));
            }
            if matches!(entry.mark, Some(Mark::Begins | Mark::Arrives(_))) {
                found.records.clear();
                found.runs.clear();
            }
            if let Some((placed, runs)) = record {
                found.records.push(placed);
                found.runs.extend(runs);
            }
        }
        Ok((found, damaged))
    }

    /// Where its records are read again, until it is begun anew.
    pub(super) fn log(&self) -> &Arc<LogRecovery> {
        &self.log
    }

    /// How many mutations it has.
    pub(super) fn mutations(&self) -> usize {
        (self.chain.next - self.chain.first) as usize
    }

    /// Reads the mutations of a record again, with their bytes.
    ///
    /// # Errors
    /// The record is damaged; the device's.
    pub(super) async fn read(&self, record: &PlacedRecord) -> Result<Vec<Run>, JournalError> {
        Ok(read_record(&self.log, record.place).await?.runs)
    }

    /// The log, which nothing reads any more.
    ///
    /// # Errors
    /// [`JournalError::Invalid`]: something does.
    pub(super) fn into_log(self) -> Result<LogRecovery, JournalError> {
        let in_use =
            || JournalError::Invalid("the journal is read while it is begun anew".to_owned());
        Arc::into_inner(self.log).ok_or_else(in_use)
    }

    /// Begins to write back for a client that is gone: what is here stays until then, and the client's keeper lets it in no more.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn seal(self) -> Result<SealedJournal, JournalError> {
        let (session, durable) = (self.chain.session.unwrap_or_default(), self.chain.durable);
        let head = Head::of_mark(session, self.chain.end(), durable);
        let log = self.into_log()?.keep(1).await?;
        let sealed = log.append(&Mark::Sealed.encode(head)).await?.sequence;
        Ok(SealedJournal { log, sealed })
    }
}

/// Reads a record of a journal that is open for recovery.
///
/// # Errors
/// The record is damaged; the device's.
pub(super) async fn read_record(
    log: &LogRecovery,
    place: RecordPlace,
) -> Result<JournalRecord, JournalError> {
    let found = log.read(place).await?;
    JournalRecord::decode(&found).ok_or_else(|| {
        let (device, sequence) = (log.device().name(), place.sequence);
        JournalError::Damaged { device, sequence }
    })
}

/// A copy of a journal that is taken over.
pub(super) struct SealedJournal {
    log: Log,
    /// The number of its last record.
    sealed: u64,
}

impl SealedJournal {
    /// The server has everything, and made it durable. The mark stays.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn forget(&self) -> Result<(), JournalError> {
        self.log.release(self.sealed);
        self.log.forget().await
    }
}
