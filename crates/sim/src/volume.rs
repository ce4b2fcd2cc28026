//! A naive volume in RAM.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use thalweg_store::block::StoreError;
use thalweg_store::volume::{Extent, Volume};

use crate::content::{Content, PAGE};

/// A volume in RAM, sparse by pages of 4 KiB: to test servers of volumes.
#[derive(Debug)]
pub struct MemoryVolume {
    size: AtomicU64,
    min_block: u32,
    read_only: AtomicBool,
    flushes: AtomicU64,
    content: RwLock<Content>,
}

impl MemoryVolume {
    /// A volume of `size` bytes that reads as zeros, in units of 512 bytes.
    pub fn new(size: u64) -> MemoryVolume {
        MemoryVolume::with_min_block(size, 512)
    }

    /// A volume whose requests are multiples of `min_block` bytes.
    pub fn with_min_block(size: u64, min_block: u32) -> MemoryVolume {
        MemoryVolume {
            size: AtomicU64::new(size),
            min_block: min_block.max(1),
            read_only: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            content: RwLock::new(Content::new()),
        }
    }

    /// Grows or shrinks the volume; a shrink drops the bytes beyond the new size.
    pub fn resize(&self, size: u64) {
        let old = self.size.swap(size, Ordering::SeqCst);
        if size < old {
            self.content.write().zero(size, old - size);
        }
    }

    /// Starts or stops refusing writes.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::SeqCst);
    }

    /// Number of flushes so far, including those of writes with `fua`.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        let unit = u64::from(self.min_block);
        let size = self.size();
        if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            let detail = format!("{len} bytes at {offset} are not in units of {unit} bytes");
            return Err(StoreError::Invalid(detail));
        }
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(StoreError::Invalid(format!(
                "{len} bytes at {offset} leave a volume of {size} bytes"
            ))),
        }
    }

    /// Checks a change and applies it.
    fn change(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        change: impl FnOnce(&mut Content),
    ) -> Result<(), StoreError> {
        self.check(offset, len)?;
        if self.is_read_only() {
            return Err(StoreError::Invalid("the volume is read-only".to_owned()));
        }
        change(&mut self.content.write());
        self.flushes.fetch_add(u64::from(fua), Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait]
impl Volume for MemoryVolume {
    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn min_block(&self) -> u32 {
        self.min_block
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::SeqCst)
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, StoreError> {
        self.check(offset, len as u64)?;
        Ok(vec![self.content.read().read(offset, len)])
    }

    async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError> {
        let data = data.concat();
        self.change(offset, data.len() as u64, fua, |content| content.write(offset, &data))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        keep_allocated: bool,
        fua: bool,
    ) -> Result<(), StoreError> {
        self.change(offset, len, fua, |content| match keep_allocated {
            true => content.fill(offset, len, [0; 16]),
            false => content.zero(offset, len),
        })
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), StoreError> {
        self.change(offset, len, fua, |content| content.discard(offset, len))
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, StoreError> {
        self.check(offset, len)?;
        let content = self.content.read();
        let (mut at, end) = (offset, offset + len);
        let mut extents: Vec<Extent> = Vec::new();
        while at < end {
            let page = at / PAGE as u64;
            let take = ((page + 1) * PAGE as u64).min(end) - at;
            let stored = content.is_stored(page);
            match extents.last_mut().filter(|last| last.stored == stored) {
                Some(last) => last.len += take,
                None => extents.push(Extent { len: take, stored }),
            }
            at += take;
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    fn runs(extents: &[Extent]) -> Vec<(u64, bool)> {
        extents.iter().map(|extent| (extent.len, extent.stored)).collect()
    }

    #[test]
    fn allocation_follows_writes_trims_and_zeroes() {
        run(1, |_| async {
            let volume = MemoryVolume::new(1 << 16);
            volume.write(4096, Bytes::from(vec![1; 8192]), false).await.unwrap();
            let all = volume.extents(0, 1 << 16).await.unwrap();
            assert_eq!(runs(&all), [(4096, false), (8192, true), (53248, false)]);
            assert_eq!(runs(&volume.extents(5120, 512).await.unwrap()), [(512, true)]);
            volume.trim(4608, 8192, true).await.unwrap();
            let kept = volume.read(4096, 8192).await.unwrap().concat();
            assert_eq!(kept, [[1; 4096], [0; 4096]].concat());
            volume.write_zeroes(4096, 1024, false, false).await.unwrap();
            assert_eq!(volume.read(4096, 2048).await.unwrap()[0][1023..1025], [0, 1]);
            volume.write_zeroes(0, 4096, true, false).await.unwrap();
            let all = volume.extents(0, 1 << 16).await.unwrap();
            assert_eq!(runs(&all), [(8192, true), (57344, false)]);
            assert_eq!(volume.flushes(), 1);
        });
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        run(1, |_| async {
            let volume = MemoryVolume::new(8192);
            assert!(volume.read(8192, 512).await.is_err());
            assert!(volume.read(100, 512).await.is_err());
            volume.write(4096, Bytes::from(vec![1; 4096]), false).await.unwrap();
            volume.resize(4096);
            assert!(volume.read(4096, 512).await.is_err());
            volume.resize(8192);
            assert_eq!(volume.read(4096, 512).await.unwrap()[0], vec![0; 512]);
            volume.set_read_only(true);
            assert!(volume.trim(0, 4096, false).await.is_err());
        });
    }
}
