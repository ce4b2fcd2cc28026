//! Commits of the running transaction, one after the other, shared by all callers that wait.

use super::Inner;
use super::dirty::Which;
use super::options::Mode;
use super::running::Closed;
use super::stages::Stage;
use crate::block::{StoreError, Version};
use crate::journal::{Appended, JournalError};

impl Inner {
    /// Commits the running transaction. `synced`: the newest version that a caller waits for.
    ///
    /// # Errors
    /// The devices'; the store is poisoned then.
    pub(super) async fn commit(&self, synced: Version) -> Result<(), StoreError> {
        let (closed, mode) = {
            let mut state = self.medium.state.lock();
            if let Some(why) = &state.poison {
                return Err(StoreError::Poisoned(why.clone()));
            }
            *self.committing_from.lock() = Some(self.journal.next_sequence());
            (state.close(), state.options.mode)
        };
        let version = closed.version;
        let committed = self.commit_closed(closed, mode, synced).await;
        *self.committing_from.lock() = None;
        match committed {
            // The commit left data behind, so that its version is not durable.
            Ok(false) => Ok(()),
            Ok(true) => {
                self.callers.advance(version.0);
                Ok(())
            }
            Err(error) => {
                self.poison(&format!("a commit failed: {error}"));
                Err(error)
            }
        }
    }

    /// Commits a closed transaction; returns whether all of it, data too, survives a crash now.
    async fn commit_closed(
        &self,
        closed: Closed,
        mode: Mode,
        synced: Version,
    ) -> Result<bool, StoreError> {
        // Data is written before the metadata about it commits; in writeback mode only if a caller
        // waits for it.
        let home = mode != Mode::Writeback || synced.0 > self.callers.durable();
        let since = self.env.now();
        if home {
            self.write_direct(&closed).await?;
            // In writeback mode the order does not matter: one flush serves both where data and
            // journal share a device.
            let later = mode == Mode::Writeback && self.journal_flushes_data();
            let unflushed = self.medium.state.lock().unflushed_direct;
            if unflushed && (!later || closed.changes.is_empty()) {
                self.flush_data().await?;
            }
            self.commit_stage(Stage::Direct, since);
        }
        if closed.changes.is_empty() {
            return Ok(home);
        }
        if self.journal_flushes_data() {
            self.medium.state.lock().unflushed_direct = false;
        }
        let appended = self.append(&closed).await?;
        let now = self.env.now();
        let mut state = self.medium.state.lock();
        state.counts.commits += 1;
        state.counts.journal_bytes += appended.bytes;
        state.committed(closed, appended.sequence, home, now);
        drop(state);
        self.changed.notify_waiters();
        Ok(home)
    }

    /// Writes direct changes in place, also those that earlier transactions left dirty.
    async fn write_direct(&self, closed: &Closed) -> Result<(), StoreError> {
        let direct = closed.changes.iter().filter(|(_, change)| change.is_direct());
        let mut left: Vec<u64> = direct.map(|(lba, _)| *lba).collect();
        while !left.is_empty() {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (writes, busy) =
                self.medium.state.lock().batcher().direct(closed, left.into_iter());
            let stuck = writes.is_empty();
            self.write_batch(writes).await?;
            left = busy;
            if stuck && !left.is_empty() {
                changed.await;
            }
        }
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let which = Which::Direct(closed.version);
            let earlier = self.medium.state.lock().batcher().dirty(which, usize::MAX);
            self.write_batch(earlier.writes).await?;
            match earlier.busy {
                0 => return Ok(()),
                _ => changed.await,
            }
        }
    }

    /// Appends the transaction, making room first if there is none.
    async fn append(&self, closed: &Closed) -> Result<Appended, StoreError> {
        let record = closed.record();
        loop {
            let since = self.env.now();
            match self.journal.append(&record).await {
                Ok(appended) => {
                    self.commit_stage(Stage::Journal, since);
                    return Ok(appended);
                }
                Err(JournalError::Full { needed }) => {
                    self.make_room(needed).await?;
                    self.commit_stage(Stage::MakeRoom, since);
                }
                Err(error) => return Err(super::journal_error(error)),
            }
        }
    }

    /// Whether a flush of the journal also flushes the data: they share a device.
    fn journal_flushes_data(&self) -> bool {
        self.medium.superblock.read().journal_at.1 > 0
    }
}
