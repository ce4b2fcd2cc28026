//! A redo journal of byte ranges (Okeanos, chapter 4).
//!
//! A *transaction* says which bytes of which blocks have become what, all or nothing. Partial
//! changes of blocks are stored as bytes without gaps in multiwrite blocks, so that many small
//! changes share a sector; blocks that changed as a whole are stored as regular blocks. The user
//! chooses what a tag addresses ([`Address`]).
//!
//! ```text
//! commit record   identity, number, lengths, and a checksum over all of it
//! tags            one for each update: address and length
//! multiwrite      the bytes of the updates, without gaps; zeros up to the sector's end
//! regular         whole blocks
//! ```
//!
//! The parts are sent together and made durable by one flush. The commit record can stand first
//! because its checksum, not its place, proves that the rest is present. So a lone small change
//! takes one sector and one flush.
//!
//! **Invariants.** Transactions follow one another in a ring, each begins in a sector of its own,
//! and no transaction is sent before the one before it is durable. So the first incomplete
//! transaction ends the journal. If another follows it, the middle is rotten, and opening reports
//! that.
//!
//! **Recovery** has three phases (4.1.3): *scan* finds the last transaction; *revoke* finds for
//! each block which updates still count; *replay*, by the user, writes the blocks in place.
//! Recovery does not change the journal, so that it may be interrupted and repeated.

mod address;
pub mod dump;
pub mod format;
mod rebuild;
mod record;
mod recovery;
mod retention;
mod ring;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use uuid::Uuid;

pub use address::Address;
use format::{Geography, Superblock};
pub use rebuild::{Lost, Note};
pub use record::{Record, Update, Void};
pub use recovery::{Base, End, Patch, Phases, Plan, Replay};
pub use retention::{Claim, Retention};
use ring::Ring;

use crate::copies;
use crate::device::{DeviceError, DeviceRef, Operation, Purpose};

/// Least size of a journal in bytes.
pub const MIN_SIZE: u64 = 256 << 10;

/// Errors of a journal.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Give up: the device holds no journal.
    #[error("{device} holds no journal")]
    NoJournal {
        /// The device's name.
        device: String,
    },
    /// Both superblocks of the journal are damaged. Rebuild it with [`Journal::open_lost`].
    #[error(
        "both superblocks of the journal on {device} are damaged; fsck -y rebuilds them from its \
         transactions"
    )]
    NoSuperblock {
        /// The device's name.
        device: String,
    },
    /// Give up: the journal belongs to another volume.
    #[error("the journal on {device} belongs to volume {found}, not to {expected}")]
    Foreign {
        /// The device's name.
        device: String,
        /// The volume that it belongs to.
        found: Uuid,
        /// The volume that was expected.
        expected: Uuid,
    },
    /// Give up: a newer program wrote it.
    #[error("the journal on {device} has format {format}: this program is too old to open it")]
    Newer {
        /// The device's name.
        device: String,
        /// Its format.
        format: u32,
    },
    /// Stop: transactions that were durable cannot be read, though later ones can.
    #[error(
        "the journal on {device} is damaged in its middle: transaction {sequence} is \
         incomplete, but {later} is present; fsck -y replays those before it and gives up the rest"
    )]
    Rotten {
        /// The device's name.
        device: String,
        /// The first incomplete transaction.
        sequence: u64,
        /// A later one that is present.
        later: u64,
    },
    /// Release transactions, and try again.
    #[error("the journal has no room for {needed} bytes")]
    Full {
        /// Bytes of the transaction.
        needed: u64,
    },
    /// Give up: the transaction does not fit even into an empty journal.
    #[error("a transaction of {needed} bytes is too large for a journal of {size} bytes")]
    TooLarge {
        /// Bytes of the transaction.
        needed: u64,
        /// Bytes of the journal.
        size: u64,
    },
    /// Give up: the device is too small, or its sectors have another size.
    #[error("invalid journal: {0}")]
    Invalid(String),
    /// Stop: a write or flush failed earlier.
    #[error("the journal refuses transactions after an earlier failure: {0}")]
    Poisoned(Arc<str>),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl JournalError {
    /// Whether no superblock of the journal can be read.
    pub fn is_lost(&self) -> bool {
        match self {
            JournalError::NoJournal { .. } | JournalError::NoSuperblock { .. } => true,
            JournalError::Device(DeviceError::Io { operation, .. }) => {
                *operation == Operation::Read
            }
            _ => false,
        }
    }
}

/// A transaction that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its number; numbers are consecutive.
    pub sequence: u64,
    /// Bytes that it takes in the journal.
    pub bytes: u64,
}

/// A journal on a device.
pub struct Journal<A> {
    device: DeviceRef,
    geography: Geography,
    /// Whether flushes are sent.
    barrier: bool,
    /// Serialises appends, and holds the device's current superblock.
    writing: tokio::sync::Mutex<Superblock>,
    /// `tail_sequence` of the superblock, readable without waiting for an append.
    first_replayed: AtomicU64,
    ring: Mutex<Ring>,
    poison: Mutex<Option<Arc<str>>>,
    address: PhantomData<fn(A) -> A>,
}

impl<A> fmt::Debug for Journal<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl<A: Address> Journal<A> {
    /// Makes an empty journal that fills `device`, for the volume `owner`. All content of the
    /// device is lost. The note is for [`Journal::open_lost`].
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

    /// Opens the journal of the volume `owner`, and finds what to replay. Appends are possible
    /// after [`Journal::reset`].
    ///
    /// # Errors
    /// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`]; the device's.
    /// A rotten middle is no error here: see [`Replay::end`].
    pub async fn open(
        env: &thalweg_env::Env,
        device: DeviceRef,
        owner: Uuid,
        barrier: bool,
    ) -> Result<(Journal<A>, Replay<A>), JournalError> {
        let superblock = Superblock::read(&device).await?;
        if superblock.owner != owner {
            let device = device.name();
            return Err(JournalError::Foreign { device, found: superblock.owner, expected: owner });
        }
        Journal::start(env, device, superblock, barrier).await
    }

    /// Opens a journal whose superblocks are both lost: as [`Journal::open`], with the transactions
    /// found in its ring, and how many are missing before those. Missing transactions were durable,
    /// and may have been released. [`Journal::reset`] writes new superblocks.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`] when nothing shows that the journal is on this device; the device's.
    pub async fn open_lost(
        env: &thalweg_env::Env,
        device: DeviceRef,
        lost: &Lost,
        barrier: bool,
    ) -> Result<(Journal<A>, Replay<A>, u64), JournalError> {
        let rebuild::Rebuilt { superblock, missing } = rebuild::find::<A>(&device, lost).await?;
        let (journal, replay) = Journal::start(env, device, superblock, barrier).await?;
        // No epoch is used twice, not even one without transactions.
        let mut superblock = journal.writing.lock().await;
        superblock.epoch = superblock.epoch.max(lost.last_epoch).max(lost.note.epoch);
        drop(superblock);
        Ok((journal, replay, missing))
    }

    async fn start(
        env: &thalweg_env::Env,
        device: DeviceRef,
        superblock: Superblock,
        barrier: bool,
    ) -> Result<(Journal<A>, Replay<A>), JournalError> {
        let geography = superblock.geography;
        let replay = recovery::recover(env, &device, &superblock).await?;
        let journal = Journal {
            device,
            geography,
            barrier,
            ring: Mutex::new(Ring::new(replay.end_offset, replay.next_sequence, replay.stamp)),
            first_replayed: AtomicU64::new(superblock.tail_sequence),
            writing: tokio::sync::Mutex::new(superblock),
            poison: Mutex::new(Some("it was not reset after recovery".into())),
            address: PhantomData,
        };
        Ok((journal, replay))
    }

    /// What the user should note durably before the next [`Journal::reset`], for
    /// [`Journal::open_lost`].
    pub async fn note_after_reset(&self) -> Note {
        let epoch = self.writing.lock().await.epoch + 1;
        Note { epoch, first: self.next_sequence(), size: self.geography.size }
    }

    /// Forgets every transaction: the user has made their changes durable in place.
    ///
    /// # Errors
    /// The device's.
    pub async fn reset(&self) -> Result<(), JournalError> {
        let mut superblock = self.writing.lock().await;
        let tail = self.ring.lock().clear();
        // Transactions beyond the end carry the old epoch, and are ignored from now on.
        let next = superblock.next(tail, true);
        self.persist(&mut superblock, next).await?;
        // The other copy too: should this one rot, a copy of the older epoch would hide later
        // transactions.
        let next = superblock.next(tail, false);
        self.persist(&mut superblock, next).await?;
        *self.poison.lock() = None;
        Ok(())
    }

    /// Bytes that further transactions may take before one is released.
    pub fn room(&self) -> u64 {
        self.geography.size - self.ring.lock().used()
    }

    /// Bytes that were released since the journal was created.
    pub fn released(&self) -> u64 {
        self.ring.lock().tail().offset
    }

    /// Bytes of the ring.
    pub fn size(&self) -> u64 {
        self.geography.size
    }

    /// The number of the next transaction.
    pub fn next_sequence(&self) -> u64 {
        self.ring.lock().next_sequence()
    }

    /// The journal's device.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// Appends a transaction, which is durable when this returns. Concurrent appends run one after
    /// the other.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::TooLarge`]: nothing was written. A device's error
    /// poisons the journal, which may then hold the transaction or not.
    pub async fn append(&self, record: &Record<A>) -> Result<Appended, JournalError> {
        let mut superblock = self.writing.lock().await;
        if let Some(why) = self.poison.lock().clone() {
            return Err(JournalError::Poisoned(why));
        }
        let sequence = self.ring.lock().next_sequence();
        let sent = record.encode(&superblock, sequence);
        let needed = sent.len;
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
        let mut poisoning = Poisoning { journal: self, armed: true };
        self.send(offset, sent.parts).await?;
        poisoning.armed = false;
        self.ring.lock().push(needed, record.stamp);
        Ok(Appended { sequence, bytes: needed })
    }

    /// Releases transactions before `sequence`: the user has made their changes durable in place.
    /// Recovery may replay them all the same, until their room is needed or [`Journal::forget`] is
    /// called.
    pub fn release(&self, sequence: u64) {
        self.ring.lock().release(sequence);
    }

    /// Writes the tail to the superblock, so that recovery replays no released transaction.
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

    /// The first transaction that recovery may replay.
    pub fn first_replayed(&self) -> u64 {
        self.first_replayed.load(Ordering::Acquire)
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
        self.first_replayed.store(next.tail_sequence, Ordering::Release);
        *superblock = next;
        Ok(())
    }
}

/// An append in flight. If it fails or is dropped, the device may hold any part of it.
struct Poisoning<'a, A> {
    journal: &'a Journal<A>,
    armed: bool,
}

impl<A> Drop for Poisoning<'_, A> {
    fn drop(&mut self) {
        if self.armed {
            *self.journal.poison.lock() = Some("a transaction was not written".into());
        }
    }
}
