//! The conformance suite: simulated disks pass it, and broken devices do not.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use thalweg_env::Env;
use thalweg_sim::conformance::{Promises, check_all};
use thalweg_sim::faults::Faulty;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec, WriteCache};
use thalweg_store::device::{
    Device, DeviceError, DeviceRef, Geometry, MemoryDevice, Purpose, QueueDepth, Tallies, total_len,
};

const SIZE: u64 = 256 << 10;
const GEOMETRY: Geometry = Geometry { size: SIZE, sector: 512 };

fn conforms(promises: Promises, fresh: impl Fn(&Env) -> DeviceRef) {
    run(1, |env| async move { check_all(promises, 6, async || fresh(&env)).await });
}

#[test]
fn hard_disks_conform() {
    let specs = [HardDiskSpec::sas_15k(SIZE), HardDiskSpec::sata_7200(SIZE)];
    for spec in specs {
        conforms(Promises::default(), |env| Arc::new(HardDisk::new(env, "hdd", spec.clone())));
    }
}

#[test]
fn solid_state_drives_conform() {
    for write_cache in [WriteCache::Off, WriteCache::Volatile, WriteCache::Protected] {
        let spec = SolidStateSpec { write_cache, ..SolidStateSpec::sata(SIZE) };
        conforms(Promises::default(), |env| Arc::new(SolidState::new(env, "ssd", spec.clone())));
    }
}

#[test]
fn disks_in_ram_conform() {
    conforms(Promises::default(), |_| Arc::new(RamDisk::new("ram", GEOMETRY)));
    let latency = std::time::Duration::from_micros(50);
    conforms(Promises::default(), |env| {
        Recorder::with_latency(env, latency).device("recorded", GEOMETRY)
    });
    conforms(Promises::default(), |env| {
        Faulty::wrap(env, Arc::new(RamDisk::new("ram", GEOMETRY))).0
    });
}

/// A bug of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// None.
    None,
    /// The last sector of a long write is lost.
    LosesTheEnd,
    /// Buffers after the first are written a sector too far.
    Skips,
    /// Some writes of a sector are torn.
    Tears,
    /// A discard also zeros the sector before it.
    DiscardsTooMuch,
    /// A flush is not counted.
    ForgetsFlushes,
    /// Writes of less than a sector are accepted.
    TakesAnything,
    /// Long reads are short.
    ReadsShort,
    /// Growth loses the last sector.
    GrowsBadly,
}

const BUGS: [Bug; 8] = [
    Bug::LosesTheEnd,
    Bug::Skips,
    Bug::Tears,
    Bug::DiscardsTooMuch,
    Bug::ForgetsFlushes,
    Bug::TakesAnything,
    Bug::ReadsShort,
    Bug::GrowsBadly,
];

/// A device with a bug.
#[derive(Debug)]
struct Buggy {
    inner: MemoryDevice,
    bug: Bug,
}

#[async_trait]
impl Device for Buggy {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        let read = self.inner.read(offset, len, purpose).await?;
        match self.bug {
            Bug::ReadsShort if len > 4096 => Ok(read.slice(..len - 512)),
            _ => Ok(read),
        }
    }

    async fn write(
        &self,
        offset: u64,
        mut data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        if self.bug == Bug::TakesAnything && !len.is_multiple_of(512) {
            return Ok(());
        }
        self.geometry().check(offset, len)?;
        match self.bug {
            Bug::LosesTheEnd if data.len() > 3 => drop(data.pop()),
            Bug::Skips if data.len() > 1 && offset + len + 512 <= self.geometry().size => {
                let rest = data.split_off(1);
                let at = offset + data[0].len() as u64 + 512;
                self.inner.write(at, rest, purpose).await?;
            }
            Bug::Tears if len == 512 && data[0].iter().all(|byte| *byte == 2) => {
                let torn = [vec![2; 256], vec![1; 256]].concat();
                return self.inner.write(offset, vec![torn.into()], purpose).await;
            }
            _ => {}
        }
        self.inner.write(offset, data, purpose).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        match self.bug {
            Bug::ForgetsFlushes => Ok(()),
            _ => self.inner.flush(purpose).await,
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        if self.bug == Bug::DiscardsTooMuch && offset > 0 && len > 0 {
            let zeros = vec![Bytes::from(vec![0; 512])];
            self.inner.write(offset - 512, zeros, Purpose::UserData).await?;
        }
        self.inner.discard(offset, len).await
    }

    async fn grow_to(&self, size: Option<u64>) -> Result<u64, DeviceError> {
        let before = self.geometry().size;
        let size = self.inner.grow_to(size).await?;
        if self.bug == Bug::GrowsBadly && size > before {
            let zeros = vec![Bytes::from(vec![0; 512])];
            self.inner.write(before - 512, zeros, Purpose::UserData).await?;
        }
        Ok(size)
    }

    fn queue_depth(&self) -> QueueDepth {
        self.inner.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.inner.tallies()
    }

    fn name(&self) -> String {
        "buggy".to_owned()
    }
}

#[test]
fn the_suite_finds_each_bug() {
    let finds = |bug| {
        let promises = Promises { grows: true, ..Promises::default() };
        let fresh = async || Arc::new(Buggy { inner: MemoryDevice::new(SIZE), bug }) as DeviceRef;
        let check = AssertUnwindSafe(check_all(promises, 12, fresh)).catch_unwind();
        futures::executor::block_on(check).is_err()
    };
    assert!(!finds(Bug::None));
    for bug in BUGS {
        assert!(finds(bug), "{bug:?}");
    }
}
