//! Blocks written by fragments: they have no physical block yet, but a *slot*, a number above every physical
//! block under which the index refers to them, and which holds their content.

use bytes::Bytes;
use slab::Slab;

use super::super::index::{FIRST_SLOT, LAST_SLOT, Location};
use super::format::Fragment;
use crate::block::{BLOCK_SIZE, ByteRanges, Version};

/// One version of a block.
#[derive(Clone, Debug)]
pub(in super::super) struct Slot {
    pub(in super::super) lba: u32,
    pub(in super::super) version: Version,
    /// The whole block; `None` while its log is replayed, and when its base could not be read.
    pub(in super::super) content: Option<Bytes>,
    /// While a log is replayed: its base and fragments.
    pub(in super::super) overlay: Option<Box<Overlay>>,
}

impl Slot {
    /// A version whose content is known.
    pub(in super::super) fn new(lba: u32, version: Version, content: Bytes) -> Slot {
        Slot { lba, version, content: Some(content), overlay: None }
    }

    /// A version whose content is not known yet.
    pub(in super::super) fn replayed(lba: u32, version: Version, overlay: Box<Overlay>) -> Slot {
        Slot { lba, version, content: None, overlay: Some(overlay) }
    }
}

/// Slots in use.
#[derive(Debug, Default)]
pub(in super::super) struct Slots {
    slots: Slab<Slot>,
    /// Where the search for the next slot to settle begins. It goes round, so that blocks which are written
    /// all the time do not keep the others from being settled.
    cursor: usize,
}

/// The place of a slot's number.
fn place(number: u32) -> usize {
    debug_assert!((FIRST_SLOT..LAST_SLOT).contains(&number));
    (number - FIRST_SLOT) as usize
}

impl Slots {
    /// How many are in use.
    pub(in super::super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes a slot; its number. Numbers are used again.
    pub(in super::super) fn take(&mut self, slot: Slot) -> u32 {
        let number = FIRST_SLOT + self.slots.insert(slot) as u32;
        debug_assert!(number < LAST_SLOT);
        number
    }

    pub(in super::super) fn get(&self, number: u32) -> Option<&Slot> {
        self.slots.get(place(number))
    }

    /// Frees a slot; returns its content.
    pub(in super::super) fn free(&mut self, number: u32) -> Option<Bytes> {
        self.slots.try_remove(place(number))?.content
    }

    /// The next slot to settle.
    pub(in super::super) fn next(&mut self) -> Option<(u32, &Slot)> {
        if self.slots.is_empty() {
            return None;
        }
        let end = self.slots.capacity();
        let mut places = (self.cursor..end).chain(0..self.cursor.min(end));
        let found = places.find(|place| self.slots.contains(*place))?;
        self.cursor = found;
        Some((FIRST_SLOT + found as u32, self.slots.get(found)?))
    }

    /// The locations of the bases of slots that are not filled yet.
    pub(in super::super) fn bases(&self) -> impl Iterator<Item = u32> + '_ {
        let overlays = self.slots.iter().filter_map(|(_, slot)| slot.overlay.as_ref());
        overlays.filter_map(|overlay| Some(overlay.base?.block))
    }

    /// Gives a slot its content.
    pub(in super::super) fn fill(&mut self, number: u32, content: Bytes) {
        if let Some(slot) = self.slots.get_mut(place(number)) {
            slot.content = Some(content);
        }
    }

    /// Takes the base and fragments of each slot that is not filled yet.
    pub(in super::super) fn take_overlays(&mut self) -> Vec<(u32, u32, Box<Overlay>)> {
        let slots = self.slots.iter_mut();
        let taken = |(place, slot): (usize, &mut Slot)| {
            Some((FIRST_SLOT + place as u32, slot.lba, slot.overlay.take()?))
        };
        slots.filter_map(taken).collect()
    }
}

/// Fragments over a base that is read later.
#[derive(Clone, Debug)]
pub(in super::super) struct Overlay {
    /// Location of the base; `None` for zeros.
    pub(in super::super) base: Option<Location>,
    bytes: Vec<u8>,
    changed: ByteRanges,
}

impl Overlay {
    /// No fragments yet.
    pub(in super::super) fn over(base: Option<Location>) -> Box<Overlay> {
        Box::new(Overlay { base, bytes: vec![0; BLOCK_SIZE], changed: ByteRanges::none() })
    }

    /// Adds a newer fragment.
    pub(in super::super) fn add(&mut self, fragment: &Fragment) {
        for (offset, bytes) in &fragment.pieces {
            let range = usize::from(*offset)..usize::from(*offset) + bytes.len();
            self.bytes[range.clone()].copy_from_slice(bytes);
            self.changed.add(range);
        }
        if self.changed.is_whole() {
            self.base = None;
        }
    }

    /// The content, given that of the base.
    pub(in super::super) fn onto(&self, content: &mut [u8]) {
        self.changed.copy(&self.bytes, content);
    }
}
