//! A log that is open for recovery: it can be read, and nothing can be appended.

use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use uuid::Uuid;

use super::rebuild::{self, Lost, Note, Rebuilt};
use super::ring::Ring;
use super::scan::{End, FoundRecord, Reader, Scan};
use super::{Log, MAX_IN_FLIGHT};
use crate::block::BLOCK_SIZE;
use crate::device::DeviceRef;
use crate::journal::JournalError;
use crate::journal::format::{FORMAT_ONE_IN_FLIGHT, FORMAT_VERSION, Superblock};

/// A log that is open for recovery. [`LogRecovery::begin`] opens it for appends.
#[derive(Debug)]
pub struct LogRecovery {
    device: DeviceRef,
    superblock: Superblock,
    barrier: bool,
    /// Where the records end.
    end_offset: u64,
    /// The number of the next record.
    next_sequence: u64,
    /// The stamp of the last record.
    stamp: u64,
    /// The epoch before the next one.
    last_epoch: u64,
}

/// The records of a log that were not released.
#[derive(Clone, Debug)]
pub struct Scanned<T> {
    /// The records, oldest first.
    pub records: Vec<T>,
    /// Bytes that they take in the log.
    pub bytes: u64,
    /// The stamp of the last record, released or not; 0 when there was none.
    pub stamp: u64,
    /// How the log ends.
    pub end: End,
    /// How long the scan took.
    pub took: Duration,
}

impl LogRecovery {
    /// Opens the log of `owner`, and reads its records as `decode` understands them; one that it refuses is
    /// damaged. Flushes are sent if `barrier`.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`]; the device's.
    /// A rotten middle is no error here: see [`Scanned::end`].
    pub async fn open<T>(
        env: &Env,
        device: DeviceRef,
        owner: Uuid,
        barrier: bool,
        decode: impl Fn(FoundRecord) -> Option<T> + Sync,
    ) -> Result<(LogRecovery, Scanned<T>), JournalError> {
        let superblock = Superblock::read(&device).await?;
        if superblock.owner != owner {
            let device = device.name();
            return Err(JournalError::Foreign { device, found: superblock.owner, expected: owner });
        }
        LogRecovery::scan(env, device, superblock, barrier, decode).await
    }

    /// Opens a log whose superblocks are both lost: as [`LogRecovery::open`], with the records found in its
    /// ring, and how many are missing before those. Missing records were durable, and may have been released.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`] when nothing shows that the log is on this device; the device's.
    pub async fn open_lost<T>(
        env: &Env,
        device: DeviceRef,
        lost: &Lost,
        barrier: bool,
        decode: impl Fn(FoundRecord) -> Option<T> + Sync,
    ) -> Result<(LogRecovery, Scanned<T>, u64), JournalError> {
        let Rebuilt { superblock, missing } =
            rebuild::find(&device, lost, &|record| decode(record).is_some()).await?;
        let (mut log, scanned) =
            LogRecovery::scan(env, device, superblock, barrier, decode).await?;
        // No epoch is used twice, not even one without records.
        log.last_epoch = log.last_epoch.max(lost.last_epoch).max(lost.note.epoch);
        Ok((log, scanned, missing))
    }

    async fn scan<T>(
        env: &Env,
        device: DeviceRef,
        superblock: Superblock,
        barrier: bool,
        decode: impl Fn(FoundRecord) -> Option<T> + Sync,
    ) -> Result<(LogRecovery, Scanned<T>), JournalError> {
        let begun = env.now();
        let mut scan = Scan::new(&device, &superblock);
        let mut records = Vec::new();
        let end = loop {
            match scan.next(&decode).await? {
                Ok(record) => records.push(record),
                Err(end) => break end,
            }
        };
        let Scan { offset: end_offset, sequence: next_sequence, stamp, .. } = scan;
        let bytes = end_offset - superblock.tail_offset;
        let took = env.now().since(begun);
        let last_epoch = superblock.epoch;
        let log = LogRecovery {
            device,
            superblock,
            barrier,
            end_offset,
            next_sequence,
            stamp,
            last_epoch,
        };
        Ok((log, Scanned { records, bytes, stamp, end, took }))
    }

    /// Reads a whole block of a record.
    ///
    /// # Errors
    /// The device's.
    pub async fn read_block(&self, offset: u64) -> Result<Bytes, JournalError> {
        Reader::new(&self.device, &self.superblock).direct(offset, BLOCK_SIZE as u64).await
    }

    /// The log's device.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// What the user should note durably before [`LogRecovery::begin`], for [`LogRecovery::open_lost`].
    pub fn note(&self) -> Note {
        let size = self.superblock.geography.size;
        Note { epoch: self.last_epoch + 1, first: self.next_sequence, size }
    }

    /// Forgets every record, and opens the log for appends: the user has made their changes durable in place. Up to
    /// `in_flight` appends run at once, at most [`MAX_IN_FLIGHT`]; with more than one, programs that know only format
    /// 1 cannot open the log any more.
    ///
    /// # Errors
    /// The device's.
    pub async fn begin(self, in_flight: usize) -> Result<Log, JournalError> {
        let ring = Ring::new(self.end_offset, self.next_sequence, self.stamp);
        let in_flight = in_flight.clamp(1, MAX_IN_FLIGHT);
        let format = self.superblock.format.max(match in_flight {
            1 => FORMAT_ONE_IN_FLIGHT,
            _ => FORMAT_VERSION,
        });
        let superblock = Superblock { epoch: self.last_epoch, format, ..self.superblock };
        let log = Log::new(self.device, superblock, self.barrier, ring, in_flight);
        log.clear().await?;
        Ok(log)
    }
}
