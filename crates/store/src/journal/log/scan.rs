//! Reading the records of a log, from the tail on.

use bytes::Bytes;
use zerocopy::FromBytes;

use super::record::Checksum;
use crate::block::BLOCK_SIZE;
use crate::device::{DeviceRef, Purpose};
use crate::journal::JournalError;
use crate::journal::format::{COMMIT, COMMIT_MAGIC, CommitRecord, Superblock};

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

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing of this epoch follows the last record.
    Clean,
    /// The next record is incomplete: it was never durable, or at least nothing present says that it was. When it and
    /// all later ones are damaged, they are missing in silence.
    Torn,
    /// A record is incomplete, and a later one is present that was sent when it was durable.
    Rotten {
        /// The first incomplete record.
        sequence: u64,
        /// A later one.
        later: u64,
    },
}

/// Result of looking for a record at an offset.
pub(super) enum Looked<T> {
    /// It is whole; its bytes and stamp.
    Whole(T, u64, u64),
    /// No whole record; its length, if one seems to have begun.
    Damaged(Option<u64>),
}

/// Records from the tail on, one after the other.
pub(crate) struct Scan<'a> {
    reader: Reader<'a>,
    /// Where the next record begins.
    pub(super) offset: u64,
    /// Its number.
    pub(super) sequence: u64,
    /// The stamp of the record before it.
    pub(super) stamp: u64,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(device: &'a DeviceRef, superblock: &'a Superblock) -> Scan<'a> {
        Scan {
            reader: Reader::new(device, superblock),
            offset: superblock.tail_offset,
            sequence: superblock.tail_sequence,
            stamp: superblock.stamp,
        }
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
        let superblock = self.reader.superblock;
        let room = superblock.tail_offset + superblock.geography.size - self.offset;
        match self.reader.record(self.offset, self.sequence, room, decode).await? {
            Looked::Whole(record, len, stamp) => {
                (self.offset, self.sequence) = (self.offset + len, self.sequence + 1);
                self.stamp = stamp;
                Ok(Ok(record))
            }
            Looked::Damaged(len) => {
                let sequence = self.sequence;
                let later = self.reader.later(self.offset, len, sequence, room).await?;
                Ok(Err(match later {
                    Some(later) => End::Rotten { sequence, later },
                    None if len.is_some() => End::Torn,
                    None => End::Clean,
                }))
            }
        }
    }
}

/// Reads the ring with read-ahead.
pub(super) struct Reader<'a> {
    device: &'a DeviceRef,
    superblock: &'a Superblock,
    /// An offset, and the bytes from it on.
    buffer: Option<(u64, Bytes)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(device: &'a DeviceRef, superblock: &'a Superblock) -> Reader<'a> {
        Reader { device, superblock, buffer: None }
    }

    /// Reads bytes of the ring, across its end if needed.
    pub(super) async fn direct(&self, offset: u64, len: u64) -> Result<Bytes, JournalError> {
        let geography = &self.superblock.geography;
        let here = len.min(geography.until_end(offset));
        let read = |at, len| self.device.read(at, len as usize, Purpose::Journal);
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
        let ahead = len.max(AHEAD).min(room);
        let bytes = self.direct(offset, ahead).await?;
        self.buffer = Some((offset, bytes.clone()));
        Ok(bytes.slice(..len as usize))
    }

    /// The commit record at an offset, if it is one of this epoch and its record fits; with
    /// the lengths of head and record.
    async fn commit(
        &mut self,
        offset: u64,
        room: u64,
    ) -> Result<Option<(CommitRecord, u64, u64)>, JournalError> {
        let sector = u64::from(self.superblock.geography.sector);
        if room < sector {
            return Ok(None);
        }
        let bytes = self.read(offset, sector, room).await?;
        let Ok((commit, _)) = CommitRecord::read_from_prefix(&bytes) else { return Ok(None) };
        if commit.magic != COMMIT_MAGIC || commit.tag.get() != self.superblock.tag() {
            return Ok(None);
        }
        let used =
            COMMIT as u64 + u64::from(commit.tags.get()) + u64::from(commit.multiwrite.get());
        let head = used.next_multiple_of(sector);
        let len = head + u64::from(commit.regular_blocks()) * BLOCK_SIZE as u64;
        Ok((len <= room).then_some((commit, head, len)))
    }

    /// Reads the record with a number at an offset.
    pub(super) async fn record<T>(
        &mut self,
        offset: u64,
        sequence: u64,
        room: u64,
        decode: impl FnOnce(FoundRecord) -> Option<T>,
    ) -> Result<Looked<T>, JournalError> {
        let Some((commit, head, len)) = self.commit(offset, room).await? else {
            return Ok(Looked::Damaged(None));
        };
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
        let payload = (commit.tags.get() + commit.multiwrite.get()) as usize;
        let mut body = Bytes::copy_from_slice(&front[COMMIT..COMMIT + payload]);
        let header = body.split_to(commit.tags.get() as usize);
        let found = FoundRecord {
            sequence,
            offset,
            bytes: len,
            stamp: commit.stamp.get(),
            header,
            body,
            blocks_at: offset + head,
            blocks: commit.regular_blocks(),
        };
        Ok(match decode(found) {
            Some(record) => Looked::Whole(record, len, commit.stamp.get()),
            None => Looked::Damaged(Some(len)),
        })
    }

    /// Searches for a record behind an incomplete one, which proves that the incomplete one was durable: it was sent
    /// after that. Records that were in flight together with it prove nothing. `len`: bytes of the incomplete one, as
    /// far as its head can be trusted; it may be the head that is damaged, so each sector behind it is looked at.
    async fn later(
        &mut self,
        offset: u64,
        len: Option<u64>,
        sequence: u64,
        room: u64,
    ) -> Result<Option<u64>, JournalError> {
        let sector = u64::from(self.superblock.geography.sector);
        let mut place = sector;
        let mut end = match len {
            Some(len) => len.max(SEARCHED) + AHEAD,
            None => SEARCHED,
        };
        while place < end.min(room) {
            if let Some((commit, _, len)) = self.commit(offset + place, room - place).await?
                && commit.sequence.get() > sequence
            {
                let later = commit.sequence.get();
                if later.saturating_sub(commit.in_flight()) > sequence {
                    return Ok(Some(later));
                }
                // The next one, which may prove it, follows this one.
                end = end.max(place + len + AHEAD);
            }
            place += sector;
        }
        Ok(None)
    }
}
