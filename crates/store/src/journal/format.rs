//! The layout of a journal's device, byte for byte.
//!
//! ```text
//! 0        superblock          (512 bytes)
//! 4 KiB    superblock, a copy
//! 8 KiB    ring: transactions, each from a sector's beginning on; the ring wraps to 8 KiB
//! ```
//!
//! Of two superblocks the valid one with the higher generation counts. A transaction begins with a
//! [`CommitRecord`]. A *tag* is
//!
//! ```text
//! head      u8: kind in bits 0 and 1, then flags
//! address   of the user's type; missing with SAME
//! kind 0    bytes: offset, with SAME the distance from the end of the tag before; length - 1
//! kind 1    whole: nothing
//! kind 2    void: count - 1, note (u8)
//! ```
//!
//! with numbers in LEB128. Little endian.

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::JournalError;
use crate::checksum::crc32c;
use crate::copies::{self, Copied};
pub use crate::copies::{COPIES, COPY};
use crate::device::{DeviceRef, Geometry, Purpose};

/// Highest version of the structures here; readers refuse a higher one.
///
/// - 1: no transaction is sent before the one before it is durable;
/// - 2: a few may be in flight ([`CommitRecord::in_flight`]);
/// - 3: the log was opened with its records kept, so records of several epochs count ([`Superblock::kept_before`]).
pub const FORMAT_VERSION: u32 = 3;
/// The version of a journal in which a few transactions may be in flight.
pub const FORMAT_IN_FLIGHT: u32 = 2;
/// The version of a journal in which no transaction was sent before the one before it was durable.
pub const FORMAT_ONE_IN_FLIGHT: u32 = 1;
/// Maximum of epochs from the oldest record's to the current one: a log is opened so many times while a record stays.
pub const MAX_EPOCHS: u64 = 1 << 16;
/// Numbers in a superblock are lower, so that sums of a few do not overflow.
const LIMIT: u64 = 1 << 62;
/// Least size of a journal in bytes.
pub const MIN_SIZE: u64 = 256 << 10;
/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"THALWEGJ";
/// First bytes of a transaction.
pub const COMMIT_MAGIC: [u8; 4] = *b"TWjt";
/// Where the ring begins.
pub const RING: u64 = COPIES * COPY;

/// A tag's kind, in its head's low bits.
pub const KIND: u8 = 0b11;
/// Bytes of a block.
pub const KIND_BYTES: u8 = 0;
/// A whole block.
pub const KIND_WHOLE: u8 = 1;
/// Earlier updates of a run of blocks are revoked.
pub const KIND_VOID: u8 = 2;
/// The tag is about the same block as the one before.
pub const SAME: u8 = 1 << 2;
/// The block was empty before.
pub const FRESH: u8 = 1 << 3;

/// The first bytes of a transaction.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommitRecord {
    /// [`COMMIT_MAGIC`].
    pub magic: [u8; 4],
    /// CRC-32C of the bytes from behind this field to the regular blocks; then, for each regular
    /// block, of the checksum so far and the block.
    pub checksum: U32,
    /// The transaction's number.
    pub sequence: U64,
    /// The user's stamp: for a block store, its last version.
    pub stamp: U64,
    /// Identifies the journal and its epoch: see [`Superblock::tag`].
    pub tag: U32,
    /// Bytes of tags.
    pub tags: U32,
    /// Bytes in multiwrite blocks.
    pub multiwrite: U32,
    /// Regular blocks, in the low 24 bits. Then, in 7 bits, how many transactions just before this one were not known
    /// to be durable when it was sent; 0 in format 1. The highest bit is [`BEHIND_KEPT`].
    pub regular: U32,
}

/// Maximum of regular blocks of a transaction.
pub const MAX_REGULAR: u32 = (1 << 24) - 1;
/// In [`CommitRecord::regular`]: the journal has format 3, so records of older epochs may count too.
pub const BEHIND_KEPT: u32 = 1 << 31;

impl CommitRecord {
    /// The number of regular blocks.
    pub fn regular_blocks(&self) -> u32 {
        self.regular.get() & MAX_REGULAR
    }

    /// How many transactions just before this one were not known to be durable when it was sent.
    pub fn in_flight(&self) -> u64 {
        u64::from((self.regular.get() & !BEHIND_KEPT) >> 24)
    }

    /// Whether records of older epochs may count too.
    pub fn is_behind_kept(&self) -> bool {
        self.regular.get() & BEHIND_KEPT != 0
    }
}

/// Bytes of a [`CommitRecord`].
pub const COMMIT: usize = size_of::<CommitRecord>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StoredSuperblock {
    magic: [u8; 8],
    format: U32,
    checksum: U32,
    generation: U64,
    id: [u8; 16],
    owner: [u8; 16],
    size: U64,
    sector: U32,
    spare: U32,
    epoch: U64,
    tail_offset: U64,
    tail_sequence: U64,
    stamp: U64,
    /// From format 3 on; zero before.
    oldest_epoch: U64,
    /// From format 3 on; zero before.
    kept_before: U64,
    reserved: [u8; 392],
}

const _: () = {
    assert!(COMMIT == 40);
    assert!(size_of::<StoredSuperblock>() == 512);
};

/// Where recovery would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// Where the oldest transaction begins.
    pub(super) offset: u64,
    /// Its number.
    pub(super) sequence: u64,
    /// Its epoch.
    pub(super) epoch: u64,
    /// The stamp of the one before it.
    pub(super) stamp: u64,
}

/// The location of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Geography {
    /// Bytes of the ring.
    pub size: u64,
    /// Bytes of a sector.
    pub sector: u32,
}

impl Geography {
    /// The ring of a journal that fills a device.
    pub(super) fn of(geometry: Geometry) -> Result<Geography, JournalError> {
        let Geometry { size, sector } = geometry;
        if size < MIN_SIZE || u64::from(sector) > COPY {
            let why = format!("{size} bytes in sectors of {sector} are too small");
            return Err(JournalError::Invalid(why));
        }
        Ok(Geography { size: (size - RING) / u64::from(sector) * u64::from(sector), sector })
    }

    /// Whether a device has room for it.
    fn check(&self, device: &DeviceRef) -> Result<(), JournalError> {
        let geometry = device.geometry();
        if self.sector < geometry.sector
            || !self.sector.is_power_of_two()
            || u64::from(self.sector) > COPY
            || !self.size.is_multiple_of(u64::from(self.sector))
            || self.size < MIN_SIZE - RING
            || self.size > geometry.size.saturating_sub(RING)
        {
            let why = format!(
                "{} has {} bytes in sectors of {}, the journal has {} in sectors of {}",
                device.name(),
                geometry.size,
                geometry.sector,
                self.size,
                self.sector
            );
            return Err(JournalError::Invalid(why));
        }
        Ok(())
    }

    /// The device's byte of an offset.
    pub(super) fn place(&self, offset: u64) -> u64 {
        RING + offset % self.size
    }

    /// Bytes from an offset to the end of the ring.
    pub(super) fn until_end(&self, offset: u64) -> u64 {
        self.size - offset % self.size
    }

    /// Splits a run of bytes into writes: a run that crosses the ring's end continues at its
    /// beginning.
    pub(super) fn split(&self, offset: u64, parts: Vec<Bytes>) -> Vec<(u64, Vec<Bytes>)> {
        let mut left = self.until_end(offset);
        let mut pieces = vec![(self.place(offset), Vec::with_capacity(parts.len()))];
        for mut part in parts {
            if part.len() as u64 > left {
                let rest = part.split_off(left as usize);
                let end = std::mem::replace(&mut part, rest);
                if let Some((_, last)) = pieces.last_mut().filter(|_| !end.is_empty()) {
                    last.push(end);
                }
                pieces.push((RING, Vec::new()));
                left = self.size;
            }
            left -= part.len() as u64;
            if let Some((_, last)) = pieces.last_mut() {
                last.push(part);
            }
        }
        pieces.retain(|(_, parts)| !parts.is_empty());
        pieces
    }
}

/// The tag in transactions of a journal and epoch. Epochs that differ in their low 32 bits only have different tags.
pub(super) fn tag_of(id: Uuid, epoch: u64) -> u32 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(id.as_bytes());
    bytes[16..].copy_from_slice(&epoch.to_le_bytes());
    crc32c(&bytes)
}

/// The superblock of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superblock {
    /// The version of its format.
    pub format: u32,
    /// Higher in each one that is written.
    pub generation: u64,
    /// The journal's identity.
    pub id: Uuid,
    /// The volume that it belongs to.
    pub owner: Uuid,
    /// The location of its ring.
    #[serde(flatten)]
    pub geography: Geography,
    /// Higher after each recovery: transactions of an earlier epoch count only if they were kept.
    pub epoch: u64,
    /// Where recovery begins: the offset of a transaction, or of the next one.
    pub tail_offset: u64,
    /// The number of that transaction.
    pub tail_sequence: u64,
    /// The stamp of the transaction before it.
    pub stamp: u64,
    /// The epoch of the oldest transaction that counts.
    pub oldest_epoch: u64,
    /// Transactions before this number were kept by the last opening: they were durable before the current epoch began,
    /// and theirs are older. From this number on only the current epoch counts.
    pub kept_before: u64,
}

impl Superblock {
    pub(super) fn new(id: Uuid, owner: Uuid, geography: Geography) -> Superblock {
        Superblock {
            format: FORMAT_ONE_IN_FLIGHT,
            generation: 1,
            id,
            owner,
            geography,
            epoch: 1,
            tail_offset: 0,
            tail_sequence: 1,
            stamp: 0,
            oldest_epoch: 1,
            kept_before: 1,
        }
    }

    /// The next superblock, with another tail.
    pub(super) fn next(&self, tail: Tail) -> Superblock {
        Superblock {
            generation: self.generation + 1,
            tail_offset: tail.offset,
            tail_sequence: tail.sequence,
            stamp: tail.stamp,
            oldest_epoch: tail.epoch,
            kept_before: self.kept_before.max(tail.sequence),
            ..self.clone()
        }
    }

    /// The next superblock, with a new epoch and an empty journal: `tail` is where its next transaction begins.
    pub(super) fn cleared(&self, tail: Tail) -> Superblock {
        let epoch = self.epoch + 1;
        Superblock { epoch, ..self.next(Tail { epoch, ..tail }) }
    }

    /// The next superblock, with a new epoch behind transactions that stay: the next one is `next_sequence`.
    pub(super) fn keeping(&self, tail: Tail, next_sequence: u64) -> Superblock {
        let (format, epoch, kept_before) = (FORMAT_VERSION, self.epoch + 1, next_sequence);
        let oldest_epoch = if tail.sequence < next_sequence { tail.epoch } else { epoch };
        Superblock { format, epoch, oldest_epoch, kept_before, ..self.next(tail) }
    }

    /// Whether an older program would refuse the journal: it has been opened with records kept.
    pub fn may_keep(&self) -> bool {
        self.format >= FORMAT_VERSION
    }

    /// The tag in transactions of this journal and epoch.
    pub fn tag(&self) -> u32 {
        tag_of(self.id, self.epoch)
    }

    /// What of it no journal can have.
    fn fault(&self) -> Option<&'static str> {
        let numbers =
            [self.generation, self.epoch, self.tail_offset, self.tail_sequence, self.kept_before];
        let has_kept = self.kept_before > self.tail_sequence;
        match () {
            () if numbers.into_iter().any(|number| number >= LIMIT) => {
                Some("numbers are too high for a journal")
            }
            () if !self.tail_offset.is_multiple_of(u64::from(self.geography.sector)) => {
                Some("tail is not where a sector begins")
            }
            () if self.oldest_epoch > self.epoch || self.epoch - self.oldest_epoch > MAX_EPOCHS => {
                Some("oldest epoch does not go with its current one")
            }
            () if self.kept_before < self.tail_sequence
                || has_kept != (self.oldest_epoch < self.epoch) =>
            {
                Some("kept records do not go with its epochs")
            }
            () => None,
        }
    }

    /// Reads the current superblock.
    pub(super) async fn read(device: &DeviceRef) -> Result<Superblock, JournalError> {
        let found = match device.geometry().size >= MIN_SIZE {
            true => copies::read(device).await?,
            false => None,
        };
        found.ok_or_else(|| JournalError::NoJournal { device: device.name() })
    }
}

impl Copied for Superblock {
    type Error = JournalError;

    const PURPOSE: Purpose = Purpose::Journal;

    fn generation(&self) -> u64 {
        self.generation
    }

    fn sector(&self) -> u32 {
        self.geography.sector
    }

    fn encode(&self) -> [u8; copies::LEN] {
        assert_eq!(self.fault(), None, "a superblock that no opening would take is not written");
        let mut stored = StoredSuperblock {
            magic: SUPERBLOCK_MAGIC,
            format: self.format.into(),
            generation: self.generation.into(),
            id: self.id.into_bytes(),
            owner: self.owner.into_bytes(),
            size: self.geography.size.into(),
            sector: self.geography.sector.into(),
            epoch: self.epoch.into(),
            tail_offset: self.tail_offset.into(),
            tail_sequence: self.tail_sequence.into(),
            stamp: self.stamp.into(),
            ..StoredSuperblock::new_zeroed()
        };
        if self.may_keep() {
            stored.oldest_epoch = self.oldest_epoch.into();
            stored.kept_before = self.kept_before.into();
        }
        stored.checksum = crc32c(stored.as_bytes()).into();
        zerocopy::transmute!(stored)
    }

    fn decode(bytes: &[u8], device: &DeviceRef) -> Result<Option<Superblock>, JournalError> {
        let Ok((mut stored, _)) = StoredSuperblock::read_from_prefix(bytes) else {
            return Ok(None);
        };
        if stored.magic != SUPERBLOCK_MAGIC {
            return Ok(None);
        }
        let checksum = std::mem::take(&mut stored.checksum);
        if checksum.get() != crc32c(stored.as_bytes()) {
            return Ok(None);
        }
        if stored.format.get() > FORMAT_VERSION {
            let (device, format) = (device.name(), stored.format.get());
            return Err(JournalError::Newer { device, format });
        }
        let geography = Geography { size: stored.size.get(), sector: stored.sector.get() };
        geography.check(device)?;
        let (epoch, tail_sequence) = (stored.epoch.get(), stored.tail_sequence.get());
        let may_keep = stored.format.get() >= FORMAT_VERSION;
        let kept = (stored.oldest_epoch.get(), stored.kept_before.get());
        let (oldest_epoch, kept_before) = if may_keep { kept } else { (epoch, tail_sequence) };
        let found = Superblock {
            format: stored.format.get(),
            generation: stored.generation.get(),
            id: Uuid::from_bytes(stored.id),
            owner: Uuid::from_bytes(stored.owner),
            geography,
            epoch,
            tail_offset: stored.tail_offset.get(),
            tail_sequence,
            stamp: stored.stamp.get(),
            oldest_epoch,
            kept_before,
        };
        match found.fault() {
            None => Ok(Some(found)),
            Some(why) => {
                Err(JournalError::Invalid(format!("{}: the superblock's {why}", device.name())))
            }
        }
    }
}
