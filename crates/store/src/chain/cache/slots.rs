//! The SSD tier: which key lies in which slot, and which one makes room.
//!
//! A block that has been read on the SSD is more likely to be read again than one that has not. So it stays longer
//! after its last use, by a factor that the caller gives: with 1 the least recently used block makes room.

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

/// What is known of a slot besides its key.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The time of its block's last use, in the caller's count.
    used: u32,
    generation: u16,
    /// Its block was read here.
    was_read: bool,
}

#[derive(Debug)]
pub(super) struct Slots {
    capacity: u32,
    index: Index,
    slots: Vec<Slot>,
    /// Blocks that were not read here, in the order of their arrival, which is about that of their last use.
    unread: List,
    /// Blocks that were read here, in the order of their last use.
    read: List,
}

impl Slots {
    pub(super) fn new(capacity: u32) -> Slots {
        let capacity = capacity.min(MAX_ENTRIES);
        Slots {
            capacity,
            index: Index::new(capacity as usize, capacity as usize),
            slots: Vec::new(),
            unread: List::default(),
            read: List::default(),
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

    /// Where `key` lies; it is read at the time `now`.
    pub(super) fn touch(&mut self, key: u64, now: u32) -> Option<SlotRef> {
        let slot = self.index.find(key)?;
        self.unlist(slot);
        self.read.push_youngest(&mut self.index, slot);
        let state = &mut self.slots[slot as usize];
        (state.used, state.was_read) = (now, true);
        Some(SlotRef { slot, generation: state.generation })
    }

    /// Whether `key` has lain at `at` without a break since `at` was returned for it.
    pub(super) fn is_current(&self, key: u64, at: SlotRef) -> bool {
        self.index.find(key) == Some(at.slot)
            && self.slots[at.slot as usize].generation == at.generation
    }

    /// A slot to write to at the time `now`: a free one, or that of the block that makes room, which is dropped. A
    /// block that was read stays `favour` times as long as another. `None` when every slot is being written. The
    /// slot is the caller's until [`Slots::insert`] or [`Slots::release`].
    pub(super) fn take(&mut self, now: u32, favour: u32) -> Option<u32> {
        let slot = if let Some(slot) = self.index.reuse() {
            slot
        } else if self.index.extent() < self.capacity {
            self.slots.push(Slot::default());
            self.index.extend()
        } else {
            let slot = self.oldest(now, favour)?;
            self.unlist(slot);
            self.index.unbind(slot);
            slot
        };
        let generation = &mut self.slots[slot as usize].generation;
        *generation = generation.wrapping_add(1);
        Some(slot)
    }

    /// The slot whose block makes room.
    fn oldest(&self, now: u32, favour: u32) -> Option<u32> {
        // The count may wrap: a block of one full turn ago then counts as just used.
        let age = |slot: u32| u64::from(now.wrapping_sub(self.slots[slot as usize].used));
        match (self.unread.oldest(), self.read.oldest()) {
            (Some(unread), Some(read)) => match age(read) > age(unread) * u64::from(favour) {
                true => Some(read),
                false => Some(unread),
            },
            (unread, read) => unread.or(read),
        }
    }

    /// Puts `key`, last used at `used`, into a taken slot.
    pub(super) fn insert(&mut self, slot: u32, key: u64, used: u32) {
        self.index.bind(slot, key);
        self.unread.push_youngest(&mut self.index, slot);
        let state = &mut self.slots[slot as usize];
        (state.used, state.was_read) = (used, false);
    }

    /// Releases a taken slot.
    pub(super) fn release(&mut self, slot: u32) {
        self.index.release(slot);
    }

    /// Drops `key`; returns whether it was present.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let Some(slot) = self.index.find(key) else { return false };
        self.unlist(slot);
        self.index.unbind(slot);
        self.index.release(slot);
        true
    }

    fn unlist(&mut self, slot: u32) {
        let list = match self.slots[slot as usize].was_read {
            true => &mut self.read,
            false => &mut self.unread,
        };
        list.remove(&mut self.index, slot);
    }
}
