//! Copies of the same bytes on several devices (RAID-1).
//!
//! - A write or flush goes to every side in sync, and returns when all have answered. A side that fails it is
//!   out of sync; the request succeeds if a side in sync has done it.
//! - A side that is out misses writes and must never be read, not even after a crash. So the owner durably
//!   records the set of sides in sync ([`SyncRecord`]), and no write or flush returns before a failure is
//!   recorded.
//! - A failed read is served by another side, which also repairs the first; a side that cannot be repaired is
//!   out.
//! - Overlapping writes run one after the other, so that all sides apply them in one order.
//! - After a crash, sides may differ in writes that were not flushed: a read may return either content, and
//!   not always the same. A caller that relies on such bytes after recovery first writes them back, which
//!   makes the sides equal.

pub(crate) mod range_lock;
mod rebuild;
mod sides;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_env::{Env, watch};
use tokio::sync::oneshot;

use self::range_lock::RangeLocks;
use self::sides::{Outcome, Sides};
use super::{
    Counters, Device, DeviceError, DeviceRef, Geometry, Operation, Power, Purpose, QueueDepth,
    Role, Tallies, total_len,
};

/// The state of a side when the mirror is assembled.
#[derive(Clone, Debug)]
pub enum Side {
    /// It holds every write.
    InSync(DeviceRef),
    /// It missed writes, or is new.
    Stale(DeviceRef),
    /// It is missing.
    Missing,
}

/// The state of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideState {
    /// It holds every write, and serves reads.
    InSync,
    /// It is being rebuilt.
    Rebuilding {
        /// Bytes that are rebuilt.
        done: u64,
        /// The mirror's size in bytes.
        total: u64,
    },
    /// It missed writes, or is new.
    Stale,
    /// A request failed on it, and it has missed writes since.
    Failed,
    /// It is missing.
    Missing,
}

impl fmt::Display for SideState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SideState::InSync => "in sync",
            SideState::Rebuilding { .. } => "being rebuilt",
            SideState::Stale => "stale",
            SideState::Failed => "failed",
            SideState::Missing => "missing",
        })
    }
}

/// The durable record of a mirror's owner: which sides may be read after a restart.
#[async_trait]
pub trait SyncRecord: Send + Sync {
    /// Makes durable that exactly the sides marked in `in_sync` hold every write. There is one call at a
    /// time: after a side failed, before any further write or flush is acknowledged; and when a rebuild is
    /// complete, before the side is read. It must not write or flush through the mirror, which waits for it,
    /// but may write to single sides or other devices.
    ///
    /// # Errors
    /// An error that kept it from being durable. The write or flush that waits fails with it, and the next
    /// one tries again.
    async fn record(&self, in_sync: &[bool]) -> Result<(), DeviceError>;
}

/// Records nothing: for mirrors that end with the process.
#[async_trait]
impl SyncRecord for () {
    async fn record(&self, _in_sync: &[bool]) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Why a mirror, or a change of it, is refused.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A mirror needs more than one side.
    #[error("a mirror needs at least two sides; it has {sides}")]
    TooFewSides {
        /// The number of sides.
        sides: usize,
    },
    /// No side can be read.
    #[error("no side of the mirror is in sync; bring back the one that was used last")]
    NoneInSync,
    /// A side does not fit the mirror.
    #[error("{device} cannot be a side: the mirror has {size} bytes in sectors of {sector}")]
    DoesNotFit {
        /// The device.
        device: String,
        /// The mirror's size in bytes.
        size: u64,
        /// The mirror's sector in bytes.
        sector: u32,
    },
    /// No side has this number.
    #[error("the mirror has no side {side}")]
    NoSuchSide {
        /// The number, from 0.
        side: usize,
    },
    /// Only a side that is out can be replaced or rebuilt.
    #[error("side {side} is {state}; only a side that is out can be replaced or rebuilt")]
    NotOut {
        /// The number, from 0.
        side: usize,
        /// Its state.
        state: SideState,
    },
    /// The last side in sync cannot be taken out.
    #[error("side {side} is the last one in sync; rebuild another first")]
    LastInSync {
        /// The number, from 0.
        side: usize,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Two or more devices with the same bytes. Clones share the same mirror.
#[derive(Clone, Debug)]
pub struct Mirror {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    geometry: Geometry,
    standby: bool,
    resting: AtomicBool,
    sides: Mutex<Sides>,
    states: watch::Sender<Vec<SideState>>,
    locks: RangeLocks,
    record: Arc<dyn SyncRecord>,
    /// Held while the owner records.
    recording: tokio::sync::Mutex<()>,
    /// Failures that are durably recorded; see [`Sides::failures`].
    recorded: AtomicU64,
    /// Only for the queue's depth: the sides count bytes.
    queue: Counters,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("sides", &self.sides).finish_non_exhaustive()
    }
}

impl Mirror {
    /// A mirror of `sides`, as large as the smallest one in sync. With `standby`, its second sides spin down
    /// while the mirror is in the body of a chain ([`Role::Body`]).
    ///
    /// # Errors
    /// [`MirrorError`] when the sides do not make a mirror.
    pub fn new(
        env: &Env,
        sides: Vec<Side>,
        record: Arc<dyn SyncRecord>,
        standby: bool,
    ) -> Result<Mirror, MirrorError> {
        if sides.len() < 2 {
            return Err(MirrorError::TooFewSides { sides: sides.len() });
        }
        let geometry = common_geometry(&sides)?;
        for side in &sides {
            if let Side::Stale(device) = side {
                fits(device, geometry)?;
            }
        }
        let sides = Sides::new(sides);
        Ok(Mirror {
            shared: Arc::new(Shared {
                env: env.clone(),
                geometry,
                standby,
                resting: AtomicBool::new(false),
                states: watch::Sender::new(sides.states()),
                sides: Mutex::new(sides),
                locks: RangeLocks::default(),
                record,
                recording: tokio::sync::Mutex::default(),
                recorded: AtomicU64::new(0),
                queue: Counters::default(),
            }),
        })
    }

    /// The state of each side, now and on every change; includes a rebuild's progress.
    pub fn states(&self) -> watch::Receiver<Vec<SideState>> {
        self.shared.states.subscribe()
    }

    /// Takes a side out, as after a failure, and has that recorded.
    ///
    /// # Errors
    /// [`MirrorError::LastInSync`] when no other side could be read.
    pub async fn take_out(&self, side: usize) -> Result<(), MirrorError> {
        let asked = DeviceError::Closed { device: format!("side {side}, taken out") };
        self.shared.change(|sides| match sides.state(side) {
            None => Err(MirrorError::NoSuchSide { side }),
            Some(SideState::InSync) if !sides.fail(side, &asked) => {
                Err(MirrorError::LastInSync { side })
            }
            Some(_) => {
                sides.fail(side, &asked);
                Ok(())
            }
        })?;
        Ok(self.shared.after_failures().await?)
    }

    /// Replaces a side that is out by `device`. It is stale until it is rebuilt.
    ///
    /// # Errors
    /// [`MirrorError`] when it does not fit or the side is in use.
    pub fn replace(&self, side: usize, device: DeviceRef) -> Result<(), MirrorError> {
        fits(&device, self.shared.geometry)?;
        self.shared.change(|sides| match sides.state(side) {
            None => Err(MirrorError::NoSuchSide { side }),
            Some(state @ (SideState::InSync | SideState::Rebuilding { .. })) => {
                Err(MirrorError::NotOut { side, state })
            }
            Some(_) => {
                sides.replace(side, device);
                Ok(())
            }
        })
    }

    /// Rebuilds a side that is out, while reads and writes go on. Its progress is in [`Mirror::states`].
    /// Dropping the future ends the rebuild.
    ///
    /// # Errors
    /// [`MirrorError::Device`] when the side, or every source, fails; the side stays out.
    pub async fn rebuild(&self, side: usize) -> Result<(), MirrorError> {
        rebuild::run(&self.shared, side).await
    }
}

/// The size and sector that every side in sync can serve.
fn common_geometry(sides: &[Side]) -> Result<Geometry, MirrorError> {
    let all: Vec<Geometry> = sides
        .iter()
        .filter_map(|side| match side {
            Side::InSync(device) => Some(device.geometry()),
            Side::Stale(_) | Side::Missing => None,
        })
        .collect();
    let sector = all.iter().map(|geometry| geometry.sector).max();
    let size = all.iter().map(|geometry| geometry.size).min();
    let (Some(sector), Some(size)) = (sector, size) else { return Err(MirrorError::NoneInSync) };
    Ok(Geometry { size: size - size % u64::from(sector), sector })
}

fn fits(device: &DeviceRef, geometry: Geometry) -> Result<(), MirrorError> {
    let Geometry { size, sector } = geometry;
    let own = device.geometry();
    if own.size >= size && sector.is_multiple_of(own.sector) {
        return Ok(());
    }
    Err(MirrorError::DoesNotFit { device: device.name(), size, sector })
}

impl Shared {
    /// Changes the sides and notifies the watchers.
    fn change<T>(&self, how: impl FnOnce(&mut Sides) -> T) -> T {
        let mut sides = self.sides.lock();
        let result = how(&mut sides);
        let now = sides.states();
        self.states.send_if_modified(|states| {
            let changed = *states != now;
            *states = now;
            changed
        });
        result
    }

    /// Runs `work` to its end even if the caller's future is dropped: a write that reached only one side
    /// would leave the sides different, and one still running would escape its range lock.
    async fn to_end<T, F>(&self, work: F) -> Result<T, DeviceError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DeviceError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task = self.env.spawn(async move {
            let _ = reply.send(work.await);
        });
        task.detach();
        answer.await.unwrap_or_else(|_| Err(DeviceError::Closed { device: self.name() }))
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let _held = self.locks.lock(offset..offset + total_len(&data)).await;
        let targets = self.sides.lock().writable(offset);
        let outcomes = join_all(targets.iter().map(|(side, device)| {
            let data = data.clone();
            async move { (*side, device.write(offset, data, purpose).await) }
        }));
        self.settle(outcomes.await).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let targets = self.sides.lock().flushable();
        let flushes = targets.iter().map(|(side, it)| async { (*side, it.flush(purpose).await) });
        self.settle(join_all(flushes).await).await
    }

    async fn discard(&self, offset: u64, len: u64) {
        let _held = self.locks.lock(offset..offset + len).await;
        let targets = self.sides.lock().writable(offset);
        for outcome in join_all(targets.iter().map(|(_, side)| side.discard(offset, len))).await {
            // The content is undefined either way.
            if let Err(error) = outcome {
                tracing::debug!(%error, "a discard failed");
            }
        }
    }

    async fn settle(&self, outcomes: Vec<Outcome>) -> Result<(), DeviceError> {
        self.change(|sides| sides.settle(outcomes))?;
        self.after_failures().await
    }

    /// Returns when every failure so far is recorded.
    async fn after_failures(&self) -> Result<(), DeviceError> {
        let is_recorded = || self.recorded.load(Ordering::Acquire) >= self.sides.lock().failures();
        if is_recorded() {
            return Ok(());
        }
        let _recording = self.recording.lock().await;
        if is_recorded() {
            return Ok(());
        }
        let (in_sync, failures) = {
            let sides = self.sides.lock();
            (sides.in_sync(), sides.failures())
        };
        self.record.record(&in_sync).await?;
        self.set_recorded(failures);
        self.apply_power().await;
        Ok(())
    }

    fn set_recorded(&self, failures: u64) {
        self.recorded.fetch_max(failures, Ordering::Release);
    }

    /// Reads from one side after the other; sides that failed are repaired from the one that succeeded.
    async fn read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        let resting = self.resting.load(Ordering::Relaxed);
        let mut tried = Vec::new();
        let mut failure = None;
        loop {
            let chosen = self.sides.lock().choose(offset, len, resting, &tried);
            let Some((side, device)) = chosen else {
                return Err(failure.unwrap_or(DeviceError::Closed { device: self.name() }));
            };
            match device.read(offset, len, purpose).await {
                Ok(bytes) => {
                    for bad in tried {
                        self.repair(bad, offset, len).await;
                    }
                    self.rest_again(side).await;
                    return Ok(bytes);
                }
                Err(error) => failure = Some(error),
            }
            tried.push(side);
        }
    }

    /// Rewrites a range that `side` cannot read, from another side. The side is out if that fails, or if the
    /// range still cannot be read.
    async fn repair(self: &Arc<Self>, side: usize, offset: u64, len: usize) {
        let shared = self.clone();
        let repaired = self.to_end(async move {
            let _held = shared.locks.lock(offset..offset + len as u64).await;
            let device = shared.sides.lock().readable(&[]).into_iter().find(|(i, _)| *i == side);
            let Some((_, device)) = device else { return Ok(()) };
            let bytes = shared.read_any(offset, len, Purpose::Repair, &[side]).await?;
            let written = device.write(offset, vec![bytes], Purpose::Repair).await;
            let again = match written {
                Ok(()) => device.read(offset, len, Purpose::Repair).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = again {
                shared.change(|sides| sides.fail(side, &error));
                shared.after_failures().await?;
            }
            Ok(())
        });
        if let Err(error) = repaired.await {
            tracing::warn!(side, %error, "a side of a mirror could not be repaired");
        }
    }

    async fn repair_copy(&self, copy: usize, offset: u64, data: Bytes) -> Result<(), DeviceError> {
        let _held = self.locks.lock(offset..offset + data.len() as u64).await;
        let located = self.sides.lock().locate(copy);
        let (side, inner, device) = located.ok_or_else(|| self.out(Operation::Repair))?;
        let repaired = device.repair_copy(inner, offset, data).await;
        if let Err(error) = &repaired {
            self.change(|sides| sides.fail(side, error));
            self.after_failures().await?;
        }
        repaired
    }

    /// Spins sides down, or up, according to the role.
    async fn apply_power(&self) {
        if !self.standby {
            return;
        }
        let resting = self.resting.load(Ordering::Relaxed);
        let sides = self.sides.lock().readable(&[]);
        let asked = sides.iter().enumerate().map(|(order, (_, device))| {
            let power = if resting && order > 0 { Power::Standby } else { Power::Active };
            device.set_power(power)
        });
        join_all(asked).await;
    }

    /// A side that served a request is awake. If it should be at rest (it was asked before the others were
    /// put to rest, or in place of the first side), it is put to rest again.
    async fn rest_again(&self, side: usize) {
        let resting = self.resting.load(Ordering::Relaxed);
        if resting && self.sides.lock().first_readable() != Some(side) {
            self.apply_power().await;
        }
    }

    fn out(&self, operation: Operation) -> DeviceError {
        let reason = "this copy is not in sync; rebuild its side";
        DeviceError::io(&self.name(), operation, std::io::Error::other(reason))
    }

    fn lost(&self, side: usize) -> DeviceError {
        let reason = format!("side {side} went out of use during its rebuild; start it again");
        DeviceError::io(&self.name(), Operation::Rebuild, std::io::Error::other(reason))
    }

    fn name(&self) -> String {
        let devices = self.sides.lock().devices();
        let names: Vec<String> = devices.iter().map(|device| device.name()).collect();
        format!("mirror({})", names.join(", "))
    }
}

#[async_trait]
impl Device for Mirror {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.shared.geometry.check(offset, len as u64)?;
        let _queued = self.shared.queue.read(purpose, len as u64);
        match len {
            0 => Ok(Bytes::new()),
            _ => self.shared.read(offset, len, purpose).await,
        }
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.shared.geometry.check(offset, len)?;
        let _queued = self.shared.queue.write(purpose, len);
        if len == 0 {
            return Ok(());
        }
        let shared = self.shared.clone();
        self.shared.to_end(async move { shared.write(offset, data, purpose).await }).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.shared.queue.flush(purpose);
        let shared = self.shared.clone();
        self.shared.to_end(async move { shared.flush(purpose).await }).await
    }

    async fn write_durably(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.shared.geometry.check(offset, len)?;
        let _queued = (self.shared.queue.write(purpose, len), self.shared.queue.flush(purpose));
        let (shared, range) = (self.shared.clone(), offset..offset + len);
        self.shared.to_end(async move { shared.write_durably(range, data, purpose).await }).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.shared.geometry.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let shared = self.shared.clone();
        let work = async move {
            shared.discard(offset, len).await;
            Ok(())
        };
        self.shared.to_end(work).await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.shared.queue.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        let mut sum = Tallies::default();
        self.members().iter().for_each(|device| sum += device.tallies());
        sum
    }

    fn members(&self) -> Vec<DeviceRef> {
        self.shared.sides.lock().devices()
    }

    fn name(&self) -> String {
        self.shared.name()
    }

    /// One for each side, including those that are out; the copies of those cannot be read.
    fn copies(&self) -> usize {
        let sides = self.shared.sides.lock();
        let count = |side| sides.device(side).map_or(1, |device| device.copies());
        (0..sides.states().len()).map(count).sum()
    }

    fn has_copy(&self, copy: usize) -> bool {
        let located = self.shared.sides.lock().locate(copy);
        located.is_some_and(|(_, inner, device)| device.has_copy(inner))
    }

    async fn read_copy(
        &self,
        copy: usize,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        self.shared.geometry.check(offset, len as u64)?;
        let _queued = self.shared.queue.read(purpose, len as u64);
        let located = self.shared.sides.lock().locate(copy);
        let (_, inner, device) = located.ok_or_else(|| self.shared.out(Operation::Read))?;
        device.read_copy(inner, offset, len, purpose).await
    }

    /// The caller must not write anything else to the range meanwhile, or the bytes would be outdated. A side
    /// that cannot be written is out.
    async fn repair_copy(&self, copy: usize, offset: u64, data: Bytes) -> Result<(), DeviceError> {
        self.shared.geometry.check(offset, data.len() as u64)?;
        let _queued = self.shared.queue.write(Purpose::Repair, data.len() as u64);
        if data.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        self.shared.to_end(async move { shared.repair_copy(copy, offset, data).await }).await
    }

    async fn set_power(&self, power: Power) {
        join_all(self.members().iter().map(|device| device.set_power(power))).await;
    }

    async fn set_role(&self, role: Role) {
        join_all(self.members().iter().map(|device| device.set_role(role))).await;
        let resting = self.shared.standby && role == Role::Body;
        self.shared.resting.store(resting, Ordering::Relaxed);
        self.shared.apply_power().await;
    }
}
