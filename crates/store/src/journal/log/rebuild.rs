//! Rebuilding a log whose superblocks are both lost.
//!
//! Every commit record names its journal, its epoch and its number, and a checksum proves that the
//! transaction is whole: so the ring shows the newest transactions. It does not show which of them
//! were released. Replaying a released transaction again is harmless as long as every later one is
//! replayed too: so recovery begins with the oldest transaction of the newest epoch from which on
//! none is missing. A newer epoch without transactions would not show in the ring: the journal's
//! user notes the epoch ([`Note`]), so that no transaction of an older one is replayed.
//!
//! Which records of older epochs count in a log that was opened with its records kept is in the superblocks alone. Its
//! records say that it is one, and it is refused.
//!
//! One exception concerns data that the user wrote in place directly and never acknowledged: bytes
//! of a released transaction may overwrite it while the transaction that revokes them is not
//! durable.

use thalweg_env::HashMap;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::place::RecordPlace;
use super::scan::{ExpectedRecord, FoundRecord, Looked, Reader};
use crate::device::{DeviceRef, Purpose};
use crate::journal::JournalError;
use crate::journal::format::{COMMIT_MAGIC, CommitRecord, Geography, Superblock};

/// Bytes that are read at a time.
const RUN: u64 = 1 << 20;
/// Epochs before and after the newest known one that are recognised.
const EPOCHS: u64 = 1 << 16;

/// What the user of a journal keeps of it elsewhere, in case both superblocks are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Note {
    /// The epoch; 0 when unknown.
    pub epoch: u64,
    /// The number of the epoch's first transaction.
    pub first: u64,
    /// Bytes of the ring.
    pub size: u64,
}

/// A journal whose superblocks are lost, as its user knows it.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Its identity.
    pub id: Uuid,
    /// The volume that it belongs to.
    pub owner: Uuid,
    /// The last note of it.
    pub note: Note,
    /// No epoch of it is higher.
    pub last_epoch: u64,
    /// The stamp of the last transaction before the noted epoch.
    pub stamp: u64,
    /// The journal is certainly on this device. Otherwise the device has to show a transaction of
    /// it.
    pub is_here: bool,
}

/// Whether the user understands a record.
type IsValid<'a> = &'a (dyn Fn(FoundRecord) -> bool + Sync);

/// A rebuilt journal.
#[derive(Clone, Debug)]
pub(super) struct Rebuilt {
    /// A superblock from which recovery may begin.
    pub(super) superblock: Superblock,
    /// Transactions missing before the first one; they may have been released.
    pub(super) missing: u64,
}

/// A commit record found in the ring.
#[derive(Clone, Copy, Debug)]
struct Place {
    epoch: u64,
    sequence: u64,
    offset: u64,
    /// Transactions just before it that were in flight with it.
    in_flight: u64,
    /// The log had been opened with its records kept.
    is_behind_kept: bool,
}

/// The beginning of a chain of transactions.
#[derive(Clone, Copy, Debug)]
struct Begin {
    place: Place,
    /// Bytes of the chain.
    bytes: u64,
}

/// Finds the transactions that recovery has to replay.
///
/// # Errors
/// [`JournalError::NoJournal`] when nothing shows that the journal is on this device; [`JournalError::Invalid`] of a log that
/// was opened with its records kept; the device's.
pub(super) async fn find(
    device: &DeviceRef,
    lost: &Lost,
    is_valid: IsValid<'_>,
) -> Result<Rebuilt, JournalError> {
    let geography = geography(device, lost)?;
    let mut superblock = Superblock {
        epoch: lost.last_epoch.max(lost.note.epoch),
        tail_sequence: lost.note.first.max(1),
        stamp: lost.stamp,
        ..Superblock::new(lost.id, lost.owner, geography)
    };
    let places = places(device, &superblock).await?;
    if places.is_empty() && !lost.is_here {
        return Err(JournalError::NoJournal { device: device.name() });
    }
    let highest = places.iter().map(|place| place.sequence).max().unwrap_or(0);
    superblock.tail_sequence = superblock.tail_sequence.max(highest + 1);
    let mut missing = 0;
    if let Some(begin) = newest(device, &superblock, lost, &places, is_valid).await? {
        let older = places.iter().filter(|it| it.epoch == begin.epoch);
        let older = older.map(|it| it.sequence).filter(|it| *it < begin.sequence).max();
        missing = older.map_or(0, |older| begin.sequence - older);
        superblock.epoch = begin.epoch;
        (superblock.tail_offset, superblock.tail_sequence) = (begin.offset, begin.sequence);
    }
    superblock.oldest_epoch = superblock.epoch;
    Ok(Rebuilt { superblock, missing })
}

fn geography(device: &DeviceRef, lost: &Lost) -> Result<Geography, JournalError> {
    let whole = Geography::of(device.geometry())?;
    match lost.note.size {
        0 => Ok(whole),
        size if size <= whole.size && size.is_multiple_of(u64::from(whole.sector)) => {
            Ok(Geography { size, ..whole })
        }
        size => Err(JournalError::Invalid(format!(
            "{} has room for a journal of {} bytes, but it had {size} bytes",
            device.name(),
            whole.size
        ))),
    }
}

/// Finds every commit record of the journal: in epochs up to one beyond the superblock's, and of logs that were opened with
/// their records kept, which need not be noted, in later ones too.
async fn places(device: &DeviceRef, superblock: &Superblock) -> Result<Vec<Place>, JournalError> {
    let last = superblock.epoch.saturating_add(1);
    let tag = |epoch| (Superblock { epoch, ..superblock.clone() }.tag(), epoch);
    let known = last.saturating_sub(EPOCHS).max(1)..=last.saturating_add(EPOCHS);
    let epochs: HashMap<u32, u64> = known.map(tag).collect();
    let Geography { size, sector } = superblock.geography;
    let mut places = Vec::new();
    for at in (0..size).step_by(RUN as usize) {
        let len = RUN.min(size - at) as usize;
        let place = superblock.geography.place(at);
        let bytes = device.read(place, len, Purpose::Journal).await?;
        for (nth, bytes) in (0..).zip(bytes.chunks_exact(sector as usize)) {
            let Ok((commit, _)) = CommitRecord::read_from_prefix(bytes) else { continue };
            let is_behind_kept = commit.is_behind_kept();
            let epoch = epochs.get(&commit.tag.get()).filter(|epoch| {
                commit.magic == COMMIT_MAGIC && (**epoch <= last || is_behind_kept)
            });
            places.extend(epoch.map(|epoch| Place {
                epoch: *epoch,
                sequence: commit.sequence.get(),
                in_flight: commit.in_flight(),
                is_behind_kept,
                offset: at + nth * u64::from(sector),
            }));
        }
    }
    Ok(places)
}

/// The beginning of the chain of whole transactions that ends in the newest one, of the noted epoch or a later one.
/// A transaction whose companions in flight are not whole was never durable itself.
async fn newest(
    device: &DeviceRef,
    superblock: &Superblock,
    lost: &Lost,
    places: &[Place],
    is_valid: IsValid<'_>,
) -> Result<Option<Place>, JournalError> {
    let mut newest: Vec<Place> =
        places.iter().copied().filter(|place| place.epoch >= lost.note.epoch).collect();
    newest.sort_unstable_by_key(|place| std::cmp::Reverse((place.epoch, place.sequence)));
    for place in newest {
        if whole(device, superblock, place, is_valid).await?.is_none() {
            continue;
        }
        if place.is_behind_kept {
            let why = format!(
                "the log on {} was opened with its records kept, and without a superblock nothing says which of them count",
                device.name()
            );
            return Err(JournalError::Invalid(why));
        }
        let begin = begin_of(device, superblock, places, place, is_valid).await?.place;
        if begin.sequence <= place.sequence.saturating_sub(place.in_flight) {
            return Ok(Some(begin));
        }
    }
    Ok(None)
}

/// The oldest transaction of an unbroken chain of whole transactions that ends in `last`.
async fn begin_of(
    device: &DeviceRef,
    superblock: &Superblock,
    places: &[Place],
    last: Place,
    is_valid: IsValid<'_>,
) -> Result<Begin, JournalError> {
    let size = superblock.geography.size;
    let mut begin = Begin { place: last, bytes: 0 };
    begin.bytes = whole(device, superblock, last, is_valid).await?.unwrap_or(0);
    let mut before: HashMap<u64, Vec<Place>> = HashMap::default();
    for place in places.iter().filter(|place| place.epoch == last.epoch) {
        before.entry(place.sequence.saturating_add(1)).or_default().push(*place);
    }
    'older: loop {
        for place in before.get(&begin.place.sequence).into_iter().flatten() {
            let Some(len) = whole(device, superblock, *place, is_valid).await? else { continue };
            let ends_there = (place.offset + len) % size == begin.place.offset;
            // A transaction that overlaps the newest was overwritten, whatever its checksum says.
            if ends_there && begin.bytes + len <= size {
                begin = Begin { place: *place, bytes: begin.bytes + len };
                continue 'older;
            }
        }
        return Ok(begin);
    }
}

/// Bytes of a transaction, if it is whole.
async fn whole(
    device: &DeviceRef,
    superblock: &Superblock,
    place: Place,
    is_valid: IsValid<'_>,
) -> Result<Option<u64>, JournalError> {
    let Superblock { id, geography, .. } = *superblock;
    let Place { epoch, sequence, offset, .. } = place;
    let mut reader = Reader::of_epoch(device, geography, id, epoch);
    let decode = |record| is_valid(record).then_some(());
    let room = geography.size;
    let place = RecordPlace { sequence, offset };
    match reader.record(&ExpectedRecord { place, epochs: epoch..=epoch, room }, decode).await? {
        Looked::Whole((), _, len) => Ok(Some(len)),
        Looked::Damaged(_) => Ok(None),
    }
}
