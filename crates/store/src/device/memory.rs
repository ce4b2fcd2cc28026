//! A device in RAM.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;

use super::{
    AlignedBuf, Counters, Device, DeviceError, Geometry, Purpose, QueueDepth, Tallies, total_len,
};

/// Bytes are allocated in pieces of this size, on first write.
const CHUNK: usize = 64 * 1024;

/// A device in RAM, allocated as it is written; bytes never written read as zeros.
#[derive(Debug)]
pub struct MemoryDevice {
    name: String,
    size: AtomicU64,
    sector: u32,
    chunks: RwLock<Vec<Option<Box<[u8]>>>>,
    counters: Counters,
}

impl MemoryDevice {
    /// A device of `size` bytes with sectors of 512 bytes.
    pub fn new(size: u64) -> MemoryDevice {
        MemoryDevice::with_geometry("memory", Geometry { size, sector: 512 })
    }

    /// A device with a name and a geometry.
    pub fn with_geometry(name: &str, geometry: Geometry) -> MemoryDevice {
        MemoryDevice {
            name: name.to_owned(),
            size: AtomicU64::new(geometry.size),
            sector: geometry.sector,
            chunks: RwLock::new(vec![None; chunks(geometry.size)]),
            counters: Counters::default(),
        }
    }
}

/// Chunks of a device of `size` bytes.
fn chunks(size: u64) -> usize {
    usize::try_from(size.div_ceil(CHUNK as u64)).unwrap_or(usize::MAX)
}

/// The pieces of `[offset, offset + len)`: chunk, first byte in the chunk, length.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut at = offset;
    let end = offset + len as u64;
    std::iter::from_fn(move || {
        let left = usize::try_from(end - at).ok().filter(|left| *left > 0)?;
        let first = (at % CHUNK as u64) as usize;
        let chunk = (at / CHUNK as u64) as usize;
        let take = left.min(CHUNK - first);
        at += take as u64;
        Some((chunk, first, take))
    })
}

#[async_trait]
impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), sector: self.sector }
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        let mut buffer = AlignedBuf::zeroed(len);
        let chunks = self.chunks.read();
        let mut filled = 0;
        for (chunk, first, take) in pieces(offset, len) {
            if let Some(bytes) = &chunks[chunk] {
                buffer[filled..filled + take].copy_from_slice(&bytes[first..first + take]);
            }
            filled += take;
        }
        Ok(buffer.freeze())
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        let _queued = self.counters.write(purpose, len);
        let mut chunks = self.chunks.write();
        let mut at = offset;
        for buffer in data {
            let mut taken = 0;
            for (chunk, first, take) in pieces(at, buffer.len()) {
                let bytes = chunks[chunk].get_or_insert_with(|| vec![0; CHUNK].into());
                bytes[first..first + take].copy_from_slice(&buffer[taken..taken + take]);
                taken += take;
            }
            at += buffer.len() as u64;
        }
        Ok(())
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        let first = offset.div_ceil(CHUNK as u64) as usize;
        let end = ((offset + len) / CHUNK as u64) as usize;
        let mut chunks = self.chunks.write();
        for chunk in first..end {
            chunks[chunk] = None;
        }
        Ok(())
    }

    /// Takes any size, as a file does.
    async fn grow_to(&self, size: Option<u64>) -> Result<u64, DeviceError> {
        let mut all = self.chunks.write();
        let sector = u64::from(self.sector);
        let size = size.map_or(0, |size| size.checked_next_multiple_of(sector).unwrap_or(0));
        if size > self.geometry().size {
            all.resize(chunks(size), None);
            self.size.store(size, Ordering::Release);
        }
        Ok(self.geometry().size)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_counted() {
        let device = MemoryDevice::new(1 << 20);
        let data = Bytes::from(vec![7; 1024]);
        let offset = CHUNK as u64 - 512;
        device.write(offset, vec![data.clone(), data], Purpose::Map).await.unwrap();
        let read = device.read(offset - 512, 3072, Purpose::UserData).await.unwrap();
        assert_eq!(read[..512], [0; 512]);
        assert_eq!(read[512..2560], [7; 2048]);
        assert_eq!(read[2560..], [0; 512]);
        assert_eq!(device.tallies().of(Purpose::Map).write_bytes, 2048);
        assert_eq!(device.tallies().of(Purpose::UserData).read_bytes, 3072);
        assert_eq!(device.queue_depth(), QueueDepth::default());
    }

    #[tokio::test]
    async fn a_larger_device_keeps_what_it_held() {
        let device = MemoryDevice::new(1024);
        device.write(512, vec![Bytes::from(vec![7; 512])], Purpose::Map).await.unwrap();
        assert_eq!(device.grow_to(None).await.unwrap(), 1024);
        assert_eq!(device.grow_to(Some(512)).await.unwrap(), 1024);
        assert_eq!(device.grow_to(Some(100_000)).await.unwrap(), 100_352);
        let read = device.read(0, 100_352, Purpose::Map).await.unwrap();
        assert_eq!((read[511], read[512], read[1023], read[1024]), (0, 7, 7, 0));
        assert_eq!(device.geometry().size, 100_352);
    }

    #[tokio::test]
    async fn requests_outside_or_between_sectors_are_refused() {
        let device = MemoryDevice::new(1 << 20);
        let outside = device.read(1 << 20, 512, Purpose::Map).await;
        assert!(matches!(outside, Err(DeviceError::OutOfRange { .. })));
        let between = device.write(0, vec![Bytes::from(vec![0; 100])], Purpose::Map).await;
        assert!(matches!(between, Err(DeviceError::Misaligned { .. })));
    }
}
