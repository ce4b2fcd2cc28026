//! Reading the records of a log, from the tail on.

use std::ops::RangeInclusive;

use bytes::Bytes;
use thalweg_env::HashMap;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::place::{MissedRecord, RecordPlace};
use super::record::Checksum;
use super::ring::LiveRecord;
use crate::block::BLOCK_SIZE;
use crate::copies::{self, DeviceCopy};
use crate::device::{DeviceRef, Purpose};
use crate::journal::JournalError;
use crate::journal::format::{COMMIT, COMMIT_MAGIC, CommitRecord, Geography, Superblock, tag_of};

/// Bytes of one read.
const AHEAD: u64 = 256 << 10;
/// Bytes behind an incomplete record that are searched for a later one.
const SEARCHED: u64 = 1 << 20;

/// A whole record, as it was found.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// Its number.
    pub sequence: u64,
    /// Where it begins: bytes since the log was created.
    pub offset: u64,
    /// Bytes that it takes in the log.
    pub bytes: u64,
    /// The epoch of the log in which it was appended.
    pub epoch: u64,
    /// The user's stamp.
    pub stamp: u64,
    /// What the body means, in the user's encoding.
    pub header: Bytes,
    /// Its strings of bytes, without gaps.
    pub body: Bytes,
    /// Offset of its first whole block: see [`LogRecovery::read_block`](super::LogRecovery::read_block).
    pub blocks_at: u64,
    /// Its number of whole blocks.
    pub blocks: u32,
}

impl FoundRecord {
    /// Where it lies, to read it again.
    pub fn place(&self) -> RecordPlace {
        RecordPlace { sequence: self.sequence, offset: self.offset }
    }
}

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing of this epoch follows the last record.
    Clean,
    /// The next record is incomplete: it was never durable, or at least nothing present says that it was. When it and
    /// all later ones are damaged, they are missing in silence.
    Torn,
    /// A record is incomplete that was durable: a later one is present that was sent after that, or an opening has kept
    /// it.
    Rotten {
        /// The first incomplete record.
        sequence: u64,
        /// The later one, or the last one that was kept.
        later: u64,
    },
}

/// Result of looking for a record at an offset.
pub(super) enum Looked<T> {
    /// It is whole; what the log keeps of it, and its bytes.
    Whole(T, LiveRecord, u64),
    /// No whole record; its length, if one seems to have begun.
    Damaged(Option<u64>),
}

/// What a record must be to count.
#[derive(Clone, Debug)]
pub(super) struct ExpectedRecord {
    pub(super) place: RecordPlace,
    pub(super) epochs: RangeInclusive<u64>,
    /// Bytes that it can take.
    pub(super) room: u64,
}

/// Records from the tail on, one after the other.
pub(crate) struct Scan<'a> {
    /// One for each copy of the device's bytes. A record that one of them has is a record.
    readers: Vec<Reader<'a>>,
    /// Records that a copy lacks and another copy has.
    missed: Vec<MissedRecord>,
    superblock: &'a Superblock,
    /// Where the next record begins.
    pub(super) offset: u64,
    /// Its number.
    pub(super) sequence: u64,
    /// What the log keeps of the record before it.
    last: Option<LiveRecord>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(device: &'a DeviceRef, superblock: &'a Superblock) -> Scan<'a> {
        let reader = |copy| Reader::new(device, superblock).of_copy(copy);
        Scan {
            readers: copies::readable_copies(device).into_iter().map(reader).collect(),
            missed: Vec::new(),
            superblock,
            offset: superblock.tail_offset,
            sequence: superblock.tail_sequence,
            last: None,
        }
    }

    /// What the log keeps of the record that came last.
    pub(super) fn last(&self) -> Option<LiveRecord> {
        self.last
    }

    /// The records that copies lack.
    pub(super) fn take_missed(&mut self) -> Vec<MissedRecord> {
        std::mem::take(&mut self.missed)
    }

    /// The stamp of the record before the next one.
    pub(super) fn stamp(&self) -> u64 {
        self.last.map_or(self.superblock.stamp, |record| record.stamp)
    }

    /// The epochs that the next record may have. Kept ones are older than the current epoch, and none is older than the one
    /// before it: so what was left in flight by a crash cannot stand behind a record of a later opening.
    fn epochs(&self) -> RangeInclusive<u64> {
        let Superblock { epoch, oldest_epoch: oldest, .. } = *self.superblock;
        match (self.is_kept(), self.last) {
            (true, None) => oldest..=oldest,
            (true, Some(last)) => last.epoch..=epoch - 1,
            (false, _) => epoch..=epoch,
        }
    }

    /// Whether the next record was kept by the last opening.
    fn is_kept(&self) -> bool {
        self.sequence < self.superblock.kept_before
    }

    /// The next record, as `decode` understands it; or how the log ends. A record that `decode` refuses although
    /// its checksum is right ends the log too: no crash leaves one.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn next<T>(
        &mut self,
        decode: impl FnOnce(FoundRecord) -> Option<T>,
    ) -> Result<Result<T, End>, JournalError> {
        let room = self.superblock.tail_offset + self.superblock.geography.size - self.offset;
        let place = RecordPlace { sequence: self.sequence, offset: self.offset };
        let expected = ExpectedRecord { place, epochs: self.epochs(), room };
        match self.look(&expected, decode).await? {
            Looked::Whole(record, live, len) => {
                (self.offset, self.sequence) = (self.offset + len, self.sequence + 1);
                self.last = Some(live);
                Ok(Ok(record))
            }
            Looked::Damaged(_) if self.is_kept() => {
                let (sequence, later) = (self.sequence, self.superblock.kept_before - 1);
                Ok(Err(End::Rotten { sequence, later }))
            }
            Looked::Damaged(len) => {
                let sequence = self.sequence;
                let mut later = None;
                for reader in &mut self.readers {
                    later = later.max(reader.later(&expected, len).await?);
                }
                Ok(Err(match later {
                    Some(later) => End::Rotten { sequence, later },
                    None if len.is_some() => End::Torn,
                    None => End::Clean,
                }))
            }
        }
    }

    /// Looks for a record on each copy of the device, and notes those that lack it if another one has it.
    ///
    /// # Errors
    /// The device's, if no copy has it and one cannot be read.
    async fn look<T>(
        &mut self,
        expected: &ExpectedRecord,
        decode: impl FnOnce(FoundRecord) -> Option<T>,
    ) -> Result<Looked<T>, JournalError> {
        let (mut decode, mut found, mut longest, mut failure) = (Some(decode), None, None, None);
        let (mut whole, mut lacking) = (None, Vec::new());
        for reader in &mut self.readers {
            // A record that the user refuses is none on any copy.
            let looked = reader.record(expected, |record| {
                if let Some(decode) = decode.take() {
                    found = decode(record);
                }
                found.is_some().then_some(())
            });
            match looked.await {
                Ok(Looked::Whole((), live, len)) => whole = Some((live, len, reader.copy)),
                Ok(Looked::Damaged(len)) => {
                    longest = longest.max(len);
                    lacking.push(reader.copy);
                }
                Err(error) => {
                    failure = Some(error);
                    lacking.push(reader.copy);
                }
            }
        }
        let Some((found, (live, len, from))) = found.zip(whole) else {
            return failure.map_or(Ok(Looked::Damaged(longest)), Err);
        };
        let offset = live.offset;
        let missed = |to| MissedRecord { offset, len, from, to };
        self.missed.extend(lacking.into_iter().map(missed));
        Ok(Looked::Whole(found, live, len))
    }
}

impl Scan<'_> {
    /// Goes on at this place.
    pub(super) fn begin_at(&mut self, offset: u64, sequence: u64) {
        (self.offset, self.sequence) = (offset, sequence);
    }

    /// The next record that is whole, wherever it begins, as `decode` understands it: for what lies behind damage. `None` if there is
    /// none.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn next_whole<T>(
        &mut self,
        decode: &impl Fn(FoundRecord) -> Option<T>,
    ) -> Result<Option<T>, JournalError> {
        let Superblock { geography, tail_offset, oldest_epoch, epoch, kept_before, .. } =
            *self.superblock;
        let (end, mut at) = (tail_offset + geography.size, self.offset);
        while at < end {
            let (epochs, room) = (oldest_epoch..=epoch, end - at);
            // What a crash has left in flight of an earlier epoch has the number of a later record.
            let counts =
                |it: &FoundCommit| (it.commit.sequence.get() < kept_before) == (it.epoch < epoch);
            for reader in &mut self.readers {
                let found = reader.commit(at, &epochs, room).await?;
                let found = found.filter(counts).map(|it| it.commit.sequence.get());
                let Some(sequence) = found.filter(|sequence| *sequence >= self.sequence) else {
                    continue;
                };
                let place = RecordPlace { sequence, offset: at };
                let expected = ExpectedRecord { place, epochs: epochs.clone(), room };
                if let Looked::Whole(record, live, len) = reader.record(&expected, decode).await? {
                    (self.offset, self.sequence) = (at + len, sequence + 1);
                    self.last = Some(live);
                    return Ok(Some(record));
                }
            }
            at += u64::from(geography.sector);
        }
        Ok(None)
    }
}

/// The epochs of a log's records, by their tags.
struct EpochTags {
    current: (u32, u64),
    older: HashMap<u32, u64>,
}

impl EpochTags {
    fn epoch(&self, tag: u32) -> Option<u64> {
        match self.current.0 == tag {
            true => Some(self.current.1),
            false => self.older.get(&tag).copied(),
        }
    }
}

/// Reads the ring with read-ahead.
pub(super) struct Reader<'a> {
    device: &'a DeviceRef,
    copy: DeviceCopy,
    geography: Geography,
    tags: EpochTags,
    /// An offset, and the bytes from it on.
    buffer: Option<(u64, Bytes)>,
}

impl<'a> Reader<'a> {
    /// Reads records of all epochs that count.
    pub(super) fn new(device: &'a DeviceRef, superblock: &Superblock) -> Reader<'a> {
        let Superblock { id, epoch, oldest_epoch, geography, .. } = *superblock;
        let mut reader = Reader::of_epoch(device, geography, id, epoch);
        reader.tags.older = (oldest_epoch..epoch).map(|epoch| (tag_of(id, epoch), epoch)).collect();
        reader
    }

    /// Reads records of one epoch.
    pub(super) fn of_epoch(
        device: &'a DeviceRef,
        geography: Geography,
        id: Uuid,
        epoch: u64,
    ) -> Reader<'a> {
        let tags = EpochTags { current: (tag_of(id, epoch), epoch), older: HashMap::default() };
        Reader { device, copy: DeviceCopy::Any, geography, tags, buffer: None }
    }

    /// The same, of one copy of the device's bytes.
    pub(super) fn of_copy(self, copy: DeviceCopy) -> Reader<'a> {
        Reader { copy, ..self }
    }

    /// Reads bytes of the ring, across its end if needed.
    pub(super) async fn direct(&self, offset: u64, len: u64) -> Result<Bytes, JournalError> {
        let geography = &self.geography;
        let here = len.min(geography.until_end(offset));
        let read = |at, len| self.copy.read(self.device, at, len as usize, Purpose::Journal);
        let first = read(geography.place(offset), here).await?;
        if here == len {
            return Ok(first);
        }
        let rest = read(geography.place(offset + here), len - here).await?;
        Ok([first, rest].concat().into())
    }

    /// Reads `len` bytes from `offset` on, whole sectors; `room` bytes may be read ahead.
    async fn read(&mut self, offset: u64, len: u64, room: u64) -> Result<Bytes, JournalError> {
        if let Some((start, bytes)) = &self.buffer
            && offset >= *start
            && offset + len <= start + bytes.len() as u64
        {
            let at = (offset - start) as usize;
            return Ok(bytes.slice(at..at + len as usize));
        }
        // The part that the buffer has is not read again: a rotational disk would have to turn once more.
        let part = self.buffer.take().and_then(|(start, bytes)| {
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            (at < bytes.len()).then(|| bytes.slice(at..))
        });
        let part = part.unwrap_or_default();
        let there = part.len() as u64;
        assert!(there < len, "a part that is there in whole is not read");
        let ahead = (len - there).max(AHEAD).min(room - there);
        let more = self.direct(offset + there, ahead).await?;
        let bytes = if part.is_empty() { more } else { Bytes::from([part, more].concat()) };
        self.buffer = Some((offset, bytes.clone()));
        Ok(bytes.slice(..len as usize))
    }

    /// The commit record at an offset, if it is of one of these epochs and its record fits; with the lengths of head and
    /// record.
    async fn commit(
        &mut self,
        offset: u64,
        epochs: &RangeInclusive<u64>,
        room: u64,
    ) -> Result<Option<FoundCommit>, JournalError> {
        let sector = u64::from(self.geography.sector);
        if room < sector {
            return Ok(None);
        }
        let bytes = self.read(offset, sector, room).await?;
        let Ok((commit, _)) = CommitRecord::read_from_prefix(&bytes) else { return Ok(None) };
        let epoch = self.tags.epoch(commit.tag.get()).filter(|epoch| epochs.contains(epoch));
        let Some(epoch) = epoch.filter(|_| commit.magic == COMMIT_MAGIC) else { return Ok(None) };
        let used =
            COMMIT as u64 + u64::from(commit.tags.get()) + u64::from(commit.multiwrite.get());
        let head = used.next_multiple_of(sector);
        let len = head + u64::from(commit.regular_blocks()) * BLOCK_SIZE as u64;
        Ok((len <= room).then_some(FoundCommit { commit, epoch, head, len }))
    }

    /// Reads the record that is expected at a place.
    pub(super) async fn record<T>(
        &mut self,
        expected: &ExpectedRecord,
        decode: impl FnOnce(FoundRecord) -> Option<T>,
    ) -> Result<Looked<T>, JournalError> {
        let ExpectedRecord { place: RecordPlace { sequence, offset }, ref epochs, room } =
            *expected;
        let Some(found) = self.commit(offset, epochs, room).await? else {
            return Ok(Looked::Damaged(None));
        };
        let FoundCommit { commit, epoch, head, len } = found;
        if commit.sequence.get() != sequence {
            // Left from an earlier round of the ring.
            return Ok(Looked::Damaged(None));
        }
        let bytes = self.read(offset, len, room).await?;
        let (front, blocks) = bytes.split_at(head as usize);
        let mut sum = Checksum::new(front);
        blocks.chunks(BLOCK_SIZE).for_each(|block| sum.add(block));
        if sum.value() != commit.checksum.get() {
            return Ok(Looked::Damaged(Some(len)));
        }
        // A slice of the large read buffer would keep it in memory.
        let payload = commit.tags.get() as usize + commit.multiwrite.get() as usize;
        let mut body = Bytes::copy_from_slice(&front[COMMIT..COMMIT + payload]);
        let header = body.split_to(commit.tags.get() as usize);
        let stamp = commit.stamp.get();
        let found = FoundRecord {
            sequence,
            offset,
            bytes: len,
            epoch,
            stamp,
            header,
            body,
            blocks_at: offset + head,
            blocks: commit.regular_blocks(),
        };
        Ok(match decode(found) {
            Some(record) => Looked::Whole(record, LiveRecord { offset, stamp, epoch }, len),
            None => Looked::Damaged(Some(len)),
        })
    }

    /// Searches for a record behind an incomplete one, which proves that the incomplete one was durable: it was sent
    /// after that. Records that were in flight together with it prove nothing. `len`: bytes of the incomplete one, as
    /// far as its head can be trusted; it may be the head that is damaged, so each sector behind it is looked at.
    async fn later(
        &mut self,
        expected: &ExpectedRecord,
        len: Option<u64>,
    ) -> Result<Option<u64>, JournalError> {
        let ExpectedRecord { place: RecordPlace { sequence, offset }, ref epochs, room } =
            *expected;
        let sector = u64::from(self.geography.sector);
        let mut place = sector;
        let mut end = match len {
            Some(len) => len.max(SEARCHED) + AHEAD,
            None => SEARCHED,
        };
        while place < end.min(room) {
            if let Some(found) = self.commit(offset + place, epochs, room - place).await?
                && found.commit.sequence.get() > sequence
            {
                let later = found.commit.sequence.get();
                if later.saturating_sub(found.commit.in_flight()) > sequence {
                    return Ok(Some(later));
                }
                // The next one, which may prove it, follows this one.
                end = end.max(place + found.len + AHEAD);
            }
            place += sector;
        }
        Ok(None)
    }
}

/// A commit record whose record fits.
struct FoundCommit {
    commit: CommitRecord,
    epoch: u64,
    /// Bytes up to the whole blocks, and of all of it.
    head: u64,
    len: u64,
}
