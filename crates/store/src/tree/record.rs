//! Records of pages.

use std::ops::Range;

use bytes::Bytes;

use super::format::{UNIT, record_units};

/// One record of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'p> {
    /// Where it begins in the page, in bytes.
    pub(super) at: usize,
    /// Its length in bytes.
    pub(super) len: usize,
    pub(super) flags: u8,
    pub(super) key: &'p [u8],
    pub(super) value: &'p [u8],
    /// Bytes of room for a value.
    pub(super) room: usize,
}

impl Record<'_> {
    /// Its bytes in the page.
    pub(super) fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }

    pub(super) fn units(&self) -> usize {
        self.len / UNIT
    }

    pub(super) fn needed_units(&self) -> usize {
        record_units(self.key.len(), self.value.len())
    }
}

/// A record that moves from one page to another.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) flags: u8,
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

impl Entry {
    /// The units that it takes as a record.
    pub(super) fn units(&self) -> usize {
        record_units(self.key.len(), self.value.len())
    }
}
