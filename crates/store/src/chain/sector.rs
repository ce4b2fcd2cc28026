//! A sector of the map, as recovery finds it.

use zerocopy::FromBytes;

use super::format::{Entry, MapSector, SectorHead};

/// A map sector as read.
pub(super) enum Sector {
    /// It is valid for this volume and index.
    Whole(SectorHead, Vec<Entry>),
    /// It is not, and looks as if it once was.
    Damaged(Box<MapSector>),
    /// No copy could be read.
    Unreadable,
    /// It is not, and shows no sign that it ever was: never written, or of another volume.
    Other,
}

impl Sector {
    /// The sector `index` of a segment's map in the volume `tag`.
    pub(super) fn decode(bytes: Option<&[u8]>, tag: u32, index: u16) -> Sector {
        let Some(sector) = bytes.and_then(|bytes| MapSector::ref_from_bytes(bytes).ok()) else {
            return Sector::Unreadable;
        };
        match sector.verify(tag, index) {
            Some(head) => Sector::Whole(head, sector.entries().to_vec()),
            None if sector.is_foreign(tag) => Sector::Other,
            None if sector.is_marked(tag, index) => Sector::Damaged(Box::new(*sector)),
            None => Sector::Other,
        }
    }

    /// Its head, if it is whole.
    pub(super) fn head(&self) -> Option<&SectorHead> {
        match self {
            Sector::Whole(head, _) => Some(head),
            _ => None,
        }
    }

    /// The rank among copies, highest wins: a crash may leave them different.
    pub(super) fn rank(&self) -> (u64, u8) {
        match self {
            Sector::Whole(head, _) => (head.seq, head.count),
            Sector::Other => (0, 1),
            Sector::Damaged(_) => (0, 2),
            Sector::Unreadable => (0, 0),
        }
    }

    /// Whether it may be the damaged remnant of a sector that counted.
    pub(super) fn is_ruin(&self) -> bool {
        matches!(self, Sector::Damaged(_) | Sector::Unreadable)
    }
}
