//! Shared parts of the device tests: a device that fails on demand, and random requests.

#![allow(unreachable_pub)]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_store::device::{
    Counters, Device, DeviceError, FileDevice, FileOptions, Geometry, MemoryDevice, Operation,
    Power, Purpose, QueueDepth, Tallies,
};

/// A device in RAM with delays, which fails on demand.
#[derive(Debug)]
pub struct FaultyDevice {
    pub inner: MemoryDevice,
    /// Number of yields of a request before and after its work.
    pub yields: AtomicUsize,
    pub fail_writes: AtomicBool,
    pub fail_flushes: AtomicBool,
    /// Reads that touch this range fail, until it is written.
    pub unreadable: Mutex<Range<u64>>,
    pub writing_heals: AtomicBool,
    pub power: Mutex<Power>,
    /// For the queue's depth, which the inner device only has while it copies.
    queue: Counters,
}

impl FaultyDevice {
    pub fn new(size: u64) -> Arc<FaultyDevice> {
        Arc::new(FaultyDevice {
            inner: MemoryDevice::new(size),
            yields: AtomicUsize::new(0),
            fail_writes: AtomicBool::new(false),
            fail_flushes: AtomicBool::new(false),
            unreadable: Mutex::new(0..0),
            writing_heals: AtomicBool::new(true),
            power: Mutex::new(Power::Active),
            queue: Counters::default(),
        })
    }

    pub fn slow(size: u64, yields: usize) -> Arc<FaultyDevice> {
        let device = FaultyDevice::new(size);
        device.yields.store(yields, Ordering::Relaxed);
        device
    }

    async fn pause(&self) {
        for _ in 0..self.yields.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    fn error(&self, operation: Operation) -> DeviceError {
        DeviceError::io("faulty", operation, std::io::Error::from_raw_os_error(5))
    }

    pub async fn content(&self) -> Bytes {
        self.inner.read(0, self.inner.geometry().size as usize, Purpose::Label).await.unwrap()
    }
}

#[async_trait]
impl Device for FaultyDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        let _queued = self.queue.read(purpose, len as u64);
        let bad = self.unreadable.lock().clone();
        if offset < bad.end && bad.start < offset + len as u64 {
            return Err(self.error(Operation::Read));
        }
        self.pause().await;
        let bytes = self.inner.read(offset, len, purpose).await;
        self.pause().await;
        bytes
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let _queued = self.queue.write(purpose, 0);
        self.pause().await;
        if self.fail_writes.load(Ordering::Relaxed) {
            return Err(self.error(Operation::Write));
        }
        if self.writing_heals.load(Ordering::Relaxed) {
            *self.unreadable.lock() = 0..0;
        }
        self.inner.write(offset, data, purpose).await?;
        self.pause().await;
        Ok(())
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.pause().await;
        if self.fail_flushes.load(Ordering::Relaxed) {
            return Err(self.error(Operation::Flush));
        }
        self.inner.flush(purpose).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len).await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.queue.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.inner.tallies()
    }

    fn name(&self) -> String {
        "faulty".to_owned()
    }

    async fn set_power(&self, power: Power) {
        *self.power.lock() = power;
    }
}

/// A request, in sectors.
#[derive(Clone, Debug)]
pub enum Request {
    Read { first: u64, count: usize },
    Write { first: u64, counts: Vec<usize>, fill: u8, misaligned: bool, durably: bool },
    Flush,
    Discard { first: u64, count: u64 },
}

pub fn request() -> impl Strategy<Value = Request> {
    let first = any::<u64>();
    prop_oneof![
        4 => (first, 1..40_usize).prop_map(|(first, count)| Request::Read { first, count }),
        5 => (first, prop::collection::vec(1..8_usize, 1..6), any::<u8>(), any::<[bool; 2]>())
            .prop_map(|(first, counts, fill, [misaligned, durably])| {
                Request::Write { first, counts, fill, misaligned, durably }
            }),
        1 => Just(Request::Flush),
        1 => (first, 1..64_u64).prop_map(|(first, count)| Request::Discard { first, count }),
    ]
}

/// Bytes that encode their offset.
fn pattern(len: usize, seed: u8, misaligned: bool) -> Bytes {
    let skip = if misaligned { 3 } else { 0 };
    let bytes: Vec<u8> = (0..len + skip).map(|i| (i / 7) as u8 ^ seed).collect();
    Bytes::from(bytes).slice(skip..)
}

/// The expected content of a device; `None` where unknown.
pub struct Model {
    pub bytes: Vec<Option<u8>>,
}

impl Model {
    pub fn new(size: u64) -> Model {
        Model { bytes: vec![Some(0); size as usize] }
    }

    pub fn check(&self, offset: u64, read: &[u8]) {
        let expected = &self.bytes[offset as usize..offset as usize + read.len()];
        let differs = expected.iter().zip(read).position(|(e, r)| e.is_some_and(|e| e != *r));
        assert_eq!(differs, None, "wrong byte of {} read at {offset}", read.len());
    }
}

/// Sends `requests` to `device` and compares every read with a plain vector of bytes.
pub async fn run_against_model(device: &dyn Device, requests: Vec<Request>) -> Model {
    let Geometry { size, sector } = device.geometry();
    let (unit, sectors) = (sector as usize, size / u64::from(sector));
    let mut model = Model::new(size);
    for request in requests {
        match request {
            Request::Read { first, count } => {
                let first = first % sectors;
                let count = count.min((sectors - first) as usize);
                let at = first * u64::from(sector);
                let read = device.read(at, count * unit, Purpose::UserData).await.unwrap();
                assert_eq!(read.len(), count * unit);
                assert!(read.as_ptr().addr().is_multiple_of(4096));
                model.check(at, &read);
            }
            Request::Write { first, counts, fill, misaligned, durably } => {
                let first = first % sectors;
                let mut left = (sectors - first) as usize;
                let mut data = Vec::new();
                for (i, count) in counts.into_iter().enumerate() {
                    let count = count.min(left);
                    left -= count;
                    let skewed = misaligned && i % 2 == 0;
                    data.push(pattern(count * unit, fill.wrapping_add(i as u8), skewed));
                }
                let offset = first * u64::from(sector);
                let written = &mut model.bytes[offset as usize..];
                for (known, byte) in written.iter_mut().zip(data.iter().flatten()) {
                    *known = Some(*byte);
                }
                match durably {
                    true => device.write_durably(offset, data, Purpose::UserData).await.unwrap(),
                    false => device.write(offset, data, Purpose::UserData).await.unwrap(),
                }
            }
            Request::Flush => device.flush(Purpose::UserData).await.unwrap(),
            Request::Discard { first, count } => {
                let first = first % sectors;
                let count = count.min(sectors - first);
                let (at, len) = (first * u64::from(sector), count * u64::from(sector));
                model.bytes[at as usize..(at + len) as usize].fill(None);
                device.discard(at, len).await.unwrap();
            }
        }
    }
    let whole = device.read(0, size as usize, Purpose::UserData).await.unwrap();
    model.check(0, &whole);
    assert_eq!(device.queue_depth(), QueueDepth::default());
    model
}

/// Runs `test` with random requests, each time in a runtime of its own.
pub fn for_random_requests<F>(cases: u32, test: impl Fn(Vec<Request>) -> F)
where
    F: Future<Output = ()>,
{
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let requests = prop::collection::vec(request(), 1..40);
    let result = runner.run(&requests, |requests| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(test(requests));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Opens a device that was closed before. A process that another test starts may share the old handle, and with it the
/// lock, until it executes its program.
pub async fn open_when_released(path: impl AsRef<Path>, options: &FileOptions) -> FileDevice {
    let env = Env::real();
    for _ in 0..100 {
        match FileDevice::open(path.as_ref(), options).await {
            Err(DeviceError::Locked { .. }) => env.sleep(Duration::from_millis(20)).await,
            opened => return opened.unwrap(),
        }
    }
    panic!("{} stays locked", path.as_ref().display());
}
