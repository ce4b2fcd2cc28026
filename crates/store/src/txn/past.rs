//! Writes outside of transactions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commit;
use super::counts::Counts;
use super::fence;
use super::inner::Inner;
use super::intent::{Intent, Verdict};
use crate::block::{Applied, Lba, StoreError, Version};

/// What a write outside of transactions may bypass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Past {
    /// The fence too, whatever the volume holds.
    Anything,
    /// Nothing while the fence is up.
    Fence,
}

/// Runs a write that belongs to no transaction outside of the stream, if no transaction runs; `None`
/// otherwise.
pub(super) async fn pass<T>(
    inner: &Inner,
    way: Past,
    write: impl AsyncFnOnce() -> Result<T, StoreError>,
) -> Option<Result<T, StoreError>> {
    let _passage = inner.gate.pass()?;
    // Only a transaction raises the fence, and none ends during a passage.
    if way == Past::Fence && inner.is_fenced() {
        return Some(Err(fence::refused()));
    }
    // The next transaction needs a newer snapshot than the shared one, and begins only when the passage has
    // ended, also one that was dropped halfway. So nothing needs the shared snapshot any more. Releasing it
    // now matters because the store would keep old blocks for it, possibly until the next transaction begins.
    if !inner.passed.swap(true, Ordering::SeqCst) {
        inner.order.lock().refresh();
    }
    Some(write().await)
}

/// Discards a run of blocks, outside of the stream if no transaction runs.
pub(super) async fn discard(
    inner: &Inner,
    way: Past,
    lba: Lba,
    count: u64,
) -> Result<Version, StoreError> {
    let end = lba.0.checked_add(count).filter(|end| *end < u64::MAX);
    let end = end.ok_or_else(|| {
        StoreError::Invalid("a run of blocks ends beyond the largest address".to_owned())
    })?;
    match pass(inner, way, async || inner.store.discard(lba, count).await).await {
        Some(written) => written,
        None => Ok(note(inner, way, Intent::of_swath(lba.0..end)).await?.into_parts().0),
    }
}

/// Enters a change that nothing can conflict with into the stream.
pub(super) async fn note(inner: &Inner, way: Past, intent: Intent) -> Result<Applied, StoreError> {
    let intent = Arc::new(intent);
    intent.set_verdict(Verdict::Commit);
    while !push_past(inner, way, &intent)? {
        decided(inner).await;
    }
    Counts::add(&inner.counts.singletons, 1);
    let version = commit::outcome(inner, &intent).await?;
    Ok(intent.take_applied(version))
}

/// Enters a write outside of transactions into the stream. False while a commit that may raise the fence is
/// being decided.
fn push_past(inner: &Inner, way: Past, intent: &Arc<Intent>) -> Result<bool, StoreError> {
    let mut order = inner.order.lock();
    let permitted = match way {
        Past::Anything => Some(true),
        Past::Fence => order.fence.permits(),
    };
    match permitted {
        Some(true) => drop(order.push(intent.clone())),
        Some(false) => return Err(fence::refused()),
        None => return Ok(false),
    }
    Ok(true)
}

/// Waits until no commit that may raise or lower the fence is being decided.
pub(super) async fn decided(inner: &Inner) {
    loop {
        // The task of the commit that raises the fence may have been dropped.
        commit::apply_decided(inner).await;
        let mut settled = std::pin::pin!(inner.settled.notified());
        settled.as_mut().enable();
        if inner.order.lock().fence.permits().is_some() {
            return;
        }
        settled.await;
    }
}
