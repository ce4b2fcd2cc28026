//! The extents of a part of a file, and the record changes that a change of them needs.

use std::ops::Range;

use super::format::Extent;

/// Blocks of data in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) blocks: u64,
}

/// The extents of a window of a file, ascending and apart: as they were and as they become.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    before: Vec<Extent>,
    now: Vec<Extent>,
}

/// A change of one extent's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordChange {
    Put(Extent),
    /// The one that begins at this block of the file goes.
    Delete(u64),
}

impl Layout {
    /// The extents that there are.
    pub(super) fn new(extents: Vec<Extent>) -> Layout {
        let are_apart = extents.windows(2).all(|it| it[0].end() <= it[1].at);
        assert!(are_apart, "overlapping extents are damage, and no layout");
        Layout { now: extents.clone(), before: extents }
    }

    /// The extents as they become.
    pub(super) fn extents(&self) -> &[Extent] {
        &self.now
    }

    /// The block of data behind a block of the file; none is behind one that is lost.
    pub(super) fn block(&self, at: u64) -> Option<u64> {
        let extent = &self.now[self.now.partition_point(|it| it.end() <= at)..].first()?;
        (extent.at <= at && !extent.is_lost()).then(|| extent.start + (at - extent.at))
    }

    /// The first part of a range of the file's blocks that is lost.
    pub(super) fn lost(&self, range: Range<u64>) -> Option<Range<u64>> {
        let within = |it: &Extent| it.at.max(range.start)..it.end().min(range.end);
        let mut lost = self.now.iter().filter(|it| it.is_lost()).map(within);
        lost.find(|part| !part.is_empty())
    }

    /// Turns lost blocks of a range into holes.
    pub(super) fn forget_lost(&mut self, range: Range<u64>) {
        while let Some(lost) = self.lost(range.clone()) {
            self.remove(lost);
        }
    }

    /// Parts of a range of the file's blocks that have none of data, and had none.
    pub(super) fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut holes, mut at) = (Vec::new(), range.start);
        for extent in self.now.iter().filter(|it| it.end() > range.start && it.at < range.end) {
            if extent.at > at {
                holes.push(at..extent.at);
            }
            at = extent.end();
        }
        if at < range.end {
            holes.push(at..range.end);
        }
        holes
    }

    /// The data block that would continue the extent before a block of the file.
    pub(super) fn continuation(&self, at: u64) -> Option<u64> {
        let before = self.now.partition_point(|it| it.at < at).checked_sub(1)?;
        let extent = Some(self.now[before]).filter(|it| !it.is_lost())?;
        Some(extent.start + (at - extent.at))
    }

    /// Gives blocks to a part of the file that has none.
    pub(super) fn insert(&mut self, extent: Extent) {
        let index = self.now.partition_point(|it| it.at < extent.at);
        let is_behind = index == 0 || self.now[index - 1].end() <= extent.at;
        let is_before = self.now.get(index).is_none_or(|next| extent.end() <= next.at);
        assert!(
            extent.blocks > 0 && is_behind && is_before,
            "blocks are given where there are some"
        );
        self.now.insert(index, extent);
        for left in [index, index.wrapping_sub(1)] {
            let (Some(a), Some(b)) = (self.now.get(left), self.now.get(left.wrapping_add(1)))
            else {
                continue;
            };
            let joined = a.blocks + b.blocks;
            let is_next = if a.is_lost() { b.is_lost() } else { a.start + a.blocks == b.start };
            let follows = a.end() == b.at && is_next;
            if follows && joined <= u64::from(u32::MAX) {
                self.now[left].blocks = joined;
                self.now.remove(left + 1);
            }
        }
    }

    /// Removes the blocks of a part of the file and returns them to the caller. Lost extents have none.
    pub(super) fn remove(&mut self, range: Range<u64>) -> Vec<Run> {
        let (mut kept, mut gone) = (Vec::with_capacity(self.now.len() + 1), Vec::new());
        for extent in &self.now {
            let (from, to) = (extent.at.max(range.start), extent.end().min(range.end));
            if from >= to {
                kept.push(*extent);
                continue;
            }
            if !extent.is_lost() {
                gone.push(Run { start: extent.part(from..to).start, blocks: to - from });
            }
            if extent.at < from {
                kept.push(extent.part(extent.at..from));
            }
            if to < extent.end() {
                kept.push(extent.part(to..extent.end()));
            }
        }
        let is_sorted = kept.is_sorted_by(|a, b| a.end() <= b.at);
        assert!(is_sorted, "what is left of a file overlaps: {kept:?}");
        self.now = kept;
        gone
    }

    /// The changes of records, in the order of their keys.
    pub(super) fn changes(&self) -> Vec<RecordChange> {
        let (mut before, mut now) = (self.before.iter().peekable(), self.now.iter().peekable());
        let mut changes = Vec::new();
        loop {
            match (before.peek(), now.peek()) {
                (None, None) => return changes,
                (Some(old), Some(new)) if old.at == new.at => {
                    if old != new {
                        changes.push(RecordChange::Put(**new));
                    }
                    before.next();
                    now.next();
                }
                (Some(old), new) if new.is_none_or(|new| old.at < new.at) => {
                    changes.push(RecordChange::Delete(old.at));
                    before.next();
                }
                (_, Some(new)) => {
                    changes.push(RecordChange::Put(**new));
                    now.next();
                }
                (Some(_), None) => unreachable!("the arm above matches it"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn expand(extents: &[Extent]) -> BTreeMap<u64, u64> {
        extents
            .iter()
            .flat_map(|it| (0..it.blocks).map(|number| (it.at + number, it.start + number)))
            .collect()
    }

    proptest! {
        #[test]
        fn a_layout_is_a_map_of_blocks(
            steps in proptest::collection::vec((any::<bool>(), 0..60u64, 1..20u64, any::<bool>()), 1..40),
        ) {
            let (mut layout, mut model) = (Layout::default(), BTreeMap::new());
            let mut records: BTreeMap<u64, Extent> = BTreeMap::new();
            let mut next = 1000;
            for (adds, at, len, jumps) in steps {
                next += if jumps { 7 } else { 0 };
                if adds {
                    for hole in layout.holes(at..at + len) {
                        let blocks = hole.end - hole.start;
                        layout.insert(Extent { at: hole.start, start: next, blocks });
                        model.extend((0..blocks).map(|n| (hole.start + n, next + n)));
                        next += blocks;
                    }
                } else {
                    let gone: u64 = layout.remove(at..at + len).iter().map(|it| it.blocks).sum();
                    let before = model.len();
                    model.retain(|block, _| !(at..at + len).contains(block));
                    prop_assert_eq!(gone, (before - model.len()) as u64);
                }
                prop_assert_eq!(expand(layout.extents()), model.clone());
                for block in 0..90 {
                    prop_assert_eq!(layout.block(block), model.get(&block).copied());
                }
                for change in layout.changes() {
                    match change {
                        RecordChange::Put(extent) => drop(records.insert(extent.at, extent)),
                        RecordChange::Delete(at) => prop_assert!(records.remove(&at).is_some()),
                    }
                }
                let stored: Vec<Extent> = records.values().copied().collect();
                prop_assert_eq!(&stored[..], layout.extents());
                let joined = stored.windows(2).all(|it| {
                    it[0].end() < it[1].at || it[0].start + it[0].blocks != it[1].start
                });
                prop_assert!(joined || !adds);
                layout = Layout::new(stored);
            }
        }
    }
}
