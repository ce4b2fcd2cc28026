//! Records of what was used of a filesystem while a client with a journal was away.

use std::ops::Range;
use std::sync::atomic::Ordering;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::format::{decode_time, encode_time};
use super::fs_state::FsState;
use super::records::later;
use crate::attributes::Ino;
use crate::session_table::{AllUsed, MAX_WRITTEN, UsedByOthers};

/// What keys of records of inodes that other clients have used have behind the session.
pub(super) const USED: [u8; 8] = [0; 8];

/// What keys of records of inodes that were made since a use without a server have behind the session.
pub(super) const MADE: [u8; 9] = [0; 9];

/// What the key of the record of a use without a server has behind the session.
pub(super) const ALL_USED: [u8; 4] = [0; 4];

/// What the record of an inode that other clients have used has behind the time of its last change, if they have only written bytes of
/// it: this, and the ranges, each as its first byte and the one behind it.
const WRITTEN: u8 = 1;

pub(super) fn encode_use(UsedByOthers { changed, written, .. }: &UsedByOthers) -> Vec<u8> {
    let mut value = encode_time(*changed).to_le_bytes().to_vec();
    if let Some(written) = written {
        assert!(written.len() <= MAX_WRITTEN, "the ranges of a use are few");
        value.push(WRITTEN);
        let ends = written.iter().flat_map(|range| [range.start, range.end]);
        value.extend(ends.flat_map(u64::to_le_bytes));
    }
    value
}

pub(super) fn decode_use(ino: Ino, value: &[u8]) -> Option<UsedByOthers> {
    let (changed, rest) = U64::read_from_prefix(value).ok()?;
    let changed = decode_time(changed.get());
    let Some((kind, ranges)) = rest.split_first() else {
        return Some(UsedByOthers { ino, changed, written: None });
    };
    let ranges = <[[U64; 2]]>::ref_from_bytes(ranges).ok()?;
    if *kind != WRITTEN || ranges.len() > MAX_WRITTEN {
        return None;
    }
    let written: Vec<Range<u64>> =
        ranges.iter().map(|[start, end]| start.get()..end.get()).collect();
    let is_valid = written.iter().all(|range| range.start < range.end);
    is_valid.then_some(UsedByOthers { ino, changed, written: Some(written) })
}

/// The record of a use without a server: its time and the position.
pub(super) fn encode_all(AllUsed { noted, position }: &AllUsed) -> Vec<u8> {
    [U64::from(encode_time(*noted)), U64::from(*position)].as_bytes().to_vec()
}

pub(super) fn decode_all(value: &[u8]) -> Option<AllUsed> {
    let [noted, position] = <[U64; 2]>::read_from_bytes(value).ok()?;
    Some(AllUsed { noted: decode_time(noted.get()), position: position.get() })
}

impl FsState {
    /// A use without a server began at a time that changes tell it by.
    pub(super) fn note_all_used(&self, noted: u64) {
        self.all_used.fetch_max(noted.cast_signed(), Ordering::AcqRel);
    }

    /// The time of a change: later than the uses that are noted, also if the clock was set back.
    pub(super) fn behind_uses(&self, now: u64) -> u64 {
        later(now, self.all_used.load(Ordering::Acquire).cast_unsigned())
    }
}
