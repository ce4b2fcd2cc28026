//! A byte-addressed volume: the one trait that protocol adapters see, and the volume over a block
//! store.

mod locks;
mod store;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::store::StoreVolume;
use crate::block::StoreError;

/// A run of bytes that are either allocated or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Whether it is allocated; a hole reads as zeros.
    pub stored: bool,
}

/// A volume as a protocol adapter sees it: bytes in units of [`Volume::min_block`].
///
/// Offsets and lengths are multiples of `min_block`; a request beyond [`Volume::size`] is
/// [`StoreError::Invalid`]. A write is visible when it returns, and durable after a later
/// [`Volume::flush`], or at once with `fua`.
#[async_trait]
pub trait Volume: Send + Sync + fmt::Debug + 'static {
    /// Size in bytes. It may grow or shrink while the volume is served.
    fn size(&self) -> u64;

    /// The smallest unit of a request in bytes.
    fn min_block(&self) -> u32 {
        512
    }

    /// The unit in bytes that is served without reading first.
    fn preferred_block(&self) -> u32 {
        4096
    }

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;

    /// Reads `len` bytes at `offset`: buffers whose lengths add up to `len`.
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, StoreError>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// Those of [`Volume::write_vectored`].
    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<(), StoreError> {
        self.write_vectored(offset, vec![data], fua).await
    }

    /// Writes the buffers of `data` one after the other from `offset` on. The volume may keep whole blocks
    /// that come one by one, as from a [`crate::device::FrameBuf`], without a copy and for as long as it
    /// likes.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a range that is not in whole units or leaves the volume;
    /// [`StoreError::NoSpace`]; those of the devices.
    async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError>;

    /// Makes `len` bytes at `offset` read as zeros. With `keep_allocated` the space stays reserved
    /// for later writes as far as the store can promise that.
    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        keep_allocated: bool,
        fua: bool,
    ) -> Result<(), StoreError>;

    /// Discards `len` bytes at `offset`. Whole blocks then read as zeros; partly covered blocks keep their
    /// content.
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), StoreError>;

    /// Makes every write that returned before this call durable.
    async fn flush(&self) -> Result<(), StoreError>;

    /// The allocated runs and holes in `len` bytes at `offset`; the runs' lengths add up to `len`.
    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, StoreError>;
}

/// A shared handle to any volume.
pub type VolumeRef = Arc<dyn Volume>;
