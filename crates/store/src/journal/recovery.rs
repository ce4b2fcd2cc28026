//! Recovery: scan and revoke.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use thalweg_env::Env;
use zerocopy::FromBytes;

use super::address::Address;
use super::format::{COMMIT, COMMIT_MAGIC, CommitRecord, Superblock};
use super::record::{Checksum, Tag, Void, decode_tags};
use super::{Journal, JournalError};
use crate::block::BLOCK_SIZE;
use crate::device::{DeviceRef, Purpose};

/// Bytes of one read.
const AHEAD: u64 = 256 << 10;
/// Bytes behind an incomplete transaction that are searched for a later one.
const SEARCHED: u64 = 1 << 20;

/// The content of a block before patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The in-place content.
    Home,
    /// Zeros.
    Zeros,
    /// A regular block at this offset of the ring: see [`Journal::read_block`].
    Regular(u64),
}

/// Bytes to be written over a block's base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset of the first byte.
    pub offset: usize,
    /// The bytes.
    pub bytes: Bytes,
}

/// How to build a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The content that it begins with.
    pub base: Base,
    /// Applied over that in order.
    pub patches: SmallVec<[Patch; 2]>,
}

/// How the journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing of this epoch follows the last transaction.
    Clean,
    /// The next transaction is incomplete: it was never durable.
    Torn,
    /// A transaction is incomplete, and a later one is present: it was durable once.
    Rotten {
        /// The first incomplete transaction.
        sequence: u64,
        /// A later one.
        later: u64,
    },
}

/// Durations of scan and revoke; replay is the user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Finding the last transaction.
    pub scan: Duration,
    /// Finding what still matters.
    pub revoke: Duration,
}

/// What to replay.
#[derive(Clone, Debug)]
pub struct Replay<A> {
    /// Transactions found.
    pub transactions: u64,
    /// Their bytes in the journal.
    pub bytes: u64,
    /// The stamp of the last transaction, released or not; 0 when there was none.
    pub stamp: u64,
    /// Revoked runs, in order. A plan in `blocks` is newer than a run that contains its block.
    pub voids: Vec<Void<A>>,
    /// How to build each block.
    pub blocks: BTreeMap<A, Plan>,
    /// Number of updates that were revoked.
    pub revoked: u64,
    /// How the journal ends.
    pub end: End,
    /// Durations of the phases.
    pub phases: Phases,
    pub(super) end_offset: u64,
    pub(super) next_sequence: u64,
}

/// A whole transaction.
pub(super) struct Found<A> {
    pub(super) tags: Vec<Tag<A>>,
    multiwrite: Bytes,
    /// Offset of its regular blocks.
    regular: u64,
}

/// Scans the ring from the tail on, and revokes.
pub(super) async fn recover<A: Address>(
    env: &Env,
    device: &DeviceRef,
    superblock: &Superblock,
) -> Result<Replay<A>, JournalError> {
    let begun = env.now();
    let mut reader = Reader { device, superblock, buffer: None };
    let mut replay = Replay {
        transactions: 0,
        bytes: 0,
        stamp: superblock.stamp,
        voids: Vec::new(),
        blocks: BTreeMap::new(),
        revoked: 0,
        end: End::Clean,
        phases: Phases::default(),
        end_offset: superblock.tail_offset,
        next_sequence: superblock.tail_sequence,
    };
    let mut found = Vec::new();
    loop {
        let (offset, sequence) = (replay.end_offset, replay.next_sequence);
        let room = superblock.tail_offset + superblock.geography.size - offset;
        match reader.transaction(offset, sequence, room).await? {
            Scanned::Whole(transaction, commit, len) => {
                found.push(transaction);
                replay.transactions += 1;
                replay.bytes += len;
                replay.stamp = commit.stamp.get();
                replay.end_offset += len;
                replay.next_sequence += 1;
            }
            Scanned::Damaged(len) => {
                let later = reader.later(offset, len, sequence, room).await?;
                replay.end = match later {
                    Some(later) => End::Rotten { sequence, later },
                    None if len.is_some() => End::Torn,
                    None => End::Clean,
                };
                break;
            }
        }
    }
    let scanned = env.now();
    found.into_iter().for_each(|transaction| replay.take(transaction));
    replay.phases = Phases { scan: scanned.since(begun), revoke: env.now().since(scanned) };
    Ok(replay)
}

impl<A: Address> Replay<A> {
    /// Whether there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.voids.is_empty()
    }

    /// Adds the next transaction.
    fn take(&mut self, transaction: Found<A>) {
        let (mut at_byte, mut regular) = (0, transaction.regular);
        for tag in transaction.tags {
            match tag {
                Tag::Bytes { at, offset, len, fresh } => {
                    let bytes = transaction.multiwrite.slice(at_byte..at_byte + len);
                    at_byte += len;
                    if fresh {
                        self.revoke(at, 1);
                    }
                    let base = if fresh { Base::Zeros } else { Base::Home };
                    let plan = self.blocks.entry(at);
                    let plan = plan.or_insert_with(|| Plan { base, patches: SmallVec::new() });
                    plan.patches.push(Patch { offset, bytes });
                }
                Tag::Whole { at } => {
                    self.revoke(at, 1);
                    let base = Base::Regular(regular);
                    self.blocks.insert(at, Plan { base, patches: SmallVec::new() });
                    regular += BLOCK_SIZE as u64;
                }
                Tag::Void(void) => {
                    self.revoke(void.at, void.count);
                    self.voids.push(void);
                }
            }
        }
    }

    /// Drops the plans of a run of blocks.
    fn revoke(&mut self, at: A, count: u64) {
        let Some(end) = at.plus(count) else { return };
        let gone: SmallVec<[A; 4]> = self.blocks.range(at..end).map(|(at, _)| *at).collect();
        for at in gone {
            if let Some(plan) = self.blocks.remove(&at) {
                self.revoked += plan.patches.len() as u64;
                self.revoked += u64::from(matches!(plan.base, Base::Regular(_)));
            }
        }
    }
}

impl<A: Address> Journal<A> {
    /// Reads a regular block that is the base of a [`Plan`].
    ///
    /// # Errors
    /// The device's.
    pub async fn read_block(&self, offset: u64) -> Result<Bytes, JournalError> {
        let superblock = self.writing.lock().await.clone();
        let mut reader = Reader { device: &self.device, superblock: &superblock, buffer: None };
        reader.direct(offset, BLOCK_SIZE as u64).await
    }
}

/// Result of looking for a transaction at an offset.
pub(super) enum Scanned<A> {
    Whole(Found<A>, CommitRecord, u64),
    /// No whole transaction; its length, if one seems to have begun.
    Damaged(Option<u64>),
}

/// Reads the ring with read-ahead.
pub(super) struct Reader<'a> {
    pub(super) device: &'a DeviceRef,
    pub(super) superblock: &'a Superblock,
    /// An offset, and the bytes from it on.
    pub(super) buffer: Option<(u64, Bytes)>,
}

impl Reader<'_> {
    /// Reads bytes of the ring, across its end if needed.
    async fn direct(&mut self, offset: u64, len: u64) -> Result<Bytes, JournalError> {
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

    /// The commit record at an offset, if it is one of this epoch and its transaction fits; with
    /// the lengths of head and transaction.
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
        let len = head + u64::from(commit.regular.get()) * BLOCK_SIZE as u64;
        Ok((len <= room).then_some((commit, head, len)))
    }

    /// Reads the transaction with a number at an offset.
    pub(super) async fn transaction<A: Address>(
        &mut self,
        offset: u64,
        sequence: u64,
        room: u64,
    ) -> Result<Scanned<A>, JournalError> {
        let Some((commit, head, len)) = self.commit(offset, room).await? else {
            return Ok(Scanned::Damaged(None));
        };
        if commit.sequence.get() != sequence {
            // Left from an earlier round of the ring.
            return Ok(Scanned::Damaged(None));
        }
        let bytes = self.read(offset, len, room).await?;
        let (front, blocks) = bytes.split_at(head as usize);
        let mut sum = Checksum::new(front);
        blocks.chunks(BLOCK_SIZE).for_each(|block| sum.add(block));
        let tags = COMMIT..COMMIT + commit.tags.get() as usize;
        let multiwrite = tags.end..tags.end + commit.multiwrite.get() as usize;
        // A valid checksum over invalid tags: no crash leaves that, and it is never whole.
        let decoded = decode_tags::<A>(&front[tags]).filter(|tags| {
            let bytes = tags.iter().map(|tag| match tag {
                Tag::Bytes { len, .. } => *len,
                _ => 0,
            });
            let regular = tags.iter().filter(|tag| matches!(tag, Tag::Whole { .. })).count();
            bytes.sum::<usize>() == multiwrite.len() && regular == commit.regular.get() as usize
        });
        match decoded {
            Some(tags) if sum.value() == commit.checksum.get() => {
                // A slice would keep the large read buffer in memory.
                let multiwrite = Bytes::copy_from_slice(&front[multiwrite]);
                let found = Found { tags, multiwrite, regular: offset + head };
                Ok(Scanned::Whole(found, commit, len))
            }
            _ => Ok(Scanned::Damaged(Some(len))),
        }
    }

    /// Searches for a transaction behind an incomplete one of `len` bytes; the length may be
    /// unknown.
    pub(super) async fn later(
        &mut self,
        offset: u64,
        len: Option<u64>,
        sequence: u64,
        room: u64,
    ) -> Result<Option<u64>, JournalError> {
        let sector = u64::from(self.superblock.geography.sector);
        let (first, span) = match len {
            Some(len) => (len, AHEAD),
            None => (sector, SEARCHED),
        };
        for place in (first..room.min(first + span)).step_by(sector as usize) {
            if let Some((commit, ..)) = self.commit(offset + place, room - place).await?
                && commit.sequence.get() > sequence
            {
                return Ok(Some(commit.sequence.get()));
            }
        }
        Ok(None)
    }
}
