//! The running transaction, and what it will put into the journal.

use std::time::Duration;

use bytes::Bytes;
use thalweg_env::{HashMap, Time};

use super::format::{NOTE_CLEARED, NOTE_DIRECT};
use super::page::Content;
use super::route::Route;
use crate::block::{BLOCK_SIZE, ByteRanges, Class, Lba, Version, Write, difference};
use crate::journal::{Record, Update, Void};

/// Typical size of a tag in bytes: shorter gaps between ranges are journaled too.
const TAG: usize = 4;
/// Maximum size of a tag in bytes, and so of a block of which nothing else is journaled.
pub(super) const MOST_OF_A_TAG: usize = 16;

/// Maximum of bytes that a write takes in the journal, whatever its route.
pub(super) fn most_room(write: &Write) -> usize {
    let bytes = write.changed.bytes() + MOST_OF_A_TAG * write.changed.count();
    MOST_OF_A_TAG
        + match (&write.content, write.class) {
            (None, _) => 0,
            // A mode may journal a data block as a whole.
            (Some(_), Class::Data) => BLOCK_SIZE,
            (Some(_), Class::Metadata) => bytes.min(BLOCK_SIZE),
        }
}

/// All changes that one transaction makes to a block.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Its content now.
    pub(super) content: Content,
    pub(super) class: Class,
    /// Its route; irrelevant when the block was discarded.
    pub(super) route: Route,
    /// The bytes that changed.
    pub(super) ranges: ByteRanges,
    /// The block was empty before the transaction, or was discarded in it.
    pub(super) fresh: bool,
}

/// The running transaction.
#[derive(Debug, Default)]
pub(super) struct Running {
    changes: HashMap<u64, Change>,
    /// Maximum of bytes that its changes take in the journal: the sum of [`Change::room`].
    bytes: usize,
    /// When it began; `None` while it is empty.
    begun: Option<Time>,
    /// Maximum of bytes that the transaction under commit takes in the journal.
    closing: usize,
}

impl Running {
    /// Adds a change of a block.
    pub(super) fn add(&mut self, lba: u64, new: Change, now: Time) {
        self.begun.get_or_insert(now);
        match self.changes.get_mut(&lba) {
            Some(change) => {
                self.bytes -= change.room();
                change.merge(new);
                self.bytes += change.room();
            }
            None => {
                self.bytes += new.room();
                self.changes.insert(lba, new);
            }
        }
    }

    /// Closes the transaction, whose last version is `version`, and begins another one.
    pub(super) fn close(&mut self, version: Version) -> Closed {
        let running = std::mem::take(self);
        self.closing = running.bytes;
        let mut changes: Vec<(u64, Change)> = running.changes.into_iter().collect();
        changes.sort_unstable_by_key(|(lba, _)| *lba);
        Closed { version, changes }
    }

    /// The closed transaction is in the journal.
    pub(super) fn committed(&mut self) {
        self.closing = 0;
    }

    /// Number of blocks that it changes.
    pub(super) fn blocks(&self) -> usize {
        self.changes.len()
    }

    /// Maximum of bytes that its changes take in the journal.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maximum of bytes that it and the transaction under commit take in the journal.
    pub(super) fn bytes_to_come(&self) -> usize {
        self.bytes + self.closing
    }

    /// Its age; `None` while it is empty.
    pub(super) fn age(&self, now: Time) -> Option<Duration> {
        self.begun.map(|begun| now.since(begun))
    }
}

/// A closed transaction, to be appended to the journal.
#[derive(Debug)]
pub(super) struct Closed {
    /// The last version in it.
    pub(super) version: Version,
    /// Its changes, ordered by block.
    pub(super) changes: Vec<(u64, Change)>,
}

impl Change {
    /// Merges a later change in the same transaction.
    fn merge(&mut self, new: Change) {
        let was_cleared = self.content.is_none();
        (self.content, self.class) = (new.content, new.class);
        match (&self.content, was_cleared) {
            (None, _) => {}
            (Some(_), true) => {
                (self.route, self.ranges, self.fresh) = (new.route, new.ranges, true)
            }
            (Some(_), false) => {
                self.ranges.add_all(&new.ranges);
                if self.route == Route::Bytes {
                    self.route = new.route;
                }
            }
        }
    }

    /// Whether it bypasses the journal.
    pub(super) fn is_direct(&self) -> bool {
        self.content.is_some() && self.route == Route::Direct
    }

    /// Maximum of bytes that it takes in the journal, without padding.
    pub(super) fn room(&self) -> usize {
        MOST_OF_A_TAG
            + match self.route {
                _ if self.content.is_none() => 0,
                Route::Direct => 0,
                Route::Bytes if self.is_small() => {
                    self.ranges.bytes() + MOST_OF_A_TAG * self.ranges.count()
                }
                Route::Bytes | Route::Whole => BLOCK_SIZE,
            }
    }

    /// Its updates in the journal. A direct change revokes older updates of its block: recovery may
    /// begin with transactions that were released.
    fn updates(&self, lba: u64, to: &mut Vec<Update<Lba>>) {
        let at = Lba(lba);
        let Some(content) = &self.content else {
            return add_void(to, Void { at, count: 1, note: NOTE_CLEARED });
        };
        match self.route {
            Route::Direct => add_void(to, Void { at, count: 1, note: NOTE_DIRECT }),
            Route::Bytes if self.is_small() => {
                for (nth, range) in self.ranges.iter().enumerate() {
                    to.push(Update::Bytes {
                        at,
                        offset: range.start,
                        bytes: content.slice(range),
                        fresh: self.fresh && nth == 0,
                    });
                }
            }
            Route::Bytes | Route::Whole => {
                to.push(Update::Whole { at, content: content.clone() });
            }
        }
    }

    /// Whether its bytes and their tags take less than the block.
    fn is_small(&self) -> bool {
        self.ranges.bytes() + TAG * self.ranges.count() < BLOCK_SIZE
    }
}

/// Adds a run, or extends the last one.
fn add_void(to: &mut Vec<Update<Lba>>, void: Void<Lba>) {
    if let Some(Update::Void(last)) = to.last_mut()
        && last.note == void.note
        && last.at.0 + last.count == void.at.0
    {
        last.count += void.count;
        return;
    }
    to.push(Update::Void(void));
}

impl Closed {
    /// The journal's record of the transaction.
    pub(super) fn record(&self) -> Record<Lba> {
        let mut updates = Vec::with_capacity(self.changes.len());
        for (lba, change) in &self.changes {
            change.updates(*lba, &mut updates);
        }
        Record { stamp: self.version.0, updates }
    }
}

/// The bytes that a write of `new` changes in a block; the bytes of short gaps count as changed.
pub(super) fn changed_bytes(within: &ByteRanges, old: Option<&Bytes>, new: &Bytes) -> ByteRanges {
    difference(within, old.map(AsRef::as_ref), new, TAG)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change() -> impl Strategy<Value = Change> {
        let ranges = proptest::collection::vec((0..BLOCK_SIZE, 1..300usize), 1..30);
        let route = prop_oneof![Just(Route::Bytes), Just(Route::Whole), Just(Route::Direct)];
        (ranges, route, any::<bool>(), any::<bool>()).prop_map(|(parts, route, empty, fresh)| {
            let mut ranges = ByteRanges::none();
            for (start, len) in parts {
                ranges.add(start..(start + len).min(BLOCK_SIZE));
            }
            let content = (!empty).then(|| Bytes::from(vec![1; BLOCK_SIZE]));
            Change { content, class: Class::Data, route, ranges, fresh }
        })
    }

    proptest! {
        #[test]
        fn changes_take_no_more_than_their_room(
            changes in proptest::collection::btree_map(any::<u64>(), change(), 1..20),
        ) {
            let room: usize = changes.values().map(Change::room).sum();
            let closed = Closed { version: Version(1), changes: changes.into_iter().collect() };
            prop_assert!(closed.record().bytes() <= room);
        }

        #[test]
        fn every_byte_that_differs_is_in_and_few_others(
            changes in proptest::collection::vec((0..BLOCK_SIZE, 1..40usize), 0..12),
            from in 0..BLOCK_SIZE,
            zeros in any::<bool>(),
        ) {
            let old = Bytes::from(vec![if zeros { 0 } else { 3 }; BLOCK_SIZE]);
            let mut new = old.to_vec();
            for (start, len) in changes {
                let end = (start + len).min(BLOCK_SIZE);
                new[start.max(from).min(end)..end].iter_mut().for_each(|byte| *byte ^= 9);
            }
            let new = Bytes::from(new);
            let within = ByteRanges::from(from..BLOCK_SIZE);
            let found = changed_bytes(&within, (!zeros).then_some(&old), &new);
            let mut covered = vec![false; BLOCK_SIZE];
            found.iter().for_each(|range| covered[range].fill(true));
            for at in 0..BLOCK_SIZE {
                prop_assert!(covered[at] || old[at] == new[at], "byte {} is left out", at);
            }
            let ranges: Vec<_> = found.iter().collect();
            for range in &ranges {
                prop_assert!(old[range.start] != new[range.start]);
                prop_assert!(old[range.end - 1] != new[range.end - 1]);
            }
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end + TAG < pair[1].start));
        }
    }
}
