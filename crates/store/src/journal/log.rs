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
//! **Invariants.** Records follow one another in the ring, and each begins in a sector of its own. A record is
//! written when those before it are written, while the flush of a few of them may be under way, and says how many
//! these are ([`CommitRecord::in_flight`](super::format::CommitRecord::in_flight)). Appends end in order: a record is
//! acknowledged only when all before it are durable. So the first incomplete record ends the log, and what was in
//! flight with it may follow. If a record follows that was sent when the incomplete one was durable, the middle is
//! rotten, and opening reports that. Rot in the last records of a log cannot be told from an end.
//!
//! A log is first open for recovery ([`LogRecovery`]), which changes nothing on the device, so that it may be
//! interrupted and repeated; and then for appends ([`Log`]). [`Callers`] gathers the callers of a
//! commit, and [`Pace`] shares out the room in the ring among writers.
//!
//! **Epochs.** Each opening for appends begins an epoch, which its records name. [`LogRecovery::begin`] forgets what older
//! epochs have left; [`LogRecovery::keep`] lets the records stay, and appends go behind them. A crash may leave a whole
//! record behind an incomplete one that was in flight with it. The next epoch writes over the incomplete one, and must
//! never take the stale one for its successor. So the superblock has the number from which on only the current epoch
//! counts ([`Superblock::kept_before`](super::format::Superblock::kept_before)), and these hold:
//!
//! 1. Records before that number were whole when the log was opened, and were flushed before the superblock was written.
//!    So an incomplete one is rotten, whatever follows it.
//! 2. Their epochs do not fall from record to record, the first has the oldest epoch that the superblock names, and all are
//!    older than the current one.
//! 3. No record of an epoch is sent before both superblocks name the epoch. So a crash while the log is opened leaves it as
//!    it was, or opened with no record appended.
//! 4. The number does not fall, and is not below the tail's.
//! 5. A log that was opened so has format 3 for ever, which older programs refuse, and its further records say so too: from
//!    the ring alone ([`LogRecovery::open_lost`]) it cannot be told which older epochs count, and the log is refused.

mod callers;
mod pace;
mod place;
mod rebuild;
mod record;
mod recovery;
mod ring;
mod scan;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

pub use callers::Callers;
pub use pace::Pace;
pub use place::RecordPlace;
use place::SendPlace;
pub use rebuild::{Lost, Note};
pub use record::LogRecord;
pub use recovery::{LogRecovery, Scanned};
use recovery::{mend_place, read_place};
use ring::Ring;
pub(super) use scan::Scan;
pub use scan::{End, FoundRecord};

use super::JournalError;
use super::format::{Geography, MAX_REGULAR, Superblock};
use crate::copies;
use crate::device::{DeviceError, DeviceRef, Purpose};
use crate::lock::BriefMutex;

/// Maximum of appends that run at once: one is flushed while the next is written. A third would be written in less
/// time than the flush takes, and so gain nothing.
pub const MAX_IN_FLIGHT: usize = 2;

const _: () = assert!(MAX_IN_FLIGHT < 1 << 7, "a commit record has seven bits for it");

/// A record that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its number; numbers are consecutive.
    pub sequence: u64,
    /// Bytes that it takes in the log.
    pub bytes: u64,
    /// Where it lies, for [`Log::read`].
    pub place: RecordPlace,
}

/// A log that is open for appends.
pub struct Log {
    device: DeviceRef,
    id: Uuid,
    geography: Geography,
    /// Whether flushes are sent.
    barrier: bool,
    /// Admits appends, in order.
    in_flight: Semaphore,
    /// How many may run at once.
    most_in_flight: usize,
    /// Serialises writes, and holds the device's current superblock.
    writing: tokio::sync::Mutex<Superblock>,
    /// Notified when a record is durable, and when the log is poisoned.
    ended: Notify,
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

    fn new(
        device: DeviceRef,
        superblock: Superblock,
        barrier: bool,
        ring: Ring,
        in_flight: usize,
    ) -> Log {
        Log {
            device,
            in_flight: Semaphore::new(in_flight),
            most_in_flight: in_flight,
            ended: Notify::new(),
            id: superblock.id,
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
        // Appends under way end first. The semaphore is never closed.
        let _all = self.in_flight.acquire_many(self.most_in_flight as u32).await;
        let mut superblock = self.writing.lock().await;
        let tail = self.ring.lock().clear();
        // Records beyond the end carry the old epoch, and are ignored from now on.
        let next = superblock.cleared(tail);
        self.begin_epoch(&mut superblock, next).await
    }

    /// Begins an epoch behind the records that the ring has, which count on.
    async fn keep(&self) -> Result<(), JournalError> {
        let mut superblock = self.writing.lock().await;
        // What a scan has read may be in the device's cache alone.
        self.flush().await?;
        let (tail, next_sequence) = {
            let ring = self.ring.lock();
            (ring.tail(), ring.next_sequence())
        };
        let next = superblock.keeping(tail, next_sequence);
        self.begin_epoch(&mut superblock, next).await
    }

    /// Has both superblocks name a new epoch. No record is in flight.
    async fn begin_epoch(
        &self,
        superblock: &mut Superblock,
        next: Superblock,
    ) -> Result<(), JournalError> {
        // The device may name the new epoch although this fails, and then a record of the old one would not be found.
        let mut poisoning =
            Poisoning { log: self, armed: true, why: "a new epoch could not be begun" };
        self.persist(superblock, next).await?;
        self.ring.lock().begin_epoch(superblock.epoch);
        // The other copy too: should this one rot, a copy of the older epoch would hide later
        // records.
        let next = superblock.next(self.ring.lock().tail());
        self.persist(superblock, next).await?;
        poisoning.armed = false;
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

    /// Appends a record, which is durable when this returns, as are all before it. Concurrent appends are written in
    /// the order of their calls.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::TooLarge`]: nothing was written. A device's error
    /// poisons the log, which may then hold the record or not.
    pub async fn append(&self, record: &LogRecord) -> Result<Appended, JournalError> {
        // The semaphore is never closed.
        let _admitted = self.in_flight.acquire().await;
        let mut superblock = self.writing.lock().await;
        self.check_room(record)?;
        let place = self.ring.lock().place();
        let framed = record.frame(&superblock, place);
        let needed = framed.len;
        if place.offset + needed > superblock.tail_offset + self.geography.size {
            // The room is released; it may be overwritten once the superblock's tail is behind it.
            let tail = self.ring.lock().tail();
            let next = superblock.next(tail);
            self.persist(&mut superblock, next).await?;
        }
        let mut poisoning = Poisoning { log: self, armed: true, why: "a record was not written" };
        self.ring.lock().send(needed, record.stamp);
        match self.most_in_flight > 1 {
            false => self.send(place.offset, framed.parts).await?,
            true => {
                self.write(place.offset, framed.parts).await?;
                // The next record is written while this one is flushed.
                drop(superblock);
                self.flush().await?;
                self.wait_for(place.sequence).await?;
            }
        }
        poisoning.armed = false;
        self.ring.lock().sent();
        self.ended.notify_waiters();
        let SendPlace { offset, sequence, .. } = place;
        let place = RecordPlace { sequence, offset };
        Ok(Appended { sequence, bytes: needed, place })
    }

    /// Whether an append of this record would find room, while no other one is under way.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::TooLarge`], [`JournalError::Poisoned`]: those of the append.
    pub fn check_room(&self, record: &LogRecord) -> Result<(), JournalError> {
        self.check()?;
        let (needed, size) = (record.framed_len(self.geography.sector), self.geography.size);
        if needed > size || record.blocks.len() > MAX_REGULAR as usize {
            return Err(JournalError::TooLarge { needed, size });
        }
        if self.room() < needed + self.ring.lock().in_flight() {
            return Err(JournalError::Full { needed });
        }
        Ok(())
    }

    /// Reads a record again that was appended or kept, and is not released.
    ///
    /// # Errors
    /// [`JournalError::Released`], also if it is released meanwhile; [`JournalError::Damaged`]; the device's.
    pub async fn read(&self, place: RecordPlace) -> Result<FoundRecord, JournalError> {
        let find = || self.ring.lock().find(place);
        let log = (self.geography, self.id);
        let (found, is_missed) = read_place(&self.device, log, place, find).await?;
        if is_missed && let Err(error) = self.mend(place).await {
            let device = self.device.name();
            tracing::warn!(device, %error, "a damaged record of a journal was not repaired");
        }
        Ok(found)
    }

    /// Has every copy of a mirrored device hold a record again.
    async fn mend(&self, place: RecordPlace) -> Result<(), JournalError> {
        // No record is written over it meanwhile, if it is not released yet.
        let _writing = self.writing.lock().await;
        let Some(live) = self.ring.lock().find(place) else { return Ok(()) };
        mend_place(&self.device, (self.geography, self.id), place, live).await
    }

    /// Waits until all records before `sequence` are durable. The flush of a later record does not show that they
    /// are: a device reports a lost write once.
    async fn wait_for(&self, sequence: u64) -> Result<(), JournalError> {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            self.check()?;
            if self.next_sequence() == sequence {
                return Ok(());
            }
            ended.await;
        }
    }

    fn check(&self) -> Result<(), JournalError> {
        match self.poison.lock().clone() {
            Some(why) => Err(JournalError::Poisoned(why)),
            None => Ok(()),
        }
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
        let next = superblock.next(tail);
        Ok(self.persist(&mut superblock, next).await?)
    }

    /// The first record that a scan may find.
    pub fn first_scanned(&self) -> u64 {
        self.first_scanned.load(Ordering::Acquire)
    }

    /// Writes at an offset of the ring, durably if barriers are on.
    async fn send(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DeviceError> {
        let mut pieces = self.geography.split(offset, parts);
        if self.barrier
            && pieces.len() == 1
            && let Some((at, parts)) = pieces.pop()
        {
            return self.device.write_durably(at, parts, Purpose::Journal).await;
        }
        self.write_all(pieces).await?;
        self.flush().await
    }

    /// Writes at an offset of the ring.
    async fn write(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DeviceError> {
        self.write_all(self.geography.split(offset, parts)).await
    }

    async fn write_all(&self, pieces: Vec<(u64, Vec<Bytes>)>) -> Result<(), DeviceError> {
        let writes =
            pieces.into_iter().map(|(at, parts)| self.device.write(at, parts, Purpose::Journal));
        futures::future::try_join_all(writes).await.map(drop)
    }

    async fn flush(&self) -> Result<(), DeviceError> {
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
        self.flush().await?;
        self.first_scanned.store(next.tail_sequence, Ordering::Release);
        *superblock = next;
        Ok(())
    }
}

/// A change in flight. If it fails or is dropped, the device may hold any part of it.
struct Poisoning<'a> {
    log: &'a Log,
    armed: bool,
    why: &'static str,
}

impl Drop for Poisoning<'_> {
    fn drop(&mut self) {
        if self.armed {
            *self.log.poison.lock() = Some(self.why.into());
            self.log.ended.notify_waiters();
        }
    }
}
