//! A server's records: sessions, and the last call of each of their slots.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use siphasher::sip::SipHasher13;
use thalweg_store::txn::Durability;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LocalFs;
use super::external_contents::REACH;
use super::format::{ALL_USED_VERSION, Tag, decode_time, encode_time, key, key_behind, parse_key};
use super::fs_call::FsCall;
use super::use_records::{ALL_USED, MADE, USED, decode_all, decode_use, encode_all, encode_use};
use crate::attributes::Ino;
use crate::direct::DirectContents;
use crate::error::FsError;
use crate::filesystem::{Filesystem, SessionTable};
use crate::mutation::{ByteMutations, Mutation};
use crate::room::RoomShare;
use crate::session_table::{
    AllUsed, Held, JournalPosition, Recorder, SessionRecord, SlotRecord, SupersededCall,
    UsedByOthers,
};
use crate::stored_ahead::{StoreAhead, StoredWrites};

/// The session in the key of the number of the last server: no session has this number.
const NO_SESSION: u64 = 0;

/// The value of a slot. Behind it is the hash of a position in a journal (u64), if the outcome is one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SlotValue {
    /// The number of the last call.
    number: U64,
    /// What it came to: [`Committed::outcome`](crate::session_table::Committed::outcome).
    outcome: U64,
}

/// Longest value of a session's record in bytes.
const MAX_INFO: usize = 1024;
/// Longest address of a session in bytes.
pub(super) const MAX_ADDRESS: usize = 256;
/// Records that one transaction removes.
const REMOVED_AT_ONCE: usize = 512;
/// Records of revoked inodes that one transaction makes.
const REVOKED_AT_ONCE: usize = 256;

/// What keys of records of size records have behind the session.
pub(super) const TAILS: [u8; 4] = [0; 4];

/// What keys of records of revoked inodes have behind the session.
const REVOKED: [u8; 5] = [0; 5];

/// What keys of records of delegated inodes have behind the session.
const DELEGATED: [u8; 6] = [0; 6];

/// What keys of records of reserved inode numbers have behind the session.
const RESERVED: [u8; 7] = [0; 7];

pub(super) fn session_key(session: u64) -> Vec<u8> {
    key(0, Tag::Session, &session.to_be_bytes())
}

/// The key of a record of a session about an inode, or a number of one.
fn key_of(session: u64, kind: &[u8], ino: u64) -> Vec<u8> {
    [&session_key(session), kind, &ino.to_be_bytes()[..]].concat()
}

/// The inode that a key is about which begins so behind the session. Keys of other kinds have other lengths.
fn ino_of(rest: &[u8], kind: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(rest.strip_prefix(kind)?.try_into().ok()?))
}

fn check_info(info: &[u8]) -> Result<(), FsError> {
    match info.len() {
        ..=MAX_INFO => Ok(()),
        _ => Err(FsError::Invalid("the record of a session is too long")),
    }
}

fn slot_key(session: u64, slot: u16) -> Vec<u8> {
    let mut key = session_key(session);
    key.extend_from_slice(&slot.to_be_bytes());
    key
}

/// A record of a session.
#[derive(Clone, Debug)]
pub(super) enum Record {
    /// What the server has written down of it.
    Info,
    /// Of no session: the number of the last server that went on with sessions.
    Server,
    /// The last call of a slot.
    Slot(SlotRecord),
    /// The address of its client at the store with the contents.
    Address,
    /// It stores size records of this file.
    Sizes(Ino),
    /// It was shut out of this inode; inode tokens of this generation are valid since.
    Revoked(Ino, u64),
    /// This inode was delegated to its client, which has a journal.
    Delegated(Ino),
    /// These inode numbers were reserved for its client, which has a journal.
    Reserved(u64, u64),
    /// Other clients have used this inode while its client was away, which has a journal.
    Used(UsedByOthers),
    /// The filesystem was used without a server while its client was away, which has a journal.
    AllUsed(AllUsed),
    /// Its client has made this inode since.
    Made(Ino),
}

/// The session of a record's key, and which record it is; `None` when the record is invalid.
pub(super) fn parse_record(key: &[u8], value: &[u8]) -> Option<(u64, Record)> {
    let (0, Tag::Session, rest) = parse_key(key)? else { return None };
    let (session, rest) = rest.split_first_chunk()?;
    let session = u64::from_be_bytes(*session);
    if session == NO_SESSION {
        let is_number = rest.is_empty() && U64::read_from_bytes(value).is_ok();
        return is_number.then_some((session, Record::Server));
    }
    if rest.is_empty() {
        return (value.len() <= MAX_INFO).then_some((session, Record::Info));
    }
    if rest == [0; 3] {
        return (value.len() <= MAX_ADDRESS).then_some((session, Record::Address));
    }
    if rest == ALL_USED {
        return Some((session, Record::AllUsed(decode_all(value)?)));
    }
    if let Some(ino) = ino_of(rest, &MADE) {
        return value.is_empty().then_some((session, Record::Made(Ino(ino))));
    }
    if let Some(ino) = ino_of(rest, &DELEGATED) {
        return value.is_empty().then_some((session, Record::Delegated(Ino(ino))));
    }
    if let Some(start) = ino_of(rest, &RESERVED) {
        let end = U64::read_from_bytes(value).ok()?.get();
        return (start < end).then_some((session, Record::Reserved(start, end)));
    }
    if let Some(ino) = ino_of(rest, &USED) {
        return Some((session, Record::Used(decode_use(Ino(ino), value)?)));
    }
    if let Some(ino) = ino_of(rest, &REVOKED) {
        let generation = U64::read_from_bytes(value).ok()?;
        return Some((session, Record::Revoked(Ino(ino), generation.get())));
    }
    if let Some(ino) = rest.strip_prefix(&TAILS) {
        let ino = Ino(u64::from_be_bytes(ino.try_into().ok()?));
        return value.is_empty().then_some((session, Record::Sizes(ino)));
    }
    let slot = u16::from_be_bytes(rest.try_into().ok()?);
    let (value, rest) = SlotValue::read_from_prefix(value).ok()?;
    let (number, outcome) = (value.number.get(), value.outcome.get());
    let hash = if rest.is_empty() { 0 } else { U64::read_from_bytes(rest).ok()?.get() };
    Some((session, Record::Slot(SlotRecord { slot, number, outcome, hash })))
}

impl<'a> FsCall<'a> {
    /// The call is recorded. One that was made before has the time that it had.
    pub(super) fn recorded(mut self, recorder: &'a Recorder) -> FsCall<'a> {
        if let Some(before) = recorder.call.before {
            self.now = encode_time(before.time);
        }
        self.recorder = Some(recorder);
        self
    }

    /// Whether the record of a slot has this call, or a later one.
    pub(super) async fn has_slot(
        &mut self,
        (session, slot): (u64, u16),
        number: u64,
    ) -> Result<bool, FsError> {
        let last = self.get(&slot_key(session, slot)).await?;
        let last = last.as_deref().and_then(|value| SlotValue::read_from_prefix(value).ok());
        Ok(last.is_some_and(|(last, _)| last.number.get() >= number))
    }

    fn put_slot(&mut self, session: u64, SlotRecord { slot, number, outcome, hash }: SlotRecord) {
        let value = SlotValue { number: number.into(), outcome: outcome.into() };
        let mut value = value.as_bytes().to_vec();
        if hash != 0 {
            value.extend_from_slice(&hash.to_le_bytes());
        }
        self.put(slot_key(session, slot), value);
    }

    /// Records a call in this transaction, and those that it supersedes.
    ///
    /// # Errors
    /// [`FsError::Stale`], with nothing recorded, when its session has ended, or its slot has a later call.
    pub(super) async fn record_call(&mut self, recorder: Option<&Recorder>) -> Result<(), FsError> {
        let Some(recorder) = recorder else { return Ok(()) };
        let call = recorder.call;
        if self.get(&session_key(call.session)).await?.is_none() {
            return Err(FsError::Stale);
        }
        // A call that its client has given up must not come after a later one.
        if self.has_slot((call.session, call.slot), call.number).await? {
            return Err(FsError::Stale);
        }
        let outcome = self.outcome;
        let (slot, number, hash) = (call.slot, call.number, self.hash);
        let record = SlotRecord { slot, number, outcome, hash };
        self.put_slot(call.session, record);
        for SupersededCall { session, record } in recorder.superseded() {
            let has_ended = self.get(&session_key(session)).await?.is_none();
            if !has_ended && !self.has_slot((session, record.slot), record.number).await? {
                self.put_slot(session, record);
            }
        }
        self.effects.recorded = Some((decode_time(self.now), outcome));
        Ok(())
    }
}

impl LocalFs {
    /// The filesystem for the changes of a call before its last one; `None` unless the call is recorded.
    pub(super) fn unrecorded(&self) -> Option<LocalFs> {
        self.recorder.as_ref()?;
        Some(LocalFs { recorder: None, ..self.clone() })
    }

    /// Records a call of several transactions after the others.
    pub(super) async fn record(&self, outcome: u64, durability: Durability) -> Result<(), FsError> {
        self.change_as(durability, async |txn| {
            let mut op = self.op(&txn);
            op.outcome = outcome;
            Ok(((), op.finish().await?))
        })
        .await
    }

    /// Changes records of a session, durably.
    async fn change_session(
        &self,
        session: u64,
        change: impl Fn(&mut FsCall<'_>),
    ) -> Result<(), FsError> {
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            if op.get(&session_key(session)).await?.is_none() {
                return Err(FsError::Stale);
            }
            change(&mut op);
            Ok(((), op.finish().await?))
        })
        .await
    }

    /// Removes some records of a session; whether none is left. The session's own record is the first.
    async fn remove_session(&self, session: u64) -> Result<bool, FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            let behind = key(0, Tag::Session, &session.saturating_add(1).to_be_bytes());
            let some = op.range(session_key(session)..behind, REMOVED_AT_ONCE).await?;
            let is_last = some.len() < REMOVED_AT_ONCE;
            some.into_iter().for_each(|(key, _)| op.delete(key.to_vec()));
            Ok((is_last, op.finish().await?))
        })
        .await
    }
}

#[async_trait]
impl SessionTable for LocalFs {
    fn recording(&self, recorder: Arc<Recorder>) -> Arc<dyn Filesystem> {
        Arc::new(LocalFs { recorder: Some(recorder), ..self.clone() })
    }

    async fn begin_session(&self, info: Bytes) -> Result<u64, FsError> {
        check_info(&info)?;
        self.inner.count_rooms().await?;
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            // Never used before, so that nothing that was told to another session is valid for it.
            let session = (self.inner.env.uuid().as_u128() as u64).clamp(1, u64::MAX - 1);
            if op.get(&session_key(session)).await?.is_some() {
                return Err(FsError::Conflict);
            }
            op.put(session_key(session), info.clone());
            Ok((session, op.finish().await?))
        })
        .await
    }

    async fn end_sessions(&self, sessions: &[u64]) -> Result<(), FsError> {
        for session in sessions {
            while !self.remove_session(*session).await? {}
        }
        self.inner.sync(None).await
    }

    async fn sessions(&self) -> Result<Vec<SessionRecord>, FsError> {
        let read = self.look(async |txn| {
            let mut op = self.op(&txn);
            let range = key(0, Tag::Session, &[])..key_behind(0, Tag::Session);
            let mut sessions: Vec<SessionRecord> = Vec::new();
            for (key, value) in op.range(range, usize::MAX).await? {
                let bad = || FsError::Damaged("a record of a session is invalid".to_owned());
                let (session, record) = parse_record(&key, &value).ok_or_else(bad)?;
                if matches!(record, Record::Server | Record::Address | Record::Sizes(_)) {
                    continue;
                }
                // The first record of a session is its own, unless a crash has left others.
                if sessions.last().is_none_or(|it| it.session != session) {
                    sessions.push(SessionRecord { session, ..SessionRecord::default() });
                }
                let Some(last) = sessions.last_mut() else { continue };
                match record {
                    Record::Info => last.info = value,
                    Record::Slot(slot) => last.slots.push(slot),
                    Record::Revoked(ino, generation) => last.revoked.push((ino, generation)),
                    Record::Delegated(ino) => last.held.inodes.push(ino),
                    Record::Reserved(start, end) => last.held.numbers.push(start..end),
                    Record::Used(used) => last.held.used.push(used),
                    Record::AllUsed(all) => {
                        self.inner.note_all_used(encode_time(all.noted));
                        last.held.all = Some(all);
                    }
                    Record::Made(ino) => last.held.made.push(ino),
                    Record::Server | Record::Address | Record::Sizes(_) => {}
                }
            }
            Ok(sessions)
        });
        let sessions = read.await?;
        if !sessions.is_empty() && !self.inner.options.read_only {
            self.inner.count_rooms().await?;
        }
        Ok(sessions)
    }

    async fn number_server(&self) -> Result<u64, FsError> {
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            let last = match op.get(&session_key(NO_SESSION)).await? {
                None => 0,
                Some(last) => match U64::read_from_bytes(&last) {
                    Ok(last) => last.get(),
                    Err(_) => {
                        let why = "the number of a server is invalid";
                        return Err(FsError::Damaged(why.to_owned()));
                    }
                },
            };
            let number = last.saturating_add(1);
            op.put(session_key(NO_SESSION), U64::from(number).as_bytes().to_vec());
            Ok((number, op.finish().await?))
        })
        .await
    }

    async fn use_all(&self, session: u64, info: Bytes, position: u64) -> Result<(), FsError> {
        check_info(&info)?;
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            if op.get(&session_key(session)).await?.is_none() {
                return Err(FsError::Stale);
            }
            op.raise_version(ALL_USED_VERSION).await?;
            let own = [&session_key(session), &ALL_USED[..]].concat();
            let before = op.get(&own).await?.and_then(|value| decode_all(&value));
            let noted = before.map_or(decode_time(op.now), |it| it.noted);
            // Before a change can come behind it.
            self.inner.note_all_used(encode_time(noted));
            op.put(own, encode_all(&AllUsed { noted, position }));
            op.put(session_key(session), info.clone());
            let made = key_of(session, &MADE, 0)..key_of(session, &MADE, u64::MAX);
            // Records of other kinds lie among these.
            for (key, value) in op.range(made, usize::MAX).await? {
                if let Some((_, Record::Made(_))) = parse_record(&key, &value) {
                    op.delete(key.to_vec());
                }
            }
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn set_session(&self, session: u64, info: Bytes) -> Result<(), FsError> {
        check_info(&info)?;
        self.change_session(session, |op| {
            op.put(session_key(session), info.clone());
        })
        .await
    }

    async fn hold(&self, session: u64, held: &Held) -> Result<(), FsError> {
        self.change_session(session, |op| {
            for ino in &held.inodes {
                op.put(key_of(session, &DELEGATED, ino.0), Bytes::new());
            }
            for Range { start, end } in &held.numbers {
                let end = U64::from(*end);
                op.put(key_of(session, &RESERVED, *start), end.as_bytes().to_vec());
            }
            for used in &held.used {
                op.put(key_of(session, &USED, used.ino.0), encode_use(used));
            }
            for ino in &held.made {
                op.put(key_of(session, &MADE, ino.0), Bytes::new());
            }
        })
        .await
    }

    fn inode_token(&self, session: u64, ino: Ino, generation: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.inner.hash_key);
        // No name of a file has these bytes: places of names tell nothing of inode tokens.
        hasher.write(if generation == 0 { b"/" } else { b"//" });
        hasher.write(&session.to_le_bytes());
        hasher.write(&ino.0.to_le_bytes());
        if generation > 0 {
            hasher.write(&generation.to_le_bytes());
        }
        hasher.finish()
    }

    async fn revoke(&self, session: u64, inodes: &[(Ino, u64)]) -> Result<(), FsError> {
        for some in inodes.chunks(REVOKED_AT_ONCE) {
            self.change(async |txn| {
                let mut op = self.op(&txn);
                if op.get(&session_key(session)).await?.is_some() {
                    for (ino, generation) in some {
                        let generation = U64::from(*generation);
                        op.put(key_of(session, &REVOKED, ino.0), generation.as_bytes().to_vec());
                    }
                }
                Ok(((), op.finish().await?))
            })
            .await?;
        }
        Ok(())
    }

    fn inode_range_token(&self, session: u64, numbers: Range<u64>) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.inner.hash_key);
        // As above; and no proof of an inode is as long.
        hasher.write(b"/");
        for number in [session, numbers.start, numbers.end] {
            hasher.write(&number.to_le_bytes());
        }
        hasher.finish()
    }

    async fn reserve_numbers(&self, count: u64) -> Result<Range<u64>, FsError> {
        let numbers = LocalFs::reserve_numbers(self, count).await?;
        self.inner.sync(None).await?;
        Ok(numbers)
    }

    async fn return_numbers(&self, numbers: Range<u64>) -> Result<(), FsError> {
        LocalFs::return_numbers(self, numbers).await
    }

    fn byte_mutations(&self) -> ByteMutations {
        match self.inner.external_contents {
            // The write bound of a new file is not raised before the file is durable.
            Some(_) => ByteMutations { end: REACH, sizes: false, dense: true },
            None => ByteMutations { end: u64::MAX, sizes: true, dense: false },
        }
    }

    fn direct(&self) -> Option<&dyn DirectContents> {
        let external_contents = self.inner.external_contents.as_ref()?;
        (external_contents.contents.location().is_some() && !self.inner.options.read_only)
            .then_some(self as &dyn DirectContents)
    }

    async fn apply(
        &self,
        mutations: &[Mutation],
        charged: &[RoomShare],
        end: JournalPosition,
    ) -> Result<(), FsError> {
        self.apply_stored(mutations, charged, end, &StoredWrites::default()).await
    }

    fn ahead(&self) -> Option<&dyn StoreAhead> {
        self.inner.external_contents.is_some().then_some(self as &dyn StoreAhead)
    }

    async fn release_orphans(&self) -> Result<(), FsError> {
        if !self.inner.options.read_only {
            self.inner.keeps_orphans.store(false, Ordering::Relaxed);
            self.inner.resume_deferred_work(self.inner.stored_orphans().await?);
        }
        Ok(())
    }
}
