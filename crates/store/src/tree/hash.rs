//! The hash table (IsoHT): a directory with a fixed place, and buckets that are split.
//!
//! A key's hash names an entry of one directory page. A bucket serves a run of entries of one page, and
//! stands in the directory at the first of them; the other entries are zeros, so that a split writes a single
//! entry. A bucket is split between any two entries, wherever the halves come out as wanted; a bucket whose
//! records all belong to one entry is continued in further pages instead. The directory has two entries for
//! each block of the partition, and a page of it that was never needed is never written: a table grows bucket
//! by bucket until the partition is full, and a look-up reads one directory page and one bucket at any size.
//!
//! The bucket before an empty one takes over its entries. The bucket of a directory page's first entry, once
//! created, stays.
//!
//! A search depends on its record, if it found one; otherwise on the membership of every page of the bucket
//! where it ended. Adding a key, and splitting or freeing the bucket, write there.

use std::hash::Hasher;

use bytes::Bytes;
use siphasher::sip::SipHasher13;

use super::area::Area;
use super::error::TreeError;
use super::format::{BODY, DIRECTORY_ENTRIES, MEMBERSHIP, PageKind, UNIT};
use super::page::Page;
use super::record::Entry;
use super::value::Stored;
use super::work::Work;

/// Units that a split moves, if it can; see the B-tree's `MOVED_UNITS`.
const MOVED_UNITS: usize = 80;
/// The maximum of pages in a bucket; more are damage.
const MAX_CHAIN: usize = 1 << 16;

/// The place of a key: a page of the directory, and an entry in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) directory: u32,
    pub(super) entry: u32,
}

/// The place of a key. The partition's identity, which never changes, is the hash's key: without knowing it
/// keys that collide cannot be chosen.
pub(super) fn spot(area: &Area, key: &[u8]) -> Spot {
    let mut hasher = SipHasher13::new_with_key(area.uuid.as_bytes());
    hasher.write(key);
    let hash = hasher.finish();
    let scale = |part: u64, count: u64| ((part * count) >> 32) as u32;
    let directories = area.directories();
    Spot {
        directory: directories.start + scale(hash >> 32, directories.len() as u64),
        entry: scale(hash & 0xffff_ffff, u64::from(DIRECTORY_ENTRIES)),
    }
}

/// Bytes of an entry in its page.
pub(super) fn entry_at(entry: u32) -> usize {
    BODY + entry as usize * 4
}

/// The last of some entries that is not zero.
fn last_entry(entries: &[u8]) -> Option<u32> {
    // Most entries are zero; many are compared at once.
    let run = entries.rchunks(64).find(|run| run.iter().fold(0, |any, byte| any | byte) != 0)?;
    let entries = run.rchunks_exact(4).map(|entry| entry.try_into().map_or(0, u32::from_le_bytes));
    entries.into_iter().find(|block| *block != 0)
}

/// The first page of the bucket that serves an entry; `None` when the directory page has none yet.
async fn bucket(work: &mut Work<'_>, spot: Spot) -> Result<Option<u32>, TreeError> {
    let page = work.load(spot.directory, PageKind::Directory).await?;
    let Some(block) = last_entry(&page.bytes()[BODY..entry_at(spot.entry + 1)]) else {
        // The first bucket is recorded at the first entry.
        work.depend(spot.directory, BODY..BODY + UNIT)?;
        return Ok(None);
    };
    work.check_pointer(spot.directory, block)?;
    let page = work.load(block, PageKind::Bucket).await?;
    let served = page.entries_served();
    if !served.contains(&spot.entry) || served.end > DIRECTORY_ENTRIES {
        return Err(page.damaged("it does not serve the entries that lead to it"));
    }
    Ok(Some(block))
}

/// The pages of a bucket. Loads all of them.
async fn chain(work: &mut Work<'_>, first: u32) -> Result<Vec<u32>, TreeError> {
    let (mut pages, mut at) = (Vec::new(), Some(first));
    while let Some(block) = at {
        let page = work.load(block, PageKind::Bucket).await?;
        at = page.next();
        if pages.len() >= MAX_CHAIN {
            return Err(page.damaged("its bucket has no end"));
        }
        pages.push(block);
        if let Some(next) = at {
            work.check_pointer(block, next)?;
        }
    }
    Ok(pages)
}

/// The place of a key's record.
#[derive(Clone, Debug)]
struct Found {
    block: u32,
    index: usize,
    entry: Entry,
}

/// The record of a key among the pages of a bucket.
fn search(work: &mut Work<'_>, pages: &[u32], key: &[u8]) -> Result<Option<Found>, TreeError> {
    for block in pages {
        let page = work.page(*block)?;
        if let Ok(index) = page.search(key)? {
            let (range, entry) = (page.record(index)?.range(), page.entry(index)?);
            work.depend(*block, range)?;
            return Ok(Some(Found { block: *block, index, entry }));
        }
    }
    pages.iter().try_for_each(|block| work.depend(*block, MEMBERSHIP))?;
    Ok(None)
}

/// The value of a key as its record has it.
pub(super) async fn find(work: &mut Work<'_>, key: &[u8]) -> Result<Option<Stored>, TreeError> {
    let spot = spot(work.area, key);
    let Some(first) = bucket(work, spot).await? else { return Ok(None) };
    let pages = chain(work, first).await?;
    match search(work, &pages, key)? {
        Some(found) => Ok(Some(work.stored(found.block, found.entry.flags, found.entry.value)?)),
        None => Ok(None),
    }
}

/// Gives a key a value.
pub(super) async fn put(work: &mut Work<'_>, key: &[u8], value: Bytes) -> Result<(), TreeError> {
    let spot = spot(work.area, key);
    let Some(first) = bucket(work, spot).await? else {
        let (flags, value) = work.store(key, value, None).await?;
        add_first(work, spot.directory).await?;
        return insert(work, spot, Entry { flags, key: Bytes::copy_from_slice(key), value }).await;
    };
    let pages = chain(work, first).await?;
    let Some(found) = search(work, &pages, key)? else {
        let (flags, value) = work.store(key, value, None).await?;
        return insert(work, spot, Entry { flags, key: Bytes::copy_from_slice(key), value }).await;
    };
    let old = work.stored(found.block, found.entry.flags, found.entry.value)?;
    let (flags, value) = work.store(key, value, Some(old)).await?;
    let page = work.page(found.block)?;
    if page.replace(found.index, flags, &value)? {
        return Ok(());
    }
    page.remove(found.index)?;
    insert(work, spot, Entry { flags, key: found.entry.key, value }).await
}

/// Creates the bucket that serves all of a directory page.
async fn add_first(work: &mut Work<'_>, directory: u32) -> Result<(), TreeError> {
    work.begin(directory, PageKind::Directory)?;
    add(work, directory, 0..DIRECTORY_ENTRIES).await?;
    Ok(())
}

/// Creates a bucket for a run of entries.
async fn add(
    work: &mut Work<'_>,
    directory: u32,
    served: std::ops::Range<u32>,
) -> Result<u32, TreeError> {
    let block = work.allocate_one().await?;
    let at = entry_at(served.start);
    work.create(block, PageKind::Bucket, 0).await?.set_entries_served(served);
    work.page(directory)?.put(at, &block.to_le_bytes());
    Ok(block)
}

/// Adds a record to its bucket; a full bucket is split, or extended by a page.
async fn insert(work: &mut Work<'_>, spot: Spot, entry: Entry) -> Result<(), TreeError> {
    loop {
        let first = bucket(work, spot).await?;
        let first = first.ok_or_else(|| TreeError::Invalid("no bucket was made".to_owned()))?;
        let pages = chain(work, first).await?;
        if add_to(work, &pages, &entry)? {
            return Ok(());
        }
        if !split(work, spot, &pages).await? {
            let page = extend(work, &pages).await?;
            add_to(work, &[page], &entry)?;
            work.page(pages[0])?.touch_membership();
            return Ok(());
        }
    }
}

/// Adds a record to the first of these pages that has room. The first page's membership changes in any case, because
/// another transaction may find room in another page.
fn add_to(work: &mut Work<'_>, pages: &[u32], entry: &Entry) -> Result<bool, TreeError> {
    for block in pages {
        let page = work.page(*block)?;
        let index = match page.search(&entry.key)? {
            Err(index) => index,
            Ok(_) => return Err(page.damaged("it has a key for the second time")),
        };
        if page.insert(index, entry)? {
            work.page(pages[0])?.touch_membership();
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds a page to a bucket.
async fn extend(work: &mut Work<'_>, pages: &[u32]) -> Result<u32, TreeError> {
    let last = pages[pages.len() - 1];
    let block = work.allocate_one().await?;
    let served = work.page(last)?.entries_served();
    work.create(block, PageKind::Bucket, 0).await?.set_entries_served(served);
    work.page(last)?.set_next(Some(block));
    Ok(block)
}

/// Splits a bucket to make room for a record at `spot`; false when all its records, and that one, belong to
/// one entry.
async fn split(work: &mut Work<'_>, spot: Spot, pages: &[u32]) -> Result<bool, TreeError> {
    let mut records = Vec::new();
    for block in pages {
        for entry in work.page(*block)?.entries()? {
            records.push((self::spot(work.area, &entry.key).entry, entry));
        }
    }
    let Some(at) = split_point(&records, spot.entry) else { return Ok(false) };
    let served = work.page(pages[0])?.entries_served();
    if !(served.start < at && at < served.end) {
        return Err(work.page(pages[0])?.damaged("it has records of other buckets"));
    }
    let right = add(work, spot.directory, at..served.end).await?;
    let area = work.area;
    for block in pages {
        let page = work.page(*block)?;
        page.set_entries_served(served.start..at);
        page.retain(|_, record| self::spot(area, record.key).entry < at)?;
    }
    prune(work, pages).await?;
    let mut into = vec![right];
    for (_, entry) in records.into_iter().filter(|(entry, _)| *entry >= at) {
        if !add_to(work, &into, &entry)? {
            into.push(extend(work, &into).await?);
            add_to(work, &into, &entry)?;
        }
    }
    Ok(true)
}

/// The first entry that a split moves.
fn split_point(records: &[(u32, Entry)], new: u32) -> Option<u32> {
    let mut entries: Vec<u32> = records.iter().map(|(entry, _)| *entry).chain([new]).collect();
    entries.sort_unstable();
    entries.dedup();
    let moved = |at: u32| -> usize {
        records.iter().filter(|(entry, _)| *entry >= at).map(|(_, entry)| entry.units()).sum()
    };
    let points = entries.into_iter().skip(1);
    points.min_by_key(|at| moved(*at).abs_diff(MOVED_UNITS))
}

/// Frees the empty pages of a bucket except for the first.
async fn prune(work: &mut Work<'_>, pages: &[u32]) -> Result<(), TreeError> {
    let mut last = pages[0];
    for block in &pages[1..] {
        let page = work.page(*block)?;
        if page.count() > 0 {
            last = *block;
            continue;
        }
        let next = page.next();
        work.page(last)?.set_next(next);
        work.free(*block, 1).await?;
    }
    Ok(())
}

/// Removes a key. Returns whether it was present.
pub(super) async fn delete(work: &mut Work<'_>, key: &[u8]) -> Result<bool, TreeError> {
    let spot = spot(work.area, key);
    let Some(first) = bucket(work, spot).await? else { return Ok(false) };
    let pages = chain(work, first).await?;
    let Some(found) = search(work, &pages, key)? else { return Ok(false) };
    let page = work.page(found.block)?;
    page.remove(found.index)?;
    let empty = page.count() == 0;
    let stored = work.stored(found.block, found.entry.flags, found.entry.value)?;
    work.release(stored).await?;
    if empty && pages.len() > 1 {
        prune(work, &pages).await?;
    } else if empty {
        retire(work, spot.directory, first).await?;
    }
    Ok(true)
}

/// Makes the bucket before an empty one serve its entries, if there is one.
async fn retire(work: &mut Work<'_>, directory: u32, block: u32) -> Result<(), TreeError> {
    let served = work.page(block)?.entries_served();
    let Some(before) = served.start.checked_sub(1) else { return Ok(()) };
    let neighbour = bucket(work, Spot { directory, entry: before }).await?;
    let neighbour =
        neighbour.ok_or_else(|| super::page::damaged(directory, "its first bucket is missing"))?;
    for page in chain(work, neighbour).await? {
        let page = work.page(page)?;
        let start = page.entries_served().start;
        page.set_entries_served(start..served.end);
    }
    work.page(directory)?.put(entry_at(served.start), &[0; 4]);
    work.free(block, 1).await
}

/// The records of one bucket, and the position where the iteration continues.
pub(super) struct Part {
    pub(super) entries: Vec<(Bytes, Stored)>,
    pub(super) rest: Option<u64>,
}

/// The first bucket that has records at or after position `from`, which counts all entries of the directory.
pub(super) async fn iterate(work: &mut Work<'_>, from: u64) -> Result<Part, TreeError> {
    let all = work.area.directory_entries();
    let per_page = u64::from(DIRECTORY_ENTRIES);
    let mut at = from;
    while at < all {
        let entry = (at % per_page) as u32;
        let number = (at / per_page) as u32;
        let spot = Spot { directory: work.area.directories().start + number, entry };
        let Some(first) = bucket(work, spot).await? else {
            at = u64::from(number + 1) * per_page;
            continue;
        };
        at = u64::from(number) * per_page + u64::from(work.page(first)?.entries_served().end);
        let entries = contents(work, spot, first).await?;
        if !entries.is_empty() {
            return Ok(Part { entries, rest: (at < all).then_some(at) });
        }
    }
    Ok(Part { entries: Vec::new(), rest: None })
}

/// The records of a bucket that belong to `spot` or to later entries.
async fn contents(
    work: &mut Work<'_>,
    spot: Spot,
    first: u32,
) -> Result<Vec<(Bytes, Stored)>, TreeError> {
    let mut entries = Vec::new();
    for block in chain(work, first).await? {
        work.depend(block, MEMBERSHIP)?;
        for (range, entry) in records(work.page(block)?)? {
            work.depend(block, range)?;
            if self::spot(work.area, &entry.key).entry >= spot.entry {
                entries.push((entry.key, work.stored(block, entry.flags, entry.value)?));
            }
        }
    }
    Ok(entries)
}

/// The records of a page and where they are.
fn records(page: &Page) -> Result<Vec<(std::ops::Range<usize>, Entry)>, TreeError> {
    (0..page.count()).map(|index| Ok((page.record(index)?.range(), page.entry(index)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::last_entry;

    #[test]
    fn the_last_entry_is_found_wherever_it_is() {
        for len in 0..70 {
            let mut entries = vec![0; len * 4];
            assert_eq!(last_entry(&entries), None);
            for at in 0..len {
                entries[at * 4 + at % 4] = 1;
                assert_eq!(last_entry(&entries), Some(1 << (8 * (at % 4))), "{at} of {len}");
            }
        }
    }
}
