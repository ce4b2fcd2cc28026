//! Devices: where bytes are stored, and what is assumed of them.
//!
//! The assumptions about a medium: a sector is written whole or not at all; nothing is durable before a flush
//! returns; between two flushes any subset of the writes may survive, in any order; a read may fail, or
//! return bytes that were never written, which only the caller's checksums can detect.
//!
//! Every byte and every flush carries a [`Purpose`] and is counted under it.

mod buffer;
mod counters;
mod file;
mod frames;
pub mod kinds;
mod memory;
mod mirror;
mod overlay;
mod partition;
mod stripe;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use buffer::{AlignedBuf, MEMORY_ALIGNMENT};
pub use counters::{Counters, Tallies, Tally};
pub use file::{Access, Engine, FileDevice, FileOptions};
pub use frames::{BLOCK_SIZE, FrameBuf};
pub use kinds::{DeviceKind, DeviceKinds};
pub use memory::MemoryDevice;
pub(crate) use mirror::range_lock::{RangeGuard, RangeLocks};
pub use mirror::{Mirror, MirrorError, Side, SideState, SyncRecord};
pub use overlay::Overlay;
pub use partition::Partition;
pub use stripe::{Stripe, StripeError};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A write that is durable when it returns.
    WriteDurably,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// Opening the device.
    Open,
    /// Making the device.
    Create,
    /// Extending it, or finding out its present size.
    Grow,
    /// Locking it against other processes.
    Lock,
    /// Repairing a copy.
    Repair,
    /// Rebuilding a copy.
    Rebuild,
    /// A request of another process, whose kind is unknown here.
    Remote,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::WriteDurably => "durable write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
            Operation::Open => "open",
            Operation::Create => "create",
            Operation::Grow => "growth",
            Operation::Lock => "lock",
            Operation::Repair => "repair",
            Operation::Rebuild => "rebuild",
            Operation::Remote => "a request",
        })
    }
}

/// A shared handle to any device.
pub type DeviceRef = Arc<dyn Device>;

/// The reason for a request, under which its bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Blocks that a user wrote or reads.
    UserData,
    /// A redo journal.
    Journal,
    /// Entries of the inverse map.
    Map,
    /// Blocks that cleaning moves.
    Cleaning,
    /// Checkpoints of the index.
    Checkpoint,
    /// Copies in a cache.
    Cache,
    /// Labels, which name a device's volume.
    Label,
    /// Copies that restore redundancy: rebuild, repair, scrub.
    Repair,
    /// Metadata blocks, if a store tells them from data.
    Metadata,
}

impl Purpose {
    /// Every purpose, in the order of their counters.
    pub const ALL: [Purpose; 9] = [
        Purpose::UserData,
        Purpose::Journal,
        Purpose::Map,
        Purpose::Cleaning,
        Purpose::Checkpoint,
        Purpose::Cache,
        Purpose::Label,
        Purpose::Repair,
        Purpose::Metadata,
    ];

    /// The purpose's name in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Purpose::UserData => "user_data",
            Purpose::Journal => "journal",
            Purpose::Map => "map",
            Purpose::Cleaning => "cleaning",
            Purpose::Checkpoint => "checkpoint",
            Purpose::Cache => "cache",
            Purpose::Label => "label",
            Purpose::Repair => "repair",
            Purpose::Metadata => "metadata",
        }
    }
}

/// The geometry of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of `sector`.
    pub size: u64,
    /// The unit that is written whole or not at all, in bytes: 512 or 4096. Offsets and lengths of reads and
    /// writes are multiples of it.
    pub sector: u32,
}

impl Geometry {
    /// Checks that `[offset, offset + len)` lies inside the device and on sector boundaries.
    ///
    /// # Errors
    /// [`DeviceError::Misaligned`] or [`DeviceError::OutOfRange`].
    pub fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let sector = u64::from(self.sector);
        if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return Err(DeviceError::Misaligned { offset, len, sector: self.sector });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, len, size: self.size }),
        }
    }
}

/// Requests that a device has accepted and not yet finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Reads.
    pub reads: usize,
    /// Writes, flushes and discards.
    pub writes: usize,
}

/// The power state that a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Ready for requests.
    Active,
    /// Spun down until the next request, if the device can.
    Standby,
}

/// The role of a device in a chain. A mirror spins down its idle side accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Tail,
    /// It serves reads and cleaning.
    Body,
}

/// A store of bytes. Offsets and lengths are in bytes, and whole sectors.
#[async_trait]
pub trait Device: Send + Sync + fmt::Debug {
    /// Size and sector.
    fn geometry(&self) -> Geometry;

    /// Reads `len` bytes at `offset`. The returned buffer is aligned to [`MEMORY_ALIGNMENT`].
    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError>;

    /// Writes `data`, buffer after buffer, at `offset`; each buffer is whole sectors. The write is
    /// durable only after a later [`Device::flush`]. The buffers should be aligned to
    /// [`MEMORY_ALIGNMENT`]; the device copies any other buffer if it needs alignment.
    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError>;

    /// Makes every write that completed before this call durable.
    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError>;

    /// [`Device::write`] and then [`Device::flush`]; a device may combine them.
    async fn write_durably(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        self.write(offset, data, purpose).await?;
        self.flush(purpose).await
    }

    /// Tells the device that the range's content is not needed. Later reads of it return undefined content.
    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError>;

    /// Requests in flight.
    fn queue_depth(&self) -> QueueDepth;

    /// The requests that reached this device so far, by purpose. For a composed device, the sum over its
    /// members.
    fn tallies(&self) -> Tallies;

    /// The devices that this one is made of; empty for a plain device.
    fn members(&self) -> Vec<DeviceRef> {
        Vec::new()
    }

    /// A short name for messages: a path, or how the device is composed.
    fn name(&self) -> String;

    /// Whether it is a rotational disk, so that one long write costs less than several short ones nearby. A
    /// composed device is one if any of its members is.
    fn is_rotational(&self) -> bool {
        self.members().iter().any(|member| member.is_rotational())
    }

    /// The drives that hold its bytes, by names that are unique in this process. Devices with a drive in
    /// common compete for it. A composed device has the drives of its members; by default any other device is
    /// a drive of its own.
    fn drives(&self) -> Vec<String> {
        let members = self.members();
        match members.is_empty() {
            true => vec![format!("{:p}", std::ptr::from_ref(self).cast::<()>())],
            false => members.iter().flat_map(|member| member.drives()).collect(),
        }
    }

    /// Finds out the device's present size, and returns it; [`Device::geometry`] then reports it too. A
    /// regular file that is smaller than `size` bytes is first extended to it, durably. A device never
    /// becomes smaller, and the returned size may be less than `size`: by default a device keeps its size.
    async fn grow_to(&self, _size: Option<u64>) -> Result<u64, DeviceError> {
        Ok(self.geometry().size)
    }

    /// How many copies of each byte there are.
    fn copies(&self) -> usize {
        1
    }

    /// Whether a copy can be read: it holds every write.
    fn has_copy(&self, copy: usize) -> bool {
        copy < self.copies()
    }

    /// Reads from the copy numbered `copy` alone: the way around a copy that returns wrong bytes.
    async fn read_copy(
        &self,
        copy: usize,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        debug_assert_eq!(copy, 0);
        self.read(offset, len, purpose).await
    }

    /// Overwrites the copy numbered `copy` alone with bytes that are known to be right.
    async fn repair_copy(&self, copy: usize, offset: u64, data: Bytes) -> Result<(), DeviceError> {
        debug_assert_eq!(copy, 0);
        self.write(offset, vec![data], Purpose::Repair).await
    }

    /// Asks for a power state; the default ignores it.
    async fn set_power(&self, _power: Power) {}

    /// Tells the device its role in a chain from now on; the default ignores it.
    async fn set_role(&self, _role: Role) {}
}

/// Why a request failed.
#[derive(Debug, thiserror::Error, Clone)]
pub enum DeviceError {
    /// The request is not in whole sectors. Give up: the caller has a bug.
    #[error("request of {len} bytes at {offset} is not in whole sectors of {sector} bytes")]
    Misaligned {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// The device's sector in bytes.
        sector: u32,
    },
    /// The request is beyond the device's end. Give up: the caller has a bug.
    #[error("request of {len} bytes at {offset} leaves a device of {size} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// The device's size in bytes.
        size: u64,
    },
    /// The operating system, or a simulated fault, refused the request.
    #[error("{device}: {operation} failed: {source}")]
    Io {
        /// The device's name.
        device: String,
        /// The request.
        operation: Operation,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// Another opener has the device.
    #[error("{device} is in use by another process; stop it, or name another device")]
    Locked {
        /// The device's name.
        device: String,
        /// The opener, as far as the device knows it.
        holder: Option<String>,
    },
    /// The program opens no devices of this kind. Give up.
    #[error("{device}: this program opens no devices of the kind {kind}")]
    UnknownKind {
        /// The device's name.
        device: String,
        /// The kind.
        kind: &'static str,
    },
    /// Another opener took the device over, and the medium refuses this one. Stop.
    #[error("{device} was taken over by another opener; this one stops, and writes nothing more")]
    Fenced {
        /// The device's name.
        device: String,
    },
    /// The medium has no space left for the write.
    #[error("{device}: no space left on the medium")]
    NoSpace {
        /// The device's name.
        device: String,
    },
    /// The device's driver has ended. Stop.
    #[error("{device} is closed")]
    Closed {
        /// The device's name.
        device: String,
    },
}

impl DeviceError {
    /// Wraps a system error; a full medium becomes [`DeviceError::NoSpace`].
    pub fn io(device: &str, operation: Operation, source: std::io::Error) -> DeviceError {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => DeviceError::NoSpace { device: device.to_owned() },
            _ => DeviceError::Io { device: device.to_owned(), operation, source: Arc::new(source) },
        }
    }
}

/// The length of a gathered write in bytes.
pub fn total_len(data: &[Bytes]) -> u64 {
    data.iter().map(|buffer| buffer.len() as u64).sum()
}
