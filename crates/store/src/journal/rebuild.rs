//! Finding what a journal holds when both of its superblocks are lost.
//!
//! Every commit record names its journal, its epoch and its number, and a checksum says whether the
//! transaction is whole: so the ring tells where the newest transactions lie. What it cannot tell is which
//! of them were released. Replaying a released transaction again is harmless as long as every later one
//! is replayed too: so recovery begins with the oldest of the newest epoch from which on none is missing.
//! A newer epoch without transactions would not show in the ring: the journal's user notes the epoch
//! ([`Note`]), so that nothing of an older one is replayed.
//!
//! One exception concerns data that its user wrote past the journal and never acknowledged: bytes of a
//! released transaction may come over it while the transaction that makes them void is not durable.

use uuid::Uuid;
use zerocopy::FromBytes;

use super::JournalError;
use super::address::Address;
use super::format::{COMMIT_MAGIC, CommitRecord, Geography, Superblock};
use super::recovery::{Reader, Scanned};
use crate::device::{DeviceRef, Purpose};
use crate::env::HashMap;

/// Bytes that are read at a time.
const RUN: u64 = 1 << 20;
/// Epochs before the newest that are recognised.
const EPOCHS: u64 = 1 << 16;

/// What a journal's user keeps of it elsewhere, for the case that both superblocks are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Note {
    /// The epoch; 0 when it was not noted.
    pub epoch: u64,
    /// The number of the epoch's first transaction.
    pub first: u64,
    /// Bytes of the ring.
    pub size: u64,
}

/// A journal whose superblocks are lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Its identity.
    pub id: Uuid,
    /// The volume that it belongs to.
    pub owner: Uuid,
    /// What was noted of it last.
    pub note: Note,
    /// No epoch is higher.
    pub last_epoch: u64,
    /// The stamp of the last transaction before the noted epoch.
    pub stamp: u64,
    /// The journal is on this device for certain. Otherwise the device has to show a transaction of it.
    pub is_here: bool,
}

/// What was found of a journal without superblocks.
#[derive(Clone, Debug)]
pub(super) struct Rebuilt {
    /// A superblock from which recovery may begin.
    pub(super) superblock: Superblock,
    /// Transactions that are missing before the first one: perhaps none of them was needed any more.
    pub(super) missing: u64,
}

/// A commit record in the ring.
#[derive(Clone, Copy, Debug)]
struct Place {
    epoch: u64,
    sequence: u64,
    offset: u64,
}

/// The part of a chain of transactions that begins with one.
#[derive(Clone, Copy, Debug)]
struct Begin {
    place: Place,
    /// Bytes of all of them.
    bytes: u64,
}

/// Finds the transactions that recovery has to replay.
///
/// # Errors
/// [`JournalError::NoJournal`] when nothing shows that the journal is on this device; the device's.
pub(super) async fn find<A: Address>(
    device: &DeviceRef,
    lost: &Lost,
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
    if let Some(last) = newest::<A>(device, &superblock, lost, &places).await? {
        let begin = begin_of::<A>(device, &superblock, &places, last).await?.place;
        let older = places.iter().filter(|it| it.epoch == begin.epoch);
        let older = older.map(|it| it.sequence).filter(|it| *it < begin.sequence).max();
        missing = older.map_or(0, |older| begin.sequence - older);
        superblock.epoch = begin.epoch;
        (superblock.tail_offset, superblock.tail_sequence) = (begin.offset, begin.sequence);
    }
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
            "{} has room for {} bytes of a journal that had {size}",
            device.name(),
            whole.size
        ))),
    }
}

/// Every commit record of the journal, in any epoch up to the superblock's and the next.
async fn places(device: &DeviceRef, superblock: &Superblock) -> Result<Vec<Place>, JournalError> {
    let last = superblock.epoch.saturating_add(1);
    let tag = |epoch| (Superblock { epoch, ..superblock.clone() }.tag(), epoch);
    let epochs: HashMap<u32, u64> = (last.saturating_sub(EPOCHS).max(1)..=last).map(tag).collect();
    let Geography { size, sector } = superblock.geography;
    let mut places = Vec::new();
    for at in (0..size).step_by(RUN as usize) {
        let len = RUN.min(size - at) as usize;
        let place = superblock.geography.place(at);
        let bytes = device.read(place, len, Purpose::Journal).await?;
        for (nth, bytes) in (0..).zip(bytes.chunks_exact(sector as usize)) {
            let Ok((commit, _)) = CommitRecord::read_from_prefix(bytes) else { continue };
            let epoch = epochs.get(&commit.tag.get()).filter(|_| commit.magic == COMMIT_MAGIC);
            places.extend(epoch.map(|epoch| Place {
                epoch: *epoch,
                sequence: commit.sequence.get(),
                offset: at + nth * u64::from(sector),
            }));
        }
    }
    Ok(places)
}

/// The newest transaction that is whole, of an epoch that is not older than what was noted.
async fn newest<A: Address>(
    device: &DeviceRef,
    superblock: &Superblock,
    lost: &Lost,
    places: &[Place],
) -> Result<Option<Place>, JournalError> {
    let mut newest: Vec<Place> =
        places.iter().copied().filter(|place| place.epoch >= lost.note.epoch).collect();
    newest.sort_unstable_by_key(|place| std::cmp::Reverse((place.epoch, place.sequence)));
    for place in newest {
        if whole::<A>(device, superblock, place).await?.is_some() {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// The oldest transaction from which on all are whole, one behind the other, up to `last`.
async fn begin_of<A: Address>(
    device: &DeviceRef,
    superblock: &Superblock,
    places: &[Place],
    last: Place,
) -> Result<Begin, JournalError> {
    let size = superblock.geography.size;
    let mut begin = Begin { place: last, bytes: 0 };
    begin.bytes = whole::<A>(device, superblock, last).await?.unwrap_or(0);
    let mut before: HashMap<u64, Vec<Place>> = HashMap::default();
    for place in places.iter().filter(|place| place.epoch == last.epoch) {
        before.entry(place.sequence.saturating_add(1)).or_default().push(*place);
    }
    'older: loop {
        for place in before.get(&begin.place.sequence).into_iter().flatten() {
            let Some(len) = whole::<A>(device, superblock, *place).await? else { continue };
            let ends_there = (place.offset + len) % size == begin.place.offset;
            // What reaches into the newest was overwritten, whatever its checksum says.
            if ends_there && begin.bytes + len <= size {
                begin = Begin { place: *place, bytes: begin.bytes + len };
                continue 'older;
            }
        }
        return Ok(begin);
    }
}

/// Bytes of a transaction, if it is whole.
async fn whole<A: Address>(
    device: &DeviceRef,
    superblock: &Superblock,
    place: Place,
) -> Result<Option<u64>, JournalError> {
    let superblock = Superblock { epoch: place.epoch, ..superblock.clone() };
    let mut reader = Reader { device, superblock: &superblock, buffer: None };
    let size = superblock.geography.size;
    match reader.transaction::<A>(place.offset, place.sequence, size).await? {
        Scanned::Whole(_, _, len) => Ok(Some(len)),
        Scanned::Damaged(_) => Ok(None),
    }
}
