//! Frees the blocks that transactions have reserved, or released, when they have ended.

use std::collections::BTreeSet;

use async_recursion::async_recursion;
use parking_lot::Mutex;
use thalweg_env::HashSet;
use thalweg_store::block::BLOCK_SIZE;

use super::extents::Run;
use super::format::{LIST_ENTRIES, ListKind, ListPage};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use crate::error::FsError;

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

impl FsCall<'_> {
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
            // half way may still be in flight.
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
        let runs: Vec<Run> = if is_open { Vec::new() } else { last.runs(&self.inner.area)? };
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

impl FsState {
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
        let page = FsCall::new(self, &txn, false).read_list(table, ListKind::Table, true).await?;
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
                    let mut op = FsCall::new(self, &txn, false);
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
