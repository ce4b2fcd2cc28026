//! Reads and writes for sessions, on a volume in this process, behind a socket, or on several nodes.

use std::sync::Arc;

use bytes::Bytes;
use futures::future;

use super::{Begin, Durability, Retry, Transact, Transaction, TxnError, run_versioned};
use crate::block::{Lba, Position, Version};
use crate::stale::{Got, Item, Needs, Session};

/// Attempts to read when a connection is lost: with several nodes the next one is at another node.
const ATTEMPTS: usize = 4;

/// Reads an item for a session with `read`, which is given a view of the cheapest state that the session's guarantee
/// allows; none that is older than `first`.
///
/// # Errors
/// [`TxnError::Unserved`] when no node can serve the session, [`TxnError::Gone`] for an exact version that is not kept,
/// [`TxnError::Invalid`] for a guarantee that contradicts itself, and those of `read`.
pub async fn read_for<T, E, Work>(
    volume: &dyn Transact,
    session: &mut Session,
    item: &Item,
    first: Version,
    read: impl Fn(Arc<dyn Transaction>) -> Work,
) -> Result<Got<T>, E>
where
    E: Retry,
    Work: Future<Output = Result<T, E>>,
{
    let checked = session.guarantee().checked();
    checked.map_err(|error| TxnError::Invalid(error.to_string()))?;
    let mut attempts = ATTEMPTS;
    loop {
        let view = volume.view(&session.needs(item), first).await?;
        let done = match read(view.clone()).await {
            Ok(value) => view.seen().await.map(|seen| (value, seen)).map_err(E::from),
            Err(error) => Err(error),
        };
        attempts -= 1;
        match done {
            Ok((value, seen)) => {
                session.has_read(item, seen.range, seen.position);
                return Ok(Got { value, range: seen.range, age: seen.age, node: view.node() });
            }
            Err(error) if attempts > 0 && (error.is_disconnected() || error.is_retryable()) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes an item for a session with `write`, in a transaction, and says whether it did; durable when it returns. Returns its
/// version too.
///
/// # Errors
/// [`TxnError::Unserved`] when the primary is behind what the session has seen, or has gone another way; those of `write`
/// and of the commit.
pub async fn write_for<E, Work>(
    volume: &dyn Transact,
    session: &mut Session,
    item: &Item,
    write: impl Fn(Arc<dyn Transaction>) -> Work,
) -> Result<(bool, Version), E>
where
    E: Retry,
    Work: Future<Output = Result<bool, E>>,
{
    let (guarded, begin) = (&*session, Begin { after: session.position(), ..Begin::STRICT });
    let work = async |txn: Arc<dyn Transaction>| {
        guarded.may_write(txn.version().version).map_err(|why| E::from(why.into()))?;
        // Beside the work, so that it takes no round trip of its own.
        let seen = async { txn.seen().await.map_err(E::from) };
        future::try_join(seen, write(txn.clone())).await
    };
    let ((seen, wrote), version) = run_versioned(volume, begin, Durability::Synced, work).await?;
    let version = version.version;
    // A timeline ends with its process: the commit is on the one of the transaction.
    let position = seen.position.zip(seen.timeline);
    let position = position.map(|(at, timeline)| Position { version, timeline, ..at });
    if wrote {
        session.has_written(item, version, position);
    }
    Ok((wrote, version))
}

/// Reads a block for a session: the cheapest content that its guarantee allows. A block without a content reads as zeros.
///
/// # Errors
/// As [`read_for`].
pub async fn read_block_for(
    volume: &dyn Transact,
    session: &mut Session,
    lba: Lba,
) -> Result<Got<Bytes>, TxnError> {
    let read = async |view: Arc<dyn Transaction>| view.read(lba).await;
    read_for(volume, session, &Item::Block(lba), Version(0), read).await
}

/// Writes a block for a session: [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes, or `None` to discard it. Durable when it
/// returns; returns the version. As any transaction, it may write each block of the volume: for one with partitions there is
/// [`Raw::write_for`](crate::tree::Raw::write_for).
///
/// # Errors
/// As [`write_for`].
pub async fn write_block_for(
    volume: &dyn Transact,
    session: &mut Session,
    lba: Lba,
    content: Option<Bytes>,
) -> Result<Version, TxnError> {
    let write = async |txn: Arc<dyn Transaction>| match &content {
        Some(content) => txn.write(lba, content.clone()).map(|()| true),
        None => txn.discard(lba).map(|()| true),
    };
    Ok(write_for(volume, session, &Item::Block(lba), write).await?.1)
}

/// The newest state that can be reached: of a volume on several nodes, without its primary, that of another node.
///
/// # Errors
/// Those of the volume.
pub async fn newest(volume: &dyn Transact) -> Result<Arc<dyn Transaction>, TxnError> {
    match volume.begin(Begin::READ_ONLY).await {
        Err(TxnError::Unserved(_)) => volume.view(&Needs::default(), Version(0)).await,
        begun => begun,
    }
}
