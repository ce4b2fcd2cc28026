//! What records of inodes say.

use thalweg_store::block::BLOCK_SIZE;

use super::format::{InodeRecord, decode_kind, decode_time, encode_time};
use crate::attributes::{Attributes, Ino, Kind, Timestamp};
use crate::error::FsError;

/// The time as records have it.
pub(super) fn stored_time(nanos: u64) -> u64 {
    encode_time(Timestamp::of_nanos(nanos))
}

/// Of two times the first one, or if it is not later than the second one, the first after that. Both are as
/// [`encode_time`] encodes them.
pub(super) fn later(time: u64, than: u64) -> u64 {
    if time as i64 > than as i64 {
        return time;
    }
    encode_time(decode_time(than).next())
}

/// The type of an inode.
///
/// # Errors
/// [`FsError::Damaged`]
pub(super) fn kind_of(ino: u64, record: &InodeRecord) -> Result<Kind, FsError> {
    decode_kind(record.kind).ok_or_else(|| FsError::Damaged(format!("inode {ino} has no kind")))
}

/// The attributes of an inode.
pub(super) fn attributes_of(ino: u64, record: &InodeRecord) -> Result<Attributes, FsError> {
    Ok(Attributes {
        ino: Ino(ino),
        kind: kind_of(ino, record)?,
        mode: record.mode.get() & 0o7777,
        links: record.links.get(),
        uid: record.uid.get(),
        gid: record.gid.get(),
        rdev: record.rdev.get(),
        size: record.size.get(),
        stored: record.blocks.get().saturating_mul(BLOCK_SIZE as u64),
        accessed: decode_time(record.accessed.get()),
        modified: decode_time(record.modified.get()),
        changed: decode_time(record.changed.get()),
        created: decode_time(record.created.get()),
    })
}
