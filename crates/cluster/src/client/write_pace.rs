//! When a client sends what it has made, and commits it to its journal, without being asked: when it is old, or when memory or the
//! journal run short (table 7.1 of Arion's paper).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_env::Time;
use thalweg_fs::FsError;

use super::writeback::{SendGuard, Writeback};

/// The time between two looks for mutations that have waited for long enough, at least.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

impl Writeback {
    /// Applies backpressure: sends mutations when many wait, and waits for that when there are too many.
    pub(super) async fn throttle(self: &Arc<Self>) -> Result<(), FsError> {
        // The journal has more room than memory.
        if self.base.queue.is_over_memory() {
            self.journaling.commit().await?;
        }
        if self.base.queue.is_over_full() {
            return self.send_batches(false, false).await;
        }
        self.begin_if_full();
        Ok(())
    }

    /// Begins to send mutations if many wait; whether their maker is to wait for that.
    pub(super) fn begin_if_full(self: &Arc<Self>) -> bool {
        if self.base.queue.is_commit_due() && !self.is_committing.swap(true, Ordering::Relaxed) {
            let writeback = self.clone();
            let committing = async move {
                writeback.journaling.commit_unasked().await;
                writeback.is_committing.store(false, Ordering::Relaxed);
            };
            self.base.env.spawn(committing).detach();
        }
        if self.is_full()
            && self.base.refusals.holds(self.base.now(), false).is_none()
            && let Ok(turn) = self.sending.clone().try_lock_owned()
        {
            let writeback = self.clone();
            let sending = async move {
                if let Err(error) = writeback.send_full(turn).await {
                    writeback.report_unsent(&error);
                }
            };
            self.base.env.spawn(sending).detach();
        }
        self.base.queue.is_over_full()
    }

    /// Whether so much waits that some of it is to be sent: memory, the journal or the room that the server has promised run short.
    fn is_full(&self) -> bool {
        self.base.queue.is_full() || self.base.queue.has_journal() && self.base.room.is_short()
    }

    async fn send_full(self: &Arc<Self>, mut turn: SendGuard) -> Result<(), FsError> {
        if self.base.queue.is_memory_short() {
            // A batch has what the journal has.
            self.journaling.before_send().await?;
            self.sender.foresee();
        }
        while self.is_full() {
            if self.base.queue.has_waiting() {
                self.send_batch(turn, None, 0).await?;
                turn = self.hold().await;
            }
            if !self.journaling.checkpoint().await? && !self.base.queue.has_waiting() {
                break;
            }
        }
        Ok(())
    }

    /// Sends mutations that have waited for long enough, again and again.
    pub(super) async fn run(self: &Arc<Self>) {
        let mut pause = self.base.options.writeback;
        if self.base.journal.live().is_some() {
            pause = pause.min(self.base.options.commit);
        }
        loop {
            self.base.env.sleep(pause.max(LEAST_PAUSE)).await;
            if self.base.links.is_closed() {
                return;
            }
            self.journaling.by_timer().await;
            let age = self.base.now().since(Time::default());
            let before = Time::default() + age.saturating_sub(self.base.options.expire);
            if let Err(error) = self.send_since(before).await {
                self.report_unsent(&error);
            }
        }
    }

    /// Sends the mutations that were made until then, and later ones that fit into the last batch.
    async fn send_since(self: &Arc<Self>, time: Time) -> Result<(), FsError> {
        let is_late = || {
            let is_held = self.base.refusals.holds(self.base.now(), false).is_some();
            !is_held && self.base.queue.waits_since(time)
        };
        while is_late() {
            let turn = self.hold().await;
            if self.is_set_aside.load(Ordering::Relaxed) || !is_late() {
                return Ok(());
            }
            self.send_batch(turn, None, 0).await?;
        }
        Ok(())
    }

    /// Mutations were sent in vain by itself. The log has those already that wait again.
    fn report_unsent(&self, error: &FsError) {
        if self.base.refusals.current().is_none() {
            tracing::error!(%error, "changes in a directory of this client alone are lost");
        }
    }
}
