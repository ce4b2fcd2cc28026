//! Batches that a crash has left half made, where contents are kept elsewhere.
//!
//! A batch of a client with a journal may replace bytes in many objects, and changes names and attributes in a transaction. To
//! other clients it is one change. Before the first byte is replaced, all of the batch is on record with the contents: in a
//! file that has no inode, one for each session. If the server *and* the client are lost in the middle, the next opening
//! makes the batch whole before anything is read (*redo*, as in a write-ahead log). An opening for reading alone cannot, and
//! shows the batch half made. Bytes that nothing shows yet, of new files and behind the ends of others, are not in the
//! record, since they are stored before it.
//!
//! A record is about the state behind all earlier batches, which are durable before it is written. So the record before it is not
//! needed any more, and is overwritten. A record of a batch whose transaction is there is of no use, and stays until the
//! next one, or until the session ends.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use thalweg_store::checksum::{crc32c, crc32c_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::batch_contents::Replaced;
use super::format::{Tag, key, key_behind};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::gates::ExternalContents;
use super::sessions::{Record, parse_record, session_key};
use crate::attributes::Ino;
use crate::error::FsError;
use crate::mutation::{Mutation, MutationKind};
use crate::session_table::{JournalPosition, RecordedCall};

/// The files of records have the numbers from here on. No inode has one.
const FIRST: u64 = 1 << 63;
/// Of a record, when it is read.
const MAX_BYTES: u64 = 256 << 20;
/// The byte behind the last one of a record at most.
const MAX_END: u64 = 2 * MAX_BYTES + size_of::<Head>() as u64;
/// Records that are read concurrently.
const READ_AT_ONCE: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"tw-redo1");

/// The first bytes of a record. The mutations and runs follow, encoded, and the bytes of the runs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: U64,
    session: U64,
    number: U64,
    /// Where the batch ends in its client's journal.
    position: U64,
    hash: U64,
    /// Bytes of the mutations and runs.
    list: U64,
    /// Bytes of the runs' data.
    data: U64,
    slot: U16,
    spare: [u8; 2],
    /// Of list and data.
    content_sum: U32,
    /// Of everything before it.
    sum: U32,
}

impl Head {
    fn own_sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..size_of::<Head>() - size_of::<U32>()])
    }

    fn is_valid(&self) -> bool {
        self.magic.get() == MAGIC
            && self.sum.get() == self.own_sum()
            && self.list.get() <= MAX_BYTES
            && self.data.get() <= MAX_BYTES
    }
}

/// Bytes that are replaced: the file, the first byte, and how many.
type RunOf = (Ino, u64, u64);

/// A batch without the bytes that it replaces.
#[derive(Debug)]
pub(super) struct Redo {
    head: Head,
    list: Bytes,
    mutations: Vec<Mutation>,
}

/// The file with the record of a session.
fn record_of(session: u64) -> Ino {
    Ino(session | FIRST)
}

/// What a mutation is when its bytes are stored.
fn without_bytes(mutation: &Mutation) -> Mutation {
    let kind = match &mutation.kind {
        MutationKind::Write { ino, offset, data, clear_suid } => MutationKind::Stored {
            ino: *ino,
            offset: *offset,
            len: data.len() as u64,
            clear_suid: *clear_suid,
            by_size_record: false,
        },
        kind => kind.clone(),
    };
    Mutation { time: mutation.time, kind }
}

impl Redo {
    /// The record of the batch that this call makes, with where it ends.
    pub(super) fn of(
        (call, end): (RecordedCall, JournalPosition),
        mutations: &[Mutation],
        replaced: &Replaced,
    ) -> Redo {
        let mutations: Vec<Mutation> = mutations.iter().map(without_bytes).collect();
        let len = |data: &[Bytes]| data.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        let runs: Vec<RunOf> = replaced
            .0
            .iter()
            .flat_map(|(ino, writes)| writes.iter().map(|it| (*ino, it.0, len(&it.1))))
            .collect();
        let list = postcard::to_allocvec(&(&mutations, &runs)).expect("a batch in memory encodes");
        let data = runs.iter().map(|(.., len)| len).sum::<u64>();
        let content = std::iter::once(&list[..]).chain(replaced.buffers().map(|it| &it[..]));
        let mut head = Head {
            magic: MAGIC.into(),
            session: call.session.into(),
            number: call.number.into(),
            position: end.position.into(),
            hash: end.hash.into(),
            list: (list.len() as u64).into(),
            data: data.into(),
            slot: call.slot.into(),
            spare: [0; 2],
            content_sum: crc32c_of(content).into(),
            sum: 0.into(),
        };
        head.sum = head.own_sum().into();
        assert!(head.is_valid(), "a batch fits into a record");
        Redo { head, list: list.into(), mutations }
    }

    pub(super) fn call(&self) -> RecordedCall {
        let Head { session, number, slot, .. } = self.head;
        RecordedCall {
            session: session.get(),
            slot: slot.get(),
            number: number.get(),
            before: None,
        }
    }

    pub(super) fn end(&self) -> JournalPosition {
        JournalPosition { position: self.head.position.get(), hash: self.head.hash.get() }
    }

    pub(super) fn mutations(&self) -> &[Mutation] {
        &self.mutations
    }

    /// Stores it, with the bytes.
    pub(super) async fn store(
        &self,
        external_contents: &ExternalContents,
        replaced: &Replaced,
    ) -> Result<(), FsError> {
        let session = self.head.session.get();
        let end = size_of::<Head>() as u64 + self.head.list.get() + self.head.data.get();
        external_contents.note_record(session, end);
        let head = Bytes::copy_from_slice(self.head.as_bytes());
        let buffers = [head, self.list.clone()].into_iter().chain(replaced.buffers().cloned());
        let writes = [(0, buffers.collect())];
        external_contents.contents.write_all(record_of(session), &writes, false).await
    }

    /// The record of a session with its bytes, if there is a whole one.
    async fn load(
        external_contents: &ExternalContents,
        session: u64,
    ) -> Result<Option<(Redo, Replaced)>, FsError> {
        let (contents, file) = (&*external_contents.contents, record_of(session));
        let head = contents.read(file, 0, size_of::<Head>()).await?;
        if head.iter().any(|byte| *byte != 0) {
            external_contents.note_record(session, MAX_END);
        }
        let Ok(head) = Head::read_from_bytes(&head) else { return Ok(None) };
        if !head.is_valid() || head.session.get() != session {
            return Ok(None);
        }
        let (list, data) = (head.list.get() as usize, head.data.get() as usize);
        let mut content = contents.read(file, size_of::<Head>() as u64, list + data).await?;
        if content.len() != list + data || crc32c(&content) != head.content_sum.get() {
            return Ok(None);
        }
        let list = content.split_to(list);
        let bad = || FsError::Damaged(format!("the record of a batch of session {session:x}"));
        let (mutations, runs): (Vec<Mutation>, Vec<RunOf>) =
            postcard::from_bytes(&list).map_err(|_| bad())?;
        if runs.iter().try_fold(0_u64, |sum, run| sum.checked_add(run.2)) != Some(head.data.get()) {
            return Err(bad());
        }
        let mut replaced = Replaced::default();
        for (ino, offset, len) in runs {
            let write = (offset, vec![content.split_to(len as usize)]);
            match replaced.0.last_mut().filter(|last| last.0 == ino) {
                Some((_, writes)) => writes.push(write),
                None => replaced.0.push((ino, vec![write])),
            }
        }
        Ok(Some((Redo { head, list, mutations }, replaced)))
    }
}

impl FsState {
    /// The numbers of all sessions.
    async fn session_numbers(&self) -> Result<Vec<u64>, FsError> {
        let txn = self.look().await?;
        let mut op = FsCall::new(self, &txn, false);
        let range = key(0, Tag::Session, &[])..key_behind(0, Tag::Session);
        let records = op.range(range, usize::MAX).await?;
        let numbers = records.iter().filter_map(|(key, value)| match parse_record(key, value) {
            Some((session, Record::Info)) => Some(session),
            _ => None,
        });
        Ok(numbers.collect())
    }

    /// Whether the file has the record of a session that there is.
    pub(super) async fn is_record(&self, number: u64) -> Result<bool, FsError> {
        if number < FIRST {
            return Ok(false);
        }
        let txn = self.look().await?;
        let mut op = FsCall::new(self, &txn, false);
        let of_either = [number, number - FIRST].map(session_key);
        for session in &of_either {
            if op.get(session).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The batches that a crash has left half made.
    pub(super) async fn unfinished_batches(
        &self,
        external_contents: &ExternalContents,
    ) -> Result<Vec<(Redo, Replaced)>, FsError> {
        let sessions = self.session_numbers().await?;
        let found = stream::iter(sessions).map(|session| Redo::load(external_contents, session));
        let found: Vec<_> = found.buffer_unordered(READ_AT_ONCE).try_collect().await?;
        let mut unfinished = Vec::new();
        for (redo, replaced) in found.into_iter().flatten() {
            let RecordedCall { session, slot, number, .. } = redo.call();
            let txn = self.look().await?;
            if !FsCall::new(self, &txn, false).has_slot((session, slot), number).await? {
                unfinished.push((redo, replaced));
            }
        }
        Ok(unfinished)
    }

    /// Removes the record of a session that ends. Its batches are durable after that.
    pub(super) async fn forget_record(&self, session: u64) -> Result<(), FsError> {
        let Some(external_contents) = &self.external_contents else { return Ok(()) };
        let end = external_contents.records.lock().remove(&session);
        if let Some(end) = end {
            self.sync_volume().await?;
            external_contents.contents.remove(record_of(session), end).await?;
        }
        Ok(())
    }
}
