//! A client's journal (Arion, chapters 6 and 7 of its paper): what the client has made by itself is durable on a local device
//! before the server has it, so that `fsync` is one flush and no message.
//!
//! Mutations go to the journal in the order of their numbers, which are their positions there. The server gets them from the
//! queue, and none that is not in the journal; a record is released when the server has made its mutations durable. So after a
//! crash of this client the journal has everything from the server's position on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::{Env, HashSet};
use thalweg_fs::Node;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::log::{Log, LogRecovery, RecordPlace};
use thalweg_store::journal::{End, JournalError};
use uuid::Uuid;

use super::inode_changes::{Rest, Step, extent};
pub use super::journal_format::OWNER;
use super::journal_format::{Head, JournalRecord, Run};
use super::journaled_queue::Unjournaled;
use super::pending::JournalUse;
use super::queue::WritebackQueue;
use crate::conflicts::encode_path;

/// Bytes of mutations in one record, about.
const RECORD_BYTES: usize = 1 << 20;
/// Bytes of released records that a scan may find, about.
const FORGOTTEN: u64 = 4 << 20;
/// And the part of a journal that they may take.
const FORGOTTEN_PART: u64 = 16;
/// Least size of a journal in bytes. The largest record takes a part of it.
pub const MIN_SIZE: u64 = 4 << 20;

/// Makes a device an empty journal of a client. All content of the device is lost.
///
/// # Errors
/// [`JournalError::Invalid`] for a device that is smaller than [`MIN_SIZE`]; the device's.
pub async fn create(env: &Env, device: &DeviceRef) -> Result<(), JournalError> {
    let size = device.geometry().size;
    if size < MIN_SIZE {
        let why = format!("{size} bytes are too small, a journal takes {MIN_SIZE}");
        return Err(JournalError::Invalid(why));
    }
    Log::create(device, env.uuid(), OWNER).await.map(drop)
}

/// What a journal has that is not mounted.
#[derive(Clone, Debug, serde::Serialize)]
pub struct JournalReport {
    /// The session at the server that made it; `None` of one that was never mounted, or was unmounted in order.
    pub session: Option<Uuid>,
    /// The position of the first change.
    pub first: u64,
    /// Changes. The server may have some of them.
    pub changes: usize,
    /// Inodes that they change.
    pub files: usize,
    /// Bytes of files among them.
    pub bytes: u64,
    /// Bytes of the device.
    pub size: u64,
}

/// Reads a journal, and changes nothing.
///
/// # Errors
/// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`], [`JournalError::Rotten`]; the device's.
pub async fn inspect(env: &Env, device: &DeviceRef) -> Result<JournalReport, JournalError> {
    let found = FoundJournal::open(env, device.clone()).await?;
    let mutations = found.runs.iter().flat_map(|run| &run.mutations).map(|it| &it.mutation.kind);
    let (mut inodes, mut bytes) = (HashSet::default(), 0);
    for kind in mutations {
        inodes.insert(kind.made().or(kind.unlinked()).unwrap_or(kind.ino()));
        if let MutationKind::Write { data, .. } = kind {
            bytes += data.len() as u64;
        }
    }
    Ok(JournalReport {
        session: found.session,
        first: found.first,
        changes: found.mutations(),
        files: inodes.len(),
        bytes,
        size: device.geometry().size,
    })
}

/// What a journal changes of an inode.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ExportedInode {
    /// Its number.
    pub ino: u64,
    /// If the journal makes it: the directory's number, and the name there ([`encode_path`]).
    pub made: Option<(u64, String)>,
    /// Whether there are bytes of it.
    pub is_file: bool,
    /// Bytes that were written: offset and length of each range.
    pub ranges: Vec<(u64, u64)>,
    /// The size that was set, or the least that the writes make.
    pub size: Option<u64>,
    /// Attributes were set.
    pub attributes: bool,
    /// The changes of its bytes in their order.
    #[serde(skip)]
    pub steps: Vec<Step>,
}

impl ExportedInode {
    /// The name of a file for its bytes.
    pub fn file_name(&self) -> String {
        format!("inode-{}", self.ino)
    }
}

/// What a journal changes, by inodes in the order of their first changes. The server may have some of it.
///
/// # Errors
/// As [`inspect`].
pub async fn export(env: &Env, device: &DeviceRef) -> Result<Vec<ExportedInode>, JournalError> {
    let found = FoundJournal::open(env, device.clone()).await?;
    let rest = Rest::of(found.runs, 0);
    let exported = rest.iter().map(|(ino, changes)| {
        let (ranges, size) = extent(&changes.steps);
        let made = changes.made.as_ref();
        let is_new = made.is_some_and(|(.., new)| new.node == Node::File);
        ExportedInode {
            ino: ino.0,
            made: made.map(|(parent, name, _)| (parent.0, encode_path(name))),
            is_file: is_new || !changes.steps.is_empty(),
            ranges,
            size,
            attributes: changes.sets_attributes,
            steps: changes.steps.clone(),
        }
    });
    Ok(exported.collect())
}

/// A journal that was opened, and what it has.
pub(super) struct FoundJournal {
    log: LogRecovery,
    pub(super) session: Option<Uuid>,
    /// The position of the first mutation.
    pub(super) first: u64,
    pub(super) runs: Vec<Run>,
}

impl FoundJournal {
    /// Reads a journal, and changes nothing.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`]; [`JournalError::Rotten`],
    /// [`JournalError::Invalid`]; the device's.
    pub(super) async fn open(env: &Env, device: DeviceRef) -> Result<FoundJournal, JournalError> {
        let decode = |record| JournalRecord::decode(&record);
        let (log, scanned) = LogRecovery::open(env, device, OWNER, true, decode).await?;
        if let End::Rotten { sequence, later } = scanned.end {
            let device = log.device().name();
            return Err(JournalError::Rotten { device, sequence, later });
        }
        let mut found = FoundJournal { log, session: None, first: 1, runs: Vec::new() };
        for record in scanned.records {
            let JournalRecord { head: Head { session, first }, runs } = record;
            let is_next = found.session == Some(session) && first == found.next(found.mutations());
            if !is_next && !found.runs.is_empty() {
                let device = found.log.device().name();
                let why = format!("{device}: mutations from {first} on do not follow those before");
                return Err(JournalError::Invalid(why));
            }
            if found.runs.is_empty() {
                found.first = first;
            }
            found.session = Some(session);
            found.runs.extend(runs);
        }
        Ok(found)
    }

    pub(super) fn device(&self) -> DeviceRef {
        self.log.device().clone()
    }

    /// The position behind the last one of so many mutations.
    pub(super) fn next(&self, mutations: usize) -> u64 {
        self.first + mutations as u64
    }

    pub(super) fn mutations(&self) -> usize {
        self.runs.iter().map(|run| run.mutations.len()).sum()
    }

    /// Forgets everything, and begins a mount.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn begin(self, session: Uuid) -> Result<ClientJournal, JournalError> {
        let log = self.log.begin(1).await?;
        let begins = JournalRecord { head: Head { session, first: 1 }, runs: Vec::new() };
        let appended = log.append(&begins.encode()).await?;
        let records = Mutex::new(VecDeque::from([(appended.sequence, 0)]));
        let (committing, forgotten) = (tokio::sync::Mutex::default(), log.released().into());
        Ok(ClientJournal { log, session, committing, records, forgotten })
    }
}

/// The journal of a client that is mounted.
pub(super) struct ClientJournal {
    log: Log,
    pub(super) session: Uuid,
    /// One record at a time.
    committing: tokio::sync::Mutex<()>,
    /// Of the records: the number in the log, and the position of the last mutation. The last one stays: it names the session.
    records: Mutex<VecDeque<(u64, u64)>>,
    /// Bytes of released records that no scan finds.
    forgotten: AtomicU64,
}

impl ClientJournal {
    /// Returns when the mutations up to this one are durable in the journal. Callers share records and flushes.
    ///
    /// # Errors
    /// [`JournalError::Full`]; the device's, after which the journal is used no more.
    pub(super) async fn commit(
        &self,
        queue: &WritebackQueue,
        last: u64,
    ) -> Result<(), JournalError> {
        let _turn = self.committing.lock().await;
        while !queue.is_journaled(last) {
            let Some(Unjournaled { first, last, runs }) = queue.unjournaled(RECORD_BYTES) else {
                return Ok(());
            };
            let record = JournalRecord { head: Head { session: self.session, first }, runs };
            let appended = self.log.append(&record.encode()).await?;
            self.records.lock().push_back((appended.sequence, last));
            queue.journaled(last);
            queue.spill(first..=last, appended.place);
        }
        Ok(())
    }

    /// The mutations of a record that is not released, and the number of the first one.
    ///
    /// # Errors
    /// The record is damaged; the device's.
    pub(super) async fn read(
        &self,
        place: RecordPlace,
    ) -> Result<(u64, Vec<Mutation>), JournalError> {
        let found = self.log.read(place).await?;
        let JournalRecord { head, runs } = JournalRecord::decode(&found).ok_or_else(|| {
            let device = self.log.device().name();
            JournalError::Damaged { device, sequence: place.sequence }
        })?;
        let mutations = runs.into_iter().flat_map(|run| run.mutations).map(|it| it.mutation);
        Ok((head.first, mutations.collect()))
    }

    /// The server has made the mutations up to this one durable; whether a record is released.
    pub(super) fn release(&self, position: u64) -> bool {
        let mut records = self.records.lock();
        let others = records.len().saturating_sub(1);
        let done = records.iter().take(others).take_while(|(_, last)| *last <= position).count();
        let Some((last, _)) = records.drain(..done).next_back() else { return false };
        drop(records);
        self.log.release(last + 1);
        true
    }

    /// Has a scan after a crash find none of the records that are released. Unless it is wanted `now`, only when it would find many of
    /// them, since it takes a flush.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn forget(&self, now: bool) -> Result<(), JournalError> {
        let released = self.log.released();
        let found = released - self.forgotten.load(Ordering::Relaxed);
        if found == 0 || !now && found < FORGOTTEN.min(self.log.size() / FORGOTTEN_PART) {
            return Ok(());
        }
        self.log.forget().await?;
        self.forgotten.fetch_max(released, Ordering::Relaxed);
        Ok(())
    }

    /// How much of the journal is used.
    pub(super) fn room(&self) -> JournalUse {
        let (size, records) = (self.log.size(), self.records.lock().len() as u64);
        JournalUse { size, used: size - self.log.room(), records }
    }

    /// Forgets everything: the server has all of it, and made it durable.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn clear(&self) -> Result<(), JournalError> {
        let _turn = self.committing.lock().await;
        self.log.clear().await
    }
}

/// The journal of a client, if it has one and that is used.
#[derive(Default)]
pub(super) struct JournalSlot(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    journal: Option<Arc<ClientJournal>>,
    has_ended: bool,
}

impl JournalSlot {
    pub(super) fn begin(&self, journal: ClientJournal) {
        *self.0.lock() = Slot { journal: Some(Arc::new(journal)), has_ended: false };
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

    /// The journal is used no more; whether it was.
    pub(super) fn end(&self) -> bool {
        let mut slot = self.0.lock();
        !std::mem::replace(&mut slot.has_ended, true) && slot.journal.is_some()
    }
}
