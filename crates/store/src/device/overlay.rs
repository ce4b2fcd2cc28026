//! Copy on write: a read-only device, with writes kept in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;

use super::{
    AlignedBuf, Device, DeviceError, DeviceRef, Geometry, Operation, Purpose, QueueDepth, Tallies,
    total_len,
};

/// A device over another one that it never changes: writes are kept in memory, and lost with this device;
/// reads see them, and otherwise the device below.
///
/// So the same code opens a store that needs recovery for reading or for writing, and the medium keeps every
/// byte. Memory grows with the writes: an overlay is for recovery only.
pub struct Overlay {
    below: DeviceRef,
    /// What was written, by the offset of its first byte; no two pieces overlap.
    written: RwLock<BTreeMap<u64, Bytes>>,
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay").field("below", &self.below).finish_non_exhaustive()
    }
}

impl Overlay {
    /// An overlay over `below`, without writes so far.
    pub fn new(below: DeviceRef) -> Overlay {
        Overlay { below, written: RwLock::default() }
    }

    /// Bytes of writes that are kept in memory.
    pub fn written(&self) -> u64 {
        self.written.read().values().map(|piece| piece.len() as u64).sum()
    }

    /// The written pieces in a range, cut to it, in order.
    fn pieces(&self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        let written = self.written.read();
        let before = written.range(..range.start).next_back();
        let all = before.into_iter().chain(written.range(range.clone()));
        all.filter_map(|(at, piece)| {
            let from = (*at).max(range.start);
            let to = (at + piece.len() as u64).min(range.end);
            (from < to).then(|| (from, piece.slice((from - at) as usize..(to - at) as usize)))
        })
        .collect()
    }
}

/// Removes a range from the pieces; pieces that reach beyond it keep the rest.
fn cut(written: &mut BTreeMap<u64, Bytes>, range: &Range<u64>) {
    let reaches_in = written.range(..range.start).next_back().map(|(at, _)| *at);
    let inside = written.range(range.clone()).map(|(at, _)| *at);
    let touched: Vec<u64> = reaches_in.into_iter().chain(inside).collect();
    for at in touched {
        let Some(piece) = written.remove(&at) else { continue };
        let end = at + piece.len() as u64;
        if at < range.start {
            let kept = range.start.min(end) - at;
            written.insert(at, piece.slice(..kept as usize));
        }
        if end > range.end {
            written.insert(range.end, piece.slice((range.end - at) as usize..));
        }
    }
}

#[async_trait]
impl Device for Overlay {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let end = offset + len as u64;
        let pieces = self.pieces(&(offset..end));
        if pieces.is_empty() {
            return self.below.read(offset, len, purpose).await;
        }
        let mut buffer = AlignedBuf::zeroed(len);
        let place =
            |from: u64, len: usize| (from - offset) as usize..(from - offset) as usize + len;
        let mut at = offset;
        // The end is a piece of length zero, so that the gap before it is read like any other.
        for (from, piece) in pieces.into_iter().chain([(end, Bytes::new())]) {
            if at < from {
                let gap = self.below.read(at, (from - at) as usize, purpose).await?;
                buffer[place(at, gap.len())].copy_from_slice(&gap);
            }
            buffer[place(from, piece.len())].copy_from_slice(&piece);
            at = from + piece.len() as u64;
        }
        Ok(buffer.freeze())
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        _purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        let mut written = self.written.write();
        cut(&mut written, &(offset..offset + len));
        let mut at = offset;
        for buffer in data.iter().filter(|buffer| !buffer.is_empty()) {
            // A copy: the caller's buffer may be part of a much larger one.
            written.insert(at, Bytes::copy_from_slice(buffer));
            at += buffer.len() as u64;
        }
        Ok(())
    }

    /// The writes end with this device, so there is nothing to make durable.
    async fn flush(&self, _purpose: Purpose) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Drops the writes in the range.
    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        cut(&mut self.written.write(), &(offset..offset + len));
        Ok(())
    }

    /// Refused: writes here serve recovery alone, and the device below keeps its size.
    async fn grow_to(&self, _size: Option<u64>) -> Result<u64, DeviceError> {
        let reason = std::io::Error::new(
            std::io::ErrorKind::ReadOnlyFilesystem,
            "it is open for reading alone",
        );
        Err(DeviceError::io(&self.name(), Operation::Grow, reason))
    }

    fn queue_depth(&self) -> QueueDepth {
        self.below.queue_depth()
    }

    /// The requests that reached the device below: reads only.
    fn tallies(&self) -> Tallies {
        self.below.tallies()
    }

    fn name(&self) -> String {
        self.below.name()
    }

    fn drives(&self) -> Vec<String> {
        self.below.drives()
    }

    fn is_rotational(&self) -> bool {
        self.below.is_rotational()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::MemoryDevice;

    const SIZE: u64 = 64 << 10;
    const SECTOR: u64 = 512;

    async fn below() -> DeviceRef {
        let device = MemoryDevice::new(SIZE);
        let content = Bytes::from((0..SIZE).map(|at| (at / SECTOR) as u8).collect::<Vec<_>>());
        device.write(0, vec![content], Purpose::UserData).await.unwrap();
        Arc::new(device)
    }

    #[tokio::test]
    async fn reads_see_the_writes_and_the_device_below_keeps_every_byte() {
        let below = below().await;
        let before = below.read(0, SIZE as usize, Purpose::UserData).await.unwrap();
        let overlay = Overlay::new(below.clone());
        let mut model = before.to_vec();
        // A walk over all places and lengths that meet, hide, cut and split each other.
        let mut seed = 1_u64;
        for round in 0..500_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let first = (seed >> 33) % (SIZE / SECTOR);
            let sectors = 1 + (seed >> 20) % 9.min(SIZE / SECTOR - first);
            let (at, len) = (first * SECTOR, (sectors * SECTOR) as usize);
            let data = vec![round as u8 ^ 0xa5; len];
            model[at as usize..at as usize + len].copy_from_slice(&data);
            let half = len / 2 / SECTOR as usize * SECTOR as usize;
            let data = Bytes::from(data);
            let parts = vec![data.slice(..half), data.slice(half..)];
            overlay.write(at, parts, Purpose::UserData).await.unwrap();
            overlay.flush(Purpose::UserData).await.unwrap();
            let start = (seed >> 40) % (SIZE / SECTOR) * SECTOR;
            let len = (SIZE - start) as usize;
            let read = overlay.read(start, len, Purpose::UserData).await.unwrap();
            assert!(read[..] == model[start as usize..], "round {round}");
        }
        assert!(overlay.written() <= SIZE);
        let after = below.read(0, SIZE as usize, Purpose::UserData).await.unwrap();
        assert!(after == before);
        assert_eq!(below.tallies().of(Purpose::UserData).write_bytes, SIZE);
    }

    #[tokio::test]
    async fn what_is_discarded_takes_no_memory_and_requests_are_checked() {
        let overlay = Overlay::new(below().await);
        overlay.write(1024, vec![Bytes::from(vec![9; 4096])], Purpose::Map).await.unwrap();
        overlay.discard(2048, 1024).await.unwrap();
        assert_eq!(overlay.written(), 3072);
        let read = overlay.read(512, 5120, Purpose::Map).await.unwrap();
        assert_eq!((read[0], read[512], read[3072 - 512]), (1, 9, 9));
        let outside = overlay.write(SIZE, vec![Bytes::from(vec![0; 512])], Purpose::Map).await;
        assert!(matches!(outside, Err(DeviceError::OutOfRange { .. })));
        assert!(overlay.read(1, 512, Purpose::Map).await.is_err());
    }
}
