//! Allocation of data blocks: bits in the pages at the front of the partition.

use std::ops::Range;

use super::extents::Run;
use super::format::BITS_PER_PAGE;
use super::fs_call::FsCall;
use crate::error::FsError;

/// Bitmap pages that a search visits for a long run before it accepts a short one, and runs in one page that
/// may be too short: on a fragmented volume the search ends early.
const PAGES_FOR_A_RUN: u64 = 8;
const RUNS_IN_A_PAGE: u64 = 32;
/// Blocks that are kept free behind a growing file: as many as it has, within this range.
const ROOM: Range<u64> = 64..2048;

/// What a search for free blocks accepts.
#[derive(Clone, Copy, Debug)]
struct Taste {
    /// Blocks of the shortest acceptable run, or the number wanted if that is less. A run that continues
    /// the file may be shorter.
    least: u64,
    /// Whether it avoids the windows of other files.
    polite: bool,
    /// Pages to visit, and runs in each.
    pages: u64,
    runs: u64,
}

impl FsCall<'_> {
    /// Allocates blocks for a file that has `has`, from `goal` on if they are free. A file that has blocks
    /// already also gets a window behind them.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: too few are free.
    pub(super) async fn allocate_blocks(
        &mut self,
        ino: u64,
        goal: u64,
        blocks: u64,
        has: u64,
    ) -> Result<Vec<Run>, FsError> {
        self.charge_blocks(blocks)?;
        let pages = self.inner.area.pages();
        let room = if has > 0 { has.clamp(ROOM.start, ROOM.end) } else { 0 };
        let mut runs: Vec<Run> = Vec::new();
        let mut missing = blocks;
        let tastes = [
            Taste { least: u64::MAX, polite: true, pages: PAGES_FOR_A_RUN, runs: RUNS_IN_A_PAGE },
            Taste { least: 16, polite: true, pages: PAGES_FOR_A_RUN, runs: RUNS_IN_A_PAGE },
            Taste { least: 1, polite: true, pages, runs: u64::MAX },
            Taste { least: 1, polite: false, pages, runs: u64::MAX },
        ];
        for taste in tastes {
            while missing > 0 {
                let goal = runs.last().map_or(goal, |run| run.start + run.blocks);
                let wanted = (missing, room);
                let Some(run) = self.allocate_run(ino, goal, wanted, taste).await? else { break };
                assert!(
                    0 < run.blocks && run.blocks <= missing,
                    "a run is not a part of {missing}"
                );
                missing -= run.blocks;
                match runs.last_mut().filter(|last| last.start + last.blocks == run.start) {
                    Some(last) => last.blocks += run.blocks,
                    None => runs.push(run),
                }
            }
        }
        if missing > 0 {
            return Err(FsError::NoSpace);
        }
        assert_eq!(
            runs.iter().map(|run| run.blocks).sum::<u64>(),
            blocks,
            "blocks are taken twice"
        );
        Ok(runs)
    }

    /// Takes one run, where it is found first: of at most so many blocks, with so many behind them.
    async fn allocate_run(
        &mut self,
        ino: u64,
        goal: u64,
        (most, room): (u64, u64),
        taste: Taste,
    ) -> Result<Option<Run>, FsError> {
        let (pages, end) = (self.inner.area.pages(), self.inner.area.end());
        let goal = if goal < end { goal } else { 0 };
        let first = goal / BITS_PER_PAGE;
        // The goal's page comes twice: from the goal on, and in the end from its start on.
        let order = (0..=pages).map(|number| ((first + number) % pages, number == 0));
        let mut looks = taste.pages + 1;
        for (page, at_goal) in order {
            if !self.inner.space.has_free(page) {
                continue;
            }
            if looks == 0 {
                return Ok(None);
            }
            looks -= 1;
            let start = if at_goal { goal % BITS_PER_PAGE } else { 0 };
            if let Some(open) = self.search(ino, page, start, most + room, taste).await? {
                let base = page * BITS_PER_PAGE;
                let bits = open.start..open.end.min(open.start + most);
                if room > 0 {
                    self.inner.space.reserve(ino, base + bits.end..base + open.end);
                }
                if !self.page(page).await?.flip(bits.clone(), true) {
                    return Err(FsError::Damaged(format!(
                        "bitmap page {page} changed during the allocation"
                    )));
                }
                let start = base + bits.start;
                return Ok(Some(Run { start, blocks: bits.end - bits.start }));
            }
        }
        Ok(None)
    }

    /// The first run of free bits in a page that will do.
    async fn search(
        &mut self,
        ino: u64,
        page: u64,
        start: u64,
        most: u64,
        taste: Taste,
    ) -> Result<Option<Range<u64>>, FsError> {
        let inner = self.inner;
        let base = page * BITS_PER_PAGE;
        let bitmap = self.page(page).await?;
        let least = taste.least.min(most);
        let (mut at, mut runs) = (start, 0);
        while runs < taste.runs
            && let Some(free) = bitmap.find_free(at..BITS_PER_PAGE, most)
        {
            let mut run = free.clone();
            if taste.polite {
                // Behind the windows there, as far as they reach.
                let open = inner.space.unreserved(ino, base + free.start..base + BITS_PER_PAGE);
                if open.start - base >= free.end {
                    at = open.start - base;
                    continue;
                }
                run = open.start - base..free.end.min(open.end - base);
            }
            let goes_on = run.start == start && start > 0 && run.start < run.end;
            if goes_on || (!run.is_empty() && run.end - run.start >= least) {
                return Ok(Some(run));
            }
            at = if run.is_empty() { free.end } else { run.end };
            runs += 1;
        }
        Ok(None)
    }

    /// Clears the bits of blocks that hold zeros, or will.
    pub(super) async fn clear_bits(&mut self, run: Run) -> Result<(), FsError> {
        let (mut at, end) = (run.start, run.start + run.blocks);
        while at < end {
            let page = at / BITS_PER_PAGE;
            let stop = end.min((page + 1) * BITS_PER_PAGE);
            let base = page * BITS_PER_PAGE;
            if !self.page(page).await?.flip(at - base..stop - base, false) {
                return Err(FsError::Damaged(format!(
                    "blocks {at} to {} are in use, and the bitmap has some of them free",
                    stop - 1
                )));
            }
            at = stop;
        }
        Ok(())
    }
}
