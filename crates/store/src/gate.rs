//! A gate that costs each passage one atomic step while no task closes it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// One task that wants the gate closed, in [`Gate::state`].
const CLOSER: u64 = 1 << 32;
/// Tasks that are passing, in [`Gate::state`].
const PASSING: u64 = CLOSER - 1;

/// Many tasks may pass at a time, unless one has closed the gate. Any number may have it closed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Low half: tasks that are passing. High half: tasks that want it closed.
    state: AtomicU64,
    /// The low half became zero while the high half was not.
    drained: Notify,
}

/// A passage under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Passage<'a>(&'a Gate);

/// Keeps the gate closed until dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    /// Passes, unless the gate is closed or about to be.
    pub(crate) fn pass(&self) -> Option<Passage<'_>> {
        if self.state.load(Ordering::SeqCst) >= CLOSER {
            return None;
        }
        let before = self.state.fetch_add(1, Ordering::SeqCst);
        let passage = Passage(self);
        (before < CLOSER).then_some(passage)
    }

    /// Closes the gate, and waits until all passages under way have ended.
    pub(crate) async fn close(&self) -> Closed<'_> {
        self.state.fetch_add(CLOSER, Ordering::SeqCst);
        let closed = Closed(self);
        loop {
            if self.state.load(Ordering::SeqCst) & PASSING == 0 {
                return closed;
            }
            // Registered before the look, so that no wake-up is lost.
            let mut drained = std::pin::pin!(self.drained.notified());
            drained.as_mut().enable();
            if self.state.load(Ordering::SeqCst) & PASSING == 0 {
                return closed;
            }
            drained.await;
        }
    }

    /// Ends one closing that was kept.
    pub(crate) fn reopen(&self) {
        self.subtract(CLOSER);
    }

    /// Whether no task passes and no task has it closed.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::SeqCst) == 0
    }

    fn subtract(&self, counted: u64) {
        let before = self.state.fetch_sub(counted, Ordering::SeqCst);
        if before >= CLOSER && (before - counted) & PASSING == 0 {
            self.drained.notify_waiters();
        }
    }
}

impl Closed<'_> {
    /// Leaves the gate closed until a call of [`Gate::reopen`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.0.subtract(1);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.subtract(CLOSER);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_closes_waits_for_those_who_pass() {
        let gate = Gate::default();
        let (first, second) = (gate.pass().unwrap(), gate.pass().unwrap());
        let mut closing = Box::pin(gate.close());
        assert!(closing.as_mut().now_or_never().is_none());
        assert!(gate.pass().is_none());
        drop(first);
        assert!(closing.as_mut().now_or_never().is_none());
        drop(second);
        let closed = closing.as_mut().now_or_never().unwrap();
        let other = gate.close().now_or_never().unwrap();
        drop(closed);
        assert!(gate.pass().is_none());
        other.keep();
        assert!(gate.pass().is_none());
        gate.reopen();
        assert!(gate.pass().is_some());
        assert!(gate.is_idle());
    }

    #[tokio::test]
    async fn one_who_gives_up_leaves_the_gate_open() {
        let gate = Gate::default();
        let passage = gate.pass().unwrap();
        let mut closing = Box::pin(gate.close());
        assert!(closing.as_mut().now_or_never().is_none());
        drop(closing);
        drop(passage);
        assert!(gate.is_idle());
    }
}
