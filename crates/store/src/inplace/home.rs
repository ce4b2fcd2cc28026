//! Writeback: blocks in place, and the map's sectors about them.

use std::ops::Range;
use std::time::Duration;

use async_recursion::async_recursion;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::Inner;
use super::batch::{PageWrite, WritebackBatch};
use super::dirty::Which;
use super::medium::WRITES;
use super::stages::Stage;
use super::turns::Kind;
use crate::block::{BLOCK_SIZE, Class, StoreError};
use crate::device::Purpose;

/// Maximum of blocks in one write.
const RUN: usize = 256;
/// Writeback makes room once this part of the journal is in use. Later means more neighbouring
/// blocks in one sweep over the disk; but a sweep takes time, and writers need room meanwhile.
const FULL: f64 = 0.65;
/// Maximum of blocks in a batch.
const BATCH: usize = 16_384;

/// A writeback batch. Blocks that were not written stay dirty.
struct Batch<'a> {
    inner: &'a Inner,
    blocks: Vec<PageWrite>,
    /// Blocks that are written together.
    runs: Vec<Range<usize>>,
    /// Whether each block is in place.
    home: Vec<bool>,
}

/// Splits a batch into runs of blocks that one request writes.
fn runs(blocks: &[PageWrite]) -> Vec<Range<usize>> {
    let follows = |a: &PageWrite, b: &PageWrite| {
        a.lba + 1 == b.lba && a.class == b.class && a.content.is_some() && b.content.is_some()
    };
    let mut runs = Vec::new();
    let mut start = 0;
    for run in blocks.chunk_by(follows) {
        for part in run.chunks(RUN) {
            runs.push(start..start + part.len());
            start += part.len();
        }
    }
    runs
}

/// Cost of writing so many neighbouring blocks, in units of one further block; positioning a
/// rotational disk takes as long as some tens of blocks.
fn cost(blocks: usize) -> usize {
    const POSITIONING: usize = 32;
    POSITIONING + blocks
}

/// Cost of writing one run, in units of [`cost`]; only writeback from the journal counts.
fn work(run: &[PageWrite]) -> usize {
    let written = run.iter().filter(|write| write.content.is_some() && !write.direct).count();
    if written > 0 { cost(written) } else { 0 }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for (write, is_home) in self.blocks.iter().zip(&self.home) {
            if !is_home {
                self.inner.end_writes(std::slice::from_ref(write), false);
            }
        }
    }
}

impl Batch<'_> {
    fn new(inner: &Inner, blocks: Vec<PageWrite>) -> Batch<'_> {
        let (runs, home) = (runs(&blocks), vec![false; blocks.len()]);
        Batch { inner, blocks, runs, home }
    }

    /// Cost of writing everything.
    fn work(&self) -> usize {
        self.runs.iter().map(|run| work(&self.blocks[run.clone()])).sum()
    }

    /// Writes everything.
    async fn write_batch(mut self) -> Result<(), StoreError> {
        // Nearly every commit has no direct change, and its caller waits.
        if self.blocks.is_empty() {
            return Ok(());
        }
        for write in self.blocks.iter().filter(|write| write.keep) {
            self.inner.keep_home(write.lba).await?;
        }
        self.inner.medium.map_all(self.blocks.iter().map(|write| write.lba)).await?;
        self.write().await
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let inner = self.inner;
        let (blocks, home) = (&self.blocks, &mut self.home);
        let mut waiting = self.runs.iter().cloned();
        let mut writes = FuturesUnordered::new();
        let mut under_way = 0;
        loop {
            let most = inner.background_blocks();
            while writes.len() < WRITES
                && (under_way < most || writes.is_empty())
                && let Some(run) = waiting.next()
            {
                under_way += run.len();
                writes.push(async {
                    inner.write_run(&blocks[run.clone()]).await?;
                    Ok::<_, StoreError>(run)
                });
            }
            match writes.next().await {
                Some(run) => {
                    let run = run?;
                    under_way -= run.len();
                    // Callers that wait for memory or for one of these blocks need not wait for the
                    // whole batch.
                    inner.end_writes(&blocks[run.clone()], true);
                    home[run].fill(true);
                }
                None => return Ok(()),
            }
        }
    }
}

impl Inner {
    /// Ends the writeback of blocks that were written together.
    fn end_writes(&self, run: &[PageWrite], are_home: bool) {
        let mut state = self.medium.state.lock();
        run.iter().for_each(|write| state.end_write(write, are_home));
        if are_home {
            state.pace.home(work(run));
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Writes neighbouring blocks, or discards a block that became empty.
    async fn write_run(&self, run: &[PageWrite]) -> Result<(), StoreError> {
        let filled = run.iter().filter(|write| write.fills).count() as u64;
        let written = self.write_blocks(run).await;
        if filled == 0 {
            return written;
        }
        if written.is_ok() {
            self.medium.state.lock().counts.filled += filled;
            return Ok(());
        }
        // A failure in a gap must not keep the dirty blocks from being written.
        for part in run.split(|write| write.fills) {
            self.write_blocks(part).await?;
        }
        Ok(())
    }

    async fn write_blocks(&self, run: &[PageWrite]) -> Result<(), StoreError> {
        let Some(first) = run.first() else { return Ok(()) };
        let place = self.medium.place(first.lba);
        let content: Option<Vec<Bytes>> = run.iter().map(|write| write.content.clone()).collect();
        let Some(content) = content else {
            if self.medium.state.lock().options.discard {
                // A hint: a device that does not support it loses nothing.
                self.medium.data.discard(place, BLOCK_SIZE as u64).await.ok();
            }
            return Ok(());
        };
        let purpose = match first.class {
            Class::Data => Purpose::UserData,
            Class::Metadata => Purpose::Metadata,
        };
        let _turn = self.medium.turn(Kind::Write).await;
        let (bytes, since) = (content.len() * BLOCK_SIZE, self.env.now());
        let under_way = self.rate.begin(bytes);
        self.medium.data.write(place, content, purpose).await?;
        under_way.end(self.env.now().since(since));
        Ok(())
    }

    /// Writes a batch in place.
    ///
    /// # Errors
    /// The device's; blocks that were not written stay dirty.
    pub(super) async fn write_batch(&self, blocks: Vec<PageWrite>) -> Result<(), StoreError> {
        Batch::new(self, blocks).write_batch().await
    }

    /// Reads the in-place content of a block that is about to be overwritten, for the versions that
    /// see it.
    async fn keep_home(&self, lba: u64) -> Result<(), StoreError> {
        let entry = self.medium.state.lock().pages.get(lba).map(|page| page.home);
        let Some(entry) = entry else { return Ok(()) };
        match self.read_home(lba, &[entry]).await {
            Ok(mut blocks) => {
                if let Some(content) = blocks.pop() {
                    self.medium.state.lock().pages.keep_read(lba, entry, content);
                }
                Ok(())
            }
            // Readers of that version get the error; writers go on.
            Err(StoreError::Corrupt { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Blocks that may be under writeback at once, so that commits do not wait for them for long.
    fn background_blocks(&self) -> usize {
        let most = WRITES * RUN * BLOCK_SIZE;
        self.rate.background_bytes(self.medium.is_rotational(), most) / BLOCK_SIZE
    }

    /// Writes dirty sectors of the map. The journal transactions they hold wait for a flush then.
    async fn write_map(&self) -> Result<(), StoreError> {
        match self.medium.write_sectors().await {
            Ok(done) => {
                self.medium.state.lock().retention.await_flush(done);
                Ok(())
            }
            Err(error) => {
                // Once the journal releases its transactions, these sectors are the only record.
                self.poison("writing a sector of the map failed");
                Err(error.into())
            }
        }
    }

    /// Writes back all blocks that `which` selects, and releases journal transactions whose changes
    /// are in place. Concurrent calls run one after the other.
    ///
    /// # Errors
    /// The devices'.
    pub(super) async fn write_back(&self, which: Which) -> Result<(), StoreError> {
        let _one = self.writing_back.lock().await;
        self.sweep(which).await
    }

    /// Writes back until the journal has `room` bytes free.
    ///
    /// # Errors
    /// The devices'; [`StoreError::Poisoned`] when everything is in place and the room is still too
    /// small.
    pub(super) async fn make_room(&self, room: u64) -> Result<(), StoreError> {
        let _one = self.writing_back.lock().await;
        while self.journal.room() < room {
            if !self.make_some_room().await? {
                self.sweep(Which::All).await?;
                break;
            }
        }
        match self.journal.room() < room {
            true => Err(StoreError::Poisoned("the journal cannot be emptied".into())),
            false => Ok(()),
        }
    }

    /// Whether writeback should make room in the journal.
    pub(super) fn is_short(&self) -> bool {
        let size = self.journal.size();
        (size - self.journal.room()) as f64 > size as f64 * FULL
    }

    /// Writes back everything that the journal holds so far; returns whether that made room. The
    /// caller holds `writing_back`.
    async fn make_some_room(&self) -> Result<bool, StoreError> {
        let (next, before) = (self.journal.next_sequence(), self.journal.released());
        let used = self.journal.size() - self.journal.room();
        self.medium.state.lock().pace.begin(used, self.env.now());
        let swept = self.sweep(Which::Before(next)).await;
        let made = self.journal.released() - before;
        self.medium.state.lock().pace.made(made, self.env.now());
        swept.map(|()| made > 0)
    }

    /// [`Inner::write_back`]; the caller holds `writing_back`.
    #[async_recursion]
    async fn sweep(&self, which: Which) -> Result<(), StoreError> {
        self.check_growth()?;
        let gap = self.medium.gap();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let WritebackBatch { writes, busy, more } =
                self.medium.state.lock().batcher().dirty(which, BATCH);
            let begun = writes.len();
            let gap = gap / BLOCK_SIZE as u64;
            let blocks = self.medium.state.lock().batcher().close_gaps(writes, gap);
            let batch = Batch::new(self, blocks);
            self.medium.state.lock().pace.plan(batch.work(), begun, more);
            let since = self.env.now();
            batch.write_batch().await?;
            self.write_map().await?;
            let since = match begun {
                0 => self.env.now(),
                _ => self.stage(Stage::WriteBack, since),
            };
            self.release().await?;
            self.stage(Stage::WriteBackFlush, since);
            match more == 0 || begun == 0 {
                // Room in the journal needs every one of these blocks in place.
                true if busy > 0 && !matches!(which, Which::Old(_)) => changed.await,
                true => return Ok(()),
                false => {}
            }
        }
    }

    /// Releases journal transactions whose changes are in place.
    async fn release(&self) -> Result<(), StoreError> {
        // Before `done` is taken: a transaction that is appended from now on is not released.
        let next = self.journal.next_sequence();
        let done = self.medium.state.lock().retention.take_unflushed();
        if done.is_empty() {
            return Ok(());
        }
        self.flush_data().await?;
        let committing = *self.committing_from.lock();
        let bars = {
            let mut state = self.medium.state.lock();
            done.into_iter().for_each(|sequence| state.retention.end(sequence));
            state.counts.releases += 1;
            let first = state.retention.oldest().into_iter().chain(committing).chain([next]).min();
            self.journal.release(first.unwrap_or(next));
            state.replayable.blocks_direct_writes()
        };
        if bars {
            self.journal.forget().await.map_err(super::journal_error)?;
        }
        self.medium.state.lock().replayable.advance(self.journal.first_scanned());
        self.changed.notify_waiters();
        Ok(())
    }

    /// Makes in-place content durable.
    pub(super) async fn flush_data(&self) -> Result<(), StoreError> {
        let barrier = {
            let mut state = self.medium.state.lock();
            // Before the flush: what is written during it needs another one.
            state.unflushed_direct = false;
            state.options.barrier
        };
        if !barrier {
            return Ok(());
        }
        if let Err(error) = self.medium.data.flush(Purpose::UserData).await {
            self.poison("a flush of the data device failed");
            return Err(error.into());
        }
        Ok(())
    }

    /// One pass of background writeback: blocks that are old, or more when room is `pressed` for.
    pub(super) async fn write_back_pass(&self, pressed: bool) -> Result<(), StoreError> {
        self.record_damage().await;
        let expire = self.medium.state.lock().options.expire;
        if pressed {
            if self.is_short() {
                let _one = self.writing_back.lock().await;
                self.make_some_room().await?;
            }
            // Everything old at once, along the disk; blocks that were changed last may change
            // again.
            let old = self.medium.state.lock().age_limit();
            if let Some(old) = old {
                self.write_back(Which::Old(old)).await?;
            }
            return Ok(());
        }
        let now = self.env.now().as_nanos();
        let span = u64::try_from(expire.as_nanos()).unwrap_or(u64::MAX);
        let old = thalweg_env::Time::from_nanos(now.saturating_sub(span));
        self.write_back(Which::Old(old)).await
    }
}

/// Least interval between two passes, whatever the options say.
pub(super) const LEAST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::super::format::Entry;
    use super::*;
    use crate::block::Version;

    fn write(lba: u64) -> PageWrite {
        PageWrite {
            lba,
            content: Some(Bytes::new()),
            class: Class::Data,
            entry: Entry::Empty,
            sequence: Some(1),
            version: Version(1),
            direct: false,
            keep: false,
            fills: false,
        }
    }

    #[test]
    fn neighbours_of_a_kind_are_written_together() {
        let mut blocks: Vec<PageWrite> = [1, 2, 3, 5, 6, 7, 8].map(write).into();
        blocks[3].class = Class::Metadata;
        blocks[5].content = None;
        assert_eq!(runs(&blocks), [0..3, 3..4, 4..5, 5..6, 6..7]);
        let blocks: Vec<PageWrite> = (0..600).map(write).collect();
        assert_eq!(runs(&blocks), [0..256, 256..512, 512..600]);
    }

    #[test]
    fn what_makes_no_room_in_the_journal_is_no_work() {
        let mut blocks = [1, 2, 3].map(write);
        assert_eq!(work(&blocks), cost(3));
        blocks[0].direct = true;
        assert_eq!(work(&blocks), cost(2));
        blocks[2].direct = true;
        blocks[1].content = None;
        assert_eq!(work(&blocks), 0);
    }
}
