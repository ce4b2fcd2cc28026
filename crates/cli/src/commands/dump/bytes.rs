//! A device's bytes for readers that block.

use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};

use thalweg_store::device::{DeviceRef, Geometry, Purpose};
use tokio::runtime::Handle;

/// A device's bytes. To be read on a thread that may block.
pub(super) struct DeviceBytes {
    device: DeviceRef,
    runtime: Handle,
    at: u64,
}

impl DeviceBytes {
    /// The bytes of `device`, whose requests `runtime` carries out.
    pub(super) fn new(device: DeviceRef, runtime: Handle) -> DeviceBytes {
        DeviceBytes { device, runtime, at: 0 }
    }
}

impl Read for DeviceBytes {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let Geometry { size, sector } = self.device.geometry();
        let sector = u64::from(sector);
        let end = size.min(self.at.saturating_add(into.len() as u64));
        let start = self.at - self.at % sector;
        let Some(len) = end.checked_sub(self.at).filter(|len| *len > 0) else { return Ok(0) };
        let whole = end.next_multiple_of(sector) - start;
        let read = self.device.read(start, whole as usize, Purpose::Label);
        let read = self.runtime.block_on(read).map_err(Error::other)?;
        let skip = (self.at - start) as usize;
        into[..len as usize].copy_from_slice(&read[skip..skip + len as usize]);
        self.at = end;
        Ok(len as usize)
    }
}

impl Seek for DeviceBytes {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.device.geometry().size.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thalweg_store::device::{Device, Geometry, MemoryDevice};

    use super::*;

    #[test]
    fn bytes_are_read_at_any_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(8192));
        assert_eq!(device.geometry(), Geometry { size: 8192, sector: 512 });
        let all: Vec<u8> = (0..8192).map(|at| (at / 7) as u8).collect();
        let write = device.write(0, vec![all.clone().into()], Purpose::Label);
        runtime.block_on(write).unwrap();
        let mut bytes = DeviceBytes::new(device, runtime.handle().clone());
        for (at, len) in [(0, 8192), (1, 3), (511, 2), (8000, 500), (8192, 1), (9000, 1)] {
            bytes.seek(SeekFrom::Start(at)).unwrap();
            let mut read = Vec::new();
            (&mut bytes).take(len).read_to_end(&mut read).unwrap();
            let end = (at + len).min(8192).max(at.min(8192)) as usize;
            assert_eq!(read, all[at.min(8192) as usize..end], "{len} bytes at {at}");
        }
    }
}
