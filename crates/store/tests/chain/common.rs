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
use thalweg_env::Env;
use thalweg_sim::conformance::{Mix, Request, explore};
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

/// Runs `test` with random requests. They do not grow the device, since most kinds do not.
pub fn for_random_requests(cases: u64, test: impl AsyncFn(Vec<Request>)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(explore(cases, Mix::default(), test));
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
