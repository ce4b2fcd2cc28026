//! A redo journal of byte ranges (Okeanos, chapter 4).
//!
//! A *transaction* says which bytes of which blocks have become what, all or nothing. Partial
//! changes of blocks are stored as bytes without gaps in multiwrite blocks, so that many small
//! changes share a sector; blocks that changed as a whole are stored as regular blocks. The user
//! chooses what a tag addresses ([`Address`]).
//!
//! There are two layers. A [`log`] keeps opaque records: frames, checksums, numbers, the ring, release; it can be
//! used alone. Here a record is a transaction: its header is the tags, its body the multiwrite blocks, its blocks
//! the regular ones.
//!
//! **Recovery** has three phases (4.1.3): *scan* finds the last transaction; *revoke* finds for
//! each block which updates still count; *replay*, by the user, writes the blocks in place.
//! Recovery does not change the journal, so that it may be interrupted and repeated: a journal is first open for
//! recovery ([`Recovery`]), and then for appends ([`Journal`]).

mod address;
pub mod dump;
pub mod format;
pub mod log;
mod record;
mod recovery;
mod retention;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use uuid::Uuid;

pub use address::Address;
pub use format::MIN_SIZE;
pub use log::{Appended, End, Log, Lost, Note};
pub use record::{Record, Update, Void};
pub use recovery::{Base, Patch, Phases, Plan, Recovery, Replay};
pub use retention::{Claim, Retention};

use crate::device::{DeviceError, DeviceRef, Operation};

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
         incomplete, and those up to {later} were durable; fsck -y replays those before it and gives up the rest"
    )]
    Rotten {
        /// The device's name.
        device: String,
        /// The first incomplete transaction.
        sequence: u64,
        /// A later one that is present, or the last one that an opening has kept.
        later: u64,
    },
    /// Stop: a transaction that was durable cannot be read any more.
    #[error("the journal on {device} is damaged: transaction {sequence} cannot be read")]
    Damaged {
        /// The device's name.
        device: String,
        /// The transaction.
        sequence: u64,
    },
    /// Give up: the transaction was released.
    #[error("the journal has transaction {sequence} no more")]
    Released {
        /// The transaction.
        sequence: u64,
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

/// A journal that is open for appends: a [`Log`] of transactions.
pub struct Journal<A> {
    log: Log,
    address: PhantomData<fn(A) -> A>,
}

impl<A> fmt::Debug for Journal<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Journal").field(&self.log).finish()
    }
}

/// Everything but an append is the log's.
impl<A> Deref for Journal<A> {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

impl<A: Address> Journal<A> {
    /// Makes an empty journal that fills `device`, for the volume `owner`. All content of the
    /// device is lost. The note is for [`Journal::open_lost`].
    ///
    /// # Errors
    /// [`JournalError::Invalid`] for a device that is too small; the device's.
    pub async fn create(device: &DeviceRef, id: Uuid, owner: Uuid) -> Result<Note, JournalError> {
        Log::create(device, id, owner).await
    }

    /// Appends a transaction, which is durable when this returns. Concurrent appends run one after
    /// the other.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::TooLarge`]: nothing was written. A device's error
    /// poisons the journal, which may then hold the transaction or not.
    pub async fn append(&self, record: &Record<A>) -> Result<Appended, JournalError> {
        self.log.append(&record.encode()).await
    }
}
