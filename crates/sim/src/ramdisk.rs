//! A device in RAM that takes no time and can be forked.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use thalweg_store::device::{
    Counters, Device, DeviceError, Geometry, Purpose, QueueDepth, Tallies, total_len,
};

use crate::content::Content;

/// A device in RAM over [`Content`]: sparse, instant, durable at once.
#[derive(Debug)]
pub struct RamDisk {
    name: String,
    geometry: Geometry,
    content: RwLock<Content>,
    counters: Counters,
}

impl RamDisk {
    /// A device that reads as zeros.
    pub fn new(name: &str, geometry: Geometry) -> RamDisk {
        RamDisk::with_content(name, geometry, Content::new())
    }

    /// A device that holds `content`.
    pub fn with_content(name: &str, geometry: Geometry, content: Content) -> RamDisk {
        RamDisk {
            name: name.to_owned(),
            geometry,
            content: RwLock::new(content),
            counters: Counters::default(),
        }
    }

    /// A copy of the content, sharing its pages.
    pub fn content(&self) -> Content {
        self.content.read().clone()
    }
}

#[async_trait]
impl Device for RamDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry.check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        Ok(self.content.read().read(offset, len))
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry.check(offset, len)?;
        let _queued = self.counters.write(purpose, len);
        self.content.write().write_all(offset, &data);
        Ok(())
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry.check(offset, len)?;
        self.content.write().discard(offset, len);
        Ok(())
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.counters.tallies()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
