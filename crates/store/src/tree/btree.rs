//! The B-tree (IsoBT): ordered keys in nodes without links to their neighbours.
//!
//! Inner nodes map separators to children; the first child covers all keys below the second separator. The
//! root stays in its block: when it is full its records move to a new child. Leaves are not linked: a scan
//! that has read one descends again for the next.
//!
//! A search depends on few bytes, since every change of its outcome writes into the leaf where it ended:
//! giving a key another value, moving its record or removing it writes into that record; adding a key writes
//! into the count of its leaf; splitting, merging or freeing the leaf does both. So a search that found its
//! key depends on the record, one that did not on the leaf's membership, and neither on the nodes above.

use std::ops::Bound;

use bytes::Bytes;

use super::descent::{Target, child, descend};
use super::error::TreeError;
use super::format::{LIVE, MAX_LEVEL, MEMBERSHIP, PageKind};
use super::page::{Page, damaged};
use super::record::Entry;
use super::units::fits;
use super::value::Stored;
use super::way::{Step, Way};
use super::work::Work;

/// Units that a split moves, if it can. The moved records are written anew: a third of a page is still
/// written as a small write, and half a page would be written as a whole one.
const MOVED_UNITS: usize = 80;
/// A node with fewer units of records is merged with a neighbour if possible.
const LOW_UNITS: usize = 64;
/// Two nodes are merged if they have at most so many units of records.
const MERGED_UNITS: usize = 190;

/// A record for a child.
fn child_entry(key: Bytes, block: u32) -> Entry {
    Entry { flags: LIVE, key, value: Bytes::copy_from_slice(&block.to_le_bytes()) }
}

/// The value of a key as its record has it.
pub(super) async fn find(work: &mut Work<'_>, key: &[u8]) -> Result<Option<Stored>, TreeError> {
    let leaf = descend(work, Target::Key(key)).await?.leaf;
    let page = work.page(leaf)?;
    match page.search(key)? {
        Ok(index) => {
            let (range, flags, value) = page.value(index)?;
            work.depend(leaf, range)?;
            Ok(Some(work.stored(leaf, flags, value)?))
        }
        Err(_) => {
            work.depend(leaf, MEMBERSHIP)?;
            Ok(None)
        }
    }
}

/// The record with the greatest key at or below `key`, or none. The outcome depends on that record alone.
pub(super) async fn floor(
    work: &mut Work<'_>,
    key: &[u8],
) -> Result<Option<(Bytes, Stored)>, TreeError> {
    let mut way = descend(work, Target::Key(key)).await?;
    loop {
        let leaf = way.leaf;
        let page = work.page(leaf)?;
        let above = match page.search(key)? {
            Ok(index) => index + 1,
            Err(index) => index,
        };
        if let Some(index) = above.checked_sub(1) {
            let (range, entry) = (page.record(index)?.range(), page.entry(index)?);
            work.depend(leaf, range)?;
            let stored = work.stored(leaf, entry.flags, entry.value)?;
            return Ok(Some((entry.key, stored)));
        }
        let Some(low) = work.low(&way)? else { return Ok(None) };
        way = descend(work, Target::Before(&low)).await?;
        if work.low(&way)?.is_some_and(|before| before >= low) {
            return Err(damaged(way.leaf, "the separators around it are not in order"));
        }
    }
}

/// Gives a key a value.
pub(super) async fn put(work: &mut Work<'_>, key: &[u8], value: Bytes) -> Result<(), TreeError> {
    let way = descend(work, Target::Key(key)).await?;
    let leaf = way.leaf;
    let page = work.page(leaf)?;
    match page.search(key)? {
        Ok(index) => {
            let (range, flags, value_before) = page.value(index)?;
            work.depend(leaf, range)?;
            let stored = work.stored(leaf, flags, value_before)?;
            let (flags, value) = work.store(key, value, Some(stored)).await?;
            let page = work.page(leaf)?;
            if page.replace(index, flags, &value)? {
                return Ok(());
            }
            page.remove(index)?;
            let entry = Entry { flags, key: Bytes::copy_from_slice(key), value };
            insert(work, way, index, entry).await
        }
        Err(index) => {
            work.depend(leaf, MEMBERSHIP)?;
            let (flags, value) = work.store(key, value, None).await?;
            let entry = Entry { flags, key: Bytes::copy_from_slice(key), value };
            insert(work, way, index, entry).await
        }
    }
}

/// Adds a record at `index` of the leaf at the end of `way`; full nodes are split.
async fn insert(
    work: &mut Work<'_>,
    mut way: Way,
    mut index: usize,
    mut entry: Entry,
) -> Result<(), TreeError> {
    let mut block = way.leaf;
    loop {
        let page = work.page(block)?;
        if page.insert(index, &entry)? {
            return Ok(());
        }
        let (parent, full) = match way.steps.pop() {
            Some(step) => (step.block, block),
            None => (block, push_down(work, block).await?),
        };
        entry = split(work, full, index, entry).await?;
        block = parent;
        index = child_index(work.page(block)?, &entry.key)?;
    }
}

/// The index in an inner node at which a child with this separator is inserted.
fn child_index(page: &Page, separator: &[u8]) -> Result<usize, TreeError> {
    match page.search(separator)? {
        Err(index) => Ok(index),
        Ok(_) => Err(page.damaged("two children have the same separator")),
    }
}

/// Moves the root's records to a new child. Returns the child.
async fn push_down(work: &mut Work<'_>, root: u32) -> Result<u32, TreeError> {
    let page = work.page(root)?;
    let (level, entries) = (page.level(), page.entries()?);
    if level >= MAX_LEVEL {
        return Err(page.damaged("it is too high"));
    }
    let child = work.allocate_one().await?;
    let page = work.create(child, PageKind::Node, level).await?;
    page.fill(&entries)?;
    let page = work.page(root)?;
    page.fill(&[child_entry(Bytes::new(), child)])?;
    page.set_level(level + 1);
    Ok(child)
}

/// Splits a node that has no room for `entry` at `index`, and adds it. Returns the parent's record for the
/// new node.
async fn split(
    work: &mut Work<'_>,
    block: u32,
    index: usize,
    entry: Entry,
) -> Result<Entry, TreeError> {
    let page = work.page(block)?;
    let level = page.level();
    let mut entries = page.entries()?;
    entries.insert(index, entry.clone());
    let at = split_point(&entries, index).ok_or_else(|| page.damaged("it cannot be split"))?;
    let separator = match level {
        0 => shortest_separator(&entries[at - 1].key, &entries[at].key),
        _ => entries[at].key.clone(),
    };
    let stay = if index < at { at - 1 } else { at };
    page.retain(|number, _| number < stay)?;
    // The new record alone may move, behind all others.
    page.touch_membership();
    if index < at && !page.insert(index, &entry)? {
        return Err(page.damaged("a half of it does not fit"));
    }
    let right = work.allocate_one().await?;
    let page = work.create(right, PageKind::Node, level).await?;
    for (number, entry) in entries[at..].iter().enumerate() {
        if !page.insert(number, entry)? {
            return Err(page.damaged("a half of another node does not fit"));
        }
    }
    Ok(child_entry(separator, right))
}

/// How many of these records stay. When the new one is the last, all others stay: keys that are added in
/// order fill their nodes.
fn split_point(entries: &[Entry], new: usize) -> Option<usize> {
    let count = entries.len();
    let all: usize = entries.iter().map(Entry::units).sum();
    if new + 1 == count && count > 1 {
        return Some(new);
    }
    let mut stay = 0;
    let points = (1..count).filter_map(|at| {
        stay += entries[at - 1].units();
        let go = all - stay;
        (fits(at, stay) && fits(count - at, go)).then(|| (go.abs_diff(MOVED_UNITS), at))
    });
    points.min().map(|(_, at)| at)
}

/// The shortest key above `left` and at or below `right`.
fn shortest_separator(left: &[u8], right: &Bytes) -> Bytes {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right.slice(..(common + 1).min(right.len()))
}

/// Removes a key. Returns whether it was present.
pub(super) async fn delete(work: &mut Work<'_>, key: &[u8]) -> Result<bool, TreeError> {
    let way = descend(work, Target::Key(key)).await?;
    let leaf = way.leaf;
    let page = work.page(leaf)?;
    let Ok(index) = page.search(key)? else {
        work.depend(leaf, MEMBERSHIP)?;
        return Ok(false);
    };
    let (range, flags, value) = page.value(index)?;
    page.remove(index)?;
    work.depend(leaf, range)?;
    let stored = work.stored(leaf, flags, value)?;
    work.release(stored).await?;
    shrink(work, way).await?;
    Ok(true)
}

/// Adds a leaf that no node refers to. No key of the tree may lie between its first key and its last.
pub(super) async fn graft(work: &mut Work<'_>, leaf: u32) -> Result<(), TreeError> {
    let page = work.load(leaf, PageKind::Node).await?;
    let (first, last) = (page.entry(0)?.key, page.entry(page.count().saturating_sub(1))?.key);
    let root = work.area.root();
    let page = work.load(root, PageKind::Node).await?;
    if page.level() == 0 && page.count() == 0 {
        page.fill(&[child_entry(Bytes::new(), leaf)])?;
        page.set_level(1);
        return Ok(());
    }
    if page.level() == 0 {
        push_down(work, root).await?;
    }
    let Way { mut steps, leaf: there, .. } = descend(work, Target::Key(&first)).await?;
    let parent = steps.pop().ok_or_else(|| damaged(root, "it has no children"))?;
    let page = work.page(there)?;
    let before = page.entry(page.count().saturating_sub(1))?.key < first;
    let behind = page.entry(0)?.key;
    let new = match before {
        true => child_entry(first, leaf),
        false if behind > last => {
            work.forget_ways();
            let entry = child_entry(behind, there);
            let way = Bytes::copy_from_slice(&leaf.to_le_bytes());
            work.page(parent.block)?.replace(parent.index, LIVE, &way)?;
            entry
        }
        false => return Err(damaged(leaf, "keys of the tree are between its own")),
    };
    let index = child_index(work.page(parent.block)?, &new.key)?;
    insert(work, Way { steps, leaf: parent.block }, index, new).await
}

/// Frees the leaf at the end of `way` when it is empty, or merges it with a neighbour when it has little, and
/// continues above it.
async fn shrink(work: &mut Work<'_>, mut way: Way) -> Result<(), TreeError> {
    let mut block = way.leaf;
    while let Some(step) = way.steps.pop() {
        let page = work.page(block)?;
        if page.count() == 0 {
            work.page(step.block)?.remove(step.index)?;
            work.free(block, 1).await?;
        } else if page.needed_units()? >= LOW_UNITS || !merge(work, step).await? {
            return Ok(());
        }
        block = step.block;
    }
    lower(work, block).await
}

/// Merges the child at `step` with a neighbour, if one page has room for both.
async fn merge(work: &mut Work<'_>, step: Step) -> Result<bool, TreeError> {
    let parent = work.page(step.block)?;
    let (count, level) = (parent.count(), parent.level());
    let neighbours = [step.index.checked_sub(1), Some(step.index)];
    for left in neighbours.into_iter().flatten().filter(|left| left + 1 < count) {
        let parent = work.page(step.block)?;
        let (a, b) = (child(parent, left)?, child(parent, left + 1)?);
        let separator = parent.entry(left + 1)?.key;
        let mut entries = Vec::new();
        for block in [a, b] {
            work.check_pointer(step.block, block)?;
            let page = work.load(block, PageKind::Node).await?;
            if page.level() + 1 != level {
                return Err(page.damaged("it is at the wrong height"));
            }
            let mut more = page.entries()?;
            if let Some(first) = more.first_mut().filter(|_| block == b && level > 1) {
                // It is no longer a first child, so its key must now be the separator.
                first.key = separator.clone();
            }
            entries.push(more);
        }
        let all = entries.concat();
        let units: usize = all.iter().map(Entry::units).sum();
        if units > MERGED_UNITS || !fits(all.len(), units) {
            continue;
        }
        let (stay, more) = (entries[0].len(), &entries[1]);
        let page = work.page(a)?;
        for (number, entry) in more.iter().enumerate() {
            if !page.insert(stay + number, entry)? {
                return Err(page.damaged("its neighbour does not fit"));
            }
        }
        work.page(step.block)?.remove(left + 1)?;
        work.free(b, 1).await?;
        return Ok(true);
    }
    Ok(false)
}

/// Lowers the root while it has only one child.
async fn lower(work: &mut Work<'_>, root: u32) -> Result<(), TreeError> {
    loop {
        let page = work.page(root)?;
        let (level, count) = (page.level(), page.count());
        if level > 0 && count == 0 {
            page.fill(&[])?;
            page.set_level(0);
        }
        if level == 0 || count != 1 {
            return Ok(());
        }
        let only = child(page, 0)?;
        work.check_pointer(root, only)?;
        let page = work.load(only, PageKind::Node).await?;
        if page.level() + 1 != level {
            return Err(page.damaged("it is at the wrong height"));
        }
        let entries = page.entries()?;
        let page = work.page(root)?;
        page.fill(&entries)?;
        page.set_level(level - 1);
        work.free(only, 1).await?;
    }
}

/// A part of a scan: the records of one leaf within a range, in the scan's order, and the remaining range, if
/// any.
pub(super) struct Part {
    pub(super) entries: Vec<(Bytes, Stored)>,
    pub(super) rest: Option<Bound<Bytes>>,
}

/// The first leaf's part of a range.
pub(super) async fn ascend(
    work: &mut Work<'_>,
    from: &Bound<Bytes>,
    to: &Bound<Bytes>,
) -> Result<Part, TreeError> {
    let target = match from {
        Bound::Unbounded => Target::First,
        Bound::Included(key) | Bound::Excluded(key) => Target::Key(key),
    };
    let way = descend(work, target).await?;
    let entries = part(work, way.leaf, from, to)?;
    let rest = work.high(&way)?.filter(|high| !is_beyond(high, to));
    if let (Some(high), Bound::Included(key) | Bound::Excluded(key)) = (&rest, from)
        && high <= key
    {
        return Err(damaged(way.leaf, "the separators around it are not in order"));
    }
    Ok(Part { entries, rest: rest.map(Bound::Included) })
}

/// The last leaf's part of a range, its last key first.
pub(super) async fn descend_part(
    work: &mut Work<'_>,
    from: &Bound<Bytes>,
    to: &Bound<Bytes>,
) -> Result<Part, TreeError> {
    let target = match to {
        Bound::Unbounded => Target::Last,
        Bound::Included(key) => Target::Key(key),
        Bound::Excluded(key) => Target::Before(key),
    };
    let way = descend(work, target).await?;
    let mut entries = part(work, way.leaf, from, to)?;
    entries.reverse();
    let rest = work.low(&way)?.filter(|low| match from {
        Bound::Unbounded => true,
        Bound::Included(key) | Bound::Excluded(key) => low > key,
    });
    let stuck = match (&rest, to) {
        (Some(low), Bound::Included(key)) => low > key,
        (Some(low), Bound::Excluded(key)) => low >= key,
        _ => false,
    };
    if stuck {
        return Err(damaged(way.leaf, "the separators around it are not in order"));
    }
    Ok(Part { entries, rest: rest.map(Bound::Excluded) })
}

fn is_beyond(key: &Bytes, end: &Bound<Bytes>) -> bool {
    match end {
        Bound::Unbounded => false,
        Bound::Included(end) => key > end,
        Bound::Excluded(end) => key >= end,
    }
}

/// The records of a leaf within a range. Depends on them, and on the leaf having no others.
fn part(
    work: &mut Work<'_>,
    leaf: u32,
    from: &Bound<Bytes>,
    to: &Bound<Bytes>,
) -> Result<Vec<(Bytes, Stored)>, TreeError> {
    work.depend(leaf, MEMBERSHIP)?;
    let page = work.page(leaf)?;
    let start = match from {
        Bound::Unbounded => 0,
        Bound::Included(key) => page.search(key)?.unwrap_or_else(|index| index),
        Bound::Excluded(key) => page.search(key)?.map_or_else(|index| index, |index| index + 1),
    };
    let end = match to {
        Bound::Unbounded => page.count(),
        Bound::Included(key) => page.search(key)?.map_or_else(|index| index, |index| index + 1),
        Bound::Excluded(key) => page.search(key)?.unwrap_or_else(|index| index),
    };
    let mut entries = Vec::with_capacity(end.saturating_sub(start));
    for index in start..end {
        let page = work.page(leaf)?;
        let (range, entry) = (page.record(index)?.range(), page.entry(index)?);
        work.depend(leaf, range)?;
        entries.push((entry.key, work.stored(leaf, entry.flags, entry.value)?));
    }
    Ok(entries)
}
