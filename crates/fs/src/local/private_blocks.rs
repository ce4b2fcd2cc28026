//! Reads and writes past a caller's transaction, of blocks that it has to itself.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::{ByteRanges, Class, Write};
use thalweg_store::txn::{Aside, Transaction, TxnError};

use super::extents::Run;
use super::fs_state::FsState;
use crate::error::FsError;

/// The transaction's access to such blocks.
///
/// # Errors
/// [`FsError::NotSupported`] where the volume is reached over a socket.
pub(super) fn of(txn: &Arc<dyn Transaction>) -> Result<&dyn Aside, FsError> {
    txn.aside().ok_or(FsError::NotSupported)
}

/// Has a run of the transaction's own hold zeros.
///
/// # Errors
/// The transaction is to be aborted then.
pub(super) async fn empty(
    inner: &FsState,
    txn: &Arc<dyn Transaction>,
    run: Run,
) -> Result<(), FsError> {
    let discarded = of(txn)?.discard(inner.area.lba(run.start), run.blocks).await;
    discarded.map_err(FsError::aborted)
}

/// Writes to reserved blocks. Those without content get zeros.
///
/// # Errors
/// Some may have been written then.
pub(super) async fn write(
    inner: &FsState,
    txn: &Arc<dyn Transaction>,
    writes: Vec<(u64, Option<Bytes>, Range<usize>)>,
) -> Result<(), FsError> {
    let writes = writes.into_iter().map(|(block, content, changed)| Write {
        lba: inner.area.lba(block),
        content,
        changed: ByteRanges::from(changed),
        class: Class::Data,
    });
    Ok(of(txn)?.write(writes.collect()).await?)
}

/// Blocks of the transaction's own, as they are now.
///
/// # Errors
/// Those of the transaction.
pub(super) async fn read(
    inner: &FsState,
    txn: &Arc<dyn Transaction>,
    run: Run,
) -> Result<Vec<Bytes>, TxnError> {
    match txn.aside() {
        Some(aside) => aside.read(inner.area.lba(run.start), run.blocks).await,
        None => txn.read_run(inner.area.lba(run.start), run.blocks).await,
    }
}
