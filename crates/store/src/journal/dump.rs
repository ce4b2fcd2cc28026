//! What lies in a journal, for a person to read.

use serde::Serialize;
use uuid::Uuid;

use super::JournalError;
use super::address::Address;
use super::format::{COPIES, COPY, Superblock};
use super::record::{Tag, Void};
use super::recovery::{Reader, Scanned};
use crate::device::{DeviceRef, Purpose};

/// Everything that a journal holds and recovery would look at.
#[derive(Clone, Debug, Serialize)]
pub struct JournalDump<A> {
    /// The two copies of the superblock.
    pub superblocks: Vec<SuperblockDump>,
    /// Transactions, from the tail on.
    pub transactions: Vec<TransactionDump<A>>,
    /// What follows them.
    pub end: EndDump,
}

/// One copy of a journal's superblock.
#[derive(Clone, Debug, Serialize)]
pub struct SuperblockDump {
    /// Its place, in bytes from the start of the journal.
    pub offset: u64,
    /// Why it is none, if it is none.
    pub error: Option<String>,
    /// What it says.
    pub superblock: Option<SuperblockFields>,
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SuperblockFields {
    /// Higher in each one that is written.
    pub generation: u64,
    /// The journal's identity.
    pub id: Uuid,
    /// The volume that it belongs to.
    pub owner: Uuid,
    /// Bytes of the ring.
    pub size: u64,
    /// Bytes of a sector.
    pub sector: u32,
    /// No transaction of an earlier epoch counts.
    pub epoch: u64,
    /// Where recovery begins in the ring.
    pub tail_offset: u64,
    /// With which transaction.
    pub tail_sequence: u64,
    /// The stamp of the one before it.
    pub stamp: u64,
}

/// A transaction that is whole.
#[derive(Clone, Debug, Serialize)]
pub struct TransactionDump<A> {
    /// Its number.
    pub sequence: u64,
    /// Its place, in bytes from the start of the journal.
    pub offset: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// What the user made of it: for a volume, its last version.
    pub stamp: u64,
    /// Bytes in its multiwrite blocks.
    pub multiwrite: u32,
    /// Its regular blocks.
    pub regular: u32,
    /// What it says, one after the other.
    pub tags: Vec<TagDump<A>>,
}

/// One tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum TagDump<A> {
    /// Bytes of a block.
    Bytes {
        /// The block.
        block: A,
        /// The first byte.
        offset: usize,
        /// Their number.
        len: usize,
        /// The block held zeros before.
        fresh: bool,
    },
    /// A whole block.
    Whole {
        /// The block.
        block: A,
    },
    /// Earlier updates of a run of blocks are void.
    Void {
        /// The first block.
        block: A,
        /// Their number.
        count: u64,
        /// The user's note.
        note: u8,
    },
}

/// What follows the last transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndDump {
    /// There is no superblock that says where to begin.
    Unknown,
    /// Nothing of this epoch.
    Clean,
    /// A transaction that is not whole: it was never durable.
    Torn,
    /// A transaction that is not whole, and behind it this later one: it was durable once.
    Rotten {
        /// The later one.
        later: u64,
    },
}

/// Reads the journal that fills `device`.
///
/// # Errors
/// The device's. What is damaged is reported in the result.
pub async fn dump<A: Address>(device: &DeviceRef) -> Result<JournalDump<A>, JournalError> {
    let mut found =
        JournalDump { superblocks: Vec::new(), transactions: Vec::new(), end: EndDump::Unknown };
    let mut newest: Option<Superblock> = None;
    for copy in 0..COPIES {
        let bytes = device.read(copy * COPY, COPY as usize, Purpose::Journal).await?;
        let decoded = Superblock::decode(&bytes, device);
        found.superblocks.push(copy_dump(copy * COPY, &decoded));
        if let Ok(Some(superblock)) = decoded
            && newest.as_ref().is_none_or(|newest| superblock.generation > newest.generation)
        {
            newest = Some(superblock);
        }
    }
    if let Some(superblock) = newest {
        found.end = transactions(device, &superblock, &mut found.transactions).await?;
    }
    Ok(found)
}

fn copy_dump(offset: u64, decoded: &Result<Option<Superblock>, JournalError>) -> SuperblockDump {
    match decoded {
        Ok(Some(it)) => {
            let superblock = SuperblockFields {
                generation: it.generation,
                id: it.id,
                owner: it.owner,
                size: it.geography.size,
                sector: it.geography.sector,
                epoch: it.epoch,
                tail_offset: it.tail_offset,
                tail_sequence: it.tail_sequence,
                stamp: it.stamp,
            };
            SuperblockDump { offset, error: None, superblock: Some(superblock) }
        }
        Ok(None) => SuperblockDump {
            offset,
            error: Some("no superblock, or damaged".into()),
            superblock: None,
        },
        Err(error) => SuperblockDump { offset, error: Some(error.to_string()), superblock: None },
    }
}

/// Appends the transactions from the tail on to `found`; how they end.
async fn transactions<A: Address>(
    device: &DeviceRef,
    superblock: &Superblock,
    found: &mut Vec<TransactionDump<A>>,
) -> Result<EndDump, JournalError> {
    let mut reader = Reader { device, superblock, buffer: None };
    let (mut offset, mut sequence) = (superblock.tail_offset, superblock.tail_sequence);
    loop {
        let room = superblock.tail_offset + superblock.geography.size - offset;
        match reader.transaction::<A>(offset, sequence, room).await? {
            Scanned::Whole(transaction, commit, bytes) => {
                found.push(TransactionDump {
                    sequence,
                    offset: superblock.geography.place(offset),
                    bytes,
                    stamp: commit.stamp.get(),
                    multiwrite: commit.multiwrite.get(),
                    regular: commit.regular.get(),
                    tags: transaction.tags.iter().map(tag_dump).collect(),
                });
                offset += bytes;
                sequence += 1;
            }
            Scanned::Damaged(len) => {
                let later = reader.later(offset, len, sequence, room).await?;
                return Ok(match later {
                    Some(later) => EndDump::Rotten { later },
                    None if len.is_some() => EndDump::Torn,
                    None => EndDump::Clean,
                });
            }
        }
    }
}

fn tag_dump<A: Address>(tag: &Tag<A>) -> TagDump<A> {
    match *tag {
        Tag::Bytes { at, offset, len, fresh } => TagDump::Bytes { block: at, offset, len, fresh },
        Tag::Whole { at } => TagDump::Whole { block: at },
        Tag::Void(Void { at, count, note }) => TagDump::Void { block: at, count, note },
    }
}
