//! A range of another device, as a device of its own.

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Counters, Device, DeviceError, DeviceRef, Geometry, Power, Purpose, QueueDepth, Role, Tallies,
    total_len,
};

/// The range `[start, start + size)` of another device. It counts its own requests; the device below counts
/// them again, among all that it gets.
#[derive(Debug)]
pub struct Partition {
    device: DeviceRef,
    start: u64,
    geometry: Geometry,
    counters: Counters,
}

impl Partition {
    /// The range of `size` bytes from `start`.
    ///
    /// # Errors
    /// [`DeviceError::Misaligned`] or [`DeviceError::OutOfRange`] when the device has no such range.
    pub fn new(device: DeviceRef, start: u64, size: u64) -> Result<Partition, DeviceError> {
        let whole = device.geometry();
        whole.check(start, size)?;
        let geometry = Geometry { size, sector: whole.sector };
        Ok(Partition { device, start, geometry, counters: Counters::default() })
    }

    /// First byte of the range on the device below.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The same with larger sectors, as another device has them that is to hold the same bytes.
    pub fn in_sectors_of(mut self, sector: u32) -> Partition {
        let sector = sector.max(self.geometry.sector);
        self.geometry =
            Geometry { size: self.geometry.size - self.geometry.size % u64::from(sector), sector };
        self
    }
}

#[async_trait]
impl Device for Partition {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry.check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        self.device.read(self.start + offset, len, purpose).await
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
        self.device.write(self.start + offset, data, purpose).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        self.device.flush(purpose).await
    }

    async fn write_durably(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry.check(offset, len)?;
        let _queued = (self.counters.write(purpose, len), self.counters.flush(purpose));
        self.device.write_durably(self.start + offset, data, purpose).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry.check(offset, len)?;
        self.device.discard(self.start + offset, len).await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    /// The requests to this partition, not those to the whole device below.
    fn tallies(&self) -> Tallies {
        self.counters.tallies()
    }

    fn members(&self) -> Vec<DeviceRef> {
        vec![self.device.clone()]
    }

    fn name(&self) -> String {
        format!("{}[{}+{}]", self.device.name(), self.start, self.geometry.size)
    }

    fn copies(&self) -> usize {
        self.device.copies()
    }

    fn has_copy(&self, copy: usize) -> bool {
        self.device.has_copy(copy)
    }

    async fn read_copy(
        &self,
        copy: usize,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        self.geometry.check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        self.device.read_copy(copy, self.start + offset, len, purpose).await
    }

    async fn repair_copy(&self, copy: usize, offset: u64, data: Bytes) -> Result<(), DeviceError> {
        self.geometry.check(offset, data.len() as u64)?;
        let _queued = self.counters.write(Purpose::Repair, data.len() as u64);
        self.device.repair_copy(copy, self.start + offset, data).await
    }

    async fn set_power(&self, power: Power) {
        self.device.set_power(power).await;
    }

    async fn set_role(&self, role: Role) {
        self.device.set_role(role).await;
    }
}
