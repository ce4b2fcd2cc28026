//! A copy of a client's journal: on a drive, or in memory.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::session_table::JournalPosition;
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::log::{FoundRecord, Log, LogRecord, LogRecovery};
use thalweg_store::journal::{End, JournalError};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::shelf::{KeptCopy, Shelf};
use crate::client::journal::{MIN_SIZE, OWNER};
use crate::client::journal_format::{
    Chain, Entry, Head, Mark, NotNext, Places, UnknownFormat, sent_record, unknown_format,
};
use crate::protocol::keep::{KeepRefusal, MAX_BODY, MAX_HEADER};

/// Largest size of a copy in bytes.
const MAX_SIZE: u64 = 1 << 42;

/// No session has so many mutations.
const MAX_POSITION: u64 = 1 << 62;

/// Bytes of a log that records leave free, for marks.
const RESERVED: u64 = 128 << 10;
/// Most bytes that a record takes in a log beside its own.
const FRAME: u64 = 4096;

/// What a client wants of a copy.
pub(super) struct Attach {
    pub(super) session: Uuid,
    pub(super) before: Option<Uuid>,
    pub(super) size: u64,
    pub(super) is_durable: bool,
    pub(super) after: JournalPosition,
}

/// Why a copy cannot be used: an error of its device, or of the folder.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Folder(#[from] io::Error),
}

pub(super) fn failed(error: CopyError) -> io::Error {
    match error {
        CopyError::Folder(error) => error,
        CopyError::Journal(error) => io::Error::other(error),
    }
}

fn refusal(error: CopyError) -> KeepRefusal {
    match error {
        CopyError::Journal(JournalError::Full { .. }) => KeepRefusal::Full,
        error => KeepRefusal::Failed(error.to_string()),
    }
}

pub(super) struct Copy {
    env: Env,
    name: String,
    state: Mutex<State>,
}

struct State {
    chain: Chain,
    /// The connection that may append.
    connection: u64,
    store: Store,
}

enum Store {
    Disk {
        log: Box<Log>,
        places: Places,
    },
    Memory(InMemory),
    /// It is closed, or its device has failed.
    Closed,
}

/// Bytes that copies take in memory, all together.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    used: AtomicU64,
    most: u64,
}

impl MemoryLimit {
    pub(super) fn new(most: u64) -> MemoryLimit {
        MemoryLimit { used: AtomicU64::new(0), most }
    }

    /// Whether there is room for so many bytes more, which are taken then.
    fn take(&self, bytes: u64) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = used + bytes <= self.most;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "copies give back more memory than they have taken");
    }
}

/// Records in memory, each with its last position.
struct InMemory {
    records: VecDeque<(u64, LogRecord)>,
    bytes: u64,
    /// Bytes that they may take.
    size: u64,
    limit: Arc<MemoryLimit>,
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.limit.give_back(self.bytes);
    }
}

fn bytes_of(record: &LogRecord) -> u64 {
    (record.header.len() + record.body.iter().map(Bytes::len).sum::<usize>()) as u64
}

impl InMemory {
    fn append(&mut self, last: u64, record: LogRecord) -> Result<(), KeepRefusal> {
        let bytes = bytes_of(&record);
        if self.bytes + bytes > self.size || !self.limit.take(bytes) {
            return Err(KeepRefusal::Full);
        }
        self.bytes += bytes;
        self.records.push_back((last, record));
        Ok(())
    }

    fn release(&mut self, position: u64) {
        while self.records.len() > 1 && self.records.front().is_some_and(|it| it.0 <= position) {
            if let Some((_, record)) = self.records.pop_front() {
                let bytes = bytes_of(&record);
                self.bytes -= bytes;
                self.limit.give_back(bytes);
            }
        }
    }

    fn clear(&mut self) {
        self.records.clear();
        self.limit.give_back(std::mem::take(&mut self.bytes));
    }
}

/// Opens the log of a copy behind its records; `None` if there is none.
async fn open_log(env: &Env, device: DeviceRef) -> Result<Option<(Log, Chain, Places)>, CopyError> {
    let decode = |found: FoundRecord| match unknown_format(&found.header) {
        Some(format) => Some(Err(format)),
        None => Some(Ok((Entry::decode(found.stamp, &found.header)?, found.place()))),
    };
    let opened = LogRecovery::open(env, device, OWNER, true, decode).await;
    let (log, scanned) = match opened {
        Err(JournalError::NoJournal { .. }) => return Ok(None),
        opened => opened?,
    };
    if let End::Rotten { sequence, later } = scanned.end {
        let device = log.device().name();
        return Err(JournalError::Rotten { device, sequence, later }.into());
    }
    let (mut chain, mut places) = (Chain::default(), Places::default());
    for scanned in scanned.records {
        let invalid =
            |why: String| JournalError::Invalid(format!("{}: {why}", log.device().name()));
        let (entry, place) = scanned.map_err(|it| invalid(UnknownFormat(it).to_string()))?;
        chain.take(entry).map_err(|error| invalid(error.to_string()))?;
        if entry.mark == Some(Mark::Begins) {
            places = Places::default();
        }
        places.push(place, entry.head.after(), entry.end());
    }
    Ok(Some((log.keep(1).await?, chain, places)))
}

/// The log of a copy that is to be written; it is made if there is none.
async fn writable(
    env: &Env,
    (name, size): (&str, u64),
    shelf: &dyn Shelf,
) -> Result<(Log, Places), CopyError> {
    if let Some(device) = shelf.open(name).await?
        && let Some((log, _, places)) = open_log(env, device).await?
    {
        if log.size() + MIN_SIZE >= size {
            return Ok((log, places));
        }
        drop(log);
        shelf.remove(name).await?;
    }
    let device = shelf.create(name, size).await?;
    Log::create(&device, env.uuid(), OWNER).await?;
    let opened = open_log(env, device).await?;
    let (log, _, places) = opened.ok_or_else(|| io::Error::other("a new log is gone"))?;
    Ok((log, places))
}

impl Store {
    /// Appends a record with this last position, and counts it.
    async fn append(
        &mut self,
        chain: &mut Chain,
        entry: Entry,
        record: LogRecord,
    ) -> Result<(), KeepRefusal> {
        let mut next = *chain;
        next.take(entry).map_err(|NotNext { has_diverged, .. }| match has_diverged {
            true => KeepRefusal::Diverged,
            false => KeepRefusal::Gap { next: chain.next },
        })?;
        match self {
            Store::Disk { log, places } => {
                if entry.mark.is_none() && log.room() < bytes_of(&record) + RESERVED {
                    return Err(KeepRefusal::Full);
                }
                let appended = log.append(&record).await.map_err(|it| refusal(it.into()))?;
                places.push(appended.place, entry.head.after(), entry.end());
                if entry.mark == Some(Mark::Begins) {
                    places.release(u64::MAX);
                    log.release(appended.sequence);
                }
            }
            Store::Memory(memory) => {
                if entry.mark == Some(Mark::Begins) {
                    memory.clear();
                }
                memory.append(entry.last, record)?;
            }
            Store::Closed => return Err(KeepRefusal::Displaced),
        }
        *chain = next;
        Ok(())
    }

    async fn mark(&mut self, chain: &mut Chain, mark: Mark, head: Head) -> Result<(), KeepRefusal> {
        let entry = Entry { head, last: head.first - 1, mark: Some(mark) };
        self.append(chain, entry, mark.encode(head)).await
    }

    /// Puts what is in memory into a file, in place of what that has.
    async fn persist(
        &mut self,
        env: &Env,
        name: &str,
        chain: &Chain,
        shelf: &dyn Shelf,
    ) -> Result<(), CopyError> {
        let Store::Memory(memory) = self else { return Ok(()) };
        let needed = memory.records.iter().map(|(_, it)| bytes_of(it) + FRAME).sum::<u64>();
        let needed = (needed + MIN_SIZE).next_multiple_of(FRAME);
        let (log, mut places) = writable(env, (name, memory.size.max(needed)), shelf).await?;
        let session = chain.session.unwrap_or_default();
        let first = memory.records.iter().find_map(|(last, record)| {
            Entry::decode(*last, &record.header).map(|entry| entry.head)
        });
        let (after, durable) =
            first.map_or((chain.end(), chain.durable), |head| (head.after(), head.durable));
        let head = Head::of_mark(session, after, durable);
        let begins = log.append(&Mark::Begins.encode(head)).await?;
        places.release(u64::MAX);
        log.release(begins.sequence);
        let mut places = Places::default();
        places.push(begins.place, after, after);
        for (last, record) in &memory.records {
            let entry = Entry::decode(*last, &record.header).filter(|it| it.mark.is_none());
            let Some(entry) = entry else { continue };
            let appended = log.append(record).await?;
            places.push(appended.place, entry.head.after(), entry.end());
        }
        *self = Store::Disk { log: Box::new(log), places };
        Ok(())
    }
}

impl Copy {
    /// A new copy, which has nothing.
    pub(super) async fn create(
        env: &Env,
        name: &str,
        shelf: &dyn Shelf,
        wanted: &Attach,
        limit: &Arc<MemoryLimit>,
    ) -> Result<Copy, CopyError> {
        let Attach { session, size, is_durable, after, .. } = *wanted;
        if !(MIN_SIZE..=MAX_SIZE).contains(&size) || after.position >= MAX_POSITION {
            let why = "the client asks for a copy of an invalid size";
            return Err(JournalError::Invalid(why.to_owned()).into());
        }
        let mut store = if is_durable {
            let (log, places) = writable(env, (name, size), shelf).await?;
            Store::Disk { log: Box::new(log), places }
        } else {
            let (records, limit) = (VecDeque::new(), limit.clone());
            Store::Memory(InMemory { records, bytes: 0, size, limit })
        };
        let mut chain = Chain::default();
        let marked = store
            .mark(&mut chain, Mark::Begins, Head::of_mark(session, after, after.position))
            .await;
        marked.map_err(|error| io::Error::other(error.to_string()))?;
        let state = Mutex::new(State { chain, connection: 0, store });
        Ok(Copy { env: env.clone(), name: name.to_owned(), state })
    }

    /// The copy on a device; `None` if that has none.
    pub(super) async fn open(
        env: &Env,
        name: &str,
        device: DeviceRef,
    ) -> Result<Option<Copy>, CopyError> {
        let Some((log, chain, places)) = open_log(env, device).await? else { return Ok(None) };
        if chain.session.is_none() {
            return Ok(None);
        }
        let store = Store::Disk { log: Box::new(log), places };
        let state = Mutex::new(State { chain, connection: 0, store });
        Ok(Some(Copy { env: env.clone(), name: name.to_owned(), state }))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A client attaches it: the number of its connection, which alone may append from now on, and the last position.
    ///
    /// # Errors
    /// It was taken over.
    pub(super) async fn attach(
        &self,
        wanted: &Attach,
        shelf: &dyn Shelf,
    ) -> Result<(u64, JournalPosition), KeepRefusal> {
        let mut state = self.state.lock().await;
        let is_own = state.chain.session == Some(wanted.session);
        if !is_own || state.chain.is_sealed {
            return Err(KeepRefusal::TakenOver);
        }
        if matches!(state.store, Store::Closed) {
            return Err(KeepRefusal::Displaced);
        }
        if wanted.is_durable {
            let State { chain, store, .. } = &mut *state;
            store.persist(&self.env, &self.name, chain, shelf).await.map_err(refusal)?;
        }
        state.connection += 1;
        Ok((state.connection, state.chain.end()))
    }

    /// Appends a record, and releases what the server has made durable.
    ///
    /// # Errors
    /// [`KeepRefusal`].
    pub(super) async fn append(
        &self,
        connection: u64,
        (stamp, header, body): (u64, Bytes, Bytes),
        released: u64,
        anew: bool,
    ) -> Result<(), KeepRefusal> {
        let entry = Entry::decode(stamp, &header).filter(|it| it.mark.is_none());
        let fits = header.len() <= MAX_HEADER && body.len() <= MAX_BODY;
        let entry = entry.filter(|_| fits).ok_or(KeepRefusal::Invalid)?;
        let mut state = self.state.lock().await;
        state.check(connection)?;
        let State { chain, store, .. } = &mut *state;
        if chain.session != Some(entry.head.session) {
            return Err(KeepRefusal::Invalid);
        }
        let end = chain.end();
        if entry.last <= end.position {
            // The answer was lost.
            let is_same = entry.last < end.position || entry.end() == end;
            return if is_same { Ok(()) } else { Err(KeepRefusal::Diverged) };
        }
        let first = entry.head.first;
        if anew && first > chain.next {
            store.mark(chain, Mark::Begins, entry.head.begins()).await?;
        }
        if first != chain.next {
            return Err(KeepRefusal::Gap { next: chain.next });
        }
        state.release(released);
        let State { chain, store, .. } = &mut *state;
        store.append(chain, entry, sent_record(stamp, header.to_vec(), body)).await
    }

    /// The server has made everything up to this position durable.
    pub(super) async fn release(&self, connection: u64, position: u64) -> Result<(), KeepRefusal> {
        let mut state = self.state.lock().await;
        state.check(connection)?;
        state.release(position);
        Ok(())
    }

    /// Whether this connection may use it.
    pub(super) async fn check(&self, connection: u64) -> Result<(), KeepRefusal> {
        self.state.lock().await.check(connection)
    }

    /// Ends it in order, so that it can be removed; not if it was taken over.
    pub(super) async fn end(&self) -> bool {
        let mut state = self.state.lock().await;
        if state.chain.is_sealed {
            return false;
        }
        state.store = Store::Closed;
        true
    }

    /// Ends it for a take-over, with a last mark in its file.
    pub(super) async fn seal(&self, shelf: &dyn Shelf) -> Result<(), CopyError> {
        let mut state = self.state.lock().await;
        let State { chain, store, .. } = &mut *state;
        store.persist(&self.env, &self.name, chain, shelf).await?;
        if let (Some(session), false) = (chain.session, chain.is_sealed) {
            let head = Head::of_mark(session, chain.end(), chain.durable);
            let sealed = store.mark(chain, Mark::Sealed, head).await;
            sealed.map_err(|error| io::Error::other(error.to_string()))?;
        }
        *store = Store::Closed;
        Ok(())
    }

    /// The keeper ends in order.
    pub(super) async fn close(&self, shelf: &dyn Shelf) -> Result<(), CopyError> {
        let mut state = self.state.lock().await;
        let State { chain, store, .. } = &mut *state;
        store.persist(&self.env, &self.name, chain, shelf).await?;
        *store = Store::Closed;
        Ok(())
    }

    /// What it has; `None` if it is closed.
    pub(super) async fn report(&self) -> Option<KeptCopy> {
        let state = self.state.lock().await;
        let Chain { next, is_sealed, .. } = state.chain;
        let first = match &state.store {
            Store::Disk { places, .. } => places.after().map(|after| after.position + 1),
            Store::Memory(memory) => memory.records.front().and_then(|(last, record)| {
                Entry::decode(*last, &record.header).map(|entry| entry.head.first)
            }),
            Store::Closed => return None,
        };
        let changes = next - first.unwrap_or(next);
        let is_durable = matches!(state.store, Store::Disk { .. });
        Some(KeptCopy { name: self.name.clone(), next, changes, is_durable, is_sealed })
    }
}

impl State {
    fn check(&self, connection: u64) -> Result<(), KeepRefusal> {
        if self.chain.is_sealed {
            return Err(KeepRefusal::TakenOver);
        }
        let is_open = !matches!(self.store, Store::Closed);
        if is_open && self.connection == connection { Ok(()) } else { Err(KeepRefusal::Displaced) }
    }

    fn release(&mut self, position: u64) {
        match &mut self.store {
            Store::Disk { log, places } => {
                if let Some(last) = places.release(position) {
                    log.release(last + 1);
                }
            }
            Store::Memory(memory) => memory.release(position),
            Store::Closed => {}
        }
    }
}
