//! A redo journal of byte ranges (Okeanos, chapter 4).
//!
//! A *transaction* says what bytes of which blocks have become, all or nothing. What it changed only
//! in part it carries as bytes, one after the other in multiwrite blocks, so that many small changes
//! share a sector; what it changed as a whole it carries as regular blocks. What a tag addresses is
//! the user's type ([`Address`]).
//!
//! ```text
//! commit record   who and which, how much follows, a checksum over all of it
//! tags            one for each update: where, how many bytes
//! multiwrite      the bytes of the updates, without gaps; zeros up to the sector's end
//! regular         whole blocks
//! ```
//!
//! The parts are sent together and made durable by one flush: the commit record stands first because
//! its checksum, not its place, says whether all the rest is there. So a lone small change is one
//! sector and one flush.
//!
//! **What must hold.** Transactions follow one another in a ring, each begins in a sector of its own,
//! and no transaction is sent before the one before it is durable. So the first that is not whole
//! ends the journal, unless another follows it: then the middle is rotten, and that is said.
//!
//! **Recovery** has three phases (4.1.3): *scan* finds the last transaction; *revoke* finds for each
//! block which updates still matter; *replay*, by the user, brings the blocks home. It changes nothing
//! in the journal, so that it may be interrupted and repeated.

mod address;
pub mod dump;
pub mod format;
mod rebuild;
mod record;
mod recovery;
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
use ring::Ring;

use crate::copies;
use crate::device::{DeviceError, DeviceRef, Operation, Purpose};

/// Least size of a journal in bytes.
pub const MIN_SIZE: u64 = 256 << 10;

/// What can go wrong in a journal.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Give up: there is no journal here.
    #[error("{device} holds no journal")]
    NoJournal {
        /// The device's name.
        device: String,
    },
    /// Repair it with [`Journal::open_lost`]: the journal is here, and its superblocks are not.
    #[error(
        "both superblocks of the journal on {device} are damaged; fsck -y finds its transactions \
         without them"
    )]
    NoSuperblock {
        /// The device's name.
        device: String,
    },
    /// Give up: the journal is somebody else's.
    #[error("the journal on {device} belongs to volume {found}, not to {expected}")]
    Foreign {
        /// The device's name.
        device: String,
        /// Whose it is.
        found: Uuid,
        /// Whose it should be.
        expected: Uuid,
    },
    /// Give up: a newer program wrote it.
    #[error("the journal on {device} has format {format}, which this program is too old for")]
    Newer {
        /// The device's name.
        device: String,
        /// Its format.
        format: u32,
    },
    /// Stop: transactions that were durable cannot be read, though later ones can.
    #[error(
        "the journal on {device} is damaged in its middle: transaction {sequence} is not whole, \
         but {later} is there; fsck replays what comes before and says what is lost"
    )]
    Rotten {
        /// The device's name.
        device: String,
        /// The first transaction that is not whole.
        sequence: u64,
        /// One that was found behind it.
        later: u64,
    },
    /// Free something: released transactions make room.
    #[error("the journal has no room for {needed} bytes")]
    Full {
        /// Bytes that the transaction takes.
        needed: u64,
    },
    /// Give up: it would not even fit into an empty journal.
    #[error("a transaction of {needed} bytes is too large for a journal of {size}")]
    TooLarge {
        /// Bytes that the transaction takes.
        needed: u64,
        /// Bytes of the journal.
        size: u64,
    },
    /// Give up: the device is too small or its sectors are of another size.
    #[error("invalid journal: {0}")]
    Invalid(String),
    /// Stop: a write or flush failed earlier.
    #[error("the journal takes no more transactions since an earlier failure: {0}")]
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
    /// Its number; the next one has the next.
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
    /// Serialises appends, and holds what the device's superblock says.
    writing: tokio::sync::Mutex<Superblock>,
    /// What the superblock says, for those who cannot wait for it.
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
    /// Makes an empty journal that fills `device`, for the volume `owner`. What was there is gone.
    /// The note is for [`Journal::open_lost`].
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

    /// Opens the journal of the volume `owner`, and finds what has to be replayed. Appends are
    /// possible after [`Journal::reset`].
    ///
    /// # Errors
    /// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`]; the device's.
    /// A rotten middle is no error here: see [`Replay::end`].
    pub async fn open(
        env: &crate::env::Env,
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

    /// Opens a journal of which both superblocks are lost: as [`Journal::open`], with the transactions
    /// that its ring shows, and how many are missing before those. Missing ones were durable, and perhaps
    /// released. [`Journal::reset`] writes the superblocks.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`] when nothing shows that the journal is on this device; the device's.
    pub async fn open_lost(
        env: &crate::env::Env,
        device: DeviceRef,
        lost: &Lost,
        barrier: bool,
    ) -> Result<(Journal<A>, Replay<A>, u64), JournalError> {
        let rebuild::Rebuilt { superblock, missing } = rebuild::find::<A>(&device, lost).await?;
        let (journal, replay) = Journal::start(env, device, superblock, barrier).await?;
        // No epoch is used twice, also not one that has left no transaction.
        let mut superblock = journal.writing.lock().await;
        superblock.epoch = superblock.epoch.max(lost.last_epoch).max(lost.note.epoch);
        drop(superblock);
        Ok((journal, replay, missing))
    }

    async fn start(
        env: &crate::env::Env,
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

    /// What its user should note, durably, before the next [`Journal::reset`], for
    /// [`Journal::open_lost`].
    pub async fn note_after_reset(&self) -> Note {
        let epoch = self.writing.lock().await.epoch + 1;
        Note { epoch, first: self.next_sequence(), size: self.geography.size }
    }

    /// Forgets every transaction: what they say is home, durably.
    ///
    /// # Errors
    /// The device's.
    pub async fn reset(&self) -> Result<(), JournalError> {
        let mut superblock = self.writing.lock().await;
        let tail = self.ring.lock().clear();
        // Whatever lies beyond the end carries the old epoch, and is never met again.
        let next = superblock.next(tail, true);
        self.persist(&mut superblock, next).await?;
        // The other copy too: of an older epoch, it would hide what comes should this one rot.
        let next = superblock.next(tail, false);
        self.persist(&mut superblock, next).await?;
        *self.poison.lock() = None;
        Ok(())
    }

    /// Bytes that further transactions may take before any is released.
    pub fn room(&self) -> u64 {
        self.geography.size - self.ring.lock().used()
    }

    /// Bytes that were released since the journal was made.
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

    /// The device that it is on.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// Appends a transaction; it is durable when this returns. One after the other.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::TooLarge`]: nothing was written. After a device's the
    /// journal is poisoned, and nobody knows whether the transaction is in it.
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
            // The room was released: it may be written over once no recovery begins there.
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

    /// Takes transactions before `sequence` out: what they say is home, durably. Recovery may begin with
    /// them all the same, until their room is needed or [`Journal::forget`] is called.
    pub fn release(&self, sequence: u64) {
        self.ring.lock().release(sequence);
    }

    /// Has recovery begin with no transaction that is released.
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

    /// The first transaction that recovery may begin with.
    pub fn first_replayed(&self) -> u64 {
        self.first_replayed.load(Ordering::Acquire)
    }

    /// Writes where the ring says, durably if there are barriers.
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

/// An append under way: given up half way, or failed, nobody knows what the device has of it.
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
