//! Keys at fixed indices, and lists threaded through those indices.
//!
//! A cache of millions of blocks pays for every byte per block, so keys, links and hash chains are flat
//! arrays of `u64` and `u32`: 24 bytes per entry. The table is sized once, for a cache that grows to four
//! times its entries with longer hash chains. A table that grows, or that
//! compacts after removals, would now and then rehash everything while readers wait for the cache's lock.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

/// No index.
const NONE: u32 = u32::MAX;

/// The most entries that an index can hold.
pub(super) const MAX_ENTRIES: u32 = NONE - 1;

/// Entries of a bucket of a cache that has grown to its maximum.
const ENTRIES_PER_BUCKET: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Link {
    younger: u32,
    older: u32,
}

/// Entries `0..`, taken and released, each of which may be bound to a key and be in one list at a time.
#[derive(Debug)]
pub(super) struct Index {
    keys: Vec<u64>,
    links: Vec<Link>,
    /// The first bound entry of each hash bucket; [`Index::next`] has the others.
    buckets: Vec<u32>,
    next: Vec<u32>,
    bound: usize,
    free: List,
}

impl Index {
    /// An index for about `entries` entries, that may become `most`. It holds more, with longer hash chains.
    pub(super) fn new(entries: usize, most: usize) -> Index {
        let buckets = entries.max(most / ENTRIES_PER_BUCKET);
        Index {
            // Memory that is not used yet is reserved alone, so that no array is copied as it grows.
            keys: Vec::with_capacity(most),
            links: Vec::with_capacity(most),
            buckets: vec![NONE; buckets.next_power_of_two()],
            next: Vec::with_capacity(most),
            bound: 0,
            free: List::default(),
        }
    }

    /// How many entries were ever taken: all indices are below this.
    pub(super) fn extent(&self) -> u32 {
        self.keys.len() as u32
    }

    /// How many entries are bound to a key.
    pub(super) fn bound(&self) -> usize {
        self.bound
    }

    /// Takes a released entry.
    pub(super) fn reuse(&mut self) -> Option<u32> {
        let mut free = self.free;
        let entry = free.pop_oldest(self);
        self.free = free;
        entry
    }

    /// A new entry at the end, neither bound nor in a list.
    pub(super) fn extend(&mut self) -> u32 {
        let entry = self.extent();
        assert!(entry < MAX_ENTRIES, "an index holds at most {MAX_ENTRIES} entries");
        self.keys.push(0);
        self.links.push(Link { younger: NONE, older: NONE });
        self.next.push(NONE);
        entry
    }

    /// Releases an entry that is neither bound nor in a list.
    pub(super) fn release(&mut self, entry: u32) {
        let mut free = self.free;
        free.push_youngest(self, entry);
        self.free = free;
    }

    /// The entry bound to `key`.
    pub(super) fn find(&self, key: u64) -> Option<u32> {
        let mut entry = self.buckets[self.bucket(key)];
        while entry != NONE && self.key(entry) != key {
            entry = self.next[entry as usize];
        }
        (entry != NONE).then_some(entry)
    }

    /// The key last bound to `entry`.
    pub(super) fn key(&self, entry: u32) -> u64 {
        self.keys[entry as usize]
    }

    /// Binds `entry` to `key`. Neither is bound before.
    pub(super) fn bind(&mut self, entry: u32, key: u64) {
        debug_assert!(self.find(key).is_none());
        let bucket = self.bucket(key);
        self.keys[entry as usize] = key;
        self.next[entry as usize] = std::mem::replace(&mut self.buckets[bucket], entry);
        self.bound += 1;
    }

    /// Unbinds `entry` from its key.
    pub(super) fn unbind(&mut self, entry: u32) {
        let bucket = self.bucket(self.key(entry));
        let next = self.next[entry as usize];
        if self.buckets[bucket] == entry {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.next[before as usize] != entry {
                before = self.next[before as usize];
            }
            self.next[before as usize] = next;
        }
        self.bound -= 1;
    }

    fn bucket(&self, key: u64) -> usize {
        hash(key) as usize & (self.buckets.len() - 1)
    }
}

/// A hash of `key`, the same in every run.
pub(super) fn hash(key: u64) -> u64 {
    FixedState::with_seed(0).hash_one(key)
}

/// A list of entries from youngest to oldest. Its links live in the [`Index`].
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    youngest: u32,
    oldest: u32,
    len: u32,
}

impl Default for List {
    fn default() -> List {
        List { youngest: NONE, oldest: NONE, len: 0 }
    }
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn push_youngest(&mut self, index: &mut Index, entry: u32) {
        let second = self.youngest;
        index.links[entry as usize] = Link { younger: NONE, older: second };
        match second {
            NONE => self.oldest = entry,
            second => index.links[second as usize].younger = entry,
        }
        self.youngest = entry;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, index: &mut Index, entry: u32) {
        let Link { younger, older } = index.links[entry as usize];
        match younger {
            NONE => self.youngest = older,
            younger => index.links[younger as usize].older = older,
        }
        match older {
            NONE => self.oldest = younger,
            older => index.links[older as usize].younger = younger,
        }
        self.len -= 1;
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn pop_oldest(&mut self, index: &mut Index) -> Option<u32> {
        let entry = self.oldest()?;
        self.remove(index, entry);
        Some(entry)
    }

    pub(super) fn make_youngest(&mut self, index: &mut Index, entry: u32) {
        if self.youngest != entry {
            self.remove(index, entry);
            self.push_youngest(index, entry);
        }
    }
}
