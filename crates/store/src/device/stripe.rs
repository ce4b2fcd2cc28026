//! Striping without redundancy (RAID-0).

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;

use super::{
    AlignedBuf, Counters, Device, DeviceError, DeviceRef, Geometry, Power, Purpose, QueueDepth,
    Role, Tallies, total_len,
};

/// Why devices cannot be striped.
#[derive(Debug, thiserror::Error)]
pub enum StripeError {
    /// There is no device.
    #[error("a stripe needs at least one device")]
    NoDevices,
    /// The unit does not fit the sectors.
    #[error("a stripe unit of {unit} bytes is not whole sectors of {sector} bytes")]
    Unit {
        /// The unit in bytes.
        unit: u64,
        /// The largest sector of the devices, in bytes.
        sector: u32,
    },
    /// The smallest device has no room for one unit.
    #[error("{device} has no room for one stripe unit of {unit} bytes")]
    TooSmall {
        /// The smallest device.
        device: String,
        /// The unit in bytes.
        unit: u64,
    },
}

/// Stripes units over devices: unit `u` of the stripe is unit `u / N` of device `u % N`. Space beyond the
/// smallest device's size is unused on the others.
#[derive(Debug)]
pub struct Stripe {
    devices: Vec<DeviceRef>,
    unit: u64,
    geometry: Geometry,
    counters: Counters,
}

/// The part of a request that one device serves: one contiguous range there, made of pieces `(first byte in
/// the request, length)`.
struct Part {
    device: usize,
    offset: u64,
    pieces: Vec<(usize, usize)>,
}

impl Part {
    fn len(&self) -> usize {
        self.pieces.iter().map(|(_, len)| len).sum()
    }
}

impl Stripe {
    /// A stripe over `devices` in units of `unit` bytes.
    ///
    /// # Errors
    /// A [`StripeError`] when the devices do not fit.
    pub fn new(devices: Vec<DeviceRef>, unit: u64) -> Result<Stripe, StripeError> {
        let sector = devices.iter().map(|device| device.geometry().sector).max();
        let smallest = devices.iter().min_by_key(|device| device.geometry().size);
        let (Some(sector), Some(smallest)) = (sector, smallest) else {
            return Err(StripeError::NoDevices);
        };
        if unit == 0 || !unit.is_multiple_of(u64::from(sector)) {
            return Err(StripeError::Unit { unit, sector });
        }
        let rows = smallest.geometry().size / unit;
        if rows == 0 {
            return Err(StripeError::TooSmall { device: smallest.name(), unit });
        }
        let geometry = Geometry { size: rows * unit * devices.len() as u64, sector };
        Ok(Stripe { devices, unit, geometry, counters: Counters::default() })
    }

    /// The shares of the devices in `[offset, offset + len)`.
    fn split(&self, offset: u64, len: usize) -> Vec<Part> {
        let count = self.devices.len() as u64;
        let mut parts: Vec<Part> = Vec::new();
        let mut taken = 0;
        while taken < len {
            let at = offset + taken as u64;
            let (unit, inside) = (at / self.unit, at % self.unit);
            let take = usize::try_from(self.unit - inside).unwrap_or(usize::MAX).min(len - taken);
            let device = (unit % count) as usize;
            match parts.iter_mut().find(|part| part.device == device) {
                // The next row follows the previous one on its device.
                Some(part) => part.pieces.push((taken, take)),
                None => parts.push(Part {
                    device,
                    offset: unit / count * self.unit + inside,
                    pieces: vec![(taken, take)],
                }),
            }
            taken += take;
        }
        parts
    }

    async fn gather(
        &self,
        copy: Option<usize>,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        self.geometry.check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        let parts = self.split(offset, len);
        let reads = join_all(parts.iter().map(|part| async move {
            let device = &self.devices[part.device];
            match copy {
                None => device.read(part.offset, part.len(), purpose).await,
                Some(copy) => {
                    let copy = copy.min(device.copies() - 1);
                    device.read_copy(copy, part.offset, part.len(), purpose).await
                }
            }
        }));
        let mut reads = reads.await.into_iter().collect::<Result<Vec<Bytes>, DeviceError>>()?;
        if reads.len() == 1 {
            return Ok(reads.remove(0));
        }
        let mut whole = AlignedBuf::zeroed(len);
        for (part, bytes) in parts.iter().zip(reads) {
            let mut used = 0;
            for (first, take) in &part.pieces {
                whole[*first..first + take].copy_from_slice(&bytes[used..used + take]);
                used += take;
            }
        }
        Ok(whole.freeze())
    }
}

/// The buffers of `[first, first + len)` of a gathered write; copies nothing.
fn slice(data: &[Bytes], first: usize, len: usize, into: &mut Vec<Bytes>) {
    let (mut skip, mut left) = (first, len);
    for buffer in data {
        if skip >= buffer.len() {
            skip -= buffer.len();
            continue;
        }
        let take = left.min(buffer.len() - skip);
        if take == 0 {
            return;
        }
        into.push(buffer.slice(skip..skip + take));
        (skip, left) = (0, left - take);
    }
}

/// Awaits every result, so that no request is left running; returns the first error.
async fn all<F>(requests: impl Iterator<Item = F>) -> Result<(), DeviceError>
where
    F: Future<Output = Result<(), DeviceError>>,
{
    join_all(requests).await.into_iter().collect()
}

#[async_trait]
impl Device for Stripe {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.gather(None, offset, len, purpose).await
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
        let parts = self.split(offset, len as usize);
        all(parts.into_iter().map(|part| {
            let mut buffers = Vec::new();
            for (first, take) in &part.pieces {
                slice(&data, *first, *take, &mut buffers);
            }
            self.devices[part.device].write(part.offset, buffers, purpose)
        }))
        .await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        all(self.devices.iter().map(|device| device.flush(purpose))).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry.check(offset, len)?;
        let parts = self.split(offset, usize::try_from(len).unwrap_or(usize::MAX));
        all(parts
            .iter()
            .map(|part| self.devices[part.device].discard(part.offset, part.len() as u64)))
        .await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        let mut sum = Tallies::default();
        self.devices.iter().for_each(|device| sum += device.tallies());
        sum
    }

    fn members(&self) -> Vec<DeviceRef> {
        self.devices.clone()
    }

    fn name(&self) -> String {
        let names: Vec<String> = self.devices.iter().map(|device| device.name()).collect();
        format!("stripe({})", names.join(", "))
    }

    /// The maximum of the members' copies. A member with fewer copies uses its last one for a number beyond
    /// them.
    fn copies(&self) -> usize {
        self.devices.iter().map(|device| device.copies()).max().unwrap_or(1)
    }

    fn has_copy(&self, copy: usize) -> bool {
        self.devices.iter().all(|device| device.has_copy(copy.min(device.copies() - 1)))
    }

    async fn read_copy(
        &self,
        copy: usize,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        self.gather(Some(copy), offset, len, purpose).await
    }

    async fn repair_copy(&self, copy: usize, offset: u64, data: Bytes) -> Result<(), DeviceError> {
        self.geometry.check(offset, data.len() as u64)?;
        let _queued = self.counters.write(Purpose::Repair, data.len() as u64);
        all(self.split(offset, data.len()).into_iter().map(|part| {
            let device = &self.devices[part.device];
            let mut right = AlignedBuf::zeroed(part.len());
            let mut used = 0;
            for (first, take) in &part.pieces {
                right[used..used + take].copy_from_slice(&data[*first..first + take]);
                used += take;
            }
            device.repair_copy(copy.min(device.copies() - 1), part.offset, right.freeze())
        }))
        .await
    }

    async fn set_power(&self, power: Power) {
        join_all(self.devices.iter().map(|device| device.set_power(power))).await;
    }

    async fn set_role(&self, role: Role) {
        join_all(self.devices.iter().map(|device| device.set_role(role))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::MemoryDevice;

    #[tokio::test]
    async fn units_go_to_the_devices_in_turn() {
        let devices: Vec<DeviceRef> =
            (0..3).map(|_| Arc::new(MemoryDevice::new(5000)) as _).collect();
        let stripe = Stripe::new(devices.clone(), 1024).unwrap();
        assert_eq!(stripe.geometry().size, 3 * 4 * 1024);
        let data: Vec<u8> = (0..8).flat_map(|unit| [unit; 1024]).collect();
        stripe.write(0, vec![Bytes::from(data.clone())], Purpose::UserData).await.unwrap();
        let second = devices[1].read(0, 3072, Purpose::UserData).await.unwrap();
        assert_eq!([second[0], second[1024], second[2048]], [1, 4, 7]);
        // One request per device, however many units it spans.
        assert_eq!(stripe.tallies().total().writes, 3);
        assert_eq!(stripe.read(512, 7168, Purpose::UserData).await.unwrap()[..], data[512..7680]);
    }

    #[test]
    fn what_cannot_be_striped_is_refused() {
        let device = |size| Arc::new(MemoryDevice::new(size)) as DeviceRef;
        assert!(matches!(Stripe::new(vec![], 512), Err(StripeError::NoDevices)));
        assert!(matches!(Stripe::new(vec![device(4096)], 100), Err(StripeError::Unit { .. })));
        let small = Stripe::new(vec![device(8192), device(512)], 1024);
        assert!(matches!(small, Err(StripeError::TooSmall { .. })));
    }
}
