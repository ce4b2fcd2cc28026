//! The beginning of a transaction: its snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inner::Inner;
use super::order::Snapshot;
use super::{Preempted, TxnError};
use crate::block::EpochVersion;
use crate::stale::Unserved;

/// Begins a transaction on the newest snapshot. `enter` registers the transaction under the lock of the
/// order, so that a barrier raised afterwards finds every transaction that has a snapshot.
///
/// # Errors
/// [`Unserved::NoState`].
pub(super) async fn begin<T>(
    inner: &Inner,
    enter: impl FnOnce(Snapshot) -> T,
) -> Result<T, Unserved> {
    let closed = inner.gate.close().await;
    let mut waited = None;
    loop {
        {
            let mut order = inner.order.lock();
            if inner.passed.swap(false, Ordering::SeqCst) {
                order.refresh();
            }
            if let Some(snapshot) = order.begin(&*inner.store)? {
                closed.keep();
                #[cfg(feature = "seeded-bugs")]
                let snapshot = stale(inner, &mut order, snapshot);
                let entered = enter(snapshot);
                let remembered = order.remembered();
                drop(order);
                // The transaction with the oldest snapshot keeps the stream from shrinking: abort it when
                // that is too long.
                if remembered > inner.options.max_window {
                    inner.preempt_oldest(Preempted::Stuck);
                }
                return Ok(entered);
            }
        }
        // Registered before the next look, so that no wake-up is lost.
        if let Some(settled) = waited.replace(inner.settled.notified()) {
            settled.await;
        }
    }
}

/// [`begin`] on the newest snapshot that survives a crash, for a read-only transaction; on the newest of all
/// when the store has not kept one.
///
/// # Errors
/// [`Unserved::NoState`].
pub(super) async fn begin_synced<T>(
    inner: &Inner,
    enter: impl FnOnce(Snapshot) -> T,
) -> Result<T, Unserved> {
    {
        let order = inner.order.lock();
        if let Some(snapshot) = order.begin_synced(&*inner.store) {
            return Ok(enter(snapshot));
        }
    }
    begin(inner, enter).await
}

/// [`begin`] on a version that the store keeps, for a read-only transaction.
///
/// # Errors
/// [`TxnError::Gone`] when the store does not keep it, or it is of another epoch.
pub(super) async fn begin_at<T>(
    inner: &Inner,
    at: EpochVersion,
    enter: impl FnOnce(Snapshot) -> T,
) -> Result<T, TxnError> {
    loop {
        let mut settled = std::pin::pin!(inner.settled.notified());
        settled.as_mut().enable();
        {
            let order = inner.order.lock();
            if !order.is_barred() {
                let hold = match at.epoch == inner.store.epoch() {
                    true => inner.store.hold(at.version),
                    false => None,
                };
                let hold = Arc::new(hold.ok_or(TxnError::Gone(at))?);
                return Ok(enter(Snapshot { until: None, hold }));
            }
        }
        settled.await;
    }
}

#[cfg(feature = "seeded-bugs")]
fn stale(inner: &Inner, order: &mut super::order::Order, snapshot: Snapshot) -> Snapshot {
    if !inner.options.has(super::Bug::StaleSnapshot) {
        return snapshot;
    }
    let before = order.stale.replace(snapshot.hold.clone());
    let hold = before.unwrap_or_else(|| snapshot.hold.clone());
    Snapshot { hold, ..snapshot }
}
