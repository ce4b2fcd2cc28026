//! A log of opaque records in a ring on a device: append, scan, release.
//!
//! ```text
//! frame     identity, number, lengths, and a checksum over all of it
//! header    what the body means, in the user's encoding
//! body      strings of bytes, without gaps; zeros up to the sector's end
//! blocks    whole blocks
//! ```
//!
//! The parts are sent together and made durable by one flush. The frame can stand first because its checksum,
//! not its place, proves that the rest is present. So a lone small record takes one sector and one flush.
//!
//! **Invariants.** Records follow one another in the ring, each begins in a sector of its own, and no record is
//! sent before the one before it is durable. So the first incomplete record ends the log. If another follows it,
//! the middle is rotten, and opening reports that.
//!
//! A log is first open for recovery ([`LogRecovery`]), which changes nothing on the device, so that it may be
//! interrupted and repeated; and then for appends ([`Log`]). [`Callers`] gathers the callers of a
//! commit, and [`Pace`] shares out the room in the ring among writers.

mod callers;
mod pace;
mod rebuild;
mod record;
mod recovery;
mod ring;
mod scan;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use uuid::Uuid;

pub use callers::Callers;
pub use pace::Pace;
pub use rebuild::{Lost, Note};
pub use record::LogRecord;
pub use recovery::{LogRecovery, Scanned};
use ring::Ring;
pub(super) use scan::Scan;
pub use scan::{End, FoundRecord};

use super::JournalError;
use super::format::{Geography, Superblock};
use crate::copies;
use crate::device::{DeviceError, DeviceRef, Purpose};
use crate::lock::BriefMutex;

/// A record that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its number; numbers are consecutive.
    pub sequence: u64,
    /// Bytes that it takes in the log.
    pub bytes: u64,
}

/// A log that is open for appends.
pub struct Log {
    device: DeviceRef,
    geography: Geography,
    /// Whether flushes are sent.
    barrier: bool,
    /// Serialises appends, and holds the device's current superblock.
    writing: tokio::sync::Mutex<Superblock>,
    /// `tail_sequence` of the superblock, readable without waiting for an append.
    first_scanned: AtomicU64,
    ring: BriefMutex<Ring>,
    poison: Mutex<Option<Arc<str>>>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Log {
    /// Makes an empty log that fills `device`, for `owner`. All content of the device is lost. The note is for
    /// [`LogRecovery::open_lost`].
    ///
    /// # Errors
    /// [`JournalError::Invalid`] for a device that is too small; the device's.
    pub async fn create(device: &DeviceRef, id: Uuid, owner: Uuid) -> Result<Note, JournalError> {
        let geography = Geography::of(device.geometry())?;
        let superblock = Superblock::new(id, owner, geography);
        copies::write_all(&superblock, device).await?;
        device.flush(Purpose::Journal).await?;
        let Superblock { epoch, tail_sequence: first, .. } = superblock;
        Ok(Note { epoch, first, size: geography.size })
    }

    fn new(device: DeviceRef, superblock: Superblock, barrier: bool, ring: Ring) -> Log {
        Log {
            device,
            geography: superblock.geography,
            barrier,
            first_scanned: AtomicU64::new(superblock.tail_sequence),
            writing: tokio::sync::Mutex::new(superblock),
            ring: BriefMutex::new(ring),
            poison: Mutex::default(),
        }
    }

    /// What the user should note durably before the next [`Log::clear`], for [`LogRecovery::open_lost`].
    pub async fn note_after_clear(&self) -> Note {
        let epoch = self.writing.lock().await.epoch + 1;
        Note { epoch, first: self.next_sequence(), size: self.geography.size }
    }

    /// Forgets every record: the user has made their changes durable in place.
    ///
    /// # Errors
    /// The device's.
    pub async fn clear(&self) -> Result<(), JournalError> {
        let mut superblock = self.writing.lock().await;
        let tail = self.ring.lock().clear();
        // Records beyond the end carry the old epoch, and are ignored from now on.
        let next = superblock.next(tail, true);
        self.persist(&mut superblock, next).await?;
        // The other copy too: should this one rot, a copy of the older epoch would hide later
        // records.
        let next = superblock.next(tail, false);
        self.persist(&mut superblock, next).await?;
        Ok(())
    }

    /// Bytes that further records may take before one is released.
    pub fn room(&self) -> u64 {
        self.geography.size - self.ring.lock().used()
    }

    /// Bytes that were released since the log was created.
    pub fn released(&self) -> u64 {
        self.ring.lock().tail().offset
    }

    /// Bytes of the ring.
    pub fn size(&self) -> u64 {
        self.geography.size
    }

    /// The number of the next record.
    pub fn next_sequence(&self) -> u64 {
        self.ring.lock().next_sequence()
    }

    /// The log's device.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// Appends a record, which is durable when this returns. Concurrent appends run one after the other.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::TooLarge`]: nothing was written. A device's error
    /// poisons the log, which may then hold the record or not.
    pub async fn append(&self, record: &LogRecord) -> Result<Appended, JournalError> {
        let mut superblock = self.writing.lock().await;
        if let Some(why) = self.poison.lock().clone() {
            return Err(JournalError::Poisoned(why));
        }
        let sequence = self.ring.lock().next_sequence();
        let framed = record.frame(&superblock, sequence);
        let needed = framed.len;
        if needed > self.geography.size {
            return Err(JournalError::TooLarge { needed, size: self.geography.size });
        }
        if self.room() < needed {
            return Err(JournalError::Full { needed });
        }
        let offset = self.ring.lock().head();
        if offset + needed > superblock.tail_offset + self.geography.size {
            // The room is released; it may be overwritten once the superblock's tail is behind it.
            let tail = self.ring.lock().tail();
            let next = superblock.next(tail, false);
            self.persist(&mut superblock, next).await?;
        }
        let mut poisoning = Poisoning { log: self, armed: true };
        self.send(offset, framed.parts).await?;
        poisoning.armed = false;
        self.ring.lock().push(needed, record.stamp);
        Ok(Appended { sequence, bytes: needed })
    }

    /// Releases records before `sequence`: the user has made their changes durable in place. A scan may find them
    /// all the same, until their room is needed or [`Log::forget`] is called.
    pub fn release(&self, sequence: u64) {
        self.ring.lock().release(sequence);
    }

    /// Writes the tail to the superblock, so that a scan finds no released record.
    ///
    /// # Errors
    /// The device's.
    pub async fn forget(&self) -> Result<(), JournalError> {
        let mut superblock = self.writing.lock().await;
        let tail = self.ring.lock().tail();
        if tail.sequence == superblock.tail_sequence {
            return Ok(());
        }
        let next = superblock.next(tail, false);
        Ok(self.persist(&mut superblock, next).await?)
    }

    /// The first record that a scan may find.
    pub fn first_scanned(&self) -> u64 {
        self.first_scanned.load(Ordering::Acquire)
    }

    /// Writes at an offset of the ring, durably if barriers are on.
    async fn send(&self, offset: u64, parts: Vec<bytes::Bytes>) -> Result<(), DeviceError> {
        let mut pieces = self.geography.split(offset, parts);
        if self.barrier
            && pieces.len() == 1
            && let Some((at, parts)) = pieces.pop()
        {
            return self.device.write_durably(at, parts, Purpose::Journal).await;
        }
        let writes =
            pieces.into_iter().map(|(at, parts)| self.device.write(at, parts, Purpose::Journal));
        futures::future::try_join_all(writes).await?;
        match self.barrier {
            true => self.device.flush(Purpose::Journal).await,
            false => Ok(()),
        }
    }

    async fn persist(
        &self,
        superblock: &mut Superblock,
        next: Superblock,
    ) -> Result<(), DeviceError> {
        copies::write(&next, &self.device).await?;
        if self.barrier {
            self.device.flush(Purpose::Journal).await?;
        }
        self.first_scanned.store(next.tail_sequence, Ordering::Release);
        *superblock = next;
        Ok(())
    }
}

/// An append in flight. If it fails or is dropped, the device may hold any part of it.
struct Poisoning<'a> {
    log: &'a Log,
    armed: bool,
}

impl Drop for Poisoning<'_> {
    fn drop(&mut self) {
        if self.armed {
            *self.log.poison.lock() = Some("a record was not written".into());
        }
    }
}
