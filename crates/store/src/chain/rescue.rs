//! Contents of damaged blocks from another machine.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::format::block_checksum;
use super::index::Location;
use super::{Chain, Inner};
use crate::block::{BLOCK_SIZE, Lba};
use crate::device::{DeviceRef, FrameBuf};

/// Another machine that may have the content of a block of which no copy is right: that of a follower's primary.
pub trait Rescue: Send + Sync + fmt::Debug + 'static {
    /// The content of block `lba` that has a [checksum](block_checksum), if the other machine has it. It ends soon, whatever
    /// the other machine does.
    fn content(&self, lba: Lba, checksum: u32) -> BoxFuture<'static, Option<Bytes>>;
}

impl Chain {
    /// Asks `rescue` from now on for contents of which no copy is right. Readers get them, and the copies are repaired. A
    /// content is taken only if it has the checksum that the index has for the block: it is that of the version that is
    /// read, and no newer one.
    pub fn rescue_from(&self, rescue: Option<Arc<dyn Rescue>>) {
        *self.inner.of_primary.rescue.lock() = rescue;
    }
}

/// The content at a location of which no copy on `device` is right, from another machine. The caller has pinned the segment.
pub(super) async fn fetch(
    inner: &Inner,
    lba: Lba,
    location: Location,
    (device, offset): (&DeviceRef, u64),
) -> Option<Bytes> {
    let rescue = inner.of_primary.rescue.lock().clone()?;
    let content = rescue.content(lba, location.check).await?;
    if content.len() != BLOCK_SIZE || block_checksum(lba, &content) != location.check {
        return None;
    }
    let content = FrameBuf::copy_block(&content);
    let mut repaired = 0;
    for copy in 0..device.copies() {
        let repairing = device.repair_copy(copy, offset, content.clone());
        repaired += u64::from(repairing.await.is_ok());
    }
    let (volume, block) = (inner.volume, lba.0);
    tracing::warn!(%volume, block, repaired, "a damaged block was fetched from another machine");
    inner.note_repaired(location.block, repaired);
    Some(content)
}
