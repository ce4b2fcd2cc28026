//! A client's journal (Arion, chapters 6 and 7 of its paper): what the client has made by itself is durable on a local device
//! before the server has it, so that `fsync` is one flush and no message.
//!
//! Mutations go to the journal in the order of their numbers, which are their positions there. The server gets them from the
//! queue, and none that is not in the journal; a record is released when the server has made its mutations durable. So after a
//! crash of this client the journal has everything from the server's position on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::join;
use parking_lot::Mutex;
use thalweg_env::{Env, HashSet};
use thalweg_fs::Node;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::session_table::JournalPosition;
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::{Log, RecordPlace};
use uuid::Uuid;

use super::copies::{self, Attached, Copies, CopyError, KeeperLink};
pub use super::damaged_journal::JournalDamage;
use super::damaged_journal::{Behind, read_behind};
use super::found_journal::FoundJournal;
use super::inode_changes::{Rest, Step, extent};
pub use super::journal_format::OWNER;
use super::journal_format::{Chain, PlacedRecord, Places};
use super::journal_record::JournalRecord;
use super::journaled_queue::Unjournaled;
use super::options::{JournaledData, Options};
use super::pending::JournalUse;
use super::queue::WritebackQueue;
use crate::conflicts::encode_path;
use crate::protocol::keep::KeepRefusal;

/// Bytes of mutations in one record, about.
const RECORD_BYTES: usize = 1 << 20;
/// Records that are sent to a copy before it is seen how many more it lacks.
const SENT_AT_ONCE: usize = 16;
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
    /// It is a copy that was taken over.
    pub taken_over: bool,
    /// Inodes that they change.
    pub files: usize,
    /// Bytes of files among them.
    pub bytes: u64,
    /// Bytes of the device.
    pub size: u64,
    /// It is damaged in its middle: all of the above is about what is before that.
    pub damage: Option<JournalDamage>,
}

/// Reads a journal, and changes nothing.
///
/// # Errors
/// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`], [`JournalError::Invalid`]; the device's.
pub async fn inspect(env: &Env, device: &DeviceRef) -> Result<JournalReport, JournalError> {
    let (found, damaged) = FoundJournal::read_damaged(env, device.clone(), 0).await?;
    let Chain { mut session, mut first, .. } = found.chain;
    let mut damage = None;
    if let Some(it) = damaged {
        let (lost, behind) = read_behind(found.log(), &found.chain, it.last).await?;
        damage = Some(lost);
        if session.is_none() {
            (session, first) = (behind.first().map(Behind::session), it.last + 1);
        }
    }
    let (mut inodes, mut bytes) = (HashSet::default(), 0);
    for it in found.runs.iter().flat_map(|run| &run.mutations) {
        let kind = it.record.parts().mutation.kind;
        inodes.insert(kind.made().or(kind.unlinked()).unwrap_or(kind.ino()));
        bytes += it.record.data_bytes();
    }
    Ok(JournalReport {
        session,
        first,
        changes: found.mutations(),
        taken_over: found.chain.is_sealed,
        files: inodes.len(),
        bytes,
        size: device.geometry().size,
        damage,
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

/// What a journal changes. The server may have some of it.
#[derive(Clone, Debug)]
pub struct Exported {
    /// By inodes in the order of their first changes.
    pub inodes: Vec<ExportedInode>,
    /// If it is damaged in its middle: what cannot be read. The others are before that.
    pub damage: Option<JournalDamage>,
    /// What can be read behind the damage. It may rest on what cannot.
    pub behind: Vec<ExportedInode>,
}

/// Reads what a journal changes.
///
/// # Errors
/// As [`inspect`].
pub async fn export(env: &Env, device: &DeviceRef) -> Result<Exported, JournalError> {
    let (found, damaged) = FoundJournal::read_damaged(env, device.clone(), 0).await?;
    let (mut rest, mut later) = (Rest::default(), Rest::default());
    let mut damage = None;
    if let Some(it) = damaged {
        let (lost, behind) = read_behind(found.log(), &found.chain, it.last).await?;
        damage = Some(lost);
        for record in behind {
            let first = record.first();
            later.add(record.runs, first, |_| true);
        }
    }
    for record in &found.records {
        rest.add(found.read(record).await?, record.after.position + 1, |_| true);
    }
    Ok(Exported { inodes: exported(&rest), damage, behind: exported(&later) })
}

fn exported(rest: &Rest) -> Vec<ExportedInode> {
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
    exported.collect()
}

impl FoundJournal {
    /// Forgets everything, and begins a mount with these options.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn begin(
        self,
        env: &Env,
        options: &Options,
    ) -> Result<ClientJournal, JournalError> {
        let (session, before) = (env.uuid(), self.chain.session);
        let log = self.into_log()?.begin(1).await?;
        let after = JournalPosition::default();
        let (begins, _) = JournalRecord::new(session, after, 0, Vec::new());
        let appended = log.append(&begins.encode(false)).await?;
        let mut records = Places::default();
        records.push(appended.place, after, after);
        let copies = Copies::new(env, session, before, options.keepers.clone());
        Ok(ClientJournal::new(log, session, (records, after), (options.data, copies)))
    }
}

/// The journal of a client that is mounted.
pub(super) struct ClientJournal {
    pub(super) log: Log,
    pub(super) session: Uuid,
    /// One record at a time; the position of the last mutation that it has.
    committing: tokio::sync::Mutex<JournalPosition>,
    /// Records have whole pages.
    has_pages: bool,
    /// Its records. The last one stays: it names the session.
    pub(super) records: Mutex<Places>,
    pub(super) copies: Copies,
    /// The number of the last mutation that was made before it began: positions count from there on.
    before: u64,
    /// It takes no more.
    is_over: AtomicBool,
    /// Bytes of released records that no scan finds.
    forgotten: AtomicU64,
}

impl ClientJournal {
    /// One with these records, up to a position.
    pub(super) fn new(
        log: Log,
        session: Uuid,
        (records, end): (Places, JournalPosition),
        (data, copies): (JournaledData, Copies),
    ) -> ClientJournal {
        let has_pages = data == JournaledData::Pages;
        let (committing, records) = (tokio::sync::Mutex::new(end), Mutex::new(records));
        let (before, is_over) = Default::default();
        let forgotten = log.released().into();
        ClientJournal {
            log,
            session,
            committing,
            has_pages,
            records,
            copies,
            before,
            is_over,
            forgotten,
        }
    }

    /// It begins behind a mutation with this number, before anything is in it.
    pub(super) fn begin_behind(&mut self, number: u64) {
        assert!(self.records.get_mut().len() == 1, "a journal begins when it is empty");
        self.before = number;
    }

    /// The position of a mutation with this number; 0 before the first one.
    pub(super) fn position(&self, number: u64) -> u64 {
        number.saturating_sub(self.before)
    }

    /// The number of the mutation at a position.
    pub(super) fn number(&self, position: u64) -> u64 {
        self.before + position
    }

    /// Whether all copies have the mutations up to this one.
    pub(super) fn is_copied(&self, number: u64) -> bool {
        self.copies.have(self.position(number))
    }

    /// Returns when nothing is written any more: another one is about to open it.
    pub(super) async fn end(&self) {
        let _turn = self.committing.lock().await;
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns when the mutations up to this one are durable in the journal. Copies that are current have them, too.
    /// Callers share records and flushes.
    ///
    /// # Errors
    /// [`JournalError::Full`]; the device's, after which the journal is used no more.
    pub(super) async fn commit(
        &self,
        queue: &WritebackQueue,
        last: u64,
    ) -> Result<(), JournalError> {
        let mut end = self.committing.lock().await;
        if self.is_over.load(Ordering::Relaxed) {
            return Err(JournalError::Full { needed: 0 });
        }
        while !queue.is_journaled(last) {
            let Some(Unjournaled { first: number, last: last_number, runs }) =
                queue.unjournaled(RECORD_BYTES, self.has_pages)
            else {
                return Ok(());
            };
            let after = *end;
            assert!(self.position(number) == after.position + 1, "a journal has no holes");
            let durable = self.copies.released();
            let (record, hashes) = JournalRecord::new(self.session, after, durable, runs);
            let (next, record) = (record.end(), record.encode(self.has_pages));
            // No copy has a record that the journal has not.
            self.log.check_room(&record)?;
            let (appended, ()) = join(self.log.append(&record), self.copies.append(&record)).await;
            let place = appended?.place;
            *end = next;
            self.records.lock().push(place, after, next);
            queue.journaled(number..=last_number, &hashes);
            queue.spill(number..=last_number, place);
        }
        Ok(())
    }

    /// Keeps the copy at one keeper: attaches it again when it was lost, until the journal ends.
    pub(super) async fn keep_copy(&self, env: &Env, link: usize) {
        let link = &self.copies.links[link];
        let mut failures = 0;
        loop {
            link.beat(&self.copies).await;
            if self.copies.has_ended() {
                return;
            }
            match self.attach_copy(link).await {
                Ok(()) => {
                    tracing::info!(keeper = link.name(), "a keeper has a copy of the journal");
                    failures = 0;
                    continue;
                }
                Err(error) if error.is_final() => {
                    tracing::error!(keeper = link.name(), %error, "a keeper has a copy of the journal no more");
                    return link.set_down(&error);
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(keeper = link.name(), %error, "a keeper has no copy of the journal");
                    }
                    link.set_down(&error);
                }
            }
            env.sleep(copies::pause(failures)).await;
            failures += 1;
        }
    }

    /// Attaches the copy at a keeper, and sends what it lacks.
    pub(super) async fn attach_copy(&self, link: &KeeperLink) -> Result<(), CopyError> {
        let after = self.after();
        let size = self.log.device().geometry().size;
        let mut attached = link.attach(&self.copies, size, after).await?;
        while self.send_missing(&mut attached, SENT_AT_ONCE).await? == SENT_AT_ONCE {}
        // The rest is little, and no further record comes meanwhile.
        let end = self.committing.lock().await;
        while self.send_missing(&mut attached, SENT_AT_ONCE).await? > 0 {}
        if attached.end != *end {
            return Err(CopyError::Refused(KeepRefusal::Diverged));
        }
        if self.copies.has_ended() {
            self.copies.end_copy(link, Some(attached.channel)).await;
            return Err(CopyError::Ended);
        }
        link.set_up(attached);
        Ok(())
    }

    /// Sends so many records at most that a copy lacks; how many.
    async fn send_missing(&self, to: &mut Attached, most: usize) -> Result<usize, CopyError> {
        let mut sent = 0;
        while sent < most {
            let next = to.end.position + 1;
            let Some(PlacedRecord { place, after, end }) = self.records.lock().from(next) else {
                break;
            };
            let found = match self.log.read(place).await {
                // The server has made it durable meanwhile.
                Err(JournalError::Released { .. }) => continue,
                found => found?,
            };
            let record = (end.position, &found.header[..], found.body.clone());
            self.copies.send(&to.channel, record, after.position > to.end.position).await?;
            to.end = end;
            sent += 1;
        }
        Ok(sent)
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
        Ok((self.number(head.first), mutations.collect()))
    }

    /// The server has made the mutations up to this one durable; whether a record is released.
    pub(super) fn release(&self, number: u64) -> bool {
        let position = self.position(number);
        self.copies.release(position);
        let Some(last) = self.records.lock().release(position) else { return false };
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
        let _turn = self.committing.lock().await;
        if self.is_over.load(Ordering::Relaxed) {
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

    /// Bytes of the records from that of the mutation behind this one on.
    pub(super) fn used_behind(&self, number: u64) -> u64 {
        let first = self.records.lock().from(self.position(number) + 1);
        let end = self.log.released() + (self.log.size() - self.log.room());
        first.map_or(0, |first| end.saturating_sub(first.place.offset))
    }

    /// Forgets everything: the server has all of it, and made it durable.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn clear(&self) -> Result<(), JournalError> {
        let _turn = self.committing.lock().await;
        self.log.clear().await?;
        self.copies.end().await;
        Ok(())
    }
}
