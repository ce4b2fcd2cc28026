//! A solid-state drive in virtual time.
//!
//! Flash pages are on units (dies on channels) that work in parallel, each on one operation at a time:
//! read, program, erase. All units share the bus to the host. Writes wear the flash through a
//! translation layer with greedy garbage collection.

mod ftl;

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Time};
use thalweg_store::device::{
    Counters, Device, DeviceError, Geometry, Operation, Purpose, QueueDepth, Tallies, total_len,
};

use crate::busy::{BusyTimes, Kind, ServiceTime};
use crate::content::Content;
pub use ftl::Wear;
use ftl::{Ftl, Work};

/// Handling of writes that a drive has acknowledged but not yet programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// No write cache: a write is acknowledged when it is on flash.
    Off,
    /// A power cut loses them; a flush waits for them.
    Volatile,
    /// Capacitors power the drive until they are on flash; a flush returns at once.
    Protected,
}

/// The parameters of a solid-state drive.
#[derive(Clone, Debug)]
pub struct SolidStateSpec {
    /// Size in bytes.
    pub size: u64,
    /// Bytes in a sector.
    pub sector: u32,
    /// Bytes in a flash page, the unit of mapping.
    pub page: u32,
    /// Pages in a block, the unit of erasing.
    pub block_pages: u32,
    /// Flash units that work in parallel.
    pub units: usize,
    /// Time from a request's arrival to the start of its work.
    pub overhead: Duration,
    /// Time to read a page.
    pub read: Duration,
    /// Time to program a page.
    pub program: Duration,
    /// Time to erase a block.
    pub erase: Duration,
    /// Bytes per second between host and drive.
    pub bus_rate: u64,
    /// Handling of acknowledged writes that are not yet programmed.
    pub write_cache: WriteCache,
    /// Maximum number of bytes that are acknowledged and not yet programmed.
    pub cache_bytes: u64,
    /// Flash beyond the drive's size, as a fraction of it.
    pub over_provisioning: f64,
}

impl SolidStateSpec {
    /// A SATA drive: 500 MB/s, 0.1 ms for a random read, a volatile write cache.
    pub fn sata(size: u64) -> SolidStateSpec {
        SolidStateSpec {
            size,
            sector: 512,
            page: 4096,
            block_pages: 256,
            units: 32,
            overhead: Duration::from_micros(15),
            read: Duration::from_micros(75),
            program: Duration::from_micros(240),
            erase: Duration::from_millis(2),
            bus_rate: 500_000_000,
            write_cache: WriteCache::Volatile,
            cache_bytes: 8 << 20,
            over_provisioning: 0.07,
        }
    }
}

/// A write that is acknowledged before it is on flash.
#[derive(Debug)]
struct Unsettled {
    /// Time at which this write and all writes before it are on flash.
    settled: u64,
    offset: u64,
    len: u64,
    /// The bytes that it overwrote; empty for a drive that cannot lose writes.
    before: Bytes,
}

#[derive(Debug)]
struct State {
    content: Content,
    ftl: Ftl,
    /// Time at which each unit becomes idle.
    units: Vec<u64>,
    bus: u64,
    /// Writes not on flash, oldest first, in order of time.
    unsettled: VecDeque<Unsettled>,
    unsettled_bytes: u64,
    settled: u64,
    busy: BusyTimes,
    powered: bool,
}

/// A simulated solid-state drive.
#[derive(Debug)]
pub struct SolidState {
    env: Env,
    name: String,
    spec: SolidStateSpec,
    state: Mutex<State>,
    counters: Counters,
}

impl SolidState {
    /// An empty drive.
    pub fn new(env: &Env, name: &str, spec: SolidStateSpec) -> SolidState {
        let state = State {
            content: Content::new(),
            ftl: Ftl::new(&spec),
            units: vec![0; spec.units.max(1)],
            bus: 0,
            unsettled: VecDeque::new(),
            unsettled_bytes: 0,
            settled: 0,
            busy: BusyTimes::default(),
            powered: true,
        };
        SolidState {
            env: env.clone(),
            name: name.to_owned(),
            spec,
            state: Mutex::new(state),
            counters: Counters::default(),
        }
    }

    /// Wear of the flash.
    pub fn wear(&self) -> Wear {
        self.state.lock().ftl.wear()
    }

    /// Busy time, summed over the units; garbage collection counts under the write that triggered it.
    pub fn busy(&self) -> BusyTimes {
        self.state.lock().busy
    }

    /// Cuts the power. A volatile cache loses its oldest write that is not on flash and all later writes.
    /// Requests fail until [`SolidState::power_on`].
    pub fn power_cut(&self) {
        let state = &mut *self.state.lock();
        state.powered = false;
        self.settle(state);
        while let Some(write) = state.unsettled.pop_back() {
            state.content.write(write.offset, &write.before);
        }
        state.unsettled_bytes = 0;
        state.units.fill(0);
        state.bus = 0;
        state.settled = 0;
    }

    /// Powers the drive after a cut.
    pub fn power_on(&self) {
        self.state.lock().powered = true;
    }

    /// Locks the state of a powered drive, and removes the writes from the cache that are on flash by now.
    fn powered(
        &self,
        operation: Operation,
    ) -> Result<parking_lot::MutexGuard<'_, State>, DeviceError> {
        let mut state = self.state.lock();
        if !state.powered {
            let source = std::io::Error::other("the power was cut");
            return Err(DeviceError::io(&self.name, operation, source));
        }
        self.settle(&mut state);
        Ok(state)
    }

    fn settle(&self, state: &mut State) {
        let now = self.env.now().as_nanos();
        while state.unsettled.front().is_some_and(|write| write.settled <= now) {
            if let Some(write) = state.unsettled.pop_front() {
                state.unsettled_bytes -= write.len;
            }
        }
    }

    fn pages(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let page = u64::from(self.spec.page);
        offset / page..(offset + len).div_ceil(page)
    }

    fn start(&self) -> u64 {
        (self.env.now() + self.spec.overhead).as_nanos()
    }

    /// Occupies the bus for `len` bytes that are ready at `ready`; returns the end of the transfer.
    fn use_bus(&self, state: &mut State, ready: u64, len: u64) -> u64 {
        state.bus =
            state.bus.max(ready) + len.saturating_mul(1_000_000_000) / self.spec.bus_rate.max(1);
        state.bus
    }

    /// Reads the pages from flash; returns the time at which the host has their bytes.
    fn read_flash(&self, state: &mut State, offset: u64, len: u64, purpose: Purpose) -> u64 {
        let start = self.start();
        let mut ready = start;
        for page in self.pages(offset, len) {
            // Pages that were never written are answered from the map.
            let Some(unit) = state.ftl.unit_of(page) else { continue };
            ready = ready.max(occupy(state, unit, start, self.spec.read));
            state.busy.add(Kind::Read, purpose, transfer(self.spec.read));
        }
        // Pages are transferred as they arrive: only the last one is transferred after all reads.
        let last = len.min(u64::from(self.spec.page));
        let streamed = self.use_bus(state, start, len);
        let tail = last.saturating_mul(1_000_000_000) / self.spec.bus_rate.max(1);
        streamed.max(ready + tail)
    }

    /// Programs the pages; returns when the drive has the bytes, and when they are on flash.
    fn program(&self, state: &mut State, offset: u64, len: u64, purpose: Purpose) -> (u64, u64) {
        let start = self.start();
        let received = self.use_bus(state, start, len);
        let page_bytes = u64::from(self.spec.page);
        let mut done = received;
        for page in self.pages(offset, len) {
            let whole = page * page_bytes >= offset && (page + 1) * page_bytes <= offset + len;
            let partial = u64::from(!whole && state.ftl.unit_of(page).is_some());
            let Work { unit, reads, programs, erases } = state.ftl.write(page);
            let time = self.spec.read * (reads + partial) as u32
                + self.spec.program * programs as u32
                + self.spec.erase * erases as u32;
            done = done.max(occupy(state, unit, start, time));
            state.busy.add(Kind::Write, purpose, transfer(time));
        }
        (received, done)
    }

    /// Accepts a write; returns the time of its acknowledgement.
    fn accept(&self, offset: u64, data: &[Bytes], purpose: Purpose) -> Result<u64, DeviceError> {
        let state = &mut *self.powered(Operation::Write)?;
        let len = total_len(data);
        let (received, done) = self.program(state, offset, len, purpose);
        state.settled = state.settled.max(done);
        let before = match self.spec.write_cache {
            WriteCache::Protected => Bytes::new(),
            _ => state.content.read(offset, len as usize),
        };
        state.content.write_all(offset, data);
        let settled = state.settled;
        state.unsettled.push_back(Unsettled { settled, offset, len, before });
        state.unsettled_bytes += len;
        Ok(match self.spec.write_cache {
            WriteCache::Off => settled,
            _ => received.max(self.room_at(state)),
        })
    }

    /// Time at which the writes that wait for flash fit the cache.
    fn room_at(&self, state: &State) -> u64 {
        let mut excess = state.unsettled_bytes.saturating_sub(self.spec.cache_bytes);
        let mut room = 0;
        for write in &state.unsettled {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(write.len);
            room = write.settled;
        }
        room
    }
}

/// Adds work to a unit, from `start` on and after its present work; returns its end.
fn occupy(state: &mut State, unit: usize, start: u64, time: Duration) -> u64 {
    let free = &mut state.units[unit];
    *free = (Time::from_nanos(start.max(*free)) + time).as_nanos();
    *free
}

fn transfer(time: Duration) -> ServiceTime {
    ServiceTime { transfer: time, ..ServiceTime::default() }
}

#[async_trait]
impl Device for SolidState {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.spec.size, sector: self.spec.sector }
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        let done =
            self.read_flash(&mut *self.powered(Operation::Read)?, offset, len as u64, purpose);
        self.env.sleep_until(Time::from_nanos(done)).await;
        Ok(self.powered(Operation::Read)?.content.read(offset, len))
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        let _queued = self.counters.write(purpose, len);
        let done = self.accept(offset, &data, purpose)?;
        self.env.sleep_until(Time::from_nanos(done)).await;
        self.powered(Operation::Write).map(drop)
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        let settled = self.powered(Operation::Flush)?.settled;
        if self.spec.write_cache == WriteCache::Volatile {
            self.env.sleep_until(Time::from_nanos(settled)).await;
        }
        self.powered(Operation::Flush).map(drop)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        let state = &mut *self.powered(Operation::Discard)?;
        let page = u64::from(self.spec.page);
        let whole = offset.div_ceil(page)..(offset + len) / page;
        whole.for_each(|page| state.ftl.discard(page));
        state.content.discard(offset, len);
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
