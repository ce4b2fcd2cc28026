//! A log that is open for recovery: it can be read, and nothing can be appended.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use uuid::Uuid;

use super::place::{MissedRecord, RecordPlace};
use super::rebuild::{self, Lost, Note, Rebuilt};
use super::ring::{LiveExtent, Ring};
use super::scan::{End, ExpectedRecord, FoundRecord, Looked, Reader, Scan};
use super::{Log, MAX_IN_FLIGHT};
use crate::block::BLOCK_SIZE;
use crate::copies;
use crate::device::{DeviceRef, Purpose};
use crate::journal::JournalError;
use crate::journal::format::{
    FORMAT_IN_FLIGHT, FORMAT_ONE_IN_FLIGHT, Geography, MAX_EPOCHS, Superblock,
};

/// A log that is open for recovery. [`LogRecovery::begin`] and [`LogRecovery::keep`] open it for appends.
#[derive(Debug)]
pub struct LogRecovery {
    device: DeviceRef,
    superblock: Superblock,
    barrier: bool,
    /// The records that were found.
    ring: Ring,
    end: End,
    /// The epoch before the next one.
    last_epoch: u64,
    /// Records that were found on one copy of the device's bytes, and not on another.
    missed: Vec<MissedRecord>,
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
    /// [`JournalError::NoJournal`] when nothing shows that the log is on this device; [`JournalError::Invalid`] of a log that
    /// was opened by [`LogRecovery::keep`]; the device's.
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
        let (mut records, mut live) = (Vec::new(), VecDeque::new());
        let end = loop {
            match scan.next(&decode).await? {
                Ok(record) => records.push(record),
                Err(end) => break end,
            }
            live.extend(scan.last());
        };
        let (offset, stamp, last_epoch) = (scan.offset, scan.stamp(), superblock.epoch);
        let bytes = offset - superblock.tail_offset;
        let took = env.now().since(begun);
        let missed = scan.take_missed();
        let ring = Ring::new(live, (offset, scan.sequence), superblock.stamp, last_epoch);
        let log = LogRecovery { device, superblock, barrier, ring, end, last_epoch, missed };
        Ok((log, Scanned { records, bytes, stamp, end, took }))
    }

    /// Has every copy of a mirrored device hold what the opening has found, durably: after a crash one may lack the last record, which
    /// was never acknowledged, and one may be damaged. To be called before something rests on what was found: a later opening may have
    /// to do without one of the copies. May be interrupted and repeated.
    ///
    /// # Errors
    /// The device's.
    pub async fn settle(&self) -> Result<(), JournalError> {
        if copies::readable_copies(&self.device).len() < 2 {
            return Ok(());
        }
        // To its own place: where it is already, nothing changes.
        copies::write(&self.superblock, &self.device).await?;
        for missed in &self.missed {
            missed.mend(&self.device, self.superblock.geography).await?;
        }
        if !self.missed.is_empty() {
            let (device, records) = (self.device.name(), self.missed.len());
            tracing::warn!(
                device,
                records,
                "records of a journal were on one of its devices alone"
            );
        }
        Ok(self.device.flush(Purpose::Journal).await?)
    }

    /// Reads a record again that the opening has found. So `decode` need keep no more of it than its place.
    ///
    /// # Errors
    /// [`JournalError::Released`] for a record that was not found; [`JournalError::Damaged`]; the device's.
    pub async fn read(&self, place: RecordPlace) -> Result<FoundRecord, JournalError> {
        let Superblock { geography, id, .. } = self.superblock;
        let find = || self.ring.find(place);
        Ok(read_place(&self.device, (geography, id), place, find).await?.0)
    }

    /// The whole records behind the damage at which the scan has ended ([`End::Rotten`]), oldest first, as `decode` understands them. Records
    /// between them may be missing. All of the ring is read.
    ///
    /// # Errors
    /// The device's.
    pub async fn behind_damage<T>(
        &self,
        decode: impl Fn(FoundRecord) -> Option<T> + Sync,
    ) -> Result<Vec<T>, JournalError> {
        let mut scan = Scan::new(&self.device, &self.superblock);
        scan.begin_at(self.ring.place().offset, self.ring.next_sequence());
        let mut records = Vec::new();
        while let Some(record) = scan.next_whole(&decode).await? {
            records.push(record);
        }
        Ok(records)
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
        Note { epoch: self.last_epoch + 1, first: self.ring.next_sequence(), size }
    }

    /// Forgets every record, and opens the log for appends: the user has made their changes durable in place. Up to
    /// `in_flight` appends run at once, at most [`MAX_IN_FLIGHT`]; with more than one, programs that know only format
    /// 1 cannot open the log any more.
    ///
    /// # Errors
    /// The device's.
    pub async fn begin(self, in_flight: usize) -> Result<Log, JournalError> {
        let log = self.into_log(in_flight);
        log.clear().await?;
        Ok(log)
    }

    /// Opens the log for appends behind the records that were found, which stay until they are released. Appends write over
    /// whatever follows them. Up to `in_flight` appends run at once, at most [`MAX_IN_FLIGHT`]. Programs that do not
    /// know format 3 cannot open the log any more, and should its superblocks be lost, [`LogRecovery::open_lost`] refuses
    /// it.
    ///
    /// # Errors
    /// [`JournalError::Rotten`]: records that were durable would be written over. [`JournalError::Invalid`] when a record
    /// has stayed for too many openings; the device's.
    pub async fn keep(self, in_flight: usize) -> Result<Log, JournalError> {
        if let End::Rotten { sequence, later } = self.end {
            return Err(JournalError::Rotten { device: self.device.name(), sequence, later });
        }
        let oldest = self.ring.tail().epoch;
        if self.last_epoch + 1 - oldest > MAX_EPOCHS {
            let why = format!(
                "{} was opened {} times since its oldest record was written, and no more are possible before that is released",
                self.device.name(),
                self.last_epoch - oldest
            );
            return Err(JournalError::Invalid(why));
        }
        let log = self.into_log(in_flight);
        log.keep().await?;
        Ok(log)
    }

    /// The log, in the epoch before the next one.
    fn into_log(self, in_flight: usize) -> Log {
        let in_flight = in_flight.clamp(1, MAX_IN_FLIGHT);
        let format = self.superblock.format.max(match in_flight {
            1 => FORMAT_ONE_IN_FLIGHT,
            _ => FORMAT_IN_FLIGHT,
        });
        let superblock = Superblock { epoch: self.last_epoch, format, ..self.superblock };
        Log::new(self.device, superblock, self.barrier, self.ring, in_flight)
    }
}

/// Reads a record again; also whether the copy of the device that was read first lacks it. `find` says where it lies, and `None` when
/// it is released.
pub(super) async fn read_place(
    device: &DeviceRef,
    (geography, id): (Geography, Uuid),
    place: RecordPlace,
    find: impl Fn() -> Option<LiveExtent>,
) -> Result<(FoundRecord, bool), JournalError> {
    let sequence = place.sequence;
    let Some(LiveExtent { bytes, epoch }) = find() else {
        return Err(JournalError::Released { sequence });
    };
    let expected = ExpectedRecord { place, epochs: epoch..=epoch, room: bytes };
    let any = Reader::of_epoch(device, geography, id, epoch).record(&expected, Some).await;
    let failure = match any {
        Ok(Looked::Whole(found, _, len)) if len == bytes => return Ok((found, false)),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    for copy in copies::readable_copies(device) {
        let mut reader = Reader::of_epoch(device, geography, id, epoch).of_copy(copy);
        if let Ok(Looked::Whole(found, _, len)) = reader.record(&expected, Some).await
            && len == bytes
        {
            return Ok((found, true));
        }
    }
    match find() {
        // It was released meanwhile, and its room may have been written over.
        None => Err(JournalError::Released { sequence }),
        Some(_) => {
            Err(failure
                .unwrap_or_else(|| JournalError::Damaged { device: device.name(), sequence }))
        }
    }
}

/// Has every copy of the device hold a record that one of them holds. Nothing else may write there meanwhile.
///
/// # Errors
/// The device's.
pub(super) async fn mend_place(
    device: &DeviceRef,
    (geography, id): (Geography, Uuid),
    place: RecordPlace,
    LiveExtent { bytes, epoch }: LiveExtent,
) -> Result<(), JournalError> {
    let expected = ExpectedRecord { place, epochs: epoch..=epoch, room: bytes };
    let (mut whole, mut lacking) = (None, Vec::new());
    for copy in copies::readable_copies(device) {
        let mut reader = Reader::of_epoch(device, geography, id, epoch).of_copy(copy);
        match reader.record(&expected, Some).await {
            Ok(Looked::Whole(_, _, len)) if len == bytes => whole = Some(copy),
            _ => lacking.push(copy),
        }
    }
    let Some(from) = whole.filter(|_| !lacking.is_empty()) else { return Ok(()) };
    let (name, sequence) = (device.name(), place.sequence);
    tracing::warn!(
        device = name,
        sequence,
        "a record of a journal was damaged on one of its devices"
    );
    for to in lacking {
        let missed = MissedRecord { offset: place.offset, len: bytes, from, to };
        missed.mend(device, geography).await?;
    }
    Ok(())
}
