//! An opaque record, and its frame.

use bytes::Bytes;
use zerocopy::IntoBytes;

use super::place::SendPlace;
use crate::block::BLOCK_SIZE;
use crate::checksum::crc32c_of_both;
use crate::device::AlignedBuf;
use crate::journal::format::{BEHIND_KEPT, COMMIT, COMMIT_MAGIC, CommitRecord, Superblock};

/// A record to be appended. Only its user knows what it means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRecord {
    /// The user's stamp: recovery reports that of the last record.
    pub stamp: u64,
    /// What the body means, in the user's encoding.
    pub header: Vec<u8>,
    /// Strings of bytes, stored one after the other without gaps.
    pub body: Vec<Bytes>,
    /// Whole blocks.
    pub blocks: Vec<Bytes>,
}

/// A record in its frame.
#[derive(Debug)]
pub(super) struct Framed {
    pub(super) parts: Vec<Bytes>,
    pub(super) len: u64,
}

impl LogRecord {
    /// Bytes that the record takes in a log with sectors of this size.
    pub(super) fn framed_len(&self, sector: u32) -> u64 {
        let body: usize = self.body.iter().map(Bytes::len).sum();
        let head = (COMMIT + self.header.len() + body).next_multiple_of(sector as usize);
        (head + self.blocks.len() * BLOCK_SIZE) as u64
    }

    /// Puts the record into its frame, for a place in a log.
    pub(super) fn frame(&self, log: &Superblock, place: SendPlace) -> Framed {
        let body: usize = self.body.iter().map(Bytes::len).sum();
        let used = COMMIT + self.header.len() + body;
        let sector = log.geography.sector as usize;
        let mut head = AlignedBuf::zeroed(used.next_multiple_of(sector));
        let mut at = COMMIT;
        for bytes in std::iter::once(&self.header[..]).chain(self.body.iter().map(AsRef::as_ref)) {
            head[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        let behind_kept = if log.may_keep() { BEHIND_KEPT } else { 0 };
        let counts = self.blocks.len() as u32 | u32::from(place.in_flight) << 24;
        let mut commit = CommitRecord {
            magic: COMMIT_MAGIC,
            checksum: 0.into(),
            sequence: place.sequence.into(),
            stamp: self.stamp.into(),
            tag: log.tag().into(),
            tags: (self.header.len() as u32).into(),
            multiwrite: (body as u32).into(),
            regular: (counts | behind_kept).into(),
        };
        head[..COMMIT].copy_from_slice(commit.as_bytes());
        let mut sum = Checksum::new(&head);
        self.blocks.iter().for_each(|block| sum.add(block));
        commit.checksum = sum.value().into();
        head[..COMMIT].copy_from_slice(commit.as_bytes());
        let len = self.framed_len(log.geography.sector);
        let mut parts = Vec::with_capacity(1 + self.blocks.len());
        parts.push(head.freeze());
        parts.extend(self.blocks.iter().cloned());
        Framed { parts, len }
    }
}

/// The checksum of a record, computed part by part.
pub(super) struct Checksum(u32);

impl Checksum {
    /// Begins with the part up to the blocks.
    pub(super) fn new(head: &[u8]) -> Checksum {
        const AFTER: usize = 8;
        Checksum(crc32c_of_both(&[], head.get(AFTER..).unwrap_or(&[])))
    }

    /// Adds a block.
    pub(super) fn add(&mut self, block: &[u8]) {
        self.0 = crc32c_of_both(&self.0.to_le_bytes(), block);
    }

    pub(super) fn value(&self) -> u32 {
        self.0
    }
}
