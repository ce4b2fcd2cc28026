//! The places of one block, without a copy.

use super::{ABSENT, HOLE, Index, Location, Place, SEVERAL, Versioned};

/// The index entry of one block, without a copy.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Places<'a> {
    /// Nothing was ever stored.
    Absent,
    /// One version.
    One(Place),
    /// Several, ascending.
    Several(&'a [Versioned]),
}

impl Index {
    /// The entry of one block, without a copy.
    pub(in super::super) fn places(&self, lba: u32) -> Places<'_> {
        let slot = self.slot(lba);
        match slot.block {
            ABSENT => Places::Absent,
            HOLE => Places::One(Place::Hole(slot.check)),
            SEVERAL => Places::Several(self.several.get(&lba).map_or(&[], |them| &them[..])),
            block => Places::One(Place::At(Location { block, check: slot.check })),
        }
    }
}
