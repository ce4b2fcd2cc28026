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

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::Class;
use thalweg_store::txn::Transaction;

use super::extents::Run;
use super::format::{LIST_ENTRIES, ListKind, ListPage};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::private_blocks;
use super::reserved_blocks::{Claim, Listed, Owner, Released, Reservation};
use crate::error::FsError;

/// Blocks that are reserved at first, and at most unless a call needs more: each time twice as many.
const CHUNK: Range<u64> = 64..8192;
/// A reservation beyond the need takes at most one in so many of the free blocks.
const SHARE: u64 = 8;

impl Reservation {
    /// Takes blocks for a file, from `goal` on if they are free.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: there are not as many.
    pub(super) async fn take(
        &self,
        (inner, txn): (&FsState, &Arc<dyn Transaction>),
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
            assert!(0 < run.blocks && run.blocks <= missing, "{run:?} is not a part of {missing}");
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
    async fn clean(&self, inner: &FsState, txn: &Arc<dyn Transaction>) -> Result<(), FsError> {
        let dirtied = std::mem::take(&mut self.state.lock().dirtied);
        for run in dirtied {
            private_blocks::empty(inner, txn, run).await?;
        }
        Ok(())
    }

    /// Reserves at least `least` blocks.
    async fn reserve(
        &self,
        inner: &FsState,
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
            inner.run_deferred_work().await?;
            inner.finish_freed().await?;
        }
        self.try_reserve(inner, txn, goal, least).await
    }

    async fn try_reserve(
        &self,
        inner: &FsState,
        txn: &Arc<dyn Transaction>,
        goal: u64,
        blocks: u64,
    ) -> Result<(), FsError> {
        let aside = private_blocks::of(txn)?;
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
                let mut op = FsCall::new(inner, &txn, false);
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
        inner: &FsState,
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

/// One block of a list.
fn page_of(
    inner: &FsState,
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

impl FsCall<'_> {
    /// Takes blocks for a transaction and adds them to its list, which is begun when there is none.
    async fn reserve_runs(
        &mut self,
        lists: &mut Lists,
        (goal, blocks): (u64, u64),
    ) -> Result<Vec<Run>, FsError> {
        let mut runs = self.allocate_blocks(0, goal, blocks, 0).await?;
        // Full blocks of the list need not be written again.
        let full = lists.entries.len() / LIST_ENTRIES;
        lists.entries.extend(&runs);
        let needed = lists.entries.len().div_ceil(LIST_ENTRIES);
        let linked = (lists.list.len() < needed).then(|| lists.list.len().saturating_sub(1));
        while lists.list.len() < needed {
            let more = self.allocate_blocks(0, goal, 1, 0).await?;
            lists.list.extend(more.iter().map(|run| run.start));
        }
        assert!(needed <= lists.list.len(), "a list of {} blocks needs {needed}", lists.list.len());
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
}
