//! The salvage of a damaged B-tree: builds a whole tree from what can still be read.
//!
//! First all of it is read, and nothing is changed. Every node that is sound, from the root on, stays in
//! place. A node that is not sound is cut out of its parent, and its subtree is searched for without it:
//! among the blocks that the bitmap has in use and that no sound node refers to. An inner node found this way
//! is of no use, as leaves themselves say where they belong.
//!
//! **No freed leaf comes back.** The transaction that frees a page clears its bit, so the blocks that the
//! bitmap has in use were in the tree when it was damaged. Besides, a leaf is refused when a key elsewhere in
//! the tree lies between its own keys: of leaves that were in one tree, no two overlap. Where a page of the
//! bitmap is damaged too, a freed leaf cannot be told from one in use. A freed block reads as zeros, but that
//! depends on a map that may have been given up. So if keys are missing then, and such leaves may hold them,
//! nothing is changed: taking them may be wrong, and so may dropping them.
//!
//! Then come the changes, in an order in which the store may be left after any of them, and each leaves what it has
//! not yet dealt with where the next salvage finds it. Lost nodes are cut out; the bitmap is set to exactly the
//! blocks that stay and those that were found; last, the found leaves join the tree. The leaf with the lowest keys
//! comes last, so that a user who reads from the lowest key on does not start before all are in.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use roaring::RoaringBitmap;
use thalweg_env::Env;

use super::area::Area;
use super::catalogue::header_of;
use super::check::Visit;
use super::error::TreeError;
use super::format::{LARGE, PageHeader, PageKind};
use super::page::Page;
use super::record::Entry;
use super::value::Stored;
use super::work::Work;
use super::{btree, space};
use crate::block::{BLOCK_SIZE, Class};
use crate::txn::{Begin, Durability, Transact, run};

/// Leaves that join the tree in one transaction.
const LEAVES_AT_ONCE: usize = 16;

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    /// The first key.
    pub low: Bytes,
    /// The first key behind the range; `None` when it has no upper end.
    pub high: Option<Bytes>,
}

/// What a salvage lost and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Pages that could not be read or are inconsistent, and blocks of values that no record refers to.
    pub blocks: u64,
    /// Leaves without a reference that are in the tree again.
    pub found: u64,
    /// Leaves without a reference whose keys overlap with others: they are lost.
    pub refused: u64,
    /// Where records are, or may be, lost, in the order of keys.
    pub missing: Vec<KeyRange>,
    /// Keys that are lost because their values could not be read.
    pub values: Vec<Bytes>,
}

impl Salvage {
    /// Whether no record is lost.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.values.is_empty()
    }
}

/// The result of a read; `None` when the data is damaged.
fn sound<T>(read: Result<T, TreeError>) -> Result<Option<T>, TreeError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The least key above `key`.
fn behind(key: &Bytes) -> Bytes {
    [key, &[0][..]].concat().into()
}

/// How certain it is that a node is in the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rank {
    /// No node refers to it, and the bitmap does not say whether it is in use.
    Unlisted,
    /// No node refers to it, and the bitmap has it in use.
    Listed,
    /// Reachable from the root.
    Reached,
}

/// A node that is sound.
#[derive(Debug)]
struct Node {
    block: u32,
    level: u8,
    /// The node that refers to it, by its index among the nodes, and the index of the child. `None` for the
    /// root and for nodes that were found.
    parent: Option<(usize, usize)>,
    rank: Rank,
    /// Records.
    count: usize,
    /// Indexes of records that are removed.
    gone: BTreeSet<usize>,
    /// For a leaf, the first key and the last one.
    keys: Option<(Bytes, Bytes)>,
    /// For a leaf, the records with large values.
    large: Vec<(usize, Entry)>,
    /// The blocks of these values.
    values: RoaringBitmap,
}

impl Node {
    fn new(page: &Page, parent: Option<(usize, usize)>, rank: Rank) -> Result<Node, TreeError> {
        let (level, count) = (page.level(), page.count());
        let is_leaf = level == 0;
        let keys = match count.checked_sub(1).filter(|_| is_leaf) {
            Some(last) => Some((page.entry(0)?.key, page.entry(last)?.key)),
            None => None,
        };
        let entries = if is_leaf { page.entries()? } else { Vec::new() };
        let large = entries.into_iter().enumerate().filter(|(_, it)| it.flags & LARGE != 0);
        Ok(Node {
            block: page.block,
            level,
            parent,
            rank,
            count,
            gone: BTreeSet::new(),
            keys,
            large: large.collect(),
            values: RoaringBitmap::new(),
        })
    }

    /// Whether the node stays in the tree.
    fn stays(&self) -> bool {
        self.gone.len() < self.count
    }

    fn was_found(&self) -> bool {
        self.rank < Rank::Reached
    }

    fn refuse(&mut self) {
        self.gone = (0..self.count).collect();
    }

    fn is_between(&self, hole: &Visit) -> bool {
        self.keys.as_ref().is_some_and(|(first, _)| {
            hole.low.as_ref().is_none_or(|low| low <= first)
                && hole.high.as_ref().is_none_or(|high| first < high)
        })
    }
}

/// The state of a tree.
#[derive(Debug, Default)]
struct Look {
    /// Every node comes after its parent.
    nodes: Vec<Node>,
    /// References to nodes that are missing.
    holes: Vec<Visit>,
    /// The blocks of nodes and of values that are sound.
    taken: RoaringBitmap,
    /// Blocks with lost data.
    lost: RoaringBitmap,
    /// The blocks that sound bitmap pages have in use.
    listed: RoaringBitmap,
    /// Damaged pages of the bitmap.
    unlisted: RoaringBitmap,
    headless: bool,
    refused: Vec<KeyRange>,
    values: Vec<Bytes>,
}

impl Look {
    /// Reads a whole tree.
    async fn new(work: &mut Work<'_>, headless: bool) -> Result<Look, TreeError> {
        let mut look = Look { headless, ..Look::default() };
        look.walk(work).await?;
        look.claim_values(work, 0).await?;
        look.find(work).await?;
        look.refuse_overlaps();
        look.refuse_unlisted(work.area)?;
        look.prune(work.area.root());
        Ok(look)
    }

    /// Visits every node reachable from the root.
    async fn walk(&mut self, work: &mut Work<'_>) -> Result<(), TreeError> {
        let mut visits = vec![(Visit::root(work), None)];
        while let Some((visit, parent)) = visits.pop() {
            let block = visit.block;
            let is_there = block == work.area.root() || work.area.has(block, 1);
            // A node has only one parent: the first one whose separators match.
            let is_free = is_there && !self.taken.contains(block);
            let page = if is_free { sound(visit.read(work).await)? } else { None };
            let children = page.as_ref().map(|page| visit.children(page));
            let children = sound(children.transpose())?.flatten();
            let (Some(page), Some(children)) = (page, children) else {
                if is_free {
                    self.lost.insert(block);
                }
                self.lose(visit, parent);
                continue;
            };
            self.taken.insert(block);
            let nth = self.nodes.len();
            self.nodes.push(Node::new(&page, parent, Rank::Reached)?);
            let children = children.into_iter().enumerate();
            visits.extend(children.map(|(index, child)| (child, Some((nth, index)))));
        }
        Ok(())
    }

    fn lose(&mut self, hole: Visit, parent: Option<(usize, usize)>) {
        self.holes.push(hole);
        if let Some((parent, index)) = parent {
            self.nodes[parent].gone.insert(index);
        }
    }

    /// Assigns the blocks of large values to the leaves that refer to them, from node `from` on; a record
    /// whose value is lost is removed.
    async fn claim_values(&mut self, work: &Work<'_>, from: usize) -> Result<(), TreeError> {
        for nth in from..self.nodes.len() {
            let block = self.nodes[nth].block;
            for (index, entry) in std::mem::take(&mut self.nodes[nth].large) {
                let blocks = match sound(work.stored(block, entry.flags, entry.value))? {
                    Some(stored) => self.readable(work, stored).await?,
                    None => None,
                };
                let node = &mut self.nodes[nth];
                match blocks {
                    Some(blocks) => {
                        self.taken |= &blocks;
                        node.values |= blocks;
                    }
                    None => {
                        node.gone.insert(index);
                        self.values.push(entry.key);
                    }
                }
            }
        }
        Ok(())
    }

    /// The blocks of a value, if no other value has them and they can be read.
    async fn readable(
        &self,
        work: &Work<'_>,
        stored: Stored,
    ) -> Result<Option<RoaringBitmap>, TreeError> {
        let mut blocks = RoaringBitmap::new();
        if let Stored::Large(large) = &stored {
            for block in large.runs.iter().flat_map(|(first, count)| *first..*first + *count) {
                if self.taken.contains(block) || !blocks.insert(block) {
                    return Ok(None);
                }
            }
        }
        Ok(sound(work.fetch(stored).await)?.map(|_| blocks))
    }

    /// Finds leaves that no node refers to.
    async fn find(&mut self, work: &mut Work<'_>) -> Result<(), TreeError> {
        let from = self.nodes.len();
        for bitmap in work.area.bitmaps() {
            let listed = sound(work.blocks_in_use(bitmap).await)?;
            work.unload(bitmap);
            let rank = if listed.is_some() { Rank::Listed } else { Rank::Unlisted };
            let blocks = match listed {
                Some(blocks) => {
                    self.listed.extend(&blocks);
                    blocks
                }
                None => {
                    self.unlisted.insert(bitmap);
                    space::covered(work.area, bitmap).collect()
                }
            };
            for block in blocks {
                let is_free = rank == Rank::Unlisted && is_empty(work, block).await?;
                if !is_free && !self.taken.contains(block) {
                    self.take_found(work, block, rank).await?;
                }
            }
        }
        self.claim_values(work, from).await?;
        for node in self.nodes.split_off(from) {
            // The content of a value may look like a page: it is not one.
            match self.taken.insert(node.block) {
                true => self.nodes.push(node),
                false => self.taken -= &node.values,
            }
        }
        self.lost -= &self.taken;
        Ok(())
    }

    /// Examines a block in use that no node refers to.
    async fn take_found(
        &mut self,
        work: &mut Work<'_>,
        block: u32,
        rank: Rank,
    ) -> Result<(), TreeError> {
        let visit = Visit { block, level: None, low: None, high: None };
        match sound(visit.read(work).await)? {
            Some(page) if page.level() == 0 => {
                self.nodes.push(Node::new(&page, None, rank)?);
            }
            // An inner node: its children are found without it.
            Some(_) => {}
            None => drop(self.lost.insert(block)),
        }
        Ok(())
    }

    /// Refuses found leaves whose keys overlap with others.
    fn refuse_overlaps(&mut self) {
        let stays = |nth: &usize| self.nodes[*nth].keys.is_some() && self.nodes[*nth].stays();
        let mut leaves: Vec<usize> = (0..self.nodes.len()).filter(stays).collect();
        leaves.sort_by(|a, b| self.nodes[*a].keys.cmp(&self.nodes[*b].keys));
        let (mut furthest, mut refused): (Option<(Bytes, usize)>, _) = (None, BTreeSet::new());
        for nth in leaves {
            let Some((first, last)) = self.nodes[nth].keys.clone() else { continue };
            if let Some((_, other)) = furthest.as_ref().filter(|(end, _)| *end >= first) {
                let rank = self.nodes[nth].rank.min(self.nodes[*other].rank);
                refused.extend([nth, *other].into_iter().filter(|it| self.nodes[*it].rank == rank));
            }
            if furthest.as_ref().is_none_or(|(end, _)| *end < last) {
                furthest = Some((last, nth));
            }
        }
        for nth in refused {
            let node = &mut self.nodes[nth];
            node.refuse();
            if let Some((first, last)) = node.keys.as_ref().filter(|_| node.rank == Rank::Listed) {
                self.refused.push(KeyRange { low: first.clone(), high: Some(behind(last)) });
            }
        }
    }

    /// Refuses leaves that the bitmap does not show in use. When no keys are missing they are stale.
    ///
    /// # Errors
    /// [`TreeError::Damaged`] when they may hold the missing keys.
    fn refuse_unlisted(&mut self, area: &Area) -> Result<(), TreeError> {
        let is_missing = !self.holes.is_empty();
        for node in self.nodes.iter_mut().filter(|node| node.rank == Rank::Unlisted) {
            if is_missing && node.stays() {
                let detail = format!(
                    "no node refers to leaf {}, and the bitmap that would tell whether it is stale \
                     is damaged too",
                    node.block
                );
                return Err(TreeError::Damaged {
                    what: format!("the store {}", area.name),
                    detail,
                });
            }
            node.refuse();
        }
        Ok(())
    }

    /// Removes nodes without anything that stays, and their blocks.
    fn prune(&mut self, root: u32) {
        for nth in (0..self.nodes.len()).rev() {
            let node = &self.nodes[nth];
            if node.stays() || node.block == root {
                continue;
            }
            self.taken.remove(node.block);
            self.taken -= &node.values;
            if let Some((parent, index)) = node.parent {
                self.nodes[parent].gone.insert(index);
            }
        }
    }

    /// The found leaves, in the order of their keys.
    fn found(&self) -> Vec<&Node> {
        let found = self.nodes.iter().filter(|node| node.was_found() && node.stays());
        let mut found: Vec<&Node> = found.collect();
        found.sort_by(|a, b| a.keys.cmp(&b.keys));
        found
    }

    /// Whether a new root is needed: there is none, or nothing is left below it.
    fn is_rootless(&self, root: u32) -> bool {
        let node = self.nodes.first().filter(|node| node.block == root);
        node.is_none_or(|node| node.level > 0 && !node.stays())
    }

    /// The report on what is lost.
    fn report(&self) -> Salvage {
        let found = self.found();
        let named: RoaringBitmap = self.holes.iter().map(|hole| hole.block).collect();
        let is_more_lost = !self.lost.is_subset(&named);
        let mut missing = self.refused.clone();
        for hole in &self.holes {
            // An inner node takes no records with it: its children were found, or are lost themselves.
            let is_lost = hole.level == Some(0) && self.lost.contains(hole.block);
            if is_lost || is_more_lost {
                missing.extend(gaps(hole, &found));
            }
        }
        Salvage {
            blocks: self.lost.len(),
            found: found.len() as u64,
            refused: self.refused.len() as u64,
            missing: joined(missing),
            values: self.values.clone(),
        }
    }
}

/// Whether a block reads as zeros.
async fn is_empty(work: &Work<'_>, block: u32) -> Result<bool, TreeError> {
    let read = work.txn.read(work.area.lba(block)).await;
    let content = sound(read.map_err(TreeError::from))?;
    Ok(content.is_some_and(|content| content.iter().all(|byte| *byte == 0)))
}

/// The parts of a hole that no found leaf covers.
fn gaps(hole: &Visit, found: &[&Node]) -> Vec<KeyRange> {
    let (mut gaps, mut at) = (Vec::new(), hole.low.clone().unwrap_or_default());
    let inside = found.iter().filter(|node| node.is_between(hole));
    for (first, last) in inside.filter_map(|node| node.keys.as_ref()) {
        if at < *first {
            gaps.push(KeyRange { low: at, high: Some(first.clone()) });
        }
        at = behind(last);
    }
    if hole.high.as_ref().is_none_or(|high| at < *high) {
        gaps.push(KeyRange { low: at, high: hole.high.clone() });
    }
    gaps
}

/// The same ranges in order, with adjacent ones joined.
fn joined(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort();
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.high.as_ref().is_none_or(|high| *high >= range.low) => {
                // `None` is above every other end.
                let further = match (&last.high, &range.high) {
                    (Some(a), Some(b)) => Some(a.max(b).clone()),
                    _ => None,
                };
                last.high = further;
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Rebuilds a damaged tree.
pub(super) async fn salvage(
    env: &Env,
    volume: &dyn Transact,
    area: &Area,
) -> Result<Salvage, TreeError> {
    // The newest state, which may not be durable yet.
    let look = run(volume, Begin::SNAPSHOT, Durability::Synced, async |txn| {
        let headless = sound(Work::new(&*txn, area, env).verify_store().await)?.is_none();
        Look::new(&mut Work::without_header(&*txn, area, env), headless).await
    })
    .await?;
    let rootless = look.is_rootless(area.root());
    let mut found: Vec<u32> = look.found().iter().map(|node| node.block).collect();
    if rootless && found.is_empty() {
        let detail = "nothing of it can be read".to_owned();
        return Err(TreeError::Damaged { what: format!("the store {}", area.name), detail });
    }
    let repair = Repair { env, volume, area };
    if look.headless {
        repair.overwrite(0, header_of(area)).await?;
    }
    if rootless {
        let header = PageHeader::new(PageKind::Node, 0, area.tag, area.root());
        let page = Page::fresh(area.root(), &[0; BLOCK_SIZE], &header);
        repair.overwrite(area.root(), Bytes::copy_from_slice(page.bytes())).await?;
    }
    let is_cut = |node: &&Node| !node.gone.is_empty() && look.taken.contains(node.block);
    for node in look.nodes.iter().filter(is_cut) {
        if !(rootless && node.block == area.root()) {
            repair.cut(node).await?;
        }
    }
    for bitmap in area.bitmaps() {
        repair.list(bitmap, &look).await?;
    }
    let lowest = found.len().min(1);
    found.rotate_left(lowest);
    for leaves in found.chunks(LEAVES_AT_ONCE) {
        repair.graft(leaves).await?;
    }
    Ok(look.report())
}

/// Makes the changes to an examined tree.
struct Repair<'a> {
    env: &'a Env,
    volume: &'a dyn Transact,
    area: &'a Area,
}

impl Repair<'_> {
    /// Runs one change durably: a later look at the tree sees what survives a crash.
    async fn change(
        &self,
        work: impl for<'t> AsyncFn(&'t mut Work<'_>) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        run(self.volume, Begin::STRICT, Durability::Synced, async |txn| {
            let mut changes = Work::new(&*txn, self.area, self.env);
            work(&mut changes).await?;
            changes.finish()
        })
        .await
    }

    /// Writes a page over any content: the block need not be readable.
    async fn overwrite(&self, block: u32, content: Bytes) -> Result<(), TreeError> {
        let lba = self.area.lba(block);
        run(self.volume, Begin::STRICT, Durability::Synced, async |txn| {
            Ok(txn.write_as(lba, content.clone(), Class::Metadata)?)
        })
        .await
    }

    /// Removes the records of a node that do not stay.
    async fn cut(&self, node: &Node) -> Result<(), TreeError> {
        self.change(async |work| {
            let page = work.load(node.block, PageKind::Node).await?;
            page.retain(|index, _| !node.gone.contains(&index))
        })
        .await
    }

    /// Rewrites a page of the bitmap from the examined state. Unused blocks are discarded before: free blocks
    /// read as zeros.
    async fn list(&self, bitmap: u32, look: &Look) -> Result<(), TreeError> {
        let mut covered = RoaringBitmap::new();
        covered.insert_range(space::covered(self.area, bitmap));
        let used = &covered & &look.taken;
        let is_listed = !look.unlisted.contains(bitmap);
        let listed = if is_listed { &covered & &look.listed } else { covered };
        if is_listed && listed == used {
            return Ok(());
        }
        for run in runs(&(listed - &used)) {
            let count = u64::from(run.end - run.start);
            self.volume.discard_run(self.area.lba(run.start), count).await?;
        }
        self.overwrite(bitmap, space::page_of(self.area, bitmap, used.iter())).await
    }

    /// Adds leaves to the tree.
    async fn graft(&self, leaves: &[u32]) -> Result<(), TreeError> {
        self.change(async |work| {
            for leaf in leaves {
                btree::graft(work, *leaf).await?;
            }
            Ok(())
        })
        .await
    }
}

/// Blocks as runs of them.
fn runs(blocks: &RoaringBitmap) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for block in blocks {
        match runs.last_mut().filter(|run| run.end == block) {
            Some(run) => run.end += 1,
            None => runs.push(block..block + 1),
        }
    }
    runs
}
