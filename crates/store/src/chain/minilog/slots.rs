//! Blocks written by fragments: they have no physical block yet, but a *slot*, a number above every
//! physical one under which the index refers to them and `State::pending` holds their content.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::index::{FIRST_SLOT, LAST_SLOT, Location};
use super::format::Fragment;
use crate::block::{BLOCK_SIZE, ByteRanges, Version};

/// One version of a block.
#[derive(Clone, Debug)]
pub(in super::super) struct Slot {
    pub(in super::super) lba: u32,
    pub(in super::super) version: Version,
    /// While a log is replayed: what its content will be made of.
    pub(in super::super) overlay: Option<Box<Overlay>>,
}

/// Slots in use.
#[derive(Debug, Default)]
pub(in super::super) struct Slots {
    next: u32,
    slots: BTreeMap<u32, Slot>,
}

impl Slots {
    /// How many are in use.
    pub(in super::super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes a slot for `version` of a block.
    pub(in super::super) fn take(
        &mut self,
        lba: u32,
        version: Version,
        overlay: Option<Box<Overlay>>,
    ) -> u32 {
        loop {
            let number = FIRST_SLOT + self.next;
            self.next = (self.next + 1) % (LAST_SLOT - FIRST_SLOT);
            if let Entry::Vacant(vacant) = self.slots.entry(number) {
                vacant.insert(Slot { lba, version, overlay });
                return number;
            }
        }
    }

    pub(in super::super) fn get(&self, number: u32) -> Option<&Slot> {
        self.slots.get(&number)
    }

    pub(in super::super) fn free(&mut self, number: u32) {
        self.slots.remove(&number);
    }

    /// One of those that have been in use for longest.
    pub(in super::super) fn first(&self) -> Option<(u32, &Slot)> {
        self.slots.first_key_value().map(|(number, slot)| (*number, slot))
    }

    /// Where the bases lie of slots whose content nobody has fetched yet.
    pub(in super::super) fn bases(&self) -> impl Iterator<Item = u32> + '_ {
        let overlays = self.slots.values().filter_map(|slot| slot.overlay.as_ref());
        overlays.filter_map(|overlay| Some(overlay.base?.block))
    }

    /// What each slot's content is made of, as far as nobody has fetched that yet.
    pub(in super::super) fn take_overlays(&mut self) -> Vec<(u32, u32, Box<Overlay>)> {
        let slots = self.slots.iter_mut();
        slots.filter_map(|(number, slot)| Some((*number, slot.lba, slot.overlay.take()?))).collect()
    }
}

/// Fragments over a block that need not be read before all of them are there.
#[derive(Clone, Debug)]
pub(in super::super) struct Overlay {
    /// Where the content without them lies; `None` for zeros.
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
