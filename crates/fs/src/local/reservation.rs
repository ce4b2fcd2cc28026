//! Data blocks that a caller's transaction reserves before it commits.
//!
//! The contents of files that are written in such a transaction go to free blocks at once, and the
//! transaction holds only the metadata that refers to them. Short transactions of their own allocate the
//! blocks, in larger runs than one call needs, and set their bits. Two lists say what becomes of the
//! blocks. The *list of reserved runs* is written by the same short transactions: an abort, or a crash,
//! frees all blocks in it. The *list of released runs* is written by the caller's transaction, so that it
//! counts if and only if that commits: it has the reserved blocks that are not in use, and blocks that
//! files had before. A table leads from the tree to both lists.
//!
//! The caller's transaction neither reads nor writes bitmap pages or the table, so that it conflicts
//! neither with its own reservations nor with those of other transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use async_recursion::async_recursion;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet};
use thalweg_store::block::{BLOCK_SIZE, ByteRanges, Class, Write};
use thalweg_store::txn::{Aside, FRAGMENT, Transaction, TxnError};

use super::area::DataArea;
use super::extents::Run;
use super::format::{LIST_ENTRIES, ListKind, ListPage, NO_OWNER};
use super::inner::Inner;
use super::op::Op;
use crate::error::FsError;

/// Blocks that are reserved at first, and at most unless a call needs more: each time twice as many.
const CHUNK: Range<u64> = 64..8192;
/// A reservation beyond the need takes at most one in so many of the free blocks.
const SHARE: u64 = 8;
/// Blocks of existing files that a transaction changes in place: they stay at their addresses, and wait in
/// memory. Beyond this, changed blocks get new addresses.
const CHANGED_IN_PLACE: u64 = 64;

/// The reserved blocks of one transaction.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    state: Mutex<State>,
}

/// Keeps the reserved blocks of a transaction from being freed.
#[derive(Debug)]
pub(super) struct Owner {
    owners: Arc<Mutex<HashSet<u128>>>,
    token: u128,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.owners.lock().remove(&self.token);
    }
}

#[derive(Debug, Default)]
struct State {
    listed: Option<Listed>,
    /// All its runs: start and blocks.
    reserved: BTreeMap<u64, u64>,
    /// Unused parts of these. They hold zeros.
    free: BTreeMap<u64, u64>,
    /// Parts of `free` that do not hold zeros: a call that wrote to them failed.
    soiled: Vec<Run>,
    /// Blocks that will be free when the transaction commits.
    released: Released,
    /// Blocks that it changes in place.
    in_place: u64,
}

/// Where the lists are.
#[derive(Debug)]
struct Listed {
    owner: Owner,
    /// Blocks of the list of reserved runs, and its entries.
    blocks: Vec<u64>,
    entries: Vec<Run>,
}

/// The list of released runs.
#[derive(Debug, Default)]
struct Released {
    /// The blocks that it lies in.
    blocks: Vec<u64>,
    /// Its entries; those without blocks are vacant.
    entries: Vec<Run>,
    vacant: Vec<usize>,
    by_start: HashMap<u64, usize>,
    /// Blocks of it that have to be written.
    dirty: BTreeSet<usize>,
}

impl ListPage {
    /// The runs that it lists.
    fn runs(&self, area: &DataArea) -> Result<Vec<Run>, FsError> {
        let runs = (0..LIST_ENTRIES).map(|at| self.get(at)).filter(|entry| *entry != (0, 0));
        let run = |(start, count): (u64, u64)| {
            let damaged = || FsError::Damaged("a reserved run of blocks is invalid".to_owned());
            area.run(start, count).ok_or_else(damaged)
        };
        runs.map(run).collect()
    }
}

impl Released {
    fn add(&mut self, run: Run) {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Run { start: 0, blocks: 0 });
            self.entries.len() - 1
        });
        self.entries[at] = run;
        self.by_start.insert(run.start, at);
        self.dirty.insert(at / LIST_ENTRIES);
    }

    fn remove(&mut self, start: u64) {
        let Some(at) = self.by_start.remove(&start) else { return };
        self.entries[at] = Run { start: 0, blocks: 0 };
        self.vacant.push(at);
        self.dirty.insert(at / LIST_ENTRIES);
    }

    /// Blocks that its entries need.
    fn needed(&self) -> usize {
        self.entries.len().div_ceil(LIST_ENTRIES).max(1)
    }
}

/// The allocations of one call, undone when it fails.
#[derive(Debug, Default)]
pub(super) struct Claim<'a> {
    of: Option<&'a Reservation>,
    /// Runs taken out of `free` (`true`) and put there, in order.
    steps: Vec<(bool, Run)>,
    /// It has written to some of them.
    pub(super) soils: bool,
}

impl Claim<'_> {
    /// The call has succeeded.
    pub(super) fn keep(&mut self) {
        self.steps.clear();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let Some(reservation) = self.of.filter(|_| !self.steps.is_empty()) else { return };
        let mut state = reservation.state.lock();
        for (taken, run) in std::mem::take(&mut self.steps).into_iter().rev() {
            match taken {
                true => {
                    state.put(run);
                    if self.soils {
                        state.soiled.push(run);
                    }
                }
                false => state.take(run.start),
            }
        }
    }
}

impl State {
    fn put(&mut self, run: Run) {
        self.free.insert(run.start, run.blocks);
        self.released.add(run);
    }

    fn take(&mut self, start: u64) {
        self.free.remove(&start);
        self.released.remove(start);
    }

    /// Takes at most `most` free blocks in a row, from `goal` on if they are free.
    fn pick(&mut self, goal: u64, most: u64, steps: &mut Vec<(bool, Run)>) -> Option<Run> {
        let around = self.free.range(..=goal).next_back().map(|(start, blocks)| (*start, *blocks));
        let around = around.filter(|(start, blocks)| goal < start + blocks);
        let (start, blocks, from) = match around {
            Some((start, blocks)) => (start, blocks, goal),
            None => {
                let enough = self.free.iter().find(|(_, blocks)| **blocks >= most);
                let (start, blocks) = enough.or_else(|| self.free.iter().next())?;
                (*start, *blocks, *start)
            }
        };
        let end = (start + blocks).min(from + most);
        self.take(start);
        steps.push((true, Run { start, blocks }));
        for rest in [start..from, end..start + blocks].into_iter().filter(|rest| !rest.is_empty()) {
            let rest = Run { start: rest.start, blocks: rest.end - rest.start };
            self.put(rest);
            steps.push((false, rest));
        }
        Some(Run { start: from, blocks: end - from })
    }

    fn token(&self) -> u128 {
        self.listed.as_ref().map_or(NO_OWNER, |listed| listed.owner.token)
    }
}

impl Reservation {
    /// Whether a block is the transaction's own.
    pub(super) fn has(&self, block: u64) -> bool {
        let state = self.state.lock();
        let before = state.reserved.range(..=block).next_back();
        before.is_some_and(|(start, blocks)| block < start + blocks)
    }

    /// The parts of a run, and which of them are the transaction's own.
    pub(super) fn parts(&self, run: Run) -> Vec<(Run, bool)> {
        let state = self.state.lock();
        let (mut parts, mut at, end) = (Vec::new(), run.start, run.start + run.blocks);
        let first = state.reserved.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, blocks) in state.reserved.range(first..end) {
            let (from, to) = ((*start).max(at), (start + blocks).min(end));
            if from >= to {
                continue;
            }
            if at < from {
                parts.push((Run { start: at, blocks: from - at }, false));
            }
            parts.push((Run { start: from, blocks: to - from }, true));
            at = to;
        }
        if at < end {
            parts.push((Run { start: at, blocks: end - at }, false));
        }
        parts
    }

    /// Whether so many more blocks of existing files may be changed in place; counts them if so.
    pub(super) fn changes_in_place(&self, blocks: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.in_place + blocks <= CHANGED_IN_PLACE;
        if fits {
            state.in_place += blocks;
        }
        fits
    }

    /// Nothing refers to a run of blocks any more that is not the transaction's own.
    pub(super) fn release(&self, run: Run) {
        self.state.lock().released.add(run);
    }

    /// Takes back a run of its own that is no longer used and holds zeros.
    pub(super) fn give(&self, run: Run) {
        self.state.lock().put(run);
    }

    /// A claim on this reservation, for one call.
    pub(super) fn claim(&self) -> Claim<'_> {
        Claim { of: Some(self), steps: Vec::new(), soils: false }
    }

    /// Allows the reserved blocks to be freed, unless the transaction has committed.
    pub(super) fn end(&self) -> Option<Owner> {
        self.state.lock().listed.take().map(|listed| listed.owner)
    }

    /// Takes blocks for a file, from `goal` on if they are free.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: there are not as many.
    pub(super) async fn take(
        &self,
        (inner, txn): (&Inner, &Arc<dyn Transaction>),
        mut goal: u64,
        blocks: u64,
        claim: &mut Claim<'_>,
    ) -> Result<Vec<Run>, FsError> {
        self.clean(inner, txn).await?;
        let (mut runs, mut missing): (Vec<Run>, u64) = (Vec::new(), blocks);
        while missing > 0 {
            let picked = self.state.lock().pick(goal, missing, &mut claim.steps);
            let Some(run) = picked else {
                self.reserve(inner, txn, goal, missing).await?;
                continue;
            };
            missing -= run.blocks;
            goal = run.start + run.blocks;
            match runs.last_mut().filter(|last| last.start + last.blocks == run.start) {
                Some(last) => last.blocks += run.blocks,
                None => runs.push(run),
            }
        }
        Ok(runs)
    }

    /// Empties blocks that a failed call wrote to.
    async fn clean(&self, inner: &Inner, txn: &Arc<dyn Transaction>) -> Result<(), FsError> {
        let soiled = std::mem::take(&mut self.state.lock().soiled);
        for run in soiled {
            empty(inner, txn, run).await?;
        }
        Ok(())
    }

    /// Reserves at least `least` blocks.
    async fn reserve(
        &self,
        inner: &Inner,
        txn: &Arc<dyn Transaction>,
        goal: u64,
        least: u64,
    ) -> Result<(), FsError> {
        let had: u64 = self.state.lock().reserved.values().sum();
        let more = had.clamp(CHUNK.start, CHUNK.end).min(inner.space.free() / SHARE);
        match self.try_reserve(inner, txn, goal, least.max(more)).await {
            Err(FsError::NoSpace) => {}
            done => return done,
        }
        if inner.is_freeing() {
            inner.do_duties().await?;
            inner.finish_freed().await?;
        }
        self.try_reserve(inner, txn, goal, least).await
    }

    async fn try_reserve(
        &self,
        inner: &Inner,
        txn: &Arc<dyn Transaction>,
        goal: u64,
        blocks: u64,
    ) -> Result<(), FsError> {
        let aside = aside(txn)?;
        let before = {
            let state = self.state.lock();
            state.listed.as_ref().map(|it| (it.owner.token, it.blocks.clone(), it.entries.clone()))
        };
        let is_new = before.is_none();
        let (token, list, entries) =
            before.unwrap_or_else(|| (inner.env.uuid().as_u128(), Vec::new(), Vec::new()));
        // Registered before another task can find the list.
        let owner = is_new.then(|| Owner::enter(aside, token));
        let wanted = (goal, blocks + u64::from(is_new));
        let (runs, list, entries) = inner
            .change(async |txn| {
                let mut op = Op::new(inner, &txn, false);
                let mut lists = Lists { list: list.clone(), entries: entries.clone(), token };
                let runs = op.reserve_runs(&mut lists, wanted).await?;
                Ok(((runs, lists.list, lists.entries), op.finish().await?))
            })
            .await?;
        let head = {
            let mut state = self.state.lock();
            for run in &runs {
                state.reserved.insert(run.start, run.blocks);
                state.put(*run);
            }
            match (owner, &mut state.listed) {
                (Some(owner), listed) => *listed = Some(Listed { owner, blocks: list, entries }),
                (None, Some(listed)) => (listed.blocks, listed.entries) = (list, entries),
                (None, None) => return Err(FsError::Stale),
            }
            let run = runs.last().copied().filter(|_| is_new);
            run.map(|run| {
                // The list of released runs begins in the last block.
                state.take(run.start);
                if run.blocks > 1 {
                    state.put(Run { blocks: run.blocks - 1, ..run });
                }
                run.start + run.blocks - 1
            })
        };
        if let Some(head) = head {
            self.state.lock().released.blocks.push(head);
        }
        Ok(())
    }

    /// Writes the list of released runs into the transaction.
    ///
    /// # Errors
    /// The transaction must be aborted then.
    pub(super) async fn write_released(
        &self,
        inner: &Inner,
        txn: &Arc<dyn Transaction>,
    ) -> Result<(), FsError> {
        loop {
            let missing = {
                let state = self.state.lock();
                if state.listed.is_none() && state.released.entries.is_empty() {
                    return Ok(());
                }
                state.listed.is_none() || state.released.blocks.len() < state.released.needed()
            };
            if !missing {
                break;
            }
            if self.state.lock().listed.is_none() {
                self.reserve(inner, txn, 0, 1).await?;
                continue;
            }
            let mut claim = self.claim();
            let runs = self.take((inner, txn), 0, 1, &mut claim).await?;
            claim.keep();
            let mut state = self.state.lock();
            let last = state.released.blocks.len().saturating_sub(1);
            state.released.dirty.insert(last);
            state.released.blocks.extend(runs.iter().map(|run| run.start));
            let new = state.released.blocks.len() - 1;
            state.released.dirty.insert(new);
        }
        let mut state = self.state.lock();
        let token = state.token();
        let Released { blocks, entries, dirty, .. } = &mut state.released;
        for page in std::mem::take(dirty) {
            let Some(block) = blocks.get(page) else { continue };
            let content = page_of(inner, ListKind::Released, token, (blocks, entries), page);
            let lba = inner.area.lba(*block);
            txn.write_as(lba, content, Class::Metadata).map_err(FsError::aborted)?;
        }
        Ok(())
    }
}

impl Owner {
    fn enter(aside: &dyn Aside, token: u128) -> Owner {
        let owners = aside.owners();
        owners.lock().insert(token);
        Owner { owners, token }
    }
}

fn aside(txn: &Arc<dyn Transaction>) -> Result<&dyn Aside, FsError> {
    txn.aside().ok_or(FsError::NotSupported)
}

/// Has a run of the transaction's own hold zeros.
///
/// # Errors
/// The transaction is to be aborted then.
pub(super) async fn empty(
    inner: &Inner,
    txn: &Arc<dyn Transaction>,
    run: Run,
) -> Result<(), FsError> {
    let discarded = aside(txn)?.discard(inner.area.lba(run.start), run.blocks).await;
    discarded.map_err(FsError::aborted)
}

/// Writes to reserved blocks. Those without content get zeros.
///
/// # Errors
/// Some may have been written then.
pub(super) async fn write(
    inner: &Inner,
    txn: &Arc<dyn Transaction>,
    writes: Vec<(u64, Option<Bytes>, Range<usize>)>,
) -> Result<(), FsError> {
    let writes = writes.into_iter().map(|(block, content, changed)| Write {
        lba: inner.area.lba(block),
        content,
        changed: ByteRanges::from(changed),
        class: Class::Data,
    });
    Ok(aside(txn)?.write(writes.collect()).await?)
}

/// Blocks of the transaction's own, as they are now.
///
/// # Errors
/// Those of the transaction.
pub(super) async fn read(
    inner: &Inner,
    txn: &Arc<dyn Transaction>,
    run: Run,
) -> Result<Vec<Bytes>, TxnError> {
    match txn.aside() {
        Some(aside) => aside.read(inner.area.lba(run.start), run.blocks).await,
        None => txn.read_run(inner.area.lba(run.start), run.blocks).await,
    }
}

/// One block of a list.
fn page_of(
    inner: &Inner,
    kind: ListKind,
    token: u128,
    (blocks, entries): (&[u64], &[Run]),
    page: usize,
) -> Bytes {
    let mut content = ListPage::new(kind, inner.area.tag(), token, blocks.get(page + 1).copied());
    let from = (page * LIST_ENTRIES).min(entries.len());
    for (at, run) in entries[from..].iter().take(LIST_ENTRIES).enumerate() {
        content.set(at, (run.start, run.blocks));
    }
    content.into_bytes()
}

/// The list of reserved runs, while it grows.
struct Lists {
    list: Vec<u64>,
    entries: Vec<Run>,
    token: u128,
}

impl Op<'_> {
    /// Takes blocks for a transaction and adds them to its list, which is begun when there is none.
    async fn reserve_runs(
        &mut self,
        lists: &mut Lists,
        (goal, blocks): (u64, u64),
    ) -> Result<Vec<Run>, FsError> {
        let mut runs = self.take_blocks(0, goal, blocks, 0).await?;
        // Full blocks of the list need not be written again.
        let full = lists.entries.len() / LIST_ENTRIES;
        lists.entries.extend(&runs);
        let needed = lists.entries.len().div_ceil(LIST_ENTRIES);
        let linked = (lists.list.len() < needed).then(|| lists.list.len().saturating_sub(1));
        while lists.list.len() < needed {
            let more = self.take_blocks(0, goal, 1, 0).await?;
            lists.list.extend(more.iter().map(|run| run.start));
        }
        for page in full.min(linked.unwrap_or(full))..needed {
            let parts = (&lists.list[..], &lists.entries[..]);
            let content = page_of(self.inner, ListKind::Reserved, lists.token, parts, page);
            self.put_page(lists.list[page], content);
        }
        if full == 0 && lists.entries.len() == runs.len() {
            let released = runs.last().map_or(0, |run| run.start + run.blocks - 1);
            self.enter_table(lists.list[0], released).await?;
        }
        runs.retain(|run| run.blocks > 0);
        Ok(runs)
    }

    /// Enters two lists into the table.
    async fn enter_table(&mut self, reserved: u64, released: u64) -> Result<(), FsError> {
        let table = self.inner.table(self.txn).await?.ok_or(FsError::NotSupported)?;
        let mut page = self.read_list(table, ListKind::Table, true).await?;
        let slot = (0..LIST_ENTRIES).find(|slot| page.get(*slot) == (0, 0));
        let slot = slot.ok_or(FsError::NoSpace)?;
        self.depend_on_slot(table, slot)?;
        page.set(slot, (reserved + 1, released + 1));
        self.put_entry(table, page, slot);
        Ok(())
    }

    /// One block of a list, without anything that depends on its entries.
    async fn read_list(
        &self,
        block: u64,
        kind: ListKind,
        shared: bool,
    ) -> Result<ListPage, FsError> {
        let lba = self.inner.area.lba(block);
        let content = self.txn.read(lba).await?;
        if shared {
            self.txn.mark_accessed(lba, 0..FRAGMENT)?;
        }
        let page = ListPage::read(content, kind, self.inner.area.tag());
        page.ok_or_else(|| FsError::Damaged(format!("block {block} is no list of reservations")))
    }

    fn depend_on_slot(&self, table: u64, slot: usize) -> Result<(), FsError> {
        let range = ListPage::range(slot);
        Ok(self.txn.mark_accessed(self.inner.area.lba(table), range)?)
    }

    fn put_page(&mut self, block: u64, content: Bytes) {
        self.lists.push((block, Some(content), 0..BLOCK_SIZE));
    }

    fn put_entry(&mut self, block: u64, page: ListPage, slot: usize) {
        self.lists.push((block, Some(page.into_bytes()), ListPage::range(slot)));
    }
}

/// A step in freeing the blocks of an ended transaction.
enum Step {
    /// Nothing was done so far.
    Begun,
    /// Nothing is left.
    Done,
    /// There is more to be done.
    More,
    /// These blocks have to be emptied before the step may be done.
    Empty(Vec<Run>),
}

/// A slot of the table.
struct Slot {
    table: u64,
    number: usize,
    page: ListPage,
}

impl Op<'_> {
    /// The blocks of a list, in order, and the last of them.
    async fn walk(&self, first: u64, kind: ListKind) -> Result<(Vec<u64>, ListPage), FsError> {
        let (mut blocks, mut at) = (vec![first], first);
        loop {
            let page = self.read_list(at, kind, false).await?;
            match page.next() {
                Some(next) if self.inner.area.has(next, 1) && !blocks.contains(&next) => {
                    blocks.push(next);
                    at = next;
                }
                Some(_) => {
                    let what = format!("the list of reservations in block {first} has no end");
                    return Err(FsError::Damaged(what));
                }
                None => return Ok((blocks, page)),
            }
        }
    }

    /// Whether the transaction of two lists has committed.
    async fn has_committed(&self, reserved: u64, released: u64) -> Result<bool, FsError> {
        let list = self.read_list(reserved, ListKind::Reserved, false).await?;
        let content = self.txn.read(self.inner.area.lba(released)).await?;
        let said = ListPage::read(content, ListKind::Released, self.inner.area.tag());
        Ok(said.is_some_and(|said| said.owner() == list.owner()))
    }

    /// The slot of the table, unless its transaction still runs.
    async fn ended_slot(
        &self,
        number: usize,
        owners: &Mutex<HashSet<u128>>,
    ) -> Result<Option<Slot>, FsError> {
        let Some(table) = self.inner.table(self.txn).await? else { return Ok(None) };
        let page = self.read_list(table, ListKind::Table, true).await?;
        self.depend_on_slot(table, number)?;
        let (reserved, released) = page.get(number);
        if (reserved, released) == (0, 0) {
            return Ok(None);
        }
        if reserved > 0 && released > 0 {
            let list = self.read_list(reserved - 1, ListKind::Reserved, false).await?;
            if owners.lock().contains(&list.owner()) {
                return Ok(None);
            }
        }
        Ok(Some(Slot { table, number, page }))
    }

    /// Does one step of freeing the blocks that an ended transaction has reserved or released. `before`:
    /// the result of the step before.
    async fn free_step(&mut self, slot: Slot, before: &Step) -> Result<Step, FsError> {
        let (reserved, released) = slot.page.get(slot.number);
        let is_open = reserved > 0 && released > 0;
        if is_open && matches!(before, Step::Begun) {
            // When this commits, so has the transaction, or it never will: a commit that was given up
            // half way may still be on its way.
            self.set_slot(slot, (reserved, released));
            return Ok(Step::More);
        }
        if is_open && !self.has_committed(reserved - 1, released - 1).await? {
            self.lists.push((released - 1, None, 0..BLOCK_SIZE));
            self.set_slot(slot, (reserved, 0));
            return Ok(Step::More);
        }
        // The reserved blocks of a committed transaction must not be freed.
        let (first, kind) = match reserved {
            0 => (released - 1, ListKind::Released),
            reserved => (reserved - 1, ListKind::Reserved),
        };
        let (mut blocks, last) = self.walk(first, kind).await?;
        let runs: Vec<Run> = match is_open {
            true => Vec::new(),
            false => last.runs(&self.inner.area)?,
        };
        if !runs.is_empty() && !matches!(before, Step::Empty(_)) {
            return Ok(Step::Empty(runs));
        }
        for run in runs {
            self.clear_bits(run).await?;
        }
        let gone = blocks.pop().unwrap_or(first);
        self.lists.push((gone, None, 0..BLOCK_SIZE));
        self.clear_bits(Run { start: gone, blocks: 1 }).await?;
        match blocks.last() {
            Some(before) => {
                let mut page = self.read_list(*before, kind, false).await?;
                page.set_next(None);
                self.put_page(*before, page.into_bytes());
            }
            None if is_open => self.set_slot(slot, (0, released)),
            None => self.set_slot(slot, (0, 0)),
        }
        Ok(Step::More)
    }

    fn set_slot(&mut self, slot: Slot, to: (u64, u64)) {
        let Slot { table, number, mut page } = slot;
        page.set(number, to);
        self.put_entry(table, page, number);
    }

    /// Every run of blocks that reservations have, also the table's and the lists' own, and how many
    /// reservations there are.
    pub(super) async fn reserved_runs(&self, table: u64) -> Result<(Vec<Run>, u64), FsError> {
        let one = |block: u64| Run { start: block, blocks: 1 };
        let (mut runs, mut count) = (vec![one(table)], 0);
        let page = self.read_list(table, ListKind::Table, false).await?;
        for (reserved, released) in (0..LIST_ENTRIES).map(|slot| page.get(slot)) {
            if (reserved, released) == (0, 0) {
                continue;
            }
            count += 1;
            let is_open = reserved > 0 && released > 0;
            let committed = is_open && self.has_committed(reserved - 1, released - 1).await?;
            let lists = [
                (reserved, ListKind::Reserved, !committed),
                (released, ListKind::Released, committed || reserved == 0),
            ];
            for (first, kind, counts) in lists.into_iter().filter(|(first, ..)| *first > 0) {
                if kind == ListKind::Released && !counts {
                    continue;
                }
                let mut at = Some(first - 1);
                let mut seen = BTreeSet::new();
                while let Some(block) = at {
                    if !self.inner.area.has(block, 1) || !seen.insert(block) {
                        let what = "a list of reservations has a bad block".to_owned();
                        return Err(FsError::Damaged(what));
                    }
                    let page = self.read_list(block, kind, false).await?;
                    runs.push(one(block));
                    if counts {
                        runs.extend(page.runs(&self.inner.area)?);
                    }
                    at = page.next();
                }
            }
        }
        Ok((runs, count))
    }
}

impl Inner {
    /// The block of the table of reservations, if there is one.
    pub(super) async fn table(&self, txn: &Arc<dyn Transaction>) -> Result<Option<u64>, FsError> {
        if let Some(table) = self.table.get() {
            return Ok(Some(*table));
        }
        let found = Op::new(self, txn, false).stored_table().await?;
        Ok(found.map(|table| *self.table.get_or_init(|| table)))
    }

    /// Makes the table of reservations where it is missing. Where no block is free there is no table, and
    /// transactions hold contents in memory.
    ///
    /// # Errors
    /// Those of the transaction.
    pub(super) async fn make_table(&self) -> Result<(), FsError> {
        let txn = self.look().await?;
        if self.table(&txn).await?.is_some() {
            return Ok(());
        }
        drop(txn);
        let made = self
            .change(async |txn| {
                let mut op = Op::new(self, &txn, false);
                if op.stored_table().await?.is_none() {
                    let runs = op.take_blocks(0, 0, 1, 0).await?;
                    let block = runs.first().map_or(0, |run| run.start);
                    let tag = self.area.tag();
                    let page = ListPage::new(ListKind::Table, tag, NO_OWNER, None);
                    op.put_page(block, page.into_bytes());
                    op.put(table_key(), block.to_le_bytes().to_vec());
                }
                Ok(((), op.finish().await?))
            })
            .await;
        match made {
            Err(FsError::NoSpace) => Ok(()),
            made => {
                made?;
                let txn = self.look().await?;
                self.table(&txn).await.map(drop)
            }
        }
    }

    /// Frees the reserved blocks of ended transactions, and the released blocks of committed ones.
    ///
    /// # Errors
    /// Those of the transactions; the next call continues.
    #[async_recursion]
    pub(super) async fn finish_reservations(&self) -> Result<(), FsError> {
        let _turn = self.freeing.lock().await;
        let txn = self.look().await?;
        let Some(owners) = txn.aside().map(|aside| aside.owners()) else { return Ok(()) };
        let Some(table) = self.table(&txn).await? else { return Ok(()) };
        let page = Op::new(self, &txn, false).read_list(table, ListKind::Table, true).await?;
        drop(txn);
        for slot in (0..LIST_ENTRIES).filter(|slot| page.get(*slot) != (0, 0)) {
            self.finish_reservation(slot, &owners).await?;
        }
        Ok(())
    }

    async fn finish_reservation(
        &self,
        number: usize,
        owners: &Mutex<HashSet<u128>>,
    ) -> Result<(), FsError> {
        let mut step = Step::Begun;
        loop {
            step = self
                .change(async |txn| {
                    let mut op = Op::new(self, &txn, false);
                    let next = match op.ended_slot(number, owners).await? {
                        Some(slot) => op.free_step(slot, &step).await?,
                        None => Step::Done,
                    };
                    Ok((next, op.finish().await?))
                })
                .await?;
            match &step {
                Step::Done => return Ok(()),
                Step::Begun | Step::More => {}
                Step::Empty(runs) => {
                    for run in runs {
                        self.volume.discard_run(self.area.lba(run.start), run.blocks).await?;
                    }
                }
            }
        }
    }
}

/// The key of the record that leads to the table of reservations.
pub(super) fn table_key() -> Vec<u8> {
    super::format::key(0, super::format::Tag::Reservations, &[])
}

impl Op<'_> {
    async fn stored_table(&self) -> Result<Option<u64>, FsError> {
        let Some(value) = self.get(&table_key()).await? else { return Ok(None) };
        let block = value.as_ref().try_into().ok().map(u64::from_le_bytes);
        let block = block.filter(|block| self.inner.area.has(*block, 1));
        block.map(Some).ok_or_else(|| {
            FsError::Damaged("the record of the table of reservations is invalid".to_owned())
        })
    }
}
