//! The check of a whole store: every reachable page and value is sound, in order, and reached once, and the
//! bitmap has exactly those blocks in use.

use bytes::Bytes;
use roaring::RoaringBitmap;

use super::descent;
use super::error::TreeError;
use super::format::{DIRECTORY_ENTRIES, Kind, LARGE, MAX_LEVEL, PageKind};
use super::hash::{self, Spot};
use super::page::{Page, damaged};
use super::value::Stored;
use super::work::Work;

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Nodes or buckets.
    pub pages: u64,
    /// Blocks of large values.
    pub value_blocks: u64,
    /// Height of the root above the leaves, or pages of the longest bucket.
    pub depth: u64,
    /// Blocks that nodes or buckets and large values may take in total.
    pub blocks: u64,
}

/// The blocks reached so far.
#[derive(Debug, Default)]
struct Reached {
    blocks: RoaringBitmap,
    report: Report,
}

impl Reached {
    fn add(&mut self, work: &Work<'_>, from: u32, block: u32) -> Result<(), TreeError> {
        work.check_pointer(from, block)?;
        match self.blocks.insert(block) {
            true => Ok(()),
            false => Err(damaged(block, "it is reached twice")),
        }
    }

    /// Counts the records of a leaf or bucket.
    fn add_records(&mut self, work: &Work<'_>, page: &Page) -> Result<(), TreeError> {
        for entry in page.entries()? {
            self.report.keys += 1;
            self.report.bytes += entry.key.len() as u64;
            match work.stored(page.block, entry.flags, entry.value)? {
                Stored::Inline(value) => self.report.bytes += value.len() as u64,
                Stored::Large(large) => {
                    self.report.bytes += large.len as u64;
                    for (first, blocks) in large.runs {
                        self.report.value_blocks += u64::from(blocks);
                        for block in first..first + blocks {
                            self.add(work, page.block, block)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Checks a whole store.
pub(super) async fn check(work: &mut Work<'_>) -> Result<Report, TreeError> {
    work.verify_store().await?;
    let mut reached = Reached::default();
    reached.report.blocks = work.area.capacity();
    match work.area.kind {
        Kind::Hash => check_table(work, &mut reached).await?,
        Kind::Btree | Kind::Raw => check_tree(work, &mut reached).await?,
    }
    check_bitmap(work, &reached.blocks).await?;
    Ok(reached.report)
}

/// A node to be checked, and what its parent says about it.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) block: u32,
    /// `None` for the root, which alone states the tree's height.
    pub(super) level: Option<u8>,
    pub(super) low: Option<Bytes>,
    pub(super) high: Option<Bytes>,
}

impl Visit {
    /// The root, where a walk begins.
    pub(super) fn root(work: &Work<'_>) -> Visit {
        Visit { block: work.area.root(), level: None, low: None, high: None }
    }

    /// The node, if it is sound apart from its children.
    pub(super) async fn read(&self, work: &mut Work<'_>) -> Result<Page, TreeError> {
        let page = work.load(self.block, PageKind::Node).await?.clone();
        work.unload(self.block);
        page.check()?;
        let level = page.level();
        if level > MAX_LEVEL || self.level.is_some_and(|expected| expected != level) {
            return Err(page.damaged("it is at the wrong height"));
        }
        check_bounds(&page, self)?;
        match (page.count(), level) {
            (0, 0) if self.block != work.area.root() => Err(page.damaged("it is empty")),
            (0, 1..) => Err(page.damaged("an inner node without children")),
            _ => Ok(page),
        }
    }

    /// The children of the node, which was read; empty for a leaf.
    pub(super) fn children(&self, page: &Page) -> Result<Vec<Visit>, TreeError> {
        let Some(below) = page.level().checked_sub(1) else { return Ok(Vec::new()) };
        let key = |index: usize| Ok::<_, TreeError>(page.entry(index)?.key);
        let child = |index: usize| {
            let last = index + 1 == page.count();
            Ok(Visit {
                block: descent::child(page, index)?,
                level: Some(below),
                low: if index > 0 { Some(key(index)?) } else { self.low.clone() },
                high: if last { self.high.clone() } else { Some(key(index + 1)?) },
            })
        };
        (0..page.count()).map(child).collect()
    }
}

async fn check_tree(work: &mut Work<'_>, reached: &mut Reached) -> Result<(), TreeError> {
    let mut visits = vec![Visit::root(work)];
    while let Some(visit) = visits.pop() {
        let page = visit.read(work).await?;
        reached.report.depth = reached.report.depth.max(u64::from(page.level()));
        reached.report.pages += 1;
        if page.level() == 0 {
            reached.add_records(work, &page)?;
        }
        for child in visit.children(&page)? {
            reached.add(work, page.block, child.block)?;
            visits.push(child);
        }
    }
    Ok(())
}

/// Checks that the keys of a node are between the separators around it.
fn check_bounds(page: &Page, visit: &Visit) -> Result<(), TreeError> {
    let meaningless = usize::from(page.level() > 0);
    for record in page.records().skip(meaningless) {
        let record = record?;
        let inside = visit.low.as_ref().is_none_or(|low| record.key >= low.as_ref())
            && visit.high.as_ref().is_none_or(|high| record.key < high.as_ref());
        if !inside {
            return Err(page.damaged("it has a key that belongs elsewhere"));
        }
        if page.level() > 0 && record.flags & LARGE != 0 {
            return Err(page.damaged("a child is no value"));
        }
    }
    Ok(())
}

async fn check_table(work: &mut Work<'_>, reached: &mut Reached) -> Result<(), TreeError> {
    for directory in work.area.directories() {
        let page = work.load(directory, PageKind::Directory).await?.clone();
        let mut starts: Vec<(u32, u32)> = Vec::new();
        for entry in 0..DIRECTORY_ENTRIES {
            let block = page.u32_at(hash::entry_at(entry));
            if block != 0 {
                starts.push((entry, block));
            }
        }
        if starts.first().is_some_and(|(entry, _)| *entry != 0) {
            return Err(page.damaged("its first bucket is missing"));
        }
        for (number, (start, block)) in starts.iter().enumerate() {
            let end = starts.get(number + 1).map_or(DIRECTORY_ENTRIES, |(next, _)| *next);
            check_bucket(work, reached, directory, *start..end, *block).await?;
        }
        work.unload(directory);
    }
    Ok(())
}

async fn check_bucket(
    work: &mut Work<'_>,
    reached: &mut Reached,
    directory: u32,
    served: std::ops::Range<u32>,
    first: u32,
) -> Result<(), TreeError> {
    let (mut at, mut from, mut keys, mut depth) = (Some(first), directory, Vec::new(), 0);
    while let Some(block) = at {
        reached.add(work, from, block)?;
        let page = work.load(block, PageKind::Bucket).await?.clone();
        work.unload(block);
        page.check()?;
        if page.entries_served() != served {
            return Err(page.damaged("it does not serve the entries that lead to it"));
        }
        for record in page.records() {
            let key = record?.key;
            let spot = hash::spot(work.area, key);
            if !served.contains(&spot.entry) || spot != (Spot { directory, entry: spot.entry }) {
                return Err(page.damaged("it has a key that belongs elsewhere"));
            }
            keys.push(Bytes::copy_from_slice(key));
        }
        reached.add_records(work, &page)?;
        reached.report.pages += 1;
        depth += 1;
        (from, at) = (block, page.next());
    }
    reached.report.depth = reached.report.depth.max(depth);
    keys.sort_unstable();
    match keys.windows(2).all(|pair| pair[0] < pair[1]) {
        true => Ok(()),
        false => Err(damaged(first, "a key is in it twice")),
    }
}

async fn check_bitmap(work: &mut Work<'_>, reached: &RoaringBitmap) -> Result<(), TreeError> {
    let mut used = RoaringBitmap::new();
    for bitmap in work.area.bitmaps() {
        used.extend(work.blocks_in_use(bitmap).await?);
        work.unload(bitmap);
    }
    if let Some(block) = (reached - &used).min() {
        return Err(damaged(block, "it is in use, but free in the bitmap"));
    }
    match (&used - reached).min() {
        Some(block) => Err(damaged(block, "it is in use in the bitmap, but no page refers to it")),
        None => Ok(()),
    }
}
