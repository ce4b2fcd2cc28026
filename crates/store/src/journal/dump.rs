//! Dump of a journal for a person to read.

use serde::Serialize;
use uuid::Uuid;

use super::JournalError;
use super::address::Address;
use super::format::Superblock;
use super::log::{End, FoundRecord, Scan};
use super::record::{Tag, Void};
use super::recovery::Transaction;
use crate::copies;
pub use crate::copies::CopyDump;
use crate::device::DeviceRef;

/// Everything that recovery would look at.
#[derive(Clone, Debug, Serialize)]
pub struct JournalDump<A> {
    /// The two copies of the superblock.
    pub superblocks: Vec<CopyDump<Superblock>>,
    /// Transactions, from the tail on.
    pub transactions: Vec<TransactionDump<A>>,
    /// How the transactions end.
    pub end: EndDump,
}

/// A log of opaque records, as far as it can be read without its user.
#[derive(Clone, Debug, Serialize)]
pub struct LogDump {
    /// The two copies of the superblock.
    pub superblocks: Vec<CopyDump<Superblock>>,
    /// Records, from the tail on.
    pub records: Vec<RecordDump>,
    /// How the records end.
    pub end: EndDump,
}

/// A record that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecordDump {
    /// Its number.
    pub sequence: u64,
    /// Its place, in bytes from the start of the journal.
    pub offset: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// The epoch in which it was appended.
    pub epoch: u64,
    /// The user's stamp.
    pub stamp: u64,
    /// Bytes of its header.
    pub header: usize,
    /// Bytes of its body.
    pub body: usize,
    /// Its whole blocks.
    pub blocks: u32,
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
    /// The epoch in which it was appended.
    pub epoch: u64,
    /// The user's stamp: for a volume, its last version.
    pub stamp: u64,
    /// Bytes in its multiwrite blocks.
    pub multiwrite: u32,
    /// Its regular blocks.
    pub regular: u32,
    /// Its tags, in order.
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
        /// The block was empty before.
        fresh: bool,
    },
    /// A whole block.
    Whole {
        /// The block.
        block: A,
    },
    /// Earlier updates of a run of blocks are revoked.
    Void {
        /// The first block.
        block: A,
        /// Their number.
        count: u64,
        /// The user's note.
        note: u8,
    },
}

/// How the transactions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndDump {
    /// No superblock says where to begin.
    Unknown,
    /// Nothing of this epoch follows.
    Clean,
    /// An incomplete transaction, which was never durable.
    Torn,
    /// An incomplete transaction, which was durable once.
    Rotten {
        /// A later one that is present, or the last one that was kept by an opening.
        later: u64,
    },
}

impl From<End> for EndDump {
    fn from(end: End) -> EndDump {
        match end {
            End::Clean => EndDump::Clean,
            End::Torn => EndDump::Torn,
            End::Rotten { later, .. } => EndDump::Rotten { later },
        }
    }
}

/// The owner of the log that fills `device`, as far as a superblock says it.
///
/// # Errors
/// No superblock can be read.
pub async fn owner(device: &DeviceRef) -> Result<Uuid, JournalError> {
    Superblock::read(device).await.map(|superblock| superblock.owner)
}

/// Reads the log that fills `device`.
///
/// # Errors
/// The device's. Damage is reported in the result.
pub async fn dump_log(device: &DeviceRef) -> Result<LogDump, JournalError> {
    let (superblocks, newest) = copies::dump::<Superblock>(device).await;
    let mut found = LogDump { superblocks, records: Vec::new(), end: EndDump::Unknown };
    if let Some(superblock) = newest {
        let mut scan = Scan::new(device, &superblock);
        let geography = superblock.geography;
        let decode = |record: FoundRecord| {
            let FoundRecord { sequence, offset, bytes, epoch, stamp, blocks, .. } = record;
            let (header, body) = (record.header.len(), record.body.len());
            let offset = geography.place(offset);
            Some(RecordDump { sequence, offset, bytes, epoch, stamp, header, body, blocks })
        };
        found.end = loop {
            match scan.next(decode).await? {
                Ok(record) => found.records.push(record),
                Err(end) => break end.into(),
            }
        };
    }
    Ok(found)
}

/// Reads the journal that fills `device`.
///
/// # Errors
/// The device's. Damage is reported in the result.
pub async fn dump<A: Address>(device: &DeviceRef) -> Result<JournalDump<A>, JournalError> {
    let (superblocks, newest) = copies::dump::<Superblock>(device).await;
    let mut found = JournalDump { superblocks, transactions: Vec::new(), end: EndDump::Unknown };
    if let Some(superblock) = newest {
        found.end = transactions(device, &superblock, &mut found.transactions).await?;
    }
    Ok(found)
}

/// Appends the transactions from the tail on to `found`; returns how they end.
async fn transactions<A: Address>(
    device: &DeviceRef,
    superblock: &Superblock,
    found: &mut Vec<TransactionDump<A>>,
) -> Result<EndDump, JournalError> {
    let mut scan = Scan::new(device, superblock);
    let place = |offset| superblock.geography.place(offset);
    loop {
        let next = scan.next(|record| {
            let (sequence, offset) = (record.sequence, place(record.offset));
            let FoundRecord { bytes, epoch, stamp, blocks: regular, .. } = record;
            let multiwrite = record.body.len() as u32;
            let tags = Transaction::decode(record)?.tags.iter().map(tag_dump).collect();
            Some(TransactionDump {
                sequence,
                offset,
                bytes,
                epoch,
                stamp,
                multiwrite,
                regular,
                tags,
            })
        });
        match next.await? {
            Ok(transaction) => found.push(transaction),
            Err(end) => return Ok(end.into()),
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
