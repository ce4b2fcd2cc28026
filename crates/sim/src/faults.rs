//! A wrapper that makes any device fail on command.
//!
//! Damage is kept in the wrapper, not on the device below: only reads through the wrapper see it. A
//! write of a damaged sector repairs it, as on a drive that remaps.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_store::device::{
    AlignedBuf, Device, DeviceError, DeviceRef, Geometry, Operation, Power, Purpose, QueueDepth,
    Role, Tallies, total_len,
};

/// The damage of a sector.
#[derive(Clone, Debug)]
enum Damage {
    /// Reads of it fail.
    Unreadable,
    /// Reads flip these bits of its first byte.
    Rotten(u8),
    /// Reads return this old content.
    Stale(Bytes),
}

/// A fault that replaces the next writes that touch a range.
#[derive(Clone, Debug)]
struct Mishap {
    range: Range<u64>,
    left: usize,
    kind: MishapKind,
}

#[derive(Clone, Copy, Debug)]
enum MishapKind {
    Lost,
    Misdirected { to: u64 },
}

#[derive(Debug, Default)]
struct State {
    /// Damage by sector.
    damage: BTreeMap<u64, Damage>,
    mishaps: Vec<Mishap>,
    /// Number of coming requests that fail, by kind.
    failing: BTreeMap<Operation, usize>,
    short_reads: usize,
    full: bool,
    /// After how long the next flush fails.
    late_flush: Option<Duration>,
    /// Number of requests until the drive dies.
    life: Option<usize>,
    factor: f64,
    delay: Duration,
}

/// A device with the faults that its [`Faults`] inject.
#[derive(Debug)]
pub struct Faulty {
    env: Env,
    inner: DeviceRef,
    state: Arc<Mutex<State>>,
}

/// Controls a [`Faulty`] device. Clones control the same device. Ranges are in bytes; damage extends
/// to all sectors that a range touches.
#[derive(Clone, Debug)]
pub struct Faults {
    inner: DeviceRef,
    state: Arc<Mutex<State>>,
}

impl Faulty {
    /// Wraps `inner`, at first without faults.
    pub fn wrap(env: &Env, inner: DeviceRef) -> (Arc<Faulty>, Faults) {
        let state = Arc::new(Mutex::new(State { factor: 1.0, ..State::default() }));
        let faults = Faults { inner: Arc::clone(&inner), state: Arc::clone(&state) };
        (Arc::new(Faulty { env: env.clone(), inner, state }), faults)
    }

    fn sectors(&self, offset: u64, len: u64) -> Range<u64> {
        sectors(self.inner.geometry(), &(offset..offset + len))
    }

    fn broken(&self, operation: Operation, why: &'static str) -> DeviceError {
        DeviceError::io(&self.inner.name(), operation, io::Error::other(why))
    }

    /// Admits a request, or fails it.
    fn admit(&self, operation: Operation) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        match &mut state.life {
            Some(0) => return Err(self.broken(operation, "the drive is dead")),
            Some(life) => *life -= 1,
            None => {}
        }
        if let Some(left) = state.failing.get_mut(&operation).filter(|left| **left > 0) {
            *left = left.saturating_sub(1);
            return Err(self.broken(operation, "an injected failure"));
        }
        if state.full && operation == Operation::Write {
            return Err(DeviceError::NoSpace { device: self.inner.name() });
        }
        Ok(())
    }

    /// Runs a request at the device's present speed.
    async fn drag<F: Future>(&self, request: F) -> F::Output {
        let start = self.env.now();
        let output = request.await;
        let (factor, delay) = {
            let state = self.state.lock();
            (state.factor, state.delay)
        };
        let extra = self.env.now().since(start).mul_f64((factor - 1.0).max(0.0)) + delay;
        if !extra.is_zero() {
            self.env.sleep(extra).await;
        }
        output
    }

    /// Applies the damage to the bytes of a read.
    fn damaged(&self, offset: u64, data: Bytes) -> Result<Bytes, DeviceError> {
        let mut state = self.state.lock();
        let sector = u64::from(self.inner.geometry().sector);
        let touched = self.sectors(offset, data.len() as u64);
        let short = state.short_reads > 0;
        state.short_reads = state.short_reads.saturating_sub(1);
        let damage = state.damage.range(touched);
        let mut damage = damage.peekable();
        if damage.peek().is_none() && !short {
            return Ok(data);
        }
        let mut buffer = AlignedBuf::copy_of(&data);
        for (at, damage) in damage {
            let first = (at * sector - offset) as usize;
            let bytes = &mut buffer[first..first + sector as usize];
            match damage {
                Damage::Unreadable => {
                    return Err(self.broken(Operation::Read, "an unreadable sector"));
                }
                Damage::Rotten(mask) => bytes[0] ^= mask,
                Damage::Stale(old) => bytes.copy_from_slice(old),
            }
        }
        if short {
            let half = buffer.len() / 2;
            buffer[half..].fill(0);
        }
        Ok(buffer.freeze())
    }

    /// The offset at which a write lands; `None` when it is lost.
    fn direct(&self, offset: u64, len: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let hit = state.mishaps.iter_mut().find(|mishap| {
            mishap.left > 0 && mishap.range.start < offset + len && offset < mishap.range.end
        });
        match hit {
            None => Some(offset),
            Some(mishap) => {
                mishap.left -= 1;
                match mishap.kind {
                    MishapKind::Lost => None,
                    MishapKind::Misdirected { to } => Some(to),
                }
            }
        }
    }

    /// Repairs the sectors that a write covers. Stale sectors stay stale.
    fn mend(&self, offset: u64, len: u64) {
        let touched = self.sectors(offset, len);
        let mut state = self.state.lock();
        let mended = state.damage.range(touched);
        let mended = mended.filter(|(_, damage)| !matches!(damage, Damage::Stale(_)));
        let mended: Vec<u64> = mended.map(|(sector, _)| *sector).collect();
        for sector in mended {
            state.damage.remove(&sector);
        }
    }

    async fn write_now(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.inner.geometry().check(offset, len)?;
        let Some(place) = self.direct(offset, len) else { return Ok(()) };
        self.inner.write(place, data, purpose).await?;
        self.mend(place, len);
        Ok(())
    }
}

fn sectors(geometry: Geometry, range: &Range<u64>) -> Range<u64> {
    let sector = u64::from(geometry.sector);
    range.start / sector..range.end.div_ceil(sector)
}

impl Faults {
    fn damage(&self, range: &Range<u64>, damage: impl Fn(u64) -> Damage) {
        let mut state = self.state.lock();
        for sector in sectors(self.inner.geometry(), range) {
            state.damage.insert(sector, damage(sector));
        }
    }

    /// Latent sector errors: reads that touch the range fail until it is rewritten.
    pub fn break_sectors(&self, range: Range<u64>) {
        self.damage(&range, |_| Damage::Unreadable);
    }

    /// Bit rot: in every sector of the range the bits of `mask` are flipped in the first byte until
    /// the sector is rewritten.
    pub fn rot(&self, range: Range<u64>, mask: u8) {
        self.damage(&range, |_| Damage::Rotten(mask));
    }

    /// Stale reads: the range reads as now, regardless of later writes, until [`Faults::heal`].
    ///
    /// # Errors
    /// The device's error when it reads the range.
    pub async fn freeze(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let geometry = self.inner.geometry();
        let sector = u64::from(geometry.sector);
        for at in sectors(geometry, &range) {
            let now = self.inner.read(at * sector, sector as usize, Purpose::Repair).await?;
            self.state.lock().damage.insert(at, Damage::Stale(now));
        }
        Ok(())
    }

    /// Short reads: the second half of each of the next `count` reads is zeros.
    pub fn shorten_reads(&self, count: usize) {
        self.state.lock().short_reads = count;
    }

    /// Lost writes: the next `count` writes that touch the range are acknowledged but not done.
    pub fn lose_writes(&self, range: Range<u64>, count: usize) {
        let mishap = Mishap { range, left: count, kind: MishapKind::Lost };
        self.state.lock().mishaps.push(mishap);
    }

    /// A misdirected write: the next write that touches the range goes to `to` instead.
    pub fn misdirect(&self, range: Range<u64>, to: u64) {
        let mishap = Mishap { range, left: 1, kind: MishapKind::Misdirected { to } };
        self.state.lock().mishaps.push(mishap);
    }

    /// Fails the next `count` requests of a kind; `usize::MAX` fails all of them.
    pub fn fail(&self, operation: Operation, count: usize) {
        self.state.lock().failing.insert(operation, count);
    }

    /// The next flush fails, after `delay`. Flushes behind it do not wait for it, and may succeed meanwhile: a device
    /// reports a lost write once.
    pub fn fail_flush_after(&self, delay: Duration) {
        self.state.lock().late_flush = Some(delay);
    }

    /// The drive dies after `count` more requests: every later request fails.
    pub fn die_after(&self, count: usize) {
        self.state.lock().life = Some(count);
    }

    /// Makes the medium full, or gives it space again.
    pub fn fill(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Every request takes `factor` times as long, plus `delay`.
    pub fn slow(&self, factor: f64, delay: Duration) {
        let mut state = self.state.lock();
        state.factor = factor;
        state.delay = delay;
    }

    /// Ends every fault. Lost and misdirected writes stay lost and misdirected.
    pub fn heal(&self) {
        *self.state.lock() = State { factor: 1.0, ..State::default() };
    }

    /// Number of damaged sectors.
    pub fn damaged_sectors(&self) -> usize {
        self.state.lock().damage.len()
    }
}

#[async_trait]
impl Device for Faulty {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.admit(Operation::Read)?;
        let data = self.drag(self.inner.read(offset, len, purpose)).await?;
        self.damaged(offset, data)
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        self.admit(Operation::Write)?;
        self.drag(self.write_now(offset, data, purpose)).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.admit(Operation::Flush)?;
        let late = self.state.lock().late_flush.take();
        if let Some(delay) = late {
            self.env.sleep(delay).await;
            return Err(self.broken(Operation::Flush, "a write that was lost"));
        }
        self.drag(self.inner.flush(purpose)).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.admit(Operation::Discard)?;
        self.drag(self.inner.discard(offset, len)).await
    }

    async fn grow_to(&self, size: Option<u64>) -> Result<u64, DeviceError> {
        self.admit(Operation::Grow)?;
        self.drag(self.inner.grow_to(size)).await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.inner.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.inner.tallies()
    }

    fn members(&self) -> Vec<DeviceRef> {
        self.inner.members()
    }

    fn is_rotational(&self) -> bool {
        self.inner.is_rotational()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn has_copy(&self, copy: usize) -> bool {
        self.inner.has_copy(copy)
    }

    async fn read_copy(
        &self,
        copy: usize,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        self.admit(Operation::Read)?;
        let data = self.drag(self.inner.read_copy(copy, offset, len, purpose)).await?;
        self.damaged(offset, data)
    }

    async fn repair_copy(&self, copy: usize, offset: u64, data: Bytes) -> Result<(), DeviceError> {
        self.admit(Operation::Write)?;
        let len = data.len() as u64;
        self.drag(self.inner.repair_copy(copy, offset, data)).await?;
        self.mend(offset, len);
        Ok(())
    }

    async fn set_power(&self, power: Power) {
        self.inner.set_power(power).await;
    }

    async fn set_role(&self, role: Role) {
        self.inner.set_role(role).await;
    }
}
