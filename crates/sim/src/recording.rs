//! Devices that log every write, discard and flush in one order.
//!
//! The devices of one [`Recorder`] share an order of events, so that a volume of several devices
//! crashes as a whole. A request has a beginning and an end in that order: a write is durable when
//! it *ended* before a flush *began*. [`Recorder::mark`] adds a checker's own events to the same
//! order, for example which writes had been acknowledged before the crash.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_store::device::{
    Counters, Device, DeviceError, DeviceRef, Geometry, Purpose, QueueDepth, Tallies, total_len,
};

use crate::content::{Content, PATTERN};
use crate::crash::{CrashImage, Images, Policy, Shape};
pub use crate::log::{Change, Event, Log, Origin, Payload};

/// Makes devices in RAM that record into one common order. Clones share that order.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    latency: Duration,
    state: Mutex<State>,
}

struct State {
    log: Log,
    rng: Rng,
}

impl Recorder {
    /// A recorder whose devices take no time: every request ends before the next one begins.
    pub fn new(env: &Env) -> Recorder {
        Recorder::with_latency(env, Duration::ZERO)
    }

    /// A recorder whose requests take a random time of at most `latency` each, so that writes and
    /// flushes overlap and end in an order of their own.
    pub fn with_latency(env: &Env, latency: Duration) -> Recorder {
        let state = Mutex::new(State { log: Log::default(), rng: env.rng() });
        Recorder { shared: Arc::new(Shared { env: env.clone(), latency, state }) }
    }

    /// A recorder that starts from a crash image, and its devices in their order: to crash during
    /// recovery.
    pub fn from_image(
        env: &Env,
        latency: Duration,
        image: &CrashImage,
    ) -> (Recorder, Vec<DeviceRef>) {
        let recorder = Recorder::with_latency(env, latency);
        let devices = image.disks().iter().map(|disk| {
            recorder.device_with(&disk.name(), disk.geometry(), disk.content()) as DeviceRef
        });
        let devices = devices.collect();
        (recorder, devices)
    }

    /// An empty recorded device.
    pub fn device(&self, name: &str, geometry: Geometry) -> DeviceRef {
        self.device_with(name, geometry, Content::new())
    }

    /// A recorded device that already holds `content`, durably.
    pub fn device_with(
        &self,
        name: &str,
        geometry: Geometry,
        content: Content,
    ) -> Arc<RecordedDevice> {
        let mut state = self.shared.state.lock();
        let index = state.log.origins.len();
        let origin = Origin { name: name.to_owned(), geometry, content: content.clone() };
        state.log.origins.push(origin);
        Arc::new(RecordedDevice {
            recorder: self.clone(),
            index,
            name: name.to_owned(),
            geometry,
            content: Mutex::new(content),
            counters: Counters::default(),
        })
    }

    /// Adds the caller's mark to the order of events.
    pub fn mark(&self, tag: u64) {
        self.push(Event::Mark(tag));
    }

    /// Number of events so far. A crash at point `n` comes after the first `n` events.
    pub fn position(&self) -> usize {
        self.shared.state.lock().log.events.len()
    }

    /// The record so far.
    pub fn log(&self) -> Log {
        self.shared.state.lock().log.clone()
    }

    /// The images that a crash could leave, as many as `policy` requests.
    pub fn images(&self, rng: &mut Rng, policy: &Policy) -> Images {
        Images::new(Arc::new(self.log()), rng, policy)
    }

    /// One image, identified by another image's [`CrashImage::point`] and [`CrashImage::shape`].
    pub fn image(&self, point: usize, shape: Shape) -> CrashImage {
        CrashImage::at(&Arc::new(self.log()), point, shape)
    }

    fn push(&self, event: Event) {
        self.shared.state.lock().log.events.push(event);
    }

    fn begin_write(&self, change: Change) -> (usize, Arc<Change>) {
        let log = &mut self.shared.state.lock().log;
        let number = log.changes.len();
        let change = Arc::new(change);
        log.changes.push(Arc::clone(&change));
        log.events.push(Event::WriteBegan(number));
        (number, change)
    }

    fn begin_flush(&self, device: usize) -> usize {
        let log = &mut self.shared.state.lock().log;
        let flush = log.flushes;
        log.flushes += 1;
        log.events.push(Event::FlushBegan { flush, device });
        flush
    }

    /// The content of a discarded range is undefined: zeros, the old content, or anything else.
    fn discarded(&self) -> Payload {
        match self.shared.state.lock().rng.random_range(0..3) {
            0 => Payload::Fill([0; PATTERN]),
            1 => Payload::Fill([0xdd; PATTERN]),
            _ => Payload::Keep,
        }
    }

    async fn pause(&self) {
        let most = u64::try_from(self.shared.latency.as_nanos()).unwrap_or(u64::MAX);
        if most > 0 {
            let nanos = self.shared.state.lock().rng.random_range(0..=most);
            self.shared.env.sleep(Duration::from_nanos(nanos)).await;
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({} events)", self.position())
    }
}

/// A device of a [`Recorder`].
#[derive(Debug)]
pub struct RecordedDevice {
    recorder: Recorder,
    index: usize,
    name: String,
    geometry: Geometry,
    content: Mutex<Content>,
    counters: Counters,
}

/// A change in progress. It ends when dropped: a device completes a submitted request even when its
/// caller has gone.
struct Applying<'a> {
    device: &'a RecordedDevice,
    number: usize,
    change: Arc<Change>,
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        self.change.apply(&mut self.device.content.lock());
        self.device.recorder.push(Event::WriteEnded(self.number));
    }
}

impl RecordedDevice {
    /// The content that reads return now, durable or not.
    pub fn content(&self) -> Content {
        self.content.lock().clone()
    }

    async fn change(&self, offset: u64, len: u64, payload: Payload) {
        let change = Change { device: self.index, offset, len, payload };
        let (number, change) = self.recorder.begin_write(change);
        let _applying = Applying { device: self, number, change };
        self.recorder.pause().await;
    }
}

#[async_trait]
impl Device for RecordedDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry.check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        self.recorder.pause().await;
        Ok(self.content.lock().read(offset, len))
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
        self.change(offset, len, Payload::Data(data)).await;
        Ok(())
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        let device = self.index;
        let flush = self.recorder.begin_flush(device);
        self.recorder.pause().await;
        self.recorder.push(Event::FlushEnded { flush, device });
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry.check(offset, len)?;
        let payload = self.recorder.discarded();
        self.change(offset, len, payload).await;
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
