//! The SSD tier: which key lies in which slot, least recently used first out.

use super::index::{Index, List, MAX_ENTRIES};

/// A slot of the SSD in one of its uses; see [`Slots::is_current`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// The slot: the block at byte `slot * BLOCK_SIZE` of the SSD.
    pub slot: u32,
    /// Counts the uses of the slot. It may wrap: a read would have to outlast 65,536 rewrites of its slot,
    /// and the reader's checksum would still fail.
    generation: u16,
}

#[derive(Debug)]
pub(super) struct Slots {
    capacity: u32,
    index: Index,
    generations: Vec<u16>,
    recency: List,
}

impl Slots {
    pub(super) fn new(capacity: u32) -> Slots {
        let capacity = capacity.min(MAX_ENTRIES);
        Slots {
            capacity,
            index: Index::new(capacity as usize, capacity as usize),
            generations: Vec::new(),
            recency: List::default(),
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.index.bound()
    }

    pub(super) fn extent(&self) -> u32 {
        self.index.extent()
    }

    /// The key in `slot`, if there is one.
    pub(super) fn key(&self, slot: u32) -> Option<u64> {
        let key = self.index.key(slot);
        (self.index.find(key) == Some(slot)).then_some(key)
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        self.index.find(key).is_some()
    }

    /// Where `key` lies; it is now the most recently used.
    pub(super) fn touch(&mut self, key: u64) -> Option<SlotRef> {
        let slot = self.index.find(key)?;
        self.recency.make_youngest(&mut self.index, slot);
        Some(SlotRef { slot, generation: self.generations[slot as usize] })
    }

    /// Whether `key` has lain at `at` without a break since `at` was returned for it.
    pub(super) fn is_current(&self, key: u64, at: SlotRef) -> bool {
        self.index.find(key) == Some(at.slot) && self.generations[at.slot as usize] == at.generation
    }

    /// A slot to write to: a free one, or that of the least recently used key, which is dropped. `None` when
    /// every slot is being written. The slot is the caller's until [`Slots::insert`] or [`Slots::release`].
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = if let Some(slot) = self.index.reuse() {
            slot
        } else if self.index.extent() < self.capacity {
            self.generations.push(0);
            self.index.extend()
        } else {
            let slot = self.recency.pop_oldest(&mut self.index)?;
            self.index.unbind(slot);
            slot
        };
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
        Some(slot)
    }

    /// Puts `key` into a taken slot, as the most recently used.
    pub(super) fn insert(&mut self, slot: u32, key: u64) {
        self.index.bind(slot, key);
        self.recency.push_youngest(&mut self.index, slot);
    }

    /// Releases a taken slot.
    pub(super) fn release(&mut self, slot: u32) {
        self.index.release(slot);
    }

    /// Drops `key`; returns whether it was present.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let Some(slot) = self.index.find(key) else { return false };
        self.recency.remove(&mut self.index, slot);
        self.index.unbind(slot);
        self.index.release(slot);
        true
    }
}
