//! The keeper: a task that does what calls leave to be done.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Time;

use super::effects::Effects;
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::reserved_blocks::Owner;
use crate::error::FsError;

/// How long the last reads of inodes wait to be noted.
const ATIME_PERIOD: Duration = Duration::from_secs(10);
/// How long contents that are not needed wait to be removed.
const LEFTOVERS_PERIOD: Duration = Duration::from_secs(1);

impl FsState {
    /// Takes over work that an earlier opening has left.
    pub(super) fn resume_deferred_work(&self, orphans: Vec<u64>) {
        let mut deferred_work = self.deferred_work.lock();
        deferred_work.due.extend(&orphans);
        deferred_work.orphans.extend(orphans);
        deferred_work.freed = true;
        deferred_work.removed = true;
        deferred_work.ended = true;
        drop(deferred_work);
        self.wake.notify_one();
    }

    /// Does everything that is left to be done and may be.
    pub(super) async fn run_deferred_work(&self) -> Result<(), FsError> {
        self.collect_ended();
        let _one = self.working.lock().await;
        loop {
            let (due, freed, ended) = {
                let mut deferred_work = self.deferred_work.lock();
                let ended = std::mem::take(&mut deferred_work.ended);
                (
                    std::mem::take(&mut deferred_work.due),
                    std::mem::take(&mut deferred_work.freed),
                    ended,
                )
            };
            if due.is_empty() && !freed && !ended && self.deferred_work.lock().recount.is_empty() {
                return Ok(());
            }
            for ino in due {
                self.finish_orphan(ino).await?;
                if !self.may_be_referenced(ino) {
                    self.deferred_work.lock().orphans.remove(&ino);
                }
            }
            if freed {
                self.finish_freed().await?;
            }
            if ended {
                self.finish_reservations().await?;
            }
            let recount = std::mem::take(&mut self.deferred_work.lock().recount);
            for page in recount {
                let txn = self.look().await?;
                let free = FsCall::new(self, &txn, false).page(page).await?.free();
                self.space.set(page, free);
            }
        }
    }

    /// Whether blocks wait to be freed, or are being freed.
    pub(super) fn is_freeing(&self) -> bool {
        let deferred_work = self.deferred_work.lock();
        deferred_work.freed
            || deferred_work.ended
            || !deferred_work.due.is_empty()
            || self.working.try_lock().is_err()
            || self.freeing.try_lock().is_err()
    }

    /// Settles callers' transactions that have ended; whether some have not.
    fn collect_ended(&self) -> bool {
        let within = std::mem::take(&mut self.deferred_work.lock().within);
        let (open, ended): (Vec<_>, Vec<_>) =
            within.into_iter().partition(|(txn, ..)| txn.strong_count() > 0);
        let is_open = !open.is_empty();
        self.deferred_work.lock().within.extend(open);
        for (_, effects, owner) in ended {
            if owner.is_some() {
                drop(owner);
                self.deferred_work.lock().ended = true;
            }
            // The transaction may have aborted: the work itself finds out.
            let Effects { orphans, freed, removed, pages, .. } = effects;
            self.deferred_work.lock().recount.extend(pages.into_keys());
            self.settle(Effects { orphans, freed, removed, ..Effects::default() }, None);
        }
        is_open
    }

    /// Frees the blocks that an ended transaction has reserved or released.
    pub(super) async fn end_reservation(&self, owner: Option<Owner>) {
        if owner.is_none() {
            return;
        }
        drop(owner);
        if self.finish_reservations().await.is_err() {
            // The keeper tries again, and so does the next opening.
            self.deferred_work.lock().ended = true;
            self.wake.notify_one();
        }
    }

    /// Removes contents that are not needed, once some have waited for a while: one sync is for all of them. Returns
    /// whether some wait.
    async fn clear_deferred_removals(&self, waits_since: &mut Option<Time>) -> bool {
        if self.external_contents.is_none() || !self.has_deferred_removals() {
            *waits_since = None;
            return false;
        }
        let now = self.env.now();
        if now.since(*waits_since.get_or_insert(now)) >= LEFTOVERS_PERIOD {
            *waits_since = None;
            if let Err(error) = self.finish_deferred_removals().await {
                tracing::warn!(%error, "contents of removed files stay for now");
            }
        }
        self.has_deferred_removals()
    }

    /// Does what is to be done for redirected bytes, once in a while or when there are too many: it takes a sync, and each removal of a file
    /// wakes the keeper.
    async fn keep_redirects_at_times(&self, last: &mut Time) {
        let now = self.env.now();
        if now.since(*last) < LEFTOVERS_PERIOD && !self.has_too_many_redirects() {
            return;
        }
        *last = now;
        if let Err(error) = self.keep_redirects().await {
            tracing::warn!(%error, "bytes that are stored aside stay there for now");
        }
    }

    /// Waits for something to do, and does it, until the filesystem is closed.
    pub(super) async fn keep(self: Arc<FsState>) {
        let (mut waits_since, mut redirects_kept) = (None, self.env.now());
        loop {
            // The callers that need this work run it too, and get the error then.
            self.run_deferred_work().await.ok();
            let is_open = self.collect_ended();
            let has_deferred_removals = self.clear_deferred_removals(&mut waits_since).await;
            self.keep_redirects_at_times(&mut redirects_kept).await;
            let period = match () {
                () if is_open => ATIME_PERIOD / 20,
                () if has_deferred_removals => LEFTOVERS_PERIOD,
                () => ATIME_PERIOD,
            };
            if self.env.timeout(period, self.wake.notified()).await.is_none() || self.has_atimes() {
                self.flush_accesses().await.ok();
            }
        }
    }
}
